"""Which turns count."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.records import Exchange, ReplayPolicy, TurnCounters
from dflash_sweep.sanity import invalid_reason, repetition

WORDS = [f"word{number}" for number in range(400)]
PROSE = " ".join(random.Random(1).sample(WORDS, 200))
POLICY = ReplayPolicy(min_decode_tokens=8)


def judge(text: str = PROSE, *, counters: dict[str, Any] | None = None, **exchange: Any) -> str | None:
    fields = {"content": text, "finish_reason": "stop", **exchange}
    figures = {"decode_tokens": 100, "decode_ms": 50.0, **(counters or {})}
    return invalid_reason(Exchange(turn_index=0, send_ns=0, **fields), TurnCounters(**figures), POLICY)


def test_a_whole_answer_counts() -> None:
    assert judge() is None
    assert judge("", finish_reason="tool_calls", tool_calls=({"function": {"name": "ls", "arguments": "{}"}},)) is None


@pytest.mark.parametrize(
    ("expected", "fields"),
    [
        ("truncated", {"error_type": "truncated"}),
        ("http_error", {"error_type": "http_error", "finish_reason": None}),
        ("no_finish", {"finish_reason": None}),
        ("unexpected_finish", {"finish_reason": "abort"}),
        ("foreign_process", {"counters": {"flags": ("foreign_process",)}}),
        ("no_token_count", {"counters": {"decode_tokens": None}}),
        ("too_few_tokens", {"counters": {"decode_tokens": 7}}),
        ("no_decode_time", {"counters": {"decode_ms": None}}),
        ("no_decode_time", {"counters": {"decode_ms": 0.0}}),
        ("degenerate_output", {"text": "the same again " * 40}),
        ("degenerate_output", {"text": "", "reasoning": "hm " * 60}),
        (
            "degenerate_output",
            {"text": "", "tool_calls": ({"function": {"name": "w", "arguments": "[" + "0, " * 60},},)},
        ),
    ],
)  # fmt: skip
def test_reasons(expected: str, fields: dict[str, Any]) -> None:
    assert judge(**fields) == expected


def test_the_limits_are_counted_as_said() -> None:
    assert judge(counters={"decode_tokens": 8}) is None
    # 47 equal words are not judged, 48 are
    assert judge("a " * 47) is None
    assert judge("a " * 48) == "degenerate_output"


def test_figures_of_a_small_text() -> None:
    # units a b c a b c a b: 7 bigrams, 3 different; 5 four-grams (abca bcab cabc abca bcab), 3 different;
    # read from the end, a passage of 3 repeats over all 8 units: 2 whole times
    seen = repetition("a b c a b c a b")
    assert (seen.units, seen.distinct_2, seen.distinct_4) == (8, 3 / 7, 3 / 5)
    assert (seen.loop_units, seen.loops, seen.loop_share) == (3, 2, 1.0)
    empty = repetition("")
    assert (empty.units, empty.distinct_2, empty.loops) == (0, None, 0)
    single = repetition("one two three")
    assert (single.distinct_4, single.loops) == (None, 0)


def test_a_loop_at_the_end_of_a_good_text_is_found() -> None:
    good = " ".join(WORDS[:60])
    assert not repetition(good).is_degenerate
    seen = repetition(good + " and so on." * 30)  # 60 words, then 30 times 4 units: two thirds are loop
    assert (seen.loop_units, seen.loops) == (4, 30)
    assert seen.loop_share == pytest.approx(120 / 180)
    assert seen.is_degenerate


@pytest.mark.parametrize("text", ["哈" * 60, "我们走吧" * 20, "!" * 80, "=-" * 60, "ab" * 400, "  \n}" * 90])
def test_loops_without_spaces_are_found(text: str) -> None:
    assert repetition(text).is_degenerate


CODE = '''
def parse(line: str) -> tuple[str, int]:
    """Split a line "name=value" and read the value as a number."""
    name, separator, value = line.partition("=")
    if not separator:
        raise ValueError(f"no '=' in {line!r}")
    return name.strip(), int(value)


def read(path: Path) -> dict[str, int]:
    settings = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, value = parse(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        settings[name] = value
    return settings
'''
TABLE = "\n".join(f"| {name} | {size} | {size * 3} |" for size, name in enumerate(WORDS[:25]))


@pytest.mark.parametrize("text", [CODE, TABLE, ", ".join(str(n * n) for n in range(60))])
def test_code_tables_and_lists_are_not_degenerate(text: str) -> None:
    assert not repetition(text).is_degenerate


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12, unique=True), st.integers(5, 30))
def test_any_passage_repeated_often_enough_is_degenerate(passage: list[str], times: int) -> None:
    seen = repetition(" ".join(passage * times))
    assert seen.is_degenerate == (len(passage) * times >= 48)
    assert seen.loops >= 5
    assert seen.loop_share == 1.0


@given(st.permutations(WORDS[:120]))
def test_a_text_that_never_repeats_is_never_degenerate(words: list[str]) -> None:
    seen = repetition(" ".join(words))
    assert (seen.distinct_2, seen.distinct_4, seen.loops) == (1.0, 1.0, 0)
    assert not seen.is_degenerate


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_loop_agrees_with_trying_every_length(units: list[str]) -> None:
    seen = repetition(" ".join(units))
    best = 0
    for period in range(1, len(units)):
        covered = period
        while covered < len(units) and units[-1 - covered] == units[-1 - covered + period]:
            covered += 1
        if covered >= 2 * period:
            best = max(best, covered)
    assert seen.loop_share * len(units) == pytest.approx(best)
