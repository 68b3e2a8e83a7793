"""Requests of three protocols as turns."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_sweep.recorder_requests import (
    CHAT,
    MESSAGES,
    RESPONSES,
    NotRecorded,
    flat_content,
    protocol_of,
    read_request,
)


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("/v1/chat/completions", CHAT),
        ("/chat/completions", CHAT),
        ("/api/v1/chat/completions/", CHAT),
        ("/v1/responses", RESPONSES),
        ("/v1/messages", MESSAGES),
        ("/v1/messages/count_tokens", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/completions", None),
        ("/v1/embeddings", None),
    ],
)
def test_protocol_by_path(path: str, protocol: str | None) -> None:
    assert protocol_of("POST", path) == protocol
    assert protocol_of("GET", path) is None


def test_chat_keeps_messages_and_tools_as_sent_but_for_nulls() -> None:
    tool = {"type": "function", "function": {"name": "ls", "strict": True, "parameters": {"b": 1, "a": 2}}}
    said: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "audio": None, "tool_calls": []}
    asked = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    request = read_request(CHAT, {"messages": [asked, said], "tools": [tool]})
    assert request.messages == (asked, {"role": "assistant", "content": None, "tool_calls": []})
    assert request.tools == (tool,)
    assert request.losses == ("null fields of messages are not kept",)


def test_limits_sampling_and_template_switches() -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "temperature": 0.0,
        "top_p": None,
        "seed": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        "model": "toy",
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
        "stop": None,
        "user": "someone",
    }
    request = read_request(CHAT, body)
    assert request.max_tokens == 7
    assert request.sampling == {"temperature": 0.0, "seed": 0}
    assert request.template_kwargs == {"enable_thinking": False}
    assert request.model == "toy"
    assert request.tool_choice is None  # nothing to choose from
    assert request.losses == ("request field response_format is not kept",)


def test_tools_of_a_vendors_server_are_left_out_by_name() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "ls", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
        {"type": "function", "name": "rm", "parameters": None, "strict": False},
    ]
    request = read_request(MESSAGES, {"messages": [{"role": "user", "content": "x"}], "tools": tools})
    assert request.tools == (
        {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "rm", "parameters": {"type": "object", "properties": {}}}},
    )
    assert request.losses == ("tool of type 'web_search_20250305' is not kept: it runs on a vendor's server",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("auto", "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "ls"}, {"type": "function", "function": {"name": "ls"}}),
        ({"type": "function", "name": "ls"}, {"type": "function", "function": {"name": "ls"}}),
        ({"type": "function", "function": {"name": "ls"}}, {"type": "function", "function": {"name": "ls"}}),
    ],
)
def test_tool_choice_in_any_spelling(given: Any, expected: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "ls"}], "tool_choice": given}
    assert read_request(MESSAGES, body).tool_choice == expected


def test_anthropic_blocks() -> None:
    hidden = {"type": "redacted_thinking", "data": "AA"}
    body = {
        "system": [{"type": "text", "text": "A."}, {"type": "text", "text": "B."}],
        "messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": [hidden, {"type": "text", "text": "t"}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "said after"},
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": w} for w in "rs"]},
                    {"type": "image", "source": {}},
                ],
            },
        ],
    }
    request = read_request(MESSAGES, body)
    assert request.messages == (
        {"role": "system", "content": "A.B."},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "t"},
        {"role": "tool", "tool_call_id": "1", "content": "rs"},
        {"role": "user", "content": [{"type": "text", "text": "said after"}, {"type": "image", "source": {}}]},
    )
    assert request.losses == ("redacted thinking is not kept",)


def test_response_items() -> None:
    body = {
        "instructions": "S.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
            {"role": "user", "content": "x"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "AA"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "1", "name": "ls", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "free"},
            {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "r"}]},
            {"type": "custom_tool_call_output", "call_id": "2", "output": {"ok": True}},
            {"type": "reasoning", "summary": [], "encrypted_content": "AA"},
            {"type": "web_search_call", "id": "w"},
        ],
    }
    request = read_request(RESPONSES, body)
    answer = request.messages[3]
    assert request.messages[:3] == (
        {"role": "system", "content": "S."},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "x"},
    )
    assert (answer["content"], answer["reasoning_content"]) == ("I look.", "hm")
    assert [(c["id"], c["function"]) for c in answer["tool_calls"]] == [
        ("1", {"name": "ls", "arguments": "{}"}),
        ("2", {"name": "patch", "arguments": '{"input":"free"}'}),
    ]
    assert request.messages[4:6] == (
        {"role": "tool", "tool_call_id": "1", "content": "r"},
        {"role": "tool", "tool_call_id": "2", "content": '{"ok":true}'},
    )
    assert request.losses == (
        "reasoning that is encrypted or empty is not kept",
        "item of type 'web_search_call' is not kept",
    )


def test_input_may_be_a_text() -> None:
    assert read_request(RESPONSES, {"input": "x"}).messages == ({"role": "user", "content": "x"},)


@pytest.mark.parametrize("body", [[], "x", None, {}, {"messages": []}, {"messages": "x"}])
def test_bodies_with_nothing_to_replay(body: Any) -> None:
    with pytest.raises(NotRecorded):
        read_request(CHAT, body)


def test_flat_content() -> None:
    assert flat_content([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "a\nb"
    assert flat_content("a") == "a"
    assert flat_content(None) is None
