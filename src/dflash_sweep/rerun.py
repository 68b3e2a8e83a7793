"""`rerun.trial=N` and `dflash-sweep rerun`: a stored trial measured again beside plain decoding, and judged.

The trial is rebuilt from the store alone. Its new runs are stored as a study of their own (`<study>-trial-N-rerun`,
role rerun), so that nothing of the first study's statistics changes. Imports everything below and `report`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dflash_sweep import engines, environment, originals, owner, pool, repeating, settings, standing, terminal
from dflash_sweep.analysis import reproduction
from dflash_sweep.analysis.noise import spreads
from dflash_sweep.analysis.reproduction import Outcome, Reproduction
from dflash_sweep.analysis.rows import objective_column
from dflash_sweep.differences import Difference, words
from dflash_sweep.engines import Engine
from dflash_sweep.errors import ConfigError, StudyFailed
from dflash_sweep.exits import EXIT_DIFFERS, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNDECIDED
from dflash_sweep.frames import trial_frame
from dflash_sweep.interrupts import Interrupts
from dflash_sweep.lease import Lease, holder
from dflash_sweep.metrics import METRIC
from dflash_sweep.originals import Original
from dflash_sweep.pool import Pool
from dflash_sweep.preflight import bind_options
from dflash_sweep.records import Device, EngineSettings, StoredTrial, StudyInfo, TrialSpec
from dflash_sweep.report import console, rerun_page
from dflash_sweep.run import study_name
from dflash_sweep.schema import Config, EngineConfig
from dflash_sweep.store import Store

_OWN_WORDS = (
    "study=", "study_name=", "rerun.", "storage=", "storage.", "cluster=", "cluster.", "report=", "report.",
    "progress=", "verbose=", "hydra.", "engine.", "trace.path=",
)  # fmt: skip
"""What a command line may say beside the trial; everything else is taken from the store."""

_CODES = {
    Outcome.REPRODUCED: EXIT_OK,
    Outcome.DRIFTED: EXIT_DIFFERS,
    Outcome.NOT_REPRODUCED: EXIT_DIFFERS,
    Outcome.INCONCLUSIVE: EXIT_UNDECIDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is run: the trial and plain decoding (None = none) as they would run now, and what differs from then.

    `devices`: what a pool is opened over; `device`: the one to measure on, None = only an open pool can say.
    """

    engine: Engine
    spec: TrialSpec
    plain: TrialSpec | None
    devices: tuple[Device, ...]
    device: Device | None
    found: tuple[Difference, ...]


def check_words(overrides: Sequence[str]) -> None:
    """Raises ConfigError for an override that would change what is measured without being part of a rerun."""
    for word in overrides:
        bare = word.lstrip("+~")
        if not bare.startswith(_OWN_WORDS) or bare.startswith("engine.name="):
            raise ConfigError(
                f"{word}: a rerun takes what it measures from the store; it takes engine.* (but the name), trace.path, "
                "storage, cluster, report, progress, verbose and rerun.*"
            )


def margin_share(config: Config) -> float | None:
    """`rerun.margin` as a share; None = from the noise. Raises ConfigError."""
    percent = config.rerun.margin
    if percent is not None and not 0 < percent <= 100:
        raise ConfigError(f"rerun.margin={percent:g}: must be more than 0 and at most 100 (percent)")
    return None if percent is None else percent / 100


def changed_engine(stored: EngineSettings, config: EngineConfig, overrides: Sequence[str]) -> EngineConfig:
    """The stored engine section with those keys replaced that the command line names."""
    section: dict[str, Any] = {field.name: getattr(stored, field.name) for field in fields(EngineConfig)}
    section["options"], section["env"] = dict(stored.options), dict(stored.env)
    section["extra_args"] = list(stored.extra_args)
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        parts = key.split(".")
        if parts[0] != "engine":
            continue
        if len(parts) == 3 and parts[1] in ("options", "env"):
            section[parts[1]][parts[2]] = getattr(config, parts[1]).get(parts[2])
        else:
            section[parts[1]] = getattr(config, parts[1])
    return EngineConfig(**section)


def plan(original: Original, config: Config, overrides: Sequence[str], launch_dir: Path) -> Plan:
    """What would run now, and what differs. Raises ConfigError where it cannot run, or is not the same measurement."""
    engine = engines.get(original.spec.engine.name)
    section = changed_engine(original.spec.engine, config.engine, overrides)
    wanted = bind_options(engine, settings.engine_settings(section, launch_dir))
    spec = originals.renewed(original.spec, engine, wanted)
    problems = engine.check(spec.engine, spec.build, spec.knobs)
    if problems:
        raise ConfigError(f"{original.name} cannot be run here: {problems[0]}")
    devices, device = _devices(engine, original, spec, config)
    found = originals.differences(original, spec, device)
    _refuse(original, engine, found, force=config.rerun.force)
    plain = None
    if original.plain is not None:
        plain = replace(original.plain, engine=wanted, build=spec.build, models=spec.models)
    return Plan(engine=engine, spec=spec, plain=plain, devices=devices, device=device, found=found)


