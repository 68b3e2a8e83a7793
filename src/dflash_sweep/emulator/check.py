"""Compares the emulator with published runs, row by row and in total.

Imports `devices`, `dials`, `predict`, `references`, `rows`.

Every figure that docs/emulator.md shows comes from here; nothing in this module changes the model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dflash_sweep.emulator import devices, dials, predict, references, rows
from dflash_sweep.emulator.devices import Card
from dflash_sweep.emulator.dials import Dials
from dflash_sweep.emulator.predict import Prediction
from dflash_sweep.emulator.rows import STAGES, Row
from dflash_sweep.emulator.setting import Setting

GROUPS: tuple[tuple[str, Callable[[Setting], bool]], ...] = (
    ("snapshot and replay", lambda setting: setting.batched and not setting.rolls_back_fast),
    ("fast rollback", lambda setting: setting.rolls_back_fast),
    ("proposal temperature", lambda setting: setting.proposal_temp > 1e-3),
    ("block and rows", lambda setting: setting.block_size != 16 or setting.tree_rows is not None),
    ("tree shape", lambda setting: setting.chain_depth_cap is not None or not setting.chain_seed or setting.top_k > 0),
    ("cache type", lambda setting: setting.cache_type_k != "q4_0"),
    ("context and batch", lambda setting: setting.n_ctx != 65536 or (setting.n_batch, setting.n_ubatch) != (512, 512)),
    ("feature window", lambda setting: setting.target_feat_ctx != 128),
    ("budget", lambda setting: setting.budget != 22),
)
"""Kinds of rows, first match counts; what matches none is a repeat of the default setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCheck:
    """One row: published and emulated figures by name, relative errors (AL: absolute), and its verdict in words.

    `expected` and `predicted` are ran, out of memory, refused or unknown.
    """

    run: int
    kind: str
    group: str
    description: str
    expected: str
    predicted: str
    published: dict[str, float | None] = field(default_factory=dict)
    emulated: dict[str, float | None] = field(default_factory=dict)
    tps_error: float | None = None
    al_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Whether an axis orders settings as published. `pairs`: pairs of values whose published means differ by more than
    twice the repeats' scatter; `agree`: how many of them the emulator orders the same way."""

    axis: str
    values: list[float]
    published_tps: list[float]
    emulated_tps: list[float]
    pairs: int
    agree: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole comparison. `totals`: figure → value (errors relative, AL absolute); None: nothing was compared."""

    rows: list[RowCheck]
    totals: dict[str, float | None]
    orders: list[Order]
    dispersion: dict[str, float] | None
    references: list[references.Reference]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def group_of(setting: Setting | None) -> str:
    """Kind of a row by what its setting changes."""
    if setting is None:
        return "no setting"
    return next((name for name, applies in GROUPS if applies(setting)), "default setting")


def check_row(entry: Row, guess: Prediction) -> RowCheck:
    """One row against its prediction."""
    published: dict[str, float | None] = {
        "tps": entry.tps,
        "step_ms": entry.step_ms,
        "al": entry.acceptance_length,
        **{f"{stage}_ms": (entry.stages_ms or {}).get(stage) for stage in STAGES},
    }
    emulated: dict[str, float | None] = {
        "tps": guess.tps,
        "step_ms": guess.step_ms,
        "al": guess.acceptance_length,
        **{f"{stage}_ms": (guess.stages_ms or {}).get(stage) for stage in STAGES},
    }
    both = entry.tps is not None and guess.tps is not None
    al_known = entry.acceptance_length is not None and guess.acceptance_length is not None
    return RowCheck(
        run=entry.run,
        kind=entry.kind,
        group=group_of(entry.setting),
        description=entry.description,
        expected=_expected(entry),
        predicted=_predicted(entry, guess),
        published=published,
        emulated=emulated,
        tps_error=guess.tps / entry.tps - 1 if both and guess.tps and entry.tps else None,
        al_error=guess.acceptance_length - entry.acceptance_length
        if al_known and guess.acceptance_length and entry.acceptance_length
        else None,
    )


def _expected(entry: Row) -> str:
    if entry.kind == "memory_crash":
        return "out of memory"
    if entry.kind == "other_crash":
        return "refused" if entry.refused else "unknown"
    return "ran"


def _predicted(entry: Row, guess: Prediction) -> str:
    if entry.setting is None:
        return "unknown"
    if guess.failure is None:
        return "ran"
    return "out of memory" if guess.failure.startswith("out of memory") else "refused"


def quantile(values: Sequence[float], share: float) -> float | None:
    """Smallest value that at least `share` of the values do not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None


