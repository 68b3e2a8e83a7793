"""A study's rows whole, as plain data, for archives and checks. Imports `store`, `tables` and SQLAlchemy.

One mapping a trial: every column of its row, and `turns`, each with every column of its own and `stages`. Keys of the
database itself (ids of turns and stages) stay out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from dflash_sweep.errors import StorageError
from dflash_sweep.records import StudyInfo
from dflash_sweep.store import Store
from dflash_sweep.tables import Base, StageRow, StudyRow, TrialRow, TurnRow


def _columns(table: type[Base], *left_out: str) -> tuple[str, ...]:
    return tuple(column.key for column in table.__table__.columns if column.key not in left_out)


_TRIAL = _columns(TrialRow)
_TURN = _columns(TurnRow, "id", "trial_uid")
_STAGE = _columns(StageRow, "id", "turn_id")


def _values(row: Base, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def dump(store: Store, study: str) -> Iterator[dict[str, Any]]:
    """The finished trials of a study in the order they were finished, one at a time."""
    with store.session() as session:
        finished = select(TrialRow.uid).where(TrialRow.study == study, TrialRow.state == "finished")
        uids = tuple(session.scalars(finished.order_by(TrialRow.number)))
    for uid in uids:
        with store.session() as session:
            row = session.get(TrialRow, uid)
            if row is not None:
                yield {**_values(row, _TRIAL), "turns": list(_turns(session, uid))}


def _turns(session: Session, uid: str) -> Iterator[dict[str, Any]]:
    stages: dict[int, list[dict[str, Any]]] = {}
    of_trial = select(StageRow).join(TurnRow, TurnRow.id == StageRow.turn_id).where(TurnRow.trial_uid == uid)
    for stage in session.scalars(of_trial.order_by(StageRow.id)):
        stages.setdefault(stage.turn_id, []).append(_values(stage, _STAGE))
    for turn in session.scalars(select(TurnRow).where(TurnRow.trial_uid == uid).order_by(TurnRow.id)):
        yield {**_values(turn, _TURN), "stages": stages.get(turn.id, [])}


def count_running(store: Store, study: str) -> int:
    """Trials that were begun and have not finished."""
    with store.session() as session:
        running = (TrialRow.study == study) & (TrialRow.state == "running")
        return session.scalar(select(func.count()).select_from(TrialRow).where(running)) or 0


def load(store: Store, info: StudyInfo, rows: Iterable[Mapping[str, Any]]) -> int:
    """Insert a study with all its trials, in one transaction; returns how many.

    Raises StorageError if a row does not fit the tables or cannot be read as a trial; nothing is kept then.
    """
    try:
        with store.session() as session:
            session.add(StudyRow(name=info.name, status=info.status, info=msgspec.to_builtins(info, str_keys=True)))
            session.flush()
            count = sum(_insert(session, row) for row in rows)
        store.trials(info.name)
    except (SQLAlchemyError, msgspec.MsgspecError, TypeError, KeyError, ValueError) as error:
        store.delete_study(info.name)
        raise StorageError(f"a row of study {info.name!r} does not fit this database: {_first_line(error)}") from error
    return count


def _insert(session: Session, row: Mapping[str, Any]) -> int:
    session.add(TrialRow(**{name: row.get(name) for name in _TRIAL}))
    session.flush()
    for turn in row["turns"]:
        kept = TurnRow(trial_uid=row["uid"], **{name: turn.get(name) for name in _TURN})
        session.add(kept)
        session.flush()
        session.add_all(StageRow(turn_id=kept.id, **{name: stage[name] for name in _STAGE}) for stage in turn["stages"])
    return 1


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
