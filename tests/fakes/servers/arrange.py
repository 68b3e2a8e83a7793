"""Engine settings for a stub of each engine and dialect, and the trial specs to run on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_sweep.engines import get
from dflash_sweep.records import (
    Device,
    EngineSettings,
    Knobs,
    ReplayPolicy,
    Role,
    Trace,
    TraceHeader,
    TrialSpec,
    Turn,
)
from fakes import micropair
from fakes.servers import stub

CPU = Device(kind="cpu", index=0, name="test CPU")
DIALECTS: tuple[tuple[str, str, str], ...] = (
    ("beellama", "A1", "A1"),
    ("beellama", "A2", "A2"),
    ("beellama", "B1", "B1"),
    ("beellama", "B2", "B2"),
    ("lucebox", "G0", "G0"),
    ("lucebox", "G1", "G1"),
    ("lucebox", "G2", "G2"),
    ("lucebox", "G3", "G3"),
    ("vllm", "0.24.0", "counters"),
    ("vllm", "0.28.0", "request-clock"),
    ("vllm", "0.33.0", "request-acceptance"),
    ("sglang", "0.5.14", "counters"),
    ("sglang", "0.5.23", "request-acceptance"),
)
"""(engine, what the stub is told to be, the dialect that the probe must find)."""

POINTS: dict[str, Knobs] = {
    "beellama": {"draft_max": 7, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "depth_controller": "off"},
    "lucebox": {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "fa_window": 0},
    "vllm": {"draft_max": 7, "max_num_seqs": 4},
    "sglang": {"draft_max": 7, "max_running_requests": 4},
}


def settings_for(engine: str, variant: str, folder: Path, **more: Any) -> EngineSettings:
    """Settings whose binary is a stub in `folder`; model files are a real small pair."""
    name = {"lucebox": "luce_server" if variant == "G3" else "dflash_server"}.get(engine)
    if engine == "lucebox" and variant == "G0":
        name = "server.py"
    binary = stub.install(folder, engine, variant, name=name)
    plain: dict[str, Any] = {"binary": str(binary), "startup_timeout_s": 20.0}
    if engine in ("vllm", "sglang"):
        plain["options"] = {"model": "org/target", "draft_model": "org/draft"}
    else:
        pair = micropair.write_pair(folder)
        plain |= {"model": str(pair.target), "draft_model": str(pair.draft)}
    if engine == "lucebox" and variant == "G0":
        # The stub is a Python script of its own; the real server.py needs an interpreter, so this one is its own.
        plain["options"] = {"python": "/usr/bin/env"}
    options = {**plain.pop("options", {}), **more.pop("options", {})}
    return EngineSettings(name=engine, options=options, **{**plain, **more})


def trace(turns: int = 2) -> Trace:
    return Trace(
        header=TraceHeader(name="test", source="made by a test", sha256="0" * 64),
        turns=tuple(
            Turn(conversation="c", index=index, messages=({"role": "user", "content": f"question {index}"},))
            for index in range(turns)
        ),
    )


def spec_for(
    settings: EngineSettings, folder: Path, *, speculative: bool = True, knobs: Knobs | None = None
) -> TrialSpec:
    """A trial of two turns after one for warming up."""
    return TrialSpec(
        uid="t",
        study="s",
        role=Role.SEARCH if speculative else Role.BASELINE,
        candidate=0,
        speculative=speculative,
        knobs=POINTS.get(settings.name, {}) if knobs is None else knobs,
        engine=settings,
        build=get(settings.name).probe(settings),
        trace=trace(),
        policy=ReplayPolicy(warmup_turns=1, max_tokens=64),
        evidence_dir=str(folder / ("spec" if speculative else "plain")),
        timeout_s=60.0,
    )


def with_flag(settings: EngineSettings, *words: str) -> EngineSettings:
    return replace(settings, extra_args=words)