def totals(checks: Sequence[RowCheck]) -> dict[str, float | None]:
    """Errors over the measured rows (no crashes, code changes, traces), and how many crashes were foreseen."""
    counted = [check for check in checks if check.kind == "measured"]
    tps = [abs(check.tps_error) for check in counted if check.tps_error is not None]
    al = [abs(check.al_error) for check in counted if check.al_error is not None]
    found: dict[str, float | None] = {
        "rows": len(counted),
        "tps_median_error": statistics.median(tps) if tps else None,
        "tps_p90_error": quantile(tps, 0.9),
        "tps_max_error": max(tps, default=None),
        "al_median_error": statistics.median(al) if al else None,
        "al_max_error": max(al, default=None),
    }
    for name in ("step_ms", *(f"{stage}_ms" for stage in STAGES)):
        errors = [
            abs(emulated / published - 1)
            for check in counted
            if (published := check.published[name]) and (emulated := check.emulated[name]) is not None
        ]
        found[f"{name}_median_error"] = statistics.median(errors) if errors else None
    memory = [check for check in checks if check.expected == "out of memory"]
    found["memory_crashes"] = len(memory)
    found["memory_crashes_foreseen"] = sum(check.predicted == "out of memory" for check in memory)
    ran = [check for check in checks if check.expected == "ran"]
    found["ran"] = len(ran)
    found["ran_foreseen"] = sum(check.predicted == "ran" for check in ran)
    return found


AXES: tuple[tuple[str, str, Callable[[Setting], bool]], ...] = (
    ("budget", "budget", lambda s: s.target_feat_ctx == 128 and s.proposal_temp < 1e-3 and not s.batched),
    ("target_feat_ctx", "target_feat_ctx", lambda s: s.budget == 22 and s.proposal_temp < 1e-3 and not s.batched),
    ("proposal_temp", "proposal_temp", lambda s: s.budget == 32 and s.target_feat_ctx == 128 and not s.batched),
    ("budget with fast rollback", "budget", lambda s: s.rolls_back_fast and s.draft_gpu_layers == 6),
)


def _plain_default(setting: Setting) -> bool:
    """Nothing changed but window, budget and temperature (context and batch sizes do not matter to the rate)."""
    return group_of(setting) in ("default setting", "feature window", "budget", "proposal temperature", "fast rollback",
                                 "context and batch")  # fmt: skip


def orders(entries: Sequence[Row], guesses: Sequence[Prediction]) -> list[Order]:
    """For each axis: mean rates per value, and the pairs that published noise allows to tell apart."""
    scatter = relative_scatter(entries)
    found = []
    for axis, name, applies in AXES:
        table: dict[float, list[tuple[float, float]]] = {}
        for entry, guess in zip(entries, guesses, strict=True):
            setting = entry.setting
            if entry.kind != "measured" or setting is None or not entry.tps or guess.tps is None:
                continue
            same_length = entry.gen_tokens == 32 and not entry.end_to_end
            if same_length and _plain_default(setting) and applies(setting):
                table.setdefault(float(getattr(setting, name)), []).append((entry.tps, guess.tps))
        found.append(_order(axis, table, scatter))
    return found


def _order(axis: str, table: dict[float, list[tuple[float, float]]], scatter: float) -> Order:
    values = sorted(table)
    published = [statistics.fmean(tps for tps, _ in table[value]) for value in values]
    emulated = [statistics.fmean(tps for _, tps in table[value]) for value in values]
    pairs = agree = 0
    for first in range(len(values)):
        for second in range(first + 1, len(values)):
            a, b = published[first], published[second]
            error = scatter * math.sqrt(1 / len(table[values[first]]) + 1 / len(table[values[second]]))
            if abs(a - b) / ((a + b) / 2) > 2 * error:
                pairs += 1
                agree += (a < b) == (emulated[first] < emulated[second])
    return Order(axis=axis, values=values, published_tps=published, emulated_tps=emulated, pairs=pairs, agree=agree)


def relative_scatter(entries: Sequence[Row]) -> float:
    """Pooled relative standard deviation of rates within groups of identical settings; 0.03 where nothing repeats."""
    groups: dict[tuple[Setting, int | None], list[float]] = {}
    for entry in entries:
        if entry.kind == "measured" and entry.setting and entry.tps and not entry.end_to_end:
            groups.setdefault((entry.setting, entry.gen_tokens), []).append(entry.tps)
    squares = degrees = 0.0
    for values in groups.values():
        mean = statistics.fmean(values)
        squares += sum((value / mean - 1) ** 2 for value in values)
        degrees += len(values) - 1
    return math.sqrt(squares / degrees) if degrees else 0.03


def check(
    entries: Sequence[Row],
    card: Card | None = None,
    chosen: Dials | None = None,
    seeds: int = predict.SEEDS,
    *,
    with_references: bool = True,
) -> Report:
    """Compare rows with the shipped model, or with another card and other dials (for fits on part of the rows)."""
    own = chosen or dials.load("agent")

    def counts_of(setting: Setting, tokens: int) -> predict.Counts:
        return predict.cached_counts(setting, tokens, own, seeds)

    used = card or devices.load("rtx4090")
    guesses = [predict.row(entry, used, counts_of) for entry in entries]
    checks = [check_row(entry, guess) for entry, guess in zip(entries, guesses, strict=True)]
    return Report(
        rows=checks,
        totals=totals(checks),
        orders=orders(entries, guesses),
        dispersion=references.dispersion(entries, used, counts_of),
        references=references.all_references(used) if with_references else [],
    )


def check_file(path: str | Path | None = None, seeds: int = predict.SEEDS) -> Report:
    """The comparison for a file (None = the shipped one). Raises ConfigError for a file that cannot be used."""
    return check(rows.read(path), seeds=seeds)
