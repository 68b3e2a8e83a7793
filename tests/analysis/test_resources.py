"""Memory, accounting, prefill share, host cost, stages, drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dflash_sweep.analysis.accounting import accounting, host_cost, prefill_share
from dflash_sweep.analysis.drift import drift
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.memory import memory
from dflash_sweep.analysis.stages import stage_attribution
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, noisy, study, table, trial, turn, turns


def oom(number: int, mib: float | None = None, **knobs: object) -> dict[str, object]:
    message = f"out of memory: {mib} MiB" if mib else "out of memory"
    return trial(number, tps=None, knobs=knobs, failure_kind="out_of_memory", failure_message=message)


def test_what_does_not_fit_is_named_by_its_knobs() -> None:
    rows = [oom(i, fast=True, n_ctx=65536, budget=8 + i) for i in range(6)]
    rows += [trial(10 + i, knobs={"fast": True, "n_ctx": 32768, "budget": 8 + i}) for i in range(4)]
    rows += [trial(20 + i, knobs={"fast": False, "n_ctx": 65536, "budget": 8 + i}) for i in range(6)]
    verdict = memory(gather(table(rows), no_turns(), study()))[0]
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.details["terms"] == {"fast": "true", "n_ctx": "65536"}
    assert verdict.value == 1.0
    assert "6 of 6 runs" in verdict.statement


def test_failures_without_a_pattern_are_not_explained() -> None:
    rng = np.random.default_rng(0)
    rows = [oom(i, a=int(rng.integers(3)), b=int(rng.integers(3))) for i in range(3)]
    rows += [trial(10 + i, knobs={"a": i % 3, "b": i // 3 % 3}) for i in range(12)]
    verdict = memory(gather(table(rows), no_turns(), study()))[0]
    assert verdict.status is VerdictStatus.NOT_ENOUGH_DATA


def test_amounts_in_messages_give_memory_per_unit() -> None:
    # 77.625 MiB per node: 8 → 621, 14 → 1086.75, 22 → 1707.75; 1739 belongs to something else
    rows = [
        oom(i, mib, budget=b) for i, (b, mib) in enumerate([(8, 621.0), (14, 1086.75), (22, 1707.75), (22, 1739.0)])
    ]
    rows += [trial(10 + i, knobs={"budget": 4}) for i in range(4)]
    found = [v for v in memory(gather(table(rows), no_turns(), study())) if "tree node" in v.subject]
    assert found[0].value == pytest.approx(77.625)
    assert found[0].n == 3


def test_peak_memory_follows_a_knob() -> None:
    rng = np.random.default_rng(1)
    rows = [
        trial(
            i, knobs={"budget": 8 + i, "threads": 1 + i % 3}, peak_memory_mib=9000 + 77.6 * (8 + i) + rng.normal(0, 5)
        )
        for i in range(16)
    ]
    found = [v for v in memory(gather(table(rows), no_turns(), study())) if v.subject == "peak_memory_mib per budget"]
    assert found[0].ci_low is not None
    assert found[0].ci_high is not None
    assert found[0].ci_low < 77.6 < found[0].ci_high


def test_memory_of_settings_that_cannot_be_told_apart_is_not_explained() -> None:
    # Two settings that differ in everything, four runs of each: no knob can be named
    pair = [{"budget": 8, "kv": "f16", "seed": True}, {"budget": 32, "kv": "q4_0", "seed": False}]
    rows = [trial(i, knobs=pair[i % 2], peak_memory_mib=9000.0 + 500 * (i % 2)) for i in range(8)]
    (verdict,) = memory(gather(table(rows), no_turns(), study()))
    assert verdict.status is VerdictStatus.NOT_ENOUGH_DATA


def test_memory_that_no_knob_explains_is_still_known() -> None:
    def said(rows: list[dict[str, object]]) -> str:
        (verdict,) = memory(gather(table(rows), no_turns(), study()))
        assert verdict.status is VerdictStatus.NOT_ENOUGH_DATA
        return verdict.statement

    few = [trial(i, knobs={"budget": 8 + i}, peak_memory_mib=9000.0 + i) for i in range(3)]
    assert said(few) == (
        "No run ran out of memory. "
        "Memory was recorded in 3 runs (peak_memory_mib), but these show no knob that moves it."
    )
    logged = [trial(i, knobs={"budget": 8 + i}, **{"memory.kv": 800.0}) for i in range(8)]
    assert "recorded in 8 runs (memory.kv)" in said(logged)
    assert said([trial(0, knobs={"budget": 8})]) == "No run ran out of memory and no memory figure was recorded."
    unstated = [row | {"setting_note": "as before"} for row in (oom(0, budget=8), oom(1, budget=9))]
    assert said([*unstated, trial(2, knobs={"budget": 8}, setting_note=None)]) == (
        "2 runs ran out of memory, but none of them states its whole setting. No memory figure was recorded."
    )


def stages(number: int, draft: float, verify: float, left: float, **fields: Any) -> dict[str, object]:
    step = draft + verify + left
    return trial(number, tps=2500 / step, draft_ms=draft, verify_ms=verify, **fields)


def test_time_in_no_stage_is_flagged() -> None:
    rows = [stages(i, 10, 30, 0.1, knobs={"budget": 8}) for i in range(5)]
    assert accounting(gather(table(rows), no_turns(), study()))[0].status is VerdictStatus.HOLDS
    rows.append(stages(9, 10, 20, 10, knobs={"budget": 8}, label="run 9"))
    verdict = accounting(gather(table(rows), no_turns(), study()))[0]
    assert verdict.status is VerdictStatus.DOES_NOT_HOLD
    assert verdict.details["flagged"] == ["run 9"]  # 10 of 40 ms are in no stage
    assert verdict.details["largest"] == pytest.approx(0.25)


def test_stage_attribution_gives_share_and_amdahl() -> None:
    rng = np.random.default_rng(2)
    rows = [stages(i, noisy(rng, 30, 0.01), noisy(rng, 10, 0.01), 0.0, knobs={"budget": 8}) for i in range(4)]
    draft, verify = stage_attribution(gather(table(rows), no_turns(), study()))
    assert (draft.subject, verify.subject) == ("draft_ms", "verify_ms")
    assert draft.value == pytest.approx(0.75, abs=0.01)
    # 2.5 tokens in 40 ms = 62.5 tok/s; half of the drafting gone: 25 ms = 100 tok/s; all of it: 10 ms = 250 tok/s
    assert draft.details["halved_tps"] == pytest.approx(100, rel=0.02)
    assert draft.details["removed_tps"] == pytest.approx(250, rel=0.03)
    assert draft.statement.startswith("draft_ms: 30.")
    assert "ms a step of candidate 0," in draft.statement
    single = stage_attribution(gather(table(rows[:1]), no_turns(), study()))[0]
    assert single.status is VerdictStatus.NOT_ENOUGH_DATA


def test_sentences_are_about_the_best_finalist_not_the_most_measured_setting() -> None:
    often = [stages(i, 30, 10, 0.0, knobs={"budget": 8}, candidate=1) for i in range(6)]
    fast = [stages(10 + i, 20, 10, 0.0, knobs={"budget": 16}, candidate=2, role="confirm") for i in range(2)]
    slow = [stages(20 + i, 25, 10, 0.0, knobs={"budget": 22}, candidate=3, role="confirm") for i in range(3)]
    draft, _ = stage_attribution(gather(table([*often, *slow, *fast]), no_turns(), study()))
    assert "of candidate 2," in draft.statement
    assert draft.details["ms_per_step"] == pytest.approx(20.0)


def test_prefill_bounds_what_decode_tuning_can_bring() -> None:
    rows = [trial(i, tps=100, knobs={"budget": 8}, prompt_ms=30_000.0 + i) for i in range(4)]
    (verdict,) = prefill_share(gather(table(rows), no_turns(), study()))
    # decode takes 10,000 ms: 30 of 40 s are prompt, so at most 4/3 as fast
    assert verdict.value == pytest.approx(0.75, abs=0.001)
    assert "at most 1.3 times" in verdict.statement
    assert verdict.status is VerdictStatus.HOLDS


def test_a_slow_accept_walk_in_tool_calls_is_a_host_cost() -> None:
    rows = [trial(i, tps=100, knobs={"budget": 8}, accept_ms=8.0, draft_ms=10.0) for i in range(3)]
    counted = turns(
        [
            turn(f"s/{i}", bucket=b, accept_ms=ms + 0.1 * i)
            for i in range(3)
            for b, ms in (("tool_call", 48), ("code", 1))
        ]
    )
    (verdict,) = host_cost(gather(table(rows), counted, study()))
    assert verdict.status is VerdictStatus.HOLDS  # 8 of 25 ms
    assert "grammar" in verdict.statement


def test_a_drift_is_seen_in_repeats_only() -> None:
    rng = np.random.default_rng(3)
    steady = [trial(i, tps=noisy(rng, 100, 0.01), knobs={"budget": 8 + i % 2}) for i in range(20)]
    assert drift(gather(table(steady), no_turns(), study()))[0].status is VerdictStatus.DOES_NOT_HOLD
    falling = [trial(i, tps=noisy(rng, 100 * 0.99**i, 0.01), knobs={"budget": 8 + i % 2}) for i in range(20)]
    (verdict,) = drift(gather(table(falling), no_turns(), study()))
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.value == pytest.approx(0.99**19, abs=0.02)
    search = [trial(i, tps=100 * 0.99**i, knobs={"budget": i}) for i in range(20)]  # other settings: no sign of drift
    assert drift(gather(table(search), no_turns(), study()))[0].status is VerdictStatus.NOT_ENOUGH_DATA
