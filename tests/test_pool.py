"""Pools: in this process, from past results, and on Ray, where workers may die and one may be slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dflash_sweep import engines, environment, leftovers, pool, server, trial
from dflash_sweep.engines.base import EngineFacts
from dflash_sweep.errors import ConfigError, FailureKind, StudyFailed
from dflash_sweep.records import (
    Device,
    EngineSettings,
    Knobs,
    Measurement,
    Role,
    StoredTrial,
    TrialResult,
    TrialSpec,
)
from fakes import fake_engine

pool.own_ray_token()  # before Ray is imported
from dflash_sweep import ray_pool  # noqa: E402

TESTS = Path(__file__).parent
TWO_CARDS = (
    Device(kind="gpu", index=0, name="Small Card", uuid="GPU-aaaa"),
    Device(kind="gpu", index=1, name="Big Card", uuid="GPU-bbbb"),
)


def result(uid: str, device: Device = fake_engine.CPU) -> TrialResult:
    return TrialResult(uid=uid, measurement=Measurement.EMULATED, clock="real", device=device)


def wait_until(condition: object, timeout_s: float = 20.0) -> bool:
    """Poll until the callable is true."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# ---------------------------------------------------------------- in this process


@pytest.fixture
def _own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("_own_temp")
def test_inline_runs_one_after_the_other_when_waited_for(tmp_path: Path) -> None:
    ran: list[str] = []

    def run(spec: TrialSpec, device: Device) -> TrialResult:
        ran.append(spec.uid)
        return result(spec.uid, device)

    with pool.InlinePool(fake_engine.CPU, run) as inline:
        with pytest.raises(ConfigError, match="no worker owns it"):
            inline.submit(fake_engine.spec(tmp_path), on=TWO_CARDS[0])
        assert inline.devices == (fake_engine.CPU,)
        assert inline.idle() == 1
        assert inline.wait(0.0) == ()
        inline.submit(fake_engine.spec(tmp_path, uid="a"))
        assert inline.idle() == 0
        inline.submit(fake_engine.spec(tmp_path, uid="b"))
        assert ran == []
        assert [done.uid for done in inline.wait()] == ["a"]
        assert [done.uid for done in inline.wait(5.0)] == ["b"]
        assert inline.wait() == ()


@pytest.mark.usefixtures("_own_temp")
def test_inline_runs_a_real_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engines.REGISTRY, "fake", fake_engine.REGISTERED)
    with pool.make("inline", (fake_engine.CPU,)) as inline:
        inline.submit(fake_engine.spec(tmp_path))
        (done,) = inline.wait()
    assert done.failure is None


# ---------------------------------------------------------------- past results


def stored(uid: str, knobs: Knobs, *, speculative: bool = True) -> StoredTrial:
    return StoredTrial(
        uid=uid,
        study="s",
        number=0,
        role=Role.SEARCH,
        candidate=0,
        repeat=0,
        attempt=0,
        speculative=speculative,
        knobs=knobs,
        engine="fake",
        build="1",
        trace_name="t",
        trace_sha256="",
        comparability_key="k",
        result=replace(result(uid, TWO_CARDS[1]), wall_s=float(len(uid))),
    )


def test_recorded_results_are_found_by_knobs(tmp_path: Path) -> None:
    rows = [
        stored("a", {"budget": 22, "top_k": None}),
        stored("bb", {"budget": 22}),
        stored("ccc", {"budget": 22}, speculative=False),
    ]
    with pool.RecordedPool(rows) as recorded:
        assert recorded.devices == (TWO_CARDS[1],)
        for index, speculative in enumerate((True, True, True, False)):
            recorded.submit(fake_engine.spec(tmp_path, uid=f"t{index}", knobs={"budget": 22}, speculative=speculative))
        assert recorded.idle() == 0
        done = [recorded.wait()[0] for _ in range(4)]
    assert [entry.uid for entry in done] == ["t0", "t1", "t2", "t3"]
    assert [entry.wall_s for entry in done] == [1.0, 2.0, 1.0, 3.0]  # in their order, then again from the first


def test_a_setting_never_recorded_is_no_measurement(tmp_path: Path) -> None:
    recorded = pool.RecordedPool([stored("a", {"budget": 22})])
    recorded.submit(fake_engine.spec(tmp_path, knobs={"budget": 16}))
    (done,) = recorded.wait()
    assert done.failure is not None
    assert done.failure.kind is FailureKind.NO_MEASUREMENT
    assert "{'budget': 16}" in done.failure.message
    assert recorded.wait() == ()


