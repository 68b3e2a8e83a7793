"""Optuna's tables in a study's database, opened one way. Imports optuna."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from optuna.study import StudyDirection

LOCK_TIMEOUT_S = 60.0
"""How long a read or a write waits for another process's lock on an SQLite file before it gives up."""

_CREATE_ATTEMPTS = 6
_MADE_BY_ANOTHER = ("UNIQUE constraint failed", "already exists", "duplicate key", "no such table")
"""What SQLite and PostgreSQL say where another process makes the same tables at the same moment."""


def storage_for(url: str, *, lock_timeout_s: float | None = None) -> RDBStorage:
    """Optuna's tables in this database, made if they are missing. `lock_timeout_s`: None = LOCK_TIMEOUT_S.

    Optuna's warnings about experimental functions are no news to users, and its log lines are none of theirs.
    """
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    patience_s = LOCK_TIMEOUT_S if lock_timeout_s is None else lock_timeout_s
    options = {"connect_args": {"timeout": patience_s}} if url.startswith("sqlite") else {}
    return RDBStorage(url, engine_kwargs=options)


def opened(url: str, name: str, directions: Sequence[str]) -> optuna.Study:
    """The study, loaded or created. Optuna makes its tables without a lock: one of several drivers that start together
    on a new database may find them half made, and tries again."""
    for attempt in range(_CREATE_ATTEMPTS):
        try:
            return optuna.create_study(
                storage=storage_for(url),
                study_name=name,
                directions=[StudyDirection[direction.upper()] for direction in directions],
                load_if_exists=True,
            )
        except Exception as error:
            if attempt + 1 == _CREATE_ATTEMPTS or not any(sign in str(error) for sign in _MADE_BY_ANOTHER):
                raise
            time.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")
