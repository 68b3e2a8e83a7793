"""One TrialSpec on one device → one TrialResult. Imports L0 to L3.

The boundary at which exceptions become `Failure` records: whatever goes wrong in a trial is a result, with its kind,
its message and where to read on. Only KeyboardInterrupt (and other exits) pass through, with the server ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dflash_sweep import engines, environment, metrics, replay, sanity, server, telemetry
from dflash_sweep.client import Client, RequestError
from dflash_sweep.engines import Engine, LaunchRequest
from dflash_sweep.errors import ConfigError, FailureKind, TrialFailed
from dflash_sweep.evidence import TrialFiles, without_secrets
from dflash_sweep.records import (
    Device,
    Exchange,
    Failure,
    Knobs,
    KnobValue,
    LaunchSpec,
    Measurement,
    TelemetrySummary,
    TrialResult,
    TrialSpec,
    TurnRecord,
)

StopRequest = Callable[[], bool]
"""Asked from another thread several times a second; True = end this trial now."""

HOST = "127.0.0.1"
PORT_ATTEMPTS = 3
WATCH_INTERVAL_S = 0.1
DYING_S = 0.5
BROKEN_CONNECTION = frozenset({"connect", "disconnected", "truncated"})
MEMORY_BACK_S = 30.0
"""How long a GPU may take after a server's end until its memory is free again."""

REPORTED_VALUE_TOLERANCE = 5e-3
"""Relative: servers print floats with few digits (0.125 as 0.12 stays a mismatch, 0.333 as 0.3333 does not)."""

_FROM_LOG = frozenset({
    FailureKind.LAUNCH_FAILED, FailureKind.HEALTH_TIMEOUT, FailureKind.CRASHED, FailureKind.REQUEST_FAILED,
    FailureKind.TRIAL_TIMEOUT, FailureKind.DRAFT_INACTIVE, FailureKind.NO_MEASUREMENT,
})  # fmt: skip
"""Kinds that only say how we noticed; the server's log may say why."""


@dataclass(slots=True)
class _Attached:
    """A server that somebody else runs: same questions as of a `server.Server`, no process and no log."""

    base_url: str
    load_s: float | None = None

    def log_size(self) -> int:
        return 0

    def read_log(self, offset: int = 0) -> bytes:
        return b""

    def alive(self) -> bool:
        return True

    def exit_code(self) -> int | None:
        return None

    def wait_exit(self, timeout_s: float) -> bool:
        return False

    def processes(self) -> list[Any]:
        return []


@dataclass(slots=True)
class _Run:
    """What is known of a running trial so far; a failure keeps it all."""

    files: TrialFiles
    launch: LaunchSpec | None = None
    load_s: float | None = None
    log: bytes = b""
    exit_code: int | None = None
    turns: tuple[TurnRecord, ...] = ()
    effective: Knobs = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)
    telemetry: TelemetrySummary = field(default_factory=TelemetrySummary)
    environment: dict[str, Any] = field(default_factory=dict)


class _Watch:
    """Watches a replay from a thread of its own and breaks it off when the server dies, time is up or we shall stop."""

    def __init__(self, process: server.Server | _Attached, client: Client, deadline: float, stop: StopRequest) -> None:
        self._process, self._client, self._deadline, self._stop = process, client, deadline, stop
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="trial-watch", daemon=True)
        self.cause: FailureKind | None = None
        self.exit_code: int | None = None

    def _look(self) -> FailureKind | None:
        if not self._process.alive():
            self.exit_code = self._process.exit_code()
            return FailureKind.CRASHED
        if time.monotonic() > self._deadline:
            return FailureKind.TRIAL_TIMEOUT
        return FailureKind.WORKER_LOST if self._stop() else None

    def go_on(self, exchange: Exchange) -> bool:
        """Asked after every turn; a turn whose connection broke gets the moment that a dying server needs to end."""
        if exchange.error_type in BROKEN_CONNECTION:
            self._process.wait_exit(DYING_S)
        if self.cause is None:
            self.cause = self._look()
        return self.cause is None

    def _loop(self) -> None:
        while not self._done.wait(WATCH_INTERVAL_S) and self.cause is None:
            self.cause = self._look()
        if self.cause is not None:
            self._client.cancel()

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self.cause is None and not self._process.alive():
            self.cause, self.exit_code = FailureKind.CRASHED, self._process.exit_code()


