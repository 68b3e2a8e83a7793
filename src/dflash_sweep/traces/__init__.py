"""Traces: recorded model calls to replay. One canonical format; importers, normaliser, redaction and statistics.

Layer 1: imports `errors` and `records` only. `canonical` reads and writes, `shipped` finds the package's own traces.
"""

from __future__ import annotations

from dflash_sweep.traces.canonical import load, read, save, sha256, validate
from dflash_sweep.traces.shipped import SHIPPED, resolve, shipped

__all__ = ["SHIPPED", "load", "read", "resolve", "save", "sha256", "shipped", "validate"]
