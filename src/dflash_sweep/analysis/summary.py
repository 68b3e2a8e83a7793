"""One row per setting: means, intervals, speed-up over plain decoding.

Imports `rows`, `likeness`, `intervals`, `noise`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dflash_sweep import metrics
from dflash_sweep.analysis.intervals import Interval, log_mean_interval, mean_interval, speedup
from dflash_sweep.analysis.likeness import hardest, settings_of
from dflash_sweep.analysis.noise import spreads
from dflash_sweep.analysis.rows import (
    beside,
    failed,
    fair_runs,
    is_missing,
    is_plain,
    knob_columns,
    knobs_of,
    numbers,
    setting_text,
    with_keys,
    within_study,
)
from dflash_sweep.frames import CLAIMED_PREFIX

CANDIDATE_COLUMNS: tuple[str, ...] = (
    "candidate", "label", "speculative", "setting_text", "n", "n_failed", "failures", "measurement", "build",
    "comparability_key", "devices", "decode_tps", "decode_tps_low", "decode_tps_high", "interval_method",
    "acceptance_length", "acceptance_length_low", "acceptance_length_high", "draft_acceptance_rate",
    "speedup", "speedup_low", "speedup_high", "speedup_n", "reference", "alike", "peak_memory_mib", "uids", "numbers",
    *metrics.STAGE_NAMES,
)  # fmt: skip
"""Columns besides `knob.<name>`. Stage columns are ms per verify step, pooled over the setting's runs."""

_SUMMED = ("accepted_draft_tokens", "draft_tokens", "verify_steps", *metrics.STAGE_NAMES)
"""Columns made numbers once for all settings: there may be thousands of settings."""


def candidate_table(
    trials: pd.DataFrame, column: str = "decode_tps", controls: pd.DataFrame | None = None
) -> pd.DataFrame:
    """One row per setting (and baseline) of each comparability key and build, fastest first.

    `decode_tps` (or whatever `column` names) is the geometric mean over runs; its interval uses the dispersion pooled
    over all repeats where that has more degrees of freedom than the setting's own runs; a single run has no interval.
    A confirmed setting is described by its confirm runs (see rows.fair_runs): `n` counts those.
    `speedup` is over the plain rows of the same comparability key and build, or over the setting's own `controls` (with
    keys; None = those among `trials`) where these are better; None without any. `reference` is the mean of the figures
    it is over, and `alike` False where plain decoding with the setting's own threads, caches and the like was not
    measured (see likeness). `failures` maps a failure kind to its count; runs that were stopped early are among them,
    but not in `n_failed`. A setting without any figure is kept with n = 0. `uids` and `numbers` lead to the rows.
    """
    knobs = knob_columns(trials)
    everything, trials = trials, within_study(trials)
    if trials.empty:
        return pd.DataFrame(columns=[*CANDIDATE_COLUMNS, *knobs])
    if controls is None:
        controls = beside(everything)
    keyed = with_keys(trials)
    keyed = keyed.assign(**{name: numbers(keyed, name) for name in _SUMMED})
    speculative_spread, plain_spread = spreads(trials, column)
    plains = _Plains(keyed, controls, column)
    table = []
    for _, group in keyed.groupby("setting", sort=False):
        plain = bool(is_plain(group).iloc[0])
        values = _good(group if plain or len(group) == 1 else fair_runs(group), column)
        spread = plain_spread if plain else speculative_spread
        interval = log_mean_interval(values.tolist(), spread) if len(values) else None
        reference, alike = (None, None) if plain else plains.reference(group)
        gain = None
        if reference and len(values):
            gain = speedup(values.tolist(), reference, spread, plain_spread)
        typical = log_mean_interval(reference).value if reference else None
        compared = {"reference": typical, "alike": alike if reference else None}
        table.append({**_row(group, values, interval, gain, knobs), **compared})
    frame = pd.DataFrame(table, columns=[*CANDIDATE_COLUMNS, *knobs])
    for name in (*knobs, "failures", "uids", "numbers", "devices", "candidate", "alike"):
        frame[name] = pd.Series([row[name] for row in table], dtype=object, index=frame.index)
    return frame.sort_values("decode_tps", ascending=False, na_position="last", kind="stable").reset_index(drop=True)


def _good(group: pd.DataFrame, column: str) -> pd.Series:
    values = numbers(group, column)
    return values[(values > 0) & group["failure_kind"].isna()]


