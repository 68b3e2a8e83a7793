"""What a finished trial means for the search: its values and limits, or why it has none. Pure.

Imports `objective`, `constraints` and `records`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dflash_sweep import objective
from dflash_sweep.constraints import Constraints
from dflash_sweep.records import StoredTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One value per objective, and how far each limit is exceeded (0 or less = kept; see `constraints.Limit`).

    `device`: name of the card that it was measured on.
    """

    values: tuple[float, ...]
    violations: Mapping[str, float] = field(default_factory=dict)
    device: str = ""

    @property
    def feasible(self) -> bool:
        return all(beyond <= 0 for beyond in self.violations.values())


def outcome(
    trial: StoredTrial, trials: Sequence[StoredTrial], objectives: Sequence[str], constraints: Constraints
) -> Outcome | str:
    """The outcome of a trial of this study, or in words what of it is not known; `trials` are those of the study.

    A limit that is not known is no outcome: the sampler is told of no figure that nobody measured, and a setting that
    was not shown to keep a limit does not keep it.
    """
    if trial.result.failure is not None:
        return f"{trial.result.failure.kind}: {trial.result.failure.message}"
    values = []
    for name in objectives:
        value = objective.figure(trial.result, name)
        if value is None:
            return f"{name} is not known: {objective.why_missing(trial.result, name)}"
        values.append(value)
    check = constraints.check(trial, trials)
    if check.unknown:
        return check.unknown[0]
    return Outcome(values=tuple(values), violations=check.violations, device=trial.result.device.name)
