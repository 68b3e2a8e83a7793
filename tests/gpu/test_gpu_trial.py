"""On a real GPU (`pytest -m gpu`): which card a server gets, what NVML tells of it, and that its memory comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from dflash_sweep import engines, environment, telemetry, trial
from dflash_sweep.records import Device
from fakes import fake_engine

HELD_MIB = 2048
GPUS = environment.gpus()

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="there is no GPU here")]


@pytest.fixture(autouse=True)
def _fake_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.REGISTRY, "fake", fake_engine.REGISTERED)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_cards_are_listed_with_their_names_and_state() -> None:
    for device in GPUS:
        assert device.uuid is not None
        assert device.uuid.startswith("GPU-")
        assert device.memory_mib is not None
        state = environment.gpu_state(device)
        assert state["driver"]
        assert state["cuda"]
        assert state["sm_clock_mhz"] is None or state["sm_clock_mhz"] > 0


@pytest.mark.parametrize("device", GPUS, ids=lambda device: f"card{device.index}")
def test_a_trial_holds_reads_and_frees_its_own_card(device: Device, tmp_path: Path) -> None:
    reader = telemetry.NvmlReader(device)
    before_mib = reader.read().memory_mib
    result = trial.run_trial(fake_engine.spec(tmp_path, f"gpu:{HELD_MIB}"), device)
    assert result.failure is None
    assert f"card {device.uuid} of 1" in (tmp_path / "t1" / "server.log").read_text()
    after_mib = reader.read().memory_mib
    summary = result.telemetry
    print(device, summary, result.environment["gpu"], before_mib, after_mib)  # noqa: T201 (a report for whoever runs this)
    assert summary.samples >= 5
    assert summary.peak_memory_mib is not None
    assert before_mib is not None
    assert after_mib is not None
    assert summary.peak_memory_mib >= before_mib + HELD_MIB
    assert after_mib <= before_mib + 64
    if summary.mean_power_w is not None and summary.energy_j is not None:
        # three answers of at least 0.5 s, and no more than the whole trial
        assert result.wall_s is not None
        assert summary.mean_power_w * 1.0 < summary.energy_j < summary.mean_power_w * result.wall_s * 2
    assert summary.max_sm_clock_mhz is None or summary.max_sm_clock_mhz > 0
    assert summary.throttled in (None, False, True)
