"""Ctrl-C and SIGTERM while a study is driven: raised where it waits, remembered everywhere else. Imports nothing.

Python raises KeyboardInterrupt wherever the main thread happens to be. In the callback of a weak reference, in a
`__del__` or while a C extension imports something it is printed and lost, and the study goes on; between taking a lock
and entering its block the lock is never given back. So the first request is raised at once only where nothing can be
torn, and else as soon as the driver waits again. A second one is raised wherever it comes: somebody wants out.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """The requests to stop that came while the block lasts. Outside of one nothing is asked, and nothing is installed.

    A SIGINT that is ignored already (a shell's background job) stays ignored.
    """

    def __init__(self) -> None:
        self._count = 0
        self._waiting = False
        self._former: dict[signal.Signals, Any] = {}

    def asked(self) -> bool:
        """True from the first request on."""
        return self._count > 0

    def check(self) -> None:
        """Raises KeyboardInterrupt if one has been asked for."""
        if self._count:
            raise KeyboardInterrupt

    @contextmanager
    def raised(self) -> Iterator[None]:
        """A block in which a request is raised at once; one that came before, or was swallowed inside, at its ends."""
        self._waiting = True  # first, so that no request falls between the look and the wait
        try:
            self.check()
            yield
        finally:
            self._waiting = False
        self.check()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            former = signal.getsignal(number)
            if former is not signal.SIG_IGN:
                self._former[number] = former
                signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._former.clear()

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._waiting or self._count > 1:
            raise KeyboardInterrupt


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM is raised like Ctrl-C while the block lasts, wherever it comes: before a study begins and after it."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
