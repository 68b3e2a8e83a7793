"""Which settings a search tries first: the user's, the engine's defaults, the best of earlier or imported studies.

Imports `preflight`, `runner`, `store`, `analysis`. A seed is a proposal only: its old figures are never taken for ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dflash_sweep.analysis.rows import is_missing, objective_column
from dflash_sweep.analysis.summary import candidate_table
from dflash_sweep.engines import Engine
from dflash_sweep.errors import ConfigError
from dflash_sweep.frames import KNOB_PREFIX, trial_frame
from dflash_sweep.preflight import bind_value
from dflash_sweep.records import Knobs, KnobValue, StudyInfo
from dflash_sweep.runner import Context
from dflash_sweep.space import Axis
from dflash_sweep.study import point_key

PER_STUDY = 3
"""Settings taken from each earlier study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A point over the axes and where it comes from. `study`, `trials`: the rows it was best in; None, () = none."""

    point: Knobs
    source: str
    study: str | None = None
    trials: tuple[int, ...] = ()

    def data(self) -> dict[str, Any]:
        """As it is kept in the study's provenance."""
        return {"point": self.point, "source": self.source, "study": self.study, "trials": list(self.trials)}


def seeds(context: Context) -> tuple[Seed, ...]:
    """All seeds in the order in which they are tried; servers that do not differ appear once.

    The user's own seed points come first; without any, the engine's defaults where they lie in the space. Then up to
    PER_STUDY settings of each study of `seed_from`. Raises ConfigError for a study that is not stored.
    """
    preflight, engine = context.preflight, context.engine
    found = [Seed(point=point, source=f"seed_points[{place}]") for place, point in enumerate(preflight.seed_points)]
    if not found and (default := _default_point(context)) is not None:
        found.append(Seed(point=default, source=f"the defaults of {engine.name}"))
    for name in context.settings.config.seed_from:
        found += _from_study(context, name)
    kept: dict[object, Seed] = {}
    for seed in found:
        kept.setdefault(point_key(engine.effective_point({**preflight.fixed, **seed.point})), seed)
    return tuple(kept.values())


def _stored(context: Context, name: str) -> StudyInfo:
    info = context.store.study(name)
    if info is None:
        known = ", ".join(context.store.study_names()) or "none"
        raise ConfigError(f"seed_from={name}: there is no such study; stored: {known}")
    return info


def _default_point(context: Context) -> Knobs | None:
    """The engine's own default on every axis; None if it lies outside of the space on one."""
    return _fitted(context, {})


def _from_study(context: Context, name: str) -> Iterator[Seed]:
    """The best settings of a stored study that fit the space, by its own objective."""
    info = _stored(context, name)
    frame = trial_frame(context.store.trials(name))
    table = candidate_table(frame, objective_column(frame, info.objective))
    table = table[table["speculative"].astype(bool) & (table["n"] > 0)] if len(table) else table
    ordered = table.sort_values("decode_tps", ascending=info.direction == "minimize", kind="stable")
    taken = 0
    for _, row in ordered.iterrows():
        knobs = {
            str(column).removeprefix(KNOB_PREFIX): value
            for column, value in row.items()
            if str(column).startswith(KNOB_PREFIX) and not is_missing(value)
        }
        point = _fitted(context, knobs) if taken < PER_STUDY else None
        if point is not None:
            taken += 1
            trials = tuple(int(number) for number in row["numbers"])
            yield Seed(point=point, source=f"the best of {name}", study=name, trials=trials)


def _fitted(context: Context, knobs: Knobs) -> Knobs | None:
    """A setting as a point of the space, missing axes at the engine's default; None if it is none."""
    point: Knobs = {}
    for axis in context.preflight.space.axes:
        value = _on_axis(context.engine, axis, knobs)
        if not value:
            return None
        point[axis.name] = value[0]
    return point


def _on_axis(engine: Engine, axis: Axis, knobs: Knobs) -> tuple[KnobValue] | None:
    """The value on an axis, in its knob's type; None if it is not on it."""
    definition = next(knob for knob in engine.knobs if knob.name == axis.name)
    wanted = [knobs[axis.name]] if axis.name in knobs else [None, definition.default]
    for value in wanted:
        try:
            bound = bind_value(definition, value, "seed")
        except ConfigError:
            continue
        if axis.contains(bound):
            return (bound,)
    return None
