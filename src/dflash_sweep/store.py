"""The database of studies: records in, records out, through SQLAlchemy. The driver is its only writer.

`begin` writes a trial before its server is launched, `finish` completes it in one transaction; nothing is told to the
sampler before `finish` has returned. Reads give `StoredTrial` and `StudyInfo`, in the order trials were finished.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from sqlalchemy import ColumnElement, create_engine, delete, event, func, select, update
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from dflash_sweep import upgrades
from dflash_sweep.errors import StorageError
from dflash_sweep.records import ReplayPolicy, StoredTrial, StudyInfo, TrialResult, TrialSpec
from dflash_sweep.tables import LeaseRow, StageRow, StudyRow, TrialRow, TurnRow

_LOG = logging.getLogger(__name__)
_Record = TypeVar("_Record")
_LOCK_TIMEOUT_S = 60.0
"""How long a write waits for another process's lock on an SQLite file before it gives up."""


def _plain(value: Any) -> Any:
    """A record as JSON-able data; keys become text, frozensets lists."""
    return msgspec.to_builtins(value, str_keys=True)


def _record(data: dict[str, Any], kind: type[_Record]) -> _Record:
    """The reverse of `_plain`."""
    return msgspec.convert(data, kind, str_keys=True)


_FIRST_POLICY_FIELDS = frozenset(
    {
        "mode", "warmup_turns", "max_tokens", "temperature", "sampling_seed", "cache_prompt", "thinking", "tools",
        "concurrency", "pauses", "min_decode_tokens", "turn_timeout_s", "fresh_server", "request_fields",
    }
)  # fmt: skip


def _told_policy(policy: ReplayPolicy) -> dict[str, Any]:
    """A replay policy without fields that came after the first version and are left alone: older rows stay equal."""
    untouched = _plain(ReplayPolicy())
    return {
        name: value
        for name, value in _plain(policy).items()
        if name in _FIRST_POLICY_FIELDS or value != untouched[name]
    }


def comparability_key(spec: TrialSpec, device_name: str) -> str:
    """Rows with different keys are never ranked together: what was asked, by whom, on what. 16 hex digits.

    Made of engine, build and binary, models, context, the engine's options and extra words, trace with its template
    switches, replay policy and device name: everything but the candidate's own knobs.
    """
    engine = spec.engine
    parts = _plain(
        {
            "engine": (engine.name, engine.model, engine.draft_model, engine.n_ctx, engine.extra_args, engine.env),
            "options": {key: value for key, value in engine.options.items() if not key.endswith("seed")},
            "build": (spec.build.version, spec.build.binary_sha256),
            "trace": (spec.trace.header.sha256, spec.trace.header.template_kwargs),
            "policy": _told_policy(spec.policy),
            "device": device_name,
        }
    )
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:16]


def _spec_json(spec: TrialSpec) -> dict[str, Any]:
    """A spec without its trace's turns: they are the same for the whole study and known by hash."""
    data: dict[str, Any] = _plain(spec)
    data["trace"] = data["trace"]["header"]
    return data


def shown_url(url: str) -> str:
    """A database's URL without its password; what is no URL is given back as it is."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url


class Fence(Protocol):
    """Says whether this process may still write a study's rows; both raise if not."""

    def check(self) -> None:
        """By what is known already; asks nobody."""

    def look(self, session: Session) -> None:
        """By the database, in the transaction that is about to write."""


