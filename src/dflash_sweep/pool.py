"""Who runs trials: the Pool protocol, the in-process pool, the pool of past results. Imports L0-L3 and `ray_pool`.

A pool takes specs and gives results back in the order they finish; it never waits for a batch, never drops a spec, and
knows nothing of samplers or databases. Ray is imported only when its pool is asked for.
"""

from __future__ import annotations

import os
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from dflash_sweep import environment, server, trial
from dflash_sweep.engines.base import EngineFacts
from dflash_sweep.errors import ConfigError, FailureKind
from dflash_sweep.hosting import StopRequest
from dflash_sweep.records import (
    Device,
    EngineSettings,
    Failure,
    Knobs,
    Measurement,
    StoredTrial,
    TrialResult,
    TrialSpec,
)

RunTrial: TypeAlias = Callable[[TrialSpec, Device], TrialResult]

POOL_KINDS = ("ray", "inline")


class Pool(Protocol):
    """Workers, each owning one device. Not for use by several threads."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """One a worker."""
        ...

    def idle(self) -> int:
        """How many specs could start right now."""
        ...

    def idle_devices(self) -> tuple[Device, ...]:
        """The devices whose workers could start one."""
        ...

    def seats(self) -> dict[str, int]:
        """uid of each running trial → its worker's place in `devices`. May be asked from another thread."""
        ...

    def submit(self, spec: TrialSpec, *, on: Device | None = None) -> None:
        """Hand in one trial; it starts as soon as a worker is free (`on`: the one that owns this device). Returns at
        once. Raises ConfigError for a device that no worker owns."""
        ...

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        """Results finished since the last call, at least one unless the time is over or nothing is running."""
        ...

    def close(self) -> None:
        """End all workers and their servers; trials not finished are dropped. Safe to call again."""
        ...

    def __enter__(self) -> Pool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class InlinePool:
    """One worker: this process. `submit` only queues; `wait` runs the oldest spec, whatever its timeout says."""

    def __init__(
        self, device: Device, run_trial: RunTrial | None = None, should_stop: StopRequest | None = None
    ) -> None:
        self.devices: tuple[Device, ...] = (device,)
        self._run_trial, self._should_stop = run_trial, should_stop
        self._bench = trial.Bench(device)
        self._queue: deque[TrialSpec] = deque()
        server.reap()

    def idle(self) -> int:
        return len(self.idle_devices())

    def idle_devices(self) -> tuple[Device, ...]:
        return () if self._queue else self.devices

    def seats(self) -> dict[str, int]:
        return {spec.uid: 0 for spec in tuple(self._queue)[:1]}

    def submit(self, spec: TrialSpec, *, on: Device | None = None) -> None:
        check_owned(on, self.devices)
        self._queue.append(spec)

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        if not self._queue:
            return ()
        spec = self._queue[0]
        try:
            if self._run_trial is not None:
                return (self._run_trial(spec, self.devices[0]),)
            return (self._bench.run(spec, should_stop=self._should_stop),)
        finally:
            self._queue.popleft()

    def close(self) -> None:
        self._queue.clear()
        self._bench.close()

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RecordedPool:
    """Answers from past trials with the same knobs, so that a search can be tried out without a device.

    Several recorded runs of one setting are given in their order, then again from the first. A setting that was never
    recorded is a no_measurement failure. Results keep their device, times and figures; only the uid is the new one.
    """

    def __init__(self, recorded: Iterable[StoredTrial], devices: tuple[Device, ...] | None = None) -> None:
        self._runs: dict[Any, list[TrialResult]] = defaultdict(list)
        for row in recorded:
            self._runs[_point(row.speculative, row.knobs)].append(row.result)
        known = [result.device for results in self._runs.values() for result in results]
        self.devices: tuple[Device, ...] = devices or tuple(known[:1]) or (logical_device("cpu", 0),)
        self._asked: dict[Any, int] = defaultdict(int)
        self._queue: deque[TrialSpec] = deque()

    def idle(self) -> int:
        return len(self.idle_devices())

    def idle_devices(self) -> tuple[Device, ...]:
        return self.devices[len(self._queue) :]

    def seats(self) -> dict[str, int]:
        return {spec.uid: place for place, spec in enumerate(tuple(self._queue)[: len(self.devices)])}

    def submit(self, spec: TrialSpec, *, on: Device | None = None) -> None:
        check_owned(on, self.devices)
        self._queue.append(spec)

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        return (self._answer(self._queue.popleft()),) if self._queue else ()

    def _answer(self, spec: TrialSpec) -> TrialResult:
        point = _point(spec.speculative, spec.knobs)
        runs = self._runs.get(point)
        if not runs:
            failure = Failure(kind=FailureKind.NO_MEASUREMENT, message=f"no recorded trial has the knobs {spec.knobs}")
            return failed_result(spec, self.devices[0], failure, measurement=Measurement.IMPORTED)
        turn = self._asked[point]
        self._asked[point] += 1
        return replace(runs[turn % len(runs)], uid=spec.uid)

    def close(self) -> None:
        self._queue.clear()

    def __enter__(self) -> RecordedPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _point(speculative: bool, knobs: Knobs) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """A setting as a key: knobs left to the engine are no part of it."""
    return speculative, tuple(sorted((name, repr(value)) for name, value in knobs.items() if value is not None))


