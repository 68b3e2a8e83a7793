"""The server that a trial talks to: launched for it, kept from the trial before, or run by somebody else.

Imports `server`, `client`, `replay`, `telemetry`, `evidence`, `engines`, `records`, `errors`.
A `Host` belongs to one worker and its device and owns at most one running server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from dflash_sweep import replay, server, telemetry
from dflash_sweep.client import Client
from dflash_sweep.engines.base import Engine, LaunchRequest
from dflash_sweep.errors import ConfigError, FailureKind, TrialFailed
from dflash_sweep.evidence import TrialFiles
from dflash_sweep.records import Device, LaunchSpec, TrialSpec

HOST = "127.0.0.1"
PORT_ATTEMPTS = 3
MEMORY_BACK_S = 30.0
"""How long a GPU may take after a server's end until its memory is free again."""

StopRequest = Callable[[], bool]
"""Asked from another thread several times a second; True = end this trial now."""

_LOG = logging.getLogger(__name__)


class Served(Protocol):
    """What a trial may ask of its server. `launch` None: it is not ours; `load_s` None: it was not started for this.

    `reusable` False, set by the trial: end this server even where the policy would keep it.
    """

    base_url: str
    launch: LaunchSpec | None
    load_s: float | None
    reusable: bool

    def log_size(self) -> int: ...
    def read_log(self) -> bytes: ...
    def alive(self) -> bool: ...
    def exit_code(self) -> int | None: ...
    def wait_exit(self, timeout_s: float) -> bool: ...
    def processes(self) -> list[psutil.Process]: ...


@dataclass(slots=True)
class Attached:
    """A server that somebody else runs: no process, no log."""

    base_url: str
    launch: LaunchSpec | None = None
    load_s: float | None = None
    reusable: bool = True

    def log_size(self) -> int:
        return 0

    def read_log(self) -> bytes:
        return b""

    def alive(self) -> bool:
        return True

    def exit_code(self) -> int | None:
        return None

    def wait_exit(self, timeout_s: float) -> bool:
        return False

    def processes(self) -> list[psutil.Process]:
        return []


@dataclass(slots=True)
class Launched:
    """A server of ours as one trial sees it: its log is the start-up part, then what came since the trial began."""

    process: server.Server
    launch: LaunchSpec | None
    load_s: float | None
    head_bytes: int
    start_bytes: int
    reusable: bool = True
    base_url: str = field(init=False)

    def __post_init__(self) -> None:
        self.base_url = self.process.base_url

    def log_size(self) -> int:
        return self.head_bytes + self.process.log_size() - self.start_bytes

    def read_log(self) -> bytes:
        return self.process.read_log(0, self.head_bytes) + self.process.read_log(self.start_bytes)

    def alive(self) -> bool:
        return self.process.alive()

    def exit_code(self) -> int | None:
        return self.process.exit_code()

    def wait_exit(self, timeout_s: float) -> bool:
        return self.process.wait_exit(timeout_s)

    def processes(self) -> list[psutil.Process]:
        return self.process.processes()


@dataclass(slots=True)
class _Kept:
    key: object
    process: server.Server
    launch: LaunchSpec
    head_bytes: int
    stack: contextlib.ExitStack


def launch_key(engine: Engine, spec: TrialSpec, device: Device) -> object:
    """Equal for two trials that may share a server: the same command line and environment but for the port."""
    launch = engine.launch_spec(_request(spec, device, port=0))
    return (engine.name, launch.argv, tuple(sorted(launch.env.items())))


def client_for(spec: TrialSpec, base_url: str) -> Client:
    """A client with the trial's turn timeout, and the key from the variable that the option `api_key_env` names."""
    variable = spec.engine.options.get("api_key_env")
    api_key = os.environ.get(str(variable)) if variable else None
    return Client(base_url, api_key=api_key, timeout_s=spec.policy.turn_timeout_s)


