"""Two real workers under deterministic scheduling measure the same candidates in the same order, twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_sweep.records import Knobs, Role
from fakes.sweeping import sweep, trials

TWO_WORKERS = (
    "cluster=local", "cluster.workers=2", "cluster.scheduling=deterministic", "n_trials=6",
    "sampler.n_startup_trials=2", "protocol.canary_every=3", "protocol.confirm_blocks=0", "protocol.baseline_repeats=2",
)  # fmt: skip


def searched(folder: Path) -> list[tuple[int | None, Knobs, list[object]]]:
    """Candidate, knobs and figures in the order of asking."""
    rows = [row for row in trials(folder) if row.role is Role.SEARCH]
    rows.sort(key=lambda row: row.candidate or 0)
    return [(row.candidate, row.knobs, [turn.counters for turn in row.result.turns]) for row in rows]


@pytest.mark.ray
@pytest.mark.long
def test_two_workers_measure_the_same_candidates_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        run = sweep(tmp_path / name, *TWO_WORKERS)
        assert run.returncode == 0, run.stderr
    first = searched(tmp_path / "one")
    assert len(first) == 6
    assert first == searched(tmp_path / "two")
    assert {row.result.device.index for row in trials(tmp_path / "one")} == {0, 1}