def failed_result(
    spec: TrialSpec, device: Device, failure: Failure, *, measurement: Measurement, worker: str = ""
) -> TrialResult:
    """The result of a trial of which nothing but its failure is known."""
    return TrialResult(
        uid=spec.uid,
        measurement=measurement,
        clock=str(spec.engine.options.get("clock") or "real"),
        device=device,
        failure=failure,
        worker=worker,
        started_utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


# ---------------------------------------------------------------- devices


def check_owned(device: Device | None, devices: tuple[Device, ...]) -> None:
    """Raises ConfigError if a trial is meant for a device that none of the workers owns."""
    if device is not None and device not in devices:
        names = ", ".join(f"{owned.name} #{owned.index}" for owned in devices)
        raise ConfigError(f"device {device.name} #{device.index}: no worker owns it; there are {names}")


def logical_device(kind: str, index: int, name: str | None = None) -> Device:
    """A device that is no GPU: this machine's CPU, or an emulated card."""
    return Device(kind=kind, index=index, name=name or environment.cpu_model() or "CPU")


def devices_for(
    facts: EngineFacts,
    workers: int,
    settings: EngineSettings | None = None,
    visible: str | None = None,
    *,
    address: str = "local",
) -> tuple[Device, ...]:
    """One device a worker, as the engine needs it: real GPUs, this CPU, or emulated cards (named by the `card` option).

    `visible`: the user's CUDA_VISIBLE_DEVICES, None = all GPUs. On a cluster (`address` not "local") the GPUs are other
    machines': nameless until its workers say what they were given. Raises ConfigError where there are not enough of
    them, or for several workers on one foreign server (they would measure each other).
    """
    options = settings.options if settings is not None else {}
    if not facts.launches:
        if workers > 1:
            raise ConfigError(f"cluster.workers={workers}: a server that is not launched by us is measured by 1 worker")
        return (logical_device("cpu", 0, f"server at {options.get('url') or 'engine.options.url'}"),)
    if facts.accelerator == "none":
        return tuple(logical_device("emulated", i, str(options.get("card") or "emulated")) for i in range(workers))
    if facts.accelerator == "cpu":
        return tuple(logical_device("cpu", index) for index in range(workers))
    if address != "local":
        return tuple(Device(kind="gpu", index=index, name="GPU of the cluster") for index in range(workers))
    found = environment.gpus(visible)
    if not found:
        shown = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        raise ConfigError(f"this engine needs a GPU and NVML lists none{shown}; engine=emulator runs without one")
    if workers > len(found):
        names = ", ".join(device.name for device in found)
        raise ConfigError(
            f"cluster.workers={workers}: only {len(found)} GPU(s) here ({names}); allowed: 1-{len(found)}"
        )
    return found[:workers]


def make(
    kind: str,
    devices: tuple[Device, ...],
    *,
    address: str = "local",
    temp_dir: str | None = None,
    run_trial: RunTrial | None = None,
    should_stop: StopRequest | None = None,
) -> Pool:
    """The pool of that kind over these devices. Raises ConfigError for an unknown kind or what the kind cannot do.

    `should_stop` is asked by trials in this process while they run; workers elsewhere are ended by closing the pool.
    """
    if kind == "inline":
        if len(devices) != 1:
            raise ConfigError(
                f"cluster.workers={len(devices)}: cluster.kind=inline has exactly 1; use cluster.kind=ray"
            )
        return InlinePool(devices[0], run_trial, should_stop)
    if kind == "ray":
        if address == "local":
            own_ray_token()
        from dflash_sweep.ray_pool import RayPool  # seconds of import time that no other pool should pay

        return RayPool(devices, address=address, temp_dir=temp_dir, run_trial=run_trial)
    raise ConfigError(f"cluster.kind={kind}: not known; allowed: {', '.join(POOL_KINDS)}")


def own_ray_token() -> None:
    """A token of this process for its own Ray, which listens on every interface.

    Ray reads it while it is imported, so this comes first; its default token would go into the user's home.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
