"""The same specs again: blocks of a trial and plain decoding, measured one after another on one device.

Imports L0 to L3, `store`, `pool` and `jobs`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dflash_sweep import owner
from dflash_sweep.errors import StudyFailed
from dflash_sweep.interrupts import Interrupts
from dflash_sweep.jobs import is_final
from dflash_sweep.pool import Pool
from dflash_sweep.records import Device, Role, StoredTrial, TrialSpec
from dflash_sweep.seeds import derive
from dflash_sweep.store import Store, comparability_key

_POLL_S = 1.0
"""How long one wait for a result lasts: the reaction time to an interrupt, not a delay of results."""


def blocks(
    specs: Sequence[TrialSpec], name: str, repeats: int, *, run_dir: Path, seed: int, launch_seeds: bool
) -> list[TrialSpec]:
    """`repeats` blocks of the specs, each block in an order of its own, ready to be sent as runs of study `name`.

    `launch_seeds`: the engine is emulated, and each launch gets noise of its own. Order and noise follow from `seed`
    and `name` alone.
    """
    rng = random.Random(derive(seed, "order", name))
    planned = []
    for repeat in range(repeats):
        row = list(specs)
        rng.shuffle(row)
        for spec in row:
            uid = f"{name}/{Role.RERUN}/{_who(spec)}/{repeat}/0"
            noise = {"launch_seed": derive(seed, "launch", uid)} if launch_seeds else {}
            planned.append(
                replace(
                    spec,
                    uid=uid,
                    study=name,
                    role=Role.RERUN,
                    repeat=repeat,
                    attempt=0,
                    own_server=True,
                    prune=(),
                    engine=replace(spec.engine, options={**spec.engine.options, **noise}),
                    evidence_dir=str(run_dir / "trials" / uid.partition("/")[2]),
                )
            )
    return planned


def _who(spec: TrialSpec) -> str:
    if not spec.speculative:
        return "plain"
    return "default" if spec.candidate is None else str(spec.candidate)


def _again(spec: TrialSpec) -> TrialSpec:
    """The next attempt of the same run."""
    attempt = spec.attempt + 1
    uid, folder = spec.uid.rpartition("/")[0], str(Path(spec.evidence_dir).parent)
    return replace(spec, attempt=attempt, uid=f"{uid}/{attempt}", evidence_dir=f"{folder}/{attempt}")


def measure(
    store: Store,
    workers: Pool,
    device: Device,
    specs: Sequence[TrialSpec],
    retries: int,
    tell: Callable[[StoredTrial], None],
    interrupts: Interrupts,
) -> tuple[StoredTrial, ...]:
    """Run the specs one after another on one device; each result is stored before anything learns of it.

    A run that failed for a passing reason is made again, `retries` times at most. Gives the final runs. Raises
    StudyFailed where a result cannot be read.
    """
    done = []
    for planned in specs:
        spec = planned
        while True:
            store.begin(spec, owner.current(), comparability_key(spec, device.name))
            workers.submit(spec, on=device)
            with interrupts.raised():
                while not (results := workers.wait(_POLL_S)):
                    interrupts.check()
            result = results[0]
            store.finish(result, comparability_key(spec, result.device.name))
            trial = store.trial(result.uid)
            tell(trial)
            if result.failure is not None and result.failure.kind.is_our_fault:
                raise StudyFailed(f"a result of {trial.uid} could not be read: {result.failure.message}")
            if is_final(trial, retries):
                done.append(trial)
                break
            spec = _again(spec)
    return tuple(done)
