"""Does speculation pay? Finished studies of one engine on one page: the acceptance length that the best setting of
each kind has, and the one that it needs. Imports matplotlib, `errors`, `records`, `report` siblings; reads their
findings.json files.

    python -m dflash_sweep.report.does_it_pay reports/a reports/b --out reports/does_it_pay
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure

from dflash_sweep.errors import ConfigError
from dflash_sweep.records import UNSET, Measurement
from dflash_sweep.report import style
from dflash_sweep.report.wording import DASH, factor, interval, knob_value, rate
from dflash_sweep.report.writer import replace_file

NAME = "does_it_pay"
KINDS = {"dflash": "DFlash draft", "draft": "draft model", "ngram": "n-gram", "other": "speculation"}
UNLIKE = "† Plain decoding ran with other settings only: the gain is not speculation's alone."
_SHARED = ("threads", "threads_batch", "cache_type_k", "cache_type_v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The best setting of one kind in one study. Lengths are tokens per verify step; `speedup` is its rate over plain
    decoding's with a 95 % interval; None = not known or not enough runs. `needed`: step time / plain time per token.
    `unlike`: it is faster than plain decoding, which ran with other threads, caches or the like only.
    """

    study: str
    kind: str
    setting: str
    n: int
    tps: float
    plain_tps: float
    plain_interval: tuple[float, float] | None
    plain_n: int
    length: float | None
    needed: float | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    unlike: bool = False

    @property
    def verdict(self) -> str:
        """In words, by the interval and never by the single figure."""
        if self.speedup_interval is None:
            return "undecided: too few runs"
        low, high = self.speedup_interval
        if low > 1 and self.unlike:
            return "undecided: plain decoding ran with other settings"
        return "speculation wins" if low > 1 else "plain decoding wins" if high < 1 else "undecided"


def load(folder: str | Path) -> dict[str, Any]:
    """A study's findings.json, by its report folder or by a page in it. Raises ConfigError: missing, or no findings."""
    path = Path(folder)
    path = (path if path.is_dir() else path.parent) / "findings.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}; give report folders") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a findings.json: {error}") from None
    if not isinstance(document, dict) or not {"study", "settings", "measurement"} <= document.keys():
        raise ConfigError(f"{path} is not a findings.json: it has no study, settings or measurement")
    return document


def kind_of(knobs: Mapping[str, Any]) -> str:
    """Which kind of drafting a setting uses: a key of KINDS."""
    types = str(knobs.get("spec_type") or "")
    if "draft-dflash" in types or "dspark" in types:
        return "dflash"
    return "ngram" if types.startswith("ngram") else "draft" if types.startswith("draft") else "other"


