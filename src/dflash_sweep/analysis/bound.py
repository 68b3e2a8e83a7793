"""The fastest an implementation can be, whatever its settings: the cost of each committed token against plain decoding.

Imports `evidence`, `intervals`, `noise`, `rows`, `metrics` only.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.robust.robust_linear_model import RLM
from statsmodels.tools.tools import add_constant

from dflash_sweep import metrics
from dflash_sweep.analysis.evidence import (
    FAILS,
    HOLDS,
    Evidence,
    between,
    committed_per_step,
    from_interval,
    plain_ms_per_token,
    unknown,
)
from dflash_sweep.analysis.intervals import Interval, Spread, log_mean_interval, speedup
from dflash_sweep.analysis.noise import MIN_DF
from dflash_sweep.analysis.rows import is_missing, numbers, value_text
from dflash_sweep.analysis.sentences import Sentence, say, together
from dflash_sweep.records import Verdict

SEQUENTIAL_STAGES = ("exact_ms", "replay_ms")
"""Stages that are, by their definition, one target decode for each kept token."""

SAME = 0.10
"""A cost per token within this of plain decoding's is called one plain decode."""

PARTLY = 0.80
"""Below this share of a plain decode per token the structure alone does not rule speculation out."""

NEAR_PLAIN = 1.5
"""Rows without the stage that reach plain decoding's speed divided by this keep the space open."""

VERIFY_KNOBS = frozenset(
    {
        "verifier", "fast_rollback", "fast_batched", "rollback_mode", "snapshot_fallback", "batched_shortcircuit",
        "verify_width", "ddtree", "spec_type", "sampled_verify",
    }
)  # fmt: skip
"""Knobs that choose how drafted tokens are verified: another value can do away with a stage."""

UNKNOWN_CAP = 64
"""Tokens per step that are taken as possible where nothing limits them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerToken:
    """A stage whose time is proportional to the tokens committed. `cost`: ms per token; `slope` and `intercept` of a
    robust regression on tokens per step, None where the rows' acceptance lengths hardly differ."""

    name: str
    cost: Interval
    slope: Interval | None
    intercept: Interval | None
    per_run: tuple[float, ...]


def per_token_stages(rows: pd.DataFrame) -> tuple[PerToken, ...]:
    """Stages that grow by the same time with each committed token."""
    found = []
    for name in metrics.SUMMED_STAGES:
        stage = per_token(rows, name)
        if stage is not None:
            found.append(stage)
    return tuple(found)


def per_token(rows: pd.DataFrame, name: str) -> PerToken | None:
    """Judge one stage; None if it is absent, or not proportional to the tokens committed.

    Proportional: by definition (SEQUENTIAL_STAGES), or by a robust regression (Huber) on tokens per step whose slope
    is surely positive, whose intercept is under 15 % of the stage, and that leaves under 5 % of scatter.
    """
    length = committed_per_step(rows)
    table = pd.DataFrame({"length": length, "ms": numbers(rows, name)}).dropna()
    table = table[(table["length"] > 0) & (table["ms"] > 0)]
    if len(table) < 2:
        return None
    ratios = table["ms"] / table["length"]
    line = _robust_line(table)
    if line is None:
        if name not in SEQUENTIAL_STAGES:
            return None
    elif not _proportional(*line, table, name):
        return None
    return PerToken(
        name=name,
        cost=log_mean_interval(ratios.tolist()),
        slope=line[0] if line else None,
        intercept=line[1] if line else None,
        per_run=tuple(ratios),
    )


def _robust_line(table: pd.DataFrame) -> tuple[Interval, Interval] | None:
    """Slope and intercept; None if the lengths span less than 10 % or fewer than five rows are there."""
    if len(table) < 5 or table["length"].max() < 1.1 * table["length"].min() or table["length"].nunique() < 3:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a perfect fit has no scale: the figures are right, the warning is not needed
        fitted = RLM(table["ms"].to_numpy(), add_constant(table["length"].to_numpy())).fit()
        ends = fitted.conf_int()
    names = ("robust regression (Huber)",) * 2
    intervals = [
        Interval(value=float(v), low=_finite(low), high=_finite(high), n=len(table), method=m)
        for v, (low, high), m in zip(fitted.params, ends, names, strict=True)
    ]
    return intervals[1], intervals[0]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _proportional(slope: Interval, intercept: Interval, table: pd.DataFrame, name: str) -> bool:
    typical = float(table["ms"].median())
    scatter = float(np.median(np.abs(table["ms"] - intercept.value - slope.value * table["length"]))) / typical
    flat = abs(intercept.value) < 0.15 * typical
    if name in SEQUENTIAL_STAGES:
        return slope.value > 0 and abs(intercept.value) < 0.3 * typical
    return flat and scatter < 0.05 and slope.low is not None and slope.low > 0


