"""One database for the tests of a worker: making Optuna's tables takes longer than any test."""

from __future__ import annotations

from itertools import count

import optuna
import pytest

_numbers = count()


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = f"sqlite:///{tmp_path_factory.mktemp('showcase') / 'studies.db'}"
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.storages.RDBStorage(found).engine.dispose()
    return found


@pytest.fixture
def name() -> str:
    """A study's name that no other test has."""
    return f"s{next(_numbers)}"
