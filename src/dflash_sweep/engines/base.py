"""The port every engine's adapter implements: probe, launch spec, parser, failure signatures, declared facts.

Imports `records`, `errors`, `metrics` only. Adapters are stateless; nothing outside `engines/` knows an engine's name
or spelling. An adapter never starts a process itself but in `probe`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_sweep.errors import FailureKind
from dflash_sweep.records import (
    Device,
    EngineBuild,
    EngineSettings,
    Exchange,
    Knobs,
    KnobValue,
    LaunchSpec,
    Measurement,
    ModelFile,
    TurnCounters,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobDef:
    """One knob: how it is spelt for the engine and what it may be.

    `kind`: int, float, bool, choice or str. `flag`/`env` is the engine's spelling (exactly one is given; for a bool,
    `flag` is passed when the value equals `flag_when`). `default` is the engine's own default, None = engine decides.
    `scope`: launch (a new value needs a new server) or request. `since`: first build known to have it.
    """

    name: str
    kind: str
    flag: str | None = None
    env: str | None = None
    flag_when: bool = True
    choices: tuple[KnobValue, ...] = ()
    low: float | None = None
    high: float | None = None
    default: KnobValue = None
    scope: str = "launch"
    unit: str = ""
    since: str = ""
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine is known to do, so that nothing else has to ask for its name.

    `first_token_from_prefill`: the decode clock starts after the first token, so decode_tokens = output_tokens − 1.
    `stages`: canonical names of the stages it prints. `lossless`: greedy text equals plain decoding by construction.
    `needs_draft_model`: speculation needs a second model file. `accelerator`: gpu, cpu or none.
    `metrics_path`: a page of counters to be read before and after each request (Exchange.metrics_before/after);
    None = the engine has none that an adapter reads.
    `cold_by`: how the prompt cache of a running server is emptied between two trials: first_request (one slot and no
    cache beside it: a request with other text replaces what it holds), or a path that is posted to; None = not known,
    so that trials never share a server.
    `machine_options`: options that stand for the state of an emulated machine, not for what is measured on it.
    """

    measurement: Measurement
    first_token_from_prefill: bool
    stages: tuple[str, ...] = ()
    lossless: bool = True
    needs_draft_model: bool = False
    accelerator: str = "gpu"
    launches: bool = True
    metrics_path: str | None = None
    cold_by: str | None = None
    machine_options: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What an adapter needs to make a command line. `device` is what the worker owns.

    `shared`: further trials may follow on the same server, so it must keep no prompts beside its slot.
    """

    settings: EngineSettings
    build: EngineBuild
    knobs: Knobs
    speculative: bool
    device: Device
    host: str
    port: int
    n_parallel: int = 1
    shared: bool = False


class Engine(Protocol):
    """One engine. Implementations live in one module each and are listed in `engines.REGISTRY`."""

    name: str
    facts: EngineFacts
    knobs: tuple[KnobDef, ...]
    options: tuple[KnobDef, ...]

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Run the binary for version and help. Raises EngineMissing, saying what is missing and how to get it."""
        ...

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """Read the model files' own metadata. Raises EngineMissing if one is missing or the pair does not fit."""
        ...

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """Problems of one point, one sentence each, naming flag and build; empty = it can be launched."""
        ...

    def effective_point(self, knobs: Knobs) -> Knobs:
        """The same knobs with dead ones set to None, so that equal servers are equal points."""
        ...

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """The exact command line and added environment. Values are rendered by declared type; None is omitted."""
        ...

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """Extra fields of the chat request: per-request knobs, cache policy spelling, timing switches."""
        ...

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """Settings the server itself shows to be in force (/props, /slots, its log; never our own argv echo)."""
        ...

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        """One TurnCounters per exchange (warm-up included, in order). The log slice of exchange i runs from its
        log_start to the next one's. Missing figures are None; unknown shapes are flagged, never skipped in silence."""
        ...

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        """The failure that log and exit code show, with the line that shows it; None if they show none."""
        ...

    def memory_mib(self, log: str) -> dict[str, float]:
        """Memory figures the log prints (KV, compute, persist buffers), MiB by name."""
        ...