def test_equal_numbers_of_other_types_are_other_settings(tmp_path: Path) -> None:
    recorded = pool.RecordedPool([stored("a", {"chain_seed": True})])
    recorded.submit(fake_engine.spec(tmp_path, knobs={"chain_seed": 1}))
    assert recorded.wait()[0].failure is not None


# ---------------------------------------------------------------- devices


def facts(accelerator: str, *, launches: bool = True) -> EngineFacts:
    return EngineFacts(
        measurement=Measurement.MEASURED, first_token_from_prefill=True, accelerator=accelerator, launches=launches
    )


def test_logical_devices_one_a_worker() -> None:
    cpus = pool.devices_for(facts("cpu"), 2)
    assert [(device.kind, device.index) for device in cpus] == [("cpu", 0), ("cpu", 1)]
    assert cpus[0].name == environment.cpu_model()
    settings = EngineSettings(name="emulator", options={"card": "rtx3090"})
    cards = pool.devices_for(facts("none"), 2, settings)
    assert [(device.kind, device.index, device.name) for device in cards] == [
        ("emulated", 0, "rtx3090"),
        ("emulated", 1, "rtx3090"),
    ]


def test_a_foreign_server_has_one_worker() -> None:
    settings = EngineSettings(name="attach", options={"url": "http://127.0.0.1:8000"})
    (device,) = pool.devices_for(facts("gpu", launches=False), 1, settings)
    assert device.name == "server at http://127.0.0.1:8000"
    with pytest.raises(ConfigError, match=r"cluster\.workers=2: a server that is not launched by us"):
        pool.devices_for(facts("gpu", launches=False), 2, settings)


def test_gpus_are_taken_in_order_and_never_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def gpus(visible: str | None = None) -> tuple[Device, ...]:
        asked.append(visible)
        return TWO_CARDS

    monkeypatch.setattr(environment, "gpus", gpus)
    assert pool.devices_for(facts("gpu"), 1) == TWO_CARDS[:1]
    assert pool.devices_for(facts("gpu"), 2, visible="0,1") == TWO_CARDS
    assert asked == [None, "0,1"]
    with pytest.raises(ConfigError, match=r"cluster\.workers=3: only 2 GPU.*Small Card, Big Card.*allowed: 1-2"):
        pool.devices_for(facts("gpu"), 3)
    monkeypatch.setattr(environment, "gpus", lambda visible=None: ())
    with pytest.raises(ConfigError, match=r"needs a GPU and NVML lists none .CUDA_VISIBLE_DEVICES=5."):
        pool.devices_for(facts("gpu"), 1, visible="5")


def test_gpus_of_a_cluster_need_none_on_the_drivers_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpus", lambda visible=None: ())
    found = pool.devices_for(facts("gpu"), 3, address="10.0.0.1:6379")
    assert [(device.kind, device.index) for device in found] == [("gpu", 0), ("gpu", 1), ("gpu", 2)]
    assert {device.uuid for device in found} == {None}  # which cards they are, only the workers can say


def test_make_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.kind=slurm: not known; allowed: ray, inline"):
        pool.make("slurm", (fake_engine.CPU,))
    with pytest.raises(ConfigError, match=r"cluster\.workers=2: cluster\.kind=inline has exactly 1"):
        pool.make("inline", TWO_CARDS)


def test_ray_is_imported_only_when_asked_for() -> None:
    code = "import sys, dflash_sweep.pool, dflash_sweep.trial; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------- Ray


def fake_run(spec: TrialSpec, device: Device) -> TrialResult:
    """Runs in a Ray worker: makes the fake engine known there first."""
    sys.path.insert(0, os.environ["DFS_TESTS"])
    from fakes import fake_engine

    fake_engine.register()
    if spec.knobs.get("hang"):
        time.sleep(600)
    if spec.knobs.get("explode"):
        raise ZeroDivisionError("no trial does this")
    return trial.run_trial(spec, device)


