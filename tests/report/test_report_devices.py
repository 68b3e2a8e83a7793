"""Reports of studies that ran on devices of several names: what each decided, nothing pooled."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Device, Failure, Role, StoredTrial
from dflash_sweep.report import settings_table, timeline
from dflash_sweep.report.answer import answer
from dflash_sweep.report.failures import failure_blocks
from dflash_sweep.report.material import collect
from dflash_sweep.report.texts import texts_for

Builder = Callable[..., Any]
EN, ZH = texts_for("en"), texts_for("zh")


def blocks_on(runs: Any, speeds: dict[str, dict[int, float]], blocks: int = 4) -> list[StoredTrial]:
    """Interleaved blocks on each device: device → candidate → verify time, ms; plain decoding in each."""
    make, plain_run = runs
    rng, rows = random.Random(5), list[StoredTrial]()
    for block in range(blocks):
        for place, (name, own) in enumerate(speeds.items()):
            where = {
                "role": Role.CONFIRM, "repeat": block * len(speeds) + place, "comparability_key": f"k {name}",
                "device": Device(kind="gpu", index=place, name=name, uuid=f"GPU-{place}"),
            }  # fmt: skip
            for candidate, verify_ms in own.items():
                knobs = {"target_feat_ctx": 64, "budget": 32, "proposal_temp": 0.7, "top_k": candidate}
                fields = {"turns": 2, "verify_ms": verify_ms, "candidate": candidate, **where}
                rows.append(make(rng, len(rows), knobs, **fields))
            rows.append(plain_run(rng, len(rows), turns=2, **where))
    return rows


def test_two_cards_that_disagree_are_told_apart(build_study: Builder, build_runs: Any) -> None:
    rows = blocks_on(build_runs, {"Small card": {1: 6.0, 2: 12.0}, "Big card": {1: 12.0, 2: 6.0}})
    material = collect(build_study(), rows, ())
    found = answer(material, EN)
    assert found.outcome == "tie"
    assert not found.is_advice
    assert found.value is None
    assert found.speedup is None
    assert "On Small card: Winner: candidate 1" in found.statement
    assert "On Big card: Winner: candidate 2" in found.statement
    assert len(found.numbers) == len(rows)
    chinese = answer(material, ZH).statement
    assert "在 Small card 上：胜出者" in chinese
    assert "Winner" not in chinese


def test_two_cards_that_agree_have_a_winner(build_study: Builder, build_runs: Any) -> None:
    rows = blocks_on(build_runs, {"Small card": {1: 6.0, 2: 12.0}, "Big card": {1: 5.0, 2: 9.0}})
    found = answer(collect(build_study(confirmed_candidate=1), rows, ()), EN)
    assert found.outcome == "winner"
    assert found.is_advice
    assert found.run is not None
    assert found.run.number == 1


@pytest.mark.parametrize("kind", [FailureKind.PRUNED, FailureKind.CRASHED])
def test_an_early_stop_is_told_apart_from_a_failure(build_study: Builder, build_runs: Any, kind: FailureKind) -> None:
    make, _ = build_runs
    knobs = {"target_feat_ctx": 64, "budget": 8, "proposal_temp": 0.7}
    good = make(random.Random(1), 0, knobs, turns=2)
    ended = make(random.Random(1), 1, knobs, turns=1)
    failure = Failure(kind=kind, message="stopped early after 8 of 13 turns: worse than candidate 0")
    ended = replace(ended, result=replace(ended.result, failure=failure))
    material = collect(build_study(), [good, ended], ())
    text = str(failure_blocks(material, EN, "measured"))
    assert ("No run failed, of 2" in text) is (kind is FailureKind.PRUNED)
    assert ("1 search runs were stopped early" in text) is (kind is FailureKind.PRUNED)
    bars = timeline.spans(material)
    assert bars["stopped"].tolist() == [False, kind is FailureKind.PRUNED]
    assert bars["failed"].tolist() == [False, kind is not FailureKind.PRUNED]


@pytest.mark.parametrize("kind", [FailureKind.PRUNED, FailureKind.CRASHED])
def test_a_candidate_does_not_fail_by_an_early_stop(build_study: Builder, build_runs: Any, kind: FailureKind) -> None:
    make, _ = build_runs
    knobs = {"target_feat_ctx": 64, "budget": 8, "proposal_temp": 0.7}
    good, ended = (replace(make(random.Random(1), number, knobs, turns=1), candidate=0) for number in (0, 1))
    ended = replace(ended, result=replace(ended.result, failure=Failure(kind=kind, message="why")))
    (found,) = collect(build_study(), [good, ended], ()).everyone
    assert found.n_failed == int(kind is FailureKind.CRASHED)


def test_throttled_runs_are_named(build_study: Builder, build_runs: Any) -> None:
    make, _ = build_runs
    rows = [
        make(random.Random(1), number, {"target_feat_ctx": 64, "budget": 8, "proposal_temp": 0.7}, turns=2)
        for number in range(3)
    ]
    hot = replace(rows[1].result, telemetry=replace(rows[1].result.telemetry, throttled=True))
    material = collect(build_study(), [rows[0], replace(rows[1], result=hot), rows[2]], ())
    text = str(failure_blocks(material, EN, "measured"))
    assert "1 runs were measured while the device slowed down" in text
    assert "slowed down" not in str(failure_blocks(collect(build_study(), rows, ()), EN, "measured"))


def test_finalists_are_in_the_table_however_many_single_runs_look_better(build_study: Builder, build_runs: Any) -> None:
    make, _ = build_runs
    rows = blocks_on(build_runs, {"Card": {1: 9.0, 2: 9.5}})
    card = {"comparability_key": "k Card", "device": rows[0].result.device}
    rows += [
        make(random.Random(1), len(rows) + number, {"target_feat_ctx": 64, "budget": 8, "proposal_temp": 0.1 * number},
             turns=2, verify_ms=4.0 + 0.1 * number, candidate=10 + number, role=Role.SEARCH, **card)
        for number in range(10)
    ]  # fmt: skip
    material = collect(build_study(), rows, ())
    assert {entry.number for entry in material.finalists} == {1, 2}
    shown = [entry.number for entry in settings_table.chosen(material)]
    assert {1, 2, None} <= set(shown)
    assert len(shown) == settings_table.MAX_ROWS + 1


def test_an_answer_cites_the_confirm_rows_that_it_rests_on(build_study: Builder, build_runs: Any) -> None:
    """Held-out turns are another trace: the rows of a candidate's search run are not those that the blocks are."""
    make, plain_run = build_runs
    rows = blocks_on(build_runs, {"Card": {1: 9.0, 2: 9.2, 3: 14.0}})
    card = {"device": rows[0].result.device, "comparability_key": "k Card"}
    unseen = [replace(row, trace_sha256="1" * 64, comparability_key="k unseen") for row in rows]
    knobs = {"target_feat_ctx": 64, "budget": 32, "proposal_temp": 0.7}
    first = [
        make(
            random.Random(2),
            100 + number,
            {**knobs, "top_k": number},
            turns=2,
            candidate=number,
            role=Role.SEARCH,
            **card,
        )
        for number in (1, 2, 3)
    ]
    plain = [plain_run(random.Random(3), 110 + number, turns=2, role=Role.BASELINE, **card) for number in range(2)]
    found = answer(collect(build_study(), [*plain, *first, *unseen], ()), EN)
    roles = {row.number: row for row in unseen}
    assert found.numbers
    assert set(found.numbers) <= set(roles)
    assert {roles[number].candidate for number in found.numbers if roles[number].speculative} <= {1, 2}
