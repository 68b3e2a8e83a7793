"""Who is running a trial: a name for this driver that outlives it, and whether such a driver is still alive.

Imports `leftovers` and psutil. The name is host, pid and the process's start time, since pids are used again, and the
id of the machine's start, since a machine that went down takes a setting with it that may have been the reason.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import psutil

from dflash_sweep import leftovers

_BOOT_TOLERANCE_S = 120.0
"""A name without a boot id is judged by times; the clock may have been set by this much since the machine started."""

_START_TOLERANCE_S = 1.0
"""Clock steps between boot-time readings can move a process's start time by less than this."""


def current() -> str:
    """The name of this process."""
    return name_of(os.getpid())


def name_of(pid: int) -> str:
    """The name of a process of this host. Raises psutil.NoSuchProcess if there is none."""
    return f"{socket.gethostname()}:{pid}:{psutil.Process(pid).create_time():.2f}@{_boot()}"


def _boot() -> str:
    with suppress(OSError):
        return leftovers.boot_id()
    return ""


def machine_went_down(owner: str) -> bool:
    """True if this host has been started again since the named driver began; of another host nothing is known."""
    host, _, rest = owner.rpartition(":")
    host, _, _ = host.rpartition(":")
    began, _, boot = rest.partition("@")
    if host != socket.gethostname():
        return False
    if boot and _boot():
        return boot != _boot()
    try:
        return float(began) + _BOOT_TOLERANCE_S < psutil.boot_time()
    except ValueError:
        return False


def is_alive(owner: str) -> bool:
    """True if the named driver runs on this host now."""
    return owner.split(":")[0] == socket.gethostname() and not is_gone(owner)


def is_gone(owner: str) -> bool:
    """True if the named driver ran on this host and is no longer there; a driver on another host is never gone."""
    host, _, rest = owner.rpartition(":")
    host, _, pid = host.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    if machine_went_down(owner):
        return True
    try:
        process = psutil.Process(int(pid))
        began = float(rest.partition("@")[0])
        return abs(process.create_time() - began) > _START_TOLERANCE_S or process.status() == "zombie"
    except (psutil.NoSuchProcess, ValueError):
        return True
