"""How near the true optimum a search comes, and how much it over-claims, after so many measurements.

    python benchmarks/search_efficiency.py [--seeds 30] [--measurements 60 120 224] [--noise 0.03 0.06]

The truth is the emulator's model without noise, for every point of the published campaign's space (agent workload with
the exact verifier, code workload with the batched one). A measurement is the truth times log-normal noise; a point that
does not fit the card fails. Ours is the real driver on a pool that answers from that table, so its baselines,
canaries, repeats and confirm blocks all count as measurements (without plain decoding like the best,
protocol.controls, which is for another question). The others take the best single measurement, as people do. Printed:
mean of (true speed of the recommended setting / best true speed) and of (claimed / true − 1).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from types import TracebackType
from typing import Any

import numpy as np
import optuna

from dflash_sweep import app, run, settings, study
from dflash_sweep.analysis import confirm
from dflash_sweep.driver import Driver
from dflash_sweep.emulator.model import simulate
from dflash_sweep.engines import get
from dflash_sweep.errors import FailureKind, StudyFailed
from dflash_sweep.frames import trial_frame
from dflash_sweep.records import (
    Device,
    Exchange,
    Failure,
    Knobs,
    Measurement,
    TrialResult,
    TrialSpec,
    TurnCounters,
    TurnRecord,
)
from dflash_sweep.runner import Context
from dflash_sweep.seeds import derive
from dflash_sweep.space import SearchSpace, parse_space
from dflash_sweep.store import Store
from dflash_sweep.watcher import Silent

WORKLOADS = {"agent": "exact", "code": "trusted"}
"""Workload → verifier: the published agent campaign, and the batched mode that won on public coding prompts."""
N_CTX = {"agent": 32768, "code": 8192}
"""Context, tokens: agents need long ones; beside 32,768 the batched verifier leaves room for few trees on 24 GB."""
TOKENS = 1024
TURNS = 8


@dataclass(frozen=True)
class Ending:
    """How ours spends the end of its measurements: so many finalists, in so many blocks."""

    top: int = 3
    blocks: int | None = None  # None = by the number of measurements

    def of(self, measurements: int) -> int:
        return self.blocks or (3 if measurements < 100 else 4)


@dataclass(frozen=True)
class Table:
    """True speed of every point, tok/s; None = out of memory. `plain`: plain decoding's."""

    space: SearchSpace
    fixed: Knobs
    speeds: dict[tuple[tuple[str, str], ...], float | None]
    plain: float

    def key(self, knobs: Knobs) -> tuple[tuple[str, str], ...]:
        return study.point_key(get("emulator").effective_point({**self.fixed, **knobs}))

    def speed(self, knobs: Knobs) -> float | None:
        return self.speeds[self.key(knobs)]

    @property
    def best(self) -> float:
        return max(speed for speed in self.speeds.values() if speed is not None)


def campaign_space() -> SearchSpace:
    cfg = app.compose_overrides(app.normalise(["+study=ddtree"]))
    return parse_space(dict(settings.merge(cfg).space))


def true_table(workload: str) -> Table:
    space, fixed = campaign_space(), {"verifier": WORKLOADS[workload], "grammar_verify": False}
    context = N_CTX[workload]
    plain = simulate(fixed, workload=workload, turns=TURNS, speculative=False, n_ctx=context).decode_tps or math.nan
    table = Table(space, dict(fixed), {}, plain)
    for point in space.points():
        knobs: Knobs = {**fixed, **point}
        if table.key(point) not in table.speeds:
            table.speeds[table.key(point)] = simulate(knobs, workload=workload, turns=TURNS, n_ctx=context).decode_tps
    return table


class Bench:
    """Noisy measurements, counted."""

    def __init__(self, table: Table, noise: float, seed: int) -> None:
        self.table, self._noise, self.count = table, noise, 0
        self._rng = np.random.default_rng(seed)

    def measure(self, point: Knobs) -> float | None:
        self.count += 1
        speed = self.table.speed(point)
        return None if speed is None else self.noisy(speed)

    def noisy(self, speed: float) -> float:
        return speed * math.exp(self._noise * float(self._rng.standard_normal()))


@dataclass(frozen=True)
class Outcome:
    """What a policy recommends and claims; None = it recommends nothing."""

    point: Knobs | None
    claimed: float | None
    measurements: int


# ---------------------------------------------------------------- what people do: keep the best single measurement


def best_raw(bench: Bench, points: Iterator[Knobs], measurements: int) -> Outcome:
    best: tuple[float, Knobs] | None = None
    for point in itertools.islice(points, measurements):
        value = bench.measure(point)
        if value is not None and (best is None or value > best[0]):
            best = value, point
    return Outcome(best[1] if best else None, best[0] if best else None, bench.count)


def random_points(space: SearchSpace, seed: int) -> Iterator[Knobs]:
    rng = np.random.default_rng(seed)
    while True:
        yield {axis.name: axis.values[int(rng.integers(len(axis.values)))] for axis in space.axes if axis.values}


