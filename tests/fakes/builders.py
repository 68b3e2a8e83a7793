"""Records with sensible defaults, so that a test names only what it is about."""

from __future__ import annotations

from typing import Any

from dflash_sweep.records import (
    Device,
    EngineBuild,
    EngineSettings,
    Exchange,
    Failure,
    Knobs,
    Measurement,
    ReplayPolicy,
    Role,
    StageTime,
    StoredTrial,
    Trace,
    TraceHeader,
    TrialResult,
    TrialSpec,
    Turn,
    TurnCounters,
    TurnRecord,
)

DEVICE = Device(kind="emulated", index=0, name="Test card")


def make_trace(turns: int = 2) -> Trace:
    return Trace(
        header=TraceHeader(name="test", source="made by a test", sha256="0" * 64),
        turns=tuple(
            Turn(conversation="c", index=index, messages=({"role": "user", "content": f"question {index}"},))
            for index in range(turns)
        ),
    )


def make_turn(
    index: int = 0, *, tokens: int = 100, decode_ms: float = 1000.0, steps: int = 40, **counters: Any
) -> TurnRecord:
    """100 tokens in 1000 ms and 40 steps: 100 tok/s, AL 2.5, step 25 ms."""
    return TurnRecord(
        conversation="c",
        index=index,
        bucket="code",
        order=index,
        counters=TurnCounters(
            output_tokens=tokens,
            decode_tokens=tokens,
            decode_ms=decode_ms,
            verify_steps=steps,
            timing_source="json",
            **{"stages": (StageTime(name="draft_ms", total_ms=10.0 * steps),), **counters},
        ),
        exchange=Exchange(turn_index=index, send_ns=0, finish_reason="length", content="text"),
        prompt_sha256="p" * 64,
        text_sha256="t" * 64,
    )


def make_spec(uid: str = "s/search/0/0/0", *, knobs: Knobs | None = None, **fields: Any) -> TrialSpec:
    defaults: dict[str, Any] = {
        "study": "s",
        "role": Role.SEARCH,
        "candidate": 0,
        "engine": EngineSettings(name="emulator"),
        "build": EngineBuild(engine="emulator", version="1", binary="emulator"),
        "trace": make_trace(),
        "policy": ReplayPolicy(),
        "evidence_dir": "sweeps/none",
    }
    return TrialSpec(uid=uid, knobs=knobs or {"budget": 22}, **{**defaults, **fields})


def make_result(
    uid: str = "s/search/0/0/0", *, turns: tuple[TurnRecord, ...] | None = None, failure: Failure | None = None
) -> TrialResult:
    return TrialResult(
        uid=uid,
        measurement=Measurement.EMULATED,
        clock="virtual",
        device=DEVICE,
        turns=(make_turn(0), make_turn(1)) if turns is None else turns,
        failure=failure,
    )


def make_stored(number: int = 0, *, role: Role = Role.SEARCH, **fields: Any) -> StoredTrial:
    defaults: dict[str, Any] = {
        "uid": f"s/{role}/{number}/0/0",
        "study": "s",
        "candidate": number if role is Role.SEARCH else None,
        "repeat": 0,
        "attempt": 0,
        "speculative": role is not Role.BASELINE,
        "knobs": {},
        "engine": "emulator",
        "build": "1",
        "trace_name": "test",
        "trace_sha256": "0" * 64,
        "comparability_key": "k",
    }
    merged = {**defaults, **fields}
    merged.setdefault("result", make_result(merged["uid"]))
    return StoredTrial(number=number, role=role, **merged)
