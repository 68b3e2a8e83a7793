"""Runs one command that can never outlive its parent. Standard library only, nothing of ours; run as a file.

    python -I -S exec_guard.py PARENT_PID REPORT_FD COMMAND [ARGUMENT ...]

The guard leads the session that `server.running` made, writes the command's pid to REPORT_FD and waits for it. A
server in a session of its own outlives a killed parent, and a signal to the server alone leaves its helpers behind;
so the guard asks the kernel for SIGTERM when its parent dies, adopts every orphan of the command (subreaper) and
leaves only when the whole family has gone. The command itself gets SIGKILL if the guard dies.
SIGTERM from a living parent is passed on to the command. The guard ends as the command ended: same code, same signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36

CANNOT_RUN = 127
"""Exit code where the command cannot be executed at all (as a shell does); the reason is on stderr."""

PARENT_GONE = 125
"""Exit code where the parent was gone before the command was started."""

_HANDLED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _become(command: list[str], guard: int) -> None:
    """In the forked child: undo what Python and the guard changed, then turn into the command. Never returns."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(PARENT_GONE)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_RUN)


def _reap(child: int) -> int | None:
    """Collect every child that has ended. Returns the wait status of `child` if it is one of them."""
    status = None
    while True:
        try:
            pid, this_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            status = this_status


def children(own_list: Path | None = None) -> list[int]:
    """Pids of this process's children, zombies included. Kernels without the list of them are searched instead."""
    try:
        return [int(pid) for pid in (own_list or Path(f"/proc/self/task/{os.getpid()}/children")).read_text().split()]
    except OSError:
        listed = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in listed if _parent(pid) == os.getpid()]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def _kill_family() -> None:
    """SIGKILL all descendants: killed parents hand their children to us (subreaper), so this ends with none left."""
    while True:
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _watch(child: int, parent: int) -> int:
    """Wait for the command, passing SIGTERM on. Returns its wait status; SIGKILL's where the parent died first."""
    while True:
        received = signal.sigwait(_HANDLED)
        if os.getppid() != parent:
            return int(signal.SIGKILL)
        if received == signal.SIGTERM:
            os.kill(child, signal.SIGTERM)
        status = _reap(child)
        if status is not None:
            return status


def _end_as(status: int) -> None:
    """End this process the way the wait status says. Never returns."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def main(arguments: list[str]) -> None:
    """Guard one command; see the module docstring for the arguments. Never returns."""
    parent, report_fd, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with contextlib.suppress(OSError):  # without it only helpers that leave the family on purpose are out of reach
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(PARENT_GONE)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(report_fd)
        _become(command, guard)
    os.write(report_fd, f"{child}\n".encode())
    os.close(report_fd)
    status = _watch(child, parent)
    _kill_family()
    _end_as(status)


if __name__ == "__main__":
    main(sys.argv[1:])
