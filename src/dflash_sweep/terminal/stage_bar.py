"""Where a step's milliseconds go, as one bar of characters a step. Pure; imports `terminal.board`, rich's Text.

Each stage has a sign and a colour of its own, so that bars can be read without colour. A mark stands where the step
would take as long as plain decoding takes for as many tokens: a bar that ends left of it pays.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from dflash_sweep.report.wording import rate
from dflash_sweep.terminal.board import Step

SIGNS: dict[str, tuple[str, str, str]] = {
    "draft_ms": ("draft", "█", "blue"),
    "topk_ms": ("topk", "▓", "yellow"),
    "verify_ms": ("verify", "░", "green"),
    "exact_ms": ("exact", "▒", "bright_magenta"),
    "other": ("other", "·", "bright_black"),
}
"""Stage → its word, sign and colour; stages that are not listed are part of "other"."""

EVEN = "┃"
_LABEL = 10


def parts(step: Step) -> dict[str, float]:
    """The step's ms by sign; what no listed stage accounts for is "other"."""
    shown = {name: step.stages.get(name, 0.0) for name in SIGNS if name != "other"}
    return {**shown, "other": max(0.0, step.step_ms - sum(shown.values()))}


def even_ms(step: Step, plain_ms: float | None) -> float | None:
    """How long the step may take to be as fast as plain decoding."""
    return None if plain_ms is None or step.tokens is None else step.tokens * plain_ms


def cells(step: Step, scale_ms: float, width: int) -> str:
    """The bar: each stage's share of `width` by largest ends, so that the whole is as long as the step."""
    text, reached = "", 0.0
    for name, ms in parts(step).items():
        reached += ms
        text += SIGNS[name][1] * (round(reached / scale_ms * width) - len(text))
    return text[:width].ljust(width)


def legend(steps: Sequence[Step], *, even: bool) -> Text:
    """Which sign is which stage, of the stages that occur."""
    line = Text("a step".ljust(_LABEL), no_wrap=True)
    for name, (word, sign, colour) in SIGNS.items():
        if any(parts(step)[name] > 0.005 * step.step_ms for step in steps):
            line.append(sign * 2, style=colour)
            line.append(f" {word}  ")
    if even:
        line.append(EVEN, style="bold")
        line.append(" as fast as plain decoding")
    return line


def _figures(step: Step, even: float | None) -> str:
    pays = "" if even is None else f", pays below {rate(even)}"
    return f"{rate(step.step_ms)} ms{pays}"


def bars(steps: Sequence[tuple[str, Step]], plain_ms: float | None, width: int) -> list[Text]:
    """Legend and one bar for each named step, at one scale; each line at most `width` cells."""
    only = [step for _, step in steps]
    evens = [even_ms(step, plain_ms) for step in only]
    words = [_figures(step, even) for step, even in zip(only, evens, strict=True)]
    room = width - _LABEL - 2 - max(map(len, words))
    if room < 10:
        return []
    scale = max([step.step_ms for step in only] + [even for even in evens if even is not None])
    lines = [legend(only, even=any(even is not None for even in evens))]
    for (name, step), even, figures in zip(steps, evens, words, strict=True):
        line = Text(name[: _LABEL - 1].ljust(_LABEL), no_wrap=True)
        bar = cells(step, scale, room)
        mark = None if even is None else min(room - 1, round(even / scale * room))
        colours = {sign: colour for _, sign, colour in SIGNS.values()}
        for place, sign in enumerate(bar):
            line.append(EVEN, style="bold") if place == mark else line.append(sign, style=colours.get(sign, ""))
        line.append(f"  {figures}")
        lines.append(line)
    return lines
