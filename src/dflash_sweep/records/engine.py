"""Servers and what they run on: settings, build, command line, model files, device. Imports `records.words` only."""

from __future__ import annotations

from dataclasses import dataclass, field

from dflash_sweep.records.words import Knobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a worker owns. `uuid` is passed to the child as it is (GPU-…, MIG-…); None for a CPU or an emulated card."""

    kind: str  # gpu | cpu | emulated
    index: int
    name: str
    uuid: str | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The user's choice of engine: everything that stays the same over a study.

    `options` are engine-specific settings declared by the adapter (e.g. the emulator's card and clock).
    """

    name: str
    binary: str | None = None
    model: str | None = None
    draft_model: str | None = None
    n_ctx: int = 8192
    options: Knobs = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    startup_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBuild:
    """What the probe found. `dialect` names the parser variant; `flags` the binary's switches (empty = unknown)."""

    engine: str
    version: str
    binary: str
    binary_sha256: str | None = None
    dialect: str = ""
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """An exact command line. `env` holds only what is added to the allow-listed parent environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    role: str  # target | draft
    path: str
    size_bytes: int
    sha256: str
    name: str | None = None
    architecture: str | None = None
    quantisation: str | None = None
