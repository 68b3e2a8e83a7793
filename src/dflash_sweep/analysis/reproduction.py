"""Whether a stored figure came out again: then against now, by an equivalence test. Pure; imports `intervals` only.

Figures are positive (rates or times), one a run, and are compared on the log scale. *Reproduced* needs proof: two
one-sided tests (Schuirmann 1987) that the difference is smaller than a margin; a difference that is merely not
significant proves nothing. docs/statistics.md gives the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

from dflash_sweep.analysis.change import change_words
from dflash_sweep.analysis.intervals import Interval, Spread

EQUAL_ALPHA = 0.05
"""Level of each of the two one-sided tests: the 90 % interval must lie inside the margin."""

MOVED_ALPHA = 0.003
"""A change is called shown at this level, as a drift within a study is: it is looked for in every rerun."""

ALONE_ALPHA = 0.05
"""The least that plain decoding must show by itself where the setting's change speaks for a moved machine as well."""

NOISE_MULTIPLE = 6.0
"""The margin in standard deviations of one run. One original run and three new ones differ by a standard error of
1.15 of them, so an unchanged setting passes the test in 99.96 % of reruns where the noise is known well, and in 99.3 %
where it is known from ten degrees of freedom."""

LEAST_MARGIN, MOST_MARGIN = 0.01, 1 / 3
"""Ends of the margin from noise: less than 1 % matters to nobody, and nobody calls a third more or less the same."""

NOISIER_ALPHA = 0.01
"""The new runs' own scatter is used alone if it exceeds the study's at this level (F test)."""

MOST_REPEATS = 200
"""As many repeats as are looked at for a decision; beyond, none is promised."""


class Outcome(StrEnum):
    """What is said of a rerun."""

    REPRODUCED = "reproduced"
    DRIFTED = "drifted"
    NOT_REPRODUCED = "not_reproduced"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Now against then, as a ratio: `interval` at 95 %, `equal` at 90 % (what the equivalence test looks at).

    `sd` is the scatter of one run on the log scale with its `df`; `error` the standard error of the log ratio. None for
    all of them but the value where nothing tells the scatter. `p`: two-sided, of no change; `shown`: at MOVED_ALPHA.
    """

    interval: Interval
    equal: Interval
    shown: bool = False
    p: float | None = None
    sd: float | None = None
    error: float | None = None
    df: float | None = None
    noisier: bool = False

    def is_within(self, margin: float) -> bool:
        """True if the difference is proven smaller than the margin (a share, e.g. 0.05), on the log scale."""
        low, high = self.equal.low, self.equal.high
        return (
            low is not None and high is not None and -_limit(margin) < math.log(low) and math.log(high) < _limit(margin)
        )

    def is_beyond(self, margin: float) -> bool:
        """True if the 95 % interval lies wholly outside the margin."""
        low, high = self.interval.low, self.interval.high
        if low is None or high is None:
            return False
        return math.log(high) < -_limit(margin) or math.log(low) > _limit(margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The judgement. `then`, `now` (and of plain decoding `plain_then`, `plain_now`) are geometric means.

    `plain`: the baseline's change, None without a baseline. `relative`: the setting's change beyond the baseline's.
    `margin` is a share; `margin_from` says where it comes from. `more_repeats` None = no number of repeats would
    decide, or none is needed.
    """

    outcome: Outcome
    statement: str
    then: float | None
    now: float | None
    n_then: int
    n_now: int
    change: Change | None = None
    plain: Change | None = None
    plain_moved: bool | None = None
    plain_then: float | None = None
    plain_now: float | None = None
    relative: Change | None = None
    margin: float | None = None
    margin_from: str = ""
    more_repeats: int | None = None


def _limit(margin: float) -> float:
    return math.log1p(margin)


