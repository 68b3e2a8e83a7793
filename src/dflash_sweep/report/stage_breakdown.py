"""Figure: where a verify step's milliseconds go, candidate by candidate. Imports matplotlib, `report` siblings.

One stacked bar a candidate (winner and fastest first, plain decoding last), a line at plain decoding's ms per token,
and on each bar the step time at which that candidate would tie with it: acceptance length × plain ms per token.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dflash_sweep.report import style
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import knob_text, rate

GROUPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("draft", ("draft_ms",), style.BLUE),
    ("topk", ("topk_ms",), style.ORANGE),
    ("verify", ("exact_ms", "verify_ms"), style.GREEN),
)
"""Name, stages summed, colour. Every other printed stage goes to "other", printed or not accounted for."""

MAX_BARS = 12
_TOLERANCE_MS = 0.05
_ROW_IN = 0.46
"""Height of a bar with one line of label."""


def split_ms(candidate: Candidate) -> dict[str, float] | None:
    """A step's milliseconds by group: draft, topk, verify, other, unknown; absent groups are left out.

    "other" holds the remaining printed stages and what of step_ms no printed stage accounts for. Where no stage is
    printed at all the whole step is "unknown". None without a step time and without stages.
    """
    if not candidate.stages:
        return None if candidate.step_ms is None else {"unknown": candidate.step_ms}
    parts = {}
    grouped = {stage for _, stages, _ in GROUPS for stage in stages}
    for name, stages, _ in GROUPS:
        times = [candidate.stages[stage] for stage in stages if stage in candidate.stages]
        if times:
            parts[name] = sum(times)
    other = [time for stage, time in candidate.stages.items() if stage not in grouped]
    rest = 0.0 if candidate.step_ms is None else candidate.step_ms - sum(candidate.stages.values())
    if other or rest > _TOLERANCE_MS:
        parts["other"] = sum(other) + max(rest, 0.0)
    return parts


def _bars(material: Material) -> list[tuple[Candidate, dict[str, float]]]:
    entries = sorted(material.candidates, key=lambda entry: not entry.confirmed)
    return [(entry, parts) for entry in entries if (parts := split_ms(entry))][:MAX_BARS]


def _legend(names: set[str], plain: bool, confirmed: bool, texts: Texts) -> style.Legend:
    entries: style.Legend = [
        (style.swatch(colour), texts(f"stage.{name}")) for name, _, colour in GROUPS if name in names
    ]
    if "other" in names:
        entries.append((style.swatch(style.FAINT, edge=style.MUTED), texts("stage.other")))
    if "unknown" in names:
        entries.append((style.swatch(style.PAPER, "////", style.MUTED), texts("stage.unknown")))
    if confirmed:
        entries.append((style.marker(style.INK, "*", size=9), texts("legend.winner")))
    if plain:
        entries.append((style.line(style.PLAIN, "--"), texts("stage.plain_line")))
        entries.append((style.marker(style.VERMILION, "D"), texts("stage.tie")))
    return entries


def _stack(axes: Axes, y: float, parts: dict[str, float]) -> float:
    colours = {name: (colour, "", style.PAPER) for name, _, colour in GROUPS}
    colours |= {"other": (style.FAINT, "", style.MUTED), "unknown": (style.PAPER, "////", style.MUTED)}
    left = 0.0
    for name, time_ms in parts.items():
        colour, hatch, edge = colours[name]
        axes.barh(y, time_ms, left=left, height=0.5, color=colour, hatch=hatch, edgecolor=edge, linewidth=0.5)
        left += time_ms
    return left


def _label(axes: Axes, y: float, lines: list[str], bold: bool) -> None:
    style.over(axes, 0, y - 0.30, "\n".join(lines), xytext=(2, 1), va="bottom", ha="left", fontsize=8,
               fontweight="bold" if bold else "normal")  # fmt: skip


def _result(entry: Candidate, texts: Texts) -> str:
    accepted = "" if entry.acceptance_length is None else f"AL {entry.acceptance_length:.2f} · "
    return f"{accepted}{rate(entry.tps)} tok/s · n={entry.n}"


def _bar(
    axes: Axes,
    y: float,
    bar: tuple[Candidate, dict[str, float]],
    label: list[str],
    texts: Texts,
) -> float:
    """One candidate's bar with its break-even mark, name and result; returns how far right it reaches."""
    entry, parts = bar
    end = _stack(axes, y, parts)
    tie = entry.plain_ms * entry.acceptance_length if entry.plain_ms and entry.acceptance_length else None
    if tie is not None:
        axes.plot([tie], [y], marker="D", color=style.VERMILION, markersize=6.5, markeredgecolor=style.PAPER, zorder=4)
    _label(axes, y, label, entry.confirmed)
    reach = max(end, tie or 0.0)
    _annotate(axes, reach, y, _result(entry, texts))
    return reach


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """The figure; None if no candidate has a step time."""
    bars = _bars(material)
    if not bars:
        return None
    plain_ms = material.plain_ms
    names = {name for _, parts in bars for name in parts}
    shown = [entry for entry, _ in bars]
    knobs = material.differing(shown)
    labels = [
        style.wrapped(
            f"{'★ ' if entry.confirmed else ''}{material.name(entry, texts)} {knob_text(entry.knobs, knobs)}",
            within_in=7.4, bold=entry.confirmed,
        )
        for entry in shown
    ]  # fmt: skip
    places = style.stacked([len(label) for label in labels] + [1] * (plain_ms is not None), _ROW_IN)
    left_out = len(material.candidates) - len(bars)
    see = texts("fig.stages.see") + (f" {texts('fig.left_out', count=left_out)}" if left_out > 0 else "")
    if same := material.shared(shown):
        see += texts("space") + texts("table.settings.same", knobs=knob_text(same, joiner=" "))
    legend = _legend(names, plain_ms is not None, material.winner is not None, texts)
    figure = style.sheet(stamp, texts("fig.stages.title"), see, body_in=0.55 + _ROW_IN * (places[-1] + 1),
                         legend=legend, legend_columns=3)  # fmt: skip
    axes = figure.subplots()
    ends = [_bar(axes, y, bar, label, texts) for y, bar, label in zip(places, bars, labels, strict=False)]
    if plain_ms is not None and material.baseline is not None:
        y = places[-1]
        axes.barh(y, plain_ms, height=0.5, color=style.PLAIN)
        _label(axes, y, [texts("plain")], False)
        _annotate(axes, plain_ms, y, f"{rate(material.baseline.tps)} tok/s · n={material.baseline.n}")
        axes.axvline(plain_ms, color=style.PLAIN, linestyle="--", linewidth=1.4, zorder=3)
        ends.append(plain_ms)
    _finish(axes, places[-1], max(ends), texts)
    return figure


def _annotate(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8, color=style.INK)


def _finish(axes: Axes, last: float, longest: float, texts: Texts) -> None:
    axes.set_ylim(last + 0.4, -0.75)
    axes.set_xlim(0, longest * 1.36)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(texts("axis.step_ms"))
    style.quiet_grid(axes, "x")


def shown(material: Material) -> Sequence[int | None]:
    """Numbers of the candidates in the figure, in its order."""
    return [entry.number for entry, _ in _bars(material)]
