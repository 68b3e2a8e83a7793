"""Device readings: what a card tells, what it does not, and how a trial's readings become one summary."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import telemetry
from dflash_sweep.records import Device
from dflash_sweep.telemetry import Sample, summarise
from fakes.fake_nvml import BIG, FakeNvml

GPU = Device(kind="gpu", index=0, name="Big Card", uuid=BIG["uuid"])
CPU = Device(kind="cpu", index=0, name="CPU")
SECOND = 1_000_000_000


def samples(*rows: dict[str, Any]) -> list[Sample]:
    """One sample a second, starting at 0."""
    return [Sample(time_ns=index * SECOND, **row) for index, row in enumerate(rows)]


# ---------------------------------------------------------------- reading


def test_a_card_that_tells_everything() -> None:
    sample = telemetry.NvmlReader(GPU, FakeNvml(BIG)).read()
    assert replace(sample, time_ns=0) == Sample(
        time_ns=0,
        memory_mib=500.0,
        power_w=300.0,
        energy_mj=1_000_000.0,
        temperature_c=61.0,
        sm_clock_mhz=1900.0,
        memory_clock_mhz=9500.0,
        utilisation_percent=97.0,
        throttle_reasons=0,
    )


def test_memory_the_driver_reserves_is_not_counted_where_it_tells() -> None:
    card = BIG | {"reserved_mib": 615}
    assert telemetry.NvmlReader(GPU, FakeNvml(card)).read().memory_mib == 500.0
    assert telemetry.NvmlReader(GPU, FakeNvml(card | {"old_driver": True})).read().memory_mib == 1115.0


def test_a_query_that_is_not_supported_is_empty_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(BIG | {"power_mw": None, "energy_mj": None})
    reader = telemetry.NvmlReader(GPU, nvml)
    with caplog.at_level(logging.WARNING):
        first, second = reader.read(), reader.read()
    assert first.power_w is None
    assert second.power_w is None
    assert second.temperature_c == 61.0
    assert nvml.asked.count("power_mw") == 1
    assert len([record for record in caplog.records if "power" in record.message]) == 1


def test_without_nvml_a_run_goes_on_with_empty_figures(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        reader = telemetry.reader_for(GPU, list, FakeNvml(usable=False))
    sample = reader.read()
    assert sample == Sample(time_ns=sample.time_ns)
    assert len(caplog.records) == 1
    assert "Driver Not Loaded" in caplog.text
    summary = summarise([sample, sample])
    assert summary.samples == 2
    assert summary.throttled is None
    assert summary.energy_j is None


def test_a_card_is_found_by_its_uuid_not_by_its_place() -> None:
    """NVML counts by PCI bus, CUDA by speed: the id decides which card is read."""
    slow = {"uuid": "GPU-aaaa", "memory_mib": 8192, "power_mw": 90_000}
    reader = telemetry.NvmlReader(replace(GPU, index=0), FakeNvml(slow, BIG))
    assert reader.read().power_w == 300.0


def test_a_cpu_is_read_through_its_server_processes() -> None:
    own = psutil.Process(os.getpid())
    reader = telemetry.reader_for(CPU, lambda: [own])
    first = reader.read()
    assert first.memory_mib == pytest.approx(own.memory_info().rss / (1 << 20), rel=0.2)
    assert first.cpu_percent is None  # a share needs two readings
    goal = sum(own.cpu_times()[:2]) + 0.03
    while sum(own.cpu_times()[:2]) < goal:
        pass
    second = reader.read()
    assert second.cpu_percent is not None
    assert second.cpu_percent > 0
    assert second.power_w is None


def test_an_emulated_card_has_no_readings() -> None:
    """Its process's memory is no figure of the card it stands for."""
    card = Device(kind="emulated", index=0, name="rtx4090")
    sample = telemetry.reader_for(card, lambda: [psutil.Process()]).read()
    assert sample == Sample(time_ns=sample.time_ns)


def test_processes_that_have_ended_are_unknown_not_zero() -> None:
    assert telemetry.ProcessReader(list).read().memory_mib is None


# ---------------------------------------------------------------- sampling


class Counting:
    """Gives samples until told to fail; `enough` is set after the third."""

    def __init__(self, fail_at: int = 10**9) -> None:
        self.count, self.fail_at, self.enough = 0, fail_at, threading.Event()

    def read(self) -> Sample:
        self.count += 1
        if self.count >= 3:
            self.enough.set()
        if self.count >= self.fail_at:
            raise RuntimeError("the card has gone")
        return Sample(time_ns=self.count)


def test_the_sampler_reads_beside_the_block() -> None:
    reader = Counting()
    with telemetry.Sampler(reader, interval_s=0.001) as sampler:
        assert reader.enough.wait(10)
    taken = len(sampler.samples)
    assert taken >= 3
    assert [sample.time_ns for sample in sampler.samples] == list(range(1, taken + 1))