class Store:
    """One open database. Use as a context manager; `create=False` refuses to make a new one, `upgrade=False` leaves
    its schema as it is. `shown` is its URL without a password, for messages."""

    def __init__(self, url: str, *, create: bool = True, upgrade: bool = True) -> None:
        self.url, self.shown = url, shown_url(url)
        self.fence: Fence | None = None
        path = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
        if path is not None and not create and not path.is_file():
            raise StorageError(f"storage.url={self.shown}: there is no database yet; run a study first")
        if path is not None and not path.parent.is_dir():
            raise StorageError(f"storage.url={self.shown}: there is no directory {path.parent}")
        options = {"timeout": _LOCK_TIMEOUT_S} if path is not None else {}
        try:
            self.engine: Engine = create_engine(url, connect_args=options)
        except (SQLAlchemyError, ImportError) as error:
            hint = " (pip install 'dflash-sweep[postgres]')" if isinstance(error, ImportError) else ""
            raise StorageError(f"storage.url={self.shown}: cannot be opened: {error}{hint}") from error
        if path is not None:
            event.listen(self.engine, "connect", _enforce_foreign_keys)
        if upgrade:
            upgrades.upgrade(self.engine, self.shown)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction. Raises StorageError where the database cannot be read or written."""
        try:
            with Session(self.engine) as session, session.begin():
                yield session
        except OperationalError as error:
            raise StorageError(f"storage.url={self.shown}: cannot be read or written: {error.orig}") from error

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """One transaction that writes rows of a study, if whoever holds the study allows it."""
        with self.session() as session:
            if self.engine.dialect.name == "sqlite":  # nobody else writes between the fence's look and our rows
                session.connection().exec_driver_sql("BEGIN IMMEDIATE")
            if self.fence is not None:
                self.fence.look(session)
            yield session

    def check(self) -> None:
        """Raises LeaseLost if another driver has taken over what this one was writing."""
        if self.fence is not None:
            self.fence.check()

    # ------------------------------------------------------------ studies

    def save_study(self, info: StudyInfo) -> None:
        """Insert or replace a study's own row."""
        with self._writing() as session:
            session.merge(StudyRow(name=info.name, status=info.status, info=_plain(info)))

    def study(self, name: str) -> StudyInfo | None:
        """The stored study; None if there is none of this name."""
        with self.session() as session:
            row = session.get(StudyRow, name)
            return None if row is None else _record(row.info, StudyInfo)

    def study_names(self) -> tuple[str, ...]:
        with self.session() as session:
            return tuple(session.scalars(select(StudyRow.name).order_by(StudyRow.name)))

    def delete_study(self, name: str) -> None:
        """Remove a study and all its rows."""
        with self.session() as session:
            session.execute(delete(StudyRow).where(StudyRow.name == name))
            session.execute(delete(LeaseRow).where(LeaseRow.study == name))

    # ------------------------------------------------------------ trials

    def begin(self, spec: TrialSpec, owner: str, comparability: str, label: str | None = None) -> None:
        """Write a trial as running, before anything is launched. Raises StorageError if the uid is not new."""
        with self._writing() as session:
            if session.get(TrialRow, spec.uid) is not None:
                raise StorageError(
                    f"storage.url={self.shown}: another driver has begun {spec.uid}; "
                    "two runs at a time need two study_names"
                )
            session.add(
                TrialRow(
                    uid=spec.uid,
                    study=spec.study,
                    state="running",
                    owner=owner,
                    role=str(spec.role),
                    candidate=spec.candidate,
                    repeat=spec.repeat,
                    attempt=spec.attempt,
                    speculative=spec.speculative,
                    knobs=spec.knobs,
                    engine=spec.engine.name,
                    build=spec.build.version,
                    trace_name=spec.trace.header.name,
                    trace_sha256=spec.trace.header.sha256,
                    comparability_key=comparability,
                    label=label,
                    spec=_spec_json(spec),
                )
            )

    def finish(self, result: TrialResult, comparability: str | None = None) -> None:
        """Complete a running trial with its result, turns and stages, in one transaction; a second call is ignored.

        `comparability`: its key, now that its device is known; None = as it was begun.
        """
        with self._writing() as session:
            row = session.get(TrialRow, result.uid)
            if row is None:
                raise StorageError(f"trial {result.uid} was finished but never begun")
            if row.state == "finished":
                _LOG.warning("trial %s was finished already; the second result is not counted", result.uid)
                return
            row.number = self._next_number(session, row.study)
            row.comparability_key = comparability or row.comparability_key
            _complete(row, result)
            session.add_all(_turn_rows(session, result))

    def add_imported(self, trials: Iterable[StoredTrial]) -> None:
        """Insert complete rows that were not measured here, keeping their numbers."""
        with self.session() as session:
            for trial in trials:
                row = TrialRow(
                    **{name: getattr(trial, name) for name in _SHARED_COLUMNS},
                    role=str(trial.role),
                    state="finished",
                    owner="import",
                    spec={},
                )
                session.add(row)
                session.flush()
                _complete(row, trial.result)
                session.add_all(_turn_rows(session, trial.result))

    def forget_running(self, study: str, owners: Sequence[str] | None = None) -> tuple[str, ...]:
        """Drop rows of trials that never finished, of these drivers (None = of all); returns their uids."""
        with self._writing() as session:
            where = [TrialRow.study == study, TrialRow.state == "running"]
            if owners is not None:
                where.append(TrialRow.owner.in_(owners))
            uids = tuple(session.scalars(select(TrialRow.uid).where(*where)))
            session.execute(delete(TrialRow).where(TrialRow.uid.in_(uids)))
            return uids

    def running(self, study: str) -> tuple[tuple[str, str], ...]:
        """uid and driver of every trial of this study that was begun and has not finished."""
        with self.session() as session:
            query = select(TrialRow.uid, TrialRow.owner).where(TrialRow.study == study, TrialRow.state == "running")
            return tuple((uid, owner) for uid, owner in session.execute(query))

    def running_owners(self, study: str) -> tuple[str, ...]:
        """Drivers that have unfinished trials of this study."""
        return tuple(dict.fromkeys(owner for _, owner in self.running(study)))

    def trials(self, study: str) -> tuple[StoredTrial, ...]:
        """All finished trials of a study with their turns, in the order they were finished."""
        with self.session() as session:
            query = select(TrialRow).where(TrialRow.study == study, TrialRow.state == "finished")
            rows = list(session.scalars(query.order_by(TrialRow.number)))
            turns = _load_turns(session, TurnRow.trial_uid.in_(select(TrialRow.uid).where(TrialRow.study == study)))
            return tuple(_stored(row, turns.get(row.uid, [])) for row in rows)

    def trial(self, uid: str) -> StoredTrial:
        """One finished trial. Raises StorageError if there is none of this name."""
        with self.session() as session:
            row = session.get(TrialRow, uid)
            if row is None or row.state != "finished":
                raise StorageError(f"storage.url={self.shown}: there is no finished trial {uid!r}")
            return _stored(row, _load_turns(session, TurnRow.trial_uid == uid).get(uid, []))

    def spec_json(self, uid: str) -> dict[str, Any] | None:
        """A trial's spec as it was stored before the launch (its trace as header only); None if there is none."""
        with self.session() as session:
            row = session.get(TrialRow, uid)
            return None if row is None else dict(row.spec)

    def set_label(self, uid: str, label: str) -> None:
        with self.session() as session:
            session.execute(update(TrialRow).where(TrialRow.uid == uid).values(label=label))

    @staticmethod
    def _next_number(session: Session, study: str) -> int:
        newest = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.study == study))
        return 0 if newest is None else newest + 1


