"""Verdicts about axes: dead axis, sweet spot, saturation. Imports `effects`, `ordered`, `evidence`, `records`."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_sweep.analysis import ordered
from dflash_sweep.analysis.effects import AxisEffect
from dflash_sweep.analysis.evidence import FAILS, HOLDS, UNKNOWN, Evidence, from_interval, percent, unknown
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.levels import LevelRows
from dflash_sweep.records import Verdict

_CHECK = "compare the rows named in details.rows; docs/statistics.md, section Effects"


def dead_axis(effects: Sequence[AxisEffect], evidence: Evidence) -> list[Verdict]:
    """One verdict an axis: holds = dead, does_not_hold = moves the objective, else undecided."""
    if not effects:
        partly = len(evidence.ranked) - len(evidence.known)
        why = f" ({partly} runs do not state their whole setting: give --alias rules)" if partly else ""
        text = f"No axis has two levels that can be compared{why}."
        return [unknown("dead_axis", "all axes", text, len(evidence.ranked))]
    seen = {name for effect in effects for name in effect.name.split(" + ")}
    unseen = [name for name in evidence.axes if name not in seen]
    return [
        *(_dead(effect, evidence) for effect in effects),
        *(unknown("dead_axis", name, f"{name}: no two of its values can be compared yet.") for name in unseen),
    ]


def _dead(effect: AxisEffect, evidence: Evidence) -> Verdict:
    status = {"dead": HOLDS, "moves": FAILS, "undecided": UNKNOWN}[effect.status]
    widest = effect.widest
    reference = effect.rows.levels[effect.reference].text
    n = sum(effect.rows.counts)
    if widest is None:
        return unknown("dead_axis", effect.name, f"{effect.name}: its levels cannot be compared.", n)
    code, interval = widest
    runs = effect.rows.counts[code]
    shown = (
        f"largest difference {effect.rows.levels[code].text} ({runs} run{'s' if runs > 1 else ''}) against {reference} "
        f"({effect.rows.counts[effect.reference]} runs): {percent(interval)}"
    )
    noise = f"±{100 * (effect.margin - 1):.1f} %"
    words = {
        "dead": f"{effect.name} has no effect beyond noise ({shown}; two runs of one setting differ by up to {noise}): "
        f"leave it at {reference}.",
        "moves": f"{effect.name} moves {evidence.study.objective} ({shown}; p = {effect.p_adjusted:.2g} after "
        "correction for all axes).",
        "undecided": f"{effect.name}: undecided ({shown}){_why_undecided(effect)}.",
    }[effect.status]
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


def _why_undecided(effect: AxisEffect) -> str:
    if effect.acceptance_moves:
        return "; the acceptance length differs between its values, tokens per second not beyond noise"
    margin = 100 * (effect.margin - 1)
    return f"; the rows could hide an effect larger than what two runs of one setting differ by (±{margin:.1f} %)"


def _level_details(effect: AxisEffect) -> list[dict[str, object]]:
    details = []
    for code, level in enumerate(effect.rows.levels):
        ratio = effect.ratios.get(code)
        details.append(
            {
                "value": level.text,
                "runs": effect.rows.counts[code],
                "ratio": ratio.value if ratio else None,
                "ci_low": ratio.low if ratio else None,
                "ci_high": ratio.high if ratio else None,
            }
        )
    return details


def sweet_spot(effects: Sequence[AxisEffect], evidence: Evidence) -> list[Verdict]:
    """One verdict per ordered axis: the values that cannot be told apart from the best, and those that are worse."""
    found = [_sweet(effect, evidence) for effect in effects if effect.rows.ordered]
    return found or [unknown("sweet_spot", "ordered axes", "No ordered axis has values that can be compared.")]


def _sweet(effect: AxisEffect, evidence: Evidence) -> Verdict:
    cut = ordered.regions(effect, evidence.sign)
    rows = effect.rows
    n = sum(rows.counts)
    if cut is None:
        if effect.status == "dead":
            text = f"{effect.name}: no value is better than another beyond noise."
            return Verdict(id="sweet_spot", subject=effect.name, status=FAILS, statement=text, n=n)
        return unknown("sweet_spot", effect.name, f"{effect.name}: no value can be told apart from the others yet.", n)
    part = cut.parts[cut.best]
    low, high = rows.levels[part[0]], rows.levels[part[-1]]
    worse = "; ".join(
        f"{_texts(rows, group)} ({sum(rows.counts[code] for code in group)} runs): {percent(ratio)}"
        for group, ratio in cut.others.items()
    )
    usual = max(part, key=lambda code: rows.counts[code])
    span = low.text if len(part) == 1 else f"{low.text} to {high.text}"
    return Verdict(
        id="sweet_spot",
        subject=effect.name,
        status=HOLDS,
        statement=f"{effect.name}: the best values are {span} ({len(part)} tried, not told apart; "
        f"{rows.levels[usual].text} has the most runs). Worse than these: {worse}.",
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
            "saturation", "ordered axes", "No ordered axis shows an acceptance length that rises and then stops rising."
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
        return unknown("saturation", effect.name, f"{effect.name}: nothing above {text} was tried with all else equal.")
    place = rows.levels[knee.usual if knee.above_usual else knee.knee].low or 0.0
    runs_above = sum(n for n, level in zip(rows.counts, rows.levels, strict=True) if (level.low or 0.0) > place)
    if runs_above < 2:
        why = f"{effect.name}: one run above {compared} cannot show whether more brings anything."
        return unknown("saturation", effect.name, why, runs_above)
    low, high = above.low or 0.0, above.high or float("inf")
    gains = low > 1 if evidence.sign > 0 else high < 1
    small = high < effect.margin if evidence.sign > 0 else low > 1 / effect.margin
    status = FAILS if gains else HOLDS if small else UNKNOWN
    loses = " (larger values lose)" if (high < 1 if evidence.sign > 0 else low > 1) else ""
    words = {
        HOLDS: f"{effect.name}: from {text} on more brings nothing{loses}. The acceptance length stops rising there "
        f"({percent(knee.acceptance)} against smaller values), and {evidence.study.objective} above {compared} is "
        f"{percent(above)} against {compared}.",
        FAILS: f"{effect.name}: {evidence.study.objective} still gains above {compared} ({percent(above)}), though the "
        f"acceptance length stops rising at {text}.",
        UNKNOWN: f"{effect.name}: the acceptance length stops rising at {text}, but what {evidence.study.objective} "
        f"does above {compared} is undecided ({percent(above)}).",
    }[status]
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
