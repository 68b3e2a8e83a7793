"""One TrialSpec on one device → one TrialResult. Imports L0 to L3.

The boundary at which exceptions become `Failure` records: whatever goes wrong in a trial is a result, with its kind,
its message and where to read on. Only KeyboardInterrupt (and other exits) pass through, with the server ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import traceback
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dflash_sweep import arms, engines, environment, replay, sanity, server, telemetry, turn_marks
from dflash_sweep.client import Client, RequestError
from dflash_sweep.engines import Engine
from dflash_sweep.errors import ConfigError, FailureKind, TrialFailed
from dflash_sweep.evidence import TrialFiles, without_secrets
from dflash_sweep.hosting import Host, Served, StopRequest, client_for
from dflash_sweep.judge import judge
from dflash_sweep.pruning import Pruner, Stop
from dflash_sweep.records import (
    Device,
    Exchange,
    Failure,
    Knobs,
    LaunchSpec,
    Measurement,
    TelemetrySummary,
    TrialResult,
    TrialSpec,
    Turn,
    TurnRecord,
)
from dflash_sweep.watch import Watch

_LOG = logging.getLogger(__name__)

_FROM_LOG = frozenset({
    FailureKind.LAUNCH_FAILED, FailureKind.HEALTH_TIMEOUT, FailureKind.CRASHED, FailureKind.REQUEST_FAILED,
    FailureKind.TRIAL_TIMEOUT, FailureKind.DRAFT_INACTIVE, FailureKind.NO_MEASUREMENT,
})  # fmt: skip
"""Kinds that only say how we noticed; the server's log may say why."""


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

    @property
    def log_text(self) -> str:
        return self.log.decode(errors="replace")


