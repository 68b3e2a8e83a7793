"""Fits cost model and agent dials to published runs: `python -m dflash_sweep.emulator.fit [--half odd|even] [--write]`.

Imports numpy, scipy and this package; never imported by the serving process. The costs have closed forms (`fit_costs`);
the dials are found by a simplex search over the errors of the rows' acceptance lengths, with the algorithm really run
for every trial value. Times do not enter there: their scatter, with single launches 15 % off, says nothing of a draft.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_sweep.ddtree import BLOCK_SIZE
from dflash_sweep.emulator import devices, dials, predict, rows
from dflash_sweep.emulator.dials import Dials
from dflash_sweep.emulator.fit_costs import Tables, fit_costs
from dflash_sweep.emulator.predict import Counts
from dflash_sweep.emulator.rows import Row
from dflash_sweep.emulator.setting import Setting

LARGE_ERROR = 0.1
"""An error of this size counts twice. Absolute errors alone let a fit leave single settings far off."""

FITTED_DIALS = ("steepness", "calibration", "ties", "branch_loss", "window_loss", "window_scale")
"""What the runs can tell: how sure the draft is and how sure it says it is, how often siblings are near, what a branch
and a small window lose. They hardly tell spread, decay, correlation and tie_power from these: those stay round."""


def fit_dials(entries: Sequence[Row], start: Dials, seeds: int = 80, evaluations: int = 130) -> tuple[Dials, float]:
    """Dials with the least error of the rows' acceptance lengths (`row_error`), and that error."""
    from scipy.optimize import minimize

    used = [entry for entry in entries if entry.kind == "measured" and entry.tps and _plain_tree(entry)]

    def loss(values: NDArray[np.float64]) -> float:
        if not _allowed(values):
            return 10.0
        return row_error(used, _with(start, values), seeds)

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
    limits = ((1, 8), (0.4, 2.5), (0.01, 1), (0, 1), (0, 4), (5, 300))
    return all(low <= value <= high for value, (low, high) in zip(values, limits, strict=True))


def _with(start: Dials, values: NDArray[np.float64]) -> Dials:
    changed: dict[str, Any] = {name: float(value) for name, value in zip(FITTED_DIALS, values, strict=True)}
    return replace(start, **changed)


def row_error(entries: Sequence[Row], chosen: Dials, seeds: int) -> float:
    """Mean over rows of e + e² / LARGE_ERROR, with e the absolute relative error of the acceptance length."""
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

    errors = [
        abs(counts_of(entry.setting, entry.gen_tokens).acceptance_length / entry.acceptance_length - 1)
        for entry in entries
        if entry.setting and entry.gen_tokens and entry.acceptance_length
    ]
    return statistics.fmean(error + error**2 / LARGE_ERROR for error in errors)


# ---------------------------------------------------------------- halves, files


def half(entries: Sequence[Row], which: str) -> tuple[Row, ...]:
    """Rows with odd or even run numbers."""
    return tuple(entry for entry in entries if entry.run % 2 == (1 if which == "odd" else 0))


def half_split(
    entries: Sequence[Row], which: str, seeds: int = 80, evaluations: int = 130, check_seeds: int = 150
) -> dict[str, float]:
    """Fit on the odd or even runs, from round numbers; errors on both halves, by name."""
    from dflash_sweep.emulator import check

    own, other = half(entries, which), half(entries, "even" if which == "odd" else "odd")
    card = devices.card_from("rtx4090", fit_costs(own))
    chosen = fit_dials(own, NEUTRAL, seeds, evaluations)[0]
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
    decay_power=0.5,
    correlation=0.5,
    calibration=1.3,
    ties=0.6,
    tie_power=3.0,
    branch_loss=0.1,
    window_loss=0.5,
    window_scale=30.0,
)
"""Where a fit begins when the shipped values must not help. What is not fitted stays as it is here."""


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
    parser.add_argument("--seeds", type=int, default=80)
    parser.add_argument("--evaluations", type=int, default=130)
    parser.add_argument("--write", action="store_true", help="change the data files")
    options = parser.parse_args(argv)
    entries = rows.read(options.data)
    if options.half:
        for name, value in half_split(entries, options.half, options.seeds, options.evaluations).items():
            _print(f"{name} = {value:.5g}")
        return 0
    tables = fit_costs(entries)
    chosen, error = fit_dials(entries, dials.load("agent"), options.seeds, options.evaluations)
    _print(f"error of acceptance lengths: {error:.4f}")
    for name in FITTED_DIALS:
        _print(f"{name} = {getattr(chosen, name):.5g}")
    if options.write:
        write(Path(__file__).parent, tables, chosen)
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
