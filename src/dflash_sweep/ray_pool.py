"""Trials on Ray: one actor a device; the only Ray import. Imports `trial`, `pool`, `server`, `environment`, `engines`.

Only TrialSpec goes in and TrialResult comes out. An actor that dies costs its own trial (worker_lost) and is replaced
on the same device; no worker ever waits for another.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from dflash_sweep import engines, environment, hosting, pool, server, trial
from dflash_sweep.errors import ConfigError, FailureKind, StudyFailed
from dflash_sweep.records import Device, Failure, TrialResult, TrialSpec

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would kill workers when the whole machine is short of memory; a server that fills it is a finding of ours.
    "RAY_memory_monitor_refresh_ms": "0",
    # Only silences Ray's question about workers without GPUs: the servers' variable is always set by us.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray runs workers at low priority; servers would inherit it and be measured behind everything else.
    "RAY_worker_niceness": "0",
}
for _name, _value in _QUIET.items():  # read by Ray when it is imported
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402
from ray.exceptions import RayError, RayTaskError  # noqa: E402

OBJECT_STORE_BYTES = 80 * 1000 * 1000
"""Specs and results are small; Ray's own default would take a third of the memory."""

OVERDUE_S = 180.0
"""A trial ends itself at its own timeout; a worker silent for this much longer (it stops a server, waits for the card's
memory, reads logs) hangs, and is replaced."""

CLUSTER_START_S = 120.0
"""How long a cluster may take to give each worker its GPU."""

SOCKET_PATH_LIMIT = 107
"""Bytes of an AF_UNIX path on Linux (sun_path holds 108 with its end)."""

_LONGEST_SOCKET = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"

_LOG = logging.getLogger(__name__)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Worker:
    """Lives in a Ray process of its own and owns one device."""

    def __init__(self, device: Device | None, run_trial: pool.RunTrial | None) -> None:
        """`device` None: the GPU that Ray gave to this actor. `run_trial` None: on a bench of this worker's own."""
        self._run_trial = run_trial
        self._reaped = server.reap()
        self._device = device if device is not None else assigned_gpu([str(entry) for entry in ray.get_gpu_ids()])
        self._bench = trial.Bench(self._device)

    def about(self) -> tuple[Device, int, tuple[str, ...]]:
        """The device, this process's pid, and what was left behind by a predecessor."""
        return self._device, os.getpid(), self._reaped

    def run(self, spec: TrialSpec) -> TrialResult:
        return self._run_trial(spec, self._device) if self._run_trial is not None else self._bench.run(spec)


def assigned_gpu(ids: list[str]) -> Device:
    """The device for the ids that Ray assigned. A worker that owns no whole GPU must not measure: StudyFailed."""
    found = environment.gpus(",".join(ids)) if ids else ()
    if len(found) != 1:
        raise StudyFailed(f"a measuring worker must own exactly one GPU; Ray gave this one {ids or 'none'}")
    return found[0]


@dataclass(slots=True)
class _Seat:
    """One worker's place: its device stays, its actor may be replaced."""

    device: Device
    actor: Any
    spec: TrialSpec | None = None
    result: Any = None  # the ObjectRef of the running trial
    launch_key: object = None  # of the server that the worker may still have
    deadline: float = 0.0  # time.monotonic by which the trial must be over


def shared_launch(spec: TrialSpec, device: Device) -> object:
    """What two trials must have in common to use one server; None if this one wants a server of its own."""
    try:
        engine = engines.get(spec.engine.name)
        return hosting.launch_key(engine, spec, device) if hosting.may_share(engine, spec) else None
    except ConfigError:
        return None  # the trial itself will say what is wrong


def check_temp_dir(folder: str) -> str:
    """Ray puts sockets under its folder; a long one would make it fail in words nobody understands: ConfigError."""
    longest = len(os.fsencode(folder)) + len(_LONGEST_SOCKET)
    if longest > SOCKET_PATH_LIMIT:
        allowed = SOCKET_PATH_LIMIT - len(_LONGEST_SOCKET)
        raise ConfigError(f"Ray's folder {folder!r} is too long for its sockets; allowed: {allowed} bytes")
    return folder


