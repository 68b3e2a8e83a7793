"""What a setting must keep to be eligible: limits on figures, and text equal to plain decoding's. Pure.

Imports `objective`, `equality`, `metrics`, `records` and `errors`. A candidate keeps a limit if each of its runs does.
One run whose figure is not known makes the candidate ineligible too: what was not measured is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dflash_sweep import equality, metrics, objective
from dflash_sweep.equality import Texts, TurnKey
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import StoredTrial

BIT_EQUAL = "bit_equal"
NAMES = (*objective.OBJECTIVES, "max_temperature_c", BIT_EQUAL)
"""Every name that `constraints` takes."""

_LIMIT = re.compile(r"\s*(<=|>=)\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*")
_FORM = "write '<= number' or '>= number', for example 'constraints.ttft_ms=<= 500'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One constraint. `bit_equal` is the limit "share of differing turns <= 0"."""

    name: str
    most: bool
    bound: float

    def words(self) -> str:
        """What the figure must be: "<= 500 ms"."""
        if self.name == BIT_EQUAL:
            return "equal"
        return f"{'<=' if self.most else '>='} {self.bound:g} {metrics.METRIC[self.name].unit}"

    def violation(self, figure: float) -> float:
        """How far a figure is beyond the bound, relative to it, so that limits in different units can be added;
        0 or less = kept. A bound of 0 counts the figure itself."""
        beyond = figure - self.bound if self.most else self.bound - figure
        return beyond / (abs(self.bound) or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run against all limits. `violations`: limit → how far beyond, as `Limit.violation` has it.

    `broken` and `unknown` say in words which limits are not kept, or not known to be kept.
    """

    violations: dict[str, float] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def _limit(name: str, value: object) -> Limit | None:
    if name == BIT_EQUAL:
        if not isinstance(value, bool):
            raise ConfigError(f"constraints.{name}={value}: must be true or false")
        return Limit(name=name, most=True, bound=0.0) if value else None
    match = _LIMIT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"constraints.{name}={value}: not a limit; {_FORM}")
    try:
        return Limit(name=name, most=match[1] == "<=", bound=float(match[2]))
    except ValueError as error:
        raise ConfigError(f"constraints.{name}={value}: {match[2]} is no number; {_FORM}") from error


def parse(section: Mapping[str, object]) -> tuple[Limit, ...]:
    """The `constraints` section; null and bit_equal=false are no limit. Raises ConfigError."""
    found = []
    for name, value in section.items():
        if name not in NAMES:
            raise ConfigError(f"constraints.{name}: not known; allowed: {', '.join(NAMES)}")
        if value is not None and (limit := _limit(name, value)) is not None:
            found.append(limit)
    return tuple(found)


class Constraints:
    """The limits of a study and what its runs say of them. `plain` runs give the text to be equal to."""

    def __init__(self, limits: Iterable[Limit]) -> None:
        self.limits = tuple(limits)
        self._texts: dict[str, dict[TurnKey, str]] = {}

    def _texts_of(self, trial: StoredTrial) -> Texts:
        """Hashes of one run; looked up again and again while a study grows, so kept."""
        if trial.uid not in self._texts:
            self._texts[trial.uid] = equality.texts(trial)
        return self._texts[trial.uid]

    def _reference(self, trials: Iterable[StoredTrial]) -> Texts:
        """The text of plain decoding as the baseline has it (not with a finalist's own settings)."""
        if not any(limit.name == BIT_EQUAL for limit in self.limits):
            return {}
        return equality.reference(
            self._texts_of(trial) for trial in trials if not trial.speculative and trial.candidate is None
        )

    def check(self, trial: StoredTrial, trials: Iterable[StoredTrial]) -> Check:
        """One finished run against all limits; `trials` are those of its study."""
        return self._check(trial, self._reference(trials))

    def _check(self, trial: StoredTrial, expected: Texts) -> Check:
        violations: dict[str, float] = {}
        broken, unknown = [], []
        for limit in self.limits:
            figure, shown, why = self._figure(limit, trial, expected)
            if figure is None:
                unknown.append(f"constraints.{limit.name}: not known ({why})")
                continue
            violations[limit.name] = limit.violation(figure)
            if violations[limit.name] > 0:
                rule = "" if limit.name == BIT_EQUAL else f", must be {limit.words()}"
                broken.append(f"constraints.{limit.name}: {shown}{rule}")
        return Check(violations=violations, broken=tuple(broken), unknown=tuple(unknown))

    def _figure(self, limit: Limit, trial: StoredTrial, expected: Texts) -> tuple[float | None, str, str]:
        """The limited figure of a run, how it is shown, and why it is not known."""
        if limit.name == BIT_EQUAL:
            equal = equality.compare(self._texts_of(trial), expected)
            return equal.share, equal.words(), "no turn has a text of this run and one that plain decoding repeats"
        figure = objective.figure(trial.result, limit.name)
        shown = "" if figure is None else f"{figure:.6g} {metrics.METRIC[limit.name].unit}"
        return figure, shown, objective.why_missing(trial.result, limit.name)

    def ineligible(self, trials: Iterable[StoredTrial]) -> dict[int, str]:
        """Candidate → why it cannot win: the first limit that one of its good runs breaks or does not tell."""
        listed = list(trials)
        if not self.limits:
            return {}
        expected = self._reference(listed)
        found: dict[int, str] = {}
        for trial in listed:
            if trial.candidate is None or not trial.speculative or trial.result.failure or trial.candidate in found:
                continue
            check = self._check(trial, expected)
            if reasons := (*check.broken, *check.unknown):
                found[trial.candidate] = reasons[0]
        return found

    def unmeasurable(self, trials: Iterable[StoredTrial]) -> tuple[str, ...]:
        """Limits that no run of plain decoding tells anything about: no candidate could ever be shown to keep them."""
        listed = list(trials)
        plain = [trial for trial in listed if not trial.speculative and trial.result.failure is None]
        expected = self._reference(listed)
        found = []
        for limit in self.limits:
            figures = [self._figure(limit, trial, expected) for trial in plain]
            if figures and all(figure is None for figure, _, _ in figures):
                found.append(f"constraints.{limit.name} cannot be known here: {figures[0][2]}")
        return tuple(found)
