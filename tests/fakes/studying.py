"""Whole studies in one process without a server: what a trial would measure is said by a function of its spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_sweep import app, run, settings
from dflash_sweep.driver import Driver
from dflash_sweep.pool import InlinePool
from dflash_sweep.records import (
    Device,
    Failure,
    Role,
    StoredTrial,
    StudyInfo,
    TelemetrySummary,
    TrialResult,
    TrialSpec,
)
from dflash_sweep.runner import Context
from dflash_sweep.store import Store
from dflash_sweep.watcher import Silent
from fakes.builders import make_result, make_turn

DEVICE = Device(kind="emulated", index=0, name="Test card", memory_mib=24564)
SMALL = (
    "+study=ddtree", "trace=agent_short", "cluster=inline", "protocol.half_width=null", "protocol.pruning=false",
    "protocol.baseline_repeats=2", "protocol.default_repeats=1", "protocol.canary_every=0", "n_trials=4",
    "protocol.confirm_top=2", "protocol.confirm_blocks=2", "storage.dashboard=false",
    # a small space: preflight looks at every point
    "space.target_feat_ctx=choice(64, 128)", "space.proposal_temp=choice(0.5, 1.0)", "space.top_k=choice(1, 8)",
    "space.cache_type_k=choice(q4_0, f16)", "space.cache_type_v=choice(q4_0, f16)",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Says:
    """What one trial measures: tok/s, the text of each turn (by default plain decoding's), and device readings."""

    tps: float = 100.0
    text: str = "same"
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    wall_s: float | None = 1.0
    started_utc: str = ""


class Notes(Silent):
    """A watcher that keeps what was noted and which phases were played."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.phases: list[str] = []

    def phase(self, name: str, total: int) -> None:
        self.phases.append(name)

    def note(self, text: str) -> None:
        self.said.append(str(text))


@dataclass
class Bench:
    """A folder with a database in which studies can be driven one after another. `specs`: all that were run."""

    folder: Path
    measure: Callable[[TrialSpec], Says]
    specs: list[TrialSpec] = field(default_factory=list)

    @contextmanager
    def context(self, *overrides: str, name: str = "s") -> Iterator[Context]:
        cfg = app.compose_overrides(app.normalise([*SMALL, f"study_name={name}", *overrides]))
        chosen = settings.build(cfg, launch_dir=self.folder, run_dir=self.folder / "run", sampling_seed=1)
        engine, preflight = run.prepare(chosen)
        with Store(chosen.storage_url) as store, InlinePool(DEVICE, self._run) as pool:
            yield Context(
                settings=chosen,
                preflight=replace(preflight, devices=pool.devices),
                engine=engine,
                store=store,
                pool=pool,
                watcher=Notes(),
                provenance={},
            )

    def drive(self, *overrides: str, name: str = "s") -> StudyInfo:
        """Run a study, or go on with the stored one of this name."""
        with self.context(*overrides, name=name) as context:
            return Driver(context).run()

    def trials(self, name: str = "s") -> tuple[StoredTrial, ...]:
        with Store(f"sqlite:///{self.folder / 'studies.db'}", create=False) as store:
            return store.trials(name)

    def roles(self, name: str = "s") -> list[Role]:
        return [trial.role for trial in self.trials(name)]

    def _run(self, spec: TrialSpec, _device: Device, **_options: Any) -> TrialResult:
        self.specs.append(spec)
        says = self.measure(spec)
        turns = tuple(
            replace(
                make_turn(turn.index, decode_ms=100 * 1000 / says.tps),
                conversation=turn.conversation,
                prompt_sha256=f"prompt {turn.conversation} {turn.index}",
                text_sha256=f"{says.text} {turn.index}",
            )
            for turn in spec.trace.turns
        )
        return replace(
            make_result(spec.uid, turns=() if says.failure else turns, failure=says.failure),
            clock="real",
            device=DEVICE,
            telemetry=TelemetrySummary(**says.telemetry),
            environment={"plain_settings": spec.plain_settings},
            wall_s=says.wall_s,
            started_utc=says.started_utc,
        )
