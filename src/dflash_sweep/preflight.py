"""Everything that can be wrong before the first launch: engine, models, devices, trace, space against the engine.

Returns one record that the driver and the terminal share. Raises ConfigError (or a child of it) in words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dflash_sweep import arms, holdout, traces
from dflash_sweep.engines import Engine, KnobDef
from dflash_sweep.engines.rendering import check_value
from dflash_sweep.errors import ConfigError
from dflash_sweep.payload import check_policy
from dflash_sweep.records import (
    AxisInfo,
    Device,
    EngineBuild,
    EngineSettings,
    Knobs,
    KnobValue,
    ModelFile,
    ReplayPolicy,
    Trace,
)
from dflash_sweep.space import Axis, SearchSpace, axis_info

_MAX_CHECKED_POINTS = 20_000
"""Points of a finite space that are looked at one by one; a larger space is checked as it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What a study will run.

    `trace` is what the search replays; `held_out` what the confirm phase replays instead (None = the same). `plain` are
    all knobs of plain decoding, the fixed ones included. `effective_points` None = the space is continuous or too large
    to count. `impossible` maps a reason to the number of points it rules out.
    """

    engine: EngineSettings
    build: EngineBuild
    models: tuple[ModelFile, ...]
    devices: tuple[Device, ...]
    trace: Trace
    held_out: Trace | None = None
    space: SearchSpace
    axes: tuple[AxisInfo, ...]
    fixed: Knobs
    plain: Knobs
    seed_points: tuple[Knobs, ...]
    effective_points: int | None
    dead_axes: tuple[str, ...]
    impossible: dict[str, int]
    warnings: tuple[str, ...] = ()


def bind_value(definition: KnobDef, value: KnobValue, where: str) -> KnobValue:
    """A value in its knob's declared type: 1 for a float knob becomes 1.0. Raises ConfigError.

    YAML reads the bare words on and off as true and false: a knob that takes those words gets them back.
    """
    if isinstance(value, bool) and {"on", "off"} <= set(definition.choices or ()):
        value = "on" if value else "off"
    if definition.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if problem := check_value(definition, value):
        raise ConfigError(f"{where}.{problem}")
    return value


def _definition(engine: Engine, name: str, where: str) -> KnobDef:
    for definition in engine.knobs:
        if definition.name == name:
            return definition
    known = ", ".join(sorted(definition.name for definition in engine.knobs))
    raise ConfigError(f"{where}.{name}: engine {engine.name} has no such knob; it has: {known}")


def bind_axis(engine: Engine, axis: Axis) -> Axis:
    """An axis in its knob's declared type and range. Raises ConfigError naming axis, value and what is allowed."""
    definition = _definition(engine, axis.name, "space")
    if axis.values is None:
        if definition.kind != "float":
            raise ConfigError(
                f"space.{axis.name}: an interval of numbers needs a float knob, this one is {definition.kind}; "
                "write choice(…), range(…) or int(interval(…))"
            )
        for bound in (axis.low, axis.high):
            bind_value(definition, bound, "space")
        return axis
    return replace(axis, values=tuple(bind_value(definition, value, "space") for value in axis.values))


def bind_knobs(engine: Engine, knobs: Knobs, where: str) -> Knobs:
    """Fixed values or a seed point in their knobs' declared types. Raises ConfigError."""
    return {name: bind_value(_definition(engine, name, where), value, where) for name, value in knobs.items()}


def fitting(space: SearchSpace, seeds: Sequence[Knobs]) -> tuple[tuple[Knobs, ...], tuple[str, ...]]:
    """The seed points as points of the space, and in words what of them is none.

    A study's own seed points stay where its space is changed on the command line: a knob that is no axis any more is
    left out of its point, a point with a value that its axis has not is left out.
    """
    axes, kept, words = {axis.name: axis for axis in space.axes}, [], []
    for place, seed in enumerate(seeds):
        point = {name: value for name, value in seed.items() if name in axes}
        words += [
            f"seed_points[{place}].{name} is left out: not an axis of this space" for name in seed if name not in point
        ]
        off = [(name, value) for name, value in point.items() if not axes[name].contains(value)]
        words += [
            f"seed_points[{place}] is left out: {name}={value} is not on its axis ({axes[name].allowed})"
            for name, value in off[:1]
        ]
        if point and not off:
            kept.append(point)
    return tuple(kept), tuple(words)


