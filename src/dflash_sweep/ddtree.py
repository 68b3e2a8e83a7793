"""The DDTree proposal and verify walk as pure functions. Imports nothing of ours.

A DFlash draft proposes, in one forward pass, candidates for the next L positions (block of 16: L = 15). The candidates
of a depth are the same whatever path leads there, so a tree over them is searched best-first by the sum of
log-probabilities. The target then follows its own choices through the tree. Rules as in the public sources of
Leechael/llama.cpp-dflash-ggml (engine rule of normalisation, budget counts non-root nodes) and Luce-Org/lucebox.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK_SIZE = 16
"""Draft positions of a block, the root's included; depths 1 … BLOCK_SIZE − 1 carry candidates."""

AUTO_TOP_K = 8
MIN_TEMPERATURE = 1e-6

Scores = Sequence[Sequence[float]]
"""scores[d − 1][k]: score of candidate k (0 = the draft's first choice) at depth d, descending in k, ≤ 0."""


def effective_top_k(budget: int, top_k: int | None, block_size: int = BLOCK_SIZE) -> int:
    """Candidates per depth: as given, or (None, 0) 8 for trees larger than one chain and 1 for smaller ones."""
    if top_k:
        return top_k
    return AUTO_TOP_K if budget > block_size - 1 else 1


def proposal_scores(log_probs: ArrayLike, temperature: float, rule: str = "engine") -> NDArray[np.float64]:
    """Scores of the kept candidates from their natural log-probabilities over the full vocabulary; shape (…, K).

    `rule`: engine = unchanged at temperature 1, else divided by it and renormalised over the kept candidates;
    full_vocab = divided only (tail mass counts); top_k_only = always renormalised. Temperatures below 1e-6 are 1e-6.
    """
    values = np.asarray(log_probs, dtype=np.float64)
    scale = max(temperature, MIN_TEMPERATURE)
    if rule not in ("engine", "full_vocab", "top_k_only"):
        raise ValueError(f"rule {rule!r} is not one of engine, full_vocab, top_k_only")
    plain = abs(scale - 1.0) < 1e-6
    scaled = values if plain else values / scale
    if rule == "full_vocab" or (rule == "engine" and plain):
        return scaled
    top = scaled.max(axis=-1, keepdims=True)
    norm = top + np.log(np.exp(scaled - top).sum(axis=-1, keepdims=True))
    scores: NDArray[np.float64] = np.minimum(scaled - norm, 0.0)
    return scores


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in order of insertion; node 0 is the root (parent −1, depth 0, rank −1). Parents precede children."""

    parents: tuple[int, ...]
    depths: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of nodes, the root included."""
        return len(self.parents)


def build_tree(scores: Scores, budget: int, chain_seed: bool = True, chain_depth_cap: int | None = None) -> Tree:
    """The tree of at most `budget` non-root nodes.

    With `chain_seed` the first choices of all depths go in as one chain (up to `chain_depth_cap`), and their next
    siblings are queued; without it only the first choice of depth 1 is queued. Then the best queued candidate (sum of
    scores from the root; equal scores in order of queueing) goes in, and its next sibling and first child are queued.
    Each (parent, rank) is queued once, so no candidate comes twice.
    """
    parents, depths, ranks = [-1], [0], [-1]
    levels = len(scores)
    if budget <= 0 or levels == 0:
        return Tree((-1,), (0,), (-1,))
    heap: list[tuple[float, int, int, int, int]] = []  # (−score, order, parent, depth, rank)
    order = 0
    width = len(scores[0])
    push, pop = heapq.heappush, heapq.heappop
    if chain_seed:
        total = 0.0
        last = min(levels, budget) if chain_depth_cap is None else min(levels, budget, chain_depth_cap)
        for depth in range(1, last + 1):
            row = scores[depth - 1]
            if width > 1:
                push(heap, (-(total + row[1]), order, depth - 1, depth, 1))
                order += 1
            total += row[0]
            parents.append(depth - 1)
            depths.append(depth)
            ranks.append(0)
        if last < levels:
            push(heap, (-(total + scores[last][0]), order, last, last + 1, 0))
            order += 1
    else:
        push(heap, (-scores[0][0], order, 0, 1, 0))
        order += 1
    while heap and len(parents) <= budget:
        negative, _, parent, depth, rank = pop(heap)
        node = len(parents)
        parents.append(parent)
        depths.append(depth)
        ranks.append(rank)
        row = scores[depth - 1]
        if rank + 1 < width:
            push(heap, (negative + row[rank] - row[rank + 1], order, parent, depth, rank + 1))
            order += 1
        if depth < levels:
            push(heap, (negative - scores[depth][0], order, node, depth + 1, 0))
            order += 1
    return Tree(tuple(parents), tuple(depths), tuple(ranks))


def ancestors(tree: Tree) -> list[set[int]]:
    """Per node the nodes it sees in the batched forward: its ancestors and itself."""
    seen: list[set[int]] = []
    for node, parent in enumerate(tree.parents):
        seen.append({node} if parent < 0 else seen[parent] | {node})
    return seen


@dataclass(frozen=True, slots=True)
class Walk:
    """`accepted`: node indices from the root on; `bonus`: the target's choice after the last of them.

    Tokens committed by the step = len(accepted): the root (the previous step's bonus) and the accepted drafts. The
    bonus is not counted; it is the next step's root.
    """

    accepted: tuple[int, ...]
    bonus: int

    @property
    def committed(self) -> int:
        return len(self.accepted)


def walk(tree: Tree, tokens: Sequence[int], choose: Callable[[int], int]) -> Walk:
    """Follow the target through the tree. `tokens[node]` is a node's token; `choose(node)` the target's next token
    there. A choice that no child holds ends the walk: it is the bonus (after a leaf) or correction token."""
    children: dict[tuple[int, int], int] = {}
    for node in range(1, tree.size):
        children.setdefault((tree.parents[node], tokens[node]), node)
    accepted, current = [0], 0
    while True:
        choice = choose(current)
        following = children.get((current, choice))
        if following is None:
            return Walk(tuple(accepted), choice)
        accepted.append(following)
        current = following


def committed_by_ranks(tree: Tree, ranks: Sequence[int]) -> int:
    """Tokens committed when the target's token is candidate `ranks[d − 1]` at depth d of its own path (a rank that no
    node has, e.g. −1, ends it). The same walk where tokens of a depth differ, told by ranks instead of tokens."""
    current, depth = 0, 0
    parents, depths, node_ranks = tree.parents, tree.depths, tree.ranks
    for node in range(1, len(parents)):
        # children come after their parent in the list, so one pass finds the whole path
        if parents[node] == current and depth < len(ranks) and node_ranks[node] == ranks[depth]:
            current, depth = node, depths[node]
    return depth + 1


def committed_without_tree(ranks: Sequence[int], budget: int, top_k: int, chain_seed: bool) -> int | None:
    """Tokens committed where the tree's branches cannot matter; None where they can and the tree must be built.

    With the chain seed the first choices of the first min(L, budget) depths are in every tree. So a target that follows
    them and then wants a token that is no candidate at all (or reaches the end of the chain) commits just that far.
    """
    if not chain_seed:
        return None
    chain = min(len(ranks), budget)
    for depth in range(chain):
        if ranks[depth] != 0:
            return depth + 1 if ranks[depth] < 0 or ranks[depth] >= top_k else None
    return chain + 1 if chain == len(ranks) or top_k == 1 else None
