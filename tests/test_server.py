"""The server process: readiness, death, port ownership, environment, and that nothing of it is ever left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from dflash_sweep import exec_guard, leftovers, server
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Device, LaunchSpec
from fakes import fake_engine


@pytest.fixture(autouse=True)
def pid_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Markers of these tests' servers stay in the test's own folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return leftovers.default_dir()


def start(folder: Path, behaviour: str = "ok", **options: Any) -> AbstractContextManager[server.Server]:
    port = options.pop("port", None) or server.free_port()
    launch = options.pop("launch", LaunchSpec(argv=fake_engine.command(port, behaviour)))
    options = {"startup_timeout_s": 20.0, "stop_grace_s": 0.3} | options
    return server.running(launch, port=port, log_path=folder / "server.log", **options)


def alive(pid: int) -> bool:
    return leftovers.start_ticks(pid) is not None


def wait_dead(pids: list[int], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def helper_pid(running: server.Server) -> int:
    """The pid that the `grandchild` behaviour prints."""
    deadline = time.monotonic() + 10
    while b"helper" not in running.read_log():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(running.read_log().split(b"helper ")[1].split()[0])


def test_a_server_runs_until_the_block_ends(tmp_path: Path, pid_dir: Path) -> None:
    with start(tmp_path) as running:
        assert running.alive()
        assert running.exit_code() is None
        assert running.read_log() == b"listening\n"
        assert running.log_size() == len(b"listening\n")
        assert running.read_log(7) == b"ng\n"
        assert [process.pid for process in running.processes()] == [running.pid]
        assert running.load_s is not None
        assert 0 < running.load_s < 20
        assert len(list(pid_dir.glob("*.json"))) == 1
        pid = running.pid
    assert wait_dead([pid])
    assert running.exit_code() == 0  # its own SIGTERM handler
    assert running.stopped_by_us
    assert list(pid_dir.glob("*.json")) == []


def test_the_server_leads_no_group_of_ours(tmp_path: Path) -> None:
    """Ctrl-C in a terminal goes to the foreground group: the server must not be in it (it is stopped once, by us)."""
    with start(tmp_path) as running:
        assert os.getsid(running.pid) != os.getsid(0)
        assert os.getpgid(running.pid) != os.getpgid(0)


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        ("oom_abort", -signal.SIGABRT, "signal SIGABRT): ggml_backend_cuda_buffer"),
        ("exit:3", 3, "exit code 3): error: unknown argument --frobnicate"),
    ],
)
def test_an_early_end_is_noticed_with_code_and_log(tmp_path: Path, behaviour: str, code: int, words: str) -> None:
    began = time.monotonic()
    with pytest.raises(server.ServerFailed) as caught, start(tmp_path, behaviour):
        pass
    assert time.monotonic() - began < 15  # not the start-up timeout
    assert caught.value.kind is FailureKind.LAUNCH_FAILED
    assert caught.value.exit_code == code
    assert words in str(caught.value)
    assert str(tmp_path / "server.log") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_executable_is_named(tmp_path: Path) -> None:
    launch = LaunchSpec(argv=("/nonexistent/llama-server", "--port", "1"))
    with (
        pytest.raises(server.ServerFailed, match="cannot run '/nonexistent/llama-server'") as caught,
        start(tmp_path, launch=launch),
    ):
        pass
    assert caught.value.kind is FailureKind.LAUNCH_FAILED


def test_a_file_that_is_no_program_fails_at_launch(tmp_path: Path) -> None:
    broken = tmp_path / "llama-server"
    broken.write_bytes(b"\x00\x01not a program")
    broken.chmod(0o755)
    with (
        pytest.raises(server.ServerFailed, match="Exec format error") as caught,
        start(tmp_path, launch=LaunchSpec(argv=(str(broken),))),
    ):
        pass
    assert caught.value.exit_code == 127


def test_a_server_that_never_gets_ready_times_out_and_is_ended(tmp_path: Path) -> None:
    seen: list[server.Server] = []
    with (
        pytest.raises(server.ServerFailed, match=r"not ready within 1\.5 s") as caught,
        start(tmp_path, "hang", startup_timeout_s=1.5, on_start=seen.append),
    ):
        pass
    assert caught.value.kind is FailureKind.HEALTH_TIMEOUT
    assert caught.value.exit_code is None
    assert caught.value.log_tail == "loading\n"
    assert wait_dead([seen[0].pid])


def test_a_stop_request_ends_the_wait(tmp_path: Path) -> None:
    with (
        pytest.raises(server.ServerFailed, match="stopped by request") as caught,
        start(tmp_path, "hang", should_stop=lambda: True),
    ):
        pass
    assert caught.value.kind is FailureKind.WORKER_LOST


def test_ready_is_asked_until_it_says_yes(tmp_path: Path) -> None:
    answers = iter([False, False, True])
    with start(tmp_path, ready=lambda url: server._accepts(url) and next(answers)) as running:
        assert running.base_url == f"http://127.0.0.1:{running.port}"
    assert next(answers, None) is None


def test_a_taken_port_is_refused_before_launch(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(server.PortTaken, match=f"port {port} is taken.*{os.getpid()}"), start(tmp_path, port=port):
            pass
    assert not (tmp_path / "server.log").exists()


def test_an_answer_from_a_foreign_server_is_no_answer(tmp_path: Path) -> None:
    """Our server ignores its port and stays alive, while an older server answers on the address we watch."""
    port = server.free_port()
    with start(tmp_path / "old", port=port) as old:
        launch = LaunchSpec(argv=fake_engine.command(server.free_port()))
        original = server._check_port_free
        server._check_port_free = lambda host, port: None
        try:
            with (
                pytest.raises(server.PortTaken, match=f"belongs to another process .pid {old.pid}"),
                start(tmp_path / "new", port=port, launch=launch),
            ):
                pass
        finally:
            server._check_port_free = original
        assert old.alive()


def test_a_megabyte_of_log_per_request_blocks_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "flood") as running:
        for _ in range(3):
            subprocess.run([sys.executable, "-c", POST, str(running.port)], check=True, capture_output=True, timeout=20)
        assert running.log_size() > 3_000_000


POST = """
import sys, urllib.request, json
body = json.dumps({"max_tokens": 8}).encode()
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions", body, 10).read()
"""


# ---------------------------------------------------------------- the end of a server


def test_a_server_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, launch=LaunchSpec(argv=deaf(port := server.free_port())), port=port) as s:
        pid = s.pid
    assert wait_dead([pid])
    assert s.exit_code() == -signal.SIGKILL


def deaf(port: int) -> tuple[str, ...]:
    """A server that ignores SIGTERM and listens."""
    code = (
        "import signal, socket, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"
    )
    return (sys.executable, "-S", "-c", code, str(port))


@pytest.mark.parametrize("session", ["same", "own_session"])
def test_helpers_of_the_server_end_with_it(tmp_path: Path, session: str) -> None:
    with start(tmp_path, f"grandchild:{session}") as running:
        helper = helper_pid(running)
        assert alive(helper)
    assert wait_dead([helper, running.pid])


@pytest.mark.parametrize("session", ["same", "own_session"])
def test_helpers_end_when_the_server_alone_is_killed(tmp_path: Path, session: str) -> None:
    with start(tmp_path, f"grandchild:{session}") as running:
        helper = helper_pid(running)
        os.kill(running.pid, signal.SIGKILL)
        assert wait_dead([helper])
        assert running.wait_exit(10)
        assert running.exit_code() == -signal.SIGKILL
        assert not running.stopped_by_us


def test_kill_from_another_thread_ends_the_family(tmp_path: Path) -> None:
    with start(tmp_path, "grandchild:own_session") as running:
        helper = helper_pid(running)
        running.kill()
        assert wait_dead([helper, running.pid])
        assert running.stopped_by_us


DRIVER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fakes import fake_engine
from dflash_sweep import server
from dflash_sweep.records import LaunchSpec
port = server.free_port()
launch = LaunchSpec(argv=fake_engine.command(port, sys.argv[3]))
with server.running(launch, port=port, log_path=Path(sys.argv[2]) / "server.log", startup_timeout_s=20) as running:
    print(running.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that runs a server, and the server's pid."""
    command = [sys.executable, "-c", DRIVER, str(Path(__file__).parent), str(tmp_path), request.param]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        yield process, pid
        process.kill()