def bind_options(engine: Engine, settings: EngineSettings) -> EngineSettings:
    """The settings with each option in its declared type. Raises ConfigError."""
    by_name = {definition.name: definition for definition in engine.options}
    for name in settings.options:
        if name not in by_name:
            known = ", ".join(sorted(by_name)) or "none"
            raise ConfigError(f"engine.options.{name}: engine {engine.name} has no such option; it has: {known}")
    options = {name: bind_value(by_name[name], value, "engine.options") for name, value in settings.options.items()}
    return replace(settings, options=options)


def _describe(engine: Engine, axis: Axis) -> AxisInfo:
    definition = _definition(engine, axis.name, "space")
    return axis_info(axis, definition.kind, definition.unit, definition.doc)


def _dead_axes(engine: Engine, space: SearchSpace, fixed: Knobs, points: list[Knobs]) -> tuple[str, ...]:
    """Axes that no listed point uses."""
    used: set[str] = set()
    for point in points:
        effective = engine.effective_point({**fixed, **point})
        used |= {name for name in point if effective.get(name) is not None or point[name] is None}
    return tuple(axis.name for axis in space.axes if axis.name not in used) if points else ()


def _check_points(
    engine: Engine, settings: EngineSettings, build: EngineBuild, fixed: Knobs, points: list[Knobs]
) -> dict[str, int]:
    """Reasons why points cannot be launched, with counts. Raises ConfigError if no point can."""
    reasons: dict[str, int] = {}
    possible = 0
    for point in points:
        problems = engine.check(settings, build, {**fixed, **point})
        possible += not problems
        for problem in problems[:1]:
            reasons[problem] = reasons.get(problem, 0) + 1
    if points and not possible:
        worst = max(reasons, key=lambda reason: reasons[reason])
        raise ConfigError(f"space: none of its {len(points)} points can be launched: {worst}")
    return reasons


def examine(
    engine: Engine,
    settings: EngineSettings,
    *,
    trace_path: str,
    max_turns: int | None,
    policy: ReplayPolicy,
    space: SearchSpace,
    fixed: Knobs,
    plain: Knobs,
    seed_points: tuple[Knobs, ...],
    held_out: float | str | None = None,
    devices: Callable[[], tuple[Device, ...]],
    objective_needs_text: bool = True,
) -> Preflight:
    """Look at everything a study needs. `devices` is called last. Raises ConfigError; starts no server."""
    check_policy(policy)
    settings = bind_options(engine, settings)
    bound = SearchSpace(axes=tuple(bind_axis(engine, axis) for axis in space.axes))
    fixed = bind_knobs(engine, fixed, "fixed")
    plain = {**fixed, **bind_knobs(engine, plain, "plain")}
    bound_seeds = [bind_knobs(engine, point, f"seed_points[{index}]") for index, point in enumerate(seed_points)]
    seeds, misfits = fitting(bound, bound_seeds)
    trace = limit_turns(traces.load(traces.resolve(trace_path)), max_turns)
    if objective_needs_text and trace.header.content_kind != "real":
        raise ConfigError(
            f"trace.path={trace_path}: this trace holds lengths only ({trace.header.content_kind} content); "
            "acceptance depends on the real text, so decode speed cannot be tuned with it"
        )
    arms.check_trace(policy, trace.turns)
    trace, unseen = holdout.parted(trace, held_out, policy)
    build = engine.probe(settings)
    models = engine.models(settings)
    small = bound.size is not None and bound.size <= _MAX_CHECKED_POINTS
    points = list(islice(bound.points(), _MAX_CHECKED_POINTS)) if small else []
    impossible = _check_points(engine, settings, build, fixed, points)
    distinct = {tuple(sorted(engine.effective_point({**fixed, **point}).items(), key=str)) for point in points}
    return Preflight(
        engine=settings,
        build=build,
        models=models,
        devices=devices(),
        trace=trace,
        held_out=unseen,
        space=bound,
        axes=tuple(_describe(engine, axis) for axis in bound.axes),
        fixed=fixed,
        plain=plain,
        seed_points=seeds,
        effective_points=len(distinct) if small else None,
        dead_axes=_dead_axes(engine, bound, fixed, points),
        impossible=impossible,
        warnings=(*(f"trace: {loss}" for loss in trace.header.losses), *misfits),
    )


def limit_turns(trace: Trace, max_turns: int | None) -> Trace:
    """The first turns of each conversation; the hash becomes that of what is left, so that rows stay comparable."""
    if max_turns is None:
        return trace
    kept = tuple(turn for turn in trace.turns if turn.index < max_turns)
    if not kept:
        raise ConfigError(f"trace.max_turns={max_turns}: no turn is left")
    header = replace(trace.header, sha256=traces.sha256(kept), name=f"{trace.header.name}[:{max_turns}]")
    return Trace(header=header, turns=kept)