def run_trial(spec: TrialSpec, device: Device, *, should_stop: StopRequest | None = None) -> TrialResult:
    """Launch, check, replay, parse, judge, end. Never raises but for KeyboardInterrupt and the like.

    The evidence folder gets launch.json before the start; server.log, turns.jsonl, telemetry.jsonl and result.json in
    the end. `should_stop` ends the trial early: its result is worker_lost, with the turns measured so far.
    """
    began, started = time.monotonic(), datetime.now(UTC)
    run = _Run(files=TrialFiles(Path(spec.evidence_dir)))
    engine: Engine | None = None
    failure: Failure | None = None
    try:
        engine = engines.get(spec.engine.name)
        _measure(engine, spec, device, run, began + spec.timeout_s, should_stop or _never)
    except TrialFailed as error:
        failure = _failure(engine, run, error.kind, error)
    except ConfigError as error:
        failure = _failure(engine, run, FailureKind.INVALID_CONFIG, error)
    except OSError as error:  # this machine, not this setting: a full disk, no more processes
        failure = _failure(engine, run, FailureKind.WORKER_LOST, error)
    except Exception as error:  # the trial boundary  # noqa: BLE001
        failure = _failure(engine, run, FailureKind.PARSE_FAILED, error)
    result = TrialResult(
        uid=spec.uid,
        measurement=engine.facts.measurement if engine is not None else Measurement.MEASURED,
        clock=str(spec.engine.options.get("clock") or "real"),
        device=device,
        turns=run.turns,
        failure=failure,
        launch=run.launch,
        effective=run.effective,
        memory_mib=run.memory_mib,
        telemetry=run.telemetry,
        environment=run.environment,
        worker=f"{socket.gethostname()}:{os.getpid()}",
        started_utc=started.isoformat(timespec="milliseconds"),
        load_s=run.load_s,
        wall_s=time.monotonic() - began,
    )
    with contextlib.suppress(OSError):  # the result itself is sent back even where the disk is full
        if failure is not None and failure.traceback:
            run.files.write_traceback(failure.traceback)
        run.files.write_result(result)
    return result


def _never() -> bool:
    return False


def _failure(engine: Engine | None, run: _Run, kind: FailureKind, error: Exception) -> Failure:
    """The failure record: the log may know better than we how it came."""
    exit_code = error.exit_code if isinstance(error, server.ServerFailed) else run.exit_code
    log, message = run.log.decode(errors="replace"), str(error) or type(error).__name__
    expected = isinstance(error, TrialFailed | ConfigError)
    if kind in _FROM_LOG and engine is not None and not isinstance(error, server.PortTaken):
        with contextlib.suppress(Exception):  # a parser that fails here must not hide the failure itself
            if (seen := engine.classify(log, exit_code)) is not None:
                kind, message = seen[0], f"{seen[1]} ({message})"
    if not expected:
        message = f"unexpected {type(error).__name__}: {message}"
    return Failure(
        kind=kind,
        message=message,
        exit_code=exit_code,
        log_path=str(run.files.log) if run.files.log.exists() else None,
        log_tail=log[-server.LOG_TAIL_BYTES :],
        traceback="" if expected and not kind.is_our_fault else "".join(traceback.format_exception(error)),
    )


# ---------------------------------------------------------------- the steps of a trial


def _measure(
    engine: Engine, spec: TrialSpec, device: Device, run: _Run, deadline: float, should_stop: StopRequest
) -> None:
    run.environment = environment.collect(device, spec)
    with contextlib.ExitStack() as stack:
        process = _start(engine, spec, device, run, deadline, should_stop, stack)
        run.load_s = process.load_s
        client = stack.enter_context(_client(spec, process.base_url))
        with (
            telemetry.Sampler(telemetry.reader_for(device, process.processes)) as sampler,
            _Watch(process, client, deadline, should_stop) as watch,
        ):
            played = replay.play(
                spec.trace,
                spec.policy,
                client,
                request_fields=lambda bucket: engine.request_fields(spec.engine, spec.knobs, bucket),
                log_size=process.log_size,
                on_turn=lambda _turn, exchange: watch.go_on(exchange),
                metrics_path=engine.facts.metrics_path,
            )
        props, slots = ({}, []) if watch.cause else (_ask(client, "/props", {}), _ask(client, "/slots", []))
        run.exit_code = watch.exit_code
    if isinstance(process, server.Server):
        run.log = process.read_log()
    run.files.write_telemetry(sampler.samples)
    run.memory_mib = engine.memory_mib(run.log.decode(errors="replace"))
    run.turns = _turn_records(engine, spec, played, run.log)
    run.files.write_turns(run.turns)
    run.telemetry = _summary(sampler.samples, run.turns)
    if watch.cause is not None:
        raise TrialFailed(watch.cause, _broken_off(watch, spec, run))
    log_text = run.log.decode(errors="replace")
    run.effective = engine.applied(spec.knobs, spec.speculative, props, slots, log_text)
    judge(engine, spec, run.turns, run.effective)