def compare(then: Sequence[float], now: Sequence[float], spread: Spread | None = None) -> Change:
    """Now against then. `spread`: the study's own noise (pooled over its repeats, those of `then` among them).

    Both sides are taken to be equally noisy: sd² = (df·spread² + Σ(log now − mean)²) / (df + n − 1), and the standard
    error of the difference is sd·√(1/m + 1/n) — a single original run (m = 1) has the study's noise like any other.
    Where the new runs scatter significantly more (F test, 1 %), their own scatter stands for them and the study's for
    the original, with Satterthwaite's degrees of freedom. Without `spread` the repeats of both sides give sd.
    """
    x, y = np.log(np.asarray(then, dtype=float)), np.log(np.asarray(now, dtype=float))
    log = float(y.mean() - x.mean())
    m, n = x.size, y.size
    own, own_df = float(((y - y.mean()) ** 2).sum()), n - 1
    known, known_df = (
        (float(((x - x.mean()) ** 2).sum()), m - 1) if spread is None else (spread.sd**2 * spread.df, spread.df)
    )
    if known_df + own_df < 1:
        alone = _ratio(log, None, None, n, 0.95)
        return Change(interval=alone, equal=alone)
    df: float = known_df + own_df
    variance = (known + own) / df
    error = math.sqrt(variance * (1 / m + 1 / n))
    noisier = _is_noisier(own, own_df, known, known_df)
    if noisier:
        parts = (known / known_df / m, known_df), (own / own_df / n, own_df)
        total = sum(part for part, _ in parts)
        error, df = math.sqrt(total), total**2 / sum(part**2 / part_df for part, part_df in parts)
        variance = own / own_df
    return _change(log, error, df, n, math.sqrt(variance), noisier)


def _is_noisier(own: float, own_df: int, known: float, known_df: int) -> bool:
    if own_df < 1 or known_df < 1 or own <= 0:
        return False
    return known <= 0 or float(stats.f.sf(own / own_df / (known / known_df), own_df, known_df)) < NOISIER_ALPHA


def _change(log: float, error: float, df: float, n: int, sd: float, noisier: bool = False) -> Change:
    nothing = abs(log) <= 1e-9
    p = float(nothing) if nothing or error <= 0 else float(2 * stats.t.sf(abs(log) / error, df))
    return Change(
        interval=_ratio(log, error, df, n, 0.95),
        equal=_ratio(log, error, df, n, 1 - 2 * EQUAL_ALPHA),
        shown=p < MOVED_ALPHA,
        p=p,
        sd=sd,
        error=error,
        df=df,
        noisier=noisier,
    )


def _ratio(log: float, error: float | None, df: float | None, n: int, level: float) -> Interval:
    if error is None or df is None:
        return Interval(value=math.exp(log), low=None, high=None, n=n, method="single run")
    half = float(stats.t.ppf(0.5 + level / 2, df)) * error
    return Interval(
        value=math.exp(log),
        low=math.exp(log - half),
        high=math.exp(log + half),
        n=n,
        method=f"log ratio, pooled dispersion, t, {df:.3g} df, {100 * level:.4g} %",
    )


def margin_from_noise(sd: float | None) -> float | None:
    """The margin that the noise of one run allows, within LEAST_MARGIN and MOST_MARGIN; None where it is not known."""
    return None if sd is None else min(max(math.expm1(NOISE_MULTIPLE * sd), LEAST_MARGIN), MOST_MARGIN)


def judge(
    then: Sequence[float],
    now: Sequence[float],
    *,
    plain_then: Sequence[float] = (),
    plain_now: Sequence[float] = (),
    spread: Spread | None = None,
    plain_spread: Spread | None = None,
    margin: float | None = None,
    unit: str = "",
    least_now: int = 2,
) -> Reproduction:
    """Judge a rerun: the setting's runs then and now, and plain decoding's beside them.

    `margin` (a share, e.g. 0.02) is the largest difference that counts as the same; None = from the noise. First the
    machine: if plain decoding is shown to have moved by what matters, the figure has *drifted* with it unless the
    setting moved apart from it. Else *reproduced* if the change is proven smaller than the margin; *not reproduced* if
    its 95 % interval lies wholly beyond the margin; *drifted* if it is shown but not that large; else *inconclusive*.
    Fewer than `least_now` new runs are not judged (nor is one where nothing tells the noise).
    """
    if not then or len(now) < least_now or (spread is None and len(then) + len(now) < 3):
        why = "the stored trial has no figure" if not then else f"only {len(now)} of the new runs gave a figure"
        return Reproduction(
            outcome=Outcome.INCONCLUSIVE,
            statement=f"Inconclusive: {why}; two are needed on the new side and one on the old.",
            then=_mean(then),
            now=_mean(now),
            n_then=len(then),
            n_now=len(now),
            more_repeats=None if not then else max(1, 2 - len(now)),
        )
    change = compare(then, now, spread)
    plain = compare(plain_then, plain_now, plain_spread) if plain_then and plain_now else None
    used = margin if margin is not None else margin_from_noise(change.sd)
    assert used is not None, "two new runs tell the scatter"
    moved = None if plain is None else _machine_moved(change, plain, LEAST_MARGIN if margin is None else margin)
    relative = None if plain is None else _relative(change, plain)
    outcome = _outcome(change, relative, used, moved=bool(moved))
    more = _more_repeats(change, used, len(then), len(now)) if outcome is Outcome.INCONCLUSIVE else None
    found = Reproduction(
        outcome=outcome,
        statement="",
        then=_mean(then),
        now=_mean(now),
        n_then=len(then),
        n_now=len(now),
        change=change,
        plain=plain,
        plain_moved=moved,
        plain_then=None if plain is None else _mean(plain_then),
        plain_now=None if plain is None else _mean(plain_now),
        relative=relative,
        margin=used,
        margin_from="asked for" if margin is not None else _margin_words(change.sd),
        more_repeats=more,
    )
    return _worded(found, unit)