def _pair(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def rows(document: Mapping[str, Any]) -> list[Row]:
    """The best measured setting of each kind; empty without a plain row or without speculative ones."""
    settings = [entry for entry in document["settings"] if entry.get("decode_tps") is not None]
    plain = next((entry for entry in settings if not entry["speculative"]), None)
    if plain is None:
        return []
    best: dict[str, dict[str, Any]] = {}
    for entry in settings:
        kind = kind_of(entry["knobs"])
        if entry["speculative"] and (kind not in best or _rank(entry) > _rank(best[kind])):
            best[kind] = entry
    return [_row(document, kind, best[kind], plain) for kind in KINDS if kind in best]


def _rank(entry: Mapping[str, Any]) -> tuple[bool, float]:
    """A confirmed setting goes before a faster single run, which may have been lucky."""
    return bool(entry.get("confirmed")), float(entry["decode_tps"])


def _row(document: Mapping[str, Any], kind: str, entry: Mapping[str, Any], plain: Mapping[str, Any]) -> Row:
    speedup = entry.get("speedup") or {}
    own = {
        name: value for name, value in entry["knobs"].items() if value is not None and value != plain["knobs"].get(name)
    }
    return Row(
        study=str(document["study"]),
        kind=kind,
        setting=" ".join(f"{name}={knob_value(value)}" for name, value in sorted(own.items())),
        n=int(entry["n"]),
        tps=float(entry["decode_tps"]),
        plain_tps=float(plain["decode_tps"]),
        plain_interval=_pair(plain.get("ci_low"), plain.get("ci_high")),
        plain_n=int(plain["n"]),
        length=entry.get("acceptance_length"),
        needed=_needed(entry, plain),
        speedup=speedup.get("value"),
        speedup_interval=_pair(speedup.get("ci_low"), speedup.get("ci_high")),
        unlike=bool(entry.get("plain_unlike")),
    )


def _needed(entry: Mapping[str, Any], plain: Mapping[str, Any]) -> float | None:
    """Step time / plain time per token. Where the ratio to plain decoding is known, its AL over that ratio, which is
    the same figure and agrees with the ratio shown (means of several runs are rounded in different ways)."""
    length, ratio, step_ms = entry.get("acceptance_length"), entry.get("speedup") or {}, entry.get("step_ms")
    if length is not None and ratio.get("value"):
        return float(length) / float(ratio["value"])
    return None if step_ms is None else float(step_ms) * float(plain["decode_tps"]) / 1000.0


def _times_plain(row: Row) -> str:
    mark = " †" if row.unlike else ""
    if row.speedup_interval is None:
        return f"{factor(row.speedup)}{mark} (one run)" if row.n == 1 else f"{factor(row.speedup)}{mark}"
    return f"{factor(row.speedup)}{mark} {interval(*row.speedup_interval)}"


def _facts(document: Mapping[str, Any]) -> dict[str, str]:
    """What a study's plain decoding ran with, for telling studies apart."""
    plain: Mapping[str, Any] = next((e for e in document["settings"] if not e["speculative"]), {"knobs": {}})
    provenance = document.get("provenance") or {}
    shown = {name: knob_value(plain["knobs"].get(name)) for name in ("target_precision", *_SHARED)}
    shown |= {name: str(provenance.get(name) or DASH) for name in ("engine", "build", "device", "trace")}
    return shown


def differences(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """(what all studies share, what is each one's own), by fact."""
    facts = [_facts(document) for document in documents]
    names = list(facts[0]) if facts else []
    same = {name: facts[0][name] for name in names if len({fact[name] for fact in facts}) == 1}
    own = [{name: fact[name] for name in names if name not in same} for fact in facts]
    return {name: value for name, value in same.items() if value not in (DASH, UNSET)}, own


def markdown(documents: Sequence[Mapping[str, Any]]) -> str:
    """The page: what differs, one table, how to read it."""
    same, own = differences(documents)
    kinds = sorted({str(document["measurement"]).upper() for document in documents})
    lines = [f"# Does speculation pay? — {', '.join(kinds)}", ""]
    lines += [f"![AL that each setting has and needs]({NAME}.png)", ""]
    head = ("study", "what differs", "plain tok/s", "n", "best of its kind", "tok/s", "n", "AL", "AL needed", "× plain")
    lines += [f"| {' | '.join([*head, 'verdict'])} |", "|" + " --- |" * (len(head) + 1)]
    for document, facts in zip(documents, own, strict=True):
        for row in rows(document):
            cells = (
                row.study, "; ".join(f"{name}: {value}" for name, value in facts.items()) or DASH,
                f"{rate(row.plain_tps)} {interval(*(row.plain_interval or (None, None)))}", str(row.plain_n),
                f"{KINDS[row.kind]}: `{row.setting}`", rate(row.tps), str(row.n), rate(row.length), rate(row.needed),
                _times_plain(row), f"**{row.verdict}**",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    lines += ["", "AL: tokens per verify step, the target's own included. Needed: step time / plain time per token."]
    lines += [
        "Intervals are 95 % over runs; n counts runs. Figures of different studies were measured one after another."
    ]
    if any(row.unlike for document in documents for row in rows(document)):
        lines += ["", UNLIKE]
    if same:
        lines += ["", "The same for all: " + "; ".join(f"{name}: {value}" for name, value in same.items()) + "."]
    return "\n".join(lines) + "\n"


def draw(documents: Sequence[Mapping[str, Any]]) -> Figure | None:
    """One bar a setting: the AL it has against the AL it needs; None if no setting has both."""
    _, own = differences(documents)
    shown = []
    for document, facts in zip(documents, own, strict=True):
        note = ", ".join(facts[name] for name in ("target_precision", "threads", "engine") if name in facts)
        shown += [(row, note) for row in rows(document) if row.length is not None and row.needed is not None]
    if not shown:
        return None
    measurement = Measurement(str(documents[0]["measurement"]))
    stamp = style.Stamp(
        measurement=measurement, word=str(measurement).upper(), source=" · ".join(str(d["study"]) for d in documents)
    )
    legend: style.Legend = [
        (style.swatch(style.BLUE), "AL it has: tokens per step"),
        (style.marker(style.VERMILION, "D"), "AL it needs: step time / plain time per token"),
    ]
    title, subtitle = (
        "Does speculation pay?",
        "A bar that passes its diamond beats plain decoding; one that ends before it loses.",
    )
    if any(row.unlike for row, _ in shown):
        subtitle += f" {UNLIKE}"
    figure = style.sheet(stamp, title, subtitle, body_in=0.35 + 0.52 * len(shown), legend=legend)
    axes = figure.subplots()
    for y, (row, note) in enumerate(shown):
        assert row.length is not None  # both are, see above
        assert row.needed is not None
        axes.barh(y, row.length, height=0.42, color=style.BLUE, zorder=2)
        axes.plot(row.needed, y, "D", color=style.VERMILION, markeredgecolor="white", markersize=9, zorder=4)
        name = f"{row.study}{f' ({note})' if note else ''}: {KINDS[row.kind]}"
        axes.text(0.02, y - 0.27, style.printable(name, within_in=6.5), fontsize=9, va="bottom", color=style.INK)
        text = f"{_times_plain(row)} · n={row.n}"
        style.over(axes, max(row.length, row.needed), y, text, xytext=(9, 0), va="center", fontsize=9)
    axes.set_yticks([])
    axes.set_ylim(len(shown) - 0.5, -0.62)
    axes.set_xlim(0, 1.42 * max(max(row.length or 0, row.needed or 0) for row, _ in shown))
    axes.set_xlabel("tokens per verify step")
    style.quiet_grid(axes, "x")
    return figure


def write(documents: Sequence[Mapping[str, Any]], folder: Path, formats: Iterable[str] = ("png", "svg")) -> Path:
    """Write the page and its picture; returns the page's path. Raises ConfigError without a study to show."""
    if not any(rows(document) for document in documents):
        raise ConfigError("nothing to compare: no study has plain decoding and a speculative setting")
    if len({str(document["measurement"]) for document in documents}) > 1:
        raise ConfigError("measured, emulated and imported studies are not compared: their figures differ in kind")
    with style.conventions():
        if (figure := draw(documents)) is not None:
            for file_format in formats:
                replace_file(folder / f"{NAME}.{file_format}", style.rendered(figure, file_format))
    page = folder / f"{NAME}.md"
    replace_file(page, markdown(documents).encode())
    return page


def command(
    folders: Annotated[list[str], typer.Argument(help="Report folders of finished studies, or their findings.md.")],
    out: Annotated[Path, typer.Option(help="Folder for the page and the picture.")] = Path("reports/does_it_pay"),
) -> None:
    """Say for finished studies whether speculation pays, on one page."""
    try:
        typer.echo(str(write([load(folder) for folder in folders], out)))
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(command)
