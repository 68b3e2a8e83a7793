"""One living driver a study: a lease with a heartbeat in the database. Imports `store`, `tables`, `owner`, SQLAlchemy.

A driver takes its study's lease before anything else, renews it from a thread of its own and releases it at the end.
A second driver is refused while the first lives. A lease is taken over when its holder's process is gone on this
host, or when it has expired: the holder ran elsewhere and has not been heard of. A driver that finds its lease taken
stops, and nothing it does afterwards is written: every write of the store looks at the lease first.

Times are the database's. With SQLite that is the clock of whoever asks, so an expired lease of another host is
watched for a while before it is taken: a heartbeat that goes on is a living driver, whatever the clocks say.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from sqlalchemy import ColumnElement, CursorResult, Double, delete, insert, literal_column, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dflash_sweep import leftovers
from dflash_sweep import owner as owners
from dflash_sweep.errors import StorageError, StudyFailed
from dflash_sweep.store import Store
from dflash_sweep.tables import LeaseRow

_LOG = logging.getLogger(__name__)

TIME_TO_LIVE_S = 90.0
"""A lease that has not been renewed for this long has expired: the driver or its host is dead, or cut off."""
RENEW_S = 15.0
"""Time between heartbeats: six may fail in a row before the lease is lost."""

_CLOCKS: dict[str, ColumnElement[float]] = {
    "sqlite": literal_column("(julianday('now') - 2440587.5) * 86400.0", Double),
    "postgresql": literal_column("extract(epoch from clock_timestamp())::double precision", Double),
    "mysql": literal_column("unix_timestamp(now(6)) + 0e0", Double),
    "mariadb": literal_column("unix_timestamp(now(6)) + 0e0", Double),
}
"""Seconds since 1970 by the database's clock. 2440587.5 is the Julian day of 1970-01-01."""


class LeaseLost(StudyFailed):
    """Another driver has taken this study over; nothing more may be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lease. `age_s`: since the last heartbeat; `left_s`: until it expires, negative once it has."""

    owner: str
    host: str
    boot_id: str
    beats: int
    since_s: float
    age_s: float
    left_s: float

    @property
    def is_here(self) -> bool:
        """True if its process would be seen from here, were it alive."""
        return self.boot_id == here() and self.host == socket.gethostname()

    @property
    def is_gone(self) -> bool:
        """True if the holder can be seen to be dead, or can only be dead by now."""
        return owners.is_gone(self.owner) if self.is_here else self.left_s < 0

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{_spoken(self.owner)} since {since}, last heard of {max(0.0, self.age_s):.0f} s ago"


def _spoken(owner: str) -> str:
    host, _, pid = owner.rpartition(":")[0].rpartition(":")
    return f"process {pid} on {host}" if host else owner


@lru_cache(maxsize=1)
def here() -> str:
    """What tells this start of this host, and the processes this container sees, from all others."""
    with suppress(OSError):
        return f"{leftovers.boot_id()}/{Path('/proc/self/ns/pid').readlink().name.strip('pid:[]')}"
    return ""


def holder(store: Store, study: str) -> Holder | None:
    """Who holds a study's lease; None if nobody does. Raises StorageError if the database cannot be read."""
    with store.session() as session:
        return _holder(session, study)


def _clock(session: Session) -> ColumnElement[float]:
    dialect = session.get_bind().dialect.name
    if dialect not in _CLOCKS:
        raise StorageError(f"storage.url: {dialect} databases are not supported; allowed: {', '.join(_CLOCKS)}")
    return _CLOCKS[dialect]


def _holder(session: Session, study: str) -> Holder | None:
    row = session.execute(select(LeaseRow, _clock(session)).where(LeaseRow.study == study)).one_or_none()
    if row is None:
        return None
    lease, now_s = row
    return Holder(
        owner=lease.owner,
        host=lease.host,
        boot_id=lease.boot_id,
        beats=lease.beats,
        since_s=lease.since_s,
        age_s=now_s - lease.heartbeat_s,
        left_s=lease.expires_s - now_s,
    )