def _devices(
    engine: Engine, original: Original, spec: TrialSpec, config: Config
) -> tuple[tuple[Device, ...], Device | None]:
    """One device, the original's if it is here; on a cluster all workers', to be chosen from once they are known."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    facts, address = engine.facts, config.cluster.address
    if address != "local":
        return pool.devices_for(facts, config.cluster.workers, spec.engine, visible, address=address), None
    cards = environment.gpus(visible) if facts.launches and facts.accelerator == "gpu" else ()
    devices = pool.devices_for(facts, max(1, len(cards)), spec.engine, visible)
    device = originals.pick(devices, original.trial.result.device)
    return (device,), device


def _refuse(original: Original, engine: Engine, found: Sequence[Difference], *, force: bool) -> None:
    refused = originals.refused(found, engine)
    if refused and not force:
        raise ConfigError(
            f"{original.name} would not be the same measurement: {words(refused)}; restore it, or measure it all the "
            "same with rerun.force=true (dflash-sweep rerun … --force): the result is then marked"
        )


# ---------------------------------------------------------------- judging


def judged(original: Original, runs: Sequence[StoredTrial], margin: float | None) -> Reproduction:
    """The judgement of the new runs. `margin` is a share; None = from the study's noise."""
    objective, trial = original.info.objective, original.trial
    again = [run for run in runs if run.speculative == trial.speculative]
    if _is_failure(trial) or any(map(_is_failure, again)):
        by_failure = reproduction.judge_failure(_kind(trial), [_kind(run) for run in again])
        if by_failure is not None:
            return by_failure
    frame = trial_frame(original.rows)
    noise, plain_noise = spreads(frame, objective_column(frame, objective))
    plain_rows = [run for run in runs if not run.speculative]
    knobs = plain_rows[0].knobs if plain_rows else None
    fellows = [
        row
        for row in original.rows
        if not row.speculative and row.knobs == knobs and row.comparability_key == trial.comparability_key
    ]
    return reproduction.judge(
        figures([trial], objective),
        figures(again, objective),
        plain_then=figures(fellows, objective),
        plain_now=figures(plain_rows, objective),
        spread=noise if trial.speculative else plain_noise,
        plain_spread=plain_noise,
        margin=margin,
        unit=METRIC[objective].unit,
    )


def _is_failure(trial: StoredTrial) -> bool:
    """An early end is none: the trial was only not measured to its end."""
    return trial.result.failure is not None and not trial.result.failure.kind.is_stop


def _kind(trial: StoredTrial) -> str | None:
    return str(trial.result.failure.kind) if trial.result.failure is not None and _is_failure(trial) else None


def figures(trials: Sequence[StoredTrial], objective: str) -> list[float]:
    """The positive figures of those that have one."""
    found = (standing.value(trial, objective) for trial in trials)
    return [value for value in found if value is not None and value > 0]


# ---------------------------------------------------------------- the command


class _Sayer:
    """Lines on standard error while a rerun goes on; nothing under progress=quiet or json."""

    def __init__(self, config: Config, objective: str) -> None:
        self._silent = config.progress in ("quiet", "json")
        self._objective, self._unit = objective, METRIC[objective].unit
        self._out = terminal.console()

    def __call__(self, text: str) -> None:
        if not self._silent:
            self._out.print(text, markup=False, soft_wrap=True)

    def run(self, trial: StoredTrial) -> None:
        """One finished run in one line."""
        who = "the trial" if trial.speculative else "plain decoding"
        failure, value = trial.result.failure, standing.value(trial, self._objective)
        figure = "no figure" if value is None else f"{value:.2f} {self._unit}"
        self(f"  run {trial.repeat + 1}, {who}: {f'{failure.kind}: {failure.message}' if failure else figure}")


def running_here(store: Store) -> list[str]:
    """Studies of this database that a living driver on this machine is measuring."""
    held = ((name, holder(store, name)) for name in store.study_names())
    return [name for name, found in held if found is not None and found.is_here and not found.is_gone]