@pytest.fixture(scope="module")
def shared_temp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dfs-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def two_workers(shared_temp: Path) -> Iterator[ray_pool.RayPool]:
    """One Ray session for all tests; RAY_ADDRESS points to a cluster that must not be joined."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        patch.setenv("TMPDIR", str(shared_temp))
        patch.setenv("DFS_TESTS", str(TESTS))
        patch.setattr(tempfile, "tempdir", str(shared_temp))
        patch.setitem(engines.REGISTRY, "fake", fake_engine.REGISTERED)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
        devices = tuple(replace(fake_engine.CPU, index=index) for index in range(2))
        with ray_pool.RayPool(devices, run_trial=fake_run) as made:
            yield made


def servers_of(folder: Path) -> list[int]:
    return [json.loads(path.read_text())["leader"] for path in leftovers.default_dir().glob("*.json")]


def collect(made: pool.Pool, count: int) -> list[TrialResult]:
    done: list[TrialResult] = []
    while len(done) < count:
        new = made.wait(30.0)
        assert new, "nothing finished in time"
        done += new
    return done


@pytest.mark.ray
def test_ray_runs_trials_on_actors_of_their_own(two_workers: ray_pool.RayPool, tmp_path: Path) -> None:
    assert two_workers.idle() == 2
    assert two_workers.wait(0.0) == ()
    pids = two_workers.worker_pids()
    assert len({os.getpid(), *pids}) == 3
    # A server inherits its worker's priority: behind everything else it would be measured wrongly.
    assert {psutil.Process(pid).nice() for pid in pids} == {psutil.Process().nice()}
    two_workers.submit(fake_engine.spec(tmp_path, uid="a"))
    two_workers.submit(fake_engine.spec(tmp_path, uid="b"))
    assert two_workers.idle() == 0
    done = {entry.uid: entry for entry in collect(two_workers, 2)}
    assert two_workers.idle() == 2
    assert [done[uid].failure for uid in ("a", "b")] == [None, None]
    assert {int(entry.worker.rpartition(":")[2]) for entry in done.values()} == set(pids)
    assert {entry.device.index for entry in done.values()} == {0, 1}


@pytest.mark.ray
def test_a_server_under_ray_sees_no_card_unless_it_owns_one(two_workers: ray_pool.RayPool, tmp_path: Path) -> None:
    """Ray leaves CUDA_VISIBLE_DEVICES unset for workers without a GPU: the server's own variable is ours."""
    two_workers.submit(fake_engine.spec(tmp_path, uid="env"))
    (done,) = collect(two_workers, 1)
    assert done.launch is not None
    assert done.launch.env == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.ray
def test_a_slow_worker_holds_up_nobody(two_workers: ray_pool.RayPool, tmp_path: Path) -> None:
    """One trial does not end before all others have: the other worker goes on alone."""
    go_on = tmp_path / "go_on"
    two_workers.submit(fake_engine.spec(tmp_path, f"until:{go_on}", uid="slow"))
    for index in range(3):
        two_workers.submit(fake_engine.spec(tmp_path, uid=f"quick{index}"))
    quick = collect(two_workers, 3)
    assert [entry.uid for entry in quick] == ["quick0", "quick1", "quick2"]
    assert len({entry.worker for entry in quick}) == 1
    go_on.touch()
    (slow,) = collect(two_workers, 1)
    assert {entry.failure for entry in (slow, *quick)} == {None}
    assert slow.worker != quick[0].worker


@pytest.mark.ray
def test_trials_that_may_share_a_server_go_to_the_worker_that_has_it(
    two_workers: ray_pool.RayPool, tmp_path: Path
) -> None:
    def warm(uid: str, budget: int) -> TrialSpec:
        made = fake_engine.spec(tmp_path, uid=uid, knobs={"budget": budget})
        return replace(made, policy=replace(made.policy, fresh_server=False))

    seats: dict[int, set[int]] = {16: set(), 22: set()}
    for order in ((16, 22), (22, 16), (22, 16)):
        for budget in order:
            two_workers.submit(warm(f"{len(seats[budget])}-{budget}-{order}", budget))
        for done in collect(two_workers, 2):
            assert done.failure is None
            seats[16 if "-16-" in done.uid else 22].add(done.device.index)
    assert sorted(map(sorted, seats.values())) == [[0], [1]]


