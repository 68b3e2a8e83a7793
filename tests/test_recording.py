"""Grouping calls into conversations, and the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep.errors import TraceError
from dflash_sweep.recorder_requests import CHAT, RESPONSES
from dflash_sweep.recording import Passed, Recording
from dflash_sweep.traces import load, validate

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def passed(*messages: Message, start_ms: int = 0, protocol: str = CHAT, answer: Any = None, **body: Any) -> Passed:
    """A call of 10 ms that was answered with "ok"."""
    if answer is None:
        answer = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
    return Passed(
        protocol=protocol,
        request=json.dumps({"messages": messages, **body}).encode(),
        status=200,
        content_type="application/json",
        pieces=[((start_ms + 9) * 10**6, json.dumps(answer).encode())],
        start_ns=start_ms * 10**6,
        end_ns=(start_ms + 10) * 10**6,
    )


def shape(recording: Recording) -> dict[str, int]:
    return {path.name: turns for path, turns in recording.written.items()}


def test_a_call_goes_on_from_the_history_it_begins_with(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "r")
    a, b = (user("a"),), (user("b"),)
    for call in (a, b, (*a, assistant("ok"), user("a2")), (*b, assistant("ok"), user("b2"))):
        recording.add(passed(*call))
    assert shape(recording) == {"r-001.jsonl": 2, "r-002.jsonl": 2}
    assert load(tmp_path / "r-002.jsonl").turns[1].messages == (*b, assistant("ok"), user("b2"))


def test_another_branch_and_a_compacted_history_are_conversations_of_their_own(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "r")
    recording.add(passed(user("a")))
    recording.add(passed(user("a"), assistant("ok"), user("left")))
    recording.add(passed(user("a"), assistant("ok"), user("right")))
    recording.add(passed(user("summary of a")))
    assert shape(recording) == {"r-001.jsonl": 2, "r-002.jsonl": 1, "r-003.jsonl": 1}


def test_the_longest_history_wins(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "r")
    long = (user("a"), assistant("ok"), user("left"))
    recording.add(passed(*long))
    recording.add(passed(user("a")))  # shorter, and later
    recording.add(passed(*long, assistant("ok"), user("on")))
    assert shape(recording) == {"r-001.jsonl": 2, "r-002.jsonl": 1}


def test_pauses_run_from_the_answers_end_to_the_next_request(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "r")
    recording.add(passed(user("a"), start_ms=0))
    recording.add(passed(user("a"), assistant("ok"), user("b"), start_ms=250))
    assert [turn.pause_ms for turn in load(tmp_path / "r-001.jsonl").turns] == [None, 240.0]


def test_files_of_an_earlier_recording_are_never_written_over(tmp_path: Path) -> None:
    Recording(tmp_path, "r").add(passed(user("a")))
    before = (tmp_path / "r-001.jsonl").read_bytes()
    Recording(tmp_path, "r").add(passed(user("b")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r-001.jsonl", "r-002.jsonl"]
    assert (tmp_path / "r-001.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": 500}, "the server answered HTTP 500"),
        ({"request": b"nope"}, "the request body is no JSON"),
        ({"request": b"[]"}, "the request body is no JSON object"),
        ({"pieces": [(0, b'{"error": "no"}')]}, "the answer is an error"),
        ({"pieces": [(0, b"{}")]}, "the answer is empty"),
    ],
)
def test_calls_that_cannot_be_replayed_are_counted(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    recording = Recording(tmp_path, "r")
    recording.add(replace(passed(user("a")), **change))
    assert (recording.skipped, shape(recording)) == ({reason: 1}, {})


def test_the_servers_memory_is_written_out(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "r")
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}
    answer = {"id": "resp_1", "status": "completed", "output": [said]}
    recording.add(passed(protocol=RESPONSES, input="a", instructions="S.", answer=answer))
    recording.add(
        passed(
            protocol=RESPONSES,
            input="b",
            instructions="T.",
            previous_response_id="resp_1",
            answer={**answer, "id": "2"},
        )
    )
    recording.add(passed(protocol=RESPONSES, input="c", previous_response_id="resp_9", answer=answer))
    turn = load(tmp_path / "r-002.jsonl").turns[0]  # other instructions: another prompt from the beginning on
    assert turn.messages == ({"role": "system", "content": "T."}, user("a"), assistant("ok"), user("b"))
    assert recording.skipped == {"the request goes on from an answer that was not recorded": 1}


def test_what_a_trace_cannot_hold_is_normalised_and_said(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "r")
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": {"a": 1}}}  # arguments: an object
    recording.add(
        passed(user("a\ud83d"), {**assistant(""), "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1"})
    )
    path = tmp_path / "r-001.jsonl"
    trace = load(path)
    assert trace.turns[0].messages[0] == user("a\ufffd")
    assert trace.turns[0].messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert any("arguments given as an object" in loss for loss in trace.header.losses)
    assert validate(path) == ()


def test_changes_on_the_way_are_losses(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "r")
    recording.add(passed(user("a"), temperature=0.5, chat_template_kwargs={"enable_thinking": True}))
    recording.add(passed(user("a"), assistant("ok"), user("b"), temperature=1.0, logprobs=True))
    header = load(tmp_path / "r-001.jsonl").header
    assert (header.sampling, header.template_kwargs) == ({"temperature": 0.5}, {"enable_thinking": True})
    assert header.losses == (
        "request field logprobs is not kept",
        "sampling changed between turns: the header keeps the first",
        "template switches changed between turns: the header keeps the first",
    )


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "/a"])
def test_names_that_are_no_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match="not allowed"):
        Recording(tmp_path, name)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="cannot be made"):
        Recording(tmp_path / "file", "r")
