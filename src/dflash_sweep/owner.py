"""Who is running a trial: a name for this driver that outlives it, and whether such a driver is still alive.

Imports psutil only. The name is host, pid and the process's start time, since pids are used again.
"""

from __future__ import annotations

import os
import socket

import psutil

_START_TOLERANCE_S = 1.0
"""Clock steps between boot-time readings can move a process's start time by less than this."""


def current() -> str:
    """The name of this process."""
    return name_of(os.getpid())


def name_of(pid: int) -> str:
    """The name of a process of this host. Raises psutil.NoSuchProcess if there is none."""
    return f"{socket.gethostname()}:{pid}:{psutil.Process(pid).create_time():.2f}"


def is_alive(owner: str) -> bool:
    """True if the named driver runs on this host now."""
    return owner.split(":")[0] == socket.gethostname() and not is_gone(owner)


def is_gone(owner: str) -> bool:
    """True if the named driver ran on this host and is no longer there; a driver on another host is never gone."""
    host, _, rest = owner.rpartition(":")
    host, _, pid = host.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(rest)) > _START_TOLERANCE_S or process.status() == "zombie"
    except (psutil.NoSuchProcess, ValueError):
        return True
