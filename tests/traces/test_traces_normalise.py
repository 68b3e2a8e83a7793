"""The normaliser: its output is always legal, a second pass changes nothing, and each change is listed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sweep.traces.changes import ChangeKind, summary
from dflash_sweep.traces.legal import request_problems
from dflash_sweep.traces.normalise import NormaliseOptions, NothingToSend, normalise

USER = {"role": "user", "content": "hello"}


def call(call_id: Any = "call_1", name: Any = "bash", arguments: Any = '{"command":"ls"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: dict[str, Any], content: Any = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id: Any = "call_1", content: Any = "a.txt") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def kinds(messages: list[Any], **options: Any) -> set[ChangeKind]:
    return {change.kind for change in normalise(messages, options=NormaliseOptions(**options)).changes}


def test_a_legal_request_stays_as_it_is() -> None:
    messages = [{"role": "system", "content": "s"}, USER, asks(call()), result(), {"role": "user", "content": "go on"}]
    done = normalise(messages)
    assert list(done.messages) == messages
    assert done.changes == ()
    assert done.tools is None


@pytest.mark.parametrize(
    ("messages", "expected", "kind"),
    [
        # Null keys of strict client dumps are removed, an assistant's null content becomes an empty text.
        (
            [USER, {**asks(call(), content=None), "name": None, "reasoning_content": None}, result()],
            [USER, asks(call()), result()],
            ChangeKind.NULL,
        ),
        ([{"role": "developer", "content": "s"}, USER], [{"role": "system", "content": "s"}, USER], ChangeKind.ROLE),
        # Two user messages in a row are joined by a blank line.
        ([USER, USER], [{"role": "user", "content": "hello\n\nhello"}], ChangeKind.MERGED),
        # A trailing answer is taken off.
        ([USER, {"role": "assistant", "content": "hi"}], [USER], ChangeKind.TRAILING_ASSISTANT),
        # Content parts are joined by line breaks; an image leaves a placeholder.
        (
            [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]}],
            [{"role": "user", "content": "see\n[image omitted]"}],
            ChangeKind.MEDIA,
        ),
        ([{"role": "user", "content": "x \ud83d y"}], [{"role": "user", "content": "x � y"}], ChangeKind.SURROGATE),
        # Broken arguments become an empty object, so that later turns do not fail on them.
        ([USER, asks(call(arguments="{")), result()],
         [USER, asks(call(arguments="{}")), result()],
         ChangeKind.ARGUMENTS_BROKEN),
        ([USER, asks(call(arguments={"a": 1})), result()], [USER, asks(call(arguments='{"a":1}')), result()],
         ChangeKind.ARGUMENTS_OBJECT),
        ([USER, asks(call(arguments='"ls"')), result()], [USER, asks(call(arguments='{"input":"ls"}')), result()],
         ChangeKind.ARGUMENTS_WRAPPED),
        # A call without a result gets one; a result without a call goes.
        ([USER, asks(call()), {"role": "user", "content": "?"}],
         [USER, asks(call()), result(content="[no result recorded]"), {"role": "user", "content": "?"}],
         ChangeKind.MISSING_RESULT),
        ([USER, result("call_9")], [USER], ChangeKind.ORPHAN_RESULT),
        ([USER, asks(call()), result(), result(content="again")], [USER, asks(call()), result()],
         ChangeKind.DUPLICATE_RESULT),
        # Results come in the order of their calls, directly after them.
        ([USER, asks(call("a"), call("b")), result("b", "2"), result("a", "1")],
         [USER, asks(call("a"), call("b")), result("a", "1"), result("b", "2")], ChangeKind.RESULT_MOVED),
        ([{"role": "assistant", "content": "hi"}, USER], [USER], ChangeKind.LEADING_ASSISTANT),
        ([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, USER],
         [{"role": "system", "content": "a\n\nb"}, USER], ChangeKind.SYSTEM_MERGED),
        ([USER, {"role": "assistant", "content": "hi"}, {"role": "system", "content": "be brief"}],
         [USER, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "[system message]\nbe brief"}],
         ChangeKind.SYSTEM_MOVED),
        ([USER, {"role": "assistant", "content": "", "function_call": {"name": "ls", "arguments": "{}"}},
          {"role": "function", "name": "ls", "content": "a.txt"}], None, ChangeKind.FUNCTION_CALL),
    ],
)  # fmt: skip
def test_repairs(messages: list[Any], expected: list[Any] | None, kind: ChangeKind) -> None:
    done = normalise(messages)
    assert kind in {change.kind for change in done.changes}
    assert request_problems(done.messages, done.tools) == ()
    if expected is not None:
        assert list(done.messages) == expected


def test_legacy_function_calls_keep_their_results() -> None:
    ask = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": "{}"}}
    done = normalise([USER, ask, {"role": "function", "name": "ls", "content": "a.txt"}])
    assert done.messages[2]["content"] == "a.txt"
    assert done.messages[2]["tool_call_id"] == done.messages[1]["tool_calls"][0]["id"]


def test_late_system_can_go_to_the_front() -> None:
    late = {"role": "system", "content": "late"}
    done = normalise([{"role": "system", "content": "s"}, USER, late], options=NormaliseOptions(late_system="front"))
    assert [m["content"] for m in done.messages] == ["s\n\nlate", "hello"]


def test_strict_roles_put_an_assistant_between_tool_and_user() -> None:
    messages = [USER, asks(call()), result(), USER]
    roles = [m["role"] for m in normalise(messages, options=NormaliseOptions(strict_roles=True)).messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert ChangeKind.ALTERNATED in kinds(messages, strict_roles=True)


def test_reasoning_is_one_switch() -> None:
    messages = [USER, {"role": "assistant", "content": "a", "reasoning": "hm"}, USER]
    assert normalise(messages).messages[1]["reasoning_content"] == "hm"
    dropped = normalise(messages, options=NormaliseOptions(reasoning="drop"))
    assert "reasoning_content" not in dropped.messages[1]
    assert ChangeKind.REASONING_DROPPED in {change.kind for change in dropped.changes}


def test_long_ids_are_rewritten_alike_on_call_and_result() -> None:
    long_id = "call:" + "x" * 60
    done = normalise([USER, asks(call(long_id)), result(long_id)])
    new_id = done.messages[1]["tool_calls"][0]["id"]
    assert new_id == done.messages[2]["tool_call_id"]
    assert len(new_id) <= 40
    again = normalise([USER, asks(call(long_id)), result(long_id), USER])
    assert again.messages[1]["tool_calls"][0]["id"] == new_id  # the same in every turn of the conversation


def test_repeated_ids_belong_to_the_nearest_call() -> None:
    messages = [USER, asks(call()), result(content="1"), asks(call()), result(content="2")]
    assert list(normalise(messages).messages) == messages


def test_tools_of_all_vendors_become_functions() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    done = normalise(
        [USER],
        [
            {"name": "read", "description": "d", "input_schema": schema, "cache_control": {"type": "ephemeral"}},
            {"type": "function", "name": "flat", "parameters": schema, "strict": True},
            {"type": "web_search_20990101", "name": "web_search"},
        ],
        {"type": "any"},
    )
    assert done.tools == (
        {"type": "function", "function": {"name": "read", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "flat", "parameters": schema}},
    )
    assert done.tool_choice == "required"
    lines = summary(done.changes)
    assert any("web_search_20990101" in line for line in lines)


def test_empty_tools_and_their_choice_go() -> None:
    done = normalise([USER], [], "auto")
    assert done.tools is None
    assert done.tool_choice is None
    assert {change.kind for change in done.changes} == {ChangeKind.TOOLS_EMPTY, ChangeKind.TOOL_CHOICE}


def test_nothing_to_send_is_said() -> None:
    with pytest.raises(NothingToSend):
        normalise([{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}])


# ---------------------------------------------------------------- properties

_TEXT = st.text(max_size=12) | st.sampled_from(["x \ud83d y", "\u2028", "", "two\n\nlines"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _TEXT, lambda s: st.lists(s, max_size=3), max_leaves=4
)
_PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_audio", "tool_result", ""])}, optional={"text": _TEXT}
)
_CONTENT = _TEXT | st.none() | st.lists(_PART | _TEXT, max_size=3) | st.integers()
_ID = st.sampled_from(["a", "b", "c", "", "bad id", "x" * 50]) | st.none() | st.integers(0, 3)
_ARGUMENTS = _JSON | st.just('{"a": 1}') | st.just("{") | st.dictionaries(_TEXT, _JSON, max_size=2)
_CALL = (
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"name": _TEXT | st.none()}, optional={"arguments": _ARGUMENTS})},
        optional={"id": _ID, "type": st.sampled_from(["function", "custom", None])},
    )
    | _JSON
)
_MESSAGE = (
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "critic"])},
        optional={
            "content": _CONTENT,
            "tool_calls": st.lists(_CALL, max_size=3) | st.none(),
            "tool_call_id": _ID,
            "name": _TEXT | st.none(),
            "reasoning_content": _TEXT | st.none(),
            "function_call": st.fixed_dictionaries({"name": _TEXT, "arguments": _ARGUMENTS}) | st.none(),
            "cache_control": _JSON,
        },
    )
    | _JSON
)
_TOOLS = st.none() | st.lists(
    st.fixed_dictionaries({"name": _TEXT}, optional={"type": _TEXT, "input_schema": st.just({"type": "object"})})
    | st.fixed_dictionaries({"type": st.just("function"), "function": st.fixed_dictionaries({"name": _TEXT})}),
    max_size=3,
)
_OPTIONS = st.builds(
    NormaliseOptions,
    reasoning=st.sampled_from(["keep", "drop"]),
    late_system=st.sampled_from(["user", "front"]),
    strict_roles=st.booleans(),
)
_CHOICE = st.sampled_from([None, "auto", "any", {"type": "tool", "name": "x"}, {"type": "any"}, 3])


@settings(max_examples=200, deadline=None)
@given(st.lists(_MESSAGE, max_size=8), _TOOLS, _CHOICE, _OPTIONS)
def test_output_is_always_legal_and_a_second_pass_changes_nothing(
    messages: list[Any], tools: Any, choice: Any, options: NormaliseOptions
) -> None:
    before = json.dumps([messages, tools, choice])
    try:
        done = normalise(messages, tools, choice, options)
    except NothingToSend:
        return
    assert json.dumps([messages, tools, choice]) == before  # the record itself is never touched
    assert request_problems(done.messages, done.tools) == ()
    again = normalise(done.messages, done.tools, done.tool_choice, options)
    assert again.messages == done.messages
    assert again.tools == done.tools
    assert again.tool_choice == done.tool_choice
    assert again.changes == ()


@settings(max_examples=200, deadline=None)
@given(st.lists(_MESSAGE, max_size=6))
def test_a_change_is_listed_whenever_something_is_different(messages: list[Any]) -> None:
    try:
        done = normalise(messages)
    except NothingToSend:
        return
    if list(done.messages) != messages:
        assert done.changes