@pytest.mark.ray
def test_a_killed_worker_costs_its_trial_only(two_workers: ray_pool.RayPool, tmp_path: Path) -> None:
    before = two_workers.worker_pids()
    two_workers.submit(fake_engine.spec(tmp_path, "slow:30", uid="lost"))
    log = tmp_path / "lost" / "server.log"
    assert wait_until(lambda: log.exists() and "decoded 1 tokens" in log.read_text())
    (leader,) = servers_of(tmp_path)
    family = [leader, *(child.pid for child in psutil.Process(leader).children(recursive=True))]
    os.kill(before[0], signal.SIGKILL)
    (done,) = collect(two_workers, 1)
    assert done.uid == "lost"
    assert done.failure is not None
    assert done.failure.kind is FailureKind.WORKER_LOST
    assert done.device.index == 0
    assert done.measurement is Measurement.EMULATED
    assert wait_until(lambda: all(leftovers.start_ticks(pid) is None for pid in family))
    # the seat has a new actor on the same device, and it works
    after = two_workers.worker_pids()
    assert after[1] == before[1]
    assert after[0] != before[0]
    two_workers.submit(fake_engine.spec(tmp_path, uid="next"))
    (next_done,) = collect(two_workers, 1)
    assert next_done.failure is None
    assert next_done.worker.endswith(f":{after[0]}")
    assert servers_of(tmp_path) == []


@pytest.mark.ray
def test_a_worker_that_hangs_is_replaced(
    two_workers: ray_pool.RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "OVERDUE_S", 0.2)
    target = two_workers.devices[1]
    two_workers.submit(fake_engine.spec(tmp_path, uid="hung", knobs={"hang": True}, timeout_s=0.3), on=target)
    monkeypatch.undo()
    assert two_workers.wait(0.01) == ()
    (done,) = collect(two_workers, 1)
    assert done.failure is not None
    assert done.failure.kind is FailureKind.WORKER_LOST
    assert done.device == target
    two_workers.submit(fake_engine.spec(tmp_path, uid="after"), on=target)
    (after,) = collect(two_workers, 1)
    assert (after.failure, after.device) == (None, target)


@pytest.mark.ray
def test_a_trial_can_be_meant_for_one_device(two_workers: ray_pool.RayPool, tmp_path: Path) -> None:
    """Finalists run on every device: a spec for a busy one waits for it, one for an idle one starts at once."""
    first, second = two_workers.devices
    for uid, device in (("a", second), ("b", second), ("c", first)):
        two_workers.submit(fake_engine.spec(tmp_path, uid=uid), on=device)
    done = {entry.uid: entry.device for entry in collect(two_workers, 3)}
    assert done == {"a": second, "b": second, "c": first}
    with pytest.raises(ConfigError, match=r"device Big Card #1: no worker owns it; there are test CPU #0, test CPU #1"):
        two_workers.submit(fake_engine.spec(tmp_path, uid="d"), on=TWO_CARDS[1])


@pytest.mark.ray
def test_a_defect_in_a_worker_is_told_as_ours(two_workers: ray_pool.RayPool, tmp_path: Path) -> None:
    two_workers.submit(fake_engine.spec(tmp_path, uid="bang", knobs={"explode": True}))
    (done,) = collect(two_workers, 1)
    assert done.failure is not None
    assert done.failure.kind is FailureKind.PARSE_FAILED
    assert done.failure.message == "ZeroDivisionError: no trial does this"
    assert "ZeroDivisionError" in done.failure.traceback
    assert two_workers.idle() == 2


@pytest.mark.parametrize("ids", [[], ["0", "1"]])
def test_a_worker_must_own_exactly_one_card(ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "gpus", lambda visible: TWO_CARDS)
    with pytest.raises(StudyFailed, match="must own exactly one GPU"):
        ray_pool.assigned_gpu(ids)


def test_the_assigned_card_is_an_opaque_name(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_id = "MIG-00000000-0000-0000-0000-000000000000"
    monkeypatch.setattr(environment, "gpus", lambda visible: (replace(TWO_CARDS[0], uuid=visible),))
    assert ray_pool.assigned_gpu([slice_id]).uuid == slice_id


def test_a_folder_too_long_for_sockets_is_refused_in_words() -> None:
    long = "/tmp/" + "x" * 115
    with pytest.raises(ConfigError, match=rf"Ray's folder '{long}' is too long for its sockets; allowed: \d+ bytes"):
        pool.make("ray", (fake_engine.CPU,), temp_dir=long)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker",
            "The actor died unexpectedly",
        ),
        (
            "The actor died because of an error raised in its creation task, \x1b[36mray::Worker\x1b[39m\nTraceback\n"
            "dflash_sweep.errors.StudyFailed: a measuring worker must own exactly one GPU",
            "dflash_sweep.errors.StudyFailed: a measuring worker must own exactly one GPU",
        ),
        ("", "ValueError"),
    ],
)
def test_ray_errors_in_one_line(text: str, said: str) -> None:
    line = ray_pool.reason(ValueError(text))
    assert line.startswith(said)
    assert "\n" not in line
    assert "\x1b" not in line


