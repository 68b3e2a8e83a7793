"""Arms of one replay: what each asks, in which order, and that only the first one counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import arms
from dflash_sweep.client import Client
from dflash_sweep.errors import ConfigError
from dflash_sweep.payload import check_policy
from dflash_sweep.records import AS_RECORDED, ReplayPolicy, Trace, TraceHeader, Turn, TurnCounters
from dflash_sweep.replay import marks_of, play
from fakes.sse_server import SSEServer, text_answer

TOOLS = ({"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}},)
WITH, WITHOUT = (AS_RECORDED, arms.NO_TOOLS, arms.NO_GRAMMAR), (AS_RECORDED,)


def turn(conversation: str = "a", index: int = 0, **fields: Any) -> Turn:
    messages = tuple({"role": "user", "content": f"{conversation} {place}"} for place in range(index + 1))
    return Turn(conversation=conversation, index=index, messages=messages, **fields)


def policy(*names: str, **fields: Any) -> ReplayPolicy:
    return ReplayPolicy(**{"warmup_turns": 0, "arms": names, **fields})


def test_no_tools_leaves_out_tools_and_choice_and_nothing_else() -> None:
    recorded = turn(tools=TOOLS, tool_choice="required")
    found = arms.asked(recorded, policy(*WITH), arms.NO_TOOLS)
    assert found == (turn(), policy(*WITH))


def test_no_grammar_keeps_the_tools_in_the_prompt() -> None:
    schema = {"type": "json_object"}
    asked_for = policy(*WITH, request_fields={"response_format": schema, "top_p": 0.9})
    found = arms.asked(turn(tools=TOOLS), asked_for, arms.NO_GRAMMAR)
    assert found is not None
    assert found[0] == turn(tools=TOOLS, tool_choice="none")
    assert found[1].request_fields == {"top_p": 0.9}


def test_a_turn_on_which_an_arm_changes_nothing_is_not_asked_again() -> None:
    bare = turn()
    assert arms.asked(bare, policy(*WITH), AS_RECORDED) is not None
    assert arms.asked(bare, policy(*WITH), arms.NO_TOOLS) is None
    assert arms.asked(bare, policy(*WITH), arms.NO_GRAMMAR) is None
    assert arms.asked(turn(tools=TOOLS), policy(*WITH, tools=False), arms.NO_TOOLS) is None
    assert arms.asked(bare, policy(arms.NO_TOOLS, AS_RECORDED), arms.NO_TOOLS) is not None, "the first arm asks all"


@given(st.integers(0, 10**6), st.integers(0, 50))
def test_each_arm_is_first_equally_often(seed: int, start: int) -> None:
    chosen = policy(*WITH, sampling_seed=seed)
    orders = [arms.in_order(chosen, start + number) for number in range(6)]
    assert Counter(order[0] for order in orders) == dict.fromkeys(WITH, 2)
    assert all(sorted(order) == sorted(WITH) for order in orders)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"arms": ("with_tools",)}, "'with_tools' is not known; allowed: as_recorded, no_tools, no_grammar"),
        ({"arms": ()}, "one arm or several different ones"),
        ({"arms": (AS_RECORDED, AS_RECORDED)}, "one arm or several different ones"),
        ({"arms": WITH, "mode": "free_running"}, "only recorded histories are the same in every arm"),
    ],
)
def test_arms_that_cannot_be_played_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_policy(ReplayPolicy(**fields))


def test_an_arm_without_a_turn_that_differs_is_refused() -> None:
    arms.check_trace(policy(*WITH), [turn(), turn(index=1, tools=TOOLS)])
    arms.check_trace(policy(AS_RECORDED), [turn()])
    with pytest.raises(ConfigError, match="no turn of this trace is asked differently in no_tools than in as_recorded"):
        arms.check_trace(policy(*WITH), [turn()])


def test_why_a_turn_of_another_arm_does_not_count() -> None:
    chosen = policy(*WITH)
    assert arms.invalid_reason(chosen, AS_RECORDED, None) is None
    assert arms.invalid_reason(chosen, AS_RECORDED, "too_few_tokens") == "too_few_tokens"
    assert arms.invalid_reason(chosen, arms.NO_TOOLS, None) == "other_arm"
    assert arms.invalid_reason(chosen, arms.NO_TOOLS, "too_few_tokens") == "other_arm: too_few_tokens"
    assert [arms.is_other(reason) for reason in ("other_arm", "other_arm: x", "too_few_tokens", None)] == [
        True, True, False, False,
    ]  # fmt: skip


def test_conversations_are_played_in_every_arm_and_begin_cold() -> None:
    made = [turn(name, index, tools=TOOLS) for name in ("a", "b") for index in (0, 1)] + [turn("c")]
    what = Trace(header=TraceHeader(name="t", source="test"), turns=tuple(made))
    chosen = policy(AS_RECORDED, arms.NO_TOOLS)
    with SSEServer(lambda _: text_answer("answer")) as server, Client(server.url) as client:
        played = play(what, chosen, client, request_fields=lambda _: {}, log_size=lambda: 0)
        sent = [request.json for request in server.requests if request.method == "POST"]
    # seed 0: a begins as recorded, b without tools; c has no tools and is asked once
    order = [(entry.turn.conversation, entry.turn.index, entry.exchange.arm) for entry in played]
    assert order == [
        ("a", 0, AS_RECORDED), ("a", 1, AS_RECORDED), ("a", 0, arms.NO_TOOLS), ("a", 1, arms.NO_TOOLS),
        ("b", 0, arms.NO_TOOLS), ("b", 1, arms.NO_TOOLS), ("b", 0, AS_RECORDED), ("b", 1, AS_RECORDED),
        ("c", 0, AS_RECORDED),
    ]  # fmt: skip
    assert ["tools" in body for body in sent] == [arm == AS_RECORDED and name != "c" for name, _, arm in order]
    assert [body["cache_prompt"] for body in sent] == [False, True] * 4 + [False]
    cold = [TurnCounters(cached_tokens=0, prompt_tokens=100 + entry.turn.index) for entry in played]
    warm = [TurnCounters(cached_tokens=90 + entry.turn.index, prompt_tokens=100) for entry in played]
    assert not any("cache_not_cold" in marks for marks in marks_of(played, cold, chosen))
    assert [("cache_not_cold" in marks) for marks in marks_of(played, warm, chosen)] == [True, False] * 4 + [True]


def test_repeats_do_not_all_begin_with_the_same_arm() -> None:
    what = Trace(header=TraceHeader(name="t", source="test"), turns=(turn("a", tools=TOOLS),))
    chosen = policy(AS_RECORDED, arms.NO_TOOLS)
    with SSEServer(lambda _: text_answer("answer")) as server, Client(server.url) as client:
        runs = [
            play(what, chosen, client, request_fields=lambda _: {}, log_size=lambda: 0, arm_offset=offset)
            for offset in (0, 1)
        ]
    assert [run[0].exchange.arm for run in runs] == [AS_RECORDED, arms.NO_TOOLS]


def test_one_arm_alone_may_leave_the_tools_out() -> None:
    chosen = policy(arms.NO_TOOLS)
    check_policy(chosen)
    found = arms.asked(turn(tools=TOOLS), chosen, arms.NO_TOOLS)
    assert found is not None
    assert found[0].tools is None
