"""`rerun.study=NAME` and `dflash-sweep rerun NAME`: a whole stored study again, and whether it came out.

The configuration is the stored one; only where it runs and where it is written comes from the command line. The new
study is `NAME-again`, driven like any other. Imports everything below, `run`, `rerun` and `report`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dflash_sweep import originals, rerun, run, settings, terminal
from dflash_sweep.analysis import reproduction
from dflash_sweep.analysis.intervals import Spread
from dflash_sweep.analysis.noise import spreads
from dflash_sweep.analysis.reproduction import Outcome, Reproduction
from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.exits import EXIT_DIFFERS, EXIT_OK, EXIT_UNDECIDED
from dflash_sweep.frames import trial_frame
from dflash_sweep.metrics import METRIC
from dflash_sweep.records import Role, StoredTrial, StudyInfo
from dflash_sweep.report import console, rerun_study_page
from dflash_sweep.report.rerun_study_page import Part, StudyRerun
from dflash_sweep.store import Store

_WHERE = ("storage", "report", "progress", "verbose")
"""Keys that the command line decides; of `cluster` and `engine` only what it names."""

_PATHS = ("engine.binary", "engine.model", "engine.draft_model", "trace.path")


def stored_config(info: StudyInfo, cfg: DictConfig, overrides: Sequence[str], launch_dir: Path) -> DictConfig:
    """The stored configuration with what the command line says of where to run. Raises ConfigError.

    Relative paths of the stored one count from the directory the study was launched in, where they still exist.
    """
    if not info.config:
        raise StorageError(f"study {info.name!r} was imported: there is nothing to run again")
    own = OmegaConf.create(info.config)
    assert isinstance(own, DictConfig), "a stored configuration is a mapping"
    then = Path(str(info.provenance.get("launch_dir") or launch_dir))
    for key in _PATHS:
        value = OmegaConf.select(own, key)
        if value is not None and (then / str(value)).exists():
            OmegaConf.update(own, key, str(then / str(value)))
    own.study_name = f"{info.name}-again"
    own.resume = False
    for name in _WHERE:
        own[name] = cfg[name]
    own.rerun = {**(OmegaConf.to_container(cfg.rerun) or {}), "study": info.name, "trial": None}  # type: ignore[dict-item]
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key == "cluster":
            own.cluster = cfg.cluster
        elif key.startswith(("cluster.", "engine.")) or key == "trace.path":
            try:
                OmegaConf.update(own, key, OmegaConf.select(cfg, key), force_add=True)
            except OmegaConfBaseException as error:
                raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error
    return own


def run_study_again(cfg: DictConfig, overrides: Sequence[str], launch_dir: Path, run_dir: Path) -> int:
    """Repeat a study, judge it part by part, and write the page. Gives the exit code. Raises ConfigError."""
    rerun.check_words(overrides)
    config = settings.merge(cfg)
    settings.check(config)
    url = settings.absolute_url(config.storage.url, launch_dir)
    margin = rerun.margin_share(config)
    with Store(url, create=False) as store:
        info = originals.study_of(store, str(config.rerun.study))
        own = stored_config(info, cfg, overrides, launch_dir)
        _same_terms(store, info, own, overrides, launch_dir)
    finished = run.drive(own, launch_dir, run_dir)
    if finished.code != EXIT_OK:
        terminal.results(config.progress, [str(finished.findings)])
        return finished.code
    with Store(url, create=False) as store:
        again = originals.study_of(store, finished.study)
        page = compared(info, store.trials(info.name), again, store.trials(again.name), margin)
    document = rerun_study_page.document(page)
    if config.progress not in ("json", "quiet"):
        terminal.console().print(console.rendered(document))
    path = rerun_study_page.write(page, document, finished.findings.parent)
    code = {Outcome.REPRODUCED: EXIT_OK, Outcome.INCONCLUSIVE: EXIT_UNDECIDED}.get(page.outcome, EXIT_DIFFERS)
    if config.progress == "json":
        terminal.write_end(sys.stdout, again.name, code, findings=str(path), status=again.status)
    terminal.results(config.progress, [str(path)])
    return code


def _same_terms(store: Store, info: StudyInfo, own: DictConfig, overrides: Sequence[str], launch_dir: Path) -> None:
    """Refuses another build, model, trace or device like a trial's rerun does: by the study's first run."""
    rows = store.trials(info.name)
    if not rows:
        raise StorageError(f"study {info.name!r} has no finished trial: there is nothing to compare with")
    config = settings.merge(own)
    original = originals.load(
        store,
        info.name,
        rows[0].number,
        launch_dir=launch_dir,
        trace_path=config.trace.path if any(word.startswith("trace.path=") for word in overrides) else None,
        any_trace=config.rerun.force,
    )
    rerun.plan(original, config, overrides, launch_dir)


# ---------------------------------------------------------------- judging


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noise:
    speculative: Spread | None
    plain: Spread | None


def compared(
    then: StudyInfo,
    rows_then: Sequence[StoredTrial],
    now: StudyInfo,
    rows_now: Sequence[StoredTrial],
    margin: float | None,
) -> StudyRerun:
    """Plain decoding, the default setting, the confirmed setting and every candidate of both, each judged alone.

    The study's own outcome is that of its first three: single candidates have one run on each side and are counted.
    """
    noise = _Noise(**dict(zip(("speculative", "plain"), spreads(trial_frame(rows_then), then.objective), strict=True)))
    parts = tuple(
        Part(name=name, judgement=_judge(then, first, second, rows_then, rows_now, noise, margin))
        for name, first, second in _pairs(then, rows_then, rows_now)
    )
    candidates = _candidates(rows_then), _candidates(rows_now)
    both = [number for number in candidates[0] if number in candidates[1]]
    same = [number for number in both if candidates[0][number].knobs == candidates[1][number].knobs]
    singles = {
        number: _judge(then, [candidates[0][number]], [candidates[1][number]], (), (), noise, margin) for number in same
    }
    return StudyRerun(
        then=then,
        now=now,
        parts=parts,
        outcome=_overall([part.judgement for part in parts]),
        n_candidates=max(map(len, candidates)),
        n_same=len(same),
        n_apart=sum(found.change is not None and found.change.shown for found in singles.values()),
        unit=METRIC[then.objective].unit,
    )


def _candidates(rows: Sequence[StoredTrial]) -> dict[int, StoredTrial]:
    return {row.candidate: row for row in rows if row.role is Role.SEARCH and row.candidate is not None}


def _pairs(
    info: StudyInfo, then: Sequence[StoredTrial], now: Sequence[StoredTrial]
) -> Iterator[tuple[str, list[StoredTrial], list[StoredTrial]]]:
    """Name and rows then and now of plain decoding, the default setting and the confirmed one, those there are."""
    groups: list[tuple[str, Callable[[StoredTrial], bool]]] = [
        ("plain decoding", lambda row: not row.speculative and row.role is not Role.CONTROL),
        ("the default setting", lambda row: row.role is Role.CALIBRATE),
    ]
    winner = info.confirmed_candidate
    if winner is not None:
        groups.append(
            (f"candidate {winner}, confirmed", lambda row: row.role is Role.CONFIRM and row.candidate == winner)
        )
    for name, chosen in groups:
        first, second = [row for row in then if chosen(row)], [row for row in now if chosen(row)]
        if first and second and first[-1].knobs == second[-1].knobs:
            yield name, first, second


def _judge(
    info: StudyInfo,
    first: Sequence[StoredTrial],
    second: Sequence[StoredTrial],
    rows_then: Sequence[StoredTrial],
    rows_now: Sequence[StoredTrial],
    noise: _Noise,
    margin: float | None,
) -> Reproduction:
    plain = [
        [row for row in rows if not row.speculative and row.role is not Role.CONTROL] for rows in (rows_then, rows_now)
    ]
    speculative = first[0].speculative
    return reproduction.judge(
        rerun.figures(first, info.objective),
        rerun.figures(second, info.objective),
        plain_then=rerun.figures(plain[0], info.objective),
        plain_now=rerun.figures(plain[1], info.objective),
        spread=noise.speculative if speculative else noise.plain,
        plain_spread=noise.plain,
        margin=margin,
        unit=METRIC[info.objective].unit,
        least_now=1,
    )


def _overall(judged: Sequence[Reproduction]) -> Outcome:
    """The worst of the parts; nothing judged is inconclusive."""
    outcomes = {found.outcome for found in judged}
    for worst in (Outcome.NOT_REPRODUCED, Outcome.DRIFTED, Outcome.INCONCLUSIVE):
        if worst in outcomes:
            return worst
    return Outcome.REPRODUCED if outcomes else Outcome.INCONCLUSIVE
