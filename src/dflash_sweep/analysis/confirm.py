"""Who won, from interleaved confirm blocks: a winner with an interval, or the settings that cannot be told apart.

Imports `blocks`, `decision`, `flattery`, `intervals`, `rivals`, `rows`. Pure: the driver calls it after each block and
goes on until `finished`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS

from dflash_sweep.analysis.blocks import block_table, cards_per_block, present
from dflash_sweep.analysis.decision import BEST_MEAN, Decision, worded
from dflash_sweep.analysis.flattery import flattery, lowered
from dflash_sweep.analysis.intervals import log_mean_interval
from dflash_sweep.analysis.rivals import Rivals, otherwise, rivals
from dflash_sweep.analysis.rows import is_plain, numbers, objective_column, usable
from dflash_sweep.analysis.sentences import say, together

MIN_BLOCKS = 2
"""Nothing is decided on one block: it holds one run of each setting."""


def look_alpha(look: int, planned: int | None, alpha: float = 0.05, step: int = 1) -> float:
    """Share of `alpha` that the look after `look` blocks may spend when `planned` blocks are the most.

    Lan and DeMets' spending function of O'Brien-Fleming type, α*(t) = 2 − 2Φ(z(1−α/2) / √t) with t = look / planned;
    a look gets the increment since the look before it (`step` blocks earlier), so that all looks together spend at most
    α. `planned` None = this is the only look: all of α. Looks begin at MIN_BLOCKS.
    """
    if planned is None or planned <= MIN_BLOCKS:
        return alpha
    look = min(look, planned)
    before = 0.0 if look - step < MIN_BLOCKS else _spent((look - step) / planned, alpha)
    return _spent(look / planned, alpha) - before


def _spent(share: float, alpha: float) -> float:
    return float(2 * stats.norm.sf(stats.norm.isf(alpha / 2) / math.sqrt(share)))


def decide(
    trials: pd.DataFrame,
    *,
    objective: str = "decode_tps",
    direction: str = "maximize",
    planned_blocks: int | None = None,
    alpha: float = 0.05,
) -> Decision:
    """Judge the confirm rows of a trial table (role confirm; `repeat` numbers the block; plain rows = baseline).

    log figure = setting + block (+ device, where there are several), by least squares; a finalist is named winner if
    it is better than each other finalist at one-sided level (α/2)/max(2, k−1) (comparison with the best, Hsu 1984,
    with Bonferroni's bound; never more than α/4, because which of two equal finalists comes out first is chance).
    Pass `planned_blocks` whenever this is called after each block: each look then spends its share of α only.
    """
    sign = -1.0 if direction == "minimize" else 1.0
    trials = present(trials)
    column = objective_column(trials, objective)
    confirm = trials[trials["role"].map(str) == "confirm"] if len(trials) else trials
    rows = usable(confirm, column)
    rows = rows[is_plain(rows) | rows["candidate"].notna()]
    if rows["device"].nunique() > 1:
        options: dict[str, Any] = {"objective": objective, "direction": direction, "alpha": alpha}
        return _together(
            tuple(
                (str(name), decide(trials[trials["device"] == name], planned_blocks=planned_blocks, **options))
                for name in rows["device"].unique()
            )
        )
    if rows.empty:
        return Decision(outcome="not_enough_data", statement=say("No confirm run finished."), finished=False)
    beside = usable(trials[trials["role"].map(str) == "control"], column)
    table = block_table(pd.concat([rows, beside]) if len(beside) else rows, column, sign)
    finalists = [name for name in table.columns if not isinstance(name, str)]
    blocks = int(table[finalists].notna().all(axis=1).sum()) if finalists else 0
    if blocks < MIN_BLOCKS:
        return Decision(
            outcome="not_enough_data",
            statement=say(
                "{blocks} complete confirm block(s); {needed} are needed before anything can be said.",
                blocks=blocks,
                needed=MIN_BLOCKS,
            ),
            contenders=tuple(int(name) for name in finalists),
            blocks=blocks,
        )
    cards = cards_per_block(rows)
    planned_blocks = None if planned_blocks is None else planned_blocks * cards
    spent = look_alpha(blocks, planned_blocks, alpha, cards)
    return _judge(rows, beside, table, finalists, column, sign, spent, blocks, planned_blocks)


def _together(devices: tuple[tuple[str, Decision], ...]) -> Decision:
    """What can be said of devices that are not equal: each by itself; a winner only where all have the same one."""
    parts = [decision for _, decision in devices]
    winners = {decision.winner for decision in parts}
    beats = {decision.beats_plain for decision in parts}
    winner = winners.pop() if len(winners) == 1 else None
    known = all(decision.outcome != "not_enough_data" for decision in parts)
    named = "winner" if winner is not None else "not_distinguishable"
    return Decision(
        outcome=named if known else "not_enough_data",
        statement=together(*(say("On {device}: {said}", device=name, said=part.statement) for name, part in devices)),
        winner=winner,
        contenders=tuple(dict.fromkeys(number for decision in parts for number in decision.contenders)),
        unlike=next((decision.unlike for decision in parts if decision.unlike is not None), None),
        beats_plain=beats.pop() if len(beats) == 1 else None,
        blocks=min(decision.blocks for decision in parts),
        finalists=max(decision.finalists for decision in parts),
        alpha=max(decision.alpha for decision in parts),
        finished=all(decision.finished for decision in parts),
        devices=devices,
    )


def _judge(
    rows: pd.DataFrame,
    beside: pd.DataFrame,
    table: pd.DataFrame,
    finalists: list[Any],
    column: str,
    sign: float,
    alpha: float,
    blocks: int,
    planned: int | None,
) -> Decision:
    contenders = _contenders(table[finalists], alpha / 2)
    best = contenders[0]
    level = 1 - alpha / 2 / max(1, len(finalists))
    flattered = sign * flattery(table[finalists], best)
    plain = rivals(table, best, rows, beside, level=level, sign=sign, luck=flattered)
    won = len(contenders) == 1
    values = [float(value) for value in np.exp(sign * table[best].dropna())]
    cheapest, by = (best, None) if won else _cheapest(rows, contenders)
    decision = Decision(
        outcome="winner" if won else "not_distinguishable",
        statement="",
        winner=int(best) if won else None,
        contenders=tuple(int(name) for name in contenders),
        cheapest=int(cheapest),
        cheapest_by=by,
        value=lowered(log_mean_interval(values, level=level), flattered),
        speedup=plain.gain,
        control=plain.control,
        apart={} if plain.control is None else otherwise(plain.control, rows),
        unlike=plain.unlike,
        beats_plain=plain.beats,
        blocks=blocks,
        finalists=len(finalists),
        alpha=alpha,
        finished=_finished(won, plain, blocks, planned),
    )
    return worded(decision, rows)


def _finished(won: bool, plain: Rivals, blocks: int, planned: int | None) -> bool:
    """No further look is planned, or both questions (which one, and against plain) are answered."""
    if planned is None or blocks >= planned:
        return True
    return won and (plain.gain is None or plain.beats is not None)


def _contenders(table: pd.DataFrame, alpha: float) -> list[Any]:
    """Settings that may be the best, best mean first: not worse than the best mean at one-sided α/max(2, k−1)."""
    long = table.stack().dropna() if len(table.columns) else pd.Series(dtype=float)
    settings = list(table.columns)
    if len(settings) == 1:
        return settings
    design = pd.DataFrame(
        {
            **{f"s{i}": (long.index.get_level_values(1) == name).astype(float) for i, name in enumerate(settings)},
            **{
                f"b{i}": (long.index.get_level_values(0) == block).astype(float)
                for i, block in enumerate(table.index[1:])
            },
        },
        index=long.index,
    )
    fit = OLS(long.to_numpy(), design.to_numpy()).fit()
    means = fit.params[: len(settings)]
    order = list(np.argsort(-means, kind="stable"))
    best, kept = order[0], [order[0]]
    df = int(fit.df_resid)
    critical = float(stats.t.isf(alpha / max(2, len(settings) - 1), df)) if df > 0 else math.inf
    for other in order[1:]:
        contrast = np.zeros(design.shape[1])
        contrast[best], contrast[other] = 1.0, -1.0
        error = math.sqrt(max(0.0, float(contrast @ fit.cov_params() @ contrast)))
        if means[best] - means[other] <= critical * error or df <= 0:
            kept.append(other)
    return [settings[i] for i in kept]


def _cheapest(rows: pd.DataFrame, contenders: list[Any]) -> tuple[Any, str]:
    """The contender with the least memory, else the fewest drafted tokens a step, else the best mean."""
    drafted = numbers(rows, "draft_tokens") / numbers(rows, "verify_steps")
    for figure, words in (
        (numbers(rows, "peak_memory_mib"), "peak memory"),
        (numbers(rows, "energy_j") / numbers(rows, "output_tokens"), "energy per token"),
        (drafted.where(np.isfinite(drafted)), "drafted tokens per step"),
    ):
        means = {name: figure[rows["candidate"] == name].mean() for name in contenders}
        if all(np.isfinite(mean) for mean in means.values()) and len(set(means.values())) > 1:
            return min(contenders, key=lambda name: means[name]), words
    return contenders[0], BEST_MEAN