class Bench:
    """A worker's place of measurement: its device, and the server that is kept between trials that may share one."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._host = Host(device)

    def run(self, spec: TrialSpec, *, should_stop: StopRequest | None = None) -> TrialResult:
        """See `run_trial`."""
        return _Trial(spec, self._host, should_stop or _never).result()

    def close(self) -> None:
        """End the server that is kept, if there is one."""
        self._host.close()


def run_trial(spec: TrialSpec, device: Device, *, should_stop: StopRequest | None = None) -> TrialResult:
    """Launch, check, replay, parse, judge, end. Never raises but for KeyboardInterrupt and the like.

    The evidence folder gets launch.json before the start; server.log, turns.jsonl, telemetry.jsonl and result.json in
    the end. `should_stop` ends the trial early: its result is worker_lost, with the turns measured so far.
    """
    with contextlib.closing(Bench(device)) as bench:
        return bench.run(spec, should_stop=should_stop)


def _never() -> bool:
    return False


class _Trial:
    """One trial while it runs."""

    def __init__(self, spec: TrialSpec, host: Host, should_stop: StopRequest) -> None:
        self._spec, self._host, self._should_stop = spec, host, should_stop
        self._began, self._started = time.monotonic(), datetime.now(UTC)
        self._deadline = self._began + spec.timeout_s
        self._run = _Run(files=TrialFiles(Path(spec.evidence_dir)))
        self._engine: Engine | None = None
        rule = next((rule for rule in spec.prune if rule.device == host.device.name), None)
        self._pruner = Pruner(rule) if rule is not None and spec.policy.mode == "teacher_forced" else None

    def result(self) -> TrialResult:
        failure: Failure | None = None
        try:
            self._engine = engines.get(self._spec.engine.name)
            self._measure(self._engine)
        except TrialFailed as error:
            late = error.kind is FailureKind.HEALTH_TIMEOUT and time.monotonic() > self._deadline
            failure = self._failure(FailureKind.TRIAL_TIMEOUT if late else error.kind, error)
        except ConfigError as error:
            failure = self._failure(FailureKind.INVALID_CONFIG, error)
        except OSError as error:  # this machine, not this setting: a full disk, no more processes
            failure = self._failure(FailureKind.WORKER_LOST, error)
        except Exception as error:  # the trial boundary  # noqa: BLE001
            failure = self._failure(FailureKind.PARSE_FAILED, error)
        result = self._assembled(failure)
        with contextlib.suppress(OSError):  # the result itself is sent back even where the disk is full
            if failure is not None and failure.traceback:
                self._run.files.write_traceback(failure.traceback)
            self._run.files.write_result(result)
        return result

    def _assembled(self, failure: Failure | None) -> TrialResult:
        run, engine, spec = self._run, self._engine, self._spec
        return TrialResult(
            uid=spec.uid,
            measurement=engine.facts.measurement if engine is not None else Measurement.MEASURED,
            clock=clock_of(engine, spec),
            device=self._host.device,
            turns=run.turns,
            failure=failure,
            launch=run.launch,
            effective=run.effective,
            memory_mib=run.memory_mib,
            telemetry=run.telemetry,
            environment=run.environment,
            worker=f"{socket.gethostname()}:{os.getpid()}",
            started_utc=self._started.isoformat(timespec="milliseconds"),
            load_s=run.load_s,
            wall_s=time.monotonic() - self._began,
        )

    def _failure(self, kind: FailureKind, error: Exception) -> Failure:
        """The failure record: the log may know better than we how it came."""
        run, message = self._run, str(error) or type(error).__name__
        exit_code = error.exit_code if isinstance(error, server.ServerFailed) else run.exit_code
        if not run.log:
            with contextlib.suppress(OSError):
                run.log = run.files.log.read_bytes()
        expected = isinstance(error, TrialFailed | ConfigError)
        if kind in _FROM_LOG and self._engine is not None and not isinstance(error, server.PortTaken):
            with contextlib.suppress(Exception):  # a parser that fails here must not hide the failure itself
                if (seen := self._engine.classify(run.log_text, exit_code)) is not None:
                    kind, message = seen[0], f"{seen[1]} ({message})"
        if not expected:
            message = f"unexpected {type(error).__name__}: {message}"
        return Failure(
            kind=kind,
            message=message,
            exit_code=exit_code,
            log_path=str(run.files.log) if run.files.log.exists() else None,
            log_tail=run.log_text[-server.LOG_TAIL_BYTES :],
            traceback="" if expected and not kind.is_our_fault else "".join(traceback.format_exception(error)),
        )

    # ------------------------------------------------------------ the steps

    def _measure(self, engine: Engine) -> None:
        spec, run = self._spec, self._run
        run.environment = environment.collect(self._host.device, spec)
        with self._host.serve(
            engine,
            spec,
            run.files,
            deadline=self._deadline,
            should_stop=self._should_stop,
            before_start=self._write_launch,
        ) as served, client_for(spec, served.base_url) as client:  # fmt: skip
            run.load_s = served.load_s
            reader = telemetry.reader_for(self._host.device, served.processes)
            watch = Watch(served, client, self._deadline, self._should_stop)
            with telemetry.Sampler(reader) as sampler, watch:
                played = self._play(engine, served, client, watch)
            props = {} if watch.cause else _ask(client, watch, "/props", {})
            slots = [] if watch.cause else _ask(client, watch, "/slots", [])
            watch.look_again()
            run.exit_code, served.reusable = watch.exit_code, watch.cause in (None, FailureKind.PRUNED)
        run.log = served.read_log()
        if served.launch is not None:
            run.files.write_log(run.log)
        run.files.write_telemetry(sampler.samples)
        self._read_turns(engine, played, sampler.samples, broken_off=watch.cause is not None)
        run.telemetry = _summary(sampler.samples, run.turns)
        self._leave_if_warm(served)
        self._look_at_speed(watch)
        if watch.cause is not None:
            raise TrialFailed(watch.cause, self._broken_off(watch))
        run.memory_mib = engine.memory_mib(run.log_text)
        run.effective = engine.applied(spec.knobs, spec.speculative, props, slots, run.log_text)
        judge(engine, spec, run.turns, run.effective)
        self._look_for_memory(engine)

    def _look_for_memory(self, engine: Engine) -> None:
        """A server that runs out of memory in a step may live on and end the answer there: fast, and worth nothing."""
        short = [turn for turn in self._run.turns if not turn.warmup and turn.invalid_reason is not None]
        seen = engine.classify(self._run.log_text, None) if short else None
        if seen is not None and seen[0] is FailureKind.OUT_OF_MEMORY:
            raise TrialFailed(*seen)

    def _play(self, engine: Engine, served: Served, client: Client, watch: Watch) -> tuple[replay.PlayedTurn, ...]:
        spec = self._spec
        return replay.play(
            spec.trace,
            spec.policy,
            client,
            request_fields=lambda bucket: engine.request_fields(spec.engine, spec.knobs, bucket),
            log_size=served.log_size,
            on_turn=lambda turn, exchange: watch.go_on(exchange, lambda: self._worse(engine, served, turn, exchange)),
            metrics_path=engine.facts.metrics_path,
            arm_offset=zlib.crc32(spec.uid.encode()),
        )

    def _worse(self, engine: Engine, served: Served, turn: Turn, exchange: Exchange) -> Stop | None:
        """Whether the turns so far show that this trial is surely worse than the best candidate on such a device.

        Read as the whole trial will be, but from the turn's own piece of the log; what cannot be read yet says nothing.
        """
        spec, pruner = self._spec, self._pruner
        if pruner is None or spec.policy.concurrency != 1 or exchange.arm != spec.policy.arms[0]:
            return None
        try:
            (counters,) = engine.parse_trial([replace(exchange, log_start=0)], served.read_log(exchange.log_start))
        except Exception:  # the end of the trial will say what is wrong with the log  # noqa: BLE001
            return None
        if sanity.invalid_reason(exchange, counters, spec.policy) is not None:
            return None
        fields = engine.request_fields(spec.engine, spec.knobs, turn.bucket)
        payload = replay.build_payload(turn, spec.policy, fields, spec.trace.header.template_kwargs)
        return pruner.take(turn.conversation, turn.index, replay.prompt_sha256(payload), exchange, counters)

    def _read_turns(
        self,
        engine: Engine,
        played: Sequence[replay.PlayedTurn],
        samples: Sequence[telemetry.Sample],
        *,
        broken_off: bool,
    ) -> None:
        """Turns with what the adapter reads of them. A parser that fails is our own defect, unless the log was cut."""
        try:
            turns = turn_records(engine, self._spec, played, self._run.log)
            self._run.turns = _with_throttling(turns, telemetry.slow_moments(samples) or ())
        except TrialFailed:
            if not broken_off:
                raise
        self._run.files.write_turns(self._run.turns)

    def _leave_if_warm(self, served: Served) -> None:
        """A server that still had prompts of an earlier trial is not used again; the turns say so by a mark."""
        found = any(turn_marks.CACHE_NOT_COLD in turn.counters.flags for turn in self._run.turns)
        if found and served.launch is not None and served.load_s is None:
            _LOG.warning("%s: the shared server was not cold; it is ended", self._spec.uid)
            self._host.close()

    def _look_at_speed(self, watch: Watch) -> None:
        """Raises TrialFailed (throttled) where a device that slowed down is to be tried again: also instead of an early
        stop, which it may have caused."""
        summary = self._run.telemetry
        if self._spec.retry_throttled and summary.throttled and watch.cause in (None, FailureKind.PRUNED):
            clocks = (summary.min_sm_clock_mhz, summary.max_sm_clock_mhz)
            words = "" if None in clocks else f" (SM clock {clocks[0]:g} to {clocks[1]:g} MHz)"
            hot = "" if summary.max_temperature_c is None else f", up to {summary.max_temperature_c:g} °C"
            raise TrialFailed(FailureKind.THROTTLED, f"the device slowed down during the run{words}{hot}")

    def _broken_off(self, watch: Watch) -> str:
        done = sum(
            turn.exchange.error_type is None and not turn.warmup and not arms.is_other(turn.invalid_reason)
            for turn in self._run.turns
        )
        after = f"after {done} of {len(self._spec.trace.turns)} turns"
        if watch.cause is FailureKind.PRUNED:
            return f"stopped early {after}: {watch.stop}"
        if watch.cause is FailureKind.CRASHED:
            return f"the server ended {after} (exit code {watch.exit_code})"
        if watch.cause is FailureKind.TRIAL_TIMEOUT:
            return f"the trial took longer than {self._spec.timeout_s:g} s: ended {after}"
        return f"stopped by request {after}"

    def _write_launch(self, launch: LaunchSpec | None, port: int | None) -> None:
        """What is about to run goes to disk first: if it takes the machine down, this file says what it was."""
        self._run.launch = launch
        content = asdict(replace(self._spec, trace=replace(self._spec.trace, turns=())))
        content["trace"] = content["trace"]["header"]
        content["engine"] |= {name: without_secrets(content["engine"][name]) for name in ("options", "env")}
        content["build"]["flags"] = sorted(content["build"]["flags"])
        self._run.files.write_launch({
            "argv": launch.argv if launch else None,
            "env": without_secrets(launch.env) if launch else None,
            "inherited": sorted(set(server.child_environment({})) - set(launch.env)) if launch else None,
            "port": port,
            "device": asdict(self._host.device),
            "spec": content,
            "environment": self._run.environment,
        })  # fmt: skip


def clock_of(engine: Engine | None, spec: TrialSpec) -> str:
    """Whether the server's times pass for real: its `clock` option where it has one, else real."""
    defaults = {option.name: option.default for option in engine.options} if engine is not None else {}
    return str(spec.engine.options.get("clock") or defaults.get("clock") or "real")


