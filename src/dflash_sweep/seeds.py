"""One seed in, every seed out: a documented derivation, so that a study can be repeated. Imports nothing of ours."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """The 31-bit seed of one purpose: the first four bytes of SHA-256 over "seed/name/…", top bit cleared.

    Purposes in use: sampler, sampling, trace, order, launch (with candidate and repeat). Independent of
    Python's hash seed, the machine and the number of workers.
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") & 0x7FFFFFFF
