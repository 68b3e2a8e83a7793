"""Device readings beside a trial: NVML for GPUs, the server's own processes for the rest. Imports `records` only.

A reading that a device does not offer is None, and is not asked for again; it never stops a trial. Energy comes from
the card's own counter where it has one, else from the power readings; nothing here is estimated.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import pynvml

from dflash_sweep.records import Device, TelemetrySummary

INTERVAL_S = 0.2

GPU_IDLE = 0x1
HARD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80
"""NVML clocks-event reasons that mean heat or a hardware limit: HwSlowdown, SwThermalSlowdown, HwThermalSlowdown,
HwPowerBrakeSlowdown (NVML API reference, nvmlClocksEventReasons). A software power cap is normal on a card with a low
limit; it counts only if the clocks really fell."""

CLOCK_DROP = 0.8
"""A busy clock below this share of the highest busy clock of the same trial means that the card slowed down."""

BUSY_PERCENT = 50.0

_LOG = logging.getLogger(__name__)
_MIB = float(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading. `time_ns` is of the client's monotonic clock; `energy_mj` is the card's running counter."""

    time_ns: int
    memory_mib: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    utilisation_percent: float | None = None
    throttle_reasons: int | None = None
    cpu_percent: float | None = None


class Reader(Protocol):
    """Takes one reading now."""

    def read(self) -> Sample: ...


def used_memory_mib(nvml: Any, handle: Any) -> float:
    """Memory in use by programs. The first form of the query counts what the driver reserves too (some hundred MiB)."""
    with contextlib.suppress(nvml.NVMLError):
        return float(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used) / _MIB
    return float(nvml.nvmlDeviceGetMemoryInfo(handle).used) / _MIB


class NvmlReader:
    """Readings of one GPU. `nvml` is the pynvml module or what stands in for it in a test."""

    def __init__(self, device: Device, nvml: Any = pynvml) -> None:
        """Raises nvml.NVMLError where the driver or the device cannot be reached."""
        self._nvml = nvml
        nvml.nvmlInit()
        by_index = nvml.nvmlDeviceGetHandleByIndex
        self._handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid) if device.uuid else by_index(device.index)
        self._unsupported: set[str] = set()

    def _ask(self, name: str, query: Callable[[], float]) -> float | None:
        if name in self._unsupported:
            return None
        try:
            return float(query())
        except self._nvml.NVMLError as error:
            self._unsupported.add(name)
            _LOG.warning("telemetry: this device does not tell its %s (%s); left empty", name, error)
            return None

    def read(self) -> Sample:
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("throttle reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return Sample(
            time_ns=time.monotonic_ns(),
            memory_mib=self._ask("memory", lambda: used_memory_mib(nvml, handle)),
            power_w=self._ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0),
            energy_mj=self._ask("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            temperature_c=self._ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, 0)),
            sm_clock_mhz=self._ask("SM clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=self._ask(
                "memory clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
            ),
            utilisation_percent=self._ask("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            throttle_reasons=None if reasons is None else int(reasons),
        )


class ProcessReader:
    """Resident memory and CPU use of a server's processes, for engines that compute on the CPU."""

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]]) -> None:
        self._processes = processes
        self._last: tuple[int, float] | None = None

    def read(self) -> Sample:
        now, rss, cpu_s, seen = time.monotonic_ns(), 0.0, 0.0, False
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                rss += process.memory_info().rss / _MIB
                cpu_s += times.user + times.system
                seen = True
        percent = None
        if seen and self._last is not None and now > self._last[0]:
            percent = 100e9 * (cpu_s - self._last[1]) / (now - self._last[0])
        self._last = (now, cpu_s) if seen else None
        return Sample(time_ns=now, memory_mib=rss if seen else None, cpu_percent=percent)


def reader_for(device: Device, processes: Callable[[], Iterable[psutil.Process]], nvml: Any = pynvml) -> Reader:
    """What can be read on this device: a GPU by NVML, this CPU by the server's processes, an emulated card not at all.

    A GPU whose NVML cannot be reached costs one warning; its figures stay empty, since the memory of the server's
    processes is not the card's.
    """
    if device.kind == "emulated":
        return EmptyReader()
    if device.kind != "gpu":
        return ProcessReader(processes)
    try:
        return NvmlReader(device, nvml)
    except nvml.NVMLError as error:
        _LOG.warning("telemetry: NVML cannot be used (%s); power, clocks and memory stay empty", error)
        return EmptyReader()


