"""Pairs of axes that do not simply add up: whether the effect of one depends on the other.

Imports `levels`, `effects`, `evidence`, `intervals`, `records` only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats
from statsmodels.regression.linear_model import OLS

from dflash_sweep.analysis import levels as lv
from dflash_sweep.analysis.effects import AxisEffect, best_cut
from dflash_sweep.analysis.evidence import HOLDS, Evidence, from_interval, percent
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.rows import numbers
from dflash_sweep.analysis.sentences import Sentence, say
from dflash_sweep.records import Verdict

INTERACTION_ALPHA = 0.005
"""Level of all pairs of a study together (Bonferroni)."""

MIN_CELL = 3
"""Runs in each of the four cells of a pair; fewer cannot show that two axes do not add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two axes, each split in two (`first`, `second` in words: what counts as high).

    `ratio`: how many times larger the effect of the first is where the second is high, than where it is low; 1 = they
    add up. `p_adjusted` over all pairs looked at; `cells`: runs low/low, low/high, high/low, high/high.
    """

    axes: tuple[str, str]
    first: Sentence
    second: Sentence
    ratio: Interval
    p_adjusted: float
    cells: tuple[int, int, int, int]


def interactions(effects: Sequence[AxisEffect], evidence: Evidence) -> tuple[Interaction, ...]:
    """Pairs with at least one axis that moves the objective (heredity: what moves nothing seldom interacts).

    log figure = other axes + a + b + a·b, with a and b 0 or 1: an ordered axis is split where it separates best,
    another at its most used value. Most certain first.
    """
    additive = [effect for effect in effects if effect.rows.method == "additive"]
    pairs = [pair for pair in combinations(additive, 2) if any(effect.status == "moves" for effect in pair)]
    table = lv.axis_table(evidence.known)
    found = [tested for pair in pairs if (tested := _tested(pair, table, evidence)) is not None]
    adjusted = [
        Interaction(
            axes=entry.axes,
            first=entry.first,
            second=entry.second,
            ratio=entry.ratio,
            p_adjusted=min(1.0, entry.p_adjusted * len(found)),
            cells=entry.cells,
        )
        for entry in found
    ]
    return tuple(sorted(adjusted, key=lambda entry: entry.p_adjusted))


def _identified(columns: list[np.ndarray], others: np.ndarray | None) -> np.ndarray | None:
    """The design with those columns of `others` that add anything; None if the last of `columns` is confounded: the
    other axes moved along with the pair, and nobody knows which of them it was."""
    wanted = np.column_stack(columns).astype(float)
    if others is None:
        return wanted
    full = np.column_stack([wanted, others])
    rank = int(np.linalg.matrix_rank(full))
    if np.linalg.matrix_rank(np.delete(full, len(columns) - 1, axis=1)) == rank:
        return None
    design = wanted
    for column in others.T:
        wider = np.column_stack([design, column])
        if np.linalg.matrix_rank(wider) == wider.shape[1]:
            design = wider
    return design


def _tested(pair: tuple[AxisEffect, AxisEffect], table: lv.AxisTable, evidence: Evidence) -> Interaction | None:
    places = np.intersect1d(pair[0].rows.places, pair[1].rows.places)
    (a, first), (b, second) = (_split(effect, places) for effect in pair)
    cells = tuple(int(((a == i) & (b == j)).sum()) for i in (0, 1) for j in (0, 1))
    if min(cells) < MIN_CELL:
        return None
    others = [lv.trend(table, name, places) for name in table.names if name not in (pair[0].name, pair[1].name)]
    design = _identified([np.ones(len(places)), a, b, a * b], np.column_stack(others) if others else None)
    if design is None:
        return None
    y = np.log(numbers(evidence.known, evidence.column).to_numpy()[places])
    if len(y) - np.linalg.matrix_rank(design) < lv.MIN_RESIDUAL_DF:
        return None
    fitted = OLS(y, design).fit()
    value, error, df = float(fitted.params[3]), float(fitted.bse[3]), float(fitted.df_resid)
    if not error > 0:
        return None
    half = float(stats.t.ppf(0.975, df)) * error
    return Interaction(
        axes=(pair[0].name, pair[1].name),
        first=first,
        second=second,
        ratio=Interval(
            value=math.exp(value),
            low=math.exp(value - half),
            high=math.exp(value + half),
            n=len(y),
            method=f"t, {df:.0f} df",
        ),
        p_adjusted=float(2 * stats.t.sf(abs(value) / error, df)),
        cells=(cells[0], cells[1], cells[2], cells[3]),
    )


def _split(effect: AxisEffect, places: np.ndarray) -> tuple[np.ndarray, Sentence]:
    """0/1 for each place, and what 1 means."""
    codes = effect.rows.codes[np.searchsorted(effect.rows.places, places)]
    cut = best_cut(effect.rows, effect.fit)
    if cut is not None:
        first = effect.rows.levels[cut[0]].text
        return (codes >= cut[0]).astype(float), say("{axis} from {value} on", axis=effect.name, value=first)
    usual = effect.rows.levels[effect.reference].text
    other = say("{axis} other than {value}", axis=effect.name, value=usual)
    return (codes != effect.reference).astype(float), other


def interaction_verdicts(effects: Sequence[AxisEffect], evidence: Evidence) -> list[Verdict]:
    """One sweet_spot verdict per pair whose best values surely depend on each other; none for the others."""
    return [
        from_interval(
            "sweet_spot",
            " × ".join(found.axes),
            HOLDS,
            say(
                "{one} and {other} do not add up: the effect of {first} is {change} with {second} (p = {p:.2g} over "
                "all pairs). Choose their values together.",
                one=found.axes[0],
                other=found.axes[1],
                first=found.first,
                second=found.second,
                change=percent(found.ratio),
                p=found.p_adjusted,
            ),
            found.ratio,
            "ratio",
            details={"cells": list(found.cells), "p_adjusted": found.p_adjusted},
            how_to_check=say("mean log figures of the four cells, other axes allowed for: (hh − lh) − (hl − ll)"),
        )
        for found in interactions(effects, evidence)
        if found.p_adjusted < INTERACTION_ALPHA
    ]