def _machine_moved(change: Change, plain: Change, margin: float) -> bool:
    """True if plain decoding is shown to have moved by what matters: by itself, or at 5 % by itself and at MOVED_ALPHA
    together with the setting's change in the same direction (Fisher's combination of two independent tests)."""
    if plain.p is None or plain.is_within(margin):
        return False
    if plain.shown or change.p is None or plain.p >= ALONE_ALPHA:
        return plain.shown
    same = (change.interval.value > 1) == (plain.interval.value > 1)
    least = 1e-300  # the logarithm of 0 is no number
    both = -2 * (math.log(max(plain.p, least)) + math.log(max(change.p, least)))
    return same and float(stats.chi2.sf(both, 4)) < MOVED_ALPHA


def _outcome(change: Change, relative: Change | None, margin: float, *, moved: bool) -> Outcome:
    if moved:
        apart = relative is not None and relative.shown and not relative.is_within(margin)
        return Outcome.NOT_REPRODUCED if apart and change.is_beyond(margin) else Outcome.DRIFTED
    if change.is_within(margin):
        return Outcome.REPRODUCED
    if change.shown:
        return Outcome.NOT_REPRODUCED if change.is_beyond(margin) else Outcome.DRIFTED
    return Outcome.INCONCLUSIVE


def _relative(change: Change, plain: Change) -> Change | None:
    """The setting's change over the baseline's; None where one of them has no interval."""
    if change.error is None or plain.error is None or change.df is None or plain.df is None or change.sd is None:
        return None
    parts = (change.error**2, change.df), (plain.error**2, plain.df)
    total = sum(part for part, _ in parts)
    df = total**2 / sum(part**2 / part_df for part, part_df in parts) if total > 0 else change.df
    log = math.log(change.interval.value / plain.interval.value)
    return _change(log, math.sqrt(total), df, change.interval.n, change.sd)


def _more_repeats(change: Change, margin: float, m: int, n: int) -> int | None:
    """Further runs after which the same difference would be decided, whichever way; None = no number would.

    The noise of the original run stays however often the new side is repeated.
    """
    if change.sd is None or change.df is None:
        return None
    distance = abs(math.log(change.interval.value))
    for total in range(n + 1, MOST_REPEATS + 1):
        df = change.df + total - n
        error = change.sd * math.sqrt(1 / m + 1 / total)
        equal = distance + float(stats.t.isf(EQUAL_ALPHA, df)) * error < _limit(margin)
        if equal or distance > float(stats.t.isf(MOVED_ALPHA / 2, df)) * error:
            return total - n
    return None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.exp(np.log(np.asarray(values, dtype=float)).mean())) if len(values) else None


# ---------------------------------------------------------------- in words


def _margin_words(sd: float | None) -> str:
    raw = math.expm1(NOISE_MULTIPLE * (sd or 0.0))
    if raw < LEAST_MARGIN:
        return f"the least that matters; one run scatters by {100 * (sd or 0.0):.2f} %"
    if raw > MOST_MARGIN:
        return f"the most that may count as the same; one run scatters by {100 * (sd or 0.0):.1f} %"
    return f"{NOISE_MULTIPLE:g} times the {100 * (sd or 0.0):.1f} % by which one run scatters"


