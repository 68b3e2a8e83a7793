"""The model without HTTP: determinism, modes, memory, noise, and what must hold whatever the numbers are."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import ddtree
from dflash_sweep.emulator import costs, devices, dials, model, noise, proposals
from dflash_sweep.emulator.noise import LaunchNoise, NoiseSetting
from dflash_sweep.emulator.setting import Setting, from_knobs
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Knobs

CARD = devices.load("rtx4090")
BASE: Knobs = {
    "budget": 22, "proposal_temp": 0.7, "target_feat_ctx": 128, "cache_type_k": "q4_0", "cache_type_v": "q4_0",
    "verifier": "exact", "n_batch": 512,
}  # fmt: skip


def run(**changes: Any) -> model.Trial:
    names = ("workload", "seed", "turns", "noise", "draft_path", "device", "n_ctx", "speculative")
    others = {name: changes.pop(name) for name in names if name in changes}
    return model.simulate({**BASE, **changes}, **{"turns": 4, **others})


def test_the_same_seeds_give_the_same_figures_and_other_seeds_others() -> None:
    loud = NoiseSetting(seed=1, launch_seed=2)
    assert run(noise=loud) == run(noise=loud)
    assert run(noise=loud) != run(noise=replace(loud, launch_seed=3))
    assert run(seed=1) != run(seed=2)


def test_noise_moves_time_and_never_acceptance() -> None:
    quiet, loud = run(), run(noise=NoiseSetting(launch_seed=7))
    assert [turn.commits for turn in quiet.turns] == [turn.commits for turn in loud.turns]
    assert quiet.decode_tps != loud.decode_tps


def test_committed_tokens_are_the_output_but_for_the_last_step() -> None:
    for turn in run(turns=8).turns:
        assert sum(turn.commits[:-1]) < turn.output_tokens <= sum(turn.commits)
        assert all(1 <= committed <= 16 for committed in turn.commits)
        assert turn.stages_ms["step"] == pytest.approx(
            sum(value for name, value in turn.stages_ms.items() if name != "step")
        )


def test_verify_steps_take_the_shortcut_only_where_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_shortcut = run(turns=6, budget=30)
    monkeypatch.setattr(ddtree, "committed_without_tree", lambda *_: None)
    assert run(turns=6, budget=30) == with_shortcut


@pytest.mark.parametrize("workload", dials.names())
@pytest.mark.parametrize("draft_path", ["shared", "dedicated"])
def test_the_exact_verifier_never_beats_plain_decoding(workload: str, draft_path: str) -> None:
    plain = run(speculative=False, workload=workload).decode_tps
    exact = run(workload=workload, draft_path=draft_path, verifier="exact").decode_tps
    assert plain is not None
    assert exact is not None
    assert exact < plain


def test_trusted_code_on_the_dedicated_path_does_beat_it() -> None:
    knobs: Knobs = {"verifier": "trusted", "proposal_temp": 1.0, "n_ubatch": 64, "n_batch": 64}
    plain = run(speculative=False, workload="code", n_ctx=8192).decode_tps
    fast = run(**knobs, workload="code", draft_path="dedicated", n_ctx=8192).decode_tps
    assert plain is not None
    assert fast is not None
    assert fast > 2 * plain


@given(
    budget=st.integers(1, 48),
    top_k=st.integers(0, 8),
    seed=st.booleans(),
    temperature=st.sampled_from([1e-6, 0.5, 0.7, 1.0]),
)
def test_points_that_the_adapter_calls_equal_are_equal_here(
    budget: int, top_k: int, seed: bool, temperature: float
) -> None:
    """Dead knobs are dead: the adapter's effective point and the point itself make the same trees."""
    from dflash_sweep.engines.ddtree import DDTreeEngine

    knobs: Knobs = {"budget": budget, "top_k": top_k, "chain_seed": seed, "proposal_temp": temperature}
    point = DDTreeEngine().effective_point(knobs)
    turn = model.conversation("agent", 3, 1, max_tokens=24)[0]
    own = model.verify_steps(from_knobs({**BASE, **knobs}), turn, 24)
    assert own == model.verify_steps(from_knobs({**BASE, "proposal_temp": None, **point}), turn, 24)


