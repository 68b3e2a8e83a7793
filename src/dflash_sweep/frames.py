"""Stored trials as tidy tables: one row a trial, one row a turn. Imports `records`, `arms`, `metrics`,
`objective`, `payload`.

These two tables are the only input of everything in `analysis/` and `report/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from dflash_sweep import arms, metrics, objective
from dflash_sweep.payload import answer_text
from dflash_sweep.records import StoredTrial, TurnRecord

KNOB_PREFIX = "knob."
"""Knob columns are named `knob.<canonical name>`; a missing or None knob is None (object columns, never NaN)."""

EFFECTIVE_PREFIX = "effective."
"""Settings the server itself showed: `effective.<canonical name>`; None = the server did not show it."""

MEMORY_PREFIX = "memory."
"""Memory figures of the server's log, MiB: `memory.<name>`."""

CLAIMED_PREFIX = "claimed."
"""Figures stated by the author of an imported row: `claimed.<metric>`."""

SHOWN_DIGITS = 16
"""Digits of a file's SHA-256 that tables keep: enough to tell files apart."""

TRIAL_COLUMNS: tuple[str, ...] = (
    "uid", "study", "number", "role", "candidate", "repeat", "attempt", "speculative", "engine", "build",
    "measurement", "clock", "device", "device_uuid", "device_memory_mib", "worker", "trace", "trace_sha256",
    "comparability_key", "driver", "binary", "models", "study_devices", "plain_settings", "setting_note", "label",
    "status_claimed",
    "failure_kind", "failure_message", "started_utc",
    "load_s", "wall_s", "n_turns", "n_valid_turns", "output_tokens", "decode_tokens", "decode_ms", "verify_steps",
    "draft_tokens", "accepted_draft_tokens", "acceptance_kind", "prompt_tokens", "cached_tokens", "prompt_ms",
    "decode_tps", "api_tps", "wall_tps", "ttft_ms", "tpot_ms", "acceptance_length", "draft_acceptance_rate",
    "prefill_tps", "peak_memory_mib", "energy_j", "throttled", "joules_per_token", "vram_mib", "max_temperature_c",
    *metrics.STAGE_NAMES,
)  # fmt: skip
"""Columns of the trial table besides knobs. Stage columns: ms per verify step; sums: over valid, counted turns.
`driver`, `binary`, `models`, `study_devices` are the ground (see `analysis.staleness`). `plain_settings`: those of a
row's settings that plain decoding reads too (see `controls`; None = not known). `setting_note`: imported rows whose
settings are only partly known are told apart by this text; else None."""

TURN_COLUMNS: tuple[str, ...] = (
    "uid", "number", "role", "candidate", "speculative", "order", "conversation", "index", "bucket", "warmup",
    "invalid_reason", "finish_reason", "prompt_sha256", "text_sha256", "output_tokens", "prompt_tokens",
    "cached_tokens", "prompt_ms", "decode_tokens", "decode_ms", "timing_source", "verify_steps", "steps_source",
    "draft_tokens", "accepted_draft_tokens", "acceptance_kind", "acceptance_histogram", "flags",
    "decode_tps", "acceptance_length", "prefill_tps", "ttft_ms", "tpot_ms", "api_ms", "text", "token_ids", "arm",
    *metrics.STAGE_NAMES,
)  # fmt: skip
"""Columns of the turn table. Stage columns are ms per verify step of that turn; None = the engine does not print it.
`text`: the answer as payload.answer_text gives it, of which text_sha256 is the hash; None = the rows hold no text.
`arm`: turns of another arm than the study's own have an invalid_reason that begins with other_arm."""


def _total(turns: list[TurnRecord], field: str) -> float | None:
    """Sum of a counter over turns; None unless every turn has it (a partial sum would pose as the whole)."""
    values = [getattr(turn.counters, field) for turn in turns]
    return None if not values or any(value is None for value in values) else sum(values)


