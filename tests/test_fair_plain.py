"""Whole studies in which the best finalist has other caches than the baseline: plain decoding gets them too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_sweep.driver import Driver
from dflash_sweep.records import Role, StoredTrial, TrialSpec
from fakes.studying import Bench, Says

pytestmark = pytest.mark.long

TWO = (
    "~space.target_feat_ctx", "~space.proposal_temp", "~space.top_k", "~space.chain_seed", "~space.budget",
    "n_trials=2", "protocol.confirm_blocks=3",
    "seed_points=[{cache_type_k: f16, cache_type_v: f16}, {cache_type_k: q4_0, cache_type_v: q4_0}]",
)  # fmt: skip
SMALL_CACHES = {"cache_type_k": "q4_0", "cache_type_v": "q4_0"}


def world(spec: TrialSpec) -> Says:
    """Small caches help the confirm runs, and plain decoding as much: what was the best of the search is not in the
    end."""
    small = spec.knobs.get("cache_type_k") == "q4_0"
    if not spec.speculative:
        return Says(tps=(115.0 if small else 50.0) + spec.repeat / 10)
    if spec.role is Role.SEARCH:
        return Says(tps=99.0 if small else 100.0)
    return Says(tps=(110.0 if small else 100.0) + spec.repeat / 10)


def named(trials: tuple[StoredTrial, ...], role: Role) -> list[tuple[int | None, bool]]:
    return [(trial.candidate, trial.speculative) for trial in trials if trial.role is role]


def test_the_best_of_the_blocks_meets_plain_decoding_like_it_whoever_was_the_best_of_the_search(tmp_path: Path) -> None:
    bench = Bench(tmp_path, world)
    with bench.context(*TWO) as context:
        Driver(context).run()
        watcher: Any = context.watcher
    trials = bench.trials()
    assert sorted(named(trials, Role.CONTROL)) == [(1, False)] * 3
    confirmed = named(trials, Role.CONFIRM)
    assert confirmed.count((1, True)) == 6  # three beside the other finalist, three beside its own control
    assert confirmed.count((0, True)) == confirmed.count((None, False)) == 3
    control = next(trial for trial in trials if trial.role is Role.CONTROL)
    assert {**control.knobs, **SMALL_CACHES} == control.knobs
    assert "slower than plain decoding" in watcher.said[-1]
    count = len(trials)
    bench.drive(*TWO, "resume=true")
    assert len(bench.trials()) == count  # nothing is left to do


def test_where_plain_decoding_wins_as_it_is_no_more_of_it_is_measured(tmp_path: Path) -> None:
    def slow(spec: TrialSpec) -> Says:
        return Says(tps=(30.0 if spec.speculative else 90.0) + spec.repeat / 10)

    bench = Bench(tmp_path, slow)
    with bench.context(*TWO) as context:
        Driver(context).run()
        watcher: Any = context.watcher
    assert not named(bench.trials(), Role.CONTROL)
    assert "slower than plain decoding" in watcher.said[-1]


def test_without_controls_a_gain_over_other_caches_is_no_win(tmp_path: Path) -> None:
    bench = Bench(tmp_path, world)
    with bench.context(*TWO, "protocol.controls=false") as context:
        Driver(context).run()
        watcher: Any = context.watcher
    assert not named(bench.trials(), Role.CONTROL)
    assert "how much of that is speculation's is not known" in watcher.said[-1]


def test_blocks_that_were_not_needed_stay_so_on_resume(tmp_path: Path) -> None:
    def clear(spec: TrialSpec) -> Says:
        budget = float(str(spec.knobs.get("budget") or 22))
        return Says(tps=(50.0 if not spec.speculative else 60 + budget) + spec.repeat / 100)

    axis = (
        "~space.target_feat_ctx", "~space.proposal_temp", "~space.top_k", "~space.chain_seed", "~space.cache_type_k",
        "~space.cache_type_v", "seed_points=[{budget: 22}]", "protocol.confirm_blocks=5",
    )  # fmt: skip
    bench = Bench(tmp_path, clear)
    bench.drive(*axis)
    blocks = {trial.repeat for trial in bench.trials() if trial.role is Role.CONFIRM}
    assert blocks
    assert len(blocks) < 5  # decided early
    bench.drive(*axis, "resume=true")
    assert {trial.repeat for trial in bench.trials() if trial.role is Role.CONFIRM} == blocks
