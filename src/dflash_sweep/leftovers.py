"""Which servers of ours run on this machine, written down so that none can be left behind. Imports nothing of ours.

One small file a server, in a folder of this user: the session it leads, when that leader started, and who owns it.
A pid alone proves nothing (numbers are used again), so a process counts as ours only by its start time, by the session
it belongs to or by the token its environment carries.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

TOKEN_VARIABLE = "SWEEP_SERVER_TOKEN"
"""Set in every server's environment, so that a renamed or re-parented helper can still be told apart."""

_LOG = logging.getLogger(__name__)
_GONE = (OSError, psutil.Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One running server. `*_start` are kernel start times in clock ticks since boot; `boot` names that boot."""

    leader: int
    leader_start: int
    owner: int
    owner_start: int
    token: str
    boot: str
    command: str


def default_dir() -> Path:
    """The folder of this user's markers; made on first use, readable by its owner only."""
    folder = Path(tempfile.gettempdir()) / f"dflash-sweep-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def new_token() -> str:
    return secrets.token_hex(16)


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None = no such process, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write(folder: Path, leader: int, token: str, command: str) -> Path:
    """Note down a server just started by this process. Returns the marker's path, to be removed after its end."""
    marker = Marker(
        leader=leader,
        leader_start=start_ticks(leader) or 0,
        owner=os.getpid(),
        owner_start=start_ticks(os.getpid()) or 0,
        token=token,
        boot=boot_id(),
        command=command,
    )
    path = folder / f"{leader}-{token[:8]}.json"
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(marker)))
    draft.replace(path)
    return path


def family(marker: Marker) -> list[psutil.Process]:
    """Living processes (no zombies) of the marked server: members of its session, and all that carry its token."""
    reused = start_ticks(marker.leader) not in (None, marker.leader_start)
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE):
            if start_ticks(process.pid) is None or process.uids().real != os.getuid() or process.pid == os.getpid():
                continue
            in_session = not reused and os.getsid(process.pid) == marker.leader
            if in_session or process.environ().get(TOKEN_VARIABLE) == marker.token:
                found.append(process)
    return found


def send_kill(processes: list[psutil.Process]) -> None:
    """SIGKILL for each that is still the process it was."""
    for process in processes:
        with contextlib.suppress(*_GONE):
            process.send_signal(signal.SIGKILL)


def reap(folder: Path | None = None, wait_s: float = 10.0) -> tuple[str, ...]:
    """End servers whose owner has died. Returns one line for each; servers of living owners are never touched.

    A marker of an earlier boot or of a server that has ended is removed without a line. Unreadable ones are too.
    """
    lines = []
    for path in sorted((folder or default_dir()).glob("*.json")):
        try:
            marker = Marker(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if marker.boot == boot_id() and start_ticks(marker.owner) == marker.owner_start:
            continue
        survivors = family(marker) if marker.boot == boot_id() else []
        if survivors:
            names = ", ".join(str(process.pid) for process in survivors)
            send_kill(survivors)
            # One that stays is stuck in the kernel, e.g. in a driver call: the next start will find it again.
            ending = "" if (gone := wait_gone(survivors, wait_s)) else "; not all of them end"
            lines.append(
                f"ended leftover server {marker.command!r} (pids {names}) of dead worker {marker.owner}{ending}"
            )
            _LOG.warning("%s", lines[-1])
            if not gone:
                continue
        path.unlink(missing_ok=True)
    return tuple(lines)


def wait_gone(processes: list[psutil.Process], timeout_s: float) -> bool:
    """True once none of the processes runs any more (zombies count as ended)."""
    deadline = time.monotonic() + timeout_s
    while any(start_ticks(process.pid) is not None for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
