"""Structural bound, break-even and oracle gate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dflash_sweep.analysis.bound import per_token, structural_bound
from dflash_sweep.analysis.breakeven import break_even, oracle_gate
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.records import AxisInfo, VerdictStatus
from fakes.trial_tables import no_turns, noisy, study, table, trial, turn, turns

PLAIN_MS = 25.0


def plain_rows(rng: np.random.Generator, sd: float = 0.005) -> list[dict[str, object]]:
    return [trial(900 + i, tps=noisy(rng, 1000 / PLAIN_MS, sd), speculative=False) for i in range(3)]


def spec_rows(
    rng: np.random.Generator, per_token_ms: float, fixed_ms: float, runs: int = 8, **stage: str
) -> list[dict[str, object]]:
    """Steps of 2 to 5 tokens: stage time = per_token_ms · tokens (+ fixed drafting)."""
    name = stage.get("name", "exact_ms")
    rows = []
    for i in range(runs):
        steps = (500, 400, 250, 200)[i % 4]
        length = 1000 / steps
        exact, draft = noisy(rng, per_token_ms * length, 0.005), noisy(rng, fixed_ms, 0.02)
        step = exact + draft
        rows.append(
            trial(
                i,
                tps=1000 * length / step,
                knobs={"budget": 8 + i % 4},
                verify_steps=steps,
                draft_ms=draft,
                **{name: exact},
            )
        )
    return rows


def judge_bound(rows: list[dict[str, object]], *axes: AxisInfo) -> object:
    return structural_bound(gather(table(rows), no_turns(), study(*axes)))[0]


def test_a_decode_per_committed_token_can_never_win() -> None:
    rng = np.random.default_rng(0)
    verdict = structural_bound(gather(table(plain_rows(rng) + spec_rows(rng, PLAIN_MS, 30)), no_turns(), study()))[0]
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.subject == "exact_ms"
    assert verdict.value == pytest.approx(40.0, rel=0.01)  # 1000 / 25: plain decoding's own speed
    assert "one plain decode" in verdict.statement
    assert verdict.details["slope"][0] == pytest.approx(25.0, rel=0.03)


def test_a_cheap_batched_verifier_is_not_bounded() -> None:
    rng = np.random.default_rng(1)
    rows = plain_rows(rng) + spec_rows(rng, 3.0, 30, name="verify_ms")
    verdict = structural_bound(gather(table(rows), no_turns(), study()))[0]
    assert verdict.status is VerdictStatus.DOES_NOT_HOLD


def test_a_verify_time_that_does_not_follow_the_tokens_is_no_bound() -> None:
    rng = np.random.default_rng(2)
    rows = plain_rows(rng)
    for i in range(12):
        steps = (500, 400, 250, 200)[i % 4]
        verify = noisy(rng, 60, 0.03)
        rows.append(
            trial(i, tps=1000 * (1000 / steps) / (verify + 20), verify_steps=steps, verify_ms=verify, draft_ms=20.0)
        )
    verdict = structural_bound(gather(table(rows), no_turns(), study()))[0]
    assert verdict.status is VerdictStatus.DOES_NOT_HOLD
    assert per_token(table(rows[3:]), "verify_ms") is None


def test_five_trials_are_enough_where_the_stage_is_sequential_by_definition() -> None:
    rng = np.random.default_rng(3)
    rows = plain_rows(rng) + [
        trial(
            i,
            tps=1000 * 2.5 / 190,
            knobs={"budget": 22},
            exact_ms=noisy(rng, 62.5, 0.005),
            draft_ms=127.0,
            step_ms=190.0,
        )
        for i in range(2)
    ]
    verdict = structural_bound(gather(table(rows), no_turns(), study()))[0]
    assert verdict.status is VerdictStatus.HOLDS


def test_another_way_of_verifying_must_be_tried_before_the_space_is_closed() -> None:
    rng = np.random.default_rng(8)
    rows = [{**row, "knob.verifier": "exact"} for row in plain_rows(rng) + spec_rows(rng, PLAIN_MS, 30)]
    axis = AxisInfo(name="verifier", kind="choice", values=("exact", "trusted"))
    (open_,) = structural_bound(gather(table(rows), no_turns(), study(axis)))
    assert open_.status is VerdictStatus.NOT_ENOUGH_DATA
    assert "verifier=trusted may verify in another way" in open_.statement
    slow = [trial(50 + i, tps=8.0, knobs={"verifier": "trusted"}, verify_ms=200.0) for i in range(2)]
    (closed,) = structural_bound(gather(table(rows + slow), no_turns(), study(axis)))
    assert closed.status is VerdictStatus.HOLDS
    assert "2 runs without exact_ms verify in another way" in closed.statement
    fast = [trial(50 + i, tps=38.0, knobs={"verifier": "trusted"}, verify_ms=30.0) for i in range(2)]
    (near,) = structural_bound(gather(table(rows + fast), no_turns(), study(axis)))
    assert near.status is VerdictStatus.NOT_ENOUGH_DATA


@pytest.mark.parametrize("missing", ["plain", "spec", "stages"])
def test_what_is_missing_is_said(missing: str) -> None:
    rng = np.random.default_rng(4)
    rows = [] if missing == "plain" else plain_rows(rng)
    rows += [] if missing == "spec" else spec_rows(rng, 25, 30)
    frame = table(rows)
    if missing == "stages":
        frame[["exact_ms", "draft_ms"]] = None
    verdict = structural_bound(gather(frame, no_turns(), study()))[0]
    assert verdict.status is not VerdictStatus.HOLDS
    assert verdict.statement


def test_break_even_compares_tokens_per_step_with_step_over_plain() -> None:
    rng = np.random.default_rng(5)
    rows = plain_rows(rng) + [trial(i, tps=noisy(rng, 80, 0.005), knobs={"budget": 22}, candidate=3) for i in range(4)]
    (verdict,) = break_even(gather(table(rows), no_turns(), study()))
    # 2.5 tokens a step at 80 tok/s: 31.25 ms a step; plain 25 ms: it needs 1.25 tokens and yields 2.5: twice as fast
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.details["needed_length"] == pytest.approx(1.25, rel=0.02)
    assert verdict.ci_low is not None
    assert verdict.ci_high is not None
    assert verdict.ci_low < 2.0 < verdict.ci_high


def test_break_even_never_rests_on_single_runs() -> None:
    rng = np.random.default_rng(6)
    rows = plain_rows(rng) + [trial(i, tps=80, knobs={"budget": i}) for i in range(4)]
    assert break_even(gather(table(rows), no_turns(), study()))[0].status is VerdictStatus.NOT_ENOUGH_DATA
    assert break_even(gather(table(rows[3:]), no_turns(), study()))[0].status is VerdictStatus.NOT_ENOUGH_DATA


def test_the_oracle_switches_off_what_does_not_pay() -> None:
    rng = np.random.default_rng(7)
    rows = plain_rows(rng, 0.001)
    histogram = {0: 200, 3: 200}  # half of the steps yield 1 token, half 4
    rows += [trial(i, tps=25.0, knobs={"budget": 22}, step_ms=75.0, verify_steps=400) for i in range(3)]
    frame: pd.DataFrame = table(rows)
    counted = turns([turn(f"s/{i}", acceptance_histogram=histogram) for i in range(3)])
    (verdict,) = oracle_gate(gather(frame, counted, study()))
    # a step pays if tokens · 25 ms ≥ 75 ms: only those with 4 tokens, half of them. Gate: 200 · 25 + 200 · 75 ms for
    # 1,000 tokens = 50 tok/s, 1.25 times plain
    assert verdict.value == pytest.approx(50.0, rel=0.01)
    assert verdict.details["share_of_steps"] == pytest.approx(0.5)
    assert verdict.details["times_plain"] == pytest.approx(1.25, rel=0.01)
    assert verdict.status is VerdictStatus.HOLDS