def test_even_a_short_block_has_a_first_and_a_last_reading() -> None:
    with telemetry.Sampler(Counting(), interval_s=60) as sampler:
        pass
    assert len(sampler.samples) == 2


def test_a_reading_that_fails_ends_the_readings_not_the_trial(caplog: pytest.LogCaptureFixture) -> None:
    reader = Counting(fail_at=3)
    with telemetry.Sampler(reader, interval_s=0.001) as sampler:
        assert reader.enough.wait(10)
    assert len(sampler.samples) == 2
    assert "reading failed" in caplog.text


# ---------------------------------------------------------------- the summary


def test_summary_of_three_seconds() -> None:
    rows = samples(
        {"memory_mib": 100.0, "power_w": 100.0, "temperature_c": 50.0, "sm_clock_mhz": 1900.0},
        {"memory_mib": 300.0, "power_w": 200.0, "temperature_c": 60.0, "sm_clock_mhz": 1850.0},
        {"memory_mib": 200.0, "power_w": 300.0, "temperature_c": 55.0, "sm_clock_mhz": 1900.0},
    )
    summary = summarise(rows)
    assert summary.samples == 3
    assert summary.peak_memory_mib == 300.0
    assert summary.mean_power_w == pytest.approx(200.0)
    assert summary.energy_j == pytest.approx(400.0)  # 1 s at (100+200)/2 W and 1 s at (200+300)/2 W: 150 + 250
    assert summary.max_temperature_c == 60.0
    assert (summary.min_sm_clock_mhz, summary.max_sm_clock_mhz) == (1850.0, 1900.0)
    assert summary.throttled is False


def test_the_cards_own_energy_counter_is_preferred() -> None:
    rows = samples({"energy_mj": 5_000.0, "power_w": 100.0}, {"energy_mj": 12_000.0, "power_w": 100.0})
    assert summarise(rows).energy_j == pytest.approx(7.0)  # (12000 − 5000) mJ


def test_a_counter_that_went_back_is_not_used() -> None:
    rows = samples({"energy_mj": 5_000.0, "power_w": 100.0}, {"energy_mj": 10.0, "power_w": 100.0})
    assert summarise(rows).energy_j == pytest.approx(100.0)


def test_only_readings_of_the_measured_time_count() -> None:
    rows = samples({"power_w": 10.0}, {"power_w": 200.0}, {"power_w": 220.0}, {"power_w": 10.0})
    summary = summarise(rows, 1 * SECOND, 2 * SECOND)
    assert summary.samples == 2
    assert summary.mean_power_w == pytest.approx(210.0)


def test_nothing_read_is_nothing_known() -> None:
    summary = summarise([])
    assert (summary.samples, summary.throttled, summary.energy_j, summary.peak_memory_mib) == (0, None, None, None)


@pytest.mark.parametrize(
    ("rows", "throttled"),
    [
        ([{"sm_clock_mhz": 1900.0}, {"sm_clock_mhz": 1100.0}], True),  # 1100 < 0.8 · 1900 = 1520
        ([{"sm_clock_mhz": 1900.0}, {"sm_clock_mhz": 1600.0}], False),
        ([{"memory_clock_mhz": 9500.0}, {"memory_clock_mhz": 5000.0}], True),
        # an idle card clocks down: that is no throttling
        ([{"sm_clock_mhz": 1900.0}, {"sm_clock_mhz": 210.0, "utilisation_percent": 0.0}], False),
        ([{"sm_clock_mhz": 1900.0, "throttle_reasons": 0}, {"sm_clock_mhz": 210.0, "throttle_reasons": 1}], False),
        ([{"sm_clock_mhz": 1900.0, "throttle_reasons": 0x40}], True),  # heat, by the card's own word
        ([{"sm_clock_mhz": 1900.0, "throttle_reasons": 0x4}], False),  # a power cap that did not slow it down
        ([{"throttle_reasons": 0x4}], False),
        ([{"power_w": 100.0}], None),
    ],
)  # fmt: skip
def test_throttled(rows: Sequence[dict[str, Any]], throttled: bool | None) -> None:
    assert summarise(samples(*rows)).throttled is throttled


def test_a_card_slow_from_beginning_to_end_keeps_all_its_samples() -> None:
    """A filter on slow samples would leave an empty table; ours marks, and drops nothing."""
    rows = samples(*[{"sm_clock_mhz": 300.0, "throttle_reasons": 0x8}] * 5)
    summary = summarise(rows)
    assert summary.samples == 5
    assert summary.throttled is True
    assert summary.max_sm_clock_mhz == 300.0


@given(st.lists(st.floats(0, 700), min_size=2, max_size=30))
def test_energy_lies_between_least_and_most_power(power: list[float]) -> None:
    energy = summarise(samples(*[{"power_w": value} for value in power])).energy_j
    seconds = len(power) - 1
    assert energy is not None
    assert min(power) * seconds - 1e-6 <= energy <= max(power) * seconds + 1e-6
