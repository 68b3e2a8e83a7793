"""One run of the program: configuration in, study driven, findings written, exit code out.

The composition root: the only place where settings, store, pool, driver, report and terminal meet.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from omegaconf import DictConfig

from dflash_sweep import engines, environment, pool, report, server, settings, terminal
from dflash_sweep.analysis.verdicts import judge
from dflash_sweep.driver import Driver
from dflash_sweep.early_verdicts import EarlyVerdicts
from dflash_sweep.errors import ConfigError, StudyFailed
from dflash_sweep.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from dflash_sweep.exporting import metric_lines
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.interrupts import Interrupts
from dflash_sweep.lease import LeaseLost
from dflash_sweep.preflight import Preflight, examine
from dflash_sweep.records import StudyInfo, Verdict
from dflash_sweep.report.outcome import outcome
from dflash_sweep.runner import Context
from dflash_sweep.seeds import derive
from dflash_sweep.settings import Settings
from dflash_sweep.showcase.curator import concluded, curated
from dflash_sweep.store import Store
from dflash_sweep.watcher import Silent

_LOG = logging.getLogger(__name__)


def family(names: Sequence[str], name: str) -> list[str]:
    """The stored studies `name`, `name-2`, `name-3` …, oldest first."""
    pattern = re.compile(re.escape(name) + r"(?:-(\d+))?")
    found = [(int(match.group(1) or 1), candidate) for candidate in names if (match := pattern.fullmatch(candidate))]
    return [candidate for _, candidate in sorted(found)]


def study_name(names: Sequence[str], wanted: str, *, resume: bool) -> tuple[str, str | None]:
    """The name a run uses, and a sentence about it if it is not simply the wanted one.

    A finished or interrupted study is never overwritten: without `resume` a new one gets the next free number, with it
    the newest of the family goes on.
    """
    existing = family(names, wanted)
    if resume:
        if not existing:
            return wanted, f"There is no stored study {wanted!r} yet: it is started."
        return existing[-1], None if existing[-1] == wanted else f"Going on with {existing[-1]!r}."
    if not existing:
        return wanted, None
    last = re.fullmatch(re.escape(wanted) + r"-(\d+)", existing[-1])
    name = f"{wanted}-{int(last.group(1)) + 1 if last else 2}"
    return name, f"A study {existing[-1]!r} is stored already: this one is {name!r} (resume=true goes on with the old)."


def check_folder(folder: Path) -> None:
    """Raises ConfigError if the findings could not be written there: hours later would be late to know."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"report.dir: {folder} cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"report.dir: {folder} cannot be written")


def prepare(chosen: Settings) -> tuple[engines.Engine, Preflight]:
    """Engine and preflight of a run. Raises ConfigError."""
    engine = engines.get(chosen.engine.name)
    preflight = examine(
        engine,
        chosen.engine,
        trace_path=chosen.trace_path,
        max_turns=chosen.config.trace.max_turns,
        policy=chosen.policy,
        space=chosen.space,
        fixed=chosen.fixed,
        plain=chosen.plain,
        seed_points=chosen.seed_points,
        held_out=chosen.held_out,
        devices=lambda: pool.devices_for(
            engine.facts,
            chosen.config.cluster.workers,
            chosen.engine,
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            address=chosen.config.cluster.address,
        ),
    )
    return engine, preflight


def judged(store: Store, name: str) -> tuple[Verdict, ...]:
    """What the rows stored so far allow to conclude."""
    info, trials = store.study(name), store.trials(name)
    return judge(trial_frame(trials), turn_frame(trials), info) if info is not None and trials else ()


def conclude(store: Store, info: StudyInfo, chosen: Settings, code: int) -> terminal.Ending:
    """Judge a study as it is stored now, write its findings, and say how it ended."""
    trials = store.trials(info.name)
    verdicts = judge(trial_frame(trials), turn_frame(trials), info)
    section = chosen.config.report
    path = report.write(
        info,
        trials,
        chosen.report_dir / info.name,
        lang=section.lang,
        formats=tuple(section.formats),
        verdicts=verdicts,
    )
    return terminal.Ending(
        study=info,
        code=code,
        outcome=outcome(info, trials, verdicts),
        verdicts=verdicts,
        findings=path,
        runs=len(trials),
        failed=sum(failure is not None and not failure.kind.is_stop for failure in (t.result.failure for t in trials)),
        metric_lines=metric_lines(trials, info) if chosen.config.metric_lines else (),
    )


