"""Keep, discard, undecided; claims of imported logs; source changes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.ledger import claims, keep_discard, source_changes, steps
from dflash_sweep.records import Measurement, VerdictStatus
from fakes.trial_tables import no_turns, noisy, study, table, trial


def repeated(
    rng: np.random.Generator, speeds: list[tuple[int, float, int]], sd: float = 0.02
) -> list[dict[str, object]]:
    """(budget, speed, runs) in order."""
    rows: list[dict[str, object]] = []
    for budget, speed, runs in speeds:
        for _ in range(runs):
            rows.append(trial(len(rows), tps=noisy(rng, speed, sd), knobs={"budget": budget}))
    return rows


def test_each_setting_is_judged_against_the_incumbent_of_the_moment() -> None:
    rng = np.random.default_rng(0)
    rows = repeated(rng, [(8, 100, 3), (16, 130, 3), (24, 131, 3), (32, 90, 3)])
    rows.append(trial(99, tps=None, knobs={"budget": 64}, failure_kind="out_of_memory"))
    found = steps(gather(table(rows), no_turns(), study()))
    assert [step.decision for step in found] == ["first", "keep", "undecided", "discard", "crash"]


def test_the_counts_sum_up_to_the_settings() -> None:
    rng = np.random.default_rng(0)
    rows = repeated(rng, [(8, 100, 3), (16, 130, 3), (24, 131, 3), (32, 90, 3)])
    rows.append(trial(98, tps=None, knobs={"budget": 48}, failure_kind="pruned"))
    rows.append(trial(99, tps=None, knobs={"budget": 64}, failure_kind="out_of_memory"))
    (verdict,) = keep_discard(gather(table(rows), no_turns(), study()))
    settings, counts = re.search(r"of (\d+) settings .*?: (.*)\.", verdict.statement).groups()  # type: ignore[union-attr]
    assert "1 first incumbent, 1 keep, 1 discard, 1 stopped early, 1 undecided, 1 crash" in counts
    assert sum(map(int, re.findall(r"\d+", counts))) == int(settings) == 6


def test_nothing_is_kept_on_a_single_run() -> None:
    rng = np.random.default_rng(1)
    rows = repeated(rng, [(8, 100, 5), (16, 150, 1)])
    assert [step.decision for step in steps(gather(table(rows), no_turns(), study()))] == ["first", "undecided"]


def imported(rows: list[dict[str, object]]) -> object:
    for row in rows:
        row["measurement"] = "imported"
    return gather(table(rows), no_turns(), study(measurement=Measurement.IMPORTED))


def test_a_keep_inside_the_noise_does_not_survive() -> None:
    rng = np.random.default_rng(2)
    rows = repeated(rng, [(8, 100, 4), (16, 103, 1), (24, 160, 2)], sd=0.03)
    for i, row in enumerate(rows):
        row["status_claimed"] = "keep" if i in (0, 4, 5) else "discard"
        row["label"] = f"run {i + 1}"
    evidence = imported(rows)
    first, small, large = claims(evidence)  # type: ignore[arg-type]
    assert first.against is None
    assert (small.survives, small.replicated) == (False, False)
    assert (large.survives, large.replicated) == (True, True)
    verdict = next(v for v in keep_discard(evidence) if v.subject == "claims")  # type: ignore[arg-type]
    assert verdict.status is VerdictStatus.DOES_NOT_HOLD
    assert "Survive: run 6" in verdict.statement


def test_a_repeat_that_was_kept_is_no_improvement() -> None:
    rng = np.random.default_rng(3)
    rows = repeated(rng, [(8, 100, 4)])
    for row in rows:
        row["status_claimed"] = "keep"
    found = claims(imported(rows))  # type: ignore[arg-type]
    assert [claim.survives for claim in found] == [True, False, False, False]
    assert "a repeat is no improvement" in found[1].why


def test_source_changes_are_compared_with_no_change() -> None:
    rng = np.random.default_rng(4)
    rows = repeated(rng, [(8, 100, 8)], sd=0.02)
    rows += [
        trial(20 + i, tps=tps, knobs={"budget": 8, "mark": None}, build=f"patch {i}")
        for i, tps in enumerate([101, 60, 99])
    ]
    rows += [trial(30, tps=100, knobs={"budget": 99}, build="patch 9")]
    found = source_changes(gather(table(rows), no_turns(), study()))
    assert [change.told_apart for change in found] == [False, True, False, False]
    assert found[3].ratio is None  # no unchanged run of its setting
    verdict = next(v for v in keep_discard(gather(table(rows), no_turns(), study())) if v.subject == "source changes")
    assert "Of 3 runs with changed source 2 cannot be told apart" in verdict.statement


def test_the_confirm_decision_is_reported_first() -> None:
    rng = np.random.default_rng(5)
    rows: list[dict[str, Any]] = []
    for block in range(4):
        for number, speed in ((0, 100), (1, 60)):
            knobs = {"budget": number}
            rows.append(
                trial(
                    len(rows), tps=noisy(rng, speed, 0.01), knobs=knobs, candidate=number, role="confirm", repeat=block
                )
            )
        rows.append(trial(len(rows), tps=noisy(rng, 50, 0.01), speculative=False, role="confirm", repeat=block))
    verdict = keep_discard(gather(table(rows), no_turns(), study(config={"protocol": {"confirm_blocks": 4}})))[0]
    assert verdict.subject == "winner"
    assert verdict.status is VerdictStatus.HOLDS
    assert verdict.details["winner"] == 0
    assert verdict.ci_low is not None
    assert verdict.ci_low > 1.8
