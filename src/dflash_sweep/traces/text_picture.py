"""A trace as text: header, figures, and a bar for each turn's prompt. Imports `stats`, records."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_sweep.records import Trace
from dflash_sweep.traces.stats import PARTS, TraceStats, TurnStats

_INK = {"system": "█", "tools": "▓", "user": "▒", "assistant": "░", "tool": "·"}
_LABEL = {"system": "system", "tools": "tool schemas", "user": "user", "assistant": "answers", "tool": "tool results"}
_BAR = 44


def _count(tokens: int | None, estimated: bool) -> str:
    return "?" if tokens is None else f"{'~' if estimated else ''}{tokens:,}"


def header_lines(trace: Trace, stats: TraceStats) -> list[str]:
    """What a trace is, where it comes from and what it cannot tell."""
    header = trace.header
    plural = "s" if stats.conversations != 1 else ""
    lines = [
        f"{header.name}: {len(stats.turns)} turns in {stats.conversations} conversation{plural}, "
        f"sha256 {header.sha256[:12]}",
        f"  source    {header.source}",
        f"  content   {'real texts' if header.content_kind == 'real' else 'invented from lengths: load shape only'}",
    ]
    for label, value in (("license", header.license), ("tokenizer", header.tokenizer), ("note", header.note)):
        if value:
            lines.append(f"  {label:<9} {value}")
    lines += [f"  lost      {loss}" for loss in header.losses]
    return lines


def figure_lines(stats: TraceStats) -> list[str]:
    """Totals: context needed, tool share, tokens a bucket."""
    turns = stats.turns
    outputs = [turn.output_tokens for turn in turns if turn.output_tokens is not None]
    out_estimated = any(turn.output_estimated for turn in turns)
    lines = [
        f"  context   {_count(stats.longest_tokens, stats.estimated)} tokens for the longest prompt and its answer",
        f"  output    {_count(sum(outputs), out_estimated)} tokens in {len(outputs)} recorded answers",
        f"  tools     {stats.tool_turns} of {len(turns)} answers call tools; tool results are "
        f"{100 * stats.tool_prompt_share:.0f} % of the final prompts",
    ]
    for bucket, (count, tokens) in stats.by_bucket.items():
        lines.append(f"  {bucket:<13}{count:>4} turn{'s' if count != 1 else ' '} {tokens:>8,} output tokens")
    if stats.estimated:
        lines.append("  ~ estimated at 4 characters a token where the trace holds no count")
    return lines


def _bar(turn: TurnStats, widest_tokens: int) -> str:
    """The prompt as a bar whose pieces are its parts, in the order they stand in a prompt.

    Piece borders are rounded from the running total, so that the bar's length is right whatever the pieces are.
    """
    bar = ""
    total = 0
    for part in PARTS:
        total += turn.prompt_parts[part]
        bar += _INK[part] * (round(_BAR * total / widest_tokens) - len(bar))
    return bar or "▏"


def picture_lines(turns: Sequence[TurnStats]) -> list[str]:
    """One line a turn: conversation, number, bucket, bar, prompt (new part) and output tokens."""
    widest = max(1, *(turn.prompt_tokens for turn in turns))
    name_width = min(16, max(len("conv."), *(len(turn.conversation) for turn in turns)))
    legend = "  ".join(f"{_INK[part]} {_LABEL[part]}" for part in PARTS)
    lines = [
        legend,
        f"{'conv.':<{name_width}} turn {'bucket':<12} {'prompt':<{_BAR}} {'tokens':>8} {'new':>7} {'output':>7}",
    ]
    for turn in turns:
        name = turn.conversation if len(turn.conversation) <= name_width else turn.conversation[: name_width - 1] + "…"
        lines.append(
            f"{name:<{name_width}} {turn.index:>4} {turn.bucket:<12} {_bar(turn, widest):<{_BAR}} "
            f"{_count(turn.prompt_tokens, turn.prompt_estimated):>8} {turn.new_tokens:>7,} "
            f"{_count(turn.output_tokens, turn.output_estimated):>7}"
        )
    return lines