def _client(spec: TrialSpec, base_url: str) -> Client:
    variable = spec.engine.options.get("api_key_env")
    api_key = os.environ.get(str(variable)) if variable else None
    return Client(base_url, api_key=api_key, timeout_s=spec.policy.turn_timeout_s)


def _start(
    engine: Engine,
    spec: TrialSpec,
    device: Device,
    run: _Run,
    deadline: float,
    should_stop: StopRequest,
    stack: contextlib.ExitStack,
) -> server.Server | _Attached:
    """A server that has answered one real token: launched here, or the one at the engine's `url` option."""
    ready_by = min(deadline, time.monotonic() + spec.engine.startup_timeout_s)

    def ready(base_url: str) -> bool:
        return _ready(engine, spec, base_url, ready_by)

    if not engine.facts.launches:
        attached = _Attached(str(spec.engine.options.get("url") or ""))
        _write_launch(run, spec, device, None)
        if not ready(attached.base_url):
            raise TrialFailed(FailureKind.HEALTH_TIMEOUT, f"the server at {attached.base_url} is not ready")
        return attached
    stack.enter_context(_memory_returned(device))
    for attempt in range(1, PORT_ATTEMPTS + 1):
        port = server.free_port(HOST)
        launch = engine.launch_spec(_launch_request(spec, device, port))
        run.launch = LaunchSpec(argv=launch.argv, env={**launch.env, **server.device_variables(device)})
        _write_launch(run, spec, device, port)
        try:
            return stack.enter_context(
                server.running(
                    run.launch,
                    port=port,
                    host=HOST,
                    log_path=run.files.log,
                    startup_timeout_s=max(0.1, ready_by - time.monotonic()),
                    ready=ready,
                    should_stop=should_stop,
                )
            )
        except server.ServerFailed as error:
            with contextlib.suppress(OSError):
                run.log = run.files.log.read_bytes()
            if not isinstance(error, server.PortTaken) or attempt == PORT_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _launch_request(spec: TrialSpec, device: Device, port: int) -> LaunchRequest:
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
    with _client(spec, base_url) as client:
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
        telemetry.wait_memory_back(reader, before_mib, MEMORY_BACK_S)


def _write_launch(run: _Run, spec: TrialSpec, device: Device, port: int | None) -> None:
    content = asdict(spec)
    trace = content.pop("trace")
    content["engine"]["options"] = without_secrets(content["engine"]["options"])
    content["engine"]["env"] = without_secrets(content["engine"]["env"])
    content["build"]["flags"] = sorted(spec.build.flags)
    launch = run.launch
    run.files.write_launch({
        "argv": launch.argv if launch else None,
        "env": without_secrets(launch.env) if launch else None,
        "inherited": sorted(set(server.child_environment({})) - set(launch.env)) if launch else None,
        "port": port,
        "device": asdict(device),
        "trace": trace["header"],
        "spec": content,
        "environment": run.environment,
    })  # fmt: skip


def _ask(client: Client, path: str, missing: Any) -> Any:
    """A page that not every engine has; one that is not there is empty, not an error."""
    try:
        answer = client.get_json(path)
    except RequestError:
        return missing
    return answer if isinstance(answer, type(missing)) else missing


def _turn_records(
    engine: Engine, spec: TrialSpec, played: Sequence[replay.PlayedTurn], log: bytes
) -> tuple[TurnRecord, ...]:
    """Played turns with what the adapter read of them. A parser that fails is our own defect."""
    try:
        counters = engine.parse_trial([entry.exchange for entry in played], log)
    except TrialFailed:
        raise
    except Exception as error:
        raise TrialFailed(
            FailureKind.PARSE_FAILED, f"{engine.name}: the log or the answers cannot be read: {error!r}"
        ) from error
    if len(counters) != len(played):
        message = f"{engine.name}: {len(played)} turns were played, {len(counters)} were read"
        raise TrialFailed(FailureKind.PARSE_FAILED, message)
    return tuple(
        TurnRecord(
            conversation=entry.turn.conversation,
            index=entry.turn.index,
            bucket=entry.turn.bucket,
            order=entry.order,
            counters=dataclasses.replace(figures, flags=(*figures.flags, *entry.flags)),
            exchange=entry.exchange,
            prompt_sha256=entry.prompt_sha256,
            text_sha256=replay.text_sha256(entry.exchange),
            warmup=entry.warmup,
            invalid_reason=sanity.invalid_reason(entry.exchange, figures, spec.policy),
        )
        for entry, figures in zip(played, counters, strict=True)
    )