_SHARED_COLUMNS = (
    "uid", "study", "number", "candidate", "repeat", "attempt", "speculative", "knobs", "engine", "build",
    "trace_name", "trace_sha256", "comparability_key", "label", "status_claimed",
)  # fmt: skip
"""Columns of a trial's row that StoredTrial holds under the same name."""

_TURN_COLUMNS = (
    "conversation", "index", "bucket", "order", "exchange", "prompt_sha256", "text_sha256", "warmup", "invalid_reason",
)  # fmt: skip
"""Columns of a turn's row that TurnRecord holds under the same name."""


def _enforce_foreign_keys(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys=ON")


def _complete(row: TrialRow, result: TrialResult) -> None:
    data = _plain(result)
    del data["turns"]
    row.state = "finished"
    row.measurement = str(result.measurement)
    row.failure_kind = str(result.failure.kind) if result.failure else None
    row.failure_message = result.failure.message if result.failure else None
    row.result = data


def _turn_rows(session: Session, result: TrialResult) -> list[StageRow]:
    """Adds the turns to the session and returns their stage rows, keys filled in."""
    stages: list[StageRow] = []
    for turn in result.turns:
        counters = _plain(turn.counters)
        del counters["stages"]
        row = TurnRow(
            trial_uid=result.uid,
            **{name: getattr(turn, name) for name in _TURN_COLUMNS if name != "exchange"},
            output_tokens=turn.counters.output_tokens,
            decode_tokens=turn.counters.decode_tokens,
            decode_ms=turn.counters.decode_ms,
            verify_steps=turn.counters.verify_steps,
            counters=counters,
            exchange=_plain(turn.exchange),
        )
        session.add(row)
        session.flush()
        stages += [
            StageRow(turn_id=row.id, name=stage.name, total_ms=stage.total_ms, source=stage.source)
            for stage in turn.counters.stages
        ]
    return stages


def _load_turns(session: Session, where: ColumnElement[bool]) -> dict[str, list[dict[str, Any]]]:
    """Turns by trial, as plain data in the shape of TurnRecord, stages put back in their place."""
    stages: dict[int, list[dict[str, Any]]] = {}
    stage_query = select(StageRow).join(TurnRow, TurnRow.id == StageRow.turn_id).where(where)
    for stage in session.scalars(stage_query.order_by(StageRow.id)):
        entry = {"name": stage.name, "total_ms": stage.total_ms, "source": stage.source}
        stages.setdefault(stage.turn_id, []).append(entry)
    turns: dict[str, list[dict[str, Any]]] = {}
    for row in session.scalars(select(TurnRow).where(where).order_by(TurnRow.id)):
        turn = {name: getattr(row, name) for name in _TURN_COLUMNS}
        turn["counters"] = {**row.counters, "stages": stages.get(row.id, [])}
        turns.setdefault(row.trial_uid, []).append(turn)
    return turns


def _stored(row: TrialRow, turns: list[dict[str, Any]]) -> StoredTrial:
    data = {name: getattr(row, name) for name in _SHARED_COLUMNS}
    return _record({**data, "role": row.role, "result": {**(row.result or {}), "turns": turns}}, StoredTrial)