def grid_points(space: SearchSpace, seed: int) -> Iterator[Knobs]:
    """Enumeration; where the budget ends early it covers an evenly spaced part, begun at a place of the seed's own."""
    points = list(space.points())
    step = 7919  # a prime, larger than any axis: all axes move
    start = int(np.random.default_rng(seed).integers(len(points)))
    return (points[(start + index * step) % len(points)] for index in range(len(points)))


def working_default(bench: Bench) -> tuple[Knobs, float | None]:
    """The fork's defaults, with the largest budget up to theirs that runs, and its figure: where everybody begins."""
    budgets = next(axis.values or () for axis in bench.table.space.axes if axis.name == "budget")
    point: Knobs = {
        "target_feat_ctx": 128, "budget": 22, "proposal_temp": 1.0, "top_k": 8, "chain_seed": True,
        "cache_type_k": "q4_0", "cache_type_v": "q4_0",
    }  # fmt: skip
    for budget in sorted((int(str(value)) for value in budgets if int(str(value)) <= 22), reverse=True):
        point = {**point, "budget": budget}
        if (value := bench.measure(point)) is not None:
            return point, value
    return point, None


def hill_climb(bench: Bench, measurements: int, seed: int) -> Outcome:
    """One parameter at a time from the default, keep if the single run was better, else discard."""
    rng, axes = np.random.default_rng(seed), bench.table.space.axes
    here, best = working_default(bench)
    while bench.count < measurements:
        axis = axes[int(rng.integers(len(axes)))]
        values = axis.values or ()
        place = values.index(here[axis.name]) + int(rng.choice([-1, 1]))
        if 0 <= place < len(values):
            there = {**here, axis.name: values[place]}
            value = bench.measure(there)
            if value is not None and (best is None or value > best):
                here, best = there, value
    return Outcome(here, best, bench.count)


def plain_tpe(bench: Bench, measurements: int, seed: int) -> Outcome:
    """Optuna as most people use it: the default TPE sampler, one run a trial, the best raw value wins."""
    optimiser = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    spread = {axis.name: study.distribution(axis) for axis in bench.table.space.axes}
    for _ in range(measurements):
        trial = optimiser.ask(spread)
        value = bench.measure(dict(trial.params))
        if value is None:
            optimiser.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            optimiser.tell(trial, value)
    return Outcome(dict(optimiser.best_params), optimiser.best_value, bench.count)


# ---------------------------------------------------------------- ours: the real driver on a pool of table rows


class TablePool:
    """One worker that answers from the table at once."""

    def __init__(self, bench: Bench) -> None:
        self.devices = (Device(kind="emulated", index=0, name="table"),)
        self._bench, self._queue = bench, list[TrialSpec]()

    def idle(self) -> int:
        return len(self.idle_devices())

    def idle_devices(self) -> tuple[Device, ...]:
        return () if self._queue else self.devices

    def submit(self, spec: TrialSpec, **_on: Any) -> None:
        self._queue.append(spec)

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        return (self._result(self._queue.pop()),) if self._queue else ()

    def _result(self, spec: TrialSpec) -> TrialResult:
        if spec.speculative:
            speed = self._bench.measure({axis.name: spec.knobs.get(axis.name) for axis in self._bench.table.space.axes})
        else:
            self._bench.count += 1
            speed = self._bench.noisy(self._bench.table.plain)
        failure = None
        if speed is None:
            failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="does not fit")
        return TrialResult(
            uid=spec.uid,
            measurement=Measurement.EMULATED,
            clock="virtual",
            device=self.devices[0],
            turns=() if speed is None else (_turn(speed),),
            failure=failure,
        )

    def close(self) -> None: ...

    def __enter__(self) -> TablePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _turn(speed: float) -> TurnRecord:
    counters = TurnCounters(output_tokens=TOKENS, decode_tokens=TOKENS, decode_ms=1000 * TOKENS / speed)
    exchange = Exchange(turn_index=0, send_ns=0, first_token_ns=1, last_token_ns=2, end_ns=2, finish_reason="length")
    return TurnRecord(
        conversation="c",
        index=0,
        bucket="other",
        order=0,
        counters=counters,
        exchange=exchange,
        prompt_sha256="",
        text_sha256="",
    )


