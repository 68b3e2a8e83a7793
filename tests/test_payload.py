"""The request of one turn by policy, and the fingerprints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.errors import ConfigError
from dflash_sweep.payload import build_payload, check_policy, encode_payload, prompt_sha256, text_sha256
from dflash_sweep.records import Exchange, ReplayPolicy, Turn

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "ls", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}},
}
TURN = Turn(conversation="c", index=0, messages=({"role": "user", "content": "hi"},), tools=(TOOL,), tool_choice="auto")


def test_every_policy_is_explicit() -> None:
    assert build_payload(TURN, ReplayPolicy(), {}) == {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [TOOL],
        "tool_choice": "auto",
        "max_tokens": 128,
        "temperature": 0.0,
        "seed": 0,
        "cache_prompt": True,
    }


def test_tools_off_drops_tools_and_tool_choice() -> None:
    payload = build_payload(TURN, ReplayPolicy(tools=False), {})
    assert {"tools", "tool_choice"}.isdisjoint(payload)


@pytest.mark.parametrize(("recorded", "expected"), [(None, 128), (64, 64), (500, 128)])
def test_max_tokens_is_the_smaller_limit(recorded: int | None, expected: int) -> None:
    turn = Turn(conversation="c", index=0, messages=(), max_tokens=recorded)
    assert build_payload(turn, ReplayPolicy(), {})["max_tokens"] == expected


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_a_template_switch(thinking: bool) -> None:
    payload = build_payload(TURN, ReplayPolicy(thinking=thinking), {}, {"enable_thinking": not thinking, "lang": "en"})
    assert payload["chat_template_kwargs"] == {"enable_thinking": thinking, "lang": "en"}
    assert "chat_template_kwargs" not in build_payload(TURN, ReplayPolicy(thinking=None), {})


def test_engine_fields_win_over_the_policys_and_none_takes_a_field_out() -> None:
    policy = ReplayPolicy(request_fields={"min_p": 0.1, "top_p": 0.9, "chat_template_kwargs": {"a": 1, "b": 1}})
    extra = {"top_p": None, "min_p": 0.2, "cache_prompt": None, "chat_template_kwargs": {"b": 2}}
    payload = build_payload(TURN, policy, extra)
    assert payload["min_p"] == 0.2
    assert {"top_p", "cache_prompt"}.isdisjoint(payload)
    assert payload["chat_template_kwargs"] == {"a": 1, "b": 2}


def test_a_zero_is_sent_as_a_zero() -> None:
    payload = build_payload(TURN, ReplayPolicy(cache_prompt=False), {"top_k": 0})
    assert (payload["cache_prompt"], payload["top_k"], payload["seed"]) == (False, 0, 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "free"}, "teacher_forced, free_running"),
        ({"pauses": "skip"}, "drop, keep, compress"),
        ({"concurrency": 0}, "1 or more"),
        ({"max_tokens": 0}, "1 or more"),
        ({"warmup_turns": -1}, "0 or more"),
        ({"turn_timeout_s": 0.0}, "above 0 s"),
        ({"temperature": -0.1}, "0 or more"),
        ({"request_fields": {"seed": 4}}, "set by policy.sampling_seed"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_policy(ReplayPolicy(**fields))
    check_policy(ReplayPolicy())


def test_prompt_fingerprint_sees_what_makes_the_prompt_and_nothing_else() -> None:
    base = build_payload(TURN, ReplayPolicy(), {})
    same = build_payload(TURN, ReplayPolicy(max_tokens=5, temperature=1.0, cache_prompt=False), {"min_p": 0.1})
    assert prompt_sha256(base) == prompt_sha256(same)
    reordered = json.loads(json.dumps(base))
    reordered["tools"][0]["function"]["parameters"]["properties"] = {"a": {}, "b": {}}
    others = [
        base | {"messages": [{"role": "user", "content": "hi "}]},
        reordered,  # a template prints a schema in the order it came in
        base | {"tool_choice": "none"},
        base | {"chat_template_kwargs": {"enable_thinking": False}},
    ]
    assert len({prompt_sha256(base), *map(prompt_sha256, others)}) == 5


def test_text_fingerprint_ignores_call_ids() -> None:
    def answer(call_id: str, name: str = "ls") -> Exchange:
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        return Exchange(turn_index=0, send_ns=0, content="x", tool_calls=(call,))

    assert text_sha256(answer("a")) == text_sha256(answer("b"))
    assert text_sha256(answer("a")) != text_sha256(answer("a", "rm"))
    # moving a letter from reasoning to content is another answer
    assert text_sha256(Exchange(turn_index=0, send_ns=0, reasoning="ab", content="c")) != text_sha256(
        Exchange(turn_index=0, send_ns=0, reasoning="a", content="bc")
    )


@given(st.text(st.characters(), max_size=40))
def test_any_text_can_be_sent(text: str) -> None:
    body = encode_payload({"content": text})
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert json.loads(body.decode("utf-8"))["content"] == expected
    prompt_sha256({"messages": [text]})