class Host:
    """Gives each trial its server; ends servers that no trial can use any more."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._kept: _Kept | None = None

    def close(self) -> None:
        """End the kept server, if there is one."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.stack.close()

    @contextlib.contextmanager
    def serve(
        self,
        engine: Engine,
        spec: TrialSpec,
        files: TrialFiles,
        *,
        deadline: float,
        should_stop: StopRequest,
        before_start: Callable[[LaunchSpec | None, int | None], None],
    ) -> Iterator[Served]:
        """A server that has answered one real token. Ended with the block, or kept where the policy allows sharing.

        `before_start` is told command line and port before anything runs (None for a foreign server). A block left by
        an exception ends the server always. Raises ServerFailed, or TrialFailed for a foreign server that is not there.
        """
        ready_by = min(deadline, time.monotonic() + spec.engine.startup_timeout_s)
        if not engine.facts.launches:
            yield _attach(engine, spec, ready_by, before_start)
            return
        key = None if spec.policy.fresh_server else launch_key(engine, spec, self.device)
        kept = self._usable(spec, key)
        load_s = None
        if kept is None:
            self.close()
            kept = self._launch(engine, spec, files, key, ready_by, should_stop, before_start)
            load_s = kept.process.load_s
        else:
            before_start(kept.launch, kept.process.port)
        start_bytes = kept.process.log_size()
        launched = Launched(
            process=kept.process,
            launch=kept.launch,
            load_s=load_s,
            head_bytes=kept.head_bytes,
            start_bytes=start_bytes,
        )
        try:
            yield launched
        except BaseException:
            kept.stack.close()
            self._kept = None
            raise
        if key is None or not launched.reusable:
            kept.stack.close()
            self._kept = None
        else:
            self._kept = kept

    def _usable(self, spec: TrialSpec, key: object) -> _Kept | None:
        kept = self._kept
        if kept is None or key is None or kept.key != key or not kept.process.alive():
            return None
        with client_for(spec, kept.process.base_url) as client:
            return kept if client.health() else None

    def _launch(
        self,
        engine: Engine,
        spec: TrialSpec,
        files: TrialFiles,
        key: object,
        ready_by: float,
        should_stop: StopRequest,
        before_start: Callable[[LaunchSpec | None, int | None], None],
    ) -> _Kept:
        log_path = files.log if key is None else files.shared_log
        with contextlib.ExitStack() as stack:
            stack.enter_context(_memory_returned(self.device))
            for attempt in range(1, PORT_ATTEMPTS + 1):
                port = server.free_port(HOST)
                wanted = engine.launch_spec(_request(spec, self.device, port))
                launch = LaunchSpec(argv=wanted.argv, env={**wanted.env, **server.device_variables(self.device)})
                before_start(launch, port)
                running = server.running(
                    launch,
                    port=port,
                    host=HOST,
                    log_path=log_path,
                    startup_timeout_s=max(0.1, ready_by - time.monotonic()),
                    ready=lambda base_url: _ready(engine, spec, base_url, ready_by),
                    should_stop=should_stop,
                )
                try:
                    process = stack.enter_context(running)
                except server.PortTaken:
                    if attempt == PORT_ATTEMPTS:
                        raise
                    continue
                finally:
                    _copy(log_path, files.log)
                return _Kept(key, process, launch, process.log_size(), stack.pop_all())
        raise AssertionError("unreachable")


def _copy(shared: Path, log: Path) -> None:
    """A server's start is part of the trial's own log, also where it is all there is."""
    if shared != log and shared.exists():
        log.write_bytes(shared.read_bytes())


def _attach(
    engine: Engine,
    spec: TrialSpec,
    ready_by: float,
    before_start: Callable[[LaunchSpec | None, int | None], None],
) -> Attached:
    url = spec.engine.options.get("url")
    if not url:
        raise ConfigError("engine.options.url is not set: a server that already runs is needed")
    before_start(None, None)
    while not _ready(engine, spec, str(url), ready_by):
        if time.monotonic() > ready_by:
            raise TrialFailed(FailureKind.HEALTH_TIMEOUT, f"the server at {url} is not ready")
        time.sleep(0.1)
    return Attached(str(url))


def _request(spec: TrialSpec, device: Device, port: int) -> LaunchRequest:
    return LaunchRequest(
        settings=spec.engine,
        build=spec.build,
        knobs=spec.knobs,
        speculative=spec.speculative,
        device=device,
        host=HOST,
        port=port,
        n_parallel=spec.policy.concurrency,
    )


def _ready(engine: Engine, spec: TrialSpec, base_url: str, ready_by: float) -> bool:
    """One real token was answered. A server that is loading (503) or not listening yet is asked again later."""
    fields = engine.request_fields(spec.engine, spec.knobs, "other")
    payload = replay.build_payload(replay.warmup_turn(-1), spec.policy, fields, spec.trace.header.template_kwargs)
    with client_for(spec, base_url) as client:
        if not client.health():
            return False
        remaining_s = max(0.1, ready_by - time.monotonic())
        first = client.chat(payload | {"max_tokens": 1}, -1, timeout_s=remaining_s)
    if first.error_type is None:
        return True
    if first.http_status == 503 or first.error_type in ("connect", "disconnected", "timeout"):
        return False
    raise server.ServerFailed(FailureKind.REQUEST_FAILED, f"the first completion failed: {first.error}")


@contextlib.contextmanager
def _memory_returned(device: Device) -> Iterator[None]:
    """After the server's end, wait until the card's memory is back where it was: the next launch needs it."""
    if device.kind != "gpu":
        yield
        return
    reader = telemetry.reader_for(device, list)
    before_mib = reader.read().memory_mib
    try:
        yield
    finally:
        if not telemetry.wait_memory_back(reader, before_mib, MEMORY_BACK_S):
            _LOG.warning("%s: memory is not back where it was before the trial (%s MiB)", device.name, before_mib)
