"""What every page and figure is made of: the rows of one study, its candidates in order, and its conclusions.

Imports `records`, `metrics`, `frames` and `analysis`; draws nothing and writes nothing. Rows of another kind of
measurement than the study's, and rows that may not be ranked with the most (another comparability key or build), stay
in the tables but enter no candidate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from dflash_sweep import arms, frames, metrics
from dflash_sweep.analysis import eligibility, rows
from dflash_sweep.analysis.arm_effects import ArmEffect, arm_effects
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.intervals import mean_interval
from dflash_sweep.analysis.likeness import settings_of
from dflash_sweep.analysis.summary import candidate_table
from dflash_sweep.analysis.verdicts import judge
from dflash_sweep.records import AxisInfo, Knobs, KnobValue, Measurement, StoredTrial, StudyInfo, Verdict
from dflash_sweep.report.candidate import Candidate


def known(value: Any) -> float | None:
    """A number of a table's cell, or None where the cell is empty (None, NaN) or not finite."""
    if value is None or isinstance(value, str) or pd.isna(value):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def mean_of(values: Iterable[Any]) -> float | None:
    """Mean of the known values; None if there are none."""
    numbers = [number for value in values if (number := known(value)) is not None]
    return float(np.mean(numbers)) if numbers else None


def spread(samples: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's t interval (95 %) of the mean; (None, None) below two samples."""
    if len(samples) < 2:
        return None, None
    found = mean_interval(samples)
    return found.low, found.high


@dataclass(frozen=True, kw_only=True)
class Material:
    """The input of every page and figure. `trials` and `turns` hold all rows of the study (see `frames`)."""

    study: StudyInfo
    stored: tuple[StoredTrial, ...]
    trials: pd.DataFrame
    turns: pd.DataFrame
    verdicts: tuple[Verdict, ...]

    @cached_property
    def column(self) -> str:
        """The column of the objective: its own, or what the author of imported rows states (see `analysis.rows`)."""
        own = rows.own_measurement(self.trials, str(self.study.measurement))
        return rows.objective_column(own, self.study.objective)

    @cached_property
    def metric(self) -> metrics.MetricDef:
        """The metric in that column."""
        return metrics.METRIC.get(self.column.removeprefix(frames.CLAIMED_PREFIX), metrics.METRIC["decode_tps"])

    def axis_label(self, texts: Callable[[str], str]) -> str:
        """The objective's name for an axis."""
        return texts(f"axis.{self.metric.name}")

    @property
    def larger_is_better(self) -> bool:
        return self.metric.direction != "minimize"

    @cached_property
    def own(self) -> pd.DataFrame:
        """Rows of the study's own kind of measurement, with the objective in column `value` (NaN = none)."""
        own = rows.own_measurement(self.trials, str(self.study.measurement))
        value = rows.numbers(own, self.column)
        return own.assign(value=value.where((value > 0) & own["failure_kind"].isna()))

    @cached_property
    def confirmed(self) -> pd.DataFrame:
        """The rows of `own`, and plain decoding with finalists' own settings (role control)."""
        beside = self.trials[self.trials["role"].map(str) == "control"]
        return pd.concat([self.own, beside]) if len(beside) else self.own

    def control(self, knobs: Knobs) -> Candidate:
        """Plain decoding with these settings, over its good runs beside the finalists."""
        beside = self.trials[(self.trials["role"].map(str) == "control") & self.trials["failure_kind"].isna()]
        same = beside[[rows.knobs_of(row) == knobs for _, row in beside.iterrows()]].assign(role="confirm")
        table = candidate_table(same, self.column)
        return self._candidate(table.iloc[0], table.iloc[0], same.assign(value=rows.numbers(same, self.column)))

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """Good rows that may be compared with each other (see `analysis.rows.main_stratum`), with column `value`."""
        return rows.main_stratum(self.own, self.column)

    @cached_property
    def _controls(self) -> pd.DataFrame:
        """Plain decoding with finalists' own settings, with keys."""
        controls = rows.beside(self.trials)
        return controls[controls["measurement"].map(str) == str(self.study.measurement)] if len(controls) else controls

    @cached_property
    def _places(self) -> dict[str, Any]:
        """Label of each ranked row by uid: a look through all rows for each of thousands of settings takes minutes."""
        return {str(uid): place for place, uid in self.ranked["uid"].items()}

    @cached_property
    def first_tokens_ms(self) -> dict[str, list[float]]:
        """Times to the first token of each run's counted turns, by uid."""
        turns = self.turns
        if turns.empty:
            return {}
        counted = turns[turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool) & turns["ttft_ms"].notna()]
        return {str(uid): times.tolist() for uid, times in counted.groupby("uid", sort=False)["ttft_ms"]}

    def runs(self, uids: Iterable[str]) -> pd.DataFrame:
        """Those of the ranked rows that are these runs."""
        return self.ranked.loc[[self._places[uid] for uid in uids if uid in self._places]]

    @cached_property
    def _failed(self) -> dict[int, int]:
        """Failed runs by candidate."""
        failed = self.own[rows.failed(self.own)]["candidate"].dropna()
        return dict(Counter(int(number) for number in failed))

    @cached_property
    def everyone(self) -> tuple[Candidate, ...]:
        """Every comparable setting with at least one good run, plain decoding included, the best first."""
        table = candidate_table(self.ranked, self.column, self._controls)
        found = [
            self._candidate(row, decode)
            for (_, row), (_, decode) in zip(table.iterrows(), self._decode_table(table).iterrows(), strict=True)
            if row["n"]
        ]
        sign = -1.0 if self.larger_is_better else 1.0
        return tuple(sorted(found, key=lambda entry: sign * (entry.value or 0.0)))

    def _decode_table(self, table: pd.DataFrame) -> pd.DataFrame:
        """The decode rates of the same settings, row by row."""
        column = rows.objective_column(self.ranked, "decode_tps")
        if column == self.column or table.empty:
            return table
        decode = candidate_table(self.ranked, column, self._controls)
        by_uids = {row["uids"]: row for _, row in decode.iterrows()}
        return pd.DataFrame([by_uids[uids] for uids in table["uids"]], index=table.index)

    def _candidate(self, row: pd.Series, decode: pd.Series, source: pd.DataFrame | None = None) -> Candidate:
        every = self.runs(row["uids"]) if source is None else source[source["uid"].isin(row["uids"])]
        every = every.sort_values("number")
        good = rows.fair_runs(every) if row["speculative"] else every
        number = None if row["candidate"] is None else int(row["candidate"])
        knobs = {
            str(name).removeprefix(frames.KNOB_PREFIX): row[name]
            for name in row.index
            if str(name).startswith(frames.KNOB_PREFIX) and row[name] is not None
        }
        stages = {name: value for name in metrics.SUMMED_STAGES if (value := known(row[name])) is not None}
        return Candidate(
            number=number, label=row["label"], speculative=bool(row["speculative"]), knobs=knobs,
            repeats=tuple(float(value) for value in every["value"]),
            samples=tuple(float(value) for value in good["value"]),
            numbers=tuple(int(value) for value in good["number"]),
            uids=tuple(good["uid"]), n_failed=0 if number is None else self._failed.get(number, 0),
            value=known(row["decode_tps"]), low=known(row["decode_tps_low"]), high=known(row["decode_tps_high"]),
            speedup=known(row["speedup"]), speedup_low=known(row["speedup_low"]),
            speedup_high=known(row["speedup_high"]), unlike=self._unlike(row),
            plain_ms=metrics.ratio(1000.0, known(decode["reference"])), tps=known(decode["decode_tps"]),
            tps_low=known(decode["decode_tps_low"]), tps_high=known(decode["decode_tps_high"]),
            acceptance_length=known(row["acceptance_length"]), step_ms=known(row["step_ms"]),
            peak_memory_mib=known(row["peak_memory_mib"]), stages=stages,
            confirmed=number is not None and number == self.study.confirmed_candidate,
        )  # fmt: skip

    def _unlike(self, row: pd.Series) -> bool:
        gain = known(row["speedup"])
        better = gain is not None and (gain > 1) == self.larger_is_better and gain != 1
        return better and row["alike"] is not None and not row["alike"]

    @cached_property
    def baseline(self) -> Candidate | None:
        """Plain decoding, over all its good runs; None if it was never measured."""
        return next((entry for entry in self.everyone if not entry.speculative), None)

    @cached_property
    def plain_settings(self) -> str:
        """What the baseline reads of its settings, in words; "" = not known."""
        return settings_of(self.ranked[rows.is_plain(self.ranked)]) or ""

    @cached_property
    def plain_ms(self) -> float | None:
        """Plain decoding's milliseconds per token; None without a baseline."""
        return None if self.baseline is None else self.baseline.ms_per_token

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Speculative candidates with at least one good run, the fastest first."""
        return tuple(entry for entry in self.everyone if entry.speculative)

    @cached_property
    def barred(self) -> dict[int, str]:
        """Candidate → the constraint that it does not keep, in words; they cannot win."""
        return eligibility.ineligible(self.own, self.turns, eligibility.limits_of(self.study))

    @cached_property
    def eligible(self) -> tuple[Candidate, ...]:
        """The candidates that keep every constraint, the fastest first."""
        return tuple(entry for entry in self.candidates if entry.number not in self.barred)

    @cached_property
    def finalists(self) -> tuple[Candidate, ...]:
        """The candidates that were measured again in confirm blocks, the fastest first."""
        again = self.own[(self.own["role"].map(str) == "confirm") & self.own["speculative"].astype(bool)]
        numbers = set(again["candidate"].dropna())
        return tuple(entry for entry in self.candidates if entry.number in numbers)

    @cached_property
    def winner(self) -> Candidate | None:
        """The confirmed candidate; None if the study names none."""
        return next((entry for entry in self.candidates if entry.confirmed), None)

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """Knobs that take more than one value among all candidates."""
        return self.differing(self.candidates)

    def differing(self, entries: Iterable[Candidate]) -> tuple[str, ...]:
        """Knobs that take more than one value among these settings, the study's axes first, in their order."""
        knobs = [entry.knobs for entry in entries if entry.speculative]
        seen: dict[str, set[KnobValue]] = {
            name: {own.get(name) for own in knobs} for name in sorted({name for own in knobs for name in own})
        }
        order = [axis.name for axis in self.study.axes]
        varied = [name for name, values in seen.items() if len(values) > 1]
        return tuple(sorted(varied, key=lambda name: (order.index(name) if name in order else len(order), name)))

    def shared(self, entries: Iterable[Candidate]) -> Knobs:
        """What these settings have in common: said once, it need not stand in their labels."""
        own = [entry for entry in entries if entry.speculative]
        differing = self.differing(own)
        return {name: value for name, value in own[0].knobs.items() if name not in differing} if own else {}

    def name(self, entry: Candidate, texts: Callable[..., str]) -> str:
        """What a setting is called: its number; of imported rows the name of its first run, with how many more."""
        if not entry.speculative:
            return texts("plain")
        if entry.label and self.study.measurement is Measurement.IMPORTED:
            return texts("and_more", name=entry.label, count=entry.n - 1) if entry.n > 1 else entry.label
        return texts("setting") if entry.number is None else texts("candidate", number=entry.number)

    @cached_property
    def row_names(self) -> dict[int, str]:
        """What a trial is called by its number: imported rows by their author's name for them."""
        return {
            trial.number: trial.label
            if trial.label and trial.result.measurement is Measurement.IMPORTED
            else str(trial.number)
            for trial in self.stored
        }

    def worker_names(self, texts: Callable[..., str]) -> dict[str, str]:
        """Workers by number in the order of their first trial: their own names hold the names of machines."""
        known = dict.fromkeys(trial.result.worker for trial in self.stored if trial.result.worker)
        return {worker: texts("worker", number=place) for place, worker in enumerate(known, 1)}

    @cached_property
    def arm_effects(self) -> tuple[ArmEffect, ...]:
        """What tools and grammar cost, where the replay had arms; () where it had one."""
        if self.turns.empty or not self.turns["invalid_reason"].map(arms.is_other).any():
            return ()
        return arm_effects(gather(self.trials, self.turns, self.study))

    def axis(self, name: str) -> AxisInfo | None:
        """The study's axis of that name; None if it is not one."""
        return next((axis for axis in self.study.axes if axis.name == name), None)

    def verdict(self, verdict_id: str, subject: str | None = None) -> Verdict | None:
        """The first conclusion with that id (and subject); None if there is none."""
        return next(
            (entry for entry in self.verdicts if entry.id == verdict_id and subject in (None, entry.subject)), None
        )


def collect(study: StudyInfo, trials: Sequence[StoredTrial], verdicts: Sequence[Verdict] | None = None) -> Material:
    """Rows and conclusions of a study, ready for pages and figures; rows in the order of their numbers.

    `verdicts` None = the rows are judged here.
    """
    stored = tuple(sorted(trials, key=lambda trial: trial.number))
    trial_table, turn_table = frames.trial_frame(stored), frames.turn_frame(stored)
    if verdicts is None:
        verdicts = judge(trial_table, turn_table, study)
    return Material(study=study, stored=stored, trials=trial_table, turns=turn_table, verdicts=tuple(verdicts))
