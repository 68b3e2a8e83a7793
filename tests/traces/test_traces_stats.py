"""Figures, text picture, splitting and the PNG of a trace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dflash_sweep import traces
from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.report.trace_picture import write_png
from dflash_sweep.traces.buckets import bucket_of
from dflash_sweep.traces.splitting import by_bucket, by_conversation, tune_and_check, turn_range
from dflash_sweep.traces.stats import trace_stats
from dflash_sweep.traces.text_picture import figure_lines, header_lines, picture_lines


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def conversation(name: str, count: int = 2, bucket: str = "prose") -> tuple[Turn, ...]:
    """Turn k has k + 1 user messages of 40 characters (10 tokens each at 4 characters a token)."""
    said = [user(f"{name}{number}".ljust(40, ".")) for number in range(count)]
    return tuple(
        Turn(
            conversation=name,
            index=index,
            messages=tuple(said[: index + 1]),
            bucket=bucket,
            recorded=RecordedAnswer(content="x" * 80),
        )
        for index in range(count)
    )


def trace(*turns: Turn) -> Trace:
    return Trace(header=TraceHeader(name="t", source="s", sha256=traces.sha256(turns)), turns=turns)


def test_estimates_are_marked() -> None:
    stats = trace_stats(trace(*conversation("a")))
    first, second = stats.turns
    assert (first.prompt_tokens, first.new_tokens) == (10, 10)
    assert (second.prompt_tokens, second.new_tokens) == (20, 10)  # the first 10 were there before
    assert first.prompt_estimated
    assert (first.output_tokens, first.output_estimated) == (20, True)  # 80 characters
    assert stats.longest_tokens == 40


def test_recorded_counts_win_and_scale_the_parts() -> None:
    turn = Turn(
        conversation="a",
        index=0,
        messages=({"role": "system", "content": "s" * 30}, user("u" * 10)),
        recorded=RecordedAnswer(prompt_tokens=100, output_tokens=0),
    )
    stats = trace_stats(trace(turn))
    one = stats.turns[0]
    assert (one.prompt_tokens, one.prompt_estimated) == (100, False)
    assert (one.prompt_parts["system"], one.prompt_parts["user"]) == (75, 25)  # 30 and 10 of 40 characters
    assert (one.output_tokens, one.output_estimated) == (0, False)  # zero is a count
    assert not stats.estimated


def test_tool_share_counts_answers_that_call() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    turns = (
        Turn(conversation="a", index=0, messages=(user("u" * 20),), recorded=RecordedAnswer(tool_calls=(call,))),
        Turn(
            conversation="a",
            index=1,
            messages=(
                user("u" * 20),
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "r" * 56, "tool_call_id": "a"},
            ),
        ),
    )
    stats = trace_stats(trace(*turns))
    assert stats.tool_turns == 1
    # 20 user + 4 of the call (ls, {}) + 56 tool = 80 characters, 20 tokens; 14 of them are the tool's.
    assert stats.tool_prompt_share == pytest.approx(14 / 20)


def test_shipped_agent_is_what_it_says() -> None:
    agent = traces.load(traces.shipped("agent"))
    stats = trace_stats(agent)
    text = "\n".join([*header_lines(agent, stats), *figure_lines(stats)])
    assert "agent: 13 turns in 1 conversation" in text
    assert "A scripted policy decided" in text
    assert "11 of 13 answers call tools" in text


def test_bars_have_their_length_and_order() -> None:
    lines = picture_lines(trace_stats(trace(*conversation("a"))).turns)
    first, second = (re.findall("▒+", line)[0] for line in lines[2:])
    assert (len(first), len(second)) == (22, 44)  # half and full width
    assert lines[1].startswith("conv.")


def test_a_turn_without_an_answer_shows_a_question_mark() -> None:
    turn = Turn(conversation="a", index=0, messages=(user("u"),))
    stats = trace_stats(trace(turn))
    assert stats.turns[0].output_tokens is None
    assert picture_lines(stats.turns)[-1].endswith("?")


@pytest.mark.parametrize("name", list(traces.SHIPPED))
def test_picture_is_a_png_and_the_same_each_time(name: str, tmp_path: Path) -> None:
    shipped = traces.load(traces.shipped(name))
    stats = trace_stats(shipped)
    first = write_png(shipped, stats, tmp_path / "new" / "a.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    if name == "agent_short":
        assert write_png(shipped, stats, tmp_path / "b.png").read_bytes() == first


# ---------------------------------------------------------------- buckets


def _call(arguments: str) -> dict[str, object]:
    return {"function": {"name": "w", "arguments": arguments}}


@pytest.mark.parametrize(
    ("answer", "prompt_tokens", "bucket"),
    [
        (None, 100, "other"),
        ({"content": "Seven."}, 100, "prose"),
        ({"content": "Seven."}, 24_000, "long_context"),
        ({"content": "Here:\n```python\nprint(7)\nprint(8)\n```"}, 100, "code"),
        ({"content": "A long explanation of many words before `x`: ```x```"}, 100, "prose"),
        ({"content": "", "tool_calls": [_call('{"command":"ls"}')]}, 100, "tool_call"),
        ({"content": "", "tool_calls": [_call('{"content":"' + "line\\n" * 60 + '"}')]}, 100, "code"),
        ({"content": "Seven.", "reasoning_content": "Let me think about it."}, 100, "thinking"),
        ({"content": ""}, 100, "other"),
    ],
)
def test_buckets(answer: dict[str, object] | None, prompt_tokens: int, bucket: str) -> None:
    assert bucket_of(answer, prompt_tokens) == bucket


# ---------------------------------------------------------------- splitting


def test_split_by_conversation_and_bucket_loses_nothing() -> None:
    whole = trace(*conversation("a"), *conversation("b", 3, "code"))
    for pieces in (by_conversation(whole), by_bucket(whole)):
        assert sum(len(piece.turns) for piece in pieces.values()) == 5
        for piece in pieces.values():
            assert piece.header.sha256 == traces.sha256(piece.turns)
    assert set(by_bucket(whole)) == {"prose", "code"}


def test_a_range_keeps_whole_histories() -> None:
    piece = turn_range(trace(*conversation("a", 4)), 2, 3)["2-3"]
    assert [len(turn.messages) for turn in piece.turns] == [3, 4]
    with pytest.raises(TraceError, match="numbered 0 to 3"):
        turn_range(trace(*conversation("a", 4)), 7, 9)


def test_tuning_and_checking_never_share_a_conversation() -> None:
    whole = trace(*(turn for name in "abcdefghij" for turn in conversation(name)))
    pieces = tune_and_check(whole, 0.3)
    tune, check = ({turn.conversation for turn in pieces[name].turns} for name in ("tune", "check"))
    assert len(check) == 3
    assert tune | check == set("abcdefghij")
    assert not tune & check
    assert tune_and_check(whole, 0.3) == pieces
    with pytest.raises(TraceError, match="cannot be divided"):
        tune_and_check(trace(*conversation("a")), 0.5)
    with pytest.raises(TraceError, match="between 0 and 1"):
        tune_and_check(whole, 1.0)
