"""Fits cost model and agent dials to published runs: `python -m dflash_sweep.emulator.fit [--half odd|even] [--write]`.

Imports numpy, scipy and this package; never imported by the serving process. Costs have closed forms (least absolute
deviations, because single runs scatter with a heavy tail); the dials are found by a simplex search over the rows'
errors, with the algorithm really run for every trial value.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_sweep.ddtree import BLOCK_SIZE, effective_top_k
from dflash_sweep.emulator import costs, devices, dials, predict, rows
from dflash_sweep.emulator.devices import Card
from dflash_sweep.emulator.dials import Dials
from dflash_sweep.emulator.predict import Counts
from dflash_sweep.emulator.rows import PROMPT_TOKENS, Row
from dflash_sweep.emulator.setting import Setting

PLAIN_SHORT_MS = 1000 / 46.3
"""Plain decoding at short context: HumanEval with the same model and card, by the same author."""

SHORT_CONTEXT_TOKENS = 300.0
"""Middle of a HumanEval answer: prompt and half the output."""

LARGE_ERROR = 0.06
FITTED_DIALS = (
    "steepness",
    "spread",
    "decay",
    "decay_power",
    "calibration",
    "ties",
    "branch_loss",
    "window_loss",
    "window_scale",
)

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
    fast = [entry for entry in used if entry.setting.rolls_back_fast]
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


# ---------------------------------------------------------------- dials


def fit_dials(
    entries: Sequence[Row], card: Card, start: Dials, seeds: int = 60, evaluations: int = 150
) -> tuple[Dials, float]:
    """Dials with the least mean error of the rows' TPS and acceptance, and that error."""
    from scipy.optimize import minimize

    used = [entry for entry in entries if entry.kind == "measured" and entry.tps and _plain_tree(entry)]

    def loss(values: NDArray[np.float64]) -> float:
        if not _allowed(values):
            return 10.0
        return row_error(used, card, _with(start, values), seeds)

    first = np.array([getattr(start, name) for name in FITTED_DIALS])
    simplex = np.vstack([first, *(first * np.where(np.arange(len(first)) == i, 1.2, 1.0) for i in range(len(first)))])
    found = minimize(
        loss,
        first,
        method="Nelder-Mead",
        options={"maxfev": evaluations, "initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-5},
    )
    chosen = _with(start, found.x)
    chosen = replace(chosen, batched_loss=_fit_loss(entries, chosen, "batched_loss", lambda setting: setting.batched))
    other = _fit_loss(entries, chosen, "block_loss", lambda setting: setting.block_size != BLOCK_SIZE)
    return replace(chosen, block_loss=other), float(found.fun)


def _plain_tree(entry: Row) -> bool:
    """Whether a row says something about the draft as it was trained and verified one by one."""
    return entry.setting is not None and not entry.setting.batched and entry.setting.block_size == BLOCK_SIZE


def _fit_loss(entries: Sequence[Row], chosen: Dials, name: str, applies: Callable[[Setting], bool]) -> float:
    """The loss with which the rows it applies to get their mean acceptance, by bisection; kept if there are none."""
    used = [entry for entry in entries if entry.kind == "measured" and entry.setting and applies(entry.setting)]
    if not used:
        return float(getattr(chosen, name))
    wanted = statistics.fmean(entry.acceptance_length or 1.0 for entry in used)
    low, high = 0.0, 2.0
    for _ in range(8):
        middle = (low + high) / 2
        changed: dict[str, Any] = {name: middle}
        trial = replace(chosen, **changed)
        lengths = [
            predict.counts(entry.setting, entry.gen_tokens or 32, trial, seeds=100).acceptance_length
            for entry in used
            if entry.setting is not None
        ]
        low, high = (middle, high) if statistics.fmean(lengths) > wanted else (low, middle)
    return (low + high) / 2


def _allowed(values: NDArray[np.float64]) -> bool:
    limits = ((0.3, 8), (0, 4), (0, 2), (0.1, 2), (0.4, 1.6), (0.01, 1), (0.01, 1), (0, 4), (5, 300))
    return all(low <= value <= high for value, (low, high) in zip(values, limits, strict=True))


def _with(start: Dials, values: NDArray[np.float64]) -> Dials:
    changed: dict[str, Any] = {name: float(value) for name, value in zip(FITTED_DIALS, values, strict=True)}
    return replace(start, **changed)


def row_error(entries: Sequence[Row], card: Card, chosen: Dials, seeds: int) -> float:
    """Mean over rows of |relative TPS error| and |relative error of AL|; TPS errors above 6 % count five times."""
    remembered: dict[tuple[Setting, int], Counts] = {}

    def counts_of(setting: Setting, tokens: int) -> Counts:
        # Rounding differences re-draw luck; in a mean over prompts they are noise, so one set of draws serves all. Far
        # above the window's scale its effect is nil.
        window = min(setting.target_feat_ctx, 256)
        alike = replace(setting, cache_type_k="q4_0", cache_type_v="q4_0", n_ctx=65536, n_ubatch=512, n_batch=512)
        key = (replace(alike, profile=False, draft_gpu_layers=6, target_feat_ctx=window), tokens)
        if key not in remembered:
            remembered[key] = predict.counts(key[0], tokens, chosen, seeds)
        return remembered[key]

    total = 0.0
    for entry in entries:
        guess = predict.row(entry, card, counts_of)
        if guess.tps is None or guess.acceptance_length is None or not entry.tps or not entry.acceptance_length:
            continue
        error = abs(guess.tps / entry.tps - 1)
        total += error + abs(guess.acceptance_length / entry.acceptance_length - 1) + 4 * max(error - LARGE_ERROR, 0.0)
    return total / (2 * len(entries))


# ---------------------------------------------------------------- halves, files


def half(entries: Sequence[Row], which: str) -> tuple[Row, ...]:
    """Rows with odd or even run numbers."""
    return tuple(entry for entry in entries if entry.run % 2 == (1 if which == "odd" else 0))


def half_split(
    entries: Sequence[Row], which: str, seeds: int = 50, evaluations: int = 80, check_seeds: int = 150
) -> dict[str, float]:
    """Fit on the odd or even runs, from a start that knows nothing of them; errors on both halves, by name."""
    from dflash_sweep.emulator import check

    own, other = half(entries, which), half(entries, "even" if which == "odd" else "odd")
    card = devices.card_from("rtx4090", fit_costs(own))
    chosen = fit_dials(own, card, NEUTRAL, seeds, evaluations)[0]
    found: dict[str, float] = {}
    for name, part in (("fitted", own), ("held_out", other)):
        totals = check.check(part, card, chosen, check_seeds, with_references=False).totals
        found |= {f"{name}_{key}": value for key, value in totals.items() if value is not None}
    return found | {name: float(getattr(chosen, name)) for name in (*FITTED_DIALS, "batched_loss", "block_loss")}


NEUTRAL = Dials(
    name="agent",
    steepness=2.0,
    spread=1.0,
    decay=0.2,
    decay_power=0.6,
    calibration=1.0,
    ties=0.2,
    branch_loss=0.3,
    window_loss=0.5,
    window_scale=30.0,
)
"""Where a fit begins when the shipped values must not help."""


def rewrite(text: str, table: str, values: dict[str, Any]) -> str:
    """A TOML text with the numbers of one table replaced, comments and everything else kept."""
    header = f"\n[{table}]\n"
    start = text.index(header) + len(header)
    end = next((match.start() for match in re.finditer(r"^\[", text[start:], re.M)), len(text) - start) + start
    body = text[start:end]
    for name, value in values.items():
        shown = _shown(value)
        pattern = re.compile(rf"^{name} = .*$", re.M)
        body = (
            pattern.sub(f"{name} = {shown}", body) if pattern.search(body) else f"{body.rstrip()}\n{name} = {shown}\n\n"
        )
    return text[:start] + body + text[end:]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(f"{entry:.4f}" for entry in value) + "]"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


_WRITTEN: tuple[tuple[str, Callable[[Tables], dict[str, Any]]], ...] = (
    ("plain", lambda tables: tables["plain"]),
    ("pack", lambda tables: tables["pack"]),
    ("draft.shared", lambda tables: tables["draft"]["shared"]),
    ("topk.shared", lambda tables: tables["topk"]["shared"]),
    ("tree", lambda tables: tables["tree"]),
    ("rollback", lambda tables: tables["rollback"]),
    ("noise", lambda tables: tables["noise"]),
)


def write(folder: Path, tables: Tables, chosen: Dials) -> None:
    """Put fitted numbers into devices/rtx4090.toml and workloads.toml under `folder`."""
    device = folder / "devices" / "rtx4090.toml"
    text = device.read_text("utf-8")
    for name, pick in _WRITTEN:
        text = rewrite(text, name, {key: value for key, value in pick(tables).items() if not isinstance(value, dict)})
    device.write_text(text, "utf-8")
    workloads = folder / "workloads.toml"
    values = {name: getattr(chosen, name) for name in (*FITTED_DIALS, "batched_loss", "block_loss")}
    workloads.write_text(rewrite(workloads.read_text("utf-8"), "agent", values), "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Fit and show; with --write change the data files beside this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a CSV with the shipped file's columns (default: the shipped file)")
    parser.add_argument("--half", choices=("odd", "even"), help="fit to these runs only, from a neutral start")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--evaluations", type=int, default=150)
    parser.add_argument("--write", action="store_true", help="change the data files")
    options = parser.parse_args(argv)
    entries = rows.read(options.data)
    if options.half:
        for name, value in half_split(entries, options.half, options.seeds, options.evaluations).items():
            _print(f"{name} = {value:.5g}")
        return 0
    tables = fit_costs(entries)
    card = devices.card_from("rtx4090", tables)
    chosen, error = fit_dials(entries, card, dials.load("agent"), options.seeds, options.evaluations)
    _print(f"mean error of rows: {error:.4f}")
    for name in FITTED_DIALS:
        _print(f"{name} = {getattr(chosen, name):.5g}")
    if options.write:
        write(Path(__file__).parent, tables, chosen)
    return 0


def _print(text: str) -> None:
    import sys

    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
