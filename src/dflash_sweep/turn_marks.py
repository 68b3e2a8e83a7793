"""Marks on replayed turns that did not go as the policy says: prompt cache above all. Imports `records`.

Pure functions. A mark does not make a turn invalid; it says in which way the figures of the turn differ from what
their policy promises.
"""

from __future__ import annotations

from collections.abc import Sequence

from dflash_sweep.records import Exchange, ReplayPolicy, Turn, TurnCounters

CACHE_USED_THOUGH_OFF = "cache_used_though_off"
CACHE_NOT_COLD = "cache_not_cold"
CACHE_NOT_USED = "cache_not_used"
TTFT_FROM_TOOL_CALL = "ttft_from_tool_call"
PROMPT_SHRUNK = "prompt_tokens_fell"
THROTTLED = "throttled"
"""The device was seen to be slowed down (heat, a hardware limit, a fallen clock) while the turn ran."""

COLD_TOLERANCE_TOKENS = 64
"""What unrelated prompts may share: the chat template's own beginning (its longest public forms print a date and a
default system prompt, about 40 tokens)."""

WARM_SHARE = 0.5
"""Within a conversation at least this share of the previous turn's prompt is expected back from the cache; templates
that drop earlier reasoning render less of it in the same way."""


def _shares_beginning(turn: Turn, earlier: Sequence[Turn]) -> bool:
    """Whether an earlier turn began with the same message or the same tools, so that its cache may be of use."""
    first = turn.messages[:1]
    return any(other.messages[:1] == first or (turn.tools and other.tools == turn.tools) for other in earlier)


def _extends(turn: Turn, before: Turn | None) -> bool:
    if before is None or before.tools != turn.tools:
        return False
    return turn.messages[: len(before.messages)] == before.messages


def cache_marks(
    turns: Sequence[Turn], counters: Sequence[TurnCounters], policy: ReplayPolicy
) -> tuple[tuple[str, ...], ...]:
    """Where the prompt cache was not used as the policy says, by the server's own count of cached prompt tokens.

    `turns` as sent, in order, warm-up included; `counters` of each. cache_used_though_off: tokens came from the cache
    under cache_prompt=False. cache_not_cold: a turn that no earlier turn of this replay shares its beginning with found
    its prompt in the cache (left over from another candidate). cache_not_used: a turn that goes on from the previous
    turn of its conversation found less than half of it. A server that does not say how many tokens it took from the
    cache gives no mark.
    """
    marks: list[tuple[str, ...]] = []
    latest: dict[str, tuple[Turn, TurnCounters]] = {}
    for position, (turn, count) in enumerate(zip(turns, counters, strict=True)):
        before, before_count = latest.get(turn.conversation, (None, None))
        marks.append(_cache_marks(turn, count, before, before_count, turns[:position], policy))
        latest[turn.conversation] = (turn, count)
    return tuple(marks)


def _cache_marks(
    turn: Turn,
    count: TurnCounters,
    before: Turn | None,
    before_count: TurnCounters | None,
    earlier: Sequence[Turn],
    policy: ReplayPolicy,
) -> tuple[str, ...]:
    cached = count.cached_tokens
    if cached is None:
        return ()
    if not policy.cache_prompt:
        return (CACHE_USED_THOUGH_OFF,) if cached > 0 else ()
    if not _shares_beginning(turn, earlier):
        return (CACHE_NOT_COLD,) if cached > COLD_TOLERANCE_TOKENS else ()
    if _extends(turn, before) and before_count is not None and before_count.prompt_tokens is not None:
        prompt = count.prompt_tokens
        if prompt is not None and prompt < before_count.prompt_tokens:
            return (PROMPT_SHRUNK,)  # the template or the context's size took something away
        return (CACHE_NOT_USED,) if cached < WARM_SHARE * before_count.prompt_tokens else ()
    return ()


def _first_token_marks(exchange: Exchange) -> tuple[str, ...]:
    """A pure tool call has no content delta: its first token is that of the call, after its head was parsed."""
    called = bool(exchange.tool_calls) and not exchange.content and not exchange.reasoning
    return (TTFT_FROM_TOOL_CALL,) if called and exchange.first_token_ns is not None else ()


def turn_marks(
    turns: Sequence[Turn], exchanges: Sequence[Exchange], counters: Sequence[TurnCounters], policy: ReplayPolicy
) -> tuple[tuple[str, ...], ...]:
    """All marks of each turn of one replay, to be added to its counters' flags. All sequences in order of sending."""
    cache = cache_marks(turns, counters, policy)
    return tuple((*marks, *_first_token_marks(exchange)) for marks, exchange in zip(cache, exchanges, strict=True))
