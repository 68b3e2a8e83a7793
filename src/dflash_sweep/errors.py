"""The exception tree and the kinds of failure a trial can have. Imports nothing of ours.

    DflashSweepError
    ├── ConfigError        the user's input is wrong: nothing has started (exit code 2)
    │   ├── TraceError     a trace cannot be read or may not be used for this purpose
    │   ├── EngineMissing  the engine's binary or a model file is not there or does not fit
    │   └── StorageError   the database cannot be used as it is
    ├── TrialFailed        one trial failed; carries a FailureKind; never leaves the worker
    └── StudyFailed        the study cannot go on (exit code 3)

Every message is one line: what is wrong, where, what is allowed.
"""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """Why a trial has no result. What is done about it is in the properties below."""

    INVALID_CONFIG = "invalid_config"
    LAUNCH_FAILED = "launch_failed"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    DRAFT_INACTIVE = "draft_inactive"
    SETTING_NOT_APPLIED = "setting_not_applied"
    OUTPUT_MISMATCH = "output_mismatch"
    DEGENERATE_OUTPUT = "degenerate_output"
    NO_MEASUREMENT = "no_measurement"
    PRUNED = "pruned"
    HOST_LOST = "host_lost"
    TRIAL_TIMEOUT = "trial_timeout"
    HEALTH_TIMEOUT = "health_timeout"
    REQUEST_FAILED = "request_failed"
    WORKER_LOST = "worker_lost"
    THROTTLED = "throttled"
    PARSE_FAILED = "parse_failed"

    @property
    def is_transient(self) -> bool:
        """Told to Optuna as FAIL; the same point is tried again, at most twice."""
        return self in _TRANSIENT

    @property
    def is_our_fault(self) -> bool:
        """A defect of this program: the study stops instead of learning from it."""
        return self is FailureKind.PARSE_FAILED

    @property
    def is_repeatable(self) -> bool:
        """Told to Optuna as PRUNED without a value: the sampler learns to stay away."""
        return not (self.is_transient or self.is_our_fault)

    @property
    def is_stop(self) -> bool:
        """No failure of anything: the trial was ended early because it was surely worse than the best so far."""
        return self is FailureKind.PRUNED

    @property
    def is_infrastructure(self) -> bool:
        """Says more about the machine than about the setting: many in a row end a study."""
        return self.is_transient or self in (FailureKind.LAUNCH_FAILED, FailureKind.CRASHED)


_TRANSIENT = frozenset(
    {FailureKind.HEALTH_TIMEOUT, FailureKind.REQUEST_FAILED, FailureKind.WORKER_LOST, FailureKind.THROTTLED}
)


class DflashSweepError(Exception):
    """Root of every error this program raises on purpose."""


class ConfigError(DflashSweepError):
    """The user's input is wrong; nothing has been started."""


class TraceError(ConfigError):
    """A trace cannot be read, or not be used for what was asked."""


class EngineMissing(ConfigError):
    """The engine's executable or one of its files is missing or does not fit."""


class StorageError(ConfigError):
    """The database cannot be used: other version, locked, corrupt, or in conflict with the configuration."""


class StudyFailed(DflashSweepError):
    """The study cannot go on; what was measured is kept."""


class TrialFailed(DflashSweepError):
    """One trial failed. Raised inside a worker, turned into a `Failure` record at its boundary."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
