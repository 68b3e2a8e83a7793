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
from dataclasses import dataclass, field, replace
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
    def read_log(self, start: int = 0) -> bytes: ...
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

    def read_log(self, start: int = 0) -> bytes:
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

    def read_log(self, start: int = 0) -> bytes:
        """From that byte on, as `log_size` counts them."""
        head = self.process.read_log(start, self.head_bytes - start) if start < self.head_bytes else b""
        return head + self.process.read_log(self.start_bytes + max(0, start - self.head_bytes))

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


def may_share(engine: Engine, spec: TrialSpec) -> bool:
    """Whether this trial may run on a server that was started for another, and leave its own for the next.

    Never where every trial is to start cold, where it is to have a server of its own, or where the engine's prompt
    cache cannot be emptied in between; nor with several conversations at once, since each slot keeps a prompt.
    """
    wanted = not (spec.policy.fresh_server or spec.own_server)
    return wanted and engine.facts.launches and engine.facts.cold_by is not None and spec.policy.concurrency == 1


def launch_key(engine: Engine, spec: TrialSpec, device: Device) -> object:
    """Equal for two trials that may share a server: whatever makes its command line and environment but the port.

    Nothing is launched or prepared for it, so that a driver may ask for any worker. Knobs that each request carries do
    not count, nor does the seed of an emulated launch's noise: it belongs to the server that runs, whichever trial it
    was started for.
    """
    by_request = {knob.name for knob in engine.knobs if knob.scope == "request"}
    knobs = {name: repr(value) for name, value in engine.effective_point(spec.knobs).items() if value is not None}
    options = {name: value for name, value in spec.engine.options.items() if name != "launch_seed"}
    return (
        engine.name,
        spec.speculative,
        tuple(sorted((name, value) for name, value in knobs.items() if name not in by_request)),
        repr(replace(spec.engine, options=dict(sorted(options.items())))),
        (spec.build.binary, spec.build.binary_sha256, spec.build.version),
        (device.kind, device.index, device.uuid),
        spec.policy.concurrency,
    )


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
        """End the kept server, if there is one. Its log may go: each trial has its own share of it."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.stack.close()
            kept.process.log_path.unlink(missing_ok=True)

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
        key = launch_key(engine, spec, self.device) if may_share(engine, spec) else None
        kept = self._usable(engine, spec, key, ready_by)
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

    def _usable(self, engine: Engine, spec: TrialSpec, key: object, ready_by: float) -> _Kept | None:
        """The kept server, its prompt cache emptied and in the state of one that has just been started."""
        kept = self._kept
        if kept is None or key is None or kept.key != key or not kept.process.alive():
            return None
        try:
            emptied = _emptied(engine, spec, kept.process.base_url)
            return kept if emptied and _ready(engine, spec, kept.process.base_url, ready_by) else None
        except server.ServerFailed as error:
            _LOG.warning("the kept server does not answer any more (%s): a new one is started", error)
            return None

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
        shared=not spec.policy.fresh_server and spec.policy.concurrency == 1,
    )


def _emptied(engine: Engine, spec: TrialSpec, base_url: str) -> bool:
    """Empty the prompt cache where that needs more than the first request; False if the server refuses."""
    if engine.facts.cold_by is None or not engine.facts.cold_by.startswith("/"):
        return True
    with client_for(spec, base_url) as client:
        return client.post(engine.facts.cold_by)


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
