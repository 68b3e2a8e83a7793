"""Writes all pages of a stored study: at its end, and when somebody asks for its dashboard.

Imports L0, L1, `store`, `report` and siblings.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optuna.exceptions import StorageInternalError

from dflash_sweep.errors import StorageError
from dflash_sweep.records import Measurement, Role, StoredTrial, StudyInfo, Verdict
from dflash_sweep.report.material import Material, collect, known
from dflash_sweep.report.texts import Texts, texts_for
from dflash_sweep.showcase import hanging
from dflash_sweep.showcase.optuna_rows import candidates, ensure_study
from dflash_sweep.showcase.optuna_side import OptunaSide, storage_for
from dflash_sweep.showcase.trial_note import trial_note
from dflash_sweep.showcase.words import words
from dflash_sweep.store import Store

_LOG = logging.getLogger(__name__)


def publish(
    store: Store,
    info: StudyInfo,
    *,
    folder: Path,
    lang: str = "en",
    report_dir: Path | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> int:
    """Write the pages of a study that is not running, and give Optuna's number of the study.

    Trials that have a page keep it, but those of the confirm phase, whose result grew. `report_dir`: the written
    findings, put among the study's files. Raises StorageError where database or folder cannot be written.
    """
    try:
        return _publish(store, info, folder, texts_for(lang), report_dir, verdicts)
    except (StorageInternalError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StorageError(f"the dashboard's pages of {info.name!r} cannot be written: {reason}") from error


def number_of(url: str, study: str) -> int | None:
    """Optuna's number of a study; None if Optuna has none of this name."""
    storage = storage_for(url)
    try:
        return storage.get_study_id_from_name(study)
    except KeyError:
        return None
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _publish(
    store: Store,
    info: StudyInfo,
    folder: Path,
    texts: Texts,
    report_dir: Path | None,
    verdicts: Sequence[Verdict] | None,
) -> int:
    stored = store.trials(info.name)
    if info.measurement is Measurement.IMPORTED:
        stored = _numbered(stored)
    material = collect(info, stored, verdicts)
    values = {str(row["uid"]): known(row["value"]) for _, row in material.own[["uid", "value"]].iterrows()}
    storage = storage_for(store.url)
    try:
        ensure_study(storage, info, stored, values)
        side = OptunaSide(storage, info.name, folder)
        _show_trials(side, material, texts, store)
        hanging.show_study(side, material, texts, None)
        if report_dir is not None:
            hanging.show_report(side, report_dir)
        return side.study_id
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _numbered(stored: Sequence[StoredTrial]) -> tuple[StoredTrial, ...]:
    """Imported rows with the numbers that their trials have on the dashboard."""
    numbers = {row.uid: number for number, row in enumerate(candidates(stored))}
    return tuple(replace(row, candidate=numbers.get(row.uid)) for row in stored)


def _show_trials(side: OptunaSide, material: Material, texts: Texts, store: Store) -> None:
    """The pages of trials that have none, and of those that were measured again."""
    runs: dict[int, list[StoredTrial]] = {}
    for trial in material.stored:
        if trial.candidate is not None and trial.speculative:
            runs.setdefault(trial.candidate, []).append(trial)
    held, there = side.attributes(), side.numbers()
    judged = {entry.number: entry.result for entry in material.candidates if len(runs.get(entry.number or 0, ())) > 1}
    for number, problem in side.not_run():
        text = words(texts.lang, "impossible", problem=problem) if problem else words(texts.lang, "duplicate")
        side.put_trial_note(number, text, held)
    for number, ours in runs.items():
        if number not in there:  # somebody has deleted the study on the dashboard: its rows stay in the store
            continue
        trial_id = side.trial_id(number)
        if held.has_note(trial_id) and len(ours) < 2:  # measured again: its note changes
            continue
        first = next((run for run in reversed(ours) if run.role is Role.SEARCH), ours[-1])
        evidence = None if first.result.measurement is Measurement.IMPORTED else _evidence(store, first)
        if not held.has_note(trial_id):
            hanging.put_evidence(side, first, texts, plain_ms=material.plain_ms, folder=evidence)
        note = trial_note(
            ours, material.study, texts, plain_ms=material.plain_ms, folder=None if evidence is None else str(evidence),
            judged=judged.get(number),
        )  # fmt: skip
        side.put_trial_note(number, note, held)


def _evidence(store: Store, trial: StoredTrial) -> Path | None:
    spec = store.spec_json(trial.uid)
    place = None if spec is None else spec.get("evidence_dir")
    return Path(str(place)) if place else None