def test_more_budget_never_commits_less_at_the_same_place() -> None:
    """Trees of one search grow: what a smaller tree accepts at a position, a larger one accepts too."""
    drawn = proposals.draw(dials.load("agent"), 11, 64, 128)
    scores = ddtree.proposal_scores(drawn.log_probs(8), 0.7)
    for position in range(64):
        ranks = drawn.ranks[position].tolist()
        lengths = [
            ddtree.committed_by_ranks(ddtree.build_tree(scores[position].tolist(), budget), ranks)
            for budget in (16, 22, 32, 48)
        ]
        assert lengths == sorted(lengths)


def test_proposals_are_descending_log_probabilities_below_one_in_sum() -> None:
    for workload in dials.names():
        values = proposals.draw(dials.load(workload), 5, 40, 128).log_probs(16)
        assert (np.diff(values, axis=-1) <= 1e-12).all()
        assert (np.exp(values).sum(axis=-1) <= 1 + 1e-9).all()


def test_the_targets_token_falls_where_an_honest_draft_says() -> None:
    """With calibration 1 and no losses the share of rank 0 is the mean stated probability of the first candidate."""
    honest = replace(
        dials.load("agent"), calibration=1.0, branch_loss=0.0, batched_loss=0.0, window_loss=0.0, correlation=0.0
    )
    stated, hits = [], []
    for seed in range(60):
        drawn = proposals.draw(honest, seed, 100, 128)
        stated.append(float(np.exp(drawn.first_two[:, 0, 0]).mean()))
        hits.append((drawn.ranks[:, 0] == 0).mean())
    # 6,000 draws: the standard error is below 0.0065.
    assert statistics.fmean(hits) == pytest.approx(statistics.fmean(stated), abs=0.02)


def test_extra_depths_do_not_change_the_usual_ones() -> None:
    short, long = (proposals.draw(dials.load("agent"), 2, 20, 128, depths) for depths in (15, 23))
    assert (short.ranks == long.ranks[:, :15]).all()


# ---------------------------------------------------------------- cost and memory


def test_exact_step_is_one_plain_decode_per_committed_token() -> None:
    setting = from_knobs({**BASE, "grammar_verify": False})
    each = costs.step_costs(setting, CARD, 20_000)
    assert each.exact_per_token_ms == pytest.approx(costs.plain_ms_per_token(CARD, 20_000))
    assert each.tree_ms == 0


def test_grammar_costs_a_callback_a_pick_only_where_the_request_brings_one() -> None:
    with_grammar = costs.step_costs(from_knobs(BASE), CARD, 1000, grammar=True)
    without = costs.step_costs(from_knobs(BASE), CARD, 1000)
    off = costs.step_costs(from_knobs({**BASE, "grammar_verify": False}), CARD, 1000, grammar=True)
    assert with_grammar.exact_per_token_ms - without.exact_per_token_ms == pytest.approx(47.978)
    assert off == without


@pytest.mark.parametrize(
    ("changes", "n_ctx", "failure"),
    [
        ({}, 65536, None),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 65536, "load"),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 32768, None),
        ({"n_batch": 1024, "n_ubatch": 1024}, 65536, "load"),
        ({"verifier": "trusted", "budget": 22}, 65536, "reserve"),
        ({"verifier": "fast_batched", "fast_rollback": True, "budget": 14}, 32768, "decode"),
        ({"verifier": "fast_batched", "fast_rollback": True, "budget": 12}, 32768, None),
        ({"verifier": "fast_batched", "budget": 40}, 65536, None),  # snapshots need no persist buffers
    ],
)
def test_memory_as_on_the_published_card(changes: Knobs, n_ctx: int, failure: str | None) -> None:
    found = costs.memory(from_knobs({**BASE, **changes}, n_ctx=n_ctx), CARD)
    assert found.stage == failure
    if "persist" in found.parts:
        budget = int(changes.get("budget") or 22)
        assert found.parts["persist"] == pytest.approx(77.625 * budget)


def test_simulate_says_why_there_are_no_figures() -> None:
    trial = run(verifier="trusted", n_ctx=65536)
    assert trial.turns == ()
    assert trial.failure == "out of memory at reserve: persist"
    with pytest.raises(ConfigError, match="emulator device 'rtx1' is unknown"):
        run(device="rtx1")
    with pytest.raises(ConfigError, match="has no setting 'depth'"):
        model.simulate({"depth": 3})


def test_reuse_leaves_the_feature_window_to_be_decoded_again() -> None:
    setting = from_knobs({**BASE, "target_feat_ctx": 512})
    assert model.cached_prefix(setting, 4000, 3900) == 3488
    assert model.cached_prefix(setting, 300, 200) == 0
    assert model.cached_prefix(replace(setting, speculative=False), 4000, 4000) == 3999