def length_cap(evidence: Evidence) -> tuple[float, str | Sentence]:
    """Most tokens a step can commit in this space, and what limits it."""
    limits: list[tuple[float, str]] = []
    for name, extra in (("block_size", 0), ("draft_max", 1), ("spec_draft_n_max", 1), ("budget", 1)):
        values = [float(v) for v in numbers(evidence.trials, f"knob.{name}").dropna()]
        axis = evidence.axes.get(name)
        if axis is not None:
            values += [float(v) for v in axis.values or () if isinstance(v, (int, float)) and not isinstance(v, bool)]
            values += [axis.high] if axis.high is not None else []
        if values:
            limits.append((max(values) + extra, name))
    drafted = (numbers(evidence.ranked, "draft_tokens") / numbers(evidence.ranked, "verify_steps")).max()
    if not limits and np.isfinite(drafted):
        return max(float(drafted) + 1, 2.0), say("drafted tokens per step")
    longest = float(committed_per_step(evidence.ranked).max()) if len(evidence.ranked) else 1.0
    return max(min(limits), (longest, "")) if limits else (max(UNKNOWN_CAP, longest), say("no limit known"))


def structural_bound(evidence: Evidence) -> list[Verdict]:
    """One verdict: holds = no setting of this space can beat plain decoding with this implementation."""
    rows, subject = evidence.ranked, "implementation"
    plain = plain_ms_per_token(evidence)
    step = numbers(rows, "step_ms")
    if plain is None or not (step > 0).any():
        missing = say("a plain row") if plain is None else say("step times")
        why = say("The bound needs {missing}, which these rows lack.", missing=missing)
        return [unknown("structural_bound", subject, why, len(rows))]
    stages = per_token_stages(rows)
    if not stages:
        return [_unbounded(evidence, plain)]
    return [_bounded(evidence, max(stages, key=lambda stage: stage.cost.value), plain, step)]


def _unbounded(evidence: Evidence, plain: Interval) -> Verdict:
    text = say(
        "No stage is seen to cost a fixed time for each committed token: the structure does not keep speculation from "
        "beating plain decoding ({plain} per token).",
        plain=between(plain, 2, "ms"),
    )
    lengths = committed_per_step(evidence.ranked).dropna()
    if len(lengths) < 5 or lengths.max() < 1.1 * lengths.min():
        return unknown(
            "structural_bound",
            "implementation",
            say(
                "The acceptance lengths of these rows differ too little to see whether a stage grows with each "
                "committed token."
            ),
            len(lengths),
        )
    return Verdict(id="structural_bound", subject="implementation", status=FAILS, statement=text, n=len(lengths))


def _bounded(evidence: Evidence, main: PerToken, plain: Interval, step: pd.Series) -> Verdict:
    rows = evidence.ranked
    ratio = _against_plain(evidence, main)
    cap, limit = length_cap(evidence)
    fixed = _fixed_cost(rows, main, step)
    need = _needed_length(fixed, plain.value, ratio)
    fastest = 1000 * cap / (fixed + main.cost.value * cap)
    ceiling = _rate(main.cost)
    details: dict[str, object] = {
        "stage": main.name,
        "ms_per_token": [main.cost.value, main.cost.low, main.cost.high],
        "plain_ms_per_token": [plain.value, plain.low, plain.high],
        "ratio_to_plain": [ratio.value, ratio.low, ratio.high],
        "slope": [main.slope.value, main.slope.low, main.slope.high] if main.slope else None,
        "intercept": [main.intercept.value, main.intercept.low, main.intercept.high] if main.intercept else None,
        "least_other_ms_per_step": fixed,
        "length_needed": None if math.isinf(need) else need,
        "length_cap": cap,
        "length_cap_from": limit,
        "fastest_tps_at_cap": fastest,
        "plain_tps": 1000 / plain.value,
    }
    share = say("{stage} costs {cost} per committed token", stage=main.name, cost=between(main.cost, 2, "ms"))
    if ratio.low is None or ratio.high is None:
        return unknown(
            "structural_bound",
            main.name,
            say(
                "{share}; plain decoding was measured once ({plain:.2f} ms per token), which gives no interval.",
                share=share,
                plain=plain.value,
            ),
            ratio.n,
        )
    escape = _escape(evidence, main, plain)
    holds = ratio.low >= PARTLY and need > cap and not escape
    if holds:
        text = together(_words(main, ratio, plain, fixed, need, cap, limit), _without(rows, main))
    elif ratio.low >= PARTLY and need > cap:
        why = say("{share}, {against}, but {escape}.", share=share, against=_against(ratio, plain), escape=escape)
        return unknown("structural_bound", main.name, why, ratio.n)
    else:
        text = say(
            "{share}, {against}; the structure does not rule out that a setting beats plain decoding.",
            share=share,
            against=_against(ratio, plain),
        )
    return from_interval(
        "structural_bound",
        main.name,
        HOLDS if holds else FAILS,
        text,
        ceiling,
        "tok/s",
        details=details,
        how_to_check=say("{stage} / tokens committed per step, row by row, against the plain rows", stage=main.name),
    )