def _drive(context: Context, view: terminal.View) -> tuple[StudyInfo, int]:
    """Run the driver; returns the study as stored and the exit code."""
    store, name = context.store, context.settings.study_name
    watcher = EarlyVerdicts(view, lambda: judged(store, name))
    launch_dir = Path(context.provenance["launch_dir"])
    with view, curated(watcher, store, context.settings, launch_dir) as shown, context.interrupts:
        try:
            return Driver(replace(context, watcher=shown)).run(), EXIT_OK
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except LeaseLost as error:  # the study is somebody else's by now: nothing may be stored with it
            shown.note(str(error))
            code = EXIT_FAILED
        except StudyFailed:  # the reason is stored with the study
            code = EXIT_FAILED
    info = store.study(name)
    assert info is not None, "the driver stores the study before anything else"
    return info, code


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a run ended: the study's name as stored, exit code, findings, and the METRIC lines if they were asked for."""

    study: str
    code: int
    findings: Path
    metric_lines: tuple[str, ...] = ()


def drive(cfg: DictConfig, launch_dir: Path, run_dir: Path) -> Finished:
    """One study from its configuration to its findings. Raises ConfigError before anything starts."""
    sampling_seed = derive(int(cfg.seed), "sampling")
    chosen = settings.build(cfg, launch_dir=launch_dir, run_dir=run_dir, sampling_seed=sampling_seed)
    engine, preflight = prepare(chosen)
    check_folder(chosen.report_dir)
    with Store(chosen.storage_url) as store:
        name, sentence = study_name(store.study_names(), chosen.study_name, resume=chosen.config.resume)
        chosen = replace(chosen, study_name=name)
        crew: list[pool.Pool] = []
        view = terminal.view(
            chosen.config.progress,
            terminal.scene(chosen, preflight, engine.facts.measurement, lambda: crew[0].seats() if crew else {}),
        )
        overview = terminal.Overview(
            preflight=preflight, n_trials=chosen.config.n_trials, budget_hours=chosen.config.budget.hours
        )
        strays = [f"note: {name} is set here; it is not passed to the servers" for name in server.stray_variables()]
        view.begin(overview, [*strays, *([sentence] if sentence else [])])
        provenance = {
            **environment.provenance(launch_dir, preflight.devices),
            **environment.configuration(chosen.resolved, chosen.config.seed),
            "launch_dir": str(launch_dir),
            "trace_path": chosen.trace_path,
            "build": asdict(preflight.build),
            "models": [asdict(model) for model in preflight.models],
        }
        interrupts, cluster = Interrupts(), chosen.config.cluster
        with pool.make(
            cluster.kind, preflight.devices, address=cluster.address, should_stop=interrupts.asked
        ) as workers:
            crew.append(workers)
            context = Context(
                settings=chosen,
                preflight=replace(preflight, devices=workers.devices),  # a cluster's are known only now
                engine=engine,
                store=store,
                pool=workers,
                watcher=Silent(),
                provenance=provenance,
                interrupts=interrupts,
            )
            info, code = _drive(context, view)
        ending = conclude(store, info, chosen, code)
        stale = concluded(store, info, chosen, launch_dir, findings=ending.findings, verdicts=ending.verdicts)
        if stale:
            view.note(stale)
        view.end(ending)
    return Finished(study=name, code=code, findings=ending.findings, metric_lines=ending.metric_lines)


def run_study(cfg: DictConfig, launch_dir: Path, run_dir: Path) -> int:
    """Drive a study, print METRIC lines (if asked for) and the path of its findings; returns the exit code."""
    finished = drive(cfg, launch_dir, run_dir)
    terminal.results(str(cfg.progress), [*finished.metric_lines, str(finished.findings)])
    return finished.code
