"""One server process: started in its own session, watched until ready, always ended.

Imports `records`, `errors`, `leftovers`, `exec_guard`.

Knows nothing of any engine and sends no request itself: what "ready" means is handed in. The log goes to a file, never
into a pipe (a full pipe blocks the server). `exec_guard` ties the server's life to ours even under SIGKILL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dflash_sweep import exec_guard, leftovers
from dflash_sweep.errors import FailureKind, TrialFailed
from dflash_sweep.records import Device, LaunchSpec

STOP_GRACE_S = 10.0
"""How long a server may take to end after SIGTERM before its whole group gets SIGKILL."""

LOG_TAIL_BYTES = 8192

ALLOWED_VARIABLES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH",
    "CUDA_CACHE_MAXSIZE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "ROCM_PATH", "VK_ICD_FILENAMES",
})  # fmt: skip
"""What a server inherits: where things are, nothing that changes how it computes."""

STRAY_PREFIXES = ("LLAMA_", "GGML_", "DFLASH", "LUCE_", "VLLM_", "SGLANG_", "OMP_", "GOMP_", "KMP_", "MKL_")
STRAY_NAMES = frozenset({
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT",
    "CUDA_SCALE_LAUNCH_QUEUES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_TF32_OVERRIDE", "LD_PRELOAD",
})  # fmt: skip
"""Variables that change how a server computes; they are set by the trial or not at all."""

_LOG = logging.getLogger(__name__)
_POLL_S = 0.02
_GUARD_S = 5.0


class ServerFailed(TrialFailed):
    """A server did not come up or died. `exit_code` is negative for a signal, None while it still runs."""

    def __init__(self, kind: FailureKind, message: str, exit_code: int | None = None, log_tail: str = "") -> None:
        super().__init__(kind, message)
        self.exit_code = exit_code
        self.log_tail = log_tail


class PortTaken(ServerFailed):
    """Another process answers on the port: nothing it says may be measured."""


@dataclass(slots=True, kw_only=True)
class Server:
    """A running server. `pid` is the server's own, not its guard's; `stopped_by_us` tells our stop from a crash."""

    base_url: str
    pid: int
    log_path: Path
    argv: tuple[str, ...]
    env: dict[str, str]
    port: int
    load_s: float | None = None
    stopped_by_us: bool = False
    _guard: subprocess.Popen[bytes] = field(repr=False)

    def log_size(self) -> int:
        """Bytes written to the log so far."""
        return self.log_path.stat().st_size

    def read_log(self, offset: int = 0, size: int = -1) -> bytes:
        """The log from a byte offset on; `size` −1 = to its end."""
        with self.log_path.open("rb") as log:
            log.seek(offset)
            return log.read(size)

    def log_tail(self, limit: int = LOG_TAIL_BYTES) -> str:
        """The last bytes of the log as text, undecodable bytes replaced."""
        return self.read_log(max(0, self.log_size() - limit)).decode(errors="replace")

    def alive(self) -> bool:
        return self._guard.poll() is None

    def exit_code(self) -> int | None:
        """None while it runs; negative = ended by that signal."""
        return self._guard.poll()

    def wait_exit(self, timeout_s: float) -> bool:
        """True once it has ended, False if it has not within the time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(timeout_s)
            return True
        return False

    def processes(self) -> list[psutil.Process]:
        """The server and everything it has started, its guard left out."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self._guard.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """End it at once, from any thread; `running` still does the rest."""
        self.stopped_by_us = True
        _kill_session(self._guard, self.processes())

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, a bounded wait, then SIGKILL for the whole family. Safe to call again."""
        if self._guard.poll() is None:
            self.stopped_by_us = True
            self._guard.send_signal(signal.SIGTERM)
            try:
                self._guard.wait(grace_s)
            except subprocess.TimeoutExpired:
                _LOG.warning("server %d did not end within %.0f s of SIGTERM: killed", self.pid, grace_s)
                _kill_session(self._guard, self.processes())
        self._guard.wait()


