"""An engine adapter for `fake_server.py`, and specs for it: the smallest thing that a whole trial can run on."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_sweep import engines
from dflash_sweep.engines.base import EngineFacts, KnobDef, LaunchRequest
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
    ReplayPolicy,
    Role,
    Trace,
    TraceHeader,
    TrialSpec,
    Turn,
    TurnCounters,
)

SERVER = Path(__file__).with_name("fake_server.py")
BUILD = EngineBuild(engine="fake", version="1", binary=str(SERVER))
CPU = Device(kind="cpu", index=0, name="test CPU")
REGISTERED = f"{__name__}:FakeEngine"


def register() -> None:
    """Make "fake" an engine of this process."""
    engines.REGISTRY["fake"] = REGISTERED


def command(port: int, behaviour: str = "ok", knobs: Knobs | None = None) -> tuple[str, ...]:
    """The server's command line. `sys.executable -S -E` keeps the start quick."""
    words = [sys.executable, "-S", "-E", str(SERVER), "--port", str(port), "--behaviour", behaviour]
    for name, value in (knobs or {}).items():
        if value is not None:
            words += ["--knob", f"{name}={json.dumps(value)}"]
    return tuple(words)


class FakeEngine:
    name = "fake"
    facts = EngineFacts(
        measurement=Measurement.EMULATED,
        first_token_from_prefill=True,
        accelerator="cpu",
        needs_draft_model=False,
        cold_by="first_request",
    )
    knobs: tuple[KnobDef, ...] = ()
    options: tuple[KnobDef, ...] = ()

    def probe(self, settings: EngineSettings) -> EngineBuild:
        return BUILD

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        return ()

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        return ()

    def effective_point(self, knobs: Knobs) -> Knobs:
        return dict(knobs)

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        shown = dict(request.knobs)
        if request.settings.options.get("lies"):
            shown["budget"] = 1
        argv = command(request.port, str(request.settings.options.get("behaviour", "ok")), shown)
        return LaunchSpec(argv=argv, env=dict(request.settings.env))

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        return {}

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        shown: dict[str, KnobValue] = dict(props["knobs"])
        return shown

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        if b"unparseable" in log:
            raise KeyError("eval time")
        return tuple(self._counters(exchange) for exchange in exchanges)

    def _counters(self, exchange: Exchange) -> TurnCounters:
        timings = exchange.timings
        if timings is None:
            return TurnCounters()
        count, drafts = timings["predicted_n"], timings.get("draft_n")
        accepted = timings.get("draft_n_accepted")
        return TurnCounters(
            output_tokens=count,
            decode_tokens=count - 1,
            decode_ms=timings["predicted_ms"],
            timing_source="json",
            draft_tokens=drafts,
            accepted_draft_tokens=accepted,
            verify_steps=None if accepted is None else max(1, count - accepted - 1),
        )

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        for line in log.splitlines():
            if "out of memory" in line:
                return FailureKind.OUT_OF_MEMORY, line
            if "unknown argument" in line:
                return FailureKind.INVALID_CONFIG, line
        return None

    def memory_mib(self, log: str) -> dict[str, float]:
        return {"kv": 12.0}


def trace(turns: int = 3) -> Trace:
    """A conversation of that many turns."""
    return Trace(
        header=TraceHeader(name="short", source="test"),
        turns=tuple(
            Turn(conversation="c", index=index, messages=({"role": "user", "content": f"question {index}"},))
            for index in range(turns)
        ),
    )


def spec(folder: Path, behaviour: str = "ok", uid: str = "t1", turns: int = 3, **changes: Any) -> TrialSpec:
    """A trial on the fake server; `changes` replace fields of the spec."""
    made = TrialSpec(
        uid=uid,
        study="s",
        role=Role.SEARCH,
        candidate=0,
        knobs={"budget": 22},
        engine=EngineSettings(name="fake", options={"behaviour": behaviour}, startup_timeout_s=20.0),
        build=BUILD,
        trace=trace(turns),
        policy=ReplayPolicy(warmup_turns=1, max_tokens=64, turn_timeout_s=20.0),
        evidence_dir=str(folder / uid),
        timeout_s=30.0,
    )
    return replace(made, **changes)
