"""Can an engine run here? What is there, what is missing and how to get it, as a record and as a page.

Imports `engines`, `memory_fit`, `environment`, `errors`, `records`. Runs the engine's own probe; starts no server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import psutil
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dflash_sweep import engines, environment
from dflash_sweep.engines.base import Engine, KnobDef
from dflash_sweep.engines.checks import build_name, option_values
from dflash_sweep.engines.table import dialects
from dflash_sweep.errors import ConfigError, EngineMissing
from dflash_sweep.memory_fit import MIB, MemoryFit, estimate
from dflash_sweep.records import Device, EngineBuild, EngineSettings, KnobValue, Measurement, ModelFile

_NO_SUCH_FLAG = (" has no ", " does not have ", " is not a knob ")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSupport:
    """One knob on one build. `supported` None = the build says nothing about it; `reason` only where it is False."""

    name: str
    spelling: str
    supported: bool | None
    reason: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """What was found. `ok`: a study with these settings can start. `missing`: one sentence each.

    `pair_fits` None = there is no draft, or a file cannot be read here.
    """

    engine: str
    ok: bool
    launches: bool
    build: EngineBuild | None
    missing: tuple[str, ...]
    knobs: tuple[KnobSupport, ...]
    models: tuple[ModelFile, ...]
    pair_fits: bool | None
    memory: MemoryFit | None
    devices: tuple[Device, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Which engines of a list can run here; `skipped` holds (settings, reason)."""

    here: tuple[EngineSettings, ...]
    skipped: tuple[tuple[EngineSettings, str], ...]


def examine(settings: EngineSettings, devices: Callable[[], tuple[Device, ...]] = environment.gpus) -> DoctorReport:
    """Look at one engine. Raises ConfigError only for an unknown engine; everything else is in the report."""
    engine = engines.get(settings.name)
    missing: list[str] = []
    try:
        option_values(settings.name, engine.options, settings.options)
    except ConfigError as error:
        missing.append(str(error))
    build = _probe(engine, settings, missing)
    models, pair_fits = _models(engine, settings, missing)
    found = devices() if engine.facts.accelerator == "gpu" else ()
    if engine.facts.accelerator == "gpu" and not found:
        missing.append("no GPU: NVML lists none on this machine (driver, container access, or another vendor's card)")
    memory = _memory(engine, settings, models, found)
    if memory is not None and memory.fits is False:
        missing.append(
            f"memory: about {memory.need_mib:.0f} MiB are needed, {memory.where} has {memory.room_mib:.0f} MiB: lower "
            "engine.n_ctx, take a smaller quantisation or a smaller draft"
        )
    return DoctorReport(
        engine=settings.name,
        ok=build is not None and not missing,
        launches=engine.facts.launches,
        build=build,
        missing=tuple(dict.fromkeys(missing)),
        knobs=_support(engine, settings, build),
        models=models,
        pair_fits=pair_fits,
        memory=memory,
        devices=found,
        note=engine.facts.note,
    )


def _probe(engine: Engine, settings: EngineSettings, missing: list[str]) -> EngineBuild | None:
    try:
        return engine.probe(settings)
    except ConfigError as error:
        missing.append(str(error))
        return None


def _models(engine: Engine, settings: EngineSettings, missing: list[str]) -> tuple[tuple[ModelFile, ...], bool | None]:
    """Model records and whether the pair fits. A pair that does not fit still shows the target."""
    try:
        found = engine.models(settings)
    except EngineMissing as error:
        missing.append(str(error))
        return _each_alone(engine, settings)
    except ConfigError as error:
        missing.append(str(error))
        return (), None
    roles = {file.role for file in found}
    return found, True if {"target", "draft"} <= roles else None


