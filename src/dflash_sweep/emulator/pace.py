"""The real clock: waits that end at absolute times, so that lateness does not add up. Imports nothing of ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

FINE_S = 0.002
"""Waits shorter than this end to the tenth of a millisecond; the event loop alone rounds them up to milliseconds, which
at 3,000 tokens a second is three tokens."""


async def _sleep(seconds: float) -> None:
    """Wait at least so long, and let the others run in any case. A short wait holds the process itself."""
    if seconds >= FINE_S:
        await asyncio.sleep(seconds)
        return
    before = time.monotonic()
    await asyncio.sleep(0)
    if (left := seconds - (time.monotonic() - before)) > 0:
        time.sleep(left)


class Pace:
    """One answer's schedule: each wait is due so many seconds after the one before was *due*, not after it ended.

    What is due already is not waited for: after a hold-up the events that it delayed leave one after the other, and the
    sum is right again. `clock` gives seconds, `sleep` waits for them.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = _sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    async def wait(self, seconds: float) -> None:
        """Until `seconds` after the moment at which the last wait was due (at first: after the start)."""
        self._due += seconds
        await self._sleep(max(self._due - self._clock(), 0.0))