def check_reachable(address: str) -> None:
    """Raises ConfigError if nobody listens at a Ray address (host:port, ray://host:port, or auto with RAY_ADDRESS).

    Ray itself would try for minutes.
    """
    wanted = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, _, port = wanted.rpartition("//")[2].rpartition(":")
    if not port.isdigit():
        return  # auto without a named address: Ray looks on this machine and says at once if there is none
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        message = f"cluster.address={address}: no Ray cluster answers at {host}:{port} ({error.strerror or error})"
        raise ConfigError(f"{message}; cluster.address=local starts one of its own") from error


def default_temp_dir() -> str:
    """A short folder of this process alone; those of our processes that have died are removed on the way."""
    parent = Path(tempfile.gettempdir())
    name = f"dfs-ray-{os.getuid()}-"
    if len(os.fsencode(parent / f"{name}4194304")) + len(_LONGEST_SOCKET) > SOCKET_PATH_LIMIT:
        parent = Path("/tmp")
    for old in parent.glob(f"{name}*"):
        if not Path("/proc", old.name.removeprefix(name)).exists():
            shutil.rmtree(old, ignore_errors=True)
    return str(parent / f"{name}{os.getpid()}")


class RayPool:
    """An actor for each device. `address` "local" starts a Ray of our own and never joins a running one."""

    def __init__(
        self,
        devices: tuple[Device, ...],
        *,
        address: str = "local",
        temp_dir: str | None = None,
        run_trial: pool.RunTrial | None = None,
    ) -> None:
        """Raises ConfigError if the cluster at `address` cannot be joined or the folder's name is too long."""
        if not devices:
            raise ConfigError("cluster.workers: at least one device is needed")
        self._gpus = devices[0].kind == "gpu"
        self._local = address == "local"
        self._closed = False
        self._run_trial = run_trial
        self._queue: list[tuple[TrialSpec, Device | None]] = []
        self._own_temp_dir = default_temp_dir() if temp_dir is None else None
        self._connect(address, len(devices), check_temp_dir(temp_dir or self._own_temp_dir or ""))
        self._remote = ray.remote(num_gpus=1 if self._gpus else 0, num_cpus=0, max_restarts=0)(Worker)
        self._seats = [_Seat(device, self._actor(device)) for device in devices]
        if not self._local and self._gpus:
            self._learn_devices(address)

    def _connect(self, address: str, workers: int, temp_dir: str) -> None:
        _keep_messages_off_the_screen()
        if not self._local:
            check_reachable(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        try:
            if self._local:
                ray.init(
                    address="local",
                    num_cpus=workers,
                    num_gpus=workers if self._gpus else 0,
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=temp_dir,
                    **quiet,
                )
            else:
                ray.init(address=address, **quiet)
        except Exception as error:  # Ray raises bare ones when its processes do not come up in time
            token = "a cluster that asks for a token needs RAY_AUTH_MODE=token and its ~/.ray/auth_token here"
            hint = "" if self._local else f"; {token}; cluster.address=local starts one of its own"
            raise ConfigError(f"cluster.address={address}: Ray cannot be used: {reason(error)}{hint}") from error

    def _learn_devices(self, address: str) -> None:
        """On a cluster only a worker itself knows which card it was given."""
        try:
            found = ray.get([seat.actor.about.remote() for seat in self._seats], timeout=CLUSTER_START_S)
        except RayError as error:
            self.close()
            message = f"{len(self._seats)} workers with a GPU each could not be had: {reason(error)}"
            raise ConfigError(f"cluster.address={address}: {message}") from error
        for seat, about in zip(self._seats, found, strict=True):
            seat.device = about[0]

    def _actor(self, device: Device) -> Any:
        # Elsewhere the driver cannot know which card a worker gets: it says so itself.
        return self._remote.remote(device if self._local or not self._gpus else None, self._run_trial)

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(seat.device for seat in self._seats)

    def worker_pids(self) -> tuple[int, ...]:
        """Pids of the actors' processes, in the order of `devices`; waits until they are up."""
        return tuple(about[1] for about in ray.get([seat.actor.about.remote() for seat in self._seats]))

    def idle(self) -> int:
        return len(self.idle_devices())

    def idle_devices(self) -> tuple[Device, ...]:
        """What waits in the queue waits for a busy worker: free ones have taken theirs."""
        return tuple(seat.device for seat in self._seats if seat.spec is None)

    def seats(self) -> dict[str, int]:
        return {spec.uid: place for place, seat in enumerate(self._seats) if (spec := seat.spec) is not None}

    def submit(self, spec: TrialSpec, *, on: Device | None = None) -> None:
        pool.check_owned(on, self.devices)
        self._queue.append((spec, on))
        self._start_queued()

    def _start_queued(self) -> None:
        """Give waiting trials to free workers: first each to one whose server it can go on with, then in their order
        to a worker that has no server to keep, if there is one."""
        for only_warm in (True, False):
            for entry in tuple(self._queue):
                spec, on = entry
                free = [seat for seat in self._seats if seat.spec is None and on in (None, seat.device)]
                keys = {seat.device: shared_launch(spec, seat.device) for seat in free}
                warm = [seat for seat in free if keys[seat.device] is not None and keys[seat.device] == seat.launch_key]
                if warm or (free and not only_warm):
                    self._queue.remove(entry)
                    seat = warm[0] if warm else min(free, key=lambda seat: seat.launch_key is not None)
                    self._start(seat, spec, keys[seat.device])

    def _start(self, seat: _Seat, spec: TrialSpec, launch_key: object) -> None:
        seat.spec, seat.launch_key = spec, launch_key
        seat.deadline = time.monotonic() + spec.timeout_s + OVERDUE_S
        seat.result = seat.actor.run.remote(spec)

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while running := [seat for seat in self._seats if seat.spec is not None]:
            now = time.monotonic()
            look_s = max(0.0, min(seat.deadline for seat in running) - now)
            if until is not None:
                look_s = min(look_s, max(0.0, until - now))
            refs = [seat.result for seat in running]
            ray.wait(refs, num_returns=1, timeout=look_s)
            done = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0])
            over = [seat for seat in running if seat.result not in done and time.monotonic() >= seat.deadline]
            results = [self._collect(seat) for seat in running if seat.result in done]
            results += [self._give_up(seat) for seat in over]
            self._start_queued()
            if results or (until is not None and time.monotonic() >= until):
                return tuple(results)
        return ()

    def _collect(self, seat: _Seat) -> TrialResult:
        """The result of a seat whose trial is over, however it ended."""
        try:
            result: TrialResult = ray.get(seat.result)
        except RayTaskError as error:  # run_trial never raises: a spec or result that cannot travel is our defect
            failure = Failure(kind=FailureKind.PARSE_FAILED, message=reason(error), traceback=str(error))
            return self._failed(seat, failure)
        except RayError as error:
            return self._lost(seat, f"the worker died: {reason(error)}")
        seat.spec = seat.result = None
        return result

    def _give_up(self, seat: _Seat) -> TrialResult:
        spec = seat.spec
        return self._lost(
            seat, f"the worker gave no result within {spec.timeout_s if spec else 0:g} s + {OVERDUE_S:g} s"
        )

    def _lost(self, seat: _Seat, message: str) -> TrialResult:
        """A new actor for the seat; its start ends what the old one left running."""
        _LOG.warning("worker on %s #%d was lost: %s", seat.device.name, seat.device.index, message)
        ray.kill(seat.actor)
        seat.actor, seat.launch_key = self._actor(seat.device), None
        return self._failed(seat, Failure(kind=FailureKind.WORKER_LOST, message=message))

    def _failed(self, seat: _Seat, failure: Failure) -> TrialResult:
        spec, seat.spec, seat.result = seat.spec, None, None
        if spec is None:
            raise StudyFailed(f"{seat.device.name}: a failure of a trial that was never started: {failure.message}")
        measurement = engines.get(spec.engine.name).facts.measurement
        return pool.failed_result(spec, seat.device, failure, measurement=measurement, worker=socket.gethostname())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        for seat in self._seats:
            ray.kill(seat.actor)
        ray.shutdown()
        server.reap()
        if self._own_temp_dir is not None:
            shutil.rmtree(self._own_temp_dir, ignore_errors=True)

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _keep_messages_off_the_screen() -> None:
    """Ray prints what happens to workers on stdout even without log_to_driver; we tell it in our own words."""
    from ray._private import worker

    def to_log(data: dict[str, Any], **_: Any) -> None:
        _LOG.debug("ray: %s", " ".join(map(str, data.get("lines", ()))))

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = to_log  # type: ignore[assignment]


def reason(error: BaseException) -> str:
    """What a Ray error says in one line: its first, or its last where it carries a worker's traceback."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return (lines[-1] if isinstance(error, RayTaskError) or "creation task" in lines[0] else lines[0])[:300]
