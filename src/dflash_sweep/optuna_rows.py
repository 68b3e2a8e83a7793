"""The search study as Optuna keeps it, as plain data: for archives and checks. Imports optuna, `store`.

Reads never make Optuna's tables; a database without them has no search study.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import inspect

from dflash_sweep.errors import StorageError
from dflash_sweep.optuna_storage import storage_for
from dflash_sweep.store import Store

STUDIES_TABLE = "studies"
"""Optuna's own table of studies."""


def names(store: Store) -> tuple[str, ...]:
    """All search studies in a database."""
    if not inspect(store.engine).has_table(STUDIES_TABLE):
        return ()
    with _storage(store) as storage:
        return tuple(sorted(optuna.get_all_study_names(storage)))


def dump(store: Store, name: str) -> dict[str, Any] | None:
    """A search study with all its candidates; None if there is none of this name."""
    if name not in names(store):
        return None
    with _storage(store) as storage:
        study = optuna.load_study(study_name=name, storage=storage)
        return {
            "directions": [direction.name.lower() for direction in study.directions],
            "user_attrs": study.user_attrs,
            "system_attrs": storage.get_study_system_attrs(study._study_id),
            "trials": [_plain(trial) for trial in study.get_trials(deepcopy=False)],
        }


def load(store: Store, name: str, data: Mapping[str, Any]) -> None:
    """Make a search study from `dump`'s data. Raises StorageError if there is one of this name, or the data is none."""
    if name in names(store):
        raise StorageError(f"storage.url={store.shown}: there is a search study {name!r} already")
    try:
        _load(store, name, data)
    except Exception as error:
        delete(store, name)
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise StorageError(f"the candidates of search study {name!r} cannot be stored: {line}") from error


def _load(store: Store, name: str, data: Mapping[str, Any]) -> None:
    with _storage(store) as storage:
        directions = [StudyDirection[direction.upper()] for direction in data["directions"]]
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        for key, value in data["user_attrs"].items():
            study.set_user_attr(key, value)
        for key, value in data["system_attrs"].items():
            storage.set_study_system_attr(study._study_id, key, value)
        for trial in data["trials"]:
            storage.create_new_trial(study._study_id, template_trial=_frozen(trial))


def delete(store: Store, name: str) -> None:
    """Remove a search study; nothing happens if there is none."""
    if name in names(store):
        with _storage(store) as storage:
            optuna.delete_study(study_name=name, storage=storage)


@contextmanager
def _storage(store: Store) -> Iterator[optuna.storages.RDBStorage]:
    """Optuna's way into the database, for the block; it leaves no connection behind."""
    storage = storage_for(store.url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _plain(trial: FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "values": trial.values,
        "params": trial.params,
        "distributions": {name: distribution_to_json(axis) for name, axis in trial.distributions.items()},
        "user_attrs": trial.user_attrs,
        "system_attrs": trial.system_attrs,
        "intermediate_values": {str(step): value for step, value in trial.intermediate_values.items()},
        "started": trial.datetime_start.isoformat() if trial.datetime_start else None,
        "completed": trial.datetime_complete.isoformat() if trial.datetime_complete else None,
    }


def _frozen(data: Mapping[str, Any]) -> FrozenTrial:
    def moment(text: str | None) -> datetime | None:
        return None if text is None else datetime.fromisoformat(text)

    values = data["values"]
    trial = FrozenTrial(
        number=data["number"],
        trial_id=-1,
        state=TrialState[data["state"].upper()],
        value=None,
        values=None if values is None else list(values),
        datetime_start=moment(data["started"]),
        datetime_complete=moment(data["completed"]),
        params=dict(data["params"]),
        distributions={name: json_to_distribution(text) for name, text in data["distributions"].items()},
        user_attrs=dict(data["user_attrs"]),
        system_attrs=dict(data["system_attrs"]),
        intermediate_values={int(step): value for step, value in data["intermediate_values"].items()},
    )
    trial._validate()
    return trial
