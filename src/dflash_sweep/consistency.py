"""Whether a database of studies is whole: Optuna's tables and ours against each other, and each in itself.

Imports `store`, `optuna_rows`, `lease`, `upgrades`, `objective`, `engines`, `tables`, SQLAlchemy. Nothing here changes
anything: the schema is not upgraded, and Optuna's tables are not made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from dflash_sweep import engines, lease, objective, optuna_rows, upgrades
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Role, StoredTrial, StudyInfo
from dflash_sweep.store import Store
from dflash_sweep.tables import LeaseRow, StageRow, StudyRow, TrialRow, TurnRow

_TOLERANCE = 1e-9
"""Relative difference between the value told and the value of the row that is put down to rounding of text."""


def check(store: Store) -> tuple[str, ...]:
    """One line a fault; () = whole. `store` is opened without an upgrade; an older schema is no fault.

    A damaged file, and tables that are not as they should be, are all that is told then: rows cannot be trusted.
    """
    try:
        if faults := tuple(_file(store)) or tuple(_schema(store)):
            return faults
        names = _names(store)
        found = list(_orphans(store))
        for name in names:
            found += [f"study {name!r}: {fault}" for fault in _study(store, name)]
        lonely = sorted(set(optuna_rows.names(store)) - set(names))
        found += [f"search study {name!r}: Optuna has it, dflash-sweep has not" for name in lonely]
    except DBAPIError as error:
        return (f"file: cannot be read: {error.orig}",)
    return tuple(found)


# ---------------------------------------------------------------- the database as such


def _file(store: Store) -> Iterator[str]:
    if store.engine.dialect.name != "sqlite":
        return
    with store.session() as session:
        for (found,) in session.execute(text("PRAGMA integrity_check")):
            if found != "ok":
                yield f"file: {' '.join(str(found).split())}"


def _schema(store: Store) -> Iterator[str]:
    version = upgrades.current(store.engine)
    if version is None:
        yield "schema: this database has no tables of dflash-sweep"
        return
    if version not in upgrades.known():
        yield f"schema: version {version} is not known here; this version knows up to {upgrades.head()}"
        return
    inspector = inspect(store.engine)
    for table in (StudyRow, TrialRow, TurnRow, StageRow):
        wanted = {column.key for column in table.__table__.columns}
        if not inspector.has_table(table.__tablename__):
            yield f"schema: table {table.__tablename__} is missing"
        elif missing := wanted - {column["name"] for column in inspector.get_columns(table.__tablename__)}:
            yield f"schema: table {table.__tablename__} has no column {', '.join(sorted(missing))}"


def _orphans(store: Store) -> Iterator[str]:
    """Rows whose owner is gone: foreign keys forbid them, unless a tool wrote without looking at keys."""
    with store.session() as session:
        for row, key, parent, what in (
            (TrialRow, TrialRow.study, StudyRow.name, "trial(s) of a study that is not there"),
            (TurnRow, TurnRow.trial_uid, TrialRow.uid, "turn(s) of a trial that is not there"),
            (StageRow, StageRow.turn_id, TurnRow.id, "stage(s) of a turn that is not there"),
        ):
            lost = select(func.count()).select_from(row).where(key.not_in(select(parent)))
            if count := session.scalar(lost):
                yield f"rows: {count} {what}"


def _names(store: Store) -> tuple[str, ...]:
    with store.session() as session:
        return tuple(session.scalars(select(StudyRow.name).order_by(StudyRow.name)))


# ---------------------------------------------------------------- one study


def _study(store: Store, name: str) -> Iterator[str]:
    yield from _rows(store, name)
    if inspect(store.engine).has_table(LeaseRow.__tablename__):  # databases of the first version know no leases
        yield from _running(store, name)
    try:
        info, trials = store.study(name), store.trials(name)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        yield f"a row cannot be read: {str(error).splitlines()[0]}"
        return
    if info is None or str(info.measurement) == "imported":
        return  # somebody else's log: nothing was asked or told here
    told = optuna_rows.dump(store, name)
    searched = [trial for trial in trials if trial.role is Role.SEARCH]
    if told is not None:
        yield from _against(searched, told["trials"], info)
    elif searched:
        yield f"{len(searched)} trial(s) of the search, but Optuna has no search study of this name"


def _rows(store: Store, name: str) -> Iterator[str]:
    """What a study's rows must be like, by their columns alone."""
    columns = (
        TrialRow.uid,
        TrialRow.state,
        TrialRow.number,
        TrialRow.comparability_key,
        TrialRow.result,
        TrialRow.spec,
    )
    with store.session() as session:
        rows = session.execute(select(*columns).where(TrialRow.study == name)).all()
    numbers = sorted(row.number for row in rows if row.state == "finished" and row.number is not None)
    yield from _numbered(numbers)
    for row in sorted(rows, key=lambda row: str(row.uid)):
        if row.state not in ("running", "finished"):
            yield f"trial {row.uid}: state {row.state!r} is not known"
        if row.state == "finished" and row.result is None:
            yield f"trial {row.uid}: finished without a result"
        if row.state == "finished" and row.number is None:
            yield f"trial {row.uid}: finished without a number"
        if not row.comparability_key:
            yield f"trial {row.uid}: no comparability key: nothing says what it may be ranked with"
        for part, data in (("spec", row.spec), ("result", row.result)):
            if data and data.get("uid", row.uid) != row.uid:
                yield f"trial {row.uid}: its {part} is that of {data['uid']}"