@pytest.mark.parametrize("spelling", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "auto"])
def test_a_cluster_that_is_not_there_is_told_at_once(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = server.free_port()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    address = spelling.format(port=port)
    with pytest.raises(ConfigError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{port}.*cluster\.address=local"):
        pool.make("ray", (fake_engine.CPU,), address=address)


def test_the_default_folder_is_short_even_if_tmpdir_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    assert ray_pool.check_temp_dir(ray_pool.default_temp_dir()).startswith("/tmp/dfs-ray-")


def test_folders_of_dead_processes_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with subprocess.Popen([sys.executable, "-S", "-c", ""]) as ended:
            pass
        dead = Path(folder) / f"dfs-ray-{os.getuid()}-{ended.pid}"
        alive = Path(folder) / f"dfs-ray-{os.getuid()}-1"
        dead.mkdir()
        alive.mkdir()
        ray_pool.default_temp_dir()
        assert (dead.exists(), alive.exists()) == (False, True)


# ---------------------------------------------------------------- the end of the driver

DRIVER = """
import os, sys
sys.path.insert(0, os.environ["DFS_TESTS"])
from pathlib import Path
from fakes import fake_engine
from dflash_sweep import pool, trial
def run(spec, device):
    sys.path.insert(0, os.environ["DFS_TESTS"])
    from fakes import fake_engine
    fake_engine.register()
    return trial.run_trial(spec, device)
if sys.argv[1] == "ray":
    made = pool.make("ray", (fake_engine.CPU,), run_trial=run)
else:
    made = pool.InlinePool(fake_engine.CPU, run)
made.submit(fake_engine.spec(Path(sys.argv[2]), "slow:60", uid="long"))
try:
    made.wait()
except KeyboardInterrupt:
    made.close()
    sys.exit(130)
"""


def test_ctrl_c_ends_the_server_once_and_by_us(tmp_path: Path) -> None:
    """The signal goes to the whole foreground group; the server is in a session of its own and gets our SIGTERM."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "DFS_TESTS": str(TESTS)}
    command = [sys.executable, "-c", DRIVER, "inline", str(tmp_path)]
    with subprocess.Popen(command, env=env, start_new_session=True) as driver:
        log = tmp_path / "long" / "server.log"
        assert wait_until(lambda: log.exists() and "decoded 1 tokens" in log.read_text(), 60)
        (marker,) = (tmp_path / f"dflash-sweep-{os.getuid()}").glob("*.json")
        leader = json.loads(marker.read_text())["leader"]
        os.killpg(driver.pid, signal.SIGINT)
    assert driver.returncode == 130
    assert leftovers.start_ticks(leader) is None
    assert not marker.exists()
    assert not (tmp_path / "long" / "result.json").exists()  # a shutdown of ours is no result, and no crash


@pytest.mark.parametrize("kind", ["inline", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_sigkill_of_the_driver_leaves_no_server(kind: str, tmp_path: Path, shared_temp: Path) -> None:
    home = shared_temp / kind
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"TMPDIR": str(home), "DFS_TESTS": str(TESTS)}
    with subprocess.Popen([sys.executable, "-c", DRIVER, kind, str(tmp_path)], env=env) as driver:
        try:
            log = tmp_path / "long" / "server.log"
            assert wait_until(lambda: log.exists() and "decoded 1 tokens" in log.read_text(), 60)
            (marker,) = (home / f"dflash-sweep-{os.getuid()}").glob("*.json")
            leader = json.loads(marker.read_text())["leader"]
            family = [leader, *(child.pid for child in psutil.Process(leader).children(recursive=True))]
            assert len(family) == 2
        finally:
            driver.kill()
    assert wait_until(lambda: all(leftovers.start_ticks(pid) is None for pid in family), 30)
