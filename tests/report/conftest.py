"""Studies made by hand for the tests of reports: rows from a small cost model with seeded noise, marked emulated.

The model: a step costs draft + topk + verify·AL, plain decoding one verify a token; figures are invented.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dflash_sweep.errors import FailureKind
from dflash_sweep.metrics import pooled_decode_tps
from dflash_sweep.records import (
    AxisInfo,
    Device,
    Exchange,
    Failure,
    Knobs,
    LaunchSpec,
    Measurement,
    Role,
    StageTime,
    StoredTrial,
    StudyInfo,
    TelemetrySummary,
    TrialResult,
    TurnCounters,
    TurnRecord,
)

BUCKETS = ("code", "tool_call", "thinking", "prose", "code", "tool_call", "long_context", "prose", "code", "other")
WINDOWS, BUDGETS, TEMPS = (64, 128, 256, 1024), (8, 16, 22, 32, 48), (0.0, 0.5, 0.7, 1.0)


def _histogram(rng: random.Random, steps: int, accepted: int) -> dict[int, int]:
    counts = [0] * steps
    for _ in range(accepted):
        counts[rng.randrange(steps)] += 1
    return {value: counts.count(value) for value in sorted(set(counts))}


def make_turn(
    rng: random.Random, order: int, *, al: float, step_ms: float, stages: dict[str, float] | None, start_ns: int
) -> TurnRecord:
    """One turn of 60 steps whose figures agree with each other: tokens = round(60·al), time = 60·step_ms."""
    steps = 60
    tokens = round(steps * al)
    accepted = tokens - steps
    counters = TurnCounters(
        output_tokens=tokens, prompt_tokens=4000, cached_tokens=3000, prompt_ms=900.0, decode_tokens=tokens,
        decode_ms=steps * step_ms, timing_source="json", verify_steps=steps if stages is not None else None,
        draft_tokens=steps * 22 if stages is not None else None, accepted_draft_tokens=accepted,
        acceptance_kind="tree_nodes", acceptance_histogram=_histogram(rng, steps, accepted) if stages else None,
        stages=tuple(StageTime(name=name, total_ms=value * steps) for name, value in (stages or {}).items()),
    )  # fmt: skip
    end = start_ns + int((900 + steps * step_ms) * 1e6)
    exchange = Exchange(turn_index=order, send_ns=start_ns, first_token_ns=start_ns + 900_000_000, end_ns=end)
    return TurnRecord(
        conversation="c", index=order, bucket=BUCKETS[order % len(BUCKETS)], order=order, counters=counters,
        exchange=exchange, prompt_sha256="p", text_sha256="t",
    )  # fmt: skip


def make_trial(number: int, **fields: Any) -> StoredTrial:
    """A stored trial without turns; any field of StoredTrial or TrialResult may be given."""
    own: dict[str, Any] = {
        "uid": f"t{number:04d}", "study": "example", "role": Role.SEARCH, "candidate": number, "repeat": 0,
        "attempt": 0, "speculative": True, "knobs": {}, "engine": "emulator", "build": "0.1.0", "trace_name": "agent",
        "trace_sha256": "ab" * 32, "comparability_key": "k",
    }  # fmt: skip
    outcome: dict[str, Any] = {
        "uid": own["uid"], "measurement": Measurement.EMULATED, "clock": "virtual",
        "device": Device(kind="emulated", index=0, name="emulated 24 GB card", memory_mib=24564), "worker": "worker-0",
        "launch": LaunchSpec(argv=("llama-server", "-m", "target model.gguf", "--port", "40001"), env={"A": "1"}),
        "started_utc": f"2026-01-01T{number // 60 % 24:02d}:{number % 60:02d}:00Z", "load_s": 4.0, "wall_s": 55.0,
    }  # fmt: skip
    for name, value in fields.items():
        (own if name in StoredTrial.__dataclass_fields__ else outcome)[name] = value
    return StoredTrial(number=number, result=TrialResult(**outcome), **own)


def speculative_trial(
    rng: random.Random, number: int, knobs: Knobs, *, turns: int = 10, verify_ms: float = 24.7, **fields: Any
) -> StoredTrial:
    """A trial of the cost model: budget lifts AL up to 32, a large window slows the draft, temperature 0.7 is best."""
    budget, window, temp = (
        int(knobs["budget"] or 0),
        int(knobs["target_feat_ctx"] or 0),
        float(knobs["proposal_temp"] or 0),
    )
    al = 1.5 + 0.9 * min(budget, 32) / 32 - 0.8 * (temp - 0.7) ** 2
    stages = {"draft_ms": 14 + window / 16, "topk_ms": 3 + budget / 16, "exact_ms": verify_ms * al, "other_ms": 1.5}
    noise = rng.gauss(1, 0.015)
    made = [
        make_turn(rng, order, al=al + rng.gauss(0, 0.06), step_ms=sum(stages.values()) * noise, start_ns=order * 10**10,
                  stages={name: value * noise for name, value in stages.items()})
        for order in range(turns)
    ]  # fmt: skip
    memory = 17000 + 77.625 * budget
    return make_trial(
        number, knobs=knobs, turns=tuple(made), telemetry=TelemetrySummary(peak_memory_mib=memory),
        worker=f"worker-{number % 3}", **fields,
    )  # fmt: skip


def baseline_trial(rng: random.Random, number: int, *, turns: int = 10, **fields: Any) -> StoredTrial:
    """Plain decoding at 24.7 ms a token."""
    made = [
        make_turn(rng, order, al=1.0, step_ms=24.7 * rng.gauss(1, 0.01), stages=None, start_ns=order * 10**10)
        for order in range(turns)
    ]
    telemetry = TelemetrySummary(peak_memory_mib=16500.0)
    return make_trial(number, **{"candidate": None, "speculative": False, "role": Role.BASELINE, "turns": tuple(made),
                                 "telemetry": telemetry, **fields})  # fmt: skip


def failed_trial(number: int, kind: FailureKind, message: str, **fields: Any) -> StoredTrial:
    return make_trial(number, failure=Failure(kind=kind, message=message), **fields)


def make_study(**fields: Any) -> StudyInfo:
    axes = (
        AxisInfo(name="target_feat_ctx", kind="int", values=WINDOWS, ordered=True, unit="tokens"),
        AxisInfo(name="budget", kind="int", values=BUDGETS, ordered=True, unit="nodes"),
        AxisInfo(name="proposal_temp", kind="float", values=TEMPS, ordered=True),
        AxisInfo(name="chain_seed", kind="bool", values=(False, True)),
        AxisInfo(name="cache_type_k", kind="choice", values=("f16", "q8_0", "q4_0")),
    )  # fmt: skip
    own: dict[str, Any] = {
        "name": "example", "engine": "emulator", "measurement": Measurement.EMULATED, "axes": axes, "n_trials": 40,
        "status": "finished", "created_utc": "2026-01-01T00:00:00Z",
        "provenance": {"engine_version": "0.1.0", "package": "0.1.0"},
    }  # fmt: skip
    return StudyInfo(**{**own, **fields})


def make_trials(count: int, *, turns: int = 10, seed: int = 7) -> tuple[StoredTrial, ...]:
    """A study of `count` trials: baselines, a search with canaries and failures, confirm blocks in the last third."""
    rng = random.Random(seed)
    rows = [_search_row(rng, number, turns) for number in range(min(count, 2 + 2 * count // 3))]
    good = [row for row in rows if row.speculative and row.result.failure is None]
    finalists = sorted(good, key=lambda row: -(pooled_decode_tps(row.result.turns) or 0.0))[:3]
    first = len(rows)
    for number in range(first, count):
        block, place = divmod(number - first, len(finalists) + 1)
        confirm: dict[str, Any] = {"role": Role.CONFIRM, "repeat": block}
        if place == len(finalists):
            rows.append(baseline_trial(rng, number, turns=turns, **confirm))
        else:
            again = finalists[place]
            fields: dict[str, Any] = {"candidate": again.candidate, **confirm}
            rows.append(speculative_trial(rng, number, again.knobs, turns=turns, **fields))
    return tuple(rows)


def _search_row(rng: random.Random, number: int, turns: int) -> StoredTrial:
    knobs: Knobs = {
        "target_feat_ctx": rng.choice(WINDOWS), "budget": rng.choice(BUDGETS), "proposal_temp": rng.choice(TEMPS),
        "chain_seed": rng.choice((True, False)), "cache_type_k": rng.choice(("f16", "q8_0", "q4_0")),
    }  # fmt: skip
    if number < 2 or number % 12 == 11:
        return baseline_trial(rng, number, turns=turns, role=Role.BASELINE if number < 2 else Role.CANARY)
    if number % 9 == 5:
        message = f"CUDA error: out of memory while loading the draft at budget {knobs['budget']}"
        return failed_trial(number, FailureKind.OUT_OF_MEMORY, message, knobs=knobs)
    if number % 17 == 8:
        return failed_trial(number, FailureKind.REQUEST_FAILED, "turn 3: connection reset", knobs=knobs)
    return speculative_trial(rng, number, knobs, turns=turns)


@pytest.fixture(scope="session")
def build_study() -> Callable[..., StudyInfo]:
    return make_study


@pytest.fixture(scope="session")
def build_trials() -> Callable[..., Sequence[StoredTrial]]:
    return make_trials


@pytest.fixture(scope="session")
def build_runs() -> tuple[Callable[..., StoredTrial], Callable[..., StoredTrial]]:
    """Makers of one speculative and of one plain run."""
    return speculative_trial, baseline_trial
