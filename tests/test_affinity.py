"""Who gets which worker: warm servers first, devices kept apart, and nobody waits for anybody. No Ray, no server."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_sweep import engines, hosting, pool
from dflash_sweep.analysis.intervals import mean_interval
from dflash_sweep.emulator import devices
from dflash_sweep.emulator.noise import LaunchNoise, NoiseSetting
from dflash_sweep.engines.base import KnobDef
from dflash_sweep.errors import FailureKind
from dflash_sweep.jobs import ConfirmPhase, Job, ListPhase, confirm_blocks, different_devices, repeats
from dflash_sweep.pool import check_owned, logical_device
from dflash_sweep.records import (
    Device,
    EngineBuild,
    EngineSettings,
    Failure,
    Measurement,
    ReplayPolicy,
    Role,
    StudyInfo,
    TrialResult,
    TrialSpec,
)
from dflash_sweep.runner import OWN_SERVER, Context, Runner
from dflash_sweep.store import Store
from dflash_sweep.watcher import Silent
from fakes import fake_engine
from fakes.builders import make_trace, make_turn

pool.own_ray_token()  # before Ray is imported
from dflash_sweep import ray_pool  # noqa: E402

SMALL = Device(kind="gpu", index=0, name="Card", uuid="GPU-a")
BIG = Device(kind="gpu", index=1, name="Card", uuid="GPU-b")


# ---------------------------------------------------------------- the Ray pool's choice


@dataclass
class Started:
    """Stands for the actors: remembers what each was given."""

    runs: list[tuple[int, str]] = field(default_factory=list)

    def actor(self, place: int) -> Any:
        def remote(spec: TrialSpec) -> object:
            self.runs.append((place, spec.uid))
            return object()

        return SimpleNamespace(run=SimpleNamespace(remote=remote))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    monkeypatch.setitem(engines.REGISTRY, "fake", fake_engine.REGISTERED)
    return Started()


def pool_of(started: Started, devices: Sequence[Device]) -> Any:
    """A RayPool without a Ray: only its seats and its queue."""
    made: Any = ray_pool.RayPool.__new__(ray_pool.RayPool)
    made._queue = []
    made._seats = [ray_pool._Seat(device, started.actor(place)) for place, device in enumerate(devices)]
    return made


def warm(folder: Path, uid: str, budget: int) -> TrialSpec:
    return fake_engine.spec(folder, uid=uid, knobs={"budget": budget}, policy=ReplayPolicy(fresh_server=False))


def end(made: Any, place: int) -> None:
    """The worker's trial is over; its server stays."""
    made._seats[place].spec = made._seats[place].result = None
    made._start_queued()


def test_a_freed_worker_takes_the_waiting_trial_that_its_server_can_go_on_with(
    started: Started, tmp_path: Path
) -> None:
    cpus = [replace(fake_engine.CPU, index=index) for index in range(2)]
    made = pool_of(started, cpus)
    for uid, budget in (("a16", 16), ("b22", 22), ("c32", 32), ("d22", 22), ("e16", 16)):
        made.submit(warm(tmp_path, uid, budget))
    assert started.runs == [(0, "a16"), (1, "b22")]
    end(made, 1)  # c32 waits longest, but d22 needs no new server there
    assert started.runs[2:] == [(1, "d22")]
    end(made, 0)
    assert started.runs[3:] == [(0, "e16")]
    end(made, 0)
    assert started.runs[4:] == [(0, "c32")]
    assert made._queue == []


def test_a_trial_without_a_warm_server_spares_those_that_others_may_need(started: Started, tmp_path: Path) -> None:
    cpus = [replace(fake_engine.CPU, index=index) for index in range(2)]
    made = pool_of(started, cpus)
    made.submit(warm(tmp_path, "a16", 16))
    end(made, 0)
    made.submit(warm(tmp_path, "b22", 22))
    made.submit(warm(tmp_path, "c16", 16))
    assert started.runs == [(0, "a16"), (1, "b22"), (0, "c16")]


