"""A stored trial, ready to be run again: its spec rebuilt from the store alone, and what differs here and now.

Imports L0 to L3, `store` and `differences`. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dflash_sweep import environment, holdout, traces
from dflash_sweep.differences import Difference, Effect, of_environments, of_specs, spec_data
from dflash_sweep.engines import Engine
from dflash_sweep.errors import ConfigError, StorageError, TraceError
from dflash_sweep.preflight import limit_turns
from dflash_sweep.records import (
    Device,
    EngineSettings,
    ReplayPolicy,
    Role,
    StoredTrial,
    StudyInfo,
    Trace,
    TraceHeader,
    TrialSpec,
)
from dflash_sweep.store import Store

REFUSED_DEVICE = ("device.kind", "device.name")
"""Another card of the same name is the same class of device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A stored trial and its study. `spec` and `plain` are as they were run, the trace found again and whole; `plain`
    is plain decoding of the same study, None where none was measured. `header` is the trace's as it was stored,
    `rows` all trials of the study."""

    info: StudyInfo
    trial: StoredTrial
    spec: TrialSpec
    plain: TrialSpec | None
    header: TraceHeader
    rows: tuple[StoredTrial, ...]
    trace_path: str

    @property
    def name(self) -> str:
        return f"trial {self.trial.number} of study {self.info.name!r}"


def study_of(store: Store, name: str) -> StudyInfo:
    """The stored study. Raises StorageError naming those there are."""
    info = store.study(name)
    if info is None:
        raise StorageError(f"study {name!r} is not stored; there are: {', '.join(store.study_names()) or 'none'}")
    return info


def load(
    store: Store, study: str, number: int, *, launch_dir: Path, trace_path: str | None = None, any_trace: bool = False
) -> Original:
    """Rebuild a trial. `trace_path`: where its trace is now, None = where it was; `any_trace`: take another content.

    Raises StorageError: there is no such trial, or it was imported; TraceError: its trace is gone or another one.
    """
    info = study_of(store, study)
    rows = store.trials(study)
    trial = next((row for row in rows if row.number == number), None)
    if trial is None:
        there = f"its trials are 0 to {rows[-1].number}" if rows else "it has no finished trial"
        raise StorageError(f"study {study!r} has no trial {number}: {there}")
    bare = _bare(store, trial)
    trace, path = _trace(bare, info, launch_dir, trace_path, any_trace=any_trace)
    plain_row = _plain_row(rows, trial)
    plain = None if plain_row is None or not trial.speculative else _bare(store, plain_row)
    return Original(
        info=info,
        trial=trial,
        spec=replace(bare, trace=trace),
        plain=None if plain is None else replace(plain, trace=trace, policy=bare.policy, engine=bare.engine),
        header=bare.trace.header,
        rows=rows,
        trace_path=path,
    )


def _bare(store: Store, trial: StoredTrial) -> TrialSpec:
    """The spec as stored, its trace without turns; early endings left out: a rerun plays every turn."""
    data = store.spec_json(trial.uid)
    if not data:
        raise StorageError(f"trial {trial.number} of study {trial.study!r} was imported: there is nothing to run again")
    data = {**data, "trace": {"header": data.get("trace"), "turns": []}, "prune": [], "models": data.get("models", [])}
    try:
        return msgspec.convert(data, TrialSpec, str_keys=True)
    except msgspec.ValidationError as error:
        raise StorageError(f"trial {trial.number} of study {trial.study!r} cannot be rebuilt: {error}") from error


def _plain_row(rows: Sequence[StoredTrial], trial: StoredTrial) -> StoredTrial | None:
    """The newest run of plain decoding under the same terms; the study's own baseline rather than a control."""
    fitting = [
        row
        for row in rows
        if not row.speculative
        and row.result.failure is None
        and row.role is not Role.CONTROL
        and row.comparability_key == trial.comparability_key
    ]
    return fitting[-1] if fitting else None


# ---------------------------------------------------------------- the trace


def _trace(
    bare: TrialSpec, info: StudyInfo, launch_dir: Path, given: str | None, *, any_trace: bool
) -> tuple[Trace, str]:
    """The trace whose content has the recorded hash, and its path. Raises TraceError saying where it was looked for."""
    wanted = bare.trace.header
    tried: list[str] = []
    other: tuple[Trace, str] | None = None
    for place in _places(wanted, info, launch_dir, given):
        if str(place) in tried:
            continue
        tried.append(str(place))
        try:
            whole = traces.load(traces.resolve(place))
        except TraceError:
            if given is not None:
                raise
            continue
        for variant in _variants(whole, info, bare.policy):
            if variant.header.sha256 == wanted.sha256:
                return variant, str(place)
        other = other or (limit_turns(whole, _section(info, "trace").get("max_turns")), str(place))
    if other is None:
        raise TraceError(
            f"trace {wanted.name!r} is not here any more (looked for {', '.join(tried)}); say where: trace.path=FILE"
        )
    if any_trace:
        return other
    raise TraceError(
        f"trace {other[1]} is not what was replayed: its content is {other[0].header.sha256[:12]}…, the trial's was "
        f"{wanted.sha256[:12]}…; say where that is (trace.path=FILE), or measure with this one (rerun.force=true)"
    )


