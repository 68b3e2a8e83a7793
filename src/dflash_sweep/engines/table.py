"""docs/engines.md from the adapters' own definitions: `python -m dflash_sweep.engines.table [FILE]`.

Imports `engines`. Without a file the page goes to the standard output; a test keeps the committed page equal to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from dflash_sweep.engines import REGISTRY, get
from dflash_sweep.engines.base import Engine, KnobDef
from dflash_sweep.errors import EngineMissing

TITLES = {
    "attach": "a server that already runs (Atomic Chat, LM Studio, Ollama, a remote machine)",
    "beellama": "BeeLlama (Anbeeld/beellama.cpp)",
    "ddtree": "the DDTree fork of llama.cpp (Leechael/llama.cpp-dflash-ggml)",
    "emulator": "the embedded DDTree server, times from a cost model",
    "llamacpp": "upstream llama.cpp",
    "lucebox": "Lucebox (Luce-Org/lucebox)",
    "sglang": "SGLang",
    "vllm": "vLLM",
}

INTRO = """\
# Engines

One engine is one server program. `engine=NAME` chooses it; `dflash-sweep doctor engine=NAME` says whether it can run
here, what it is missing and how to get it. This page is printed from the adapters' own definitions
(`python -m dflash_sweep.engines.table docs/engines.md`); a test keeps it equal to them.

How to read the tables

- **knob** is the name in `space`, `fixed` and `seed_points`. The same word means the same thing in every engine.
- **flag or variable** is the engine's own spelling. A knob that is not given is not passed at all, 0 is passed as 0.
- **default** is what happens without the knob; `-` = the engine decides.
- **scope**: `launch` needs a new server for a new value, `request` does not.
- **since** is the first build known to have it. The binary that is really there decides: a knob whose flag its help
  does not list is refused before anything starts.
- **options** stay the same over a study and are set as `engine.options.NAME`.

"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") or "-"


def _value(value: object) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _range(knob: KnobDef) -> str:
    """What a knob may be, in words."""
    if knob.kind == "bool":
        return "true, false"
    if knob.choices:
        return ", ".join(map(str, knob.choices))
    low, high = knob.low, knob.high
    if low is None and high is None:
        return "any"
    text = f"{low:g} to {high:g}" if low is not None and high is not None else ""
    text = text or (f"{low:g} and more" if low is not None else f"up to {high:g}")
    return f"{text} {knob.unit}".strip()


def _spelling(knob: KnobDef) -> str:
    if knob.env is not None:
        return f"`{knob.env}`"
    if knob.flag is None or knob.flag.startswith("("):
        return (knob.flag or "-").strip("()")
    if knob.scope == "request":
        return f"`{knob.flag}` (request)"
    return f"`{knob.flag}`" + (" if false" if knob.kind == "bool" and not knob.flag_when else "")


def _rows(knobs: Iterable[KnobDef]) -> list[str]:
    rows = [
        "| knob | flag or variable | type | allowed | default | scope | since | what it does |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for knob in knobs:
        cells = (
            f"`{knob.name}`", _spelling(knob), knob.kind, _range(knob), _value(knob.default), knob.scope,
            knob.since or "-", knob.doc or "-",
        )  # fmt: skip
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return rows


def _option_rows(options: Iterable[KnobDef]) -> list[str]:
    rows = ["| option | becomes | type | allowed | default | what it does |", "| --- | --- | --- | --- | --- | --- |"]
    for option in options:
        cells = (
            f"`{option.name}`", _spelling(option), option.kind, _range(option), _value(option.default),
            option.doc or "-",
        )  # fmt: skip
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return rows


def dialects(engine: Engine) -> dict[str, str]:
    """The adapter's parser variants → what they are; empty = there is one only."""
    found: dict[str, str] = getattr(import_module(type(engine).__module__), "DIALECTS", {})
    return found


def how_to_get(engine: Engine) -> str:
    """A sentence that says how to get the engine; empty = it comes with this program."""
    module = import_module(type(engine).__module__)
    return str(getattr(module, "HOW", getattr(module, "HOW_TO_GET", "")))


def _facts(engine: Engine) -> list[str]:
    facts = engine.facts
    clock = (
        "after the first token, which comes from prefill (decoded tokens = output tokens − 1)"
        if facts.first_token_from_prefill
        else "before the first token (all output tokens are decoded)"
    )
    stages = ", ".join(f"`{name}`" for name in facts.stages) or "none"
    greedy = "the same as plain decoding by construction" if facts.lossless else "may differ from plain decoding"
    lines = [
        f"- numbers: {facts.measurement}",
        f"- decode clock starts {clock}",
        f"- stage times: {stages}",
        f"- greedy text: {greedy}",
        f"- launched here: {'yes' if facts.launches else 'no'}; needs a draft model to speculate: "
        f"{'yes' if facts.needs_draft_model else 'no'}; runs on: {facts.accelerator}",
    ]
    if facts.metrics_path is not None:
        lines.append(f"- counters read around each request: `{facts.metrics_path}`")
    if how := how_to_get(engine).rstrip("."):
        lines.append(f"- how to get it: {how[0].lower()}{how[1:]}")
    lines += [f"- dialect {name}: {meaning}" for name, meaning in dialects(engine).items()]
    return [*lines, f"- {facts.note}"] if facts.note else lines


def section(engine: Engine) -> str:
    """One engine's part of the page."""
    lines = [f"## {engine.name}: {TITLES.get(engine.name, engine.name)}", "", *_facts(engine), ""]
    lines += [*_rows(engine.knobs), ""] if engine.knobs else ["No knobs.", ""]
    lines += [*_option_rows(engine.options), ""] if engine.options else []
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    parts = [section(get(name)).rstrip() for name in sorted(REGISTRY)]
    return INTRO + "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page to a file, or to the standard output. Returns the exit code."""
    try:
        text = page()
    except EngineMissing as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