def _worded(found: Reproduction, unit: str) -> Reproduction:
    assert found.change is not None
    assert found.then is not None
    assert found.now is not None
    assert found.margin is not None
    tail = f" {unit}" if unit else ""
    figures = f"{found.then:.2f}{tail} then, {found.now:.2f}{tail} now"
    interval = found.change.equal if found.outcome is Outcome.REPRODUCED else found.change.interval
    changed = change_words(interval)
    margin = f"±{100 * found.margin:.1f} % ({found.margin_from})"
    if found.outcome is Outcome.REPRODUCED:
        text = f"Reproduced: {figures}: {changed}, proven to lie within {margin}."
    elif found.outcome is Outcome.DRIFTED and _is_the_machine(found):
        text = f"Drifted with the machine: {figures}: {changed}."
    elif found.outcome is Outcome.DRIFTED:
        text = f"Drifted: {figures}: {changed}."
    elif found.outcome is Outcome.NOT_REPRODUCED:
        text = f"Not reproduced: {figures}: {changed}, wholly beyond {margin}."
    else:
        text = f"Inconclusive: {figures}: {changed} is neither proven to lie within {margin} nor shown to be a change."
        text += _more_words(found)
    if found.change.noisier:
        text += " The new runs scatter more than the study's did."
    values = {name: getattr(found, name) for name in Reproduction.__slots__}
    return Reproduction(**{**values, "statement": text + _plain_words(found)})


def _more_words(found: Reproduction) -> str:
    if found.more_repeats is not None:
        return f" About {found.more_repeats} more repeat(s) would decide it if the difference stays."
    side = "the stored figure rests on one run" if found.n_then == 1 else "the stored runs are few"
    return f" No number of repeats would decide it, because {side} and its noise stays; a wider margin would."


def _plain_words(found: Reproduction) -> str:
    if found.plain is None:
        return " No baseline was measured beside it."
    if (found.then, found.now) == (found.plain_then, found.plain_now):
        return ""  # it is the baseline
    moved = change_words(found.plain.interval)
    if not found.plain_moved:
        perhaps = found.plain.p is not None and found.plain.p < ALONE_ALPHA
        return f" Plain decoding {'may have moved, not surely' if perhaps else 'did not move'} ({moved})."
    if found.relative is None:
        return f" Plain decoding moved by {moved}."
    tail = "the setting's change fits that" if _is_the_machine(found) else "the setting moved apart from it"
    return f" Plain decoding moved by {moved}; {tail} ({change_words(found.relative.interval)} beyond plain decoding)."


def _is_the_machine(found: Reproduction) -> bool:
    """True if plain decoding moved and the setting did not do anything else."""
    return bool(found.plain_moved) and (found.relative is None or not found.relative.shown)


# ---------------------------------------------------------------- failures


def judge_failure(then: str | None, now: Sequence[str | None]) -> Reproduction | None:
    """Judge reruns of which one side failed; `then` and each of `now` is a failure kind, None = it gave a figure.

    None = nothing failed then and at least two runs gave a figure now: `judge` decides.
    """
    failed = [kind for kind in now if kind is not None]
    if then is None and len(now) - len(failed) >= 2:
        return None
    if then is not None and failed and all(kind == then for kind in now):
        outcome, text = Outcome.REPRODUCED, f"Reproduced: it failed with {then} then, and in all {len(now)} runs now."
    elif then is not None and not failed:
        outcome, text = (
            Outcome.NOT_REPRODUCED,
            f"Not reproduced: it failed with {then} then, and in none of {len(now)} runs now.",
        )
    elif then is None and now and len(failed) == len(now):
        kinds = ", ".join(sorted(set(failed)))
        outcome, text = Outcome.NOT_REPRODUCED, f"Not reproduced: all {len(now)} runs failed now ({kinds})."
    else:
        was = "gave a figure then" if then is None else f"failed with {then} then"
        outcome, text = (
            Outcome.INCONCLUSIVE,
            f"Inconclusive: it {was}, and {len(failed)} of {len(now)} runs failed now.",
        )
    return Reproduction(
        outcome=outcome, statement=text, then=None, now=None, n_then=int(then is None), n_now=len(now) - len(failed)
    )
