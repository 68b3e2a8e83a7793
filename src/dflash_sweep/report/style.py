"""How every figure looks: sizes, colours, header, footer, and the stamp that says what kind of numbers it shows.

Imports matplotlib and `records` only. A figure is 8 inches wide and readable at 800 pixels: no letter under 8 points,
a legend in the header where it can never cover data, and no date or path inside, so that equal rows give equal files.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.markers import CARETDOWN, CARETUP
from matplotlib.patches import Patch

from dflash_sweep.records import Measurement

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
"""The palette of Okabe and Ito (2008), made to be told apart by colour-blind readers."""
INK, MUTED, FAINT, PAPER = "#1A1A1A", "#5F6368", "#D5D8DC", "#FFFFFF"
PLAIN = "#444444"
"""Plain decoding, in every figure."""
SERIES: tuple[str, ...] = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)
MARKERS: tuple[str, ...] = ("o", "s", "^", "D", "v", "P")

Legend: TypeAlias = list[tuple[Artist, str]]
"""Handles and labels in the order in which a figure's header shows them."""

WIDTH_IN = 8.0
PNG_DPI = 160
SVG_DPI = 100
"""Of pictures inside; letters and lines have no resolution."""
_SIDE_IN = 0.12
_FOOTER_IN = 0.34
_LEGEND_ROW_IN = 0.24
_LEGEND_POINTS = 8.5
_LABEL_LINE_IN = 0.14
MAX_TEXT = 1000
"""Characters of a label on several lines; a template of a chat as a value must not fill a page."""
_HINTING = 0.96
"""Letters on a screen are up to this much wider than the font says, for they begin at whole pixels."""

_STAMP_COLOURS = {
    Measurement.MEASURED: ("#E6F4EA", "#0B5E2B"),
    Measurement.EMULATED: ("#FFF1D6", "#7A4A00"),
    Measurement.IMPORTED: ("#E7ECFA", "#1F3A93"),
}

_CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "Microsoft YaHei", "PingFang SC", "SimHei", "Noto Sans CJK JP", "Noto Sans CJK TC",
    "Droid Sans Fallback",
)  # fmt: skip
_BASE_FONT = "DejaVu Sans"  # ships with matplotlib: the same letters on every machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What is written on every figure: the kind of its numbers in words, and which study they come from."""

    measurement: Measurement
    word: str
    source: str


@cache
def cjk_font() -> str | None:
    """A font on this machine that holds Chinese characters; None if there is none (figures then stay English)."""
    known = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in _CJK_FONTS if name in known), None)


@cache
def _covered() -> frozenset[int]:
    fonts = [_BASE_FONT, *([name] if (name := cjk_font()) else [])]
    return frozenset(
        code for name in fonts for code in font_manager.get_font(font_manager.findfont(name)).get_charmap()
    )


@cache
def advance_in(text: str, points: float, bold: bool) -> float:
    """Width of a text in inches as the base font sets it, before it is fitted to whole pixels."""
    properties = font_manager.FontProperties(family=_BASE_FONT, weight="bold" if bold else "normal")
    font = font_manager.get_font(font_manager.findfont(properties))
    font.set_size(points, 72.0)
    font.set_text("".join(letter if ord(letter) < 0x2E80 else "W" for letter in text))
    return float(font.get_width_height()[0]) / 64 / 72


def printable(
    text: str, limit: int = 200, *, within_in: float | None = None, points: float = 8.0, bold: bool = False
) -> str:
    """Text of a user as a figure can draw it: one line, shortened, without glyphs that the fonts lack.

    At most `limit` characters and, where `within_in` is given, at most so many inches at `points`.
    """
    flat = "".join(letter if ord(letter) in _covered() else "□" for letter in " ".join(text.split()))
    if len(flat) > limit:
        flat = flat[: limit - 1].rstrip() + "…"
    if within_in is None or advance_in(flat, points, bold) <= _HINTING * within_in:
        return flat
    room = _HINTING * within_in
    fitting = 0  # longest beginning that still fits with the dots
    step = len(flat)
    while step:
        while fitting + step < len(flat) and advance_in(flat[: fitting + step] + "…", points, bold) <= room:
            fitting += step
        step //= 2
    return flat[:fitting].rstrip() + "…"


