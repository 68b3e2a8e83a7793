"""What the published autoresearch log says, judged from its rows alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest

from dflash_sweep import frames, importing
from dflash_sweep.analysis.verdicts import judge
from dflash_sweep.importing import Imported
from dflash_sweep.records import Measurement, Verdict, VerdictStatus

DATA = Path(str(resources.files("dflash_sweep"))) / "data"
HOLDS, FAILS, UNKNOWN = VerdictStatus.HOLDS, VerdictStatus.DOES_NOT_HOLD, VerdictStatus.NOT_ENOUGH_DATA


def verdicts_of(found: Imported) -> tuple[Verdict, ...]:
    return judge(frames.trial_frame(found.trials), frames.turn_frame(found.trials), found.study)


@pytest.fixture(scope="module")
def log() -> Imported:
    return importing.read(DATA / "castle-runs-001-113.jsonl", study="castle")


@pytest.fixture(scope="module")
def verdicts(log: Imported) -> tuple[Verdict, ...]:
    return verdicts_of(log)


def one(verdicts: Sequence[Verdict], verdict_id: str, subject: str) -> Verdict:
    (found,) = [v for v in verdicts if v.id == verdict_id and v.subject.startswith(subject)]
    return found


def test_every_run_is_imported_and_marked(log: Imported) -> None:
    runs = [trial for trial in log.trials if trial.speculative]
    assert len(runs) == 113
    assert {trial.result.measurement for trial in log.trials} == {Measurement.IMPORTED}
    assert log.coverage.usable == 95
    assert log.coverage.failed == {"out_of_memory": 13, "launch_failed": 2, "invalid_config": 2, "output_mismatch": 1}
    assert any("run(s) 3" in note for note in log.coverage.notes)  # its metric was end to end
    run = next(trial for trial in runs if trial.label == "run 54")
    assert run.status_claimed == "keep"
    assert run.knobs["budget"] == 32
    assert run.result.environment["provenance"]["budget"] == "asi"
    assert run.result.environment["provenance"]["n_ctx"] == "default"


def test_the_csv_tells_the_same(log: Imported) -> None:
    table = importing.read(DATA / "castle-runs-001-113.csv", study="castle")
    assert len(table.trials) == len(log.trials)
    for left, right in zip(table.trials, log.trials, strict=True):
        assert left.knobs == right.knobs
        assert (left.result.failure is None) == (right.result.failure is None)
        assert [turn.counters for turn in left.result.turns] == [turn.counters for turn in right.result.turns]


def test_no_setting_can_beat_plain_decoding(verdicts: tuple[Verdict, ...]) -> None:
    bound = verdicts[0]
    assert bound.id == "structural_bound"
    assert bound.status is HOLDS
    assert bound.subject == "exact_ms"
    cost, low, high = bound.details["ms_per_token"]
    assert low < 24.78 < high  # plain decoding by three remarks: 24.79, 24.74, 24.81 ms
    assert cost == pytest.approx(24.7, abs=0.15)
    assert bound.details["plain_ms_per_token"][0] == pytest.approx(24.78, abs=0.005)
    even = one(verdicts, "break_even", "budget=32")
    assert even.status is FAILS
    assert even.ci_high is not None
    assert even.ci_high < 0.3


def test_the_window(verdicts: tuple[Verdict, ...]) -> None:
    spot = one(verdicts, "sweet_spot", "target_feat_ctx")
    assert spot.status is HOLDS
    assert spot.ci_low is not None
    assert spot.ci_high is not None
    assert spot.ci_low <= 128 <= spot.ci_high < 1024
    _, low, high = spot.details["worse"]["1024"]
    assert high < 0.85
    assert low > 0.6


def test_budgets_above_32_bring_nothing(verdicts: tuple[Verdict, ...]) -> None:
    found = one(verdicts, "saturation", "budget")
    assert found.status is HOLDS
    assert found.details["knee"] <= 32
    assert found.details["compared_with"] == "32"
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.ci_low < 1 < found.ci_high


def test_the_proposal_temperature(verdicts: tuple[Verdict, ...]) -> None:
    spot = one(verdicts, "sweet_spot", "proposal_temp")
    assert spot.status is HOLDS
    assert (spot.ci_low, spot.ci_high) == (0.68, 1.0)
    for values, (ratio, _, high) in spot.details["worse"].items():
        assert ratio < 1, values
        assert high < 1, values
    assert set(spot.details["worse"]) == {"1e-06", "0.5, 0.625"}


def test_dead_and_undecided_axes(verdicts: tuple[Verdict, ...]) -> None:
    for axis in ("cache_type_k", "n_batch", "n_ubatch"):
        assert one(verdicts, "dead_axis", axis).status is HOLDS, axis
    assert one(verdicts, "dead_axis", "n_ctx").status is UNKNOWN


def test_source_changes_and_claims(verdicts: tuple[Verdict, ...]) -> None:
    changes = one(verdicts, "keep_discard", "source changes")
    assert "Of 9 runs with changed source 8 cannot be told apart from no change; 1 can" in changes.statement
    assert changes.details["largest"] == "run 45"
    claims = one(verdicts, "keep_discard", "claims")
    lost = {claim["row"] for claim in claims.details["claims"] if not claim["survives"]}
    assert {"run 18", "run 54", "run 82", "run 87", "run 105"} <= lost
    replicated = {claim["row"] for claim in claims.details["claims"] if claim["replicated"]}
    assert "run 87" in replicated
    assert "run 81" not in replicated


def test_memory(verdicts: tuple[Verdict, ...]) -> None:
    fits = one(verdicts, "memory", "fast_rollback")
    assert fits.details["terms"] == {"fast_rollback": "true", "n_ctx": "65536", "n_batch": "512"}
    assert "24 GB" in fits.statement
    assert "draft_gpu_layers=3" in fits.statement  # run 29 is the exception
    nodes = one(verdicts, "memory", "MiB per tree node")
    assert nodes.value == pytest.approx(77.625)
    assert nodes.n >= 3


def test_noise_and_the_runs_two_percent_needs(verdicts: tuple[Verdict, ...]) -> None:
    noise = one(verdicts, "noise", "repeats")
    assert noise.value == pytest.approx(0.0475, abs=0.0005)
    assert noise.details["runs_needed"]["2 %"] == 92
    assert "9 times gave 9.94 to 11.92" in noise.statement


def test_the_rows_alone_are_enough_without_the_facts_beside_them(tmp_path: Path) -> None:
    # One byte more: no longer the shipped file, so nothing but its rows is known
    copy = tmp_path / "log.jsonl"
    copy.write_text((DATA / "castle-runs-001-113.jsonl").read_text(encoding="utf-8") + "\n", encoding="utf-8")
    found = importing.read(copy)
    assert not any("outside the rows" in note for note in found.coverage.notes)
    judged = verdicts_of(found)
    assert one(judged, "structural_bound", "exact_ms").status is HOLDS
    spot = one(judged, "sweet_spot", "target_feat_ctx")
    assert spot.ci_low is not None
    assert spot.ci_high is not None
    assert spot.ci_low <= 128 <= spot.ci_high < 1024
    assert one(judged, "keep_discard", "source changes").details["largest"] == "run 45"
    assert one(judged, "memory", "MiB per tree node").value == pytest.approx(77.625)


def test_prose_alone_tells_no_axes_apart(tmp_path: Path) -> None:
    # Without the structured field a row says only what it changed: what else was in force is not known
    bare = tmp_path / "log.jsonl"
    lines = [json.loads(line) for line in (DATA / "castle-runs-001-113.jsonl").read_text(encoding="utf-8").splitlines()]
    bare.write_text("\n".join(json.dumps({k: v for k, v in line.items() if k != "asi"}) for line in lines))
    judged = verdicts_of(importing.read(bare))
    assert one(judged, "structural_bound", "exact_ms").status is HOLDS  # needs no settings
    for verdict_id in ("dead_axis", "sweet_spot", "saturation", "noise", "break_even"):
        assert {v.status for v in judged if v.id == verdict_id} == {UNKNOWN}, verdict_id
    assert "do not state their whole setting" in one(judged, "dead_axis", "all axes").statement


def test_import_and_judgement_are_quick() -> None:
    started = time.process_time()
    verdicts_of(importing.read(DATA / "castle-runs-001-113.jsonl"))
    assert time.process_time() - started < 10  # CPU time: other work on the machine does not count
