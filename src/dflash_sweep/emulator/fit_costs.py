"""The cost model's parameters from published runs, in closed form. Imports numpy and this package; never served from.

Least absolute deviations throughout, because single runs scatter with a heavy tail. What is fitted to which column is
in the docstring of each part.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_sweep.ddtree import effective_top_k
from dflash_sweep.emulator import costs
from dflash_sweep.emulator.rows import PROMPT_TOKENS, Row
from dflash_sweep.emulator.setting import Setting

PLAIN_SHORT_MS = 1000 / 46.3
"""Plain decoding at short context: HumanEval with the same model and card, by the same author."""

SHORT_CONTEXT_TOKENS = 300.0
"""Middle of a HumanEval answer: prompt and half the output."""

Tables = dict[str, Any]


def shipped_tables() -> Tables:
    """The tables of the shipped RTX 4090 file: what is not fitted here is taken from it."""
    text = resources.files("dflash_sweep.emulator").joinpath("devices", "rtx4090.toml").read_text("utf-8")
    return tomllib.loads(text)


def least_absolute(columns: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Coefficients that minimise Σ |value − Σ c·column|, by reweighted least squares."""
    matrix = np.array(columns, dtype=np.float64).T
    target = np.array(values, dtype=np.float64)
    weights = np.ones(len(target))
    solution: NDArray[np.floating[Any]] = np.zeros(matrix.shape[1])
    for _ in range(60):
        root = np.sqrt(weights)[:, None]
        solution = np.linalg.lstsq(matrix * root, target * root[:, 0], rcond=None)[0]
        weights = 1 / np.maximum(np.abs(target - matrix @ solution), 0.02 * float(np.median(np.abs(target))) + 1e-9)
    return [float(value) for value in solution]


@dataclass(frozen=True, slots=True)
class _Used:
    """A row with figures, its setting, and its stage times."""

    row: Row
    setting: Setting
    stages: dict[str, float]
    steps: int


def _used(entries: Sequence[Row]) -> list[_Used]:
    return [
        _Used(entry, entry.setting, entry.stages_ms, entry.steps)
        for entry in entries
        if entry.kind == "measured" and entry.setting and entry.stages_ms and entry.steps and entry.step_ms
    ]


def fit_costs(entries: Sequence[Row], tables: Tables | None = None) -> Tables:
    """Device tables with [plain], [pack], [draft.shared], [topk.shared], [tree], [rollback] and [noise] fitted to rows.

    A part for which the rows hold no information keeps its value.
    """
    fitted: Tables = {name: _copy(value) for name, value in (tables or shipped_tables()).items()}
    used = _used(entries)
    for part in (_fit_plain, _fit_pack, _fit_draft, _fit_topk, _fit_tree, _fit_snapshot, _fit_noise):
        part(used, fitted)
    return fitted


