"""llama-server timings in every form that has misled somebody, counter pages, and their differences."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import metrics
from dflash_sweep.engines import prometheus, timings
from dflash_sweep.engines.logtext import TimingBlock
from dflash_sweep.records import Exchange


def exchange(index: int = 0, **fields: Any) -> Exchange:
    return Exchange(**{"turn_index": index, "send_ns": index * 1000, "end_ns": index * 1000 + 500, **fields})


def read(**fields: Any) -> timings.Draft:
    found = timings.from_timings(exchange(**fields))
    assert found is not None
    return found


def test_builds_that_define_their_rate_differently_give_one_figure() -> None:
    """11 tokens in 100 ms: one build prints 110 tok/s, the other 100; ten decoded tokens make it 100 either way."""
    for printed in (110.0, 100.0):
        draft = read(timings={"predicted_n": 11, "predicted_ms": 100.0, "predicted_per_second": printed})
        assert metrics.decode_tps(draft.counters()) == pytest.approx(100.0)
        assert draft.server_tps_raw == printed


@pytest.mark.parametrize("rate", [1_000_000.0, 0.0])
def test_one_token_has_no_rate(rate: float) -> None:
    draft = read(timings={"predicted_n": 1, "predicted_ms": 0.001, "predicted_per_second": rate})
    assert metrics.decode_tps(draft.counters()) is None
    assert "too_few_tokens" in draft.flags
    assert draft.output_tokens == 1


def test_absent_drafts_are_not_zero_drafts() -> None:
    draft = read(timings={"predicted_n": 11, "predicted_ms": 100.0})
    assert draft.draft_tokens is None
    assert timings.derived_steps(draft) is None


def test_more_accepted_than_emitted_is_flagged_and_gives_no_steps() -> None:
    draft = read(timings={"predicted_n": 2, "predicted_ms": 40.0, "draft_n": 7, "draft_n_accepted": 6})
    timings.plausible(draft)
    assert "accepted_exceeds_emitted" in draft.flags
    assert timings.derived_steps(draft) is None
    assert (draft.draft_tokens, draft.accepted_draft_tokens) == (7, 6)


@pytest.mark.parametrize(("drafted", "accepted", "flagged"), [(60, 60, True), (60, 59, False), (8, 8, False)])
def test_an_acceptance_of_exactly_one_is_not_believed(drafted: int, accepted: int, flagged: bool) -> None:
    """A build has counted every draft as accepted. A short answer may really have no rejected draft."""
    draft = read(timings={"predicted_n": 90, "predicted_ms": 900.0, "draft_n": drafted, "draft_n_accepted": accepted})
    timings.plausible(draft)
    assert ("acceptance_constant_1" in draft.flags) is flagged


def test_chunks_are_never_counted_as_tokens() -> None:
    # 20 tokens came in 4 pieces within 1 s: 19 decoded tokens in 1000 ms, not 3 or 4.
    answer = exchange(
        usage={"completion_tokens": 20}, chunks=4, first_token_ns=9 * 10**9, last_token_ns=10 * 10**9, end_ns=10**10
    )
    draft = timings.from_usage(answer)
    timings.from_client_clock(draft, answer)
    assert metrics.decode_tps(draft.counters()) == pytest.approx(19.0)  # and not 20 / 10 s: the 9 s were prefill
    unknown = exchange(chunks=4, first_token_ns=9 * 10**9, last_token_ns=10 * 10**9)
    draft = timings.from_usage(unknown)
    timings.from_client_clock(draft, unknown)
    assert (draft.output_tokens, draft.decode_ms) == (None, None)


@pytest.mark.parametrize("value", [0, 0.0, -1.0, None, float("nan"), float("inf")])
def test_a_clock_that_did_not_run_gives_no_rate(value: object) -> None:
    draft = read(timings={"predicted_n": 40, "predicted_ms": value, "predicted_per_second": None})
    assert (draft.decode_ms, metrics.decode_tps(draft.counters())) == (None, None)


def test_a_cached_prompt_has_no_prefill_rate() -> None:
    draft = read(timings={"cache_n": 6617, "prompt_n": 4, "prompt_ms": 104.0, "predicted_n": 5, "predicted_ms": 50.0})
    assert (draft.prompt_tokens, draft.cached_tokens) == (6621, 6617)
    assert metrics.prefill_tps(draft.counters()) is None


def test_usage_fills_in_for_builds_without_a_cache_count() -> None:
    draft = read(usage={"prompt_tokens": 30}, timings={"prompt_n": 20, "predicted_n": 5, "predicted_ms": 50.0})
    assert (draft.prompt_tokens, draft.cached_tokens) == (30, 10)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, True, "5", [], -1, 1.5])
def test_counts_that_are_none(value: object) -> None:
    assert timings.count(value) is None


@pytest.mark.parametrize(("value", "counted"), [(0, 0), (5, 5), (5.0, 5)])
def test_counts(value: object, counted: int) -> None:
    assert timings.count(value) == counted


def test_the_client_clock_is_the_last_resort_and_says_so() -> None:
    answer = exchange(usage={"completion_tokens": 21}, first_token_ns=10**9, last_token_ns=2 * 10**9)
    draft = timings.from_usage(answer)
    timings.from_client_clock(draft, answer)
    assert (draft.decode_tokens, draft.decode_ms, draft.timing_source) == (20, 1000.0, "client")


def test_a_failed_answer_has_no_client_clock() -> None:
    answer = exchange(usage={"completion_tokens": 21}, first_token_ns=0, last_token_ns=10**9, error_type="timeout")
    draft = timings.from_usage(answer)
    timings.from_client_clock(draft, answer)
    assert draft.decode_ms is None


def block(offset: int, tokens: int, milliseconds: float, **fields: Any) -> TimingBlock:
    return TimingBlock(offset=offset, eval_tokens=tokens, eval_ms=milliseconds, **fields)


def test_blocks_find_their_request_by_their_figures() -> None:
    """Two blocks behind the second request's start, in the wrong order: the JSON figures decide."""
    answers = [
        exchange(0, log_start=0, timings={"predicted_n": 10, "predicted_ms": 100.004}),
        exchange(1, log_start=50, timings={"predicted_n": 20, "predicted_ms": 200.0}),
    ]
    first, second = timings.match_blocks(answers, [block(60, 20, 200.0), block(70, 10, 100.0)], 100)
    assert first is not None
    assert second is not None
    assert (first.offset, second.offset) == (70, 60)