def _places(wanted: TraceHeader, info: StudyInfo, launch_dir: Path, given: str | None) -> Iterator[str | Path]:
    """Where a trace may be: as told now, as it was found then, as it was named then, and among the shipped ones."""
    if given is not None:
        yield launch_dir / given if (launch_dir / given).is_file() else given
        return
    unpacked = info.provenance.get("traces")
    if isinstance(unpacked, dict) and (found := unpacked.get(wanted.sha256)):
        yield str(found)  # came with an archive
    unpacked = info.provenance.get("traces")  # of a study that came in an archive
    if isinstance(unpacked, dict) and wanted.sha256 in unpacked:
        yield str(unpacked[wanted.sha256])
    if found := info.provenance.get("trace_path"):
        yield str(found)
    for named in (_section(info, "trace").get("path"), _section(info, "protocol").get("held_out")):
        if isinstance(named, str):
            yield launch_dir / named if (launch_dir / named).is_file() else named
    name = wanted.name.partition("[")[0]
    if name in traces.SHIPPED:
        yield name


def _variants(whole: Trace, info: StudyInfo, policy: ReplayPolicy) -> Iterator[Trace]:
    """What a study makes of a trace: all of it, its first turns, the parts of the search and of the confirm phase."""
    yield whole
    first = limit_turns(whole, _section(info, "trace").get("max_turns"))
    yield first
    share = _section(info, "protocol").get("held_out")
    if isinstance(share, float):
        yield from (part for part in holdout.parted(first, share, policy) if part is not None)


def _section(info: StudyInfo, name: str) -> dict[str, Any]:
    section = info.config.get(name)
    return section if isinstance(section, dict) else {}


# ---------------------------------------------------------------- what differs


def renewed(original: TrialSpec, engine: Engine, settings: EngineSettings) -> TrialSpec:
    """The spec as it would run now: the engine as it is set, its build and its model files as they are found.

    Raises EngineMissing or ConfigError where the engine or a file cannot be used.
    """
    return replace(original, engine=settings, build=engine.probe(settings), models=engine.models(settings))


def differences(original: Original, now: TrialSpec, device: Device | None) -> tuple[Difference, ...]:
    """Everything that differs between the trial as it was run and as it would run now, on `device` of this machine.

    `device` None: it is another machine's and not known yet; then only what is asked for, build, models and trace.
    """
    old = spec_data(original.spec)
    old["trace"] = msgspec.to_builtins(original.header)
    if not old["models"]:
        old = {**old, "models": original.info.provenance.get("models") or []}
    asked = of_specs(old, spec_data(now))
    if device is None:
        return asked
    here = environment.collect(device, now)
    return (*asked, *device_differences(original, device), *of_environments(original.trial.result.environment, here))


def device_differences(original: Original, device: Device) -> tuple[Difference, ...]:
    """The device alone: its kind, name, id and memory."""
    return of_environments({"device": asdict(original.trial.result.device)}, {"device": asdict(device)})


def refused(found: Sequence[Difference], engine: Engine) -> tuple[Difference, ...]:
    """The differences that make it another measurement: question, build, models, trace, class of device."""
    return tuple(entry for entry in found if _is_refused(entry, engine))


def _is_refused(entry: Difference, engine: Engine) -> bool:
    if entry.key in REFUSED_DEVICE:
        return True
    if entry.key.startswith("engine.options.") and entry.key.rpartition(".")[2] in engine.facts.machine_options:
        return False
    return entry.effect is Effect.CONFLICT or (entry.effect is Effect.ENVIRONMENT and entry.key.startswith("build."))


def pick(devices: Sequence[Device], then: Device) -> Device:
    """The device that the trial ran on, else one of its name, else the first. Raises ConfigError without any."""
    if not devices:
        raise ConfigError("no device is here to measure on")
    same = [device for device in devices if device.uuid is not None and device.uuid == then.uuid]
    named = [device for device in devices if (device.kind, device.name) == (then.kind, then.name)]
    return next(iter([*same, *named, *devices]))