def _summary(samples: Sequence[telemetry.Sample], turns: Sequence[TurnRecord]) -> TelemetrySummary:
    """Readings from the first counted turn's start to the last one's end, and the ones next to these moments."""
    exchanges = [turn.exchange for turn in turns if not turn.warmup]
    ends = [exchange.end_ns for exchange in exchanges if exchange.end_ns is not None]
    if not exchanges or not ends:
        return telemetry.summarise(())
    next_to_ns = int(telemetry.INTERVAL_S * 1e9)
    first_ns = min(exchange.send_ns for exchange in exchanges)
    return telemetry.summarise(samples, first_ns - next_to_ns, max(ends) + next_to_ns)


def _broken_off(watch: _Watch, spec: TrialSpec, run: _Run) -> str:
    done = sum(1 for turn in run.turns if turn.exchange.error_type is None and not turn.warmup)
    after = f"after {done} of {len(spec.trace.turns)} turns"
    if watch.cause is FailureKind.CRASHED:
        return f"the server ended {after} (exit code {watch.exit_code})"
    if watch.cause is FailureKind.TRIAL_TIMEOUT:
        return f"the trial took longer than {spec.timeout_s:g} s: ended {after}"
    return f"stopped by request {after}"


# ---------------------------------------------------------------- the judgement


def judge(engine: Engine, spec: TrialSpec, turns: Sequence[TurnRecord], effective: Knobs) -> None:
    """Raises TrialFailed if what was measured is not what was asked for, or if nothing was measured."""
    counted = [turn for turn in turns if not turn.warmup]
    for turn in counted:
        exchange = turn.exchange
        if exchange.error_type is not None and not 400 <= (exchange.http_status or 0) < 429:
            message = f"turn {turn.conversation}/{turn.index}: {exchange.error_type}: {exchange.error}"
            raise TrialFailed(FailureKind.REQUEST_FAILED, message)
    if different := not_applied(engine.effective_point(spec.knobs), effective):
        raise TrialFailed(FailureKind.SETTING_NOT_APPLIED, "; ".join(different))
    answered = [turn for turn in counted if turn.exchange.error_type is None]
    if spec.speculative and answered and not _drafted(answered, engine.facts.launches):
        message = "speculation was asked for, but no turn shows a draft token or a verify step"
        raise TrialFailed(FailureKind.DRAFT_INACTIVE, message)
    reasons = Counter(turn.invalid_reason for turn in counted)
    if 2 * reasons["degenerate_output"] >= max(1, len(counted)):
        message = f"{reasons['degenerate_output']} of {len(counted)} turns repeat themselves over and over"
        raise TrialFailed(FailureKind.DEGENERATE_OUTPUT, message)
    if not reasons[None] or metrics.pooled_decode_tps(turns) is None:
        listed = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common() if reason) or "none played"
        first = next((f"; first: {turn.exchange.error}" for turn in counted if turn.exchange.error), "")
        raise TrialFailed(FailureKind.NO_MEASUREMENT, f"no turn can be counted: {listed}{first}")


def _drafted(turns: Sequence[TurnRecord], launched: bool) -> bool:
    """Whether drafting shows anywhere. A foreign server that tells nothing about it is believed; ours is not."""
    told = [n for turn in turns for n in (turn.counters.draft_tokens, turn.counters.verify_steps) if n is not None]
    drafts = [turn.counters.draft_tokens for turn in turns if turn.counters.draft_tokens is not None]
    if not told:
        return not launched
    return any(drafts) if drafts else any(told)


def _same(asked: KnobValue, shown: KnobValue) -> bool:
    numbers = isinstance(asked, int | float) and isinstance(shown, int | float)
    if numbers and isinstance(asked, bool) is isinstance(shown, bool):
        return math.isclose(float(asked), float(shown), rel_tol=REPORTED_VALUE_TOLERANCE, abs_tol=1e-9)  # type: ignore[arg-type]
    return asked == shown


def not_applied(asked: Knobs, shown: Knobs) -> tuple[str, ...]:
    """One sentence for each knob whose shown value is not the one asked for. Knobs not shown say nothing."""
    return tuple(
        f"{name}: asked for {value!r}, the server runs with {shown[name]!r}"
        for name, value in asked.items()
        if value is not None and name in shown and not _same(value, shown[name])
    )