class Lease:
    """The lease of one study for as long as the block lasts. Raises StorageError on entry if another driver has it.

    `former` is the owner whose lease was taken over; None if it was free.
    """

    def __init__(
        self, store: Store, study: str, owner: str, *, ttl_s: float = TIME_TO_LIVE_S, renew_s: float = RENEW_S
    ) -> None:
        self._store, self._study, self._owner = store, study, owner
        self._ttl_s, self._renew_s = ttl_s, renew_s
        self._ended = threading.Event()
        self._lost: str | None = None
        self._thread = threading.Thread(target=self._renew, name=f"lease of {study}", daemon=True)
        self.former: str | None = None

    def __enter__(self) -> Self:
        self._take()
        self._store.fence = self
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join()
        self._store.fence = None
        try:
            self._release()
        except StorageError as error:
            _LOG.warning("the lease of %r was not released: %s", self._study, error)

    def _release(self) -> None:
        with self._store.session() as session:
            session.execute(delete(LeaseRow).where(self._mine()))

    def check(self) -> None:
        """Raises LeaseLost if another driver has the study by now."""
        if self._lost is not None:
            raise LeaseLost(f"study {self._study!r} was taken over by {self._lost}; this driver stops")

    # ------------------------------------------------------------ taking

    def _take(self) -> None:
        while (found := self._attempt()) is not None:
            if not self._is_free(found):
                raise StorageError(self._refusal(str(found)))
        older = [name for name in self._store.running_owners(self._study) if name != self._owner]
        if (living := next(filter(owners.is_alive, older), None)) is not None:
            self._release()
            raise StorageError(self._refusal(f"{_spoken(living)}, a driver of an older version"))

    def _refusal(self, who: str) -> str:
        return f"study {self._study!r} is being run by {who}; wait for it, stop it, or choose another study_name"

    def _attempt(self) -> Holder | None:
        """Take the lease if it is free; else who holds it. Of two drivers that try at once one gets it."""
        try:
            with self._store.session() as session:
                found = _holder(session, self._study)
                if found is None:
                    values = {**self._values(session), "study": self._study, "since_s": _clock(session), "beats": 0}
                    session.execute(insert(LeaseRow).values(values))
                return found
        except IntegrityError:
            return holder(self._store, self._study)

    def _is_free(self, found: Holder) -> bool:
        """Take over a dead holder's lease; True if it is free now or ours."""
        if found.owner == self._owner and found.is_here:
            _LOG.debug("the lease of %r was left by this process itself", self._study)
        elif not found.is_gone or self._beats_on(found):
            return False
        with self._store.session() as session:
            gone = delete(LeaseRow).where(
                LeaseRow.study == self._study, LeaseRow.owner == found.owner, LeaseRow.beats == found.beats
            )
            if _count(session.execute(gone)):
                self.former = found.owner
                _LOG.info("the lease of %r was held by %s, which is gone", self._study, found)
        return True

    def _beats_on(self, found: Holder) -> bool:
        """True if a holder that seems dead by the clock is heard again: then only the clocks differ."""
        if found.is_here or not self._store.url.startswith("sqlite"):
            return False
        until = time.monotonic() + 2 * self._renew_s
        while time.monotonic() < until:
            self._ended.wait(min(1.0, self._renew_s / 4))
            now = holder(self._store, self._study)
            if now is None or (now.owner, now.beats) != (found.owner, found.beats):
                return now is not None
        return False

    # ------------------------------------------------------------ holding

    def _mine(self) -> Any:
        return (LeaseRow.study == self._study) & (LeaseRow.owner == self._owner)

    def _values(self, session: Session) -> dict[str, Any]:
        now = _clock(session)
        return {
            "owner": self._owner,
            "host": socket.gethostname(),
            "boot_id": here(),
            "heartbeat_s": now,
            "expires_s": now + self._ttl_s,
        }

    def _renew(self) -> None:
        while not self._ended.wait(self._renew_s):
            try:
                if not self._beat():
                    return
            except StorageError as error:  # locked or cut off for now; the next heartbeat tries again
                _LOG.warning("the lease of %r could not be renewed: %s", self._study, error)

    def _beat(self) -> bool:
        """One heartbeat; False if the lease is no longer ours."""
        with self._store.session() as session:
            renewed = update(LeaseRow).where(self._mine())
            values = {**self._values(session), "beats": LeaseRow.beats + 1}
            if _count(session.execute(renewed.values(values))):
                return True
            self._lost = self._taker(session)
            _LOG.warning("the lease of %r is lost to %s", self._study, self._lost)
            return False

    def _taker(self, session: Session) -> str:
        found = _holder(session, self._study)
        return "somebody who has ended already" if found is None else _spoken(found.owner)

    def look(self, session: Session) -> None:
        """Called in every transaction that writes rows of a study. Raises LeaseLost if it is no longer ours.

        The row is locked against a take-over until the transaction ends (SQLite locks the whole file anyway).
        """
        self.check()
        held = session.scalar(select(LeaseRow.study).where(self._mine()).with_for_update(read=True))
        if held is None:
            self._lost = self._taker(session)
            self.check()


def _count(result: Any) -> int:
    """Rows that a statement changed."""
    assert isinstance(result, CursorResult), "an INSERT, UPDATE or DELETE"
    return int(result.rowcount)