def _each_alone(engine: Engine, settings: EngineSettings) -> tuple[tuple[ModelFile, ...], bool | None]:
    """Target and draft without the pair's check: if both can be read, it is the pair that does not fit."""
    found: list[ModelFile] = []
    for role, name in (("target", _named(settings, "model")), ("draft", _named(settings, "draft_model"))):
        if name is not None and (file := _read(name, role)) is not None:
            found.append(file)
    return tuple(found), False if len(found) == 2 else None


def _named(settings: EngineSettings, key: str) -> str | None:
    option = settings.options.get(key)
    return str(option) if option is not None else getattr(settings, key)


def _read(name: str, role: str) -> ModelFile | None:
    from dflash_sweep import gguf_meta
    from dflash_sweep.engines import models

    try:
        return gguf_meta.read(name, role) if name.endswith(".gguf") else models.record(name, role)
    except ConfigError:
        return None


def _memory(
    engine: Engine, settings: EngineSettings, models: Sequence[ModelFile], devices: Sequence[Device]
) -> MemoryFit | None:
    """Against the largest GPU, or the machine's free memory for engines that compute on the CPU; None = not ours."""
    if not models or not engine.facts.launches:
        return None
    if engine.facts.accelerator == "gpu":
        best = max((device for device in devices if device.memory_mib), key=_room, default=None)
        return estimate(settings, models, None if best is None else _room(best), best.name if best else "the GPU")
    return estimate(settings, models, psutil.virtual_memory().available / MIB, "this machine (free now)")


def _room(device: Device) -> float:
    return float(device.memory_mib or 0)


def _sample(definition: KnobDef) -> KnobValue:
    """A value that the definition allows, to ask whether the build has the knob at all."""
    if definition.kind == "bool":
        return definition.flag_when
    if definition.choices:
        return definition.choices[0]
    if definition.default is not None:
        return definition.default
    low = definition.low if definition.low is not None else 1
    return int(low) if definition.kind == "int" else float(low) if definition.kind == "float" else "auto"


def _support(engine: Engine, settings: EngineSettings, build: EngineBuild | None) -> tuple[KnobSupport, ...]:
    return tuple(_knob_support(engine, settings, build, definition) for definition in engine.knobs)


def _knob_support(
    engine: Engine, settings: EngineSettings, build: EngineBuild | None, definition: KnobDef
) -> KnobSupport:
    spelling = definition.env or definition.flag or ""
    if build is None:
        return KnobSupport(name=definition.name, spelling=spelling, supported=None)
    try:
        problems = engine.check(settings, build, {definition.name: _sample(definition)})
    except ConfigError as error:
        return KnobSupport(name=definition.name, spelling=spelling, supported=None, reason=str(error))
    lacking = [p for p in problems if p.startswith(definition.name) and any(text in p for text in _NO_SUCH_FLAG)]
    if lacking:
        return KnobSupport(
            name=definition.name, spelling=spelling, supported=False, reason=lacking[0], since=definition.since
        )
    embedded = engine.facts.measurement is Measurement.EMULATED  # of this very package: made for these knobs, no help
    known = embedded or definition.scope == "request" or (bool(build.flags) and definition.env is None)
    return KnobSupport(name=definition.name, spelling=spelling, supported=True if known else None)


def available(
    candidates: Iterable[EngineSettings], devices: Callable[[], tuple[Device, ...]] = environment.gpus
) -> Availability:
    """Which of several engines can run here and why the others cannot: the first thing each is missing."""
    here: list[EngineSettings] = []
    skipped: list[tuple[EngineSettings, str]] = []
    for settings in candidates:
        try:
            report = examine(settings, devices)
        except ConfigError as error:
            skipped.append((settings, str(error)))
            continue
        if report.ok:
            here.append(settings)
        else:
            skipped.append((settings, report.missing[0] if report.missing else "its probe failed"))
    return Availability(here=tuple(here), skipped=tuple(skipped))


# ---------------------------------------------------------------- the page

_ANSWER = {True: "yes", False: "NO", None: "not known"}


