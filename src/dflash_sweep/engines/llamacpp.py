"""Upstream llama.cpp's llama-server: the wheel `xllamacpp` behind our launcher, or any executable by engine.binary.

Imports `engines.base`, the shared helpers of this package, `gguf_meta`, `models`, `precision`.
Facts are of build b11549 unless said otherwise (DFlash upstream: pull request 22105 of llama.cpp).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dflash_sweep import gguf_meta, models, precision
from dflash_sweep.engines import llamacpp_log, probing
from dflash_sweep.engines.base import EngineFacts, KnobDef, LaunchRequest
from dflash_sweep.engines.checks import added_environment, has_flag, knob_problems, option_values, slot_only
from dflash_sweep.engines.llamacpp_knobs import (
    KNOBS,
    SPEC_NAMES,
    SPEC_TYPES,
    combination_problems,
    dead_names,
    spellings,
    types_of,
)
from dflash_sweep.engines.rendering import render_value
from dflash_sweep.errors import ConfigError, EngineMissing, FailureKind
from dflash_sweep.records import (
    EngineBuild,
    EngineSettings,
    Exchange,
    Knobs,
    LaunchSpec,
    Measurement,
    ModelFile,
    TurnCounters,
)

LAUNCHER = "dflash_sweep.engines.llamacpp_launcher"
HOW_TO_GET = "Install the CPU server with `pip install 'dflash-sweep[cpu]'`, or set engine.binary=/path/to/llama-server"
SYNTHETIC = ("--spec-synth-len", "--spec-synth-rates")
"""Acceptance by dice: the text is invalid and no speed means anything, so these never enter a study."""

MANAGED = frozenset({
    "-m", "--model", "-md", "--model-draft", "--spec-draft-model", "--host", "--port", "-np", "--parallel", "-c",
    "--ctx-size", "-lv", "--verbosity", "--log-verbosity", "--log-file", "--log-disable", "--metrics", "--no-slots",
})  # fmt: skip
"""Switches that engine settings or the worker own; engine.extra_args may not repeat them."""

ENVIRONMENT = ("GGML_NO_BACKTRACE", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")

_VERSION = re.compile(r"version:\s*(?:xllamacpp\s+)?(\S+)\s*\((?:build\s+)?(\w+)(?:,\s*commit\s+([\w-]+))?\)")


class LlamacppEngine:
    """The adapter. Stateless; see `engines.base.Engine` for what each method promises."""

    name = "llamacpp"
    facts = EngineFacts(
        measurement=Measurement.MEASURED,
        first_token_from_prefill=True,
        stages=("step_ms", "draft_ms", "accept_ms", "verify_ms"),
        lossless=True,
        accelerator="cpu",
        cold_by="first_request",
        note="verify_ms is what is left of the decode time after drafting; greedy text is the same with and without "
        "speculation within one build and one model file only",
    )
    knobs: tuple[KnobDef, ...] = KNOBS
    options: tuple[KnobDef, ...] = (
        KnobDef(name="draft", kind="choice", flag="--model-draft", choices=("auto", "none"), default="auto",
                doc="auto: with the default target and no engine.draft_model, the shipped draft; none: no draft file"),
        KnobDef(name="log_verbosity", kind="int", flag="--verbosity", low=3, high=5, default=4,
                doc="4 prints draft times and acceptance by position; at 3 both are unknown"),
        KnobDef(name="chat_template_file", kind="str", flag="--chat-template-file",
                doc="a chat template instead of the model's own"),
    )  # fmt: skip

    # ------------------------------------------------------------ before the launch

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Version, switches and hash. Without engine.binary the engine is the wheel: its library is what is hashed."""
        command, binary = _command(settings)
        said = probing.ask([*command, "--version"])
        helped = probing.ask([*command, "--help"])
        if said.code != 0 or helped.code != 0:
            failed = said if said.code != 0 else helped
            raise EngineMissing(f"{' '.join(command)} does not run: {probing.reason(failed)}. {HOW_TO_GET}")
        flags = probing.entry_help(helped.text).with_values()
        if "--spec-type" not in flags:
            raise EngineMissing(
                f"engine.binary: {binary} has no --spec-type: it is not an upstream llama-server of build b9873 or "
                f"later. {HOW_TO_GET}"
            )
        return EngineBuild(
            engine=self.name,
            version=_version(said.text, is_wheel=settings.binary is None),
            binary=binary,
            binary_sha256=probing.binary_sha256(binary),
            dialect="wheel" if settings.binary is None else "executable",
            flags=flags,
        )

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """Target and, where there is one, draft. Raises EngineMissing: a file is missing or the pair does not fit."""
        target, draft = _target(settings), _draft(settings)
        found = [gguf_meta.read(target, "target")]
        if draft is not None:
            if problems := gguf_meta.check_pair(target, draft, architectures=("dflash",)):
                raise EngineMissing(f"target {target} and draft {draft} do not fit together: {'; '.join(problems)}")
            found.append(gguf_meta.read(draft, "draft"))
        return tuple(found)

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """Problems of one point on this build: unknown knobs and switches, refused values and combinations."""
        spec_type = knobs.get("spec_type")
        alive = {name: value for name, value in self.effective_point(knobs).items() if name != "spec_type"}
        spelt = {d.name: flag for d in KNOBS for flag in spellings(d.name, d.flag, spec_type)}
        problems = [*knob_problems(KNOBS, build, alive, spelt)]
        if spec_type is not None and not isinstance(spec_type, str):
            return (*problems, f"spec_type={spec_type!r} is not allowed: it takes {', '.join(SPEC_TYPES)}")
        draft = _draft(settings)
        problems += combination_problems(knobs, None if draft is None else gguf_meta.max_draft_tokens(draft))
        problems += _type_problems(spec_type, build, draft)
        problems += _argument_problems(settings, build)
        return tuple(problems)

    def effective_point(self, knobs: Knobs) -> Knobs:
        """The same knobs, with those that the speculation type ignores set to None."""
        dead = dead_names(knobs.get("spec_type"))
        return {name: None if name in dead else value for name, value in knobs.items()}

    # ------------------------------------------------------------ the launch

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """One slot-limited server with metrics and slots on. Plain decoding gets no speculation switch at all.

        Re-encodes the target first where target_precision asks for a file that is not there yet (seconds, once).
        """
        settings, knobs, build = request.settings, request.knobs, request.build
        command, _ = _command(settings)
        options = option_values(self.name, self.options, settings.options)
        if problems := _argument_problems(settings, build):
            raise ConfigError(problems[0])
        argv = [*command, "-m", str(_target_file(settings, knobs)), "--host", request.host, "--port", str(request.port)]
        argv += ["-c", str(settings.n_ctx), "-np", str(request.n_parallel), "--metrics", "--slots"]
        argv += slot_only(settings, build, request.shared)
        argv += ["-lv", str(options["log_verbosity"])]
        for words in (("--no-webui",), ("--log-colors", "off"), ("--offline",)):
            if has_flag(build, words[0]):
                argv += words
        if options["chat_template_file"] is not None:
            argv += ["--chat-template-file", str(options["chat_template_file"])]
        argv += _knob_words(self.effective_point(knobs), request.speculative)
        if request.speculative:
            argv += _draft_words(settings, knobs)
        environment = {"GGML_NO_BACKTRACE": "1"} | added_environment(self.name, settings.env, ENVIRONMENT)
        return LaunchSpec(argv=(*argv, *settings.extra_args), env=environment)

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """Nothing: every knob is fixed at launch, and the last chunk carries `timings` without being asked to."""
        return {}

    # ------------------------------------------------------------ after the run

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """What log and /slots show. `speculation`: the drafters really at work, "none" if /slots shows none (/props
        always says none, and the type in a slot's parameters is only what was asked for)."""
        shown = llamacpp_log.settings_in_force(log)
        drafting = [slot.get("speculative") for slot in slots if isinstance(slot, Mapping)]
        if drafting and all(state is False for state in drafting):
            shown["speculation"] = "none"
        if shown.get("speculation") not in (None, "none"):
            shown["spec_type"] = shown["speculation"]
        precision_shown = shown.pop("file_type", None)
        if knobs.get("target_precision") in precision.PRECISIONS and precision_shown is not None:
            shown["target_precision"] = precision_shown
        return _as_asked(shown, knobs)

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        return llamacpp_log.parse_trial(exchanges, log)

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        return llamacpp_log.classify(log, exit_code)

    def memory_mib(self, log: str) -> dict[str, float]:
        return llamacpp_log.buffers_mib(log)


