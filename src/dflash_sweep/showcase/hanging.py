"""Puts what a study has to show where Optuna's dashboard finds it. Imports L0, L1, `report` and siblings.

Everything here can be done again at any time: notes and figures are replaced, files of a trial are put once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_sweep import standing
from dflash_sweep.evidence import TrialFiles
from dflash_sweep.objective import sign
from dflash_sweep.records import Role, StoredTrial, StudyInfo
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.texts import Texts
from dflash_sweep.showcase import Progress
from dflash_sweep.showcase.optuna_side import Attributes, OptunaSide
from dflash_sweep.showcase.study_note import Counted, lead_words, study_note, with_lead
from dflash_sweep.showcase.trial_note import figure, stage_picture, tags, trial_note

REPORT_FILES = ("findings.html", "findings.md", "results.csv")
LARGE = 300
"""Rows up to which a running study is judged as a whole for its page."""
_LISTED = 12
"""Most trial numbers in one attribute of the study."""


def show_trial(
    side: OptunaSide,
    runs: Sequence[StoredTrial],
    study: StudyInfo,
    texts: Texts,
    *,
    plain_ms: float | None,
    folder: Path | None,
    held: Attributes | None = None,
) -> None:
    """Note, tags and files of one candidate after its newest run, the last of `runs`; `folder`: that run's evidence;
    `held`: see `OptunaSide.put_trial_note`."""
    newest = runs[-1]
    if newest.candidate is None:
        return
    side.tag(newest.candidate, {"tags": " ".join(tags(runs, study))})
    note = trial_note(runs, study, texts, plain_ms=plain_ms, folder=None if folder is None else str(folder))
    side.put_trial_note(newest.candidate, note, held)
    if newest.role is Role.SEARCH:
        put_evidence(side, newest, texts, plain_ms=plain_ms, folder=folder)


def put_evidence(
    side: OptunaSide, run: StoredTrial, texts: Texts, *, plain_ms: float | None, folder: Path | None
) -> None:
    """The stage picture, the log and the turns of a run, as files of its trial. On a worker's own machine they may be
    out of reach: then they stay where they are."""
    assert run.candidate is not None, "only runs of the search have a trial"
    suffix = f"-attempt-{run.attempt}" if run.attempt else ""
    picture = stage_picture(run, texts, plain_ms=plain_ms)
    if picture is not None:
        side.put_trial_file(run.candidate, f"stages{suffix}.svg", picture)
    if folder is None:
        return
    files = TrialFiles(folder)
    for path in (files.log, files.turns, files.traceback):
        if path.is_file() and path.stat().st_size:
            side.put_trial_file(run.candidate, f"{path.stem}{suffix}{path.suffix}", path)


def show_running(
    side: OptunaSide, study: StudyInfo, stored: Sequence[StoredTrial], texts: Texts, progress: Progress
) -> str:
    """The study's page while it runs; gives its note. Of very many rows only those are looked at that the page shows:
    judging thousands takes minutes, and the driver waits."""
    if len(stored) <= LARGE:
        return show_study(side, collect(study, stored), texts, progress)
    kept = _most_telling(stored, study.objective)
    return show_study(side, collect(study, kept, ()), texts, progress, Counted.of(stored))


def show_lead(side: OptunaSide, note: str, counted: Counted, texts: Texts, progress: Progress) -> None:
    """How far the study is, on the page whose note this was: quick, so that it can be told every few seconds."""
    shown = LARGE if counted.runs > LARGE else None
    side.put_note(with_lead(note, lead_words(texts.lang, counted, progress, shown)))


def _most_telling(stored: Sequence[StoredTrial], objective: str) -> list[StoredTrial]:
    """Plain decoding, everything but the search, and the best runs of the search: in order, LARGE at most."""
    searched = [(standing.value(run, objective), run) for run in stored if run.role is Role.SEARCH]
    measured = [(value, run) for value, run in searched if value is not None]
    measured.sort(key=lambda entry: -sign(objective) * entry[0])
    others = [run for run in stored if run.role is not Role.SEARCH][-LARGE // 2 :]
    best = [run for _, run in measured[: LARGE - len(others)]]
    return sorted([*others, *best], key=lambda run: run.number)


def show_study(
    side: OptunaSide, material: Material, texts: Texts, progress: Progress | None, counted: Counted | None = None
) -> str:
    """Note, attributes and figures of the study as its rows stand; gives the note; `counted`: see `study_note`."""
    from dflash_sweep.showcase.charts import charts  # plotly is wanted only here

    note = study_note(material, texts, study_id=side.study_id, progress=progress, counted=counted)
    side.put_note(note)
    side.describe(attributes(material))
    for chart_id, chart in charts(material, texts).items():
        side.put_chart(chart_id, chart)
    return note


def show_report(side: OptunaSide, folder: Path) -> None:
    """The written findings as files of the study."""
    for path in (folder / name for name in REPORT_FILES):
        if path.is_file():
            side.put_file(path.name, path.read_bytes())


def attributes(material: Material) -> dict[str, Any]:
    """Few and named: what a study is, for people who look at it among others."""
    study, stored = material.study, material.stored
    devices = dict.fromkeys(trial.result.device.name for trial in stored)
    builds = dict.fromkeys(trial.build for trial in stored)
    roles = {role: [trial for trial in stored if trial.role is role] for role in Role}
    confirmed = dict.fromkeys(trial.candidate for trial in roles[Role.CONFIRM] if trial.candidate is not None)
    plain = [trial for trial in stored if not trial.speculative and trial.result.failure is None]
    found = {
        "figures": str(study.measurement),
        "engine": " ".join([study.engine, *list(builds)[:1]]),
        "device": ", ".join(list(devices)[:3]),
        "trace": ", ".join(list(dict.fromkeys(trial.trace_name for trial in stored))[:3]),
        "status": study.status,
        "plain decoding": figure(plain, study.objective)[0] if plain else None,
        "runs beside the search": ", ".join(
            f"{len(roles[role])} {role}"
            for role in (Role.BASELINE, Role.CALIBRATE, Role.CANARY, Role.CONFIRM)
            if roles[role]
        ),
        "confirm": ", ".join(f"#{number}" for number in list(confirmed)[:_LISTED]),
        "winner": None if study.confirmed_candidate is None else f"#{study.confirmed_candidate}",
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}
