"""Memory that llama-server and its forks print while they load. Imports `engines.logtext`."""

from __future__ import annotations

import re

from dflash_sweep.engines.logtext import number, texts

_BUFFER = re.compile(r"(\S+)\s+(model|KV|RS|compute|output) buffer size\s*=\s*(-?[\d.,]+)\s*MiB")
_NAMES = {"model": "model", "KV": "kv", "RS": "recurrent", "compute": "compute", "output": "output"}
_KV_TYPES = re.compile(r"size\s*=\s*[\d.,]+\s*MiB.*?K \((\w+)\):.*?V \((\w+)\):")


def buffer_mib(log: str) -> dict[str, float]:
    """MiB per kind of buffer (model, kv, recurrent, compute, output), devices and contexts added up.

    Draft and target both count: the sum is what has to fit. Kinds that the log does not print are absent.
    """
    found: dict[str, float] = {}
    for line in texts(log):
        match = _BUFFER.search(line) if "buffer size" in line else None
        value = number(match[3]) if match else None
        if match and value is not None and value >= 0:
            name = _NAMES[match[2]]
            found[name] = round(found.get(name, 0.0) + value, 2)
    return found


def kv_types(log: str) -> tuple[tuple[str, str], ...]:
    """(K type, V type) of every cache the log prints, in order of creation: the target's first, a draft's last."""
    found = []
    for line in texts(log):
        match = _KV_TYPES.search(line) if "K (" in line else None
        if match:
            found.append((match[1], match[2]))
    return tuple(found)