@pytest.mark.parametrize("driver", ["grandchild:own_session"], indirect=True)
def test_sigkill_of_the_driver_leaves_no_process(driver: tuple[subprocess.Popen[str], int], tmp_path: Path) -> None:
    process, pid = driver
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    helper = int((tmp_path / "server.log").read_text().split("helper ")[1].split()[0])
    assert all(alive(number) for number in (pid, guard, helper))
    process.kill()
    assert wait_dead([pid, guard, helper])
    # the marker of the dead driver is still there, and the next start clears it away without a word
    assert len(list(leftovers.default_dir().glob("*.json"))) == 1
    assert server.reap() == ()
    assert list(leftovers.default_dir().glob("*.json")) == []


@pytest.mark.parametrize("driver", ["grandchild:own_session"], indirect=True)
def test_survivors_of_a_dead_driver_are_reaped(driver: tuple[subprocess.Popen[str], int], tmp_path: Path) -> None:
    """Even if the guard is killed together with the driver, the next start finds the helper by its token."""
    process, pid = driver
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    helper = int((tmp_path / "server.log").read_text().split("helper ")[1].split()[0])
    assert server.reap() == ()  # its owner lives: hands off
    assert alive(pid)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    assert wait_dead([pid])  # the kernel ends the server with its guard
    assert alive(helper)
    lines = server.reap()
    assert wait_dead([helper])
    assert len(lines) == 1
    assert f"pids {helper}" in lines[0]
    assert server.reap() == ()