def test_a_slower_card_is_slower() -> None:
    fast, slow = run(), run(device="rtx3090")
    assert (slow.decode_tps or 0) < (fast.decode_tps or 0)


# ---------------------------------------------------------------- noise, drift, heat


def test_noise_scale_zero_is_none() -> None:
    assert run(noise=NoiseSetting(scale=0.0, launch_seed=5)) == run()


def test_launches_scatter_as_measured_with_a_tail_to_the_fast_side() -> None:
    drafts = [LaunchNoise(NoiseSetting(launch_seed=launch), CARD).factors(0).draft for launch in range(400)]
    measured = CARD.costs["noise"]["draft_deviations"]
    assert min(drafts) < np.exp(min(measured)) * 1.05
    assert statistics.stdev(drafts) == pytest.approx(float(np.std(np.exp(measured))), rel=0.25)
    assert statistics.median(drafts) == pytest.approx(1.0, abs=0.02)


def test_a_slowdown_stretches_everything_from_the_start() -> None:
    launch = LaunchNoise(NoiseSetting(scale=0.0, slowdown=0.05, drift_per_hour=0.1), CARD)
    assert launch.factors(0).all == pytest.approx(1.05)
    assert launch.factors(1, 3600.0).all == pytest.approx(1.05 * 1.1)


def test_drift_and_heat_slow_everything_down() -> None:
    launch = LaunchNoise(NoiseSetting(scale=0.0, drift_per_hour=0.1, throttle_after_s=100.0), CARD)
    assert launch.factors(0, 0.0).all == 1.0
    assert launch.factors(0, 50.0).all == pytest.approx(1 + 0.1 * 50 / 3600)
    assert launch.factors(0, 100.0).all == pytest.approx((1 + 0.1 * 100 / 3600) / 0.8)


def test_the_noise_free_optimum_of_a_space_can_be_computed() -> None:
    space = [(budget, temperature) for budget in (8, 22, 32) for temperature in (1e-6, 0.7, 1.0)]
    rates = {
        point: run(budget=point[0], proposal_temp=point[1], turns=12, workload="agent").decode_tps or 0
        for point in space
    }
    assert max(rates, key=lambda point: rates[point])[1] > 1e-3  # sharp proposals waste the tree
    assert rates[(8, 1e-6)] == rates[(8, 1.0)]  # a chain has no use for a temperature


def test_setting_is_hashable_and_equal_by_value() -> None:
    assert hash(from_knobs(BASE)) == hash(from_knobs(dict(BASE)))
    assert isinstance(from_knobs(BASE), Setting)
    assert noise.Factors() == noise.Factors(1.0, 1.0, 1.0)


def test_near_ties_are_rarer_where_the_draft_is_less_sure() -> None:
    # A near tie: second choice within 10 % of the first. Untied gaps are at least ln 2 (a power law of exponent ≥ 1).
    sure = replace(
        dials.load("agent"), steepness=4.0, spread=0.0, decay=0.2, decay_power=1.0, calibration=1.0, ties=0.4
    )
    shares = np.zeros(15)
    for seed in range(40):
        first_two = proposals.draw(sure, seed, 60, 128).first_two
        gaps = first_two[..., 0] - first_two[..., 1]
        assert gaps.min() >= -1e-9
        shares += (gaps < 0.1).mean(axis=0) / 40
    # Exponent 4.0 at depth 1: the two hold 0.98 of the mass. At depth 15 it is 1.2, and they hold 0.28.
    assert shares[0] > 2.5 * shares[14] > 0
    assert proposals.draw(replace(sure, steepness=0.5), 1, 60, 128).steepness.min() == 1.0


def test_reading_the_best_candidates_only_is_less_work() -> None:
    card = devices.load("rtx4090")
    knobs: Knobs = {"budget": 32, "target_feat_ctx": 128}
    all_scores = costs.step_costs(from_knobs(knobs), card, 20_000)
    best_only = costs.step_costs(from_knobs(knobs, topk_on_gpu=True), card, 20_000)
    assert best_only.topk_ms == 14.71  # the published stage of those builds
    assert best_only == replace(all_scores, topk_ms=14.71)
    own_path = from_knobs(knobs, draft_path="dedicated", topk_on_gpu=True)
    assert costs.step_costs(own_path, card, 20_000).topk_ms == 0.0
