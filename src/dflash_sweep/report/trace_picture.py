"""Figure: a trace's prompts and answers, turn by turn. Imports matplotlib, `report.style`, `traces.stats`."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dflash_sweep.records import Measurement, Trace
from dflash_sweep.report import style
from dflash_sweep.traces.stats import PARTS, TraceStats

_PART_COLOURS = {
    "system": style.PLAIN,
    "tools": "#9AA0A6",
    "user": style.ORANGE,
    "assistant": style.SKY,
    "tool": "#A6D8C7",
}
_PART_LABELS = {
    "system": "system prompt",
    "tools": "tool schemas",
    "user": "user",
    "assistant": "earlier answers",
    "tool": "tool results",
}
# None of these colours stands for a part of the prompt: the two panels have separate legends.
_BUCKET_COLOURS = {
    "code": style.BLUE,
    "tool_call": style.VERMILION,
    "thinking": style.PURPLE,
    "prose": style.GREEN,
    "long_context": "#7A4A00",
    "other": style.MUTED,
}
_MAX_LABELLED = 40


def _thousands(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    style.quiet_grid(axes)


def _separate_conversations(axes: Axes, stats: TraceStats) -> None:
    for place in range(1, len(stats.turns)):
        if stats.turns[place].conversation != stats.turns[place - 1].conversation:
            axes.axvline(place - 0.5, color=style.FAINT, linewidth=0.8, zorder=0)


def _draw_prompts(axes: Axes, stats: TraceStats) -> None:
    places = list(range(len(stats.turns)))
    bottom = [0.0] * len(places)
    for part in PARTS:
        heights = [float(turn.prompt_parts[part]) for turn in stats.turns]
        axes.bar(places, heights, bottom=bottom, width=0.86, color=_PART_COLOURS[part], linewidth=0)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_title("Prompt, tokens")
    axes.tick_params(labelbottom=False)
    axes.margins(x=0.01)
    _thousands(axes)


def _draw_outputs(axes: Axes, stats: TraceStats) -> None:
    places = list(range(len(stats.turns)))
    heights = [float(turn.output_tokens or 0) for turn in stats.turns]
    colours = [_BUCKET_COLOURS[turn.bucket] for turn in stats.turns]
    axes.bar(places, heights, width=0.86, color=colours, linewidth=0)
    for place, turn in enumerate(stats.turns):
        if turn.output_tokens is None:
            axes.annotate("?", (place, 0), ha="center", va="bottom", fontsize=8, color=style.MUTED)
    axes.set_title("Recorded answer, tokens (no count: ?)" if None in [t.output_tokens for t in stats.turns]
                   else "Recorded answer, tokens")  # fmt: skip
    buckets = [bucket for bucket in _BUCKET_COLOURS if bucket in stats.by_bucket]
    axes.legend(
        [style.swatch(_BUCKET_COLOURS[bucket]) for bucket in buckets],
        [bucket.replace("_", " ") for bucket in buckets],
        loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(buckets), borderaxespad=0.0, handlelength=1.4,
        columnspacing=1.4,
    )  # fmt: skip
    axes.set_xlabel("turn")
    axes.margins(x=0.01)
    if len(places) <= _MAX_LABELLED:
        axes.set_xticks(places, [str(turn.index) for turn in stats.turns])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    _thousands(axes)


def draw(trace: Trace, stats: TraceStats) -> Figure:
    """Stacked prompts above, answers coloured by bucket below; one column a turn, lines between conversations."""
    used = [part for part in PARTS if any(turn.prompt_parts[part] for turn in stats.turns)]
    legend: style.Legend = [(style.swatch(_PART_COLOURS[part]), _PART_LABELS[part]) for part in used]
    count = f"{stats.conversations} conversation{'s' if stats.conversations != 1 else ''}"
    guess = " Where the trace holds no count, it is estimated at 4 characters a token." if stats.estimated else ""
    subtitle = (
        f"{len(stats.turns)} turns in {count}; {stats.tool_turns} answers call tools; the longest prompt and its "
        f"answer take {'about ' if stats.estimated else ''}{stats.longest_tokens:,} tokens.{guess}"
    )
    word = "recorded texts" if trace.header.content_kind == "real" else "invented texts"
    stamp = style.Stamp(measurement=Measurement.IMPORTED, word=word, source=f"sha256 {stats.sha256[:16]}")
    figure = style.sheet(stamp, style.printable(f"Trace {trace.header.name}", 60), subtitle, body_in=4.4,
                         legend=legend, legend_columns=5)  # fmt: skip
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    _draw_prompts(above, stats)
    _draw_outputs(below, stats)
    for axes in (above, below):
        _separate_conversations(axes, stats)
    return figure


def write_png(trace: Trace, stats: TraceStats, path: Path) -> Path:
    """Draw the trace into a PNG file and return its path."""
    with style.conventions():
        data = style.rendered(draw(trace, stats), "png")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
