"""DDTree against brute force: every path is enumerated, the best-first order is checked, the walk is done by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sweep import ddtree

Scores = list[list[float]]


def paths_of(tree: ddtree.Tree) -> list[tuple[int, ...]]:
    """The ranks from the root to each node, in order of insertion, the root (empty path) left out."""
    found: list[tuple[int, ...]] = [()]
    for node in range(1, tree.size):
        found.append((*found[tree.parents[node]], tree.ranks[node]))
    return found[1:]


def score_of(path: Sequence[int], scores: Scores) -> float:
    return sum(scores[depth][rank] for depth, rank in enumerate(path))


def brute_force_best(scores: Scores, budget: int) -> list[tuple[float, tuple[int, ...]]]:
    """The `budget` best paths of any depth, by enumerating all of them."""
    width, levels = len(scores[0]), len(scores)
    every = [path for depth in range(1, levels + 1) for path in itertools.product(range(width), repeat=depth)]
    return sorted(((score_of(path, scores), path) for path in every), key=lambda entry: -entry[0])[:budget]


def brute_force_seeded(scores: Scores, budget: int) -> list[tuple[int, ...]]:
    """The seeded tree by hand: the chain, then again and again the best path whose parent and elder siblings are in."""
    width, levels = len(scores[0]), len(scores)
    inside = [(0,) * depth for depth in range(1, min(levels, budget) + 1)]
    while len(inside) < budget:
        known = {(), *inside}
        candidates = [
            (*parent, rank)
            for parent in known
            if len(parent) < levels
            for rank in range(width)
            if (*parent, rank) not in known and all((*parent, elder) in known for elder in range(rank))
        ]
        if not candidates:
            break
        inside.append(max(candidates, key=lambda path: score_of(path, scores)))
    return inside


@st.composite
def score_tables(draw: st.DrawFn, max_levels: int = 4, max_width: int = 3) -> Scores:
    """Descending rows of distinct, irrational-looking scores, so that ties (order unspecified) do not occur."""
    levels = draw(st.integers(1, max_levels))
    width = draw(st.integers(1, max_width))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    steps = generator.exponential(draw(st.floats(0.05, 3.0)), size=(levels, width)) + 1e-6
    rows: Scores = (-np.cumsum(steps, axis=1)).tolist()
    return rows


@given(scores=score_tables(), budget=st.integers(1, 30))
def test_unseeded_tree_holds_exactly_the_best_paths(scores: Scores, budget: int) -> None:
    tree = ddtree.build_tree(scores, budget, chain_seed=False)
    expected = brute_force_best(scores, budget)
    found = paths_of(tree)
    assert {path for _, path in expected} == set(found)
    values = [score_of(path, scores) for path in found]
    assert values == sorted(values, reverse=True)  # popped best first


@given(scores=score_tables(), budget=st.integers(1, 30))
def test_seeded_tree_equals_the_one_made_by_hand(scores: Scores, budget: int) -> None:
    assert paths_of(ddtree.build_tree(scores, budget, chain_seed=True)) == brute_force_seeded(scores, budget)


@given(scores=score_tables(), budget=st.integers(0, 40), seeded=st.booleans())
def test_budget_counts_the_nodes_beside_the_root(scores: Scores, budget: int, seeded: bool) -> None:
    levels, width = len(scores), len(scores[0])
    everything = sum(width**depth for depth in range(1, levels + 1))
    tree = ddtree.build_tree(scores, budget, seeded)
    assert tree.size == min(budget, everything) + 1
    assert len(set(paths_of(tree))) == tree.size - 1
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert max(tree.depths) <= levels


@given(scores=score_tables(), budget=st.integers(1, 30), seeded=st.booleans(), data=st.data())
@settings(max_examples=200)
def test_walk_commits_the_longest_path_that_is_in_the_tree(
    scores: Scores, budget: int, seeded: bool, data: st.DataObject
) -> None:
    """The target's text is a list of ranks per depth (−1 = none of the draft's candidates). By brute force: the longest
    prefix of it that is a path of the tree, plus the root."""
    levels, width = len(scores), len(scores[0])
    ranks = data.draw(st.lists(st.integers(-1, width - 1), min_size=levels, max_size=levels))
    tree = ddtree.build_tree(scores, budget, seeded)
    inside = {(), *paths_of(tree)}
    longest = max(depth for depth in range(levels + 1) if tuple(ranks[:depth]) in inside)
    assert ddtree.committed_by_ranks(tree, ranks) == longest + 1

    shortcut = ddtree.committed_without_tree(ranks, budget, width, seeded)
    assert shortcut in (None, longest + 1)
    if seeded and ranks[0] < 0:
        assert shortcut == 1  # a miss at once never needs a tree

    # The same by tokens: candidate k of depth d is token 100 d + k; a miss is a token that the draft never offers.
    tokens = [7, *(100 * tree.depths[node] + tree.ranks[node] for node in range(1, tree.size))]
    text = [100 * (depth + 1) + rank if rank >= 0 else 99_999 for depth, rank in enumerate(ranks)] + [42]
    walked = ddtree.walk(tree, tokens, lambda node: text[tree.depths[node]])
    assert walked.committed == longest + 1
    assert walked.bonus == text[longest]
    assert [tree.depths[node] for node in walked.accepted] == list(range(longest + 1))


@given(scores=score_tables(), budget=st.integers(1, 20), seeded=st.booleans())
def test_a_node_sees_its_ancestors_and_itself(scores: Scores, budget: int, seeded: bool) -> None:
    tree = ddtree.build_tree(scores, budget, seeded)
    for node, seen in enumerate(ddtree.ancestors(tree)):
        up, expected = node, {node}
        while tree.parents[up] >= 0:
            up = tree.parents[up]
            expected.add(up)
        assert seen == expected


def test_small_budgets_are_one_chain_for_any_top_k_and_temperature() -> None:
    generator = np.random.default_rng(3)
    log_probs = np.sort(np.log(generator.dirichlet(np.ones(8), size=15)), axis=1)[:, ::-1]
    for budget in (1, 8, 15):
        trees = {
            ddtree.build_tree(ddtree.proposal_scores(log_probs[:, :top_k], temperature).tolist(), budget)
            for top_k in (1, 4, 8)
            for temperature in (1e-6, 0.7, 1.0, 2.0)
        }
        assert len(trees) == 1
        (tree,) = trees
        assert tree.depths == tuple(range(budget + 1))


def test_budget_22_with_seed_is_fifteen_chain_nodes_and_seven_branches() -> None:
    scores = [[-0.1, -2.5 - 0.01 * depth] for depth in range(15)]
    tree = ddtree.build_tree(scores, 22)
    assert tree.depths[1:16] == tuple(range(1, 16))
    assert tree.size == 23
    branch_scores = [score_of(path, scores) for path in paths_of(tree)[15:]]
    # A sibling at depth d costs 2.4 + 0.01 (d − 1) more than the chain node, whose own score is −0.1 d.
    assert branch_scores[0] == pytest.approx(-2.5)
    assert branch_scores == sorted(branch_scores, reverse=True)


def test_all_drafts_accepted_commit_sixteen_and_none_one() -> None:
    tree = ddtree.build_tree([[-0.1, -3.0]] * 15, 22)
    assert ddtree.committed_by_ranks(tree, [0] * 15) == 16
    assert ddtree.committed_by_ranks(tree, [-1] + [0] * 14) == 1


def test_peaked_proposals_make_the_seed_superfluous() -> None:
    scores = [[-0.001 * (depth + 1), -9.0, -10.0] for depth in range(15)]
    seeded, searched = (set(paths_of(ddtree.build_tree(scores, 22, seed))) for seed in (True, False))
    assert seeded == searched


def test_chain_depth_cap_leaves_room_for_branches() -> None:
    scores = [[-1.0, -1.5]] * 15
    tree = ddtree.build_tree(scores, 16, chain_depth_cap=4)
    assert tree.depths[1:5] == (1, 2, 3, 4)
    assert max(tree.depths) < 15
    assert tree.size == 17


@pytest.mark.parametrize(
    ("budget", "top_k", "expected"), [(15, 0, 1), (16, 0, 8), (15, 4, 4), (40, 2, 2), (1, None, 1), (22, None, 8)]
)
def test_automatic_top_k_is_eight_above_fifteen_nodes(budget: int, top_k: int | None, expected: int) -> None:
    assert ddtree.effective_top_k(budget, top_k) == expected


def test_automatic_top_k_follows_the_block_size() -> None:
    assert ddtree.effective_top_k(8, 0, block_size=8) == 8  # one chain has 7 nodes there


def test_temperature_one_keeps_the_tail_mass_and_others_renormalise() -> None:
    kept = [[math.log(0.6), math.log(0.2)]]  # 0.2 of the mass is outside
    assert ddtree.proposal_scores(kept, 1.0)[0] == pytest.approx(kept[0])
    # At 0.5: 0.6² = 0.36 and 0.2² = 0.04, of 0.40 together: 0.9 and 0.1.
    assert np.exp(ddtree.proposal_scores(kept, 0.5)[0]) == pytest.approx([0.9, 0.1])
    # Full vocabulary at 0.5 is not normalised: ln 0.6 / 0.5 = 2 ln 0.6.
    assert ddtree.proposal_scores(kept, 0.5, "full_vocab")[0] == pytest.approx([2 * math.log(0.6), 2 * math.log(0.2)])
    assert np.exp(ddtree.proposal_scores(kept, 1.0, "top_k_only")[0]) == pytest.approx([0.75, 0.25])


def test_zero_temperature_is_floored_and_puts_all_mass_on_the_first() -> None:
    scores = ddtree.proposal_scores([[-0.5, -0.9]], 0.0)[0]
    assert scores[0] == pytest.approx(0.0)
    assert scores[1] == pytest.approx(-0.4 / 1e-6)


def test_one_candidate_scores_zero_off_temperature_one() -> None:
    assert ddtree.proposal_scores([[-0.7]], 0.8).tolist() == [[0.0]]


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(ValueError, match="rule 'raw' is not one of engine"):
        ddtree.proposal_scores([[-0.5]], 1.0, "raw")


def test_no_budget_or_no_rows_leave_the_root() -> None:
    assert ddtree.build_tree([[-0.1]], 0).size == 1
    assert ddtree.build_tree([], 22).size == 1
