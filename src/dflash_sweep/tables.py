"""Our tables in the study database, beside Optuna's. Imports SQLAlchemy and `errors` only.

Every name begins with `dfs_`. Whole records are kept as JSON; what is sorted, joined or counted has a column of its
own. The schema's version stands in `dfs_schema_version`; each change is a step in `migrations/versions/`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, String, Text, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dflash_sweep.errors import FailureKind


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON}  # noqa: RUF012 - SQLAlchemy reads this attribute


class StudyRow(Base):
    """One study. `info` is a StudyInfo record."""

    __tablename__ = "dfs_study"
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    status: Mapped[str] = mapped_column(String(32))
    info: Mapped[dict[str, Any]]


class TrialRow(Base):
    """One attempt to run one candidate once. Written as `running` before the launch, completed afterwards.

    `owner` names the driver that runs it (host, pid, start time), so that a killed driver's rows can be told apart.
    """

    __tablename__ = "dfs_trial"
    __table_args__ = (Index("dfs_trial_study_number", "study", "number"),)
    uid: Mapped[str] = mapped_column(String(250), primary_key=True)
    study: Mapped[str] = mapped_column(ForeignKey("dfs_study.name", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(String(16))  # running | finished
    owner: Mapped[str] = mapped_column(String(200))
    number: Mapped[int | None]
    role: Mapped[str] = mapped_column(String(16))
    candidate: Mapped[int | None]
    repeat: Mapped[int]
    attempt: Mapped[int]
    speculative: Mapped[bool]
    knobs: Mapped[dict[str, Any]]
    engine: Mapped[str] = mapped_column(String(64))
    build: Mapped[str] = mapped_column(String(200))
    trace_name: Mapped[str] = mapped_column(String(200))
    trace_sha256: Mapped[str] = mapped_column(String(64))
    comparability_key: Mapped[str] = mapped_column(String(64))
    measurement: Mapped[str | None] = mapped_column(String(16))
    failure_kind: Mapped[str | None] = mapped_column(String(32))
    failure_message: Mapped[str | None] = mapped_column(Text)
    label: Mapped[str | None] = mapped_column(Text)
    status_claimed: Mapped[str | None] = mapped_column(String(32))
    spec: Mapped[dict[str, Any]]
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class TurnRow(Base):
    """One replayed turn of a trial. `exchange` and `counters` are the raw records; stages are rows of their own."""

    __tablename__ = "dfs_turn"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    trial_uid: Mapped[str] = mapped_column(ForeignKey("dfs_trial.uid", ondelete="CASCADE"), index=True)
    order: Mapped[int]
    conversation: Mapped[str] = mapped_column(String(200))
    index: Mapped[int]
    bucket: Mapped[str] = mapped_column(String(32))
    warmup: Mapped[bool]
    invalid_reason: Mapped[str | None] = mapped_column(Text)
    prompt_sha256: Mapped[str] = mapped_column(String(64))
    text_sha256: Mapped[str] = mapped_column(String(64))
    output_tokens: Mapped[int | None] = mapped_column(BigInteger)
    decode_tokens: Mapped[int | None] = mapped_column(BigInteger)
    decode_ms: Mapped[float | None]
    verify_steps: Mapped[int | None] = mapped_column(BigInteger)
    counters: Mapped[dict[str, Any]]
    exchange: Mapped[dict[str, Any]]


class StageRow(Base):
    """Total time of one stage over one turn, ms."""

    __tablename__ = "dfs_stage"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    turn_id: Mapped[int] = mapped_column(ForeignKey("dfs_turn.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(32))
    total_ms: Mapped[float]
    source: Mapped[str] = mapped_column(String(16))


class LeaseRow(Base):
    """The driver that runs a study now; no row = nobody. Times are seconds since 1970 by the database's clock.

    `boot_id` tells this start of the host (and of a container) from every other; `beats` counts heartbeats, so that a
    living driver shows itself whatever the clocks say.
    """

    __tablename__ = "dfs_lease"
    study: Mapped[str] = mapped_column(String(200), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200))
    host: Mapped[str] = mapped_column(String(200))
    boot_id: Mapped[str] = mapped_column(String(80))
    beats: Mapped[int] = mapped_column(BigInteger)
    since_s: Mapped[float] = mapped_column(Double)
    heartbeat_s: Mapped[float] = mapped_column(Double)
    expires_s: Mapped[float] = mapped_column(Double)


def counts(session: Session) -> dict[str, tuple[int, int]]:
    """Study → its finished runs, and how many of them failed; one that was stopped early did not."""
    stops = [str(kind) for kind in FailureKind if kind.is_stop]
    failed = func.count(TrialRow.failure_kind).filter(TrialRow.failure_kind.not_in(stops))
    runs = select(TrialRow.study, func.count(), failed).where(TrialRow.state == "finished")
    return {study: (finished, failed) for study, finished, failed in session.execute(runs.group_by(TrialRow.study))}
