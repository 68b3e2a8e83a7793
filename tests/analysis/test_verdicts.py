"""All verdicts together: every id, whatever the rows; and no claims where nothing is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_sweep.analysis.confirm import decide
from dflash_sweep.analysis.summary import candidate_table
from dflash_sweep.analysis.verdicts import VERDICT_IDS, judge
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import VerdictStatus
from fakes.trial_tables import no_turns, study, table, trial, turn, turns

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "false_claims.py"


@pytest.fixture(scope="module")
def false_claims() -> ModuleType:
    spec = importlib.util.spec_from_file_location("false_claims", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["false_claims"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [trial(0, knobs={"budget": 8})],
        [trial(0, speculative=False)],
        [trial(i, tps=None, failure_kind="crashed", failure_message=None) for i in range(5)],
        [trial(i, tps=0.0, knobs={"budget": i}) for i in range(5)],
        [trial(i, tps=100.0, knobs={"budget": 8}) for i in range(6)],  # no scatter at all
        [trial(i, tps=None, decode_tokens=None) for i in range(3)],
        [trial(i, tps=10.0, role="confirm", candidate=None, repeat=i) for i in range(3)],
    ],
    ids=["empty", "one", "one plain", "all failed", "all zero", "no scatter", "no figures", "confirm without names"],
)
def test_odd_tables_give_words_not_errors(rows: list[dict[str, Any]]) -> None:
    found = judge(table(rows), no_turns(), study())
    assert {verdict.id for verdict in found} == set(VERDICT_IDS)
    for verdict in found:
        assert verdict.statement
        if verdict.n < 2 and verdict.id not in ("keep_discard",):
            assert verdict.status is not VerdictStatus.HOLDS, verdict


def test_verdicts_that_say_nothing_come_last() -> None:
    rows = [trial(i, tps=50.0 + i % 3, speculative=False) for i in range(3)]
    rows += [trial(10 + i, tps=90.0 + i % 4, knobs={"budget": 8 + 8 * (i % 3)}) for i in range(12)]
    found = judge(table(rows), no_turns(), study())
    silent = [verdict.status is VerdictStatus.NOT_ENOUGH_DATA for verdict in found]
    assert silent == sorted(silent)
    said = [VERDICT_IDS.index(v.id) for v in found if v.status is not VerdictStatus.NOT_ENOUGH_DATA]
    assert said == sorted(said)


def test_rows_of_another_kind_of_measurement_are_left_out() -> None:
    rows = [trial(i, tps=50.0 + i % 3, speculative=False) for i in range(3)]
    rows += [trial(10 + i, tps=500.0, knobs={"budget": 8}, measurement="imported") for i in range(4)]
    found = {verdict.id: verdict for verdict in judge(table(rows), no_turns(), study())}
    assert found["break_even"].status is VerdictStatus.NOT_ENOUGH_DATA


FIGURE = st.one_of(st.none(), st.just(0.0), st.just(float("nan")), st.floats(1e-3, 1e5))
ROW = st.fixed_dictionaries(
    {
        "tps": FIGURE,
        "verify_steps": st.one_of(st.none(), st.integers(0, 1000)),
        "role": st.sampled_from(["baseline", "calibrate", "search", "canary", "confirm", "rerun"]),
        "candidate": st.one_of(st.none(), st.integers(0, 3)),
        "repeat": st.integers(0, 3),
        "speculative": st.booleans(),
        "failure_kind": st.one_of(st.none(), st.none(), st.sampled_from([str(kind) for kind in FailureKind])),
        "failure_message": st.one_of(st.none(), st.just("out of memory 12.5 MiB"), st.text(max_size=10)),
        "step_ms": FIGURE,
        "draft_ms": FIGURE,
        "exact_ms": FIGURE,
        "prompt_ms": FIGURE,
        "peak_memory_mib": FIGURE,
        "accepted_draft_tokens": st.one_of(st.none(), st.integers(0, 5000)),
        "comparability_key": st.sampled_from(["k", "k", "other"]),
        "build": st.sampled_from(["1", "1", "2"]),
        "status_claimed": st.sampled_from([None, "keep", "discard", "odd"]),
    }
)
KNOBS = st.fixed_dictionaries(
    {
        "budget": st.sampled_from([None, 8, 16, 22.0, 40]),
        "top_k": st.sampled_from([None, 1, 4, True, "auto"]),
        "chain_seed": st.sampled_from([None, True, False]),
    }
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(ROW, KNOBS), max_size=24), st.sampled_from(["maximize", "minimize"]))
def test_no_table_makes_the_verdicts_fail(rows: list[tuple[dict[str, Any], dict[str, Any]]], direction: str) -> None:
    made = []
    for number, (fields, knobs) in enumerate(rows):
        figures = dict(fields)
        tps = figures.pop("tps")
        row = trial(number, tps=None, knobs=knobs)
        made.append({**row, **figures, "decode_tps": tps, "decode_ms": 1e6 / tps if tps else None})
    frame = table(made)
    counted = turns(
        [
            turn(f"s/{i}", acceptance_histogram={0: 3, 2: 1}, accept_ms=1.0, prompt_sha256=str(i % 2))
            for i in range(len(made))
        ]
    )
    found = judge(frame, counted, study(direction=direction))
    assert {verdict.id for verdict in found} == set(VERDICT_IDS)
    candidate_table(frame)
    decide(frame, direction=direction, planned_blocks=4)


@pytest.mark.slow
def test_null_studies_seldom_hold_a_claim(false_claims: ModuleType) -> None:
    with_claim, kinds = false_claims.count(5, seed=5)
    assert with_claim <= 2, kinds  # P(X > 2) at 5 % is 0.1 %; the benchmark counts 200
