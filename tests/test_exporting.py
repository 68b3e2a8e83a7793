"""Exports: METRIC lines, a log that can be imported again, tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from dflash_sweep import exporting, importing
from dflash_sweep.errors import ConfigError, FailureKind
from dflash_sweep.records import Device, Failure, Knobs, Measurement, Role, StoredTrial, StudyInfo, TrialResult
from fakes.builders import make_turn

STUDY = StudyInfo(name="mine", engine="emulator", measurement=Measurement.EMULATED)
PI_METRIC = re.compile(r"^METRIC ([\w.µ]+)=(\S+)$", re.ASCII)  # what readers of such lines accept


def stored(
    number: int, tps: float | None, knobs: Knobs | None = None, kind: FailureKind = FailureKind.OUT_OF_MEMORY
) -> StoredTrial:
    """One trial of 100 tokens at `tps`; knobs None = plain decoding; tps None = a failure of `kind`."""
    uid = f"mine/{number}"
    failure = Failure(kind=kind, message=str(kind).replace("_", " ")) if tps is None else None
    turns = () if tps is None else (make_turn(0, tokens=100, decode_ms=100_000 / tps, steps=40),)
    return StoredTrial(
        uid=uid, study="mine", number=number, role=Role.BASELINE if knobs is None else Role.SEARCH,
        candidate=None if knobs is None else number, repeat=0, attempt=0, speculative=knobs is not None,
        knobs=knobs or {}, engine="emulator", build="1", trace_name="t", trace_sha256="0", comparability_key="k",
        result=TrialResult(
            uid=uid, measurement=Measurement.EMULATED, clock="virtual", failure=failure, turns=turns,
            device=Device(kind="emulated", index=0, name="card"), started_utc="2026-05-01T10:00:00+00:00",
        ),
    )  # fmt: skip


TRIALS = [
    stored(0, 40.0), stored(1, 40.4), stored(2, 80.0, {"budget": 22, "chain_seed": True, "cache_type_k": "q8_0"}),
    stored(3, 80.8, {"budget": 22, "chain_seed": True, "cache_type_k": "q8_0"}),
    stored(4, 60.0, {"budget": 8, "chain_seed": False, "cache_type_k": None}), stored(5, None, {"budget": 64}),
]  # fmt: skip


def test_metric_lines_are_read_by_an_agent_loop() -> None:
    lines = exporting.metric_lines(TRIALS, STUDY)
    found = {match.group(1): float(match.group(2)) for line in lines if (match := PI_METRIC.match(line))}
    assert len(found) == len(lines)
    assert lines[0].startswith("METRIC decode_tps=")
    assert found["decode_tps"] == pytest.approx((80.0 * 80.8) ** 0.5)
    assert found["speedup"] == pytest.approx(2.0, rel=0.01)
    assert found["speedup_low"] < 2.0 < found["speedup_high"]
    assert found["failed_runs"] == 1
    assert found["runs"] == 2
    lucky = exporting.metric_lines([*TRIALS, stored(6, 95.0, {"budget": 40})], STUDY)
    assert lucky[0] == lines[0]  # one lucky run is not reported while others were repeated
    assert found["plain_decode_tps"] == pytest.approx((40.0 * 40.4) ** 0.5)


def test_nothing_is_said_about_what_was_not_measured() -> None:
    assert exporting.metric_lines([], STUDY) == ("METRIC failed_runs=0",)
    assert exporting.metric_lines([stored(0, None, {"budget": 1})], STUDY) == ("METRIC failed_runs=1",)


def test_a_run_that_was_stopped_early_did_not_fail() -> None:
    stopped = stored(6, None, {"budget": 4}, FailureKind.PRUNED)
    assert "METRIC failed_runs=1" in exporting.metric_lines([*TRIALS, stopped], STUDY)


@pytest.mark.parametrize(
    ("name", "value"), [("a b", 1.0), ("", 1.0), ("x-y", 1.0), ("ok", float("nan")), ("ok", float("inf"))]
)
def test_lines_that_would_be_dropped_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError):
        exporting.metric_line(name, value)


def test_the_log_comes_back_as_the_same_study(tmp_path: Path) -> None:
    path = exporting.write_log(tmp_path / "log.jsonl", TRIALS, STUDY)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["bestDirection"] == "higher"
    assert [line["status"] for line in lines[1:]] == ["keep", "keep", "keep", "keep", "discard", "crash"]
    assert lines[5]["asi"]["decision"] in ("discard", "undecided")
    back = importing.read(path)
    assert [trial.speculative for trial in back.trials] == [trial.speculative for trial in TRIALS]
    for ours, theirs in zip(TRIALS, back.trials, strict=True):
        assert theirs.knobs == {k: v for k, v in ours.knobs.items() if v is not None}
        assert (theirs.result.failure is None) == (ours.result.failure is None)
    assert back.trials[5].result.failure is not None
    assert back.trials[5].result.failure.kind is FailureKind.OUT_OF_MEMORY
    turn = back.trials[2].result.turns[0].counters
    assert turn.decode_ms == pytest.approx(1250.0)  # 100 tokens at 80 tok/s


def test_tables_hold_every_row(tmp_path: Path) -> None:
    table = pd.read_csv(exporting.write_rows(tmp_path / "out" / "results.csv", TRIALS))
    parquet = pd.read_parquet(exporting.write_rows(tmp_path / "results.parquet", TRIALS))
    assert list(table["uid"]) == list(parquet["uid"]) == [trial.uid for trial in TRIALS]
    assert table["decode_tps"].notna().sum() == 5
    assert parquet["knob.budget"].tolist()[2] == 22
    turns = pd.read_parquet(exporting.write_rows(tmp_path / "turns.parquet", TRIALS, turns=True))
    assert len(turns) == 5
    with pytest.raises(ConfigError, match=r"\.csv or \.parquet"):
        exporting.write_rows(tmp_path / "rows.xlsx", TRIALS)
