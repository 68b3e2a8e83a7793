"""The best candidate so far as a yardstick for running trials. Pure; imports `frames`, `objective`, `pruning`,
`analysis.noise`, scipy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean

from scipy import integrate, optimize, stats

from dflash_sweep.analysis.noise import repeat_noise
from dflash_sweep.frames import counted_turns, trial_frame
from dflash_sweep.objective import BY_CLIENT, direction, figure, score
from dflash_sweep.pruning import LOOKS_ALPHA, OBJECTIVES, turn_cost
from dflash_sweep.records import PruneRule, Role, StoredTrial, TurnCost, TurnRecord

MARGIN_ALPHA = 0.025
"""How often the luck of two launches may exceed the margin."""

USUAL_SD, USUAL_DF = 0.05, 20
"""Scatter between launches of one setting that is assumed without repeats of one's own, and what that is worth.
Public rigs show 1.6 to 5.6 %, and one setting measured nine times had single launches 16 % above the others
(9.94 to 11.92 tok/s): a few repeats that happen to agree prove nothing."""

MAX_STEPS = 64
"""Each step of a course is a write to Optuna's database."""

PLAYED = (Role.SEARCH, Role.CANARY, Role.CONFIRM)
"""Roles of the runs that a candidate is known by."""

LEAST_MARGIN = 0.05
"""Less than this is not worth ending a trial for."""


def prune_rules(trials: Sequence[StoredTrial], objective: str, *, min_turns: int) -> tuple[PruneRule, ...]:
    """One rule a device name: the best candidate measured on it, turn by turn. Empty before there is one.

    First turns of conversations are cold and left out. `trials`: every finished run of a study, in order.
    """
    if objective not in OBJECTIVES:
        return ()
    by_device: dict[str, list[StoredTrial]] = {}
    for trial in trials:
        by_device.setdefault(trial.result.device.name, []).append(trial)
    rules = []
    for device, rows in by_device.items():
        if (rule := _rule(device, rows, objective, min_turns)) is not None:
            rules.append(rule)
    return tuple(rules)


def _rule(device: str, trials: Sequence[StoredTrial], objective: str, min_turns: int) -> PruneRule | None:
    runs: dict[int, list[StoredTrial]] = {}
    values: dict[int, list[float]] = {}
    played = next((trial.trace_sha256 for trial in reversed(trials) if trial.role is Role.SEARCH), None)
    for trial in trials:
        if trial.trace_sha256 != played:
            continue  # the confirm phase may replay turns that the search has not seen
        value = None if trial.result.failure else figure(trial.result, objective)
        if value is not None and trial.candidate is not None and trial.role in PLAYED:
            runs.setdefault(trial.candidate, []).append(trial)
            values.setdefault(trial.candidate, []).append(value)
    if not runs:
        return None
    better = min if direction(objective) == "minimize" else max
    best = better(values, key=lambda number: fmean(values[number]))
    turns = _turns(runs[best], objective)
    if len(turns) < min_turns:
        return None
    return PruneRule(
        candidate=best,
        device=device,
        objective=objective,
        turns=turns,
        margin=margin(trials, objective, candidates=len(runs)),
        alpha=LOOKS_ALPHA,
        min_turns=min_turns,
    )


def _turns(runs: Sequence[StoredTrial], objective: str) -> tuple[TurnCost, ...]:
    """The turns that every run of the best candidate has, each with its mean cost."""
    found: dict[tuple[str, int, str, str], list[float]] = {}
    for run in runs:
        for turn in warm_turns(run.result.turns, counted_turns(run)):
            cost = turn_cost(turn.exchange, turn.counters, objective)
            if cost is not None:
                key = (turn.conversation, turn.index, turn.prompt_sha256, cost[1])
                found.setdefault(key, []).append(cost[0])
    return tuple(
        TurnCost(conversation=name, index=index, prompt_sha256=prompt, cost=fmean(costs), source=source)
        for (name, index, prompt, source), costs in found.items()
        if len(costs) == len(runs)
    )


def warm_turns(played: Sequence[TurnRecord], counted: Sequence[TurnRecord]) -> list[TurnRecord]:
    """The counted turns but for the first of each conversation."""
    first: dict[str, int] = {}
    for turn in played:
        if not turn.warmup:
            first[turn.conversation] = min(turn.index, first.get(turn.conversation, turn.index))
    return [turn for turn in counted if turn.index != first[turn.conversation]]


def margin(trials: Sequence[StoredTrial], objective: str, *, candidates: int) -> float:
    """`margin_of` with the noise of the study's own repeats of speculative settings: plain decoding scatters less."""
    repeated = (trial for trial in trials if trial.speculative and trial.role is not Role.SEARCH)
    own = repeat_noise(trial_frame(repeated), objective)
    return margin_of(own.sd if own else 0.0, own.df if own else 0, candidates)


def margin_of(sd: float, df: int, candidates: int) -> float:
    """How much slower than the best a candidate must be (as a share) before that cannot be the luck of two launches.

    exp(s · c · t/z) − 1: s is `sd` between runs of one setting (log scale, `df` degrees of freedom), never below what
    it gives together with USUAL_DF runs of the usual scatter; c is `luck`, t/z the price of knowing s from few repeats.
    """
    together = USUAL_DF + df
    pooled = math.sqrt((USUAL_DF * USUAL_SD**2 + df * sd**2) / together)
    price = float(stats.t.isf(MARGIN_ALPHA, together) / stats.norm.isf(MARGIN_ALPHA))
    return max(LEAST_MARGIN, math.expm1(max(pooled, sd) * price * luck(candidates)))


@cache
def luck(candidates: int) -> float:
    """Standard deviations by which the best of that many equal candidates beats a further one, at most, in all but
    MARGIN_ALPHA of studies, one run each.

    The c with P(X + max of m > c) = MARGIN_ALPHA, X and the m independent and normal: ∫ φ(x) Φ(c − x)ᵐ dx = 1 − that.
    """

    def missing(c: float) -> float:
        def share(x: float) -> float:
            return float(stats.norm.pdf(x) * stats.norm.cdf(c - x) ** candidates)

        return float(integrate.quad(share, -8, 8)[0]) - (1 - MARGIN_ALPHA)

    return float(optimize.brentq(missing, 0.0, 12.0, xtol=1e-4))


def course(trial: StoredTrial, objective: str) -> Mapping[int, float]:
    """Order of a turn → the objective over the counted turns up to it: what a sampler sees of a trial on its way.

    Empty for a trial that broke off (but not for one that was ended early), and where turns alone do not tell the
    objective. Of long trials only MAX_STEPS turns, evenly spread, the last one among them.
    """
    failure = trial.result.failure
    if objective not in OBJECTIVES or (failure is not None and not failure.kind.is_stop):
        return {}
    if objective in BY_CLIENT and trial.result.clock == "virtual":
        return {}
    turns = sorted(counted_turns(trial), key=lambda turn: turn.order)
    every = max(1, math.ceil(len(turns) / MAX_STEPS))
    ends = [count for count in range(1, len(turns) + 1) if (len(turns) - count) % every == 0]
    found = {turns[count - 1].order: score(turns[:count], objective) for count in ends}
    return {order: value for order, value in found.items() if value is not None}