def _against(ratio: Interval, plain: Interval) -> Sentence:
    same = abs(ratio.value - 1) <= SAME and ratio.low is not None and ratio.low > 1 - 2 * SAME
    if same:
        return say("one plain decode (plain: {plain})", plain=between(plain, 2, "ms"))
    return say("{ratio:.2f} plain decodes (plain: {plain})", ratio=ratio.value, plain=between(plain, 2, "ms"))


def _words(
    stage: PerToken, ratio: Interval, plain: Interval, fixed: float, need: float, cap: float, limit: str
) -> Sentence:
    reach = (
        say("No acceptance length") if math.isinf(need) else say("No acceptance length below {needed:.0f}", needed=need)
    )
    return say(
        "No setting in this space can beat plain decoding: {stage} costs {cost} per committed token, which is "
        "{against}, and the rest of a step takes at least {fixed:.1f} ms on top. {reach} makes up for it (limit here: "
        "{cap:.0f}, {limit}); even with free drafting it ends at {end} against {plain:.1f} plain. Stop sweeping: "
        "{stage} must verify all drafted tokens in one pass.",
        stage=stage.name,
        cost=between(stage.cost, 2, "ms"),
        against=_against(ratio, plain),
        fixed=fixed,
        reach=reach,
        cap=cap,
        limit=limit,
        end=between(_rate(stage.cost), 1, "tok/s"),
        plain=1000 / plain.value,
    )


def _escape(evidence: Evidence, stage: PerToken, plain: Interval) -> str | Sentence:
    """Why the bound is not one of the whole space: a way of verifying that is not tried, or that is fast; "" = none."""
    rows = evidence.ranked
    other = numbers(rows[~(numbers(rows, stage.name) > 0)], "decode_tps").dropna()
    if len(other) and float(other.max()) > 1000 / plain.value / NEAR_PLAIN:
        words = "rows without {stage} come near plain decoding ({rate:.1f} tok/s)"
        return say(words, stage=stage.name, rate=float(other.max()))
    for axis in evidence.study.axes:
        if axis.name in VERIFY_KNOBS and axis.values:
            column = f"knob.{axis.name}"
            seen = {value_text(value) for value in rows[column] if not is_missing(value)} if column in rows else set()
            untried = [value_text(v) for v in axis.values if v is not None and value_text(v) not in seen]
            if untried:
                words = "{setting} may verify in another way and has no valid run yet"
                return say(words, setting=f"{axis.name}={untried[0]}")
    return ""


def _rate(cost: Interval) -> Interval:
    """ms per token as tokens per second."""
    return Interval(
        value=1000 / cost.value,
        low=1000 / cost.high if cost.high else None,
        high=1000 / cost.low if cost.low else None,
        n=cost.n,
        method=cost.method,
    )


def _without(rows: pd.DataFrame, stage: PerToken) -> str | Sentence:
    """What is left to say about rows that verify in another way: they are outside the bound."""
    other = rows[~(numbers(rows, stage.name) > 0)]
    if other.empty:
        return ""
    rates = numbers(other, "decode_tps").dropna()
    fastest = say(", the fastest at {rate:.1f} tok/s", rate=float(rates.max())) if len(rates) else ""
    return say(
        "({count} runs without {stage} verify in another way and are outside this bound{fastest}.)",
        count=len(other),
        stage=stage.name,
        fastest=fastest,
    )


def _against_plain(evidence: Evidence, stage: PerToken) -> Interval:
    """Cost per committed token over plain decoding's cost per token, both by run, with their pooled dispersion."""
    plain = (numbers(evidence.plain, "decode_ms") / numbers(evidence.plain, "decode_tokens")).dropna().tolist()
    spread = _pooled([list(stage.per_run), plain])
    return speedup(stage.per_run, plain, spread, spread)


def _pooled(groups: list[list[float]]) -> Spread | None:
    logs = [np.log(group) for group in groups if len(group) > 1]
    df = sum(len(group) - 1 for group in logs)
    if df < MIN_DF:
        return None
    return Spread(sd=math.sqrt(sum(float(((g - g.mean()) ** 2).sum()) for g in logs) / df), df=df)


def _fixed_cost(rows: pd.DataFrame, stage: PerToken, step: pd.Series) -> float:
    """Least time a step took beside the stage, over the rows that have it."""
    rest = (step - numbers(rows, stage.name)).dropna()
    return max(0.0, float(rest.min())) if len(rest) else 0.0


def _needed_length(fixed: float, plain_ms: float, ratio: Interval) -> float:
    """Tokens per step from which speculation would win at the lower end of the stage's cost: fixed / (plain − cost)."""
    saved = plain_ms * (1 - (ratio.low if ratio.low is not None else 0.0))
    return math.inf if saved <= 0 else fixed / saved
