"""Prompt cache read back against the policy."""

from __future__ import annotations

from typing import Any

from dflash_sweep.records import Exchange, ReplayPolicy, Turn, TurnCounters
from dflash_sweep.turn_marks import cache_marks, turn_marks

SYSTEM = {"role": "system", "content": "You help."}


def turn(conversation: str, index: int, *texts: str, system: bool = True, tools: Any = None) -> Turn:
    messages = ([SYSTEM] if system else []) + [{"role": "user", "content": text} for text in texts]
    return Turn(conversation=conversation, index=index, messages=tuple(messages), tools=tools)


def count(prompt: int | None, cached: int | None) -> TurnCounters:
    return TurnCounters(prompt_tokens=prompt, cached_tokens=cached)


A0, A1 = turn("a", 0, "x"), turn("a", 1, "x", "y")
WARMUP = turn("(warm-up)", 0, "warm", system=False)


def marks(*rows: tuple[Turn, TurnCounters], **policy: Any) -> list[tuple[str, ...]]:
    return list(cache_marks([row[0] for row in rows], [row[1] for row in rows], ReplayPolicy(**policy)))


def test_cold_start_and_warm_conversation_are_as_promised() -> None:
    assert marks((WARMUP, count(20, 0)), (A0, count(1000, 5)), (A1, count(1400, 1010))) == [(), (), ()]


def test_a_first_prompt_from_the_cache_is_flagged() -> None:
    assert marks((WARMUP, count(20, 0)), (A0, count(1000, 900))) == [(), ("cache_not_cold",)]
    # 64 tokens are a template's own beginning, 65 are not
    assert marks((A0, count(1000, 64))) == [()]
    assert marks((A0, count(1000, 65))) == [("cache_not_cold",)]


def test_another_conversation_with_the_same_system_prompt_may_use_it() -> None:
    assert marks((A0, count(1000, 0)), (turn("b", 0, "z"), count(1000, 700))) == [(), ()]


def test_a_conversation_whose_history_was_not_in_the_cache_is_flagged() -> None:
    # the previous prompt had 1000 tokens: 499 of them back are less than half
    assert marks((A0, count(1000, 0)), (A1, count(1400, 499)))[1] == ("cache_not_used",)
    assert marks((A0, count(1000, 0)), (A1, count(1400, 500)))[1] == ()


def test_a_turn_that_does_not_go_on_from_the_one_before_promises_nothing() -> None:
    compacted = turn("a", 1, "summary")
    assert marks((A0, count(1000, 0)), (compacted, count(1400, 0)))[1] == ()
    other_tools = turn("a", 1, "x", "y", tools=({"type": "function"},))
    assert marks((A0, count(1000, 0)), (other_tools, count(1400, 0)))[1] == ()


def test_a_prompt_that_became_shorter_is_flagged() -> None:
    assert marks((A0, count(1000, 0)), (A1, count(900, 10)))[1] == ("prompt_tokens_fell",)


def test_cache_off() -> None:
    rows = ((A0, count(1000, 0)), (A1, count(1400, 1)))
    assert marks(*rows, cache_prompt=False) == [(), ("cache_used_though_off",)]


def test_a_server_that_does_not_say_gives_no_mark() -> None:
    assert marks((A0, count(1000, None)), (A1, count(1400, None))) == [(), ()]
    assert marks((A0, count(None, 0)), (A1, count(None, 0))) == [(), ()]


def test_first_token_of_a_pure_tool_call_is_marked() -> None:
    call = ({"function": {"name": "ls", "arguments": "{}"}},)
    silent = Exchange(turn_index=0, send_ns=0, first_token_ns=1, tool_calls=call)
    spoken = Exchange(turn_index=1, send_ns=0, first_token_ns=1, content="Let me see.", tool_calls=call)
    seen = turn_marks([A0, A1], [silent, spoken], [count(1000, 900), count(1400, 0)], ReplayPolicy())
    assert seen == (("cache_not_cold", "ttft_from_tool_call"), ("cache_not_used",))
