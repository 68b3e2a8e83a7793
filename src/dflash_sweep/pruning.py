"""Whether a running trial is surely worse than the best candidate so far, turn by paired turn. Imports `metrics`,
`records` and scipy (only once there is a rule to follow).

docs/statistics.md says in plain words what is tested, at which level, and how often an equal candidate is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dflash_sweep import metrics
from dflash_sweep.records import Exchange, PruneRule, TurnCounters

LOOKS_ALPHA = 0.05
"""Level of all looks of one trial together."""

OBJECTIVES = ("decode_tps", "api_tps", "wall_tps", "ttft_ms", "tpot_ms")
"""Objectives that single turns tell something about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a trial is ended: `behind` is the pooled loss (0.3 = 30 % more time) over `turns` paired turns."""

    candidate: int
    turns: int
    planned: int
    behind: float
    p: float
    margin: float

    def __str__(self) -> str:
        return (
            f"worse than candidate {self.candidate}: {100 * self.behind:.1f} % more time over {self.turns} of "
            f"{self.planned} paired turns, surely more than {100 * self.margin:.1f} % (p = {self.p:.2g})"
        )


def turn_cost(exchange: Exchange, counters: TurnCounters, objective: str) -> tuple[float, str] | None:
    """What one turn cost (less is better) and whose clock says so: ms per decoded token, per output token as the
    client saw it, or to the first token. None where it cannot be known, or for an objective single turns do not have.
    """
    source, cost = "client", None
    if objective == "decode_tps":
        source, cost = counters.timing_source or "", metrics.ratio(counters.decode_ms, counters.decode_tokens)
    elif objective in ("api_tps", "wall_tps") and exchange.end_ns is not None:
        cost = metrics.ratio((exchange.end_ns - exchange.send_ns) / 1e6, counters.output_tokens)
    elif objective == "ttft_ms":
        cost = metrics.ttft_ms(exchange)
    elif objective == "tpot_ms":
        cost = metrics.tpot_ms(exchange, counters.output_tokens)
    return None if cost is None or cost <= 0 else (cost, source)


@cache
def look_levels(turns: int, min_turns: int, alpha: float) -> dict[int, float]:
    """Paired turns → the level of the look after them; turns without a look are left out.

    With K looks, the k-th gets the k-th increment of α·ln(1 + (e − 1)·k/K) (Lan and DeMets' spending function of
    Pocock's type), so that all looks spend α; each is tested at its own share alone, which needs no assumption on how
    the looks depend on each other. The signed-rank test of n pairs has no p below 2⁻ⁿ: looks begin where one
    can decide.
    """
    for first in range(max(1, min_turns), turns + 1):
        looks = turns - first + 1
        spent = [alpha * math.log1p((math.e - 1) * look / looks) for look in range(looks + 1)]
        if 0.5**first <= spent[1]:
            return {first + look: spent[look + 1] - spent[look] for look in range(looks)}
    return {}


def signed_rank_p(differences: Sequence[float]) -> float:
    """One-sided p of Wilcoxon's signed-rank test: are the differences above 0?"""
    from scipy.stats import wilcoxon

    if not any(differences):
        return 1.0
    return float(wilcoxon(differences, alternative="greater").pvalue)


class Pruner:
    """One running trial against the best candidate so far. Tell it each finished turn; it says when to stop."""

    def __init__(self, rule: PruneRule) -> None:
        self.rule = rule
        self._known = {(turn.conversation, turn.index): turn for turn in rule.turns}
        self._levels = look_levels(len(self._known), rule.min_turns, rule.alpha)
        self._costs: list[tuple[float, float, float]] = []  # own, best, weight

    def take(
        self, conversation: str, index: int, prompt_sha256: str, exchange: Exchange, counters: TurnCounters
    ) -> Stop | None:
        """A finished, valid turn; None = go on. Turns that the best candidate did not answer in the same way (another
        prompt, another clock, cold) are left out."""
        best = self._known.get((conversation, index))
        found = turn_cost(exchange, counters, self.rule.objective)
        if best is None or found is None or best.prompt_sha256 != prompt_sha256 or best.source != found[1]:
            return None
        each_turn_alike = self.rule.objective in ("ttft_ms", "tpot_ms")
        tokens = 1.0 if each_turn_alike else float(counters.output_tokens or 1)
        self._costs.append((found[0], best.cost, tokens))
        return self._look()

    def _look(self) -> Stop | None:
        level = self._levels.get(len(self._costs))
        if level is None:
            return None
        own, best = (sum(entry[side] * entry[2] for entry in self._costs) for side in (0, 1))
        if own <= best * (1 + self.rule.margin):
            return None  # slower on most turns, but not in the sum that counts
        shift = math.log1p(self.rule.margin)
        p = signed_rank_p([math.log(mine / theirs) - shift for mine, theirs, _ in self._costs])
        if p > level:
            return None
        return Stop(
            candidate=self.rule.candidate,
            turns=len(self._costs),
            planned=len(self._known),
            behind=own / best - 1,
            p=p,
            margin=self.rule.margin,
        )
