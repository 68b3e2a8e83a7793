"""How a study stands, told from its stored rows alone. Pure; imports L0, L1 and `study` for the identity of points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from dflash_sweep import metrics
from dflash_sweep.analysis.intervals import log_mean_interval, speedup
from dflash_sweep.objective import direction, score
from dflash_sweep.records import Knobs, Role, StoredTrial
from dflash_sweep.study import point_key
from dflash_sweep.watcher import Best

FINALIST_SPREAD = 0.25
"""A candidate this far behind the best is not confirmed: the widest scatter of one published setting was 18 %."""


def value(trial: StoredTrial, objective: str) -> float | None:
    """A trial's objective; None where it failed or cannot be known."""
    return None if trial.result.failure else score(trial.result.turns, objective)


def sign(objective: str) -> float:
    """+1 where more is better, -1 where less is."""
    return -1.0 if direction(objective) == "minimize" else 1.0


def best(trials: Sequence[StoredTrial], objective: str) -> Best | None:
    """The best candidate by the mean of its runs so far, with an interval from two runs on; None = none yet."""
    runs: dict[int | None, list[float]] = {}
    for trial in trials:
        measured = value(trial, objective)
        if trial.role in (Role.CONTROL, Role.RERUN):
            continue
        if measured is not None and (trial.candidate is not None or not trial.speculative):
            runs.setdefault(trial.candidate, []).append(measured)
    plain = runs.pop(None, None)
    leader = max(runs, key=lambda number: sign(objective) * fmean(runs[number]), default=None)
    if leader is None:
        return None
    interval = log_mean_interval(runs[leader])
    gain = None if plain is None else speedup(runs[leader], plain)
    return Best(
        candidate=leader,
        value=interval.value,
        unit=metrics.METRIC[objective].unit,
        low=interval.low,
        high=interval.high,
        plain=None if plain is None else fmean(plain),
        gain=None if gain is None else gain.value,
        gain_low=None if gain is None else gain.low,
        gain_high=None if gain is None else gain.high,
    )


def finalists(
    trials: Sequence[StoredTrial], objective: str, *, count: int, effective: Callable[[Knobs], Knobs]
) -> dict[int, Knobs]:
    """The best candidates of the search by their own value, none of them hopeless; equal servers appear once."""
    measured = [
        (sign(objective) * measured, -(trial.candidate or 0), trial)
        for trial in trials
        if trial.role is Role.SEARCH and (measured := value(trial, objective)) is not None
    ]
    top = max((entry[0] for entry in measured), default=0.0)
    chosen: dict[int, Knobs] = {}
    seen: set[tuple[tuple[str, str], ...]] = set()
    for reached, _, trial in sorted(measured, key=lambda entry: entry[:2], reverse=True):
        key = point_key(effective(trial.knobs))
        hopeless = abs(reached - top) > FINALIST_SPREAD * abs(top)
        if trial.candidate is not None and key not in seen and not hopeless and len(chosen) < count:
            seen.add(key)
            chosen[trial.candidate] = trial.knobs
    return chosen


def last_failure(trials: Sequence[StoredTrial]) -> str:
    """What the newest failed run died of, in words."""
    for trial in reversed(trials):
        if trial.result.failure is not None:
            failure = trial.result.failure
            return f"{failure.kind}: {failure.message}; see {failure.log_path}"
    return "no run gave a value"
