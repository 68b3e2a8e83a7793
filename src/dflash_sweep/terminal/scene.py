"""What is known of a study before its first run: names, units, devices, and how many runs are foreseen.

Imports `settings`, `preflight`, `records`, `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dflash_sweep import metrics
from dflash_sweep.preflight import Preflight
from dflash_sweep.records import Device, Measurement
from dflash_sweep.settings import Settings

PHASES = ("baseline", "calibrate", "search", "confirm")
"""The phases in their order; a run may leave some out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`axes`: the knobs that are searched, in the study's order. `planned`: phase → most runs it can need.

    `where`: uid of each running trial → its worker's place in `devices`, asked again at every look.
    """

    study: str
    measurement: Measurement
    unit: str
    axes: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    planned: Mapping[str, int] = field(default_factory=dict)
    where: Callable[[], Mapping[str, int]] | None = None


def _planned(chosen: Settings) -> dict[str, int]:
    protocol, n_trials = chosen.config.protocol, chosen.config.n_trials
    canaries = n_trials // protocol.canary_every if protocol.canary_every else 0
    confirm = protocol.confirm_blocks * (min(protocol.confirm_top, n_trials) + 1) if n_trials else 0
    counts = (protocol.baseline_repeats, protocol.default_repeats, n_trials + 2 * canaries, confirm)
    played = {*chosen.phases, *(("baseline",) if "calibrate" in chosen.phases else ())}
    return {name: count for name, count in zip(PHASES, counts, strict=True) if name in played}


def scene(
    chosen: Settings,
    preflight: Preflight,
    measurement: Measurement,
    where: Callable[[], Mapping[str, int]] | None = None,
) -> Scene:
    """The scene of a run that is about to start."""
    return Scene(
        study=chosen.study_name,
        measurement=measurement,
        unit=metrics.METRIC[chosen.objective].unit,
        axes=tuple(axis.name for axis in preflight.axes),
        devices=preflight.devices,
        planned=_planned(chosen),
        where=where,
    )