def test_a_pid_used_again_is_not_ours(pid_dir: Path) -> None:
    """A marker whose numbers now belong to other processes must not hurt them."""
    innocent = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        path = leftovers.write(pid_dir, innocent.pid, leftovers.new_token(), "server")
        text = path.read_text()
        ticks = leftovers.start_ticks(innocent.pid)
        owner = leftovers.start_ticks(os.getpid())
        text = text.replace(f'"leader_start": {ticks}', '"leader_start": 12').replace(
            f'"owner_start": {owner}', '"owner_start": 11'
        )
        path.write_text(text)
        assert server.reap() == ()
        assert innocent.poll() is None
        assert not path.exists()
    finally:
        innocent.kill()
        innocent.wait()


def test_unreadable_and_older_markers_are_cleared(pid_dir: Path) -> None:
    (pid_dir / "1-a.json").write_text("{")
    (pid_dir / "2-b.json").write_text('{"leader": 1}')
    old = leftovers.write(pid_dir, os.getpid(), leftovers.new_token(), "server")
    old.write_text(old.read_text().replace(leftovers.boot_id(), "another-boot"))
    assert server.reap() == ()
    assert list(pid_dir.glob("*.json")) == []


def test_children_are_found_with_and_without_the_kernels_list() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as child:
        assert child.pid in exec_guard.children()
        assert child.pid in exec_guard.children(Path("/proc/nonexistent"))
        assert os.getppid() not in exec_guard.children(Path("/proc/nonexistent"))
        child.kill()


# ---------------------------------------------------------------- environment


def test_a_server_inherits_only_what_is_allowed() -> None:
    parent = {
        "PATH": "/bin", "HOME": "/home/u", "LANG": "de_DE.UTF-8", "LC_NUMERIC": "de_DE", "LC_ALL": "de_DE.UTF-8",
        "LLAMA_ARG_N_PARALLEL": "8", "GGML_CUDA_FORCE_MMQ": "1", "DFLASH_TREE": "1", "LUCE_X": "1",
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1", "CUDA_LAUNCH_BLOCKING": "1", "CUDA_HOME": "/opt/cuda",
        "LD_LIBRARY_PATH": "/opt/lib", "SECRET_TOKEN": "x",
        "CUDA_VERSION": "13.0",
    }  # fmt: skip
    env = server.child_environment({"LLAMA_DDTREE_PROFILE": "1"}, parent)
    assert env == {
        "PATH": "/bin", "HOME": "/home/u", "LD_LIBRARY_PATH": "/opt/lib", "CUDA_HOME": "/opt/cuda",
        "LANG": "C", "LC_ALL": "C", "LLAMA_DDTREE_PROFILE": "1",
    }  # fmt: skip
    assert server.stray_variables(parent) == (
        "CUDA_LAUNCH_BLOCKING", "DFLASH_TREE", "GGML_CUDA_FORCE_MMQ", "LLAMA_ARG_N_PARALLEL", "LUCE_X",
        "OMP_NUM_THREADS",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "visible"),
    [
        (Device(kind="gpu", index=1, name="A", uuid="GPU-11111111-2222"), "GPU-11111111-2222"),
        (Device(kind="gpu", index=3, name="A"), "3"),
        (
            Device(kind="gpu", index=9, name="slice", uuid="MIG-00000000-0000-0000-0000-000000000000"),
            "MIG-00000000-0000-0000-0000-000000000000",
        ),
        (Device(kind="cpu", index=0, name="CPU"), ""),
        (Device(kind="emulated", index=0, name="card"), ""),
    ],
)
def test_a_server_sees_its_own_device_only(device: Device, visible: str) -> None:
    expected = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}
    assert server.device_variables(device) == expected


def test_the_device_wins_over_a_variable_of_the_launch(tmp_path: Path) -> None:
    port = server.free_port()
    launch = LaunchSpec(argv=fake_engine.command(port), env={"CUDA_VISIBLE_DEVICES": "7", "X": "1"})
    with start(tmp_path, port=port, launch=launch, env_extra={"CUDA_VISIBLE_DEVICES": "GPU-1"}) as running:
        environ = Path(f"/proc/{running.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=GPU-1" in environ
    assert b"X=1" in environ
    assert b"LC_ALL=C" in environ


def test_two_free_ports_differ() -> None:
    assert len({server.free_port() for _ in range(20)}) > 1
