"""Figures with their source, or the reason why there is none."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_sweep import metrics
from dflash_sweep.figures import SOURCES, bucket_figures, pooled_figures, turn_figures
from dflash_sweep.records import Exchange, StageTime, TurnCounters, TurnRecord


def record(
    *,
    send_ms: int = 0,
    bucket: str = "code",
    warmup: bool = False,
    invalid_reason: str | None = None,
    exchange: dict[str, Any] | None = None,
    **counters: Any,
) -> TurnRecord:
    """A turn sent at `send_ms`: first token after 100 ms, last after 500, end after 510; 41 tokens, 40 of them decoded
    in 400 ms and 16 steps; 300 prompt tokens, 100 of them cached, in 80 ms."""
    figures = {
        "output_tokens": 41, "decode_tokens": 40, "decode_ms": 400.0, "verify_steps": 16, "draft_tokens": 240,
        "accepted_draft_tokens": 24, "acceptance_kind": "chain", "prompt_tokens": 300, "cached_tokens": 100,
        "prompt_ms": 80.0, "timing_source": "json",
    }  # fmt: skip
    times = {
        "send_ns": send_ms * 10**6, "first_token_ns": (send_ms + 100) * 10**6, "last_token_ns": (send_ms + 500) * 10**6,
        "end_ns": (send_ms + 510) * 10**6, "chunk_gaps_ms": (100.0, 300.0),
    }  # fmt: skip
    return TurnRecord(
        conversation="c",
        index=0,
        bucket=bucket,
        order=0,
        counters=TurnCounters(**{**figures, **counters}),
        exchange=Exchange(turn_index=0, **{**times, **(exchange or {})}),
        prompt_sha256="p",
        text_sha256="t",
        warmup=warmup,
        invalid_reason=invalid_reason,
    )


def test_every_figure_of_one_turn() -> None:
    seen = {name: figure.value for name, figure in turn_figures(record()).items()}
    assert seen == pytest.approx({
        "decode_tps": 100.0,  # 40 tokens in 0.4 s
        "api_tps": 41 / 0.51,
        "prefill_tps": 2500.0,  # 300 − 100 tokens in 0.08 s
        "ttft_ms": 100.0,
        "tpot_ms": 10.0,  # 400 ms over 40 intervals
        "chunk_gap_ms": 200.0,
        "acceptance_length": 2.5,
        "draft_acceptance_rate": 0.1,
        "step_ms": 25.0,  # 400 ms over 16 steps
    })  # fmt: skip


def test_sources_say_whose_clock_it_was() -> None:
    figures = turn_figures(record(timing_source="log"))
    assert {name: figure.source for name, figure in figures.items()} == {
        "decode_tps": "log", "prefill_tps": "log", "acceptance_length": "log", "draft_acceptance_rate": "log",
        "step_ms": "log", "api_tps": "client", "ttft_ms": "client", "tpot_ms": "client", "chunk_gap_ms": "client",
    }  # fmt: skip
    pooled = pooled_figures([record(timing_source="log"), record(timing_source="json")])
    assert pooled["decode_tps"].source == "json+log"


def test_units_are_those_of_the_vocabulary() -> None:
    assert {name: figure.unit for name, figure in pooled_figures([record()]).items()} == {
        name: metrics.METRIC[name].unit for name in SOURCES
    }


def test_pooled_is_sum_over_sum() -> None:
    # 40 tokens in 400 ms and 40 in 1600 ms: 80 in 2 s = 40 tok/s; the mean of the rates would be 62.5
    slow = record(send_ms=1000, decode_ms=1600.0, verify_steps=40)
    pooled = pooled_figures([record(), slow])
    assert pooled["decode_tps"].value == pytest.approx(40.0)
    assert pooled["acceptance_length"].value == pytest.approx(80 / 56)
    assert pooled["acceptance_length_macro"].value == pytest.approx((2.5 + 1.0) / 2)
    assert pooled["api_tps"].value == pytest.approx(82 / 1.02)
    assert pooled["wall_tps"].value == pytest.approx(82 / 1.51)  # from 0 to 1510 ms
    assert pooled["decode_tps"].n == 2


def test_both_means_of_the_acceptance_length_have_a_name() -> None:
    # one step of 9 tokens, and nine steps of 1: 18 tokens in 10 steps, or the mean of 9 and 1
    pooled = pooled_figures([record(decode_tokens=9, verify_steps=1), record(decode_tokens=9, verify_steps=9)])
    assert pooled["acceptance_length"].value == pytest.approx(1.8)
    assert pooled["acceptance_length_macro"].value == pytest.approx(5.0)


def test_a_long_wait_for_the_first_token_is_no_slow_decoding() -> None:
    # 9 s of prefill, then 10 tokens in 1 s: decoding runs at 10 tok/s, the whole request at 1
    figures = turn_figures(
        record(
            output_tokens=10, decode_tokens=10, decode_ms=1000.0,
            exchange={"send_ns": 0, "first_token_ns": 9 * 10**9, "last_token_ns": 10**10, "end_ns": 10**10},
        )
    )  # fmt: skip
    assert figures["decode_tps"].value == pytest.approx(10.0)
    assert figures["api_tps"].value == pytest.approx(1.0)
    assert figures["ttft_ms"].value == pytest.approx(9000.0)


def test_only_counted_turns_are_pooled() -> None:
    turns = [record(), record(warmup=True, decode_ms=1.0), record(invalid_reason="truncated", decode_ms=1.0)]
    assert pooled_figures(turns)["decode_tps"].value == pytest.approx(100.0)
    assert pooled_figures(turns)["decode_tps"].n == 1
    nothing = pooled_figures(turns[1:])["wall_tps"]
    assert (nothing.value, nothing.n, nothing.why_not) == (None, 0, "no turn counts")


def test_buckets_in_the_order_they_occur() -> None:
    turns = [record(bucket="prose"), record(bucket="code", decode_ms=800.0), record(bucket="prose", warmup=True)]
    seen = bucket_figures(turns)
    assert list(seen) == ["prose", "code"]
    assert [seen[name]["decode_tps"].value for name in seen] == pytest.approx([100.0, 50.0])
    assert "wall_tps" not in seen["code"]


@pytest.mark.parametrize(
    ("metric", "counters", "reason"),
    [
        ("decode_tps", {"decode_ms": None}, "no decode-only time"),
        ("decode_tps", {"decode_tokens": None}, "no token count"),
        ("api_tps", {"output_tokens": None}, "no token count"),
        ("prefill_tps", {"cached_tokens": None}, "from its cache"),
        ("prefill_tps", {"cached_tokens": 290}, "fewer than 16 prompt tokens"),
        ("acceptance_length", {"verify_steps": None}, "no count of verify steps"),
        ("acceptance_length", {"verify_steps": 0}, "denominator is zero"),
        ("draft_acceptance_rate", {"draft_tokens": None}, "no count of drafted tokens"),
        ("tpot_ms", {"output_tokens": 1}, "fewer than two output tokens"),
        ("ttft_ms", {"exchange": {"first_token_ns": None}}, "no text came back"),
        ("chunk_gap_ms", {"exchange": {"chunk_gaps_ms": ()}}, "one chunk"),
    ],
)  # fmt: skip
def test_an_empty_figure_says_why(metric: str, counters: dict[str, Any], reason: str) -> None:
    figure = turn_figures(record(**counters))[metric]
    assert figure.value is None
    assert figure.source is None
    assert figure.why_not is not None
    assert reason in figure.why_not


def test_one_turn_without_a_count_leaves_the_pool_empty_and_says_how_many() -> None:
    figure = pooled_figures([record(), record(verify_steps=None)])["acceptance_length"]
    assert figure.value is None
    assert figure.why_not is not None
    assert figure.why_not.endswith("(1 of 2 turns)")


def test_rates_of_different_kinds_are_not_pooled() -> None:
    figure = pooled_figures([record(), record(acceptance_kind="tree_nodes")])["draft_acceptance_rate"]
    assert (figure.value, figure.why_not) == (None, "turns count drafted tokens differently")


def test_a_printed_step_time_goes_before_decode_time() -> None:
    printed = record(stages=(StageTime(name="step_ms", total_ms=320.0),))
    assert turn_figures(printed)["step_ms"].value == pytest.approx(20.0)
    # where one turn prints none, all use decode time: (400 + 400) / 32
    assert pooled_figures([printed, record()])["step_ms"].value == pytest.approx(25.0)