# ---------------------------------------------------------------- the server's command and its files


def _command(settings: EngineSettings) -> tuple[list[str], str]:
    """(words that start the server, the file that is the engine). Raises EngineMissing, saying how to get it."""
    if settings.binary is not None:
        path = probing.find_binary(settings, (), HOW_TO_GET)
        return [path], path
    spec = find_spec("xllamacpp")
    for place in () if spec is None else tuple(spec.submodule_search_locations or ()):
        for library in sorted(Path(place).glob("xllamacpp*.so")):
            return [sys.executable, "-m", LAUNCHER], str(library)
    raise EngineMissing(f"engine.binary is not set and the package xllamacpp is not installed. {HOW_TO_GET}")


def _version(text: str, *, is_wheel: bool) -> str:
    found = _VERSION.search(text)
    if found is None:
        return "unknown"
    if is_wheel:
        return f"xllamacpp {found[1]} (llama.cpp b{found[2]})"
    if found[3]:
        return f"b{found[2]} ({found[3]})"
    return f"b{found[1]} ({found[2]})"


def _target(settings: EngineSettings) -> Path:
    return models.target_path() if settings.model is None else Path(settings.model)


def _draft(settings: EngineSettings) -> Path | None:
    """The draft file in use: the given one, or the shipped one if the target is the default one."""
    if settings.draft_model is not None:
        return Path(settings.draft_model)
    if settings.model is None and settings.options.get("draft", "auto") != "none":
        return models.draft_path()
    return None