def searched(measurements: int, top: int, blocks: int) -> int:
    """Candidates that fit beside baselines, canaries (two after every tenth) and confirm blocks."""
    fixed = 3 + 3 + blocks * (top + 1)  # the default's repeats, plain decoding's, and plain decoding in each block
    return next(n for n in range(measurements, 0, -1) if n + 2 * max(0, (n - 1) // 10) + fixed <= measurements)


def ours(bench: Bench, measurements: int, seed: int, folder: Path, ending: Ending) -> Outcome:
    top, blocks = ending.top, ending.of(measurements)
    default, _ = working_default(bench)
    seed_point = "{" + ",".join(f"{name}:{json.dumps(value)}" for name, value in default.items()) + "}"
    cfg = app.compose_overrides(
        app.normalise([
            "+study=ddtree", f"seed={seed}", "study_name=bench",
            f"n_trials={searched(measurements - bench.count, top, blocks)}",
            "protocol.baseline_repeats=3", "protocol.default_repeats=1", "protocol.max_repeats=3",
            "protocol.gate=false", "protocol.controls=false", f"seed_points=[{seed_point}]",
            f"protocol.confirm_top={top}", f"protocol.confirm_blocks={blocks}", "protocol.canary_every=10",
            f"fixed.verifier={bench.table.fixed['verifier']}", "storage.url=sqlite:///:memory:",
        ])
    )  # fmt: skip
    chosen = settings.build(cfg, launch_dir=folder, run_dir=folder, sampling_seed=derive(seed, "sampling"))
    engine, preflight = prepared(chosen, seed)
    with Store(chosen.storage_url) as store:
        context = Context(
            settings=chosen,
            preflight=preflight,
            engine=engine,
            store=store,
            pool=TablePool(bench),
            watcher=Silent(),
            provenance={},
        )
        with contextlib.suppress(StudyFailed):  # nothing could be measured: nothing is recommended
            Driver(context).run()
        rows = store.trials("bench")
    decision = confirm.decide(trial_frame(rows), planned_blocks=blocks)
    number = decision.winner if decision.winner is not None else decision.cheapest
    knobs = next((row.knobs for row in rows if row.candidate == number), None)
    axes = [axis.name for axis in bench.table.space.axes]
    point = None if knobs is None else {name: knobs.get(name) for name in axes}
    return Outcome(point, decision.value.value if decision.value else None, bench.count)


_PREPARED: list[Any] = []


def prepared(chosen: settings.Settings, _seed: int) -> Any:
    """Engine and preflight: the same for all seeds, so looked at once."""
    if not _PREPARED or _PREPARED[0] != chosen.fixed:
        _PREPARED[:] = [chosen.fixed, run.prepare(chosen)]
    return _PREPARED[1]


def in_memory() -> None:
    """Optuna's own tables in memory: only the choices matter here."""

    def opened(_url: str, name: str, directions: Sequence[str]) -> optuna.Study:
        return optuna.create_study(study_name=name, directions=list(directions))

    study._opened = opened


# ---------------------------------------------------------------- the table

POLICIES: dict[str, Callable[[Bench, int, int, Path, Ending], Outcome]] = {
    "random, best raw": lambda bench, n, seed, *_: best_raw(bench, random_points(bench.table.space, seed), n),
    "grid, best raw": lambda bench, n, seed, *_: best_raw(bench, grid_points(bench.table.space, seed), n),
    "hill-climb, keep/discard": lambda bench, n, seed, *_: hill_climb(bench, n, seed),
    "Optuna TPE, best raw": lambda bench, n, seed, *_: plain_tpe(bench, n, seed),
    "ours": lambda bench, n, seed, folder, ending: ours(bench, n, seed, folder, ending),
}


def judged(outcome: Outcome, table: Table) -> tuple[float, float]:
    """Share of the optimum and over-claim; nothing recommended counts as plain decoding's share."""
    true = table.speed(outcome.point) if outcome.point is not None else None
    if true is None or outcome.claimed is None:
        return 0.0, 0.0
    return true / table.best, outcome.claimed / true - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0, help="part a long run over several processes")
    parser.add_argument("--measurements", type=int, nargs="+", default=[60, 120, 224])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.03, 0.06])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--confirm-top", type=int, default=Ending.top, help="finalists that ours measures again")
    parser.add_argument("--blocks", type=int, help="confirm blocks of ours; default: 3 below 100 measurements, else 4")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    in_memory()
    say("emulated truth; mean ± standard error over seeds\n")
    say("| workload | noise | measurements | policy | share of optimum | over-claim | used | s/study |")
    say("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        for workload in options.workloads:
            table = true_table(workload)
            for noise, n, policy in itertools.product(options.noise, options.measurements, options.policies):
                began, results, used = time.process_time(), [], []
                for seed in range(options.first_seed, options.first_seed + options.seeds):
                    bench = Bench(table, noise, seed)
                    outcome = POLICIES[policy](bench, n, seed, Path(name), Ending(options.confirm_top, options.blocks))
                    results.append(judged(outcome, table))
                    used.append(outcome.measurements)
                shares, claims = zip(*results, strict=True)
                say(
                    f"| {workload} | {noise:.0%} | {n} | {policy} | {spread(shares)} | {spread(claims, signed=True)} "
                    f"| {fmean(used):.0f} | {(time.process_time() - began) / options.seeds:.2f} |"
                )
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def spread(values: tuple[float, ...], *, signed: bool = False) -> str:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{fmean(values):+.1%} ± {error:.1%}" if signed else f"{fmean(values):.3f} ± {error:.3f}"


if __name__ == "__main__":
    sys.exit(main())