class _Plains:
    """What settings are compared with, looked up once for each stratum and its plain settings."""

    def __init__(self, keyed: pd.DataFrame, controls: pd.DataFrame, column: str) -> None:
        self._column, self._found = column, dict[tuple[str, str | None], tuple[list[float] | None, bool]]()
        metric = metrics.METRIC.get(column.removeprefix(CLAIMED_PREFIX))
        self._larger_is_better = metric is None or metric.direction != "minimize"
        plain = pd.concat([keyed[is_plain(keyed)], controls]) if len(controls) else keyed[is_plain(keyed)]
        self._plain = plain.loc[_good(plain, column).index]
        self._strata = {str(name): rows for name, rows in self._plain.groupby("stratum", sort=False)}

    def reference(self, group: pd.DataFrame) -> tuple[list[float] | None, bool]:
        """Figures of the plain decoding that this setting has to beat, and whether that may be compared with it."""
        key = str(group["stratum"].iloc[0]), settings_of(group)
        if key not in self._found:
            self._found[key] = self._look_up(*key)
        return self._found[key]

    def _look_up(self, stratum: str, settings: str | None) -> tuple[list[float] | None, bool]:
        plain = self._strata.get(stratum)
        if plain is None:
            return None, False
        figures = numbers(plain, self._column)
        found = hardest(plain, settings, figures, larger_is_better=self._larger_is_better)
        return figures.loc[found.rows.index].tolist(), found.alike


def _row(
    group: pd.DataFrame, values: pd.Series, interval: Interval | None, gain: Interval | None, knobs: tuple[str, ...]
) -> dict[str, Any]:
    good = group.loc[values.index]
    first = group.iloc[0]
    accepted = numbers(good, "acceptance_length").dropna()
    acceptance = mean_interval(accepted.tolist()) if len(accepted) else None
    named = group["candidate"].dropna()
    kinds = group["failure_kind"].dropna().map(str).value_counts()
    return {
        "candidate": int(named.iloc[0]) if len(named) else None,
        "label": _first_text(group["label"]),
        "speculative": not bool(is_plain(group).iloc[0]),
        "setting_text": setting_text(knobs_of(first)) if not bool(is_plain(group).iloc[0]) else "plain decoding",
        "n": len(values),
        "n_failed": int(failed(group).sum()),
        "failures": {str(kind): int(count) for kind, count in kinds.items()},
        "measurement": first.get("measurement"),
        "build": first.get("build"),
        "comparability_key": first.get("comparability_key"),
        "devices": tuple(sorted(group["device"].dropna().map(str).unique())),
        **_ends("decode_tps", interval),
        "interval_method": interval.method if interval else None,
        **_ends("acceptance_length", acceptance),
        "draft_acceptance_rate": _pooled(good, "accepted_draft_tokens", "draft_tokens"),
        **_ends("speedup", gain),
        "speedup_n": gain.n if gain else None,
        "peak_memory_mib": _mean(good, "peak_memory_mib"),
        "uids": tuple(group["uid"]),
        "numbers": tuple(group["number"]),
        **{stage: _per_step(good, stage) for stage in metrics.STAGE_NAMES},
        **{knob: None if is_missing(first[knob]) else first[knob] for knob in knobs},
    }


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _first_text(column: pd.Series) -> str | None:
    texts = column.dropna()
    return str(texts.iloc[0]) if len(texts) else None


def _mean(rows: pd.DataFrame, column: str) -> float | None:
    values = numbers(rows, column).dropna()
    return float(values.mean()) if len(values) else None


def _pooled(rows: pd.DataFrame, numerator: str, denominator: str) -> float | None:
    above, below = rows[numerator].to_numpy(), rows[denominator].to_numpy()
    both = ~(np.isnan(above) | np.isnan(below))
    return metrics.ratio(float(above[both].sum()), float(below[both].sum())) if both.any() else None


def _per_step(rows: pd.DataFrame, stage: str) -> float | None:
    """Stage time per verify step, weighted by each run's steps."""
    times_ms, steps = rows[stage].to_numpy(), rows["verify_steps"].to_numpy()
    both = ~(np.isnan(times_ms) | np.isnan(steps))
    if not both.any():
        return None
    return metrics.ratio(float((times_ms[both] * steps[both]).sum()), float(steps[both].sum()))