def _ask(client: Client, watch: Watch, path: str, missing: Any) -> Any:
    """A page that not every engine has: one that is not there is empty. No answer at all may be a server's end."""
    try:
        answer = client.get_json(path)
    except RequestError as error:
        watch.look_again(broken=error.status is None)
        return missing
    return answer if isinstance(answer, type(missing)) else missing


def turn_records(
    engine: Engine, spec: TrialSpec, played: Sequence[replay.PlayedTurn], log: bytes
) -> tuple[TurnRecord, ...]:
    """Played turns with the adapter's counters and whether each may count. Raises TrialFailed (parse_failed)."""
    try:
        counters = engine.parse_trial([entry.exchange for entry in played], log)
    except Exception as error:
        message = f"{engine.name}: the log or the answers cannot be read: {error!r}"
        raise TrialFailed(FailureKind.PARSE_FAILED, message) from error
    if len(counters) != len(played):
        message = f"{engine.name}: {len(played)} turns were played, {len(counters)} were read"
        raise TrialFailed(FailureKind.PARSE_FAILED, message)
    marks = replay.marks_of(played, counters, spec.policy)
    return tuple(
        TurnRecord(
            conversation=entry.turn.conversation,
            index=entry.turn.index,
            bucket=entry.turn.bucket,
            order=entry.order,
            counters=replace(figures, flags=(*figures.flags, *own)),
            exchange=entry.exchange,
            prompt_sha256=entry.prompt_sha256,
            text_sha256=replay.text_sha256(entry.exchange),
            warmup=entry.warmup,
            invalid_reason=arms.invalid_reason(
                spec.policy, entry.exchange.arm, sanity.invalid_reason(entry.exchange, figures, spec.policy)
            ),
        )
        for entry, figures, own in zip(played, counters, marks, strict=True)
    )


def _with_throttling(turns: Sequence[TurnRecord], moments: Sequence[int]) -> tuple[TurnRecord, ...]:
    """The turns, those marked during which the device was seen to be slowed down."""
    return tuple(
        replace(turn, counters=replace(turn.counters, flags=(*turn.counters.flags, turn_marks.THROTTLED)))
        if any(turn.exchange.send_ns <= moment <= (turn.exchange.end_ns or moment) for moment in moments)
        else turn
        for turn in turns
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