def _target_file(settings: EngineSettings, knobs: Knobs) -> Path:
    wanted = knobs.get("target_precision")
    target = _target(settings)
    return target if wanted in (None, "as_shipped") else precision.reencoded(target, str(wanted))


def _knob_words(point: Knobs, speculative: bool) -> list[str]:
    """Launch switches of a point's knobs; speculation's only where speculation is asked for.

    Raises ConfigError for a knob that this engine does not have.
    """
    definitions = {definition.name: definition for definition in KNOBS}
    words: list[str] = []
    for name, value in point.items():
        definition = definitions.get(name)
        if definition is None:
            raise ConfigError(f"knob {name!r} is not known to llamacpp; known: {', '.join(sorted(definitions))}")
        if value is None or name == "target_precision" or (name in SPEC_NAMES and not speculative):
            continue
        for flag in spellings(name, definition.flag, point.get("spec_type")):
            words += [flag, render_value(definition, value)]
    return words


def _draft_words(settings: EngineSettings, knobs: Knobs) -> list[str]:
    spec_type = knobs.get("spec_type")
    draft = _draft(settings)
    needs = spec_type is None or any(kind.startswith("draft-") for kind in types_of(spec_type))
    return ["--model-draft", str(draft)] if needs and draft is not None else []


# ---------------------------------------------------------------- checks


def _type_problems(spec_type: str | None, build: EngineBuild, draft: Path | None) -> list[str]:
    listed = [word.split("=", 1)[1] for word in build.flags if word.startswith("--spec-type=")]
    problems = []
    for kind in types_of(spec_type):
        if listed and kind in SPEC_TYPES and kind not in listed:
            problems.append(f"spec_type={kind}: {build.version} does not know it; it has {', '.join(sorted(listed))}")
        if kind in ("draft-dflash", "draft-simple", "draft-eagle3", "draft-dspark") and draft is None:
            problems.append(
                f"spec_type={kind} needs a draft: set engine.draft_model=/path/to/draft.gguf "
                "(the server would start and decode without speculation)"
            )
    return problems


def _argument_problems(settings: EngineSettings, build: EngineBuild) -> list[str]:
    problems = []
    for word in settings.extra_args:
        name = word.split("=", 1)[0]
        if name in SYNTHETIC:
            problems.append(f"engine.extra_args: {name} makes acceptance by dice and the text invalid; refused here")
        elif name in MANAGED:
            problems.append(f"engine.extra_args: {name} is set by this program; use the engine's own settings for it")
        elif name.startswith("-") and not name[1:2].isdigit() and not has_flag(build, name):
            problems.append(f"engine.extra_args: {build.version} has no {name}")
    return problems


def _as_asked(shown: Knobs, knobs: Knobs) -> Knobs:
    """Shown values in the form they were asked for, where both say the same.

    The log rounds p_min to two decimals and lists the types in its own order; the n-gram lines stand for whatever type
    is in use, so they count only if they were asked for.
    """
    result: Knobs = {}
    for name, value in shown.items():
        asked = knobs.get(name)
        same = value == asked
        if name == "spec_draft_p_min" and isinstance(asked, int | float) and isinstance(value, float):
            same = abs(asked - value) <= 0.0051
        elif name == "spec_type" and isinstance(asked, str):
            same = set(types_of(asked)) == set(types_of(value))
        result[name] = asked if same else value
    return result
