"""The canonical format: exact round trip, clear errors with line numbers, tolerance for torn files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.traces import canonical
from dflash_sweep.traces.canonical import load, parse, save, sha256, validate

SYSTEM = {"role": "system", "content": "s"}
TOOLS = ({"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}},)


def turn(index: int = 0, *texts: str, conversation: str = "c1", **extra: Any) -> Turn:
    roles = ("user", "assistant")
    messages = (SYSTEM, *({"role": roles[n % 2], "content": text} for n, text in enumerate(texts or ("hello",))))
    return Turn(conversation=conversation, index=index, messages=messages, **extra)


def trace(*turns: Turn, **header: Any) -> Trace:
    return Trace(header=TraceHeader(name="t", source="test", **header), turns=turns or (turn(),))


def file_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def test_round_trip_is_exact(tmp_path: Path) -> None:
    original = trace(
        turn(0, "a", tools=TOOLS, tool_choice="auto", max_tokens=9, pause_ms=1.5, bucket="code"),
        turn(1, "a", "b", "c", tools=TOOLS, recorded=RecordedAnswer(content="d", output_tokens=0)),
        turn(0, "other", conversation="c2"),
        turn(2, "x"),  # diverges: the history is another one
        losses=("system_prompt: not stored",),
        template_kwargs={"enable_thinking": False},
    )
    stored = save(original, tmp_path / "t.jsonl")
    assert load(tmp_path / "t.jsonl") == stored
    assert stored.turns == original.turns
    assert stored.header.sha256 == sha256(original.turns)


def test_history_is_stored_as_what_was_added(tmp_path: Path) -> None:
    save(trace(turn(0, "a", tools=TOOLS), turn(1, "a", "b", "c", tools=TOOLS), turn(2, "x")), tmp_path / "t.jsonl")
    _, first, second, third = file_lines(tmp_path / "t.jsonl")
    assert "keep" not in first
    assert (second["keep"], len(second["add"]), second["tools"]) == (2, 2, "same")
    assert (third["keep"], len(third["add"])) == (1, 1)  # only the system message is shared
    assert "tools" not in third


def test_size_grows_with_the_conversation_not_with_its_square(tmp_path: Path) -> None:
    texts = [f"message number {n} " * 10 for n in range(121)]
    save(trace(*(turn(k, *texts[: 2 * k + 1]) for k in range(61))), tmp_path / "t.jsonl")
    once = sum(len(text) for text in texts)  # about 23,000 characters; all histories together are 60 times that
    assert (tmp_path / "t.jsonl").stat().st_size < 2 * once


def test_hash_depends_on_the_turns_alone() -> None:
    assert sha256((turn(),)) == sha256((replace(turn(), recorded=RecordedAnswer()),))
    assert sha256((turn(),)) != sha256((turn(0, "other"),))
    assert sha256((turn(0, "a"), turn(1, "b"))) != sha256((turn(1, "b"), turn(0, "a")))


def test_key_order_of_a_message_is_kept(tmp_path: Path) -> None:
    odd = ({"content": "x", "role": "user"},)
    save(trace(Turn(conversation="c", index=0, messages=odd), Turn(conversation="c", index=1, messages=odd)),
         tmp_path / "t.jsonl")  # fmt: skip
    assert [list(t.messages[0]) for t in load(tmp_path / "t.jsonl").turns] == [["content", "role"]] * 2


def bytes_of(*turns: Turn) -> bytes:
    return b"\n".join(canonical.lines(canonical.with_hash(trace(*turns)))) + b"\n"


@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        (lambda b: b"\xef\xbb\xbf" + b, "byte-order mark"),
        (lambda b: b.replace(b"\n", b"\r\n"), "CRLF"),
        (lambda b: b.replace(b"\n", b"\n\n"), "line 2: blank"),
        (lambda b: b + b'{"type":"turn","conv', "line 4: torn"),
        (lambda b: b + b'{"type":"turn","conv\n\n', "line 4: torn"),
    ],
)
def test_harmless_damage_is_tolerated_and_listed(damage: Any, warning: str) -> None:
    whole = bytes_of(turn(0, "a"), turn(1, "a", "b", "c"))
    expected, _ = parse(whole)
    found, warnings = parse(damage(whole))
    assert found == expected
    assert any(warning in text for text in warnings)


def test_a_cut_file_is_noticed_by_its_hash() -> None:
    whole = bytes_of(turn(0, "a"), turn(1, "a", "b", "c"))
    found, warnings = parse(whole[:-20])
    assert len(found.turns) == 1
    assert any("torn" in text for text in warnings)
    assert any("sha256" in text for text in warnings)
    assert found.header.sha256 == sha256(found.turns)


def test_line_separators_inside_texts_do_not_cut_lines(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three\x0bfour"
    save(trace(turn(0, text)), tmp_path / "t.jsonl")
    assert load(tmp_path / "t.jsonl").turns[0].messages[1]["content"] == text


def with_line(change: dict[str, Any], number: int = 2) -> bytes:
    lines = bytes_of(turn(0, "a"), turn(1, "a", "b", "c")).split(b"\n")
    line = {**json.loads(lines[number - 1]), **change}
    lines[number - 1] = json.dumps({k: v for k, v in line.items() if v is not ...}).encode()
    return b"\n".join(lines)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b'{"role":"user"}\n', "line 1: not a trace of this program"),
        (with_line({"format_version": 2}, 1), "line 1: format_version 2; this program reads 1"),
        (with_line({"surprise": 1}, 1), "line 1: header has unknown keys surprise"),
        (with_line({"keep": 3}, 3), None),
        (with_line({"keep": 9}, 3), "line 3: keeps 9 messages, but the previous turn of 'c1' has 2"),
        (with_line({"index": 0}, 3), "line 3: index 0 follows 0 in 'c1'"),
        (with_line({"tools": "same"}), 'line 2: tools is "same", but the previous turn has none'),
        (with_line({"bucket": "poem"}), "line 2: bucket must be one of code, tool_call"),
        (with_line({"index": -1}), "line 2: index must be 0 or more, is -1"),
        (with_line({"max_tokens": "many"}), "line 2: max_tokens must be integer, is string"),
        (with_line({"add": ...}), "line 2: turn lacks add"),
        (with_line({"add": [{"content": "x"}]}), "line 2: add[0] lacks role"),
        (with_line({"temperature": 1}), "line 2: turn has unknown keys temperature"),
        (bytes_of(turn()).replace(b'"type":"turn"', b'"type":turn', 1) + bytes_of(turn()), "line 2: not JSON"),
        (bytes_of(turn()).split(b"\n")[0], "no turns after the header"),
    ],
)
def test_errors_name_line_and_rule(data: bytes, words: str | None) -> None:
    if words is None:
        with pytest.raises(TraceError):
            parse(data)
        return
    with pytest.raises(TraceError) as caught:
        parse(data, "trace t.jsonl")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load(tmp_path / "none.jsonl")
    assert "no such file" in validate(tmp_path / "none.jsonl")[0]


def test_lone_surrogate_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="normalise"):
        save(trace(turn(0, "x \ud83d y")), tmp_path / "t.jsonl")
    assert list(tmp_path.iterdir()) == []  # nothing half written stays


def test_validate_lists_what_servers_refuse(tmp_path: Path) -> None:
    bad = Turn(
        conversation="c",
        index=0,
        messages=({"role": "user", "content": None}, {"role": "user", "content": "b", "name": "me"}),
    )
    save(trace(bad), tmp_path / "t.jsonl")
    problems = validate(tmp_path / "t.jsonl")
    assert any("content is null" in problem for problem in problems)
    assert any("two user messages in a row" in problem for problem in problems)
    assert any("keys name do not belong" in problem for problem in problems)


# ---------------------------------------------------------------- property

_JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | _JSON_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_JSON_TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": _JSON_TEXT}, optional={"extra": _VALUES}), max_size=5
).map(tuple)
_TOOL_SETS = st.none() | st.just(TOOLS)
_RECORDED = st.builds(
    RecordedAnswer,
    content=st.none() | _JSON_TEXT,
    output_tokens=st.none() | st.integers(0, 10**6),
    ttft_ms=st.none() | st.floats(0, 1e9),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    turns = [
        Turn(
            conversation=name,
            index=index,
            messages=draw(_MESSAGES),
            tools=draw(_TOOL_SETS),
            tool_choice=draw(st.sampled_from([None, "auto", {"type": "function", "function": {"name": "ls"}}])),
            max_tokens=draw(st.none() | st.integers(1, 10**6)),
            pause_ms=draw(st.none() | st.floats(0, 1e6)),
            recorded=draw(_RECORDED),
        )
        for name in draw(st.lists(st.sampled_from(["a", "b", "ü"]), min_size=1, max_size=3, unique=True))
        for index in range(draw(st.integers(1, 3)))
    ]
    return trace(*draw(st.permutations(turns).map(_in_order)), license=draw(st.none() | _JSON_TEXT))


def _in_order(turns: list[Turn]) -> list[Turn]:
    """The same mixture of conversations with indices rising in each."""
    waiting = {name: sorted((t for t in turns if t.conversation == name), key=lambda t: t.index) for name in "abü"}
    return [waiting[t.conversation].pop(0) for t in turns]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traces())
def test_any_trace_comes_back_as_it_was(original: Trace) -> None:
    data = b"\n".join(canonical.lines(canonical.with_hash(original))) + b"\n"
    found, warnings = parse(data)
    assert warnings == ()
    assert msgspec.json.encode(found.turns) == msgspec.json.encode(original.turns)  # bytes: key order, 1 against 1.0
    assert found.header.sha256 == sha256(original.turns)