def _kill_session(guard: subprocess.Popen[bytes], family: list[psutil.Process]) -> None:
    """SIGKILL for the family first: the guard then collects what is left of it and ends; if not, it is killed too."""
    leftovers.send_kill(family)
    try:
        guard.wait(_GUARD_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
    leftovers.wait_gone(family, _GUARD_S)


def free_port(host: str = "127.0.0.1") -> int:
    """A port the operating system calls free now. Ownership is verified after launch: another may take it first."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def device_variables(device: Device) -> dict[str, str]:
    """What makes a child see exactly its device. The id is passed as it is (an index, GPU-… or MIG-…), never parsed.

    PCI order is set because CUDA's default order is by speed while NVML's (and ours) is by bus. A CPU or emulated card
    sees no GPU: unset would mean all of them.
    """
    own = (device.uuid or str(device.index)) if device.kind == "gpu" else ""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": own}


def child_environment(extra: Mapping[str, str], parent: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a server: allow-listed variables of ours, the C locale, then `extra`."""
    inherited = os.environ if parent is None else parent
    kept = {name: inherited[name] for name in sorted(ALLOWED_VARIABLES) if name in inherited}
    return {**kept, "LANG": "C", "LC_ALL": "C", **extra}


def stray_variables(parent: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Variables set around us that would have changed a server and are kept from it, by name; for a warning."""
    names = os.environ if parent is None else parent
    return tuple(sorted(name for name in names if name.startswith(STRAY_PREFIXES) or name in STRAY_NAMES))


def reap(pid_dir: Path | None = None) -> tuple[str, ...]:
    """End servers that dead workers of this user left behind; one line for each. Called when a worker starts."""
    return leftovers.reap(pid_dir)


def _port_users(port: int) -> list[int]:
    """Pids of processes listening on a local TCP port, as far as this user may see them."""
    connections = psutil.net_connections(kind="tcp")
    return [c.pid for c in connections if c.pid and c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port]


def _check_port_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            users = ", ".join(map(str, _port_users(port))) or "unknown"
            message = f"port {port} is taken by another process (pid {users}): {error.strerror}"
            raise PortTaken(FailureKind.HEALTH_TIMEOUT, message) from error


def _owns_port(server: Server) -> bool:
    """Whether a process of the server's own family listens on the port."""
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == server.port:
                    return True
    return False


def _accepts(base_url: str) -> bool:
    host, _, port = base_url.rpartition("/")[2].rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False


def _spawn(launch: LaunchSpec, env: dict[str, str], log_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start guard and server. Returns the guard and the server's pid."""
    read_end, write_end = os.pipe()
    guard_argv = [sys.executable, "-I", "-S", exec_guard.__file__, str(os.getpid()), str(write_end), *launch.argv]
    try:
        with log_path.open("wb") as log:
            guard = subprocess.Popen(
                guard_argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                pass_fds=(write_end,),
            )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    with os.fdopen(read_end) as report:
        pid = report.readline().strip()
    return guard, int(pid) if pid else guard.pid


def _early_exit(server: Server) -> ServerFailed:
    code, tail = server.exit_code(), server.log_tail()
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "it printed nothing")
    how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
    message = f"the server ended before it was ready ({how}): {last[:300]}; full log: {server.log_path}"
    return ServerFailed(FailureKind.LAUNCH_FAILED, message, code, tail)


def _wait_ready(
    server: Server, ready: Callable[[str], bool], timeout_s: float, should_stop: Callable[[], bool] | None
) -> None:
    deadline, pause = time.monotonic() + timeout_s, _POLL_S
    while True:
        if not server.alive():
            raise _early_exit(server)
        if ready(server.base_url):
            break
        if should_stop is not None and should_stop():
            raise ServerFailed(FailureKind.WORKER_LOST, "stopped by request while the server was starting")
        if time.monotonic() > deadline:
            message = f"the server was not ready within {timeout_s:g} s; full log: {server.log_path}"
            raise ServerFailed(FailureKind.HEALTH_TIMEOUT, message, None, server.log_tail())
        time.sleep(pause)
        pause = min(pause * 1.3, 0.5)
    if not server.alive():
        raise _early_exit(server)
    if not _owns_port(server):
        users = ", ".join(map(str, _port_users(server.port))) or "unknown"
        message = f"port {server.port} answers, but it belongs to another process (pid {users}), not to our server"
        raise PortTaken(FailureKind.HEALTH_TIMEOUT, message, None, server.log_tail())


@contextlib.contextmanager
def running(
    launch: LaunchSpec,
    *,
    port: int,
    log_path: Path,
    startup_timeout_s: float,
    host: str = "127.0.0.1",
    ready: Callable[[str], bool] | None = None,
    should_stop: Callable[[], bool] | None = None,
    env_extra: Mapping[str, str] | None = None,
    stop_grace_s: float = STOP_GRACE_S,
    pid_dir: Path | None = None,
    on_start: Callable[[Server], None] | None = None,
) -> Iterator[Server]:
    """Start a server, wait until it is ready, yield it, and end it and all its family however the block is left.

    `ready(base_url)` is asked again and again (None: a connection is accepted); after it says yes the port must belong
    to this server. `env_extra` is what the worker adds (its device) and wins over the launch's own `env`. Call it from
    a thread that lives as long as the server: the kernel ties the server to that thread.
    Raises ServerFailed (launch_failed: not executable or ended early; health_timeout: not ready in time) or PortTaken.
    """
    executable = launch.argv[0]
    if shutil.which(executable) is None:
        raise ServerFailed(FailureKind.LAUNCH_FAILED, f"cannot run {executable!r}: no such executable")
    _check_port_free(host, port)
    token = leftovers.new_token()
    env = child_environment({**launch.env, **(env_extra or {}), leftovers.TOKEN_VARIABLE: token})
    log_path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    guard, pid = _spawn(launch, env, log_path)
    server = Server(
        base_url=f"http://{host}:{port}",
        pid=pid,
        log_path=log_path,
        argv=launch.argv,
        env=env,
        port=port,
        _guard=guard,
    )
    marker: Path | None = None
    try:
        marker = leftovers.write(pid_dir or leftovers.default_dir(), guard.pid, token, Path(executable).name)
        if on_start is not None:
            on_start(server)
        _wait_ready(server, ready or _accepts, startup_timeout_s, should_stop)
        server.load_s = time.monotonic() - began
        yield server
    finally:
        server.stop(stop_grace_s)
        if marker is not None:
            marker.unlink(missing_ok=True)