def wrapped(text: str, *, within_in: float, points: float = 8.0, bold: bool = False) -> list[str]:
    """Text of a user on as many lines as it needs; a word is broken only where it alone is too long."""
    room = _HINTING * within_in
    lines = [""]
    for word in printable(text, MAX_TEXT).split(" "):
        joined = f"{lines[-1]} {word}".strip()
        if advance_in(joined, points, bold) <= room:
            lines[-1] = joined
            continue
        lines += [word] if lines[-1] else []
        lines[-1] = lines[-1] or word
        while advance_in(lines[-1], points, bold) > room:
            fits = next(n for n in range(len(lines[-1]) - 1, 0, -1) if advance_in(lines[-1][:n], points, bold) <= room)
            lines[-1:] = [lines[-1][:fits], lines[-1][fits:]]
    return lines


@contextmanager
def conventions() -> Iterator[None]:
    """Settings in force while a figure is made and saved; the caller's own are put back afterwards."""
    fonts = [_BASE_FONT, *([name] if (name := cjk_font()) else [])]
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)  # it would warn of each weight that a Chinese font lacks
    try:
        yield from _settings(fonts)
    finally:
        log.setLevel(level)


def _settings(fonts: list[str]) -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(
            {
                "font.family": fonts, "font.size": 9.0, "text.parse_math": False, "text.color": INK,
                "axes.labelsize": 9.0, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "axes.linewidth": 0.8,
                "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9.5,
                "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.axisbelow": True,
                "axes.unicode_minus": True, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "xtick.color": MUTED,
                "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": FAINT,
                "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": _LEGEND_POINTS,
                "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "hatch.linewidth": 0.6,
                "svg.hashsalt": "dflash-sweep",
                "svg.fonttype": "path", "figure.dpi": 100.0,
            }
        )  # fmt: skip
        yield


def _wrapped(text: str, points: float, width_in: float) -> list[str]:
    """Lines that fit; a break is possible at a space and beside every Chinese character."""
    lines = [""]
    for piece in re.findall(r"[\u2e80-\uffff][，。：；、）！？]*|[^\s\u2e80-\uffff]+\s*|\s+", text):
        if lines[-1] and advance_in((lines[-1] + piece).rstrip(), points, False) > _HINTING * width_in:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _fitting_columns(labels: Sequence[str], most: int) -> int:
    """How many legend columns fit side by side (matplotlib fills them one after another), at least one."""
    letter = _LEGEND_POINTS / 72
    for columns in range(min(most, len(labels)), 1, -1):
        size, longer = divmod(len(labels), columns)
        width, start = 0.4 * letter, 0
        for column in range(columns):
            end = start + size + (column < longer)
            width += max(advance_in(label, _LEGEND_POINTS, False) for label in labels[start:end]) + 3.9 * letter
            start = end
        if width - 1.5 * letter <= _HINTING * (WIDTH_IN - 2 * _SIDE_IN):
            return columns
    return 1


