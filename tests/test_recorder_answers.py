"""Answers of three protocols, whole or broken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash_sweep.recorder_answers import read_answer
from dflash_sweep.recorder_requests import CHAT, MESSAGES, RESPONSES

SSE, JSON = "text/event-stream; charset=utf-8", "application/json"


def stream(*events: dict[str, Any] | str) -> list[tuple[int, bytes]]:
    """One event per 1000 ns."""
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return [(1000 * n, f"data: {text}\n\n".encode()) for n, text in enumerate(texts)]


def test_times_are_from_the_requests_arrival() -> None:
    pieces = stream(
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]},
        "[DONE]",
    )
    recorded = read_answer(CHAT, SSE, pieces).recorded(start_ns=-1_999_000, end_ns=1_000_000)
    assert (recorded.ttft_ms, recorded.duration_ms) == (2.0, 2.999)
    assert recorded.content == "a"


def test_anthropic_counts_grow_and_the_cut_last_event_is_left_out() -> None:
    block = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}
    usage = {"output_tokens": 7, "input_tokens": 0}
    pieces = stream(
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": usage},
    )
    answer = read_answer(MESSAGES, SSE, [*pieces, (9000, b'data: {"type":"mess')])
    assert (answer.prompt_tokens, answer.output_tokens, answer.finish_reason) == (3, 7, "length")
    assert answer.message is not None
    assert answer.message["tool_calls"][0]["function"] == {"name": "ls", "arguments": "{}"}
    assert answer.first_token_ns is None


def test_anthropic_tool_input_that_was_cut_off() -> None:
    block = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}
    pieces = stream(
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": '}},
    )
    answer = read_answer(MESSAGES, SSE, pieces)
    assert answer.message is not None
    assert answer.message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert answer.first_token_ns == 1000


def test_responses_without_output_in_the_last_event() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "ls", "arguments": "{}"}
    pieces = stream(
        {"type": "response.output_item.done", "item": call},
        {"type": "response.incomplete", "response": {"id": "r", "status": "incomplete", "output": []}},
    )
    answer = read_answer(RESPONSES, SSE, pieces)
    assert answer.message is not None
    assert answer.message["tool_calls"][0]["id"] == "1"
    assert (answer.finish_reason, answer.response_id) == ("length", "r")


@pytest.mark.parametrize(
    ("protocol", "content_type", "body"),
    [
        (CHAT, JSON, b'{"error": {"message": "no"}}'),
        (CHAT, SSE, b'data: {"error": {"message": "no"}}\n\n'),
        (MESSAGES, SSE, b'event: error\ndata: {"type": "error", "error": {"message": "no"}}\n\n'),
        (RESPONSES, SSE, b'data: {"type": "error", "message": "no"}\n\n'),
        (RESPONSES, SSE, b'data: {"type": "response.failed", "response": {"error": {"message": "no"}}}\n\n'),
    ],
)
def test_errors_inside_answers(protocol: str, content_type: str, body: bytes) -> None:
    assert read_answer(protocol, content_type, [(0, body)]).error == "no"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]"])
def test_bodies_that_are_no_answer(body: bytes) -> None:
    for protocol in (CHAT, MESSAGES, RESPONSES):
        assert read_answer(protocol, JSON, [(0, body)]).error
        assert read_answer(protocol, SSE, [(0, body)]).message is None


def test_nothing_said_is_no_message() -> None:
    assert read_answer(CHAT, JSON, [(0, b'{"choices":[{"message":{"content":""}}]}')]).message is None
    assert read_answer(CHAT, JSON, [(0, b"{}")]).message is None
    assert read_answer(MESSAGES, JSON, [(0, b'{"content":[]}')]).message is None
    assert read_answer(RESPONSES, JSON, [(0, b'{"output":[]}')]).message is None
