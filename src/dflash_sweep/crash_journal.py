"""What was running when the machine went down: trials that are not tried again. Imports `store`, `owner`, `leftovers`.

Every trial is stored before its server is launched. A row that is still running after the machine was started anew is
all that is left of a run that may have taken it down (a card that falls off the bus, a driver that hangs the kernel),
so its setting gets a result that says so. A driver that was merely killed left its rows on a machine that lives: those
runs are made again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from dflash_sweep import owner
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Device, Failure, Measurement, TrialResult
from dflash_sweep.store import Store


def settle(store: Store, study: str, device: Device, measurement: Measurement) -> tuple[str, ...]:
    """Give every such run of a study its result; returns their uids. `device` stands in for the real one."""
    found = [uid for uid, name in store.running(study) if owner.machine_went_down(name)]
    for uid in found:
        store.finish(_lost(store, uid, device, measurement))
    return tuple(found)


def _lost(store: Store, uid: str, device: Device, measurement: Measurement) -> TrialResult:
    folder = (store.spec_json(uid) or {}).get("evidence_dir")
    log = Path(str(folder)) / "server.log" if folder else None
    return TrialResult(
        uid=uid,
        measurement=measurement,
        clock="real",
        device=device,
        failure=Failure(
            kind=FailureKind.HOST_LOST,
            message="the machine went down while this setting was running; it is not tried again",
            log_path=str(log) if log is not None and log.exists() else None,
        ),
        started_utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
