"""Foreign rows → stored trials and a study, marked as imported. Imports the package's readers, `records`, `errors`."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dflash_sweep.errors import FailureKind
from dflash_sweep.importing import figures, outcomes, parameters
from dflash_sweep.importing.aliases import Aliases
from dflash_sweep.importing.companion import Context
from dflash_sweep.importing.parameters import Parameters
from dflash_sweep.importing.rawlog import RawLog, RawRow
from dflash_sweep.importing.vocabulary import PLAIN_NOTE
from dflash_sweep.records import (
    Device,
    Exchange,
    Failure,
    Knobs,
    KnobValue,
    Measurement,
    Role,
    StoredTrial,
    TrialResult,
    TurnCounters,
    TurnRecord,
)

AS_PUBLISHED = "as published"
"""Build of imported rows that do not say that the source was changed."""

_PLAIN_NOTE = re.compile(PLAIN_NOTE, re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A raw row with its parameters and outcome."""

    raw: RawRow
    parameters: Parameters
    failure: Failure | None
    counters: TurnCounters | None


@dataclass(slots=True, kw_only=True)
class Converter:
    """Turns a log's rows into trials one after another; numbers candidates and repeats on the way."""

    log: RawLog
    study: str
    aliases: Aliases
    context: Context | None
    trials: list[StoredTrial] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _candidates: dict[str, int] = field(default_factory=dict)
    _repeats: Counter[int] = field(default_factory=Counter)

    def run(self) -> tuple[StoredTrial, ...]:
        """All trials, in the log's order; remarks about plain decoding follow the row that holds them."""
        for raw in self.log.rows:
            row = Row(
                raw=raw,
                parameters=parameters.of_row(raw, self.aliases),
                failure=outcomes.failure(raw),
                counters=figures.counters(raw, self.log.segments[raw.segment]),
            )
            self.rows.append(row)
            self.trials.append(self._trial(row))
            remark = _PLAIN_NOTE.search(raw.description)
            if remark and row.parameters.speculative:
                self._plain_remark(row, float(remark.group(1) or remark.group(2)))
        return tuple(self.trials)

    def _trial(self, row: Row) -> StoredTrial:
        setting = row.parameters
        speculative = setting.speculative
        build = _build(row)
        candidate = repeat = None
        if speculative:
            key = json.dumps([sorted((k, str(v)) for k, v in setting.knobs.items()), build, _note(row)])
            candidate = self._candidates.setdefault(key, len(self._candidates))
            repeat = self._repeats[candidate]
            self._repeats[candidate] += 1
        # A crash's zeros are no figures: only what a failed run really got to is kept.
        claimed = {name: value for name, value in row.raw.metrics.items() if row.failure is None or value}
        if row.raw.metric is not None:
            claimed[self.log.segments[row.raw.segment]] = row.raw.metric
        turns = (_turn(row.counters, claimed),) if row.counters is not None and row.failure is None else ()
        return self._stored(
            row,
            role=Role.SEARCH if speculative else Role.BASELINE,
            label=f"run {row.raw.run}",
            knobs=setting.knobs,
            candidate=candidate,
            repeat=repeat or 0,
            turns=turns,
            build=build,
            claimed=claimed,
            provenance=setting.provenance,
        )

    def _plain_remark(self, row: Row, ms: float) -> None:
        """A time per token of plain decoding that a description mentions, as a plain row of its own."""
        if ms <= 0:
            return
        counters = TurnCounters(
            output_tokens=1, decode_tokens=1, decode_ms=ms, timing_source="claimed", flags=("from_description",)
        )
        self.notes.append(
            f"plain decoding: {ms:g} ms per token by the description of run {row.raw.run} ({row.raw.description!r})"
        )
        self.trials.append(
            self._stored(
                row,
                role=Role.BASELINE,
                label=f"run {row.raw.run} (remark)",
                knobs={},
                candidate=None,
                repeat=sum(trial.role is Role.BASELINE for trial in self.trials),
                turns=(_turn(counters, {}),),
                build=AS_PUBLISHED,
                claimed={},
                provenance={},
            )
        )

    def _stored(
        self,
        row: Row,
        *,
        role: Role,
        label: str,
        knobs: Knobs,
        candidate: int | None,
        repeat: int,
        turns: tuple[TurnRecord, ...],
        build: str,
        claimed: dict[str, float],
        provenance: dict[str, str],
    ) -> StoredTrial:
        number = len(self.trials) + 1
        uid = f"{self.study}/import/{number:05d}"
        remark = "remark" in label
        result = TrialResult(
            uid=uid,
            measurement=Measurement.IMPORTED,
            clock="real",
            device=self._device(),
            turns=turns,
            failure=None if remark else row.failure,
            environment={
                "provenance": provenance,
                "line": row.raw.line,
                "description": row.raw.description,
                "setting_note": None if remark else _note(row),
            },
            started_utc=_utc(row.raw.timestamp_ms),
            claimed=claimed,
        )
        return StoredTrial(
            uid=uid,
            study=self.study,
            number=number,
            role=role,
            candidate=candidate,
            repeat=repeat,
            attempt=0,
            speculative=row.parameters.speculative and not remark,
            knobs=knobs,
            engine=(self.context.engine if self.context else None) or "unknown",
            build=build,
            trace_name=(self.context.trace if self.context else None) or "unknown",
            trace_sha256="",
            comparability_key=self._key(row),
            result=result,
            label=label,
            status_claimed=row.raw.status[:32],
        )

    def _device(self) -> Device:
        known = self.context
        name = known.device if known and known.device else "unknown"
        return Device(kind="gpu", index=0, name=name, memory_mib=known.memory_mib if known else None)

    def _key(self, row: Row) -> str:
        """Rows of other segments or of another workload were not measured under the same terms."""
        parts: list[object] = [row.raw.segment, self.log.segments[row.raw.segment]]
        parts += sorted((name, str(value)) for name, value in row.parameters.workload.items())
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _note(row: Row) -> str | None:
    """The description of a row that has no structured parameters and none by the user's rules: what it leaves unsaid is
    not known, so only rows that say the very same are taken for one setting."""
    if row.raw.structured or "rule" in row.parameters.provenance.values():
        return None
    return re.sub(r"\s+", " ", row.raw.description.lower()).strip() or f"run {row.raw.run}"


def _build(row: Row) -> str:
    """A changed source is a build of its own, named by what was changed."""
    if not row.parameters.code_changed:
        return AS_PUBLISHED
    return f"changed in run {row.raw.run}: {row.raw.description}"[:200]


def _turn(counters: TurnCounters, claimed: dict[str, float]) -> TurnRecord:
    return TurnRecord(
        conversation="imported",
        index=0,
        bucket="other",
        order=0,
        counters=counters,
        exchange=Exchange(turn_index=0, send_ns=0, timings=dict(claimed) or None),
        prompt_sha256="",
        text_sha256="",
    )


def _utc(timestamp_ms: float | None) -> str:
    if timestamp_ms is None or not 0 < timestamp_ms < 4e12:
        return ""
    return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def shared_workload(rows: list[Row]) -> dict[str, KnobValue]:
    """Workload values that all rows share."""
    sets = [set(row.parameters.workload.items()) for row in rows]
    return dict(set.intersection(*sets)) if sets else {}


def failed_kinds(rows: list[Row]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for row in rows:
        if row.failure is not None:
            kinds[str(FailureKind(row.failure.kind))] += 1
    return kinds
