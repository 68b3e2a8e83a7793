"""Every frozen record that crosses a module or a process boundary. Imports `errors` only.

Rules: None means "not known" and is never 0 or NaN; times are integer nanoseconds of one monotonic
clock or milliseconds by name; tuples, not lists; dicts are never changed after construction.
All records can be pickled (Ray) and written or read as JSON by msgspec.
"""

from __future__ import annotations

from dflash_sweep.records.engine import Device, EngineBuild, EngineSettings, LaunchSpec, ModelFile
from dflash_sweep.records.study import AxisInfo, StudyInfo, Verdict
from dflash_sweep.records.trace import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.records.trial import (
    Failure,
    PruneRule,
    StoredTrial,
    TelemetrySummary,
    TrialResult,
    TrialSpec,
    TurnCost,
)
from dflash_sweep.records.turn import (
    AS_RECORDED,
    OTHER_ARM,
    Exchange,
    ReplayPolicy,
    StageTime,
    TurnCounters,
    TurnRecord,
)
from dflash_sweep.records.words import UNSET, Knobs, KnobValue, Measurement, Role, VerdictStatus

__all__ = [
    "AS_RECORDED",
    "OTHER_ARM",
    "UNSET",
    "AxisInfo",
    "Device",
    "EngineBuild",
    "EngineSettings",
    "Exchange",
    "Failure",
    "KnobValue",
    "Knobs",
    "LaunchSpec",
    "Measurement",
    "ModelFile",
    "PruneRule",
    "RecordedAnswer",
    "ReplayPolicy",
    "Role",
    "StageTime",
    "StoredTrial",
    "StudyInfo",
    "TelemetrySummary",
    "Trace",
    "TraceHeader",
    "TrialResult",
    "TrialSpec",
    "Turn",
    "TurnCost",
    "TurnCounters",
    "TurnRecord",
    "Verdict",
    "VerdictStatus",
]