def sheet(
    stamp: Stamp,
    title: str,
    subtitle: str,
    *,
    body_in: float,
    legend: Sequence[tuple[Artist, str]] = (),
    legend_columns: int = 4,
) -> Figure:
    """An empty figure with header (title, what to see, legend, stamp) and footer; axes go in between by subplots().

    `body_in` is the height of the part between header and footer in inches.
    """
    lines = _wrapped(subtitle, 9.0, WIDTH_IN - 2 * _SIDE_IN)
    columns = _fitting_columns([label for _, label in legend], legend_columns)
    rows = -(-len(legend) // columns)
    header = 0.42 + 0.17 * len(lines) + (0.08 + _LEGEND_ROW_IN * rows if rows else 0.0) + 0.06
    height = header + body_in + _FOOTER_IN
    figure = Figure(figsize=(WIDTH_IN, height))
    FigureCanvasAgg(figure)
    left = _SIDE_IN / WIDTH_IN
    rect = (left, _FOOTER_IN / height, 1 - 2 * left, body_in / height)
    figure.set_layout_engine(ConstrainedLayoutEngine(rect=rect, w_pad=0.06, h_pad=0.06))

    def write(x_in: float, y_in: float, text: str, **kwargs: Any) -> None:
        figure.text(x_in / WIDTH_IN, 1 - y_in / height, text, va="top", **kwargs)

    room = WIDTH_IN - 2 * _SIDE_IN - advance_in(stamp.word, 9.0, True) - 0.3
    write(_SIDE_IN, 0.12, printable(title, within_in=room, points=13.0, bold=True), fontsize=13, fontweight="bold")
    write(_SIDE_IN, 0.42, "\n".join(lines), fontsize=9, color=MUTED, linespacing=1.25)
    if legend:
        top = 1 - (0.42 + 0.17 * len(lines) + 0.06) / height
        figure.legend(
            [handle for handle, _ in legend],
            [label for _, label in legend],
            loc="upper left",
            bbox_to_anchor=(left, top),
            ncols=columns,
            borderaxespad=0.0,
            borderpad=0.2,
            handlelength=1.6,
            columnspacing=1.5,
        )
    background, ink = _STAMP_COLOURS[stamp.measurement]
    figure.text(
        1 - left, 1 - 0.13 / height, stamp.word, ha="right", va="top", fontsize=9, fontweight="bold", color=ink,
        bbox={"boxstyle": "round,pad=0.3", "facecolor": background, "edgecolor": ink, "linewidth": 0.8},
    )  # fmt: skip
    footer = printable(f"{stamp.word} · {stamp.source}", within_in=WIDTH_IN - 2 * _SIDE_IN)
    figure.text(left, 0.10 / height, footer, ha="left", va="bottom", fontsize=8, color=MUTED)
    return figure


def stacked(lines: Sequence[int], row_in: float) -> list[float]:
    """Places of rows one below the other, in rows of `row_in` inches, where a label of so many lines is above each."""
    places: list[float] = []
    for count in lines:
        places.append((places[-1] + 1 if places else 0.0) + (count - 1) * _LABEL_LINE_IN / row_in)
    return places


def quiet_grid(axes: Axes, axis: str = "y") -> None:
    """A faint grid behind the data, along one axis only."""
    axes.grid(visible=True, axis="y" if axis == "y" else "x")
    axes.tick_params(length=3)


def over(axes: Axes, x: float, y: float, text: str, **kwargs: Any) -> None:
    """Text inside the axes that stays readable where a line passes behind it; offsets in points by `xytext`."""
    axes.annotate(
        text, (x, y), textcoords="offset points", annotation_clip=False, zorder=5,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.9}, **kwargs,
    )  # fmt: skip


def beyond(low: float | None, high: float | None, limits: tuple[float, float]) -> bool:
    """Whether an interval goes on outside the limits of a frame."""
    return low is not None and high is not None and (low < limits[0] or high > limits[1])


def interval(axes: Axes, x: float, low: float, high: float, limits: tuple[float, float], colour: str) -> None:
    """An upright interval; an end beyond the frame's limits is an arrow head at its edge."""
    axes.vlines(x, max(low, limits[0]), min(high, limits[1]), color=colour, linewidth=1.8, zorder=3)
    for edge, head, is_cut in ((limits[0], CARETDOWN, low < limits[0]), (limits[1], CARETUP, high > limits[1])):
        if is_cut:
            axes.plot([x], [edge], marker=head, color=colour, markersize=7, clip_on=False, linestyle="", zorder=4)


def line(colour: str, style: Literal["-", "--", ":"] = "-", width: float = 1.6) -> Line2D:
    """A legend handle for a line."""
    return Line2D([], [], color=colour, linestyle=style, linewidth=width)


def marker(colour: str, shape: str = "o", *, hollow: bool = False, size: float = 6.5) -> Line2D:
    """A legend handle for a marker without a line."""
    face = PAPER if hollow else colour
    return Line2D([], [], color=colour, marker=shape, markerfacecolor=face, linestyle="", markersize=size)


def swatch(colour: str, hatch: str = "", edge: str = PAPER) -> Patch:
    """A legend handle for a filled area."""
    return Patch(facecolor=colour, edgecolor=edge, hatch=hatch)


def rendered(figure: Figure, file_format: str) -> bytes:
    """The figure as the bytes of a PNG or SVG file; the same figure gives the same bytes (no dates, fixed ids)."""
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)  # once: the second format of a figure need not be laid out again
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "png": {"Software": None}}[file_format]
    # not by savefig, which draws everything once more, unseen, to lay it out
    figure.dpi = PNG_DPI if file_format == "png" else SVG_DPI
    if file_format == "png":
        FigureCanvasAgg(figure).print_png(buffer, metadata=metadata)  # type: ignore[no-untyped-call]
    else:
        FigureCanvasSVG(figure).print_svg(buffer, metadata=metadata)  # type: ignore[no-untyped-call]
    return buffer.getvalue()