def _numbered(numbers: Sequence[int]) -> Iterator[str]:
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    if twice:
        yield f"number(s) given twice: {_listed(twice)}"
    missing = sorted(set(range(len(set(numbers)) and max(numbers) + 1)) - set(numbers))
    if missing:
        yield f"number(s) that no trial has: {_listed(missing)}"


def _running(store: Store, name: str) -> Iterator[str]:
    """Trials that were begun and not finished belong to the driver that holds the study."""
    found = lease.holder(store, name)
    if found is not None and found.is_gone:
        yield f"the lease of {found} was never given back (resume=true takes the study up)"
        found = None
    for uid, owner in store.running(name):
        if found is None:
            yield f"trial {uid}: running, but no driver holds the study (resume=true runs it again)"
        elif owner != found.owner:
            yield f"trial {uid}: running for a driver that does not hold the study"


# ---------------------------------------------------------------- against Optuna


def _against(searched: Sequence[StoredTrial], told: Sequence[Mapping[str, Any]], info: StudyInfo) -> Iterator[str]:
    """Every candidate that was told has its row and that row's value; every row of the search has its candidate."""
    rows: dict[int, list[StoredTrial]] = {}
    for trial in searched:
        if trial.candidate is None:
            yield f"trial {trial.uid}: of the search, without a candidate"
        else:
            rows.setdefault(trial.candidate, []).append(trial)
    candidates = {entry["number"]: entry for entry in told}
    for number in sorted(rows.keys() - candidates.keys()):
        yield f"candidate {number}: has {len(rows[number])} row(s), but Optuna does not know it"
    for number, entry in sorted(candidates.items()):
        yield from _candidate(number, entry, rows.get(number, []), info)


def _candidate(number: int, entry: Mapping[str, Any], rows: Sequence[StoredTrial], info: StudyInfo) -> Iterator[str]:
    attributes, state = entry["user_attrs"], entry["state"]
    if attributes.get("duplicate"):  # equal to one measured before: told its value, never run
        if rows:
            yield f"candidate {number}: told as a duplicate, but it has {len(rows)} row(s)"
        return
    for row in rows:
        if differing := _differing(row, entry["params"], info):
            yield f"candidate {number}: trial {row.uid} has another {', '.join(differing)} than Optuna"
    if state == "complete":
        yield from _complete(number, entry, rows, info)
    elif state in ("pruned", "fail") and not rows and ("trial" in attributes or "problem" not in attributes):
        yield f"candidate {number}: told as {state}, but it has no row"
    elif state == "running" and info.status == "finished":
        yield f"candidate {number}: still running for Optuna, but the study is finished"


def _complete(number: int, entry: Mapping[str, Any], rows: Sequence[StoredTrial], info: StudyInfo) -> Iterator[str]:
    told = tuple(entry["values"] or ())
    measured = [found for row in rows if (found := _value(row, info)) is not None]
    if not rows:
        yield f"candidate {number}: Optuna was told {_figures(told)}, but it has no row"
    elif not measured:
        yield f"candidate {number}: Optuna was told {_figures(told)}, but its rows have no value"
    elif not any(_equal(told, found) for found in measured):
        yield f"candidate {number}: Optuna was told {_figures(told)}, its row says {_figures(measured[-1])}"


def _value(trial: StoredTrial, info: StudyInfo) -> tuple[float, ...] | None:
    """What a candidate is told for a trial: one figure an objective; None = nothing that can be known."""
    if trial.result.failure is not None:
        return None
    found = [objective.figure(trial.result, name) for name in info.objectives or (info.objective,)]
    known = tuple(figure for figure in found if figure is not None)
    return known if len(known) == len(found) else None


def _differing(row: StoredTrial, params: Mapping[str, Any], info: StudyInfo) -> list[str]:
    """Axes on which a row is not what Optuna gave: as the engine takes it, dead and implied knobs settled.

    None are told of an engine that this version does not have.
    """
    try:
        engine = engines.get(info.engine)
    except ConfigError:
        return []
    asked = engine.effective_point({**row.knobs, **params})
    return [name for name in params if _kind(asked.get(name)) != _kind(row.knobs.get(name))]


def _kind(value: Any) -> tuple[bool, Any]:
    """1 and 1.0 are one value here (Optuna knows no types of numbers), True and 1 are two."""
    return isinstance(value, bool), value


def _equal(told: tuple[float, ...], found: tuple[float, ...]) -> bool:
    return len(told) == len(found) and all(
        math.isclose(one, other, rel_tol=_TOLERANCE) for one, other in zip(told, found, strict=True)
    )


def _figures(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
