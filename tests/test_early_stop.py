"""A running trial that is surely worse than the best so far is ended; throttling is marked, or tried again."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep import engines, telemetry, trial, turn_marks, watch
from dflash_sweep.errors import FailureKind
from dflash_sweep.evidence import TrialFiles
from dflash_sweep.payload import build_payload, prompt_sha256
from dflash_sweep.records import Device, PruneRule, ReplayPolicy, TrialResult, TrialSpec, TurnCost
from fakes import fake_engine

# The fake server decodes 40 tokens after the first in 800 ms in every turn: 20 ms a token.


@pytest.fixture(autouse=True)
def _fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.REGISTRY, "fake", fake_engine.REGISTERED)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(watch, "INTERVAL_S", 0.02)


def spec_against(folder: Path, best_ms: float, *, device: str = fake_engine.CPU.name, **changes: Any) -> TrialSpec:
    """A trial of ten turns against a best candidate with that many ms per token; turn 0 is cold."""
    spec = fake_engine.spec(folder, turns=10, **changes)
    turns = tuple(
        TurnCost(
            conversation=turn.conversation, index=turn.index, cost=best_ms, source="json",
            prompt_sha256=prompt_sha256(build_payload(turn, spec.policy, {}, {})),
        )
        for turn in spec.trace.turns[1:]
    )  # fmt: skip
    rule = PruneRule(
        candidate=4, device=device, objective="decode_tps", turns=turns, margin=0.2, alpha=0.05, min_turns=6
    )
    return replace(spec, prune=(rule,))


def played(result: TrialResult) -> int:
    return sum(not turn.warmup for turn in result.turns)


def test_a_trial_half_as_fast_is_ended_and_its_turns_are_kept(tmp_path: Path) -> None:
    result = trial.run_trial(spec_against(tmp_path, 10.0), fake_engine.CPU)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.PRUNED
    assert result.failure.kind.is_repeatable
    assert not result.failure.kind.is_infrastructure
    # nine pairs: looks from the 6th on (2^-6 = 0.0156 < the first share 0.05·ln(1 + 1.718/4) = 0.0179): turns 0 to 6
    assert played(result) == 7
    assert result.failure.message.startswith(
        "stopped early after 7 of 10 turns: worse than candidate 4: 100.0 % more time over 6 of 9 paired turns"
    )
    assert len(TrialFiles(tmp_path / "t1").turns.read_text().splitlines()) == 8  # the warm-up is kept as well


@pytest.mark.parametrize("best_ms", [17.0, 20.0, 30.0])
def test_a_trial_that_may_be_as_good_is_played_to_its_end(tmp_path: Path, best_ms: float) -> None:
    result = trial.run_trial(spec_against(tmp_path, best_ms), fake_engine.CPU)
    assert result.failure is None
    assert played(result) == 10


def test_a_rule_of_another_device_or_another_kind_of_replay_is_not_followed(tmp_path: Path) -> None:
    other = spec_against(tmp_path, 10.0, device="Another card", uid="a")
    free = spec_against(tmp_path, 10.0, uid="b", policy=ReplayPolicy(max_tokens=64, mode="free_running"))
    for spec in (other, free):
        assert trial.run_trial(spec, fake_engine.CPU).failure is None


def test_a_log_that_cannot_be_read_yet_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse = fake_engine.FakeEngine.parse_trial

    def parse_whole(engine: Any, exchanges: Any, log: bytes) -> Any:
        if len(exchanges) == 1:
            raise KeyError("half a line")
        return parse(engine, exchanges, log)

    monkeypatch.setattr(fake_engine.FakeEngine, "parse_trial", parse_whole)
    assert trial.run_trial(spec_against(tmp_path, 10.0), fake_engine.CPU).failure is None


def test_the_server_of_a_trial_that_was_stopped_early_is_kept(tmp_path: Path) -> None:
    policy = ReplayPolicy(max_tokens=64, turn_timeout_s=20.0, fresh_server=False)
    bench = trial.Bench(fake_engine.CPU)
    try:
        stopped = bench.run(spec_against(tmp_path, 10.0, uid="a", policy=policy))
        after = bench.run(fake_engine.spec(tmp_path, uid="b", policy=policy))
    finally:
        bench.close()
    assert stopped.failure is not None
    assert stopped.failure.kind is FailureKind.PRUNED
    assert after.failure is None
    assert after.load_s is None  # nothing was loaded for it


# ---------------------------------------------------------------- throttling


class HotReader:
    """A card that names heat from its `after`-th reading on."""

    def __init__(self, after: int = 0) -> None:
        self._left = after

    def read(self) -> telemetry.Sample:
        self._left -= 1
        reasons = 0x40 if self._left < 0 else 0  # HwThermalSlowdown
        return telemetry.Sample(
            time_ns=time.monotonic_ns(), throttle_reasons=reasons, sm_clock_mhz=1200.0, temperature_c=93.0,
            utilisation_percent=99.0,
        )  # fmt: skip


@pytest.fixture
def hot_card(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(telemetry, "reader_for", lambda *_: HotReader())
    sampler = telemetry.Sampler
    monkeypatch.setattr(telemetry, "Sampler", lambda reader: sampler(reader, interval_s=0.002))
    return fake_engine.CPU


def test_a_throttled_trial_is_marked_in_its_turns_and_counts(tmp_path: Path, hot_card: Device) -> None:
    result = trial.run_trial(fake_engine.spec(tmp_path, "slow:0.02"), hot_card)
    assert result.failure is None
    assert result.telemetry.throttled is True
    marked = [turn_marks.THROTTLED in turn.counters.flags for turn in result.turns if not turn.warmup]
    assert all(marked)
    assert {turn.invalid_reason for turn in result.turns} == {None}


def test_a_throttled_trial_can_be_tried_again(tmp_path: Path, hot_card: Device) -> None:
    result = trial.run_trial(fake_engine.spec(tmp_path, "slow:0.02", retry_throttled=True), hot_card)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.THROTTLED
    assert result.failure.kind.is_transient
    assert result.failure.message == ("the device slowed down during the run (SM clock 1200 to 1200 MHz), up to 93 °C")
    assert played(result) == 3


def test_a_card_that_slowed_down_is_not_taken_for_a_slow_setting(tmp_path: Path, hot_card: Device) -> None:
    spec = replace(spec_against(tmp_path, 10.0), retry_throttled=True)
    result = trial.run_trial(replace(spec, engine=replace(spec.engine, options={"behaviour": "slow:0.02"})), hot_card)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.THROTTLED


def test_slow_moments_are_those_that_the_card_names_or_that_a_busy_clock_shows() -> None:
    def sample(at: int, **fields: Any) -> telemetry.Sample:
        return telemetry.Sample(time_ns=at, **fields)

    assert telemetry.slow_moments([sample(1), sample(2)]) is None
    assert telemetry.slow_moments([sample(1, throttle_reasons=0)]) == ()
    assert telemetry.slow_moments([sample(1, throttle_reasons=0x8), sample(2, throttle_reasons=0x4)]) == (1,)
    busy = {"utilisation_percent": 90.0}
    clocks = [sample(1, sm_clock_mhz=2000.0, **busy), sample(2, sm_clock_mhz=1500.0, **busy)]
    assert telemetry.slow_moments([*clocks, sample(3, sm_clock_mhz=300.0, utilisation_percent=0.0)]) == (2,)
