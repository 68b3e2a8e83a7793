"""Playing traces by policy against a scripted server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dflash_sweep import replay
from dflash_sweep.client import Client
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Exchange, ReplayPolicy, Trace, TraceHeader, Turn, TurnCounters
from dflash_sweep.replay import WARMUP_CONVERSATION, PlayedTurn, marks_of, play, prompt_sha256
from fakes.sse_server import Reply, Request, SSEServer, chunk, json_reply, sse, text_answer


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def conversation(name: str, turns: int, **fields: Any) -> list[Turn]:
    made, history = [], [user(f"{name} question 0")]
    for index in range(turns):
        made.append(Turn(conversation=name, index=index, messages=tuple(history), **fields))
        history += [assistant(f"{name} answer {index}"), user(f"{name} question {index + 1}")]
    return made


def trace(*turns: Turn, **header: Any) -> Trace:
    return Trace(header=TraceHeader(name="t", source="test", **header), turns=turns)


def run(
    what: Trace,
    policy: ReplayPolicy | None = None,
    handler: Callable[[Request], Reply] | None = None,
    *,
    fields: Callable[[str], dict[str, Any]] = lambda _: {},
    log_size: Callable[[], int] = lambda: 0,
    **options: Any,
) -> tuple[tuple[PlayedTurn, ...], list[Any]]:
    """Play it; returns the played turns and the bodies of the chat requests in the order the server got them."""
    with SSEServer(handler or (lambda _: text_answer("live answer"))) as server, Client(server.url) as client:
        policy = ReplayPolicy(warmup_turns=0) if policy is None else policy
        played = play(what, policy, client, request_fields=fields, log_size=log_size, **options)
        return played, [request.json for request in server.requests if request.method == "POST"]


def test_teacher_forced_sends_the_recorded_history() -> None:
    turns = conversation("a", 3)
    played, sent = run(trace(*turns))
    assert [tuple(body["messages"]) for body in sent] == [turn.messages for turn in turns]
    assert [entry.turn for entry in played] == turns
    assert [entry.order for entry in played] == [0, 1, 2]
    assert [entry.exchange.turn_index for entry in played] == [0, 1, 2]
    assert all(entry.exchange.content == "live answer " for entry in played)
    assert [entry.prompt_sha256 for entry in played] == [prompt_sha256(body) for body in sent]


def test_two_replays_send_the_same_bytes() -> None:
    what = trace(*conversation("a", 2), *conversation("b", 2))
    assert [json.dumps(body) for body in run(what)[1]] == [json.dumps(body) for body in run(what)[1]]


def test_warm_up_comes_first_with_texts_of_its_own_and_is_marked() -> None:
    seen: list[Turn] = []

    def on_turn(turn: Turn, _: Exchange) -> bool:
        seen.append(turn)
        return True

    what = trace(*conversation("a", 1))
    played, sent = run(what, ReplayPolicy(warmup_turns=6), on_turn=on_turn)
    assert [entry.warmup for entry in played] == [True] * 6 + [False]
    assert {entry.turn.conversation for entry in played[:6]} == {WARMUP_CONVERSATION}
    prompts = [json.dumps(body["messages"]) for body in sent]
    assert len(set(prompts)) == 7
    assert seen == list(what.turns)


def test_conversations_are_kept_together_and_in_order() -> None:
    a, b = conversation("a", 2), conversation("b", 2)
    played, _ = run(trace(a[0], b[0], a[1], b[1]))
    assert [(entry.turn.conversation, entry.turn.index) for entry in played] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_engine_fields_depend_on_the_bucket_and_template_switches_come_from_the_trace() -> None:
    turns = (Turn(conversation="a", index=0, messages=(user("x"),), bucket="code"),)
    _, sent = run(trace(*turns, template_kwargs={"lang": "en"}), fields=lambda bucket: {"note": bucket})
    assert (sent[0]["note"], sent[0]["chat_template_kwargs"]) == ("code", {"lang": "en"})


def test_log_places_are_taken_when_the_request_is_sent() -> None:
    size = 100

    def handler(_: Request) -> Reply:
        nonlocal size
        size += 50
        return text_answer()

    played, _ = run(trace(*conversation("a", 3)), handler=handler, log_size=lambda: size)
    assert [entry.exchange.log_start for entry in played] == [100, 150, 200]


def test_a_log_line_written_late_belongs_to_its_own_turn() -> None:
    sizes = iter([0, 10, 10, 20, 30, 30])  # turn 0 starts at 0; afterwards the log still grows at two looks
    last = 30

    def log_size() -> int:
        return next(sizes, last)

    played, _ = run(trace(*conversation("a", 2)), log_size=log_size)
    # looks: start 0; after turn 0: 10, 10 (stands still); start of turn 1: 20
    assert [entry.exchange.log_start for entry in played] == [0, 20]


def test_on_turn_false_stops_the_replay() -> None:
    played, sent = run(trace(*conversation("a", 4)), on_turn=lambda turn, _: turn.index < 1)
    assert [entry.turn.index for entry in played] == [0, 1]
    assert len(sent) == 2


def test_failed_turns_are_records_and_the_replay_goes_on() -> None:
    replies = iter([json_reply({"error": "no"}, 500), text_answer("fine")])
    played, _ = run(trace(*conversation("a", 2)), handler=lambda _: next(replies))
    assert [entry.exchange.error_type for entry in played] == ["http_error", None]


def test_counters_page_around_each_turn() -> None:
    pages = iter(range(10))

    def handler(request: Request) -> Reply:
        if request.method == "GET":
            return Reply([str(next(pages)).encode()], content_type="text/plain", framing="length")
        return text_answer()

    played, _ = run(trace(*conversation("a", 2)), handler=handler, metrics_path="/metrics")
    pages_seen = [(entry.exchange.metrics_before, entry.exchange.metrics_after) for entry in played]
    assert pages_seen == [("0", "1"), ("2", "3")]
    missing, _ = run(
        trace(*conversation("a", 1)),
        handler=lambda request: json_reply({}, 404) if request.method == "GET" else text_answer(),
        metrics_path="/metrics",
    )
    assert missing[0].exchange.metrics_before is None
    assert missing[0].exchange.error_type is None


def test_no_turn_after_the_deadline() -> None:
    assert run(trace(*conversation("a", 2)), deadline_ns=0) == ((), [])


@pytest.mark.parametrize(("pauses", "expected_s"), [("drop", []), ("keep", [3.5]), ("compress", [1.0])])
def test_pauses(pauses: str, expected_s: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def wait(_: Client, timeout_s: float) -> bool:
        slept.append(timeout_s)
        return False

    monkeypatch.setattr(Client, "wait_cancelled", wait)
    monkeypatch.setattr(replay, "LOG_QUIET_TRIES", 0)
    run(trace(*conversation("a", 2, pause_ms=3500.0)), ReplayPolicy(warmup_turns=0, pauses=pauses))
    assert slept == expected_s  # never before the first turn of a conversation


def test_a_policy_that_cannot_be_followed_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match=r"policy\.mode"):
        run(trace(*conversation("a", 1)), ReplayPolicy(mode="live"))


# ---------------------------------------------------------------- free running


def tool_call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "wc", "arguments": arguments}}


def tool_result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_free_running_sends_the_servers_own_answers() -> None:
    recorded = tool_call("r1", '{"file": "a"}')
    history = (
        user("count"),
        assistant("", tool_calls=[recorded]),
        {"role": "tool", "tool_call_id": "r1", "content": "7"},
    )
    turns = (
        Turn(conversation="a", index=0, messages=history[:1]),
        Turn(conversation="a", index=1, messages=history),
        Turn(conversation="a", index=2, messages=(*history, assistant("Seven."), user("sure?"))),
    )
    live = chunk(delta={"tool_calls": [{"index": 0, **tool_call("x1", '{"file":"a"}')}]})
    replies = iter([Reply(sse(live, chunk(finish="tool_calls"))), text_answer("It is 7."), text_answer("Yes.")])
    played, sent = run(
        trace(*turns), ReplayPolicy(mode="free_running", warmup_turns=0), handler=lambda _: next(replies)
    )
    expected = [
        user("count"),
        assistant("", tool_calls=[tool_call("x1", '{"file":"a"}')]),
        tool_result("x1", "7"),
        assistant("It is 7. "),
        user("sure?"),
    ]
    assert [body["messages"] for body in sent] == [expected[:1], expected[:3], expected]
    assert [entry.turn.messages for entry in played] == [tuple(expected[:1]), tuple(expected[:3]), tuple(expected)]
    assert [entry.flags for entry in played] == [(), (), ()]


def test_free_running_flags_what_it_had_to_leave_out() -> None:
    recorded = tool_call("r1", "{}")
    history = (
        user("count"),
        assistant("", tool_calls=[recorded]),
        {"role": "tool", "tool_call_id": "r1", "content": "7"},
    )
    turns = (Turn(conversation="a", index=0, messages=history[:1]), Turn(conversation="a", index=1, messages=history))
    played, _ = run(trace(*turns), ReplayPolicy(mode="free_running", warmup_turns=0))
    assert [entry.flags for entry in played] == [("next_turn_skipped",)]


def test_marks_join_how_a_turn_was_played_with_what_the_server_counted() -> None:
    turn = conversation("a", 1)[0]
    entry = PlayedTurn(
        turn=turn,
        exchange=Exchange(turn_index=0, send_ns=0),
        warmup=False,
        order=0,
        prompt_sha256="p",
        flags=("next_turn_skipped",),
    )
    counters = [TurnCounters(prompt_tokens=1000, cached_tokens=900)]  # a first prompt, found in the cache
    assert marks_of([entry], counters, ReplayPolicy()) == (("next_turn_skipped", "cache_not_cold"),)


# ---------------------------------------------------------------- several at once


def test_concurrency_plays_that_many_conversations_at_once_each_in_its_order() -> None:
    together = threading.Barrier(3)

    def handler(_: Request) -> Reply:
        together.wait(10)  # passes only when three requests are in flight
        return text_answer()

    what = trace(*(turn for name in "abc" for turn in conversation(name, 3)))
    played, sent = run(what, ReplayPolicy(warmup_turns=0, concurrency=3), handler=handler)
    assert len(sent) == 9
    assert [entry.order for entry in played] == list(range(9))
    for name in "abc":
        assert [entry.turn.index for entry in played if entry.turn.conversation == name] == [0, 1, 2]
    starts = [entry.exchange.log_start for entry in played]
    assert starts == sorted(starts)


def test_stopping_breaks_off_other_turns_in_flight() -> None:
    release, hanging = threading.Event(), threading.Event()

    def handler(request: Request) -> Reply:
        if request.json["messages"][0]["content"].startswith("slow"):
            return Reply([*sse(chunk("x"), done=False), hanging.set, release.wait])
        hanging.wait(10)
        return text_answer()

    what = trace(*conversation("slow", 2), *conversation("quick", 2))
    played, _ = run(
        what, ReplayPolicy(warmup_turns=0, concurrency=2), handler=handler, on_turn=lambda turn, _: turn.index < 0
    )
    release.set()
    assert [(entry.turn.conversation, entry.exchange.error_type) for entry in played] == [("quick", None)]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_interrupt_passes_through(concurrency: int) -> None:
    def on_turn(turn: Turn, _: Exchange) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            trace(*conversation("a", 2), *conversation("b", 2)),
            ReplayPolicy(warmup_turns=0, concurrency=concurrency),
            on_turn=on_turn,
        )


def test_a_client_cancelled_by_others_ends_the_replay() -> None:
    with SSEServer(lambda _: text_answer()) as server, Client(server.url) as client:

        def on_turn(*_: object) -> bool:
            client.cancel()
            return True

        played = play(
            trace(*conversation("a", 3)),
            ReplayPolicy(warmup_turns=0),
            client,
            request_fields=lambda _: {},
            log_size=lambda: 0,
            on_turn=on_turn,
        )
    assert [entry.turn.index for entry in played] == [0]
