"""A freely running conversation: live answers in the history, tools answered from the recording."""

from __future__ import annotations

from typing import Any

from dflash_sweep.live_history import (
    HISTORY_RESTARTED,
    NO_RESULT,
    TOOL_ARGUMENTS_REPLACED,
    TOOL_RESULT_MISSING,
    LiveHistory,
)
from dflash_sweep.records import Exchange, Turn

Message = dict[str, Any]


def call(name: str, arguments: str, call_id: str = "") -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, *calls: Message, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}


def result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def turns(*steps: tuple[Message, ...]) -> list[Turn]:
    """Each step adds messages to the history of the one before."""
    history: tuple[Message, ...] = ()
    made = []
    for index, step in enumerate(steps):
        history += step
        made.append(Turn(conversation="c", index=index, messages=history))
    return made


def answer(content: str = "", *calls: Message, **more: Any) -> Exchange:
    return Exchange(turn_index=0, send_ns=0, content=content, tool_calls=calls, finish_reason="stop", **more)


RECORDED = turns(
    (user("count"),),
    (assistant("", call("wc", '{"file": "a", "lines": true}', "r1")), result("r1", "7 a")),
    (assistant("Seven."), user("and b?")),
)


def test_the_servers_answer_replaces_the_recorded_one_and_a_matching_call_gets_its_result() -> None:
    live = LiveHistory(RECORDED)
    assert live.messages(0) == ((user("count"),), ())
    # the same call, spelt with other spaces and another order of keys, under the server's own id
    mine = call("wc", '{"lines":true,"file":"a"}', "live_9")
    assert live.answered(0, answer("Let me see.", mine)) == ()
    messages, flags = live.messages(1)
    assert messages == (user("count"), assistant("Let me see.", mine), result("live_9", "7 a"))
    assert flags == ()
    live.answered(1, answer("It has 7."))
    messages, flags = live.messages(2)
    assert messages is not None
    assert messages[3:] == (assistant("It has 7."), user("and b?"))
    assert flags == ()


def test_a_call_that_was_not_recorded_gets_a_stand_in_and_a_flag() -> None:
    live = LiveHistory(RECORDED)
    live.messages(0)
    live.answered(0, answer("", call("wc", '{"file": "b"}')))
    messages, flags = live.messages(1)
    assert messages is not None
    assert messages[-1] == result("call_0_0", NO_RESULT)  # no id came with the call, so it got one
    assert messages[-2]["tool_calls"][0]["id"] == "call_0_0"
    assert flags == (TOOL_RESULT_MISSING,)


def test_without_a_live_call_there_is_nothing_to_ask_until_the_user_speaks() -> None:
    live = LiveHistory(RECORDED)
    live.messages(0)
    live.answered(0, answer("I guess seven."))
    assert live.messages(1) == (None, ())
    messages, _ = live.messages(2)
    assert messages == (user("count"), assistant("I guess seven."), user("and b?"))


def test_the_same_call_again_gets_its_next_recorded_result() -> None:
    again = '{"file": "a"}'
    recorded = turns(
        (user("watch"),),
        (assistant("", call("wc", again, "r1")), result("r1", "7")),
        (assistant("", call("wc", again, "r2")), result("r2", "8")),
        (assistant("", call("ls", "{}", "r3")), result("r3", "a")),
        (assistant("", call("ls", "{}", "r4")), result("r4", "a")),
        (assistant("", call("ls", "{}", "r5")), result("r5", "a")),
    )
    live = LiveHistory(recorded)
    live.messages(0)
    seen = []
    for position in range(5):
        live.answered(position, answer("", call("wc", again)))
        messages, _ = live.messages(position + 1)
        assert messages is not None
        seen.append(messages[-1]["content"])
    # Turns 1 and 2 have results of their own. Later the call was not recorded any more: those of the conversation are
    # taken one after the other, and the last one stays.
    assert seen == ["7", "8", "7", "8", "8"]


def test_arguments_that_are_no_json_are_replaced_in_the_history() -> None:
    live = LiveHistory(RECORDED)
    live.messages(0)
    assert live.answered(0, answer("", call("wc", '{"file": "a', "x"))) == (TOOL_ARGUMENTS_REPLACED,)
    messages, flags = live.messages(1)
    assert messages is not None
    assert messages[1]["tool_calls"][0]["function"] == {"name": "wc", "arguments": "{}"}
    assert flags == (TOOL_RESULT_MISSING,)


def test_reasoning_goes_into_the_history_only_if_the_recording_keeps_it() -> None:
    keeping = turns((user("a"),), (assistant("b", reasoning_content="r"), user("c")))
    for recorded, expected in ((keeping, True), (RECORDED, False)):
        live = LiveHistory(recorded)
        live.messages(0)
        live.answered(0, answer("x", reasoning="because"))
        messages, _ = live.messages(len(recorded) - 1)
        if expected:
            assert messages is not None
            assert messages[1] == {"role": "assistant", "content": "x", "reasoning_content": "because"}
        assert expected == ("because" in str(messages))


def test_after_a_failed_turn_and_after_a_compaction_the_recording_goes_on() -> None:
    live = LiveHistory(RECORDED)
    live.messages(0)
    live.answered(0, answer("lost", error_type="timeout"))
    assert live.messages(1) == (RECORDED[1].messages, (HISTORY_RESTARTED,))
    compacted = [RECORDED[0], Turn(conversation="c", index=1, messages=(user("summary: count"),))]
    live = LiveHistory(compacted)
    live.messages(0)
    live.answered(0, answer("x"))
    assert live.messages(1) == ((user("summary: count"),), (HISTORY_RESTARTED,))