class EmptyReader:
    """For a device that tells nothing."""

    def read(self) -> Sample:
        return Sample(time_ns=time.monotonic_ns())


class Sampler:
    """Reads in a thread of its own while the block runs; `samples` grows as it goes."""

    def __init__(self, reader: Reader, interval_s: float = INTERVAL_S) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="telemetry", daemon=True)
        self.samples: list[Sample] = []

    def _loop(self) -> None:
        while True:
            try:
                self.samples.append(self._reader.read())
            except Exception:  # a reading must never end a trial  # noqa: BLE001
                _LOG.warning("telemetry: reading failed, no further samples", exc_info=True)
                return
            if self._done.wait(self._interval_s):
                break
        with contextlib.suppress(Exception):  # one reading at the end, so that a short block has two
            self.samples.append(self._reader.read())

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=5.0)


def _known(samples: Sequence[Sample], name: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def _energy_j(samples: Sequence[Sample]) -> float | None:
    """From the card's counter (mJ), else power integrated over time by the trapezoid rule; None under two readings."""
    counter = _known(samples, "energy_mj")
    if len(counter) >= 2 and counter[-1] >= counter[0]:
        return (counter[-1] - counter[0]) / 1000.0
    points = [(sample.time_ns / 1e9, sample.power_w) for sample in samples if sample.power_w is not None]
    if len(points) < 2:
        return None
    pairs = itertools.pairwise(points)
    return sum((later - earlier) * (p0 + p1) / 2.0 for (earlier, p0), (later, p1) in pairs)


def _is_busy(sample: Sample) -> bool:
    if sample.throttle_reasons is not None and sample.throttle_reasons & GPU_IDLE:
        return False
    return sample.utilisation_percent is None or sample.utilisation_percent >= BUSY_PERCENT


def slow_moments(samples: Sequence[Sample]) -> tuple[int, ...] | None:
    """When (ns, client's clock) the card was slowed down; None where it tells neither reasons nor busy clocks.

    A moment counts if the card names heat or a hardware limit, or if a busy clock is below CLOCK_DROP of the highest
    busy one. Idle clocks prove nothing.
    """
    busy = [sample for sample in samples if _is_busy(sample)]
    highest = {name: max(known) for name in ("sm_clock_mhz", "memory_clock_mhz") if (known := _known(busy, name))}
    if not highest and not _known(samples, "throttle_reasons"):
        return None
    named = {sample.time_ns for sample in samples if (sample.throttle_reasons or 0) & HARD_THROTTLE}
    fallen = {
        sample.time_ns
        for sample in busy
        for name, most in highest.items()
        if (clock := getattr(sample, name)) is not None and clock < CLOCK_DROP * most
    }
    return tuple(sorted(named | fallen))


def _throttled(samples: Sequence[Sample]) -> bool | None:
    """Whether the card slowed down; None where it does not tell."""
    moments = slow_moments(samples)
    return None if moments is None else bool(moments)


def summarise(samples: Sequence[Sample], start_ns: int | None = None, end_ns: int | None = None) -> TelemetrySummary:
    """Readings between two moments of the monotonic clock (None: no limit) as one record.

    No sample is ever dropped for being slow: a throttled trial is marked, and policy decides what becomes of it.
    """
    inside = [
        sample
        for sample in samples
        if (start_ns is None or sample.time_ns >= start_ns) and (end_ns is None or sample.time_ns <= end_ns)
    ]
    power, clock = _known(inside, "power_w"), _known(inside, "sm_clock_mhz")
    return TelemetrySummary(
        samples=len(inside),
        peak_memory_mib=max(_known(inside, "memory_mib"), default=None),
        mean_power_w=sum(power) / len(power) if power else None,
        energy_j=_energy_j(inside),
        max_temperature_c=max(_known(inside, "temperature_c"), default=None),
        min_sm_clock_mhz=min(clock, default=None),
        max_sm_clock_mhz=max(clock, default=None),
        throttled=_throttled(inside),
    )


def wait_memory_back(reader: Reader, baseline_mib: float | None, timeout_s: float, slack_mib: float = 64.0) -> bool:
    """Wait until device memory is back at its level before the launch (drivers free it a moment after the process).

    Returns False when it is not within the time; True too where the device does not tell its memory.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        now_mib = reader.read().memory_mib
        if baseline_mib is None or now_mib is None or now_mib <= baseline_mib + slack_mib:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