def _copy(value: Any) -> Any:
    return {name: _copy(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _fit_plain(used: list[_Used], fitted: Tables) -> None:
    """One committed token costs one plain decode: exact time over committed tokens."""
    each = [
        entry.stages["exact"] * entry.steps / entry.row.committed
        for entry in used
        if entry.stages.get("exact") and entry.row.committed
    ]
    slope = (statistics.median(each) - PLAIN_SHORT_MS) / (PROMPT_TOKENS - SHORT_CONTEXT_TOKENS) * 1000
    fitted["plain"] = {"base_ms": PLAIN_SHORT_MS - slope * SHORT_CONTEXT_TOKENS / 1000, "per_kctx_ms": slope}


def _fit_pack(used: list[_Used], fitted: Tables) -> None:
    """Packing is linear in the window; the first step packs the whole ring, so it shows as a share of 1 / steps."""
    windows = [float(entry.setting.target_feat_ctx) for entry in used]
    shares = [window / entry.steps for window, entry in zip(windows, used, strict=True)]
    steady, first = least_absolute([windows, shares], [entry.stages["pack"] for entry in used])
    fitted["pack"] = {"per_position_ms": steady, "first_step_per_position_ms": first}


def _fit_draft(used: list[_Used], fitted: Tables) -> None:
    full = [entry for entry in used if entry.setting.draft_gpu_layers >= costs.FULL_DRAFT_LAYERS]
    windows = [float(entry.setting.target_feat_ctx) for entry in full]
    base, slope = least_absolute([[1.0] * len(full), windows], [entry.stages["draft"] for entry in full])
    fitted["draft"]["shared"] |= {"base_ms": base, "per_position_ms": slope}
    for entry in used:
        layers = entry.setting.draft_gpu_layers
        if layers < costs.FULL_DRAFT_LAYERS:
            expected = base + slope * entry.setting.target_feat_ctx
            fitted["draft"]["shared"][f"layers_{layers}"] = entry.stages["draft"] / expected


def _wide(setting: Setting) -> float:
    return float(effective_top_k(setting.budget, setting.top_k, setting.block_size) > 1)


def _fit_topk(used: list[_Used], fitted: Tables) -> None:
    depths = [float(entry.setting.depths) for entry in used]
    wide = [_wide(entry.setting) for entry in used]
    if len(set(depths)) < 2 or len(set(wide)) < 2:
        return
    columns = [[1.0] * len(used), depths, wide]
    base, per_row, step = least_absolute(columns, [entry.stages["topk"] for entry in used])
    fitted["topk"]["shared"] = {"base_ms": base, "per_row_ms": per_row, "wide_ms": step}


def _fit_tree(used: list[_Used], fitted: Tables) -> None:
    """Batched trees at the runs' context; the law at short context comes from the author's reference points."""
    # A draft that runs partly on the CPU overlaps with the tree in another way: such rows say nothing about its cost.
    whole = [entry for entry in used if entry.setting.draft_gpu_layers >= costs.FULL_DRAFT_LAYERS]
    fast = [entry for entry in whole if entry.setting.rolls_back_fast]
    if len({entry.setting.budget for entry in fast}) < 3:
        return
    nodes = [float(entry.setting.budget + 1) for entry in fast]
    rest = fitted["rollback"]["fast_ms"]
    left = [
        (entry.row.step_ms or 0.0)
        - sum(entry.stages[stage] for stage in ("pack", "draft", "topk"))
        - rest
        - fitted["commit"]["per_token_ms"] * (entry.row.acceptance_length or 0.0)
        for entry in fast
    ]
    base, per_node = least_absolute([[1.0] * len(fast), nodes], left)
    tree, kctx = fitted["tree"], PROMPT_TOKENS / 1000
    tree["base_per_kctx_ms"] = (base - tree["base_ms"]) / kctx
    tree["node_per_kctx_ms"] = (per_node - tree["node_ms"]) / kctx


def _fit_snapshot(used: list[_Used], fitted: Tables) -> None:
    """What a snapshot step has over the stages that are known: the snapshot itself."""
    tree, kctx = fitted["tree"], PROMPT_TOKENS / 1000
    plain = fitted["plain"]["base_ms"] + fitted["plain"]["per_kctx_ms"] * kctx
    left = []
    for entry in used:
        if not entry.setting.batched or entry.setting.rolls_back_fast:
            continue
        per_node = tree["node_ms"] + tree["node_per_kctx_ms"] * kctx
        forward = tree["base_ms"] + tree["base_per_kctx_ms"] * kctx + per_node * (entry.setting.budget + 1)
        known = sum(entry.stages[stage] for stage in ("pack", "draft", "topk")) + forward
        known += (plain + fitted["commit"]["per_token_ms"]) * (entry.row.acceptance_length or 0.0)
        left.append((entry.row.step_ms or 0.0) - known)
    if left:
        fitted["rollback"]["snapshot_ms"] = statistics.fmean(left)


def _fit_noise(used: list[_Used], fitted: Tables) -> None:
    """Deviations of the draft stage over the most repeated setting: the launch noise as it was measured."""
    groups: dict[Setting, list[_Used]] = {}
    for entry in used:
        groups.setdefault(entry.setting, []).append(entry)
    most = max(groups.values(), key=len)
    if len(most) < 5:
        return
    times = sorted(entry.stages["draft"] + entry.stages["topk"] for entry in most)
    middle = statistics.median(times)
    fitted["noise"]["draft_deviations"] = [math.log(time / middle) for time in times]
    each = [
        entry.stages["exact"] * entry.steps / (entry.row.committed or 1) for entry in used if entry.stages.get("exact")
    ]
    deviation = statistics.median([abs(value / statistics.median(each) - 1) for value in each])
    fitted["noise"]["exact_sd"] = 1.4826 * deviation