def render(report: DoctorReport) -> RenderableType:
    """The report for a terminal: a verdict line, what is missing, build, models, memory, knobs."""
    verdict = "can run here" if report.ok else "cannot run here yet"
    parts: list[RenderableType] = [Text(f"{report.engine}: {verdict}", style="bold green" if report.ok else "bold red")]
    if report.missing:
        parts.append(_missing_table(report.missing))
    if report.build is not None:
        parts.append(_build_table(report))
    if report.models:
        parts.append(_model_table(report))
    if report.memory is not None:
        parts.append(_memory_table(report.memory))
    if report.build is not None:
        parts.append(_knob_table(report))
    else:
        parts.append(Text(f"Its knobs: {', '.join(knob.name for knob in report.knobs)}"))
    if report.note:
        parts.append(Text(report.note, style="dim"))
    spaced = [piece for part in parts for piece in (part, Text(""))]
    return Group(*spaced[:-1])


def _mib(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _missing_table(missing: Sequence[str]) -> Table:
    table = Table(title="What is missing", title_justify="left", show_header=False, box=None, padding=(0, 1))
    for sentence in missing:
        table.add_row("•", escape(sentence))
    return table


def _build_table(report: DoctorReport) -> Table:
    table = Table(title="Build", title_justify="left", show_header=False, box=None, padding=(0, 1))
    table.add_column()
    table.add_column(overflow="fold")  # a path must be whole to be of use
    build = report.build
    if build is None:
        return table
    table.add_row("build", escape(build_name(replace(build, dialect=""))))
    meaning = dialects(engines.get(report.engine)).get(build.dialect, "")
    table.add_row("dialect", escape(f"{build.dialect or '-'}{f' ({meaning})' if meaning else ''}"))
    table.add_row("address" if not report.launches else "executable", escape(build.binary))
    table.add_row("sha256", (build.binary_sha256 or "-")[:16])
    for device in report.devices:
        memory = f", {device.memory_mib} MiB" if device.memory_mib else ""
        table.add_row(f"GPU {device.index}", escape(f"{device.name}{memory}"))
    return table


def _model_table(report: DoctorReport) -> Table:
    table = Table(title="Models", title_justify="left", box=None, padding=(0, 1))
    for heading in ("role", "name", "architecture", "quantisation", "MiB", "sha256"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "MiB" else "left")
    for file in report.models:
        cells = (file.role, file.name or file.path, file.architecture or "-", file.quantisation or "-")
        table.add_row(*(escape(cell) for cell in cells), _mib(file.size_bytes / MIB), file.sha256[:12])
    table.caption = f"the pair fits together: {_ANSWER[report.pair_fits]}"
    table.caption_justify = "left"
    return table


def _memory_table(memory: MemoryFit) -> Table:
    table = Table(title="Memory in MiB (estimate)", title_justify="left", show_header=False, box=None, padding=(0, 1))
    table.add_column()
    table.add_column(justify="right")
    for name, value in memory.parts_mib.items():
        table.add_row(escape(name), _mib(value))
    if memory.need_mib is not None:
        table.add_row("needed", _mib(memory.need_mib), style="bold")
    table.add_row(escape(memory.where), "not known" if memory.room_mib is None else _mib(memory.room_mib))
    unknown = f" (not known: {', '.join(memory.unknown)})" if memory.unknown else ""
    table.caption = f"fits into memory: {_ANSWER[memory.fits]}{escape(unknown)}"
    table.caption_justify = "left"
    return table


def _knob_table(report: DoctorReport) -> Table:
    table = Table(title="Knobs", title_justify="left", box=None, padding=(0, 1))
    for heading in ("knob", "flag or variable", "on this build"):
        table.add_column(heading, overflow="fold")
    for knob in report.knobs:
        answer = {True: "yes", False: "no", None: "its help does not say"}[knob.supported]
        if knob.supported is False and knob.since:
            answer = f"no (known: {knob.since})"
        table.add_row(knob.name, escape(knob.spelling), answer, style="dim" if knob.supported is False else None)
    return table
