"""The search space that a foreign log seems to have had: knobs that took more than one value. Imports `records`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dflash_sweep.records import AxisInfo, KnobValue, StoredTrial


def infer(trials: Iterable[StoredTrial]) -> tuple[AxisInfo, ...]:
    """One axis a knob with two levels or more (unset counts as one), in order of name.

    Numbers make an ordered axis; anything else a choice in the order of first appearance.
    """
    speculative = [trial for trial in trials if trial.speculative]
    names = sorted({name for trial in speculative for name in trial.knobs})
    found = []
    for name in names:
        seen = [trial.knobs.get(name) for trial in speculative]
        values = list(dict.fromkeys(value for value in seen if value is not None))
        if len(values) + (None in seen) > 1:
            found.append(_axis(name, values))
    return tuple(found)


def _axis(name: str, values: Sequence[KnobValue]) -> AxisInfo:
    numeric = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numeric) == len(values):
        kind = "int" if all(isinstance(value, int) for value in numeric) else "float"
        return AxisInfo(name=name, kind=kind, values=tuple(sorted(numeric)), ordered=True)
    kind = "bool" if all(isinstance(value, bool) for value in values) else "choice"
    return AxisInfo(name=name, kind=kind, values=tuple(values))
