"""How a study stands, told from its stored rows alone. Pure; imports L0, L1 and `study` for the identity of points."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from dflash_sweep import metrics
from dflash_sweep.analysis.intervals import log_mean_interval, speedup
from dflash_sweep.analysis.smoothing import group_levels, smoothed
from dflash_sweep.objective import figure, front, sign
from dflash_sweep.records import Knobs, Role, StoredTrial
from dflash_sweep.study import point_key
from dflash_sweep.watcher import Best

FINALIST_SPREAD = 0.25
"""A candidate this far behind the best is not confirmed: the widest scatter of one published setting was 18 %."""


def value(trial: StoredTrial, objective: str) -> float | None:
    """A trial's objective; None where it failed or cannot be known."""
    return None if trial.result.failure else figure(trial.result, objective)


def best(trials: Sequence[StoredTrial], objective: str, ineligible: Collection[int] = ()) -> Best | None:
    """The best candidate by the mean of its runs so far, with an interval from two runs on; None = none yet.

    `ineligible`: candidates that do not keep a constraint. Only runs on the turns of the newest one are looked at:
    held-out turns are never pooled with those of the search. The gain is over the better of the baseline and plain
    decoding with the leader's own threads, cache types and the like (see controls); None where the leader is better
    than the baseline and there is no such plain decoding: nobody knows whose gain that is.

    Cards of several names each have their own best. Of these it is the one furthest above its card's plain decoding,
    where that is known of each; else the best figure.
    """
    turns = trials[-1].trace_sha256 if trials else ""
    cards: dict[str, list[StoredTrial]] = {}
    for trial in trials:
        if trial.trace_sha256 == turns:
            cards.setdefault(trial.result.device.name, []).append(trial)
    each = [(name, own) for name, runs in cards.items() if (own := _best_of_card(runs, objective, ineligible))]
    if len(each) < 2:
        return each[0][1] if each else None
    ratios = [own.value / own.plain if own.plain else None for _, own in each]
    merits = [own.value for _, own in each] if None in ratios else [ratio for ratio in ratios if ratio is not None]
    place = max(range(len(each)), key=lambda place: sign(objective) * merits[place])
    return replace(each[place][1], device=each[place][0])


def _best_of_card(trials: Sequence[StoredTrial], objective: str, ineligible: Collection[int]) -> Best | None:
    """The best of runs on the same turns and on cards of one name, see `best`."""
    runs: dict[int, list[float]] = {}
    plain: dict[str | None, list[float]] = {}
    reads: dict[int, str | None] = {}
    for trial in trials:
        measured = value(trial, objective)
        if measured is None or trial.role is Role.RERUN:
            continue
        settings = trial.result.environment.get("plain_settings")
        if not trial.speculative:
            plain.setdefault(settings, []).append(measured)
        elif trial.candidate is not None and trial.candidate not in ineligible:
            runs.setdefault(trial.candidate, []).append(measured)
            reads[trial.candidate] = settings
    leader = max(runs, key=lambda number: sign(objective) * fmean(runs[number]), default=None)
    if leader is None:
        return None
    interval = log_mean_interval(runs[leader])
    baseline = next(iter(plain.values()), None)
    mine, better = reads[leader], sign(objective)
    like = [figures for settings, figures in plain.items() if None in (settings, mine) or settings == mine]
    rivals = like if baseline is None else [*like, baseline]
    hardest = max(rivals, key=lambda figures: better * fmean(figures), default=None)
    beaten = hardest is None or better * interval.value > better * fmean(hardest)
    gain = speedup(runs[leader], hardest) if hardest is not None and (like or not beaten) else None
    return Best(
        candidate=leader,
        value=interval.value,
        unit=metrics.METRIC[objective].unit,
        low=interval.low,
        high=interval.high,
        plain=None if hardest is None else fmean(hardest),
        gain=None if gain is None else gain.value,
        gain_low=None if gain is None else gain.low,
        gain_high=None if gain is None else gain.high,
    )


def finalists(
    trials: Sequence[StoredTrial],
    objectives: Sequence[str],
    *,
    count: int,
    effective: Callable[[Knobs], Knobs],
    ineligible: Collection[int] = (),
) -> dict[int, Knobs]:
    """Who is measured again: the best candidates of the search by the first objective, none of them hopeless, and of
    several objectives as many again from the front; equal servers appear once. Who is `ineligible` never does.

    Candidates measured on cards of several names are brought to one scale first, the knobs held equal. The figures
    are smoothed (see analysis.smoothing): of many single runs the best is the luckiest.
    """
    found = {trial.candidate: trial for trial in trials if _may_be_finalist(trial, objectives, ineligible)}
    searched = {number: trial for number, trial in found.items() if number is not None}
    runs = {number: [trial, *_again(trial, trials, objectives)] for number, trial in searched.items()}
    points = _levelled(runs, objectives)
    lead = sign(objectives[0])
    settings = {number: found[number].knobs for number in points}
    figures = smoothed(
        settings, {number: own[0] for number, own in points.items()}, _plain_noise(trials, objectives[0]),
        {number: len(runs[number]) for number in points},
    )  # fmt: skip
    order = sorted(figures, key=lambda number: (lead * figures[number], -number), reverse=True)
    top = figures[order[0]] if order else 0.0
    hopeful = [number for number in order if abs(figures[number] - top) <= FINALIST_SPREAD * abs(top)]
    chosen: dict[int, Knobs] = {}
    _take(chosen, hopeful, found, effective, count)
    if len(objectives) > 1:
        _take(chosen, _spread_out(front(points, objectives), count), found, effective, len(chosen) + count)
    return chosen


