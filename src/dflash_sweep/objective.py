"""What a study optimises: a trial's result → one number per objective, or None. Imports `metrics`, `records`, `errors`.

Several objectives are an order as well: the first one decides who is confirmed and who wins, the others make the front
of settings that no other one beats in everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from dflash_sweep import metrics
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import TrialResult, TurnRecord

_Key = TypeVar("_Key", bound=Hashable)


def _counted(turns: Iterable[TurnRecord]) -> list[TurnRecord]:
    return [turn for turn in turns if turn.invalid_reason is None and not turn.warmup]


def _api_tps(turns: Sequence[TurnRecord]) -> float | None:
    if any(turn.counters.output_tokens is None or turn.exchange.end_ns is None for turn in turns):
        return None
    tokens = sum(turn.counters.output_tokens or 0 for turn in turns)
    return metrics.ratio(tokens, sum((turn.exchange.end_ns or 0) - turn.exchange.send_ns for turn in turns), 1e9)


def _wall_tps(turns: Sequence[TurnRecord]) -> float | None:
    if any(turn.counters.output_tokens is None or turn.exchange.end_ns is None for turn in turns):
        return None
    first = min(turn.exchange.send_ns for turn in turns)
    last = max(turn.exchange.end_ns or 0 for turn in turns)
    return metrics.ratio(sum(turn.counters.output_tokens or 0 for turn in turns), last - first, 1e9)


def _mean(times: list[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return fmean(known) if known and len(known) == len(times) else None


def _ttft_ms(turns: Sequence[TurnRecord]) -> float | None:
    return _mean([metrics.ttft_ms(turn.exchange) for turn in turns])


def _tpot_ms(turns: Sequence[TurnRecord]) -> float | None:
    return _mean([metrics.tpot_ms(turn.exchange, turn.counters.output_tokens) for turn in turns])


_SCORES = {
    "decode_tps": metrics.pooled_decode_tps,
    "api_tps": _api_tps,
    "wall_tps": _wall_tps,
    "ttft_ms": _ttft_ms,
    "tpot_ms": _tpot_ms,
}

BY_CLIENT = ("api_tps", "wall_tps", "ttft_ms", "tpot_ms")
"""Objectives timed by the client. Under a virtual clock they time the emulator, not what it emulates: not known."""

FROM_DEVICE = ("joules_per_token", "vram_mib")
"""Objectives that the device's readings give."""

OBJECTIVES = (*_SCORES, *FROM_DEVICE)
"""Every name that `objective` takes."""


def score(turns: Iterable[TurnRecord], objective: str) -> float | None:
    """An objective made of turns alone, over the valid, counted ones; None if there are none or a figure is missing.

    Units are those of metrics.METRIC[objective]. Raises KeyError for a name that turns alone do not give.
    """
    counted = _counted(turns)
    return _SCORES[objective](counted) if counted else None


def joules_per_token(result: TrialResult) -> float | None:
    """Energy over the measured turns per token that came out in them, J; None where the device does not tell power.

    The energy includes turns that do not count elsewhere, so their tokens count here.
    """
    tokens = [turn.counters.output_tokens for turn in result.turns if not turn.warmup]
    if any(count is None for count in tokens):
        return None
    return metrics.ratio(result.telemetry.energy_j, sum(count or 0 for count in tokens))


def vram_mib(result: TrialResult) -> float | None:
    """Peak of the device's memory where it is read, else the sum of what the server's log names, MiB."""
    peak = result.telemetry.peak_memory_mib
    return peak if peak is not None else (sum(result.memory_mib.values()) if result.memory_mib else None)


def figure(result: TrialResult, name: str) -> float | None:
    """An objective (or max_temperature_c) of a finished trial, failed or not; None = not known.

    Units are those of metrics.METRIC[name]. Raises KeyError for another name.
    """
    if name == "joules_per_token":
        return joules_per_token(result)
    if name == "vram_mib":
        return vram_mib(result)
    if name == "max_temperature_c":
        return result.telemetry.max_temperature_c
    if name in BY_CLIENT and result.clock == "virtual":
        return None
    return score(result.turns, name)


def why_missing(result: TrialResult, name: str) -> str:
    """Why a result does not tell a figure, in a few words."""
    if name in BY_CLIENT and result.clock == "virtual":
        return "the emulator's clock is virtual, so the client's times say nothing (engine.options.clock=real)"
    if not _counted(result.turns):
        return "no turn counts"
    if name == "joules_per_token" and result.telemetry.energy_j is None:
        return f"{result.device.name} does not tell its power"
    if name == "max_temperature_c":
        return f"{result.device.name} does not tell its temperature"
    if name == "vram_mib":
        return f"neither {result.device.name} nor the server's log tells the memory in use"
    return "a turn lacks a count or a time"


def names(value: object) -> tuple[str, ...]:
    """The objectives of a configuration, the deciding one first. Raises ConfigError."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    for name in listed:
        if name not in OBJECTIVES:
            raise ConfigError(f"objective={name}: not known; allowed: one or several of {', '.join(OBJECTIVES)}")
    if not listed or len(set(listed)) < len(listed):
        raise ConfigError("objective: name one or several different ones, for example [decode_tps, joules_per_token]")
    return tuple(str(name) for name in listed)


def direction(objective: str) -> str:
    """maximize or minimize."""
    return metrics.METRIC[objective].direction


def sign(objective: str) -> float:
    """+1 where more is better, -1 where less is."""
    return -1.0 if direction(objective) == "minimize" else 1.0


def front(points: Mapping[_Key, Sequence[float]], objectives: Sequence[str]) -> tuple[_Key, ...]:
    """The points that no other beats: none is at least as good in everything and better in something. Best first one
    first; of equal points all stay."""
    signs = [sign(name) for name in objectives]
    signed = {key: tuple(s * v for s, v in zip(signs, values, strict=True)) for key, values in points.items()}
    best = [key for key, own in signed.items() if not any(_dominates(other, own) for other in signed.values())]
    return tuple(sorted(best, key=lambda key: signed[key], reverse=True))


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