def _stage_per_step(turns: list[TurnRecord], stage: str) -> float | None:
    steps = total = 0.0
    for turn in turns:
        time_ms = {entry.name: entry.total_ms for entry in turn.counters.stages}.get(stage)
        if time_ms is not None and turn.counters.verify_steps:
            steps += turn.counters.verify_steps
            total += time_ms
    return metrics.ratio(total, steps) if steps else None


def counted_turns(trial: StoredTrial) -> list[TurnRecord]:
    """Turns that enter aggregates: measured, complete, sane; warm-up left out."""
    return [turn for turn in trial.result.turns if turn.invalid_reason is None and not turn.warmup]


def models_text(models: Iterable[Mapping[str, Any]]) -> str | None:
    """Model files by content, e.g. "draft 1f0a…, target 9c3b…" (the first digits of SHA-256); None = not known."""
    return (
        ", ".join(sorted(f"{one.get('role')} {one['sha256'][:SHOWN_DIGITS]}" for one in models if one.get("sha256")))
        or None
    )


def _ground(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What a row was measured on, beside build and device; None = not known."""
    gpu, models, devices = environment.get("gpu"), environment.get("models"), environment.get("devices")
    build = environment.get("build")
    binary = build.get("sha256") if isinstance(build, Mapping) else None
    return {
        "driver": gpu.get("driver") if isinstance(gpu, Mapping) else None,
        "binary": binary[:SHOWN_DIGITS] if binary else None,
        "models": models_text(models or ()),
        "study_devices": tuple(devices) if devices else None,
    }


def trial_row(trial: StoredTrial) -> dict[str, Any]:
    """One row of the trial table, knob columns included."""
    result, turns = trial.result, counted_turns(trial)
    sums = {
        name: _total(turns, name)
        for name in (
            "output_tokens", "decode_tokens", "decode_ms", "verify_steps", "draft_tokens",
            "accepted_draft_tokens", "prompt_tokens", "cached_tokens", "prompt_ms",
        )
    }  # fmt: skip
    kinds = {turn.counters.acceptance_kind for turn in turns}
    processed = None
    if sums["prompt_tokens"] is not None and sums["cached_tokens"] is not None:
        processed = sums["prompt_tokens"] - sums["cached_tokens"]
    row: dict[str, Any] = {
        "uid": trial.uid, "study": trial.study, "number": trial.number, "role": str(trial.role),
        "candidate": trial.candidate, "repeat": trial.repeat, "attempt": trial.attempt,
        "speculative": trial.speculative, "engine": trial.engine, "build": trial.build,
        "measurement": str(result.measurement), "clock": result.clock, "device": result.device.name,
        "device_uuid": result.device.uuid, "device_memory_mib": result.device.memory_mib, "worker": result.worker,
        "trace": trial.trace_name, "trace_sha256": trial.trace_sha256, "comparability_key": trial.comparability_key,
        **_ground(result.environment),
        "plain_settings": result.environment.get("plain_settings"),
        "setting_note": result.environment.get("setting_note"),
        "label": trial.label, "status_claimed": trial.status_claimed,
        "failure_kind": str(result.failure.kind) if result.failure else None,
        "failure_message": result.failure.message if result.failure else None,
        "started_utc": result.started_utc, "load_s": result.load_s, "wall_s": result.wall_s,
        "n_turns": sum(not turn.warmup and not arms.is_other(turn.invalid_reason) for turn in result.turns),
        "n_valid_turns": len(turns),
        **sums,
        "acceptance_kind": kinds.pop() if len(kinds) == 1 else "unknown",
        "decode_tps": metrics.ratio(sums["decode_tokens"], sums["decode_ms"], 1000.0),
        **{name: objective.score(turns, name) for name in ("api_tps", "wall_tps", "ttft_ms", "tpot_ms")},
        "acceptance_length": metrics.ratio(sums["decode_tokens"], sums["verify_steps"]),
        "draft_acceptance_rate": metrics.ratio(sums["accepted_draft_tokens"], sums["draft_tokens"]),
        "prefill_tps": metrics.ratio(processed, sums["prompt_ms"], 1000.0),
        "peak_memory_mib": result.telemetry.peak_memory_mib, "energy_j": result.telemetry.energy_j,
        "throttled": result.telemetry.throttled, "joules_per_token": objective.joules_per_token(result),
        "vram_mib": objective.vram_mib(result), "max_temperature_c": result.telemetry.max_temperature_c,
        **{stage: _stage_per_step(turns, stage) for stage in metrics.STAGE_NAMES},
    }  # fmt: skip
    if any(arms.is_other(turn.invalid_reason) for turn in result.turns):
        row["wall_tps"] = None  # the time between first and last turn holds the other arms' too
    if row["step_ms"] is None:
        row["step_ms"] = metrics.ratio(sums["decode_ms"], sums["verify_steps"])
    row.update({KNOB_PREFIX + name: value for name, value in trial.knobs.items()})
    row.update({EFFECTIVE_PREFIX + name: value for name, value in result.effective.items()})
    row.update({MEMORY_PREFIX + name: value for name, value in result.memory_mib.items()})
    row.update({CLAIMED_PREFIX + name: value for name, value in result.claimed.items()})
    return row


def _turn_row(trial: StoredTrial, turn: TurnRecord) -> dict[str, Any]:
    counters, exchange = turn.counters, turn.exchange
    stage_ms = {entry.name: entry.total_ms for entry in counters.stages}
    return {
        "uid": trial.uid, "number": trial.number, "role": str(trial.role), "candidate": trial.candidate,
        "speculative": trial.speculative, "order": turn.order, "conversation": turn.conversation,
        "index": turn.index, "bucket": turn.bucket, "warmup": turn.warmup, "invalid_reason": turn.invalid_reason,
        "finish_reason": exchange.finish_reason, "prompt_sha256": turn.prompt_sha256, "text_sha256": turn.text_sha256,
        "output_tokens": counters.output_tokens, "prompt_tokens": counters.prompt_tokens,
        "cached_tokens": counters.cached_tokens, "prompt_ms": counters.prompt_ms,
        "decode_tokens": counters.decode_tokens, "decode_ms": counters.decode_ms,
        "timing_source": counters.timing_source, "verify_steps": counters.verify_steps,
        "steps_source": counters.steps_source, "draft_tokens": counters.draft_tokens,
        "accepted_draft_tokens": counters.accepted_draft_tokens, "acceptance_kind": counters.acceptance_kind,
        "acceptance_histogram": counters.acceptance_histogram, "flags": " ".join(counters.flags),
        "decode_tps": metrics.decode_tps(counters), "acceptance_length": metrics.acceptance_length(counters),
        "prefill_tps": metrics.prefill_tps(counters), "ttft_ms": metrics.ttft_ms(exchange),
        "tpot_ms": metrics.tpot_ms(exchange, counters.output_tokens),
        "api_ms": None if exchange.end_ns is None else (exchange.end_ns - exchange.send_ns) / 1e6,
        "text": answer_text(exchange) if turn.text_sha256 else None, "token_ids": exchange.token_ids,
        "arm": exchange.arm,
        **{stage: metrics.ratio(stage_ms.get(stage), counters.verify_steps) for stage in metrics.STAGE_NAMES},
    }  # fmt: skip


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    extra = sorted({name for row in rows for name in row} - set(columns))
    complete = [{name: row.get(name) for name in (*columns, *extra)} for row in rows]
    frame = pd.DataFrame(complete, columns=[*columns, *extra])
    for name in extra:
        frame[name] = pd.Series([row[name] for row in complete], dtype=object, index=frame.index)
    return frame


def trial_frame(trials: Iterable[StoredTrial]) -> pd.DataFrame:
    """The trial table: TRIAL_COLUMNS plus one object column per knob (`knob.<name>`, None = engine default) and per
    entry of a result's effective settings, memory figures and claimed figures."""
    return _table([trial_row(trial) for trial in trials], TRIAL_COLUMNS)


def turn_frame(trials: Iterable[StoredTrial]) -> pd.DataFrame:
    """The turn table: TURN_COLUMNS, warm-up and invalid turns included and marked."""
    return _table([_turn_row(trial, turn) for trial in trials for turn in trial.result.turns], TURN_COLUMNS)