def _plain_noise(trials: Sequence[StoredTrial], objective: str) -> float | None:
    """Standard deviation of the logarithm of one run, from repeats of plain decoding; None = fewer than three."""
    plain = (trial for trial in trials if trial.role in (Role.BASELINE, Role.CANARY) and not trial.speculative)
    runs = [value(trial, objective) for trial in plain]
    logs = [math.log(run) for run in runs if run is not None and run > 0]
    return stdev(logs) if len(logs) > 2 else None


def _may_be_finalist(trial: StoredTrial, objectives: Sequence[str], ineligible: Collection[int]) -> bool:
    if trial.role is not Role.SEARCH or trial.candidate is None or trial.candidate in ineligible:
        return False
    return all(value(trial, name) is not None for name in objectives)


def _again(first: StoredTrial, trials: Sequence[StoredTrial], objectives: Sequence[str]) -> list[StoredTrial]:
    """The runs in which a candidate was measured again during the search, on the device of its first run."""
    return [
        trial
        for trial in trials
        if trial.role is Role.CANARY and trial.candidate == first.candidate
        and trial.result.device.name == first.result.device.name
        and all(value(trial, name) is not None for name in objectives)
    ]  # fmt: skip


def _levelled(found: Mapping[int, Sequence[StoredTrial]], objectives: Sequence[str]) -> dict[int, tuple[float, ...]]:
    """Candidate → the means of its runs; of cards of several names, as multiples of what an average setting gives on
    the card it ran on (see `analysis.smoothing.group_levels`)."""
    points = {
        number: tuple(fmean(figures) for figures in zip(*(_values(trial, objectives) for trial in runs), strict=True))
        for number, runs in found.items()
    }
    cards = [runs[0].result.device.name for runs in found.values()]
    if len(set(cards)) < 2 or any(figure <= 0 for point in points.values() for figure in point):
        return points
    settings = [runs[0].knobs for runs in found.values()]
    levels = [group_levels(settings, column, cards) for column in zip(*points.values(), strict=True)]
    return {
        number: tuple(figure / math.exp(level[card]) for figure, level in zip(point, levels, strict=True))
        for (number, point), card in zip(points.items(), cards, strict=True)
    }


def _values(trial: StoredTrial, objectives: Sequence[str]) -> tuple[float, ...]:
    return tuple(value(trial, name) or 0.0 for name in objectives)


def _take(
    chosen: dict[int, Knobs],
    order: Sequence[int],
    found: Mapping[int | None, StoredTrial],
    effective: Callable[[Knobs], Knobs],
    most: int,
) -> None:
    """Adds candidates in this order until there are `most`, each server once."""
    seen = {point_key(effective(knobs)) for knobs in chosen.values()}
    for number in order:
        key = point_key(effective(found[number].knobs))
        if key not in seen and len(chosen) < most:
            seen.add(key)
            chosen[number] = found[number].knobs


def _spread_out(line: Sequence[int], count: int) -> list[int]:
    """The members of a front in an order in which the first `count` lie as far apart on it as possible, both ends
    first."""
    if len(line) <= count or count < 2:
        return [*line[-1:], *line[:-1]] if count < 2 else list(line)
    places = sorted({round(step * (len(line) - 1) / (count - 1)) for step in range(count)})
    return [line[place] for place in places]


def last_failure(trials: Sequence[StoredTrial]) -> str:
    """What the newest failed run died of, in words."""
    for trial in reversed(trials):
        if trial.result.failure is not None:
            failure = trial.result.failure
            return f"{failure.kind}: {failure.message}; see {failure.log_path}"
    return "no run gave a value"


def may_beat_plain(trials: Sequence[StoredTrial], candidate: int, objective: str) -> bool:
    """Whether the search left it open that a candidate beats plain decoding; True where either is not known.

    By what the phases before the confirm phase measured, so that the answer stays what it is.
    """
    before = [trial for trial in trials if trial.role in (Role.BASELINE, Role.SEARCH, Role.CANARY)]
    known = [(trial, figures) for trial in before if (figures := value(trial, objective)) is not None]
    own = [figures for trial, figures in known if trial.candidate == candidate]
    plain = [figures for trial, figures in known if not trial.speculative]
    if not own or not plain:
        return True
    behind = sign(objective) * (fmean(plain) - fmean(own))
    return behind <= FINALIST_SPREAD * abs(fmean(plain))