def test_a_trial_for_a_busy_device_does_not_keep_the_other_one_waiting(started: Started, tmp_path: Path) -> None:
    made = pool_of(started, [SMALL, BIG])
    made.submit(fake_engine.spec(tmp_path, uid="a"), on=SMALL)
    made.submit(fake_engine.spec(tmp_path, uid="b"), on=SMALL)
    assert made.idle_devices() == (BIG,)
    assert made.idle() == 1
    made.submit(fake_engine.spec(tmp_path, uid="c"), on=BIG)
    assert started.runs == [(0, "a"), (1, "c")]
    end(made, 0)
    assert started.runs[2:] == [(0, "b")]


# ---------------------------------------------------------------- the runner on workers in virtual time


class VirtualPool:
    """Workers whose trials take as long as `durations` says, on a clock that jumps to the next end.

    `idle_s` adds up how long each worker stood still while there was a trial to run.
    """

    def __init__(self, devices: Sequence[Device], duration_s: Any) -> None:
        self.devices = tuple(devices)
        self._duration_s, self.now_s = duration_s, 0.0
        self._running: dict[Device, tuple[float, TrialSpec]] = {}
        self._free_since = dict.fromkeys(self.devices, 0.0)
        self.idle_s = dict.fromkeys(self.devices, 0.0)
        self.ran: list[tuple[str, Device]] = []

    def idle(self) -> int:
        return len(self.idle_devices())

    def idle_devices(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device not in self._running)

    def submit(self, spec: TrialSpec, *, on: Device | None = None) -> None:
        check_owned(on, self.devices)
        free = [device for device in self.idle_devices() if on in (None, device)]
        assert free, f"{spec.uid} was submitted while no worker could take it"
        device = free[0]
        self.idle_s[device] += self.now_s - self._free_since[device]
        self.ran.append((spec.uid, device))
        self._running[device] = (self.now_s + self._duration_s(spec), spec)

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        device = min(self._running, key=lambda owned: self._running[owned][0])
        self.now_s, spec = self._running.pop(device)
        self._free_since[device] = self.now_s
        return (result_of(spec, device),)