def run_rerun(config: Config, overrides: Sequence[str], launch_dir: Path, run_dir: Path) -> int:
    """Rerun one trial: checks, runs, judgement, page. Gives the exit code. Raises ConfigError before anything runs."""
    check_words(overrides)
    settings.check(config)
    options = config.rerun
    margin_share(config)
    assert options.trial is not None, "a rerun of one trial was asked for"
    with Store(settings.absolute_url(config.storage.url, launch_dir), create=False) as store:
        trace = config.trace.path if any(word.lstrip("+").startswith("trace.path=") for word in overrides) else None
        original = originals.load(
            store, config.study_name, options.trial, launch_dir=launch_dir, trace_path=trace, any_trace=options.force
        )
        found = plan(original, config, overrides, launch_dir)
        name, _ = study_name(store.study_names(), f"{config.study_name}-trial-{options.trial}-rerun", resume=False)
        info = _described(original, found, name, config, launch_dir)
        say = _Sayer(config, original.info.objective)
        beside = "" if found.plain is None else " beside plain decoding"
        interrupts = Interrupts()
        say(f"Rerun of {original.name} as {name!r}: {options.repeats} runs{beside}.")
        say(f"Differs from then: {words(found.found)}.")
        for busy in running_here(store):
            say(f"Note: study {busy!r} is being measured on this machine; both disturb each other.")
        with (
            Lease(store, name, owner.current()),
            pool.make(
                config.cluster.kind,
                found.devices,
                address=config.cluster.address,
                should_stop=interrupts.asked,
            ) as workers,
        ):
            found = _on_device(original, found, workers, force=options.force)
            store.save_study(info)
            origin = environment.origin(info.provenance)
            devices = tuple(device.uuid or device.name for device in workers.devices)
            specs = repeating.blocks(
                tuple(
                    replace(spec, origin=origin, devices=devices)
                    for spec in (found.spec, found.plain)
                    if spec is not None
                ),
                name,
                options.repeats,
                run_dir=run_dir,
                seed=original.info.seed,
                launch_seeds=any(option.name == "launch_seed" for option in found.engine.options),
            )
            try:
                device, retries = found.device or workers.devices[0], _retries(original)
                with interrupts:
                    runs = repeating.measure(store, workers, device, specs, retries, say.run, interrupts)
            except (KeyboardInterrupt, StudyFailed) as error:
                return _ended(store, info, error, say)
        return _conclude(store, info, original, found, runs, config, launch_dir)


def _on_device(original: Original, found: Plan, workers: Pool, *, force: bool) -> Plan:
    """The plan with its device; on a cluster it is known, and compared with the original's, only now."""
    if found.device is not None:
        return found
    device = originals.pick(workers.devices, original.trial.result.device)
    differences = (*found.found, *originals.device_differences(original, device))
    _refuse(original, found.engine, differences, force=force)
    return replace(found, device=device, found=differences)


def _described(original: Original, found: Plan, name: str, config: Config, launch_dir: Path) -> StudyInfo:
    """The new runs' own study: the first one's description without its conclusions, and what it is a rerun of."""
    return StudyInfo(
        name=name,
        engine=original.info.engine,
        measurement=found.engine.facts.measurement,
        objective=original.info.objective,
        direction=original.info.direction,
        axes=original.info.axes,
        seed=original.info.seed,
        created_utc=_now(),
        config=original.info.config,
        provenance={
            **environment.provenance(launch_dir, found.devices),
            "launch_dir": str(launch_dir),
            "trace_path": original.trace_path,
            "build": asdict(found.spec.build),
            "models": [asdict(model) for model in found.spec.models],
            "rerun": {
                "study": original.info.name,
                "trial": original.trial.number,
                "uid": original.trial.uid,
                "repeats": config.rerun.repeats,
                "forced": bool(originals.refused(found.found, found.engine)),
                "differences": [str(entry) for entry in found.found],
            },
        },
    )


def _conclude(
    store: Store,
    info: StudyInfo,
    original: Original,
    found: Plan,
    runs: tuple[StoredTrial, ...],
    config: Config,
    launch_dir: Path,
) -> int:
    verdict = judged(original, runs, margin_share(config))
    told = {**info.provenance["rerun"], "outcome": str(verdict.outcome), "statement": verdict.statement}
    info = replace(info, status="finished", finished_utc=_now(), provenance={**info.provenance, "rerun": told})
    store.save_study(info)
    page = rerun_page.Rerun(
        info=info,
        original=original.trial,
        runs=runs,
        judgement=verdict,
        found=found.found,
        refused=originals.refused(found.found, found.engine),
    )
    document = rerun_page.document(page)
    if config.progress == "quiet":
        terminal.console().print(verdict.statement, markup=False, soft_wrap=True)
    elif config.progress != "json":
        terminal.console().print(console.rendered(document))
    path = rerun_page.write(page, document, (launch_dir / config.report.dir / info.name).resolve())
    code = _CODES[verdict.outcome]
    if config.progress == "json":
        failed = sum(map(_is_failure, runs))
        terminal.write_end(
            sys.stdout, info.name, code, findings=str(path), status=info.status, runs=len(runs), failed=failed
        )
    terminal.results(config.progress, [str(path)])
    return code


def _ended(store: Store, info: StudyInfo, error: BaseException, say: _Sayer) -> int:
    interrupted = isinstance(error, KeyboardInterrupt)
    status, reason = ("interrupted", "interrupted by the user") if interrupted else ("failed", str(error))
    store.save_study(replace(info, status=status, stop_reason=reason, finished_utc=_now()))
    store.forget_running(info.name, [owner.current()])
    say(f"{reason}: what was measured is kept, and nothing is judged.")
    return EXIT_INTERRUPTED if interrupted else EXIT_FAILED


def _retries(original: Original) -> int:
    section = original.info.config.get("protocol")
    return int(section.get("retries", 2)) if isinstance(section, dict) else 2


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
