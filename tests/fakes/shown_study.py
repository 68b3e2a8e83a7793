"""A study driven by hand: the store's rows, Optuna's trials and a watcher's events, in the order of a real driver."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning

from dflash_sweep.errors import FailureKind
from dflash_sweep.evidence import TrialFiles
from dflash_sweep.objective import score
from dflash_sweep.records import (
    AxisInfo,
    Failure,
    Knobs,
    LaunchSpec,
    Measurement,
    Role,
    StageTime,
    StoredTrial,
    StudyInfo,
    TrialResult,
)
from dflash_sweep.store import Store
from dflash_sweep.watcher import Silent, Watcher
from fakes.builders import DEVICE, make_spec, make_turn

AXES = (
    AxisInfo(name="budget", kind="int", values=(8, 16, 22, 32), ordered=True, unit="nodes"),
    AxisInfo(name="chain_seed", kind="bool", values=(False, True)),
)
COMMAND = ("llama-server", "-m", "target model.gguf", "--port", "40001")
SPACE: dict[str, optuna.distributions.BaseDistribution] = {
    "budget": optuna.distributions.CategoricalDistribution((8, 16, 22, 32)),
    "chain_seed": optuna.distributions.CategoricalDistribution((False, True)),
}


class ShownStudy:
    """Study `s` of emulated runs: plain decoding at 25 ms a token; a candidate's step costs 30 ms + its budget / 2 and
    yields 2 tokens + budget / 32, so that budget 8 gives 2.25 tokens in 34 ms."""

    def __init__(self, url: str, folder: Path, watcher: Watcher | None = None, name: str = "s") -> None:
        self.store = Store(url)
        self.name, self.folder = name, folder
        self.watcher: Watcher = watcher or Silent()
        self.study = optuna.create_study(
            storage=url, study_name=name, direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self.study.set_metric_names(["decode_tps"])
        self._runs = 0
        self.save("running")

    def close(self) -> None:
        """Every connection to the database."""
        self.store.close()
        self.study._storage.remove_session()
        getattr(self.study._storage, "_backend").engine.dispose()  # noqa: B009 - private: a cache around the database

    def save(self, status: str, **fields: Any) -> StudyInfo:
        info = StudyInfo(
            name=self.name, engine="emulator", measurement=Measurement.EMULATED, axes=AXES, n_trials=40, status=status,
            **fields,
        )  # fmt: skip
        self.store.save_study(info)
        return info

    def plain(self, role: Role = Role.BASELINE, candidate: int | None = None, tps: float = 40.0) -> StoredTrial:
        """`candidate`: the finalist whose settings plain decoding has (role control)."""
        turn = make_turn(0, tokens=100, decode_ms=100_000.0 / tps + self._runs % 3)
        turn = replace(turn, counters=replace(turn.counters, verify_steps=None, stages=()))
        return self._run(role, candidate, {}, turns=(turn,), speculative=False)

    def search(self, failure: Failure | None = None) -> StoredTrial:
        """One candidate from ask to tell; the watcher learns of it in between, as in a study."""
        asked = self.study.ask(SPACE)
        trial = self._run(Role.SEARCH, asked.number, dict(asked.params), failure=failure)
        value = None if failure else score(trial.result.turns, "decode_tps")
        state = optuna.trial.TrialState.PRUNED if value is None else None
        self.study.tell(asked.number, value, state=state)
        return trial

    def confirm(self, candidate: int, knobs: Knobs) -> StoredTrial:
        return self._run(Role.CONFIRM, candidate, knobs)

    def _run(
        self, role: Role, candidate: int | None, knobs: Knobs, *, failure: Failure | None = None, **fields: Any
    ) -> StoredTrial:
        uid = f"{self.name}/{role}/{candidate}/{self._runs}/0"
        evidence = self.folder / uid.replace("/", "_")
        speculative = fields.pop("speculative", True)
        spec = make_spec(
            uid, study=self.name, role=role, candidate=candidate, repeat=self._runs, knobs=knobs,
            speculative=speculative, evidence_dir=str(evidence),
        )  # fmt: skip
        self.store.begin(spec, "test", "k")
        self.watcher.started(spec)
        turns = fields.get("turns") or (() if failure else _turns(knobs, self._runs))
        files = TrialFiles(evidence)
        files.write_log(f"log of run {self._runs}\n".encode())
        files.write_turns(turns)
        result = TrialResult(
            uid=uid, measurement=Measurement.EMULATED, clock="virtual", device=DEVICE, turns=turns, failure=failure,
            launch=LaunchSpec(argv=COMMAND), worker="w", started_utc=f"2026-01-01T00:{self._runs // 60 % 60:02d}:00Z",
        )  # fmt: skip
        self.store.finish(result, "k")
        self._runs += 1
        trial = self.store.trial(uid)
        self.watcher.finished(trial, None if failure else score(turns, "decode_tps"), None)
        return trial


def out_of_memory(message: str = "CUDA error: out of memory") -> Failure:
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, log_tail="load\nallocating 9 GiB\nfailed\n")


def _turns(knobs: Knobs, run: int) -> tuple[Any, ...]:
    budget = int(knobs["budget"] or 0)
    step_ms, steps = 30.0 + budget / 2 + run % 3 / 100, 320
    tokens = int(steps * (2 + budget / 32))
    parts = {"draft_ms": 10.0, "topk_ms": budget / 2, "exact_ms": 18.0, "other_ms": 2.0 + run % 3 / 100}
    stages = tuple(StageTime(name=name, total_ms=value * steps) for name, value in parts.items())
    return (make_turn(0, tokens=tokens, decode_ms=step_ms * steps, steps=steps, stages=stages),)