def result_of(spec: TrialSpec, device: Device, failure: Failure | None = None) -> TrialResult:
    return TrialResult(
        uid=spec.uid, measurement=Measurement.EMULATED, clock="virtual", device=device, failure=failure,
        turns=(make_turn(0), make_turn(1)),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(f"sqlite:///{tmp_path / 's.db'}")
    opened.save_study(StudyInfo(name="s", engine="fake", measurement=Measurement.EMULATED))
    return opened


def runner_on(workers: Any, store: Store, folder: Path, **protocol: Any) -> Runner:
    given = {"retries": 2, "max_failures_in_a_row": 8, "trial_timeout_s": 60.0, "on_throttle": "flag", **protocol}
    settings: Any = SimpleNamespace(
        study_name="s", objective="decode_tps", policy=ReplayPolicy(fresh_server=False), run_dir=folder,
        config=SimpleNamespace(seed=7, protocol=SimpleNamespace(**given)),
    )  # fmt: skip
    preflight: Any = SimpleNamespace(
        engine=EngineSettings(name="fake"), build=EngineBuild(engine="fake", version="1", binary="fake"),
        trace=make_trace(), held_out=None, models=(), devices=workers.devices,
    )  # fmt: skip
    engine: Any = SimpleNamespace(options=(), name="fake", facts=SimpleNamespace(launches=False))
    context = Context(
        settings=settings, preflight=preflight, engine=engine, store=store, pool=workers, watcher=Silent(),
        provenance={},
    )  # fmt: skip
    return Runner(context, "me", ())


def test_one_trial_ten_times_longer_keeps_nobody_waiting(store: Store, tmp_path: Path) -> None:
    """Ten trials of 10 s and one of 100 s on two workers: the other one runs all ten meanwhile, without a pause."""
    devices = [logical_device("emulated", index, "card") for index in range(2)]
    workers = VirtualPool(devices, lambda spec: 100.0 if spec.repeat == 0 else 10.0)
    runner = runner_on(workers, store, tmp_path)
    runner.play(ListPhase("search", repeats(Role.SEARCH, 11, speculative=True, knobs={})))
    assert workers.now_s == 100.0
    assert list(workers.idle_s.values()) == [0.0, 0.0]
    assert [device.index for _, device in workers.ran] == [0, *[1] * 10]
    assert len(store.trials("s")) == 11


class ThreadedPool(VirtualPool):
    """The same with real threads: the long trial ends only when all others have."""

    def __init__(self, devices: Sequence[Device], others: int) -> None:
        super().__init__(devices, lambda _: 0.0)
        self._others, self._count = threading.Semaphore(0), others
        self._done: queue.SimpleQueue[tuple[Device, TrialResult]] = queue.SimpleQueue()

    def submit(self, spec: TrialSpec, *, on: Device | None = None) -> None:
        device = self.idle_devices()[0]
        self._running[device] = (0.0, spec)
        threading.Thread(target=self._work, args=(spec, device), daemon=True).start()

    def _work(self, spec: TrialSpec, device: Device) -> None:
        for _ in range(self._count if spec.repeat == 0 else 0):
            assert self._others.acquire(timeout=20), "the other worker stands still"
        self._done.put((device, result_of(spec, device)))
        if spec.repeat:
            self._others.release()

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        device, done = self._done.get(timeout=20)
        self._running.pop(device)
        return (done,)


def test_a_trial_that_ends_last_of_all_keeps_nobody_waiting(store: Store, tmp_path: Path) -> None:
    devices = [logical_device("emulated", index, "card") for index in range(2)]
    runner = runner_on(ThreadedPool(devices, others=10), store, tmp_path)
    runner.play(ListPhase("search", repeats(Role.SEARCH, 11, speculative=True, knobs={})))
    assert [trial.repeat for trial in store.trials("s")][-1] == 0
    assert len(store.trials("s")) == 11


# ---------------------------------------------------------------- devices


def test_which_devices_are_different() -> None:
    assert different_devices([SMALL, BIG]) == (SMALL, BIG)  # one name, two cards
    assert different_devices([SMALL]) == (None,)
    emulated = [logical_device("emulated", index, "card") for index in range(3)]
    assert different_devices(emulated) == (None,)
    other = logical_device("emulated", 3, "another card")
    assert different_devices([*emulated, other]) == (emulated[0], other)


def test_finalists_and_plain_decoding_run_on_every_device_and_no_name_twice(store: Store, tmp_path: Path) -> None:
    workers = VirtualPool([SMALL, BIG], lambda spec: 30.0 if spec.candidate == 5 else 10.0)
    plan = confirm_blocks({3: {"budget": 8}, 5: {"budget": 22}}, {}, blocks=3, seed=1, devices=(SMALL, BIG))
    jobs = [job for block in plan for job in block]
    assert len({job.uid("s") for job in jobs}) == len(jobs) == 18
    runner = runner_on(workers, store, tmp_path)
    runner.play(ConfirmPhase(plan, lambda: False))
    rows = store.trials("s")
    for candidate in (3, 5, None):
        ran = sorted((row.repeat, row.result.device.uuid) for row in rows if row.candidate == candidate)
        assert ran == [(0, "GPU-a"), (1, "GPU-b"), (2, "GPU-a"), (3, "GPU-b"), (4, "GPU-a"), (5, "GPU-b")]


def test_a_run_that_is_tried_again_stays_on_its_device(store: Store, tmp_path: Path) -> None:
    class Losing(VirtualPool):
        def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
            (done,) = super().wait(timeout_s)
            if not done.uid.endswith("/0"):
                return (done,)
            return (replace(done, failure=Failure(kind=FailureKind.WORKER_LOST, message="x"), turns=()),)

    workers = Losing([SMALL, BIG], lambda _: 10.0)
    job = Job(role=Role.CONFIRM, candidate=1, device=BIG)
    runner_on(workers, store, tmp_path).play(ListPhase("confirm", [job]))
    assert [(uid.rpartition("/")[2], device) for uid, device in workers.ran] == [("0", BIG), ("1", BIG)]


# ---------------------------------------------------------------- what a job becomes


def test_runs_whose_scatter_is_judged_have_a_server_of_their_own(store: Store, tmp_path: Path) -> None:
    runner = runner_on(VirtualPool([SMALL], lambda _: 1.0), store, tmp_path)
    own = {role for role in Role if runner.spec(Job(role=role, candidate=1)).own_server}
    assert own == OWN_SERVER == {Role.BASELINE, Role.CALIBRATE, Role.CONFIRM, Role.CONTROL, Role.RERUN}


def test_why_repeats_have_servers_of_their_own() -> None:
    """Three repeats on one server agree with each other and not with the next server: their 95 % interval of the mean
    holds the setting's true mean in one case of ten, that of three servers in nine of ten."""
    card = devices.load("rtx4090")

    def log_speed(launch: int, first_turn: int) -> float:
        noise = LaunchNoise(NoiseSetting(seed=1, launch_seed=launch), card)
        turns = [noise.factors(first_turn + turn) for turn in range(13)]
        return -math.log(
            sum(0.6 * turn.draft + 0.4 * turn.target for turn in turns) / 13
        )  # the draft is 60 % of a step

    truth = sum(log_speed(launch, 0) for launch in range(400)) / 400

    def covers(values: list[float]) -> bool:
        found = mean_interval(values)
        assert found.low is not None
        assert found.high is not None
        return found.low <= truth <= found.high

    one_server = [covers([log_speed(1000 + study, 14 * repeat) for repeat in range(3)]) for study in range(200)]
    servers = [covers([log_speed(5000 + 3 * study + repeat, 0) for repeat in range(3)]) for study in range(200)]
    assert sum(one_server) / 200 < 0.2
    assert sum(servers) / 200 > 0.8


@pytest.mark.parametrize(("policy", "expected"), [("flag", [False] * 3), ("retry", [True, True, False])])
def test_a_throttled_run_is_tried_again_and_then_kept(
    store: Store, tmp_path: Path, policy: str, expected: list[bool]
) -> None:
    runner = runner_on(VirtualPool([SMALL], lambda _: 1.0), store, tmp_path, on_throttle=policy)
    job = Job(role=Role.SEARCH, candidate=1)
    assert [runner.spec(replace(job, attempt=attempt)).retry_throttled for attempt in range(3)] == expected


def test_a_launch_is_told_by_what_makes_the_server_and_nothing_is_prepared_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Engine(fake_engine.FakeEngine):
        knobs: tuple[KnobDef, ...] = (KnobDef(name="temperature", kind="float", flag="temperature", scope="request"),)

        def launch_spec(self, request: Any) -> Any:
            raise AssertionError("a driver must not prepare a worker's files")

        def effective_point(self, knobs: Any) -> Any:
            return {**knobs, "dead": None}

    def key(uid: str = "a", device: Device = fake_engine.CPU, **changes: Any) -> object:
        return hosting.launch_key(Engine(), fake_engine.spec(tmp_path, uid=uid, **changes), device)

    settings = fake_engine.spec(tmp_path).engine
    seeded = replace(settings, options={**settings.options, "launch_seed": 7})
    assert key() == key("b", engine=seeded, role=Role.CANARY)
    assert key(knobs={"budget": 22, "dead": 1}) == key(knobs={"dead": 2, "budget": 22})
    assert key(knobs={"budget": 22, "temperature": 0.5}) == key(knobs={"budget": 22, "temperature": 1.0})
    others = [
        key(knobs={"budget": 16}), key(knobs={"budget": 22.0}), key(speculative=False), key(device=SMALL),
        key(engine=replace(settings, env={"A": "1"})), key(engine=replace(settings, n_ctx=1)),
        key(build=EngineBuild(engine="fake", version="2", binary="other")), key(policy=ReplayPolicy(concurrency=2)),
    ]  # fmt: skip
    assert len({key(), *others}) == len(others) + 1