def test_two_blocks_in_one_piece_belong_to_nobody_without_json() -> None:
    assert timings.match_blocks([exchange(log_start=0)], [block(1, 10, 1.0), block(2, 20, 2.0)], 10) == (None,)


def test_place_says_nothing_about_requests_that_ran_together() -> None:
    answers = [exchange(0, send_ns=0, end_ns=100, log_start=0), exchange(1, send_ns=50, end_ns=90, log_start=5)]
    assert timings.match_blocks(answers, [block(1, 10, 1.0)], 10) == (None, None)


def test_an_ambiguous_block_gives_no_clock() -> None:
    draft = timings.from_block(exchange(), block(0, 10, 100.0, ambiguous=True))
    assert draft.decode_ms is None
    assert "ambiguous_log" in draft.flags


# ---------------------------------------------------------------- counter pages

PAGE = """\
# HELP x y
# TYPE a counter
a_total{engine="0"} 5
a_total{engine="1"} 7
b_total -nan
c{le="+Inf",position="0"} 4
c{le="+Inf",position="1"} 2
broken line without a number x
d_sum 1.5e3
"""


def test_a_page_is_read_and_summed_over_engines() -> None:
    page = prometheus.page(PAGE)
    assert page.total("a") == 12.0
    assert page.total("a", engine="1") == 7.0
    assert page.total("b") is None
    assert page.total("d_sum") == 1500.0
    assert page.label_values("c", "position") == ("0", "1")
    assert prometheus.page(None).total("a") is None


def test_a_counter_that_went_down_says_nothing() -> None:
    changed = prometheus.change("a_total 9\n", "a_total 3\n")
    assert changed is not None
    assert changed.count("a") is None
    assert changed.went_back("a")


def test_a_counter_that_appears_counts_from_zero() -> None:
    changed = prometheus.change("x_total 1\n", "x_total 1\na_total 3\n")
    assert changed is not None
    assert changed.count("a") == 3
    assert changed.count("absent") is None


def test_one_missing_page_is_no_change() -> None:
    assert prometheus.change(None, "a_total 1\n") is None
    assert prometheus.change("a_total 1\n", None) is None


def test_a_position_that_fell_gives_no_histogram() -> None:
    assert prometheus.histogram(10, (8, 9)) is None
    assert prometheus.histogram(None, (1,)) is None
    assert prometheus.histogram(10, ()) is None


@given(st.lists(st.integers(0, 7), min_size=1, max_size=200))
def test_the_histogram_is_what_was_counted(accepted: list[int]) -> None:
    """From each step's accepted drafts to cumulative positions and back."""
    reached = tuple(sum(value > position for value in accepted) for position in range(7))
    found = prometheus.histogram(len(accepted), reached)
    assert found == {value: accepted.count(value) for value in range(8)}


@given(st.text(max_size=300))
def test_any_text_is_a_page(text: str) -> None:
    prometheus.page(text)


@pytest.mark.parametrize(
    ("accepted", "steps", "flagged"), [(1, 50, True), (2, 50, False), (0, 49, False), (0, 60, True)]
)
def test_a_draft_that_is_never_right_is_flagged(accepted: int, steps: int, flagged: bool) -> None:
    """Acceptance length 1 + 1/50 = 1.02 over 50 steps."""
    draft = timings.Draft(decode_tokens=steps + accepted, draft_tokens=steps * 7, accepted_draft_tokens=accepted)
    timings.plausible(draft, steps)
    assert ("drafts_never_accepted" in draft.flags) is flagged
