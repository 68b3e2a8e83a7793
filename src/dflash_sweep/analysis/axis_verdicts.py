"""Verdicts about axes: dead axis, sweet spot, saturation. Imports `effects`, `ordered`, `evidence`, `records`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dflash_sweep.analysis import ordered
from dflash_sweep.analysis.effects import AxisEffect
from dflash_sweep.analysis.evidence import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Evidence,
    from_interval,
    percent,
    runs_in_words,
    unknown,
)
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.levels import LevelRows
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
from dflash_sweep.records import Verdict

_CHECK = say("compare the rows named in details.rows; docs/statistics.md, section Effects")


def dead_axis(effects: Sequence[AxisEffect], evidence: Evidence) -> list[Verdict]:
    """One verdict an axis: holds = dead, does_not_hold = moves the objective, else undecided."""
    if not effects:
        partly = len(evidence.ranked) - len(evidence.known)
        text = say("No axis has two levels that can be compared.")
        if partly:
            words = "{count} runs do not state their whole setting: give --alias rules."
            text = together(text, say(words, count=partly))
        return [unknown("dead_axis", "all axes", text, len(evidence.ranked))]
    seen = {name for effect in effects for name in effect.name.split(" + ")}
    unseen = [name for name in evidence.axes if name not in seen]
    return [
        *(_dead(effect, evidence) for effect in effects),
        *(
            unknown("dead_axis", name, say("{axis}: no two of its values can be compared yet.", axis=name))
            for name in unseen
        ),
    ]


def _dead(effect: AxisEffect, evidence: Evidence) -> Verdict:
    status = {"dead": HOLDS, "moves": FAILS, "undecided": UNKNOWN}[effect.status]
    widest = effect.widest
    reference = effect.rows.levels[effect.reference].text
    n = sum(effect.rows.counts)
    if widest is None:
        return unknown("dead_axis", effect.name, say("{axis}: its levels cannot be compared.", axis=effect.name), n)
    code, interval = widest
    shown = say(
        "largest difference {value} ({runs}) against {reference} ({reference_runs}): {change}",
        value=effect.rows.levels[code].text,
        runs=runs_in_words(effect.rows.counts[code]),
        reference=reference,
        reference_runs=runs_in_words(effect.rows.counts[effect.reference]),
        change=percent(interval),
    )
    template = {
        "dead": "{axis} has no effect beyond noise ({shown}; two runs of one setting differ by up to ±{noise:.1f} %): "
        "leave it at {reference}.",
        "moves": "{axis} moves {objective} ({shown}; p = {p:.2g} after correction for all axes).",
        "undecided": "{axis}: undecided ({shown}); {why}.",
    }[effect.status]
    words = say(
        template,
        axis=effect.name,
        shown=shown,
        noise=100 * (effect.margin - 1),
        reference=reference,
        objective=evidence.study.objective,
        p=effect.p_adjusted,
        why=_why_undecided(effect),
    )
    return from_interval(
        "dead_axis",
        effect.name,
        status,
        words,
        Interval(value=interval.value, low=interval.low, high=interval.high, n=n, method=interval.method),
        "ratio",
        details={
            "reference": reference,
            "p": effect.p,
            "p_adjusted": effect.p_adjusted,
            "margin": effect.margin,
            "acceptance_moves": effect.acceptance_moves,
            "comparison": effect.rows.method,
            "levels": _level_details(effect),
            "rows": [int(number) for number in evidence.known["number"].iloc[effect.rows.places]],
        },
        how_to_check=_CHECK,
    )


def _why_undecided(effect: AxisEffect) -> Sentence:
    if effect.acceptance_moves:
        return say("the acceptance length differs between its values, tokens per second not beyond noise")
    words = "the rows could hide an effect larger than what two runs of one setting differ by (±{noise:.1f} %)"
    return say(words, noise=100 * (effect.margin - 1))


def _level_details(effect: AxisEffect) -> list[dict[str, object]]:
    """Every level that was measured, numbers rising and unset last; no ratio where it is the reference or was never
    compared with it."""
    found = [
        (level, effect.rows.counts[code], effect.ratios.get(code)) for code, level in enumerate(effect.rows.levels)
    ]
    found += [(level, runs, None) for level, runs in effect.left_out]
    if effect.rows.ordered:
        found.sort(key=lambda entry: math.inf if entry[0].low is None else entry[0].low)
    return [
        {
            "value": level.text,
            "runs": runs,
            "ratio": ratio.value if ratio else None,
            "ci_low": ratio.low if ratio else None,
            "ci_high": ratio.high if ratio else None,
        }
        for level, runs, ratio in found
    ]


def sweet_spot(effects: Sequence[AxisEffect], evidence: Evidence) -> list[Verdict]:
    """One verdict per ordered axis: the values that cannot be told apart from the best, and those that are worse."""
    found = [_sweet(effect, evidence) for effect in effects if effect.rows.ordered]
    return found or [unknown("sweet_spot", "ordered axes", say("No ordered axis has values that can be compared."))]


def _sweet(effect: AxisEffect, evidence: Evidence) -> Verdict:
    cut = ordered.regions(effect, evidence.sign)
    rows = effect.rows
    n = sum(rows.counts)
    if cut is None:
        if effect.status == "dead":
            text = say("{axis}: no value is better than another beyond noise.", axis=effect.name)
            return Verdict(id="sweet_spot", subject=effect.name, status=FAILS, statement=text, n=n)
        why = say("{axis}: no value can be told apart from the others yet.", axis=effect.name)
        return unknown("sweet_spot", effect.name, why, n)
    part = cut.parts[cut.best]
    low, high = rows.levels[part[0]], rows.levels[part[-1]]
    worse = [
        say(
            "{values} ({runs}): {change}",
            values=_texts(rows, group),
            runs=runs_in_words(sum(rows.counts[code] for code in group)),
            change=percent(ratio),
        )
        for group, ratio in cut.others.items()
    ]
    usual = max(part, key=lambda code: rows.counts[code])
    span = low.text if len(part) == 1 else say("{low} to {high}", low=low.text, high=high.text)
    return Verdict(
        id="sweet_spot",
        subject=effect.name,
        status=HOLDS,
        statement=say(
            "{axis}: the best values are {span} ({tried} tried, not told apart; {usual} has the most runs). Worse than "
            "these: {worse}.",
            axis=effect.name,
            span=span,
            tried=len(part),
            usual=rows.levels[usual].text,
            worse=listed(worse, "; "),
        ),
        value=rows.levels[cut.peak].low,
        unit=evidence.axes[effect.name].unit or None if effect.name in evidence.axes else None,
        ci_low=low.low,
        ci_high=high.high,
        n=n,
        details={
            "best_values": [rows.levels[code].text for code in part],
            "worse": {_texts(rows, group): [r.value, r.low, r.high] for group, r in cut.others.items()},
            "interval": "ci_low and ci_high are values of the axis; ratios are to the best values, adjusted",
            "p_adjusted": effect.p_adjusted,
        },
        how_to_check=_CHECK,
    )


def _texts(rows: LevelRows, codes: Sequence[int]) -> str:
    return ", ".join(rows.levels[code].text for code in codes)


def saturation(effects: Sequence[AxisEffect], evidence: Evidence) -> list[Verdict]:
    """One verdict per ordered axis on which the acceptance length rises and then stops rising."""
    found = [verdict for effect in effects if effect.rows.ordered if (verdict := _saturated(effect, evidence))]
    return found or [
        unknown(
            "saturation",
            "ordered axes",
            say("No ordered axis shows an acceptance length that rises and then stops rising."),
        )
    ]


def _saturated(effect: AxisEffect, evidence: Evidence) -> Verdict | None:
    knee = ordered.saturation(effect, evidence)
    if knee is None:
        return None
    rows = effect.rows
    text = rows.levels[knee.knee].text
    above = knee.above_usual or knee.above
    compared = rows.levels[knee.usual if knee.above_usual else knee.knee].text
    if above is None:
        why = say("{axis}: nothing above {value} was tried with all else equal.", axis=effect.name, value=text)
        return unknown("saturation", effect.name, why)
    place = rows.levels[knee.usual if knee.above_usual else knee.knee].low or 0.0
    runs_above = sum(n for n, level in zip(rows.counts, rows.levels, strict=True) if (level.low or 0.0) > place)
    if runs_above < 2:
        words = "{axis}: one run above {value} cannot show whether more brings anything."
        why = say(words, axis=effect.name, value=compared)
        return unknown("saturation", effect.name, why, runs_above)
    low, high = above.low or 0.0, above.high or float("inf")
    gains = low > 1 if evidence.sign > 0 else high < 1
    small = high < effect.margin if evidence.sign > 0 else low > 1 / effect.margin
    status = FAILS if gains else HOLDS if small else UNKNOWN
    loses = say(" (larger values lose)") if (high < 1 if evidence.sign > 0 else low > 1) else ""
    template = {
        HOLDS: "{axis}: above {compared} more brings nothing beyond the {margin:.0f} % that two equal runs may differ "
        "by{loses}: {objective} there is {change} against {compared}. The acceptance length is {acceptance} from "
        "{value} on against smaller values; no further rise is sure.",
        FAILS: "{axis}: {objective} still gains above {compared} ({change}), though no further rise of the acceptance "
        "length is sure from {value} on.",
        UNKNOWN: "{axis}: from {value} on no further rise of the acceptance length is sure, but what {objective} does "
        "above {compared} is undecided ({change}).",
    }[status]
    words = say(
        template,
        axis=effect.name,
        value=text,
        loses=loses,
        margin=100 * (effect.margin - 1),
        acceptance=percent(knee.acceptance),
        objective=evidence.study.objective,
        compared=compared,
        change=percent(above),
    )
    return from_interval(
        "saturation",
        effect.name,
        status,
        words,
        above,
        "ratio",
        details={
            "knee": rows.levels[knee.knee].low,
            "compared_with": compared,
            "values_above": [
                level.text for level in rows.levels if (level.low or 0) > float(rows.levels[knee.knee].low or 0)
            ],
            "margin": effect.margin,
        },
        how_to_check=_CHECK,
    )
