"""Watches a running replay and breaks it off when it cannot end well.

Imports `client`, `hosting`, `pruning`, `errors`, `records`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dflash_sweep.client import Client
from dflash_sweep.errors import FailureKind
from dflash_sweep.hosting import Served, StopRequest
from dflash_sweep.pruning import Stop
from dflash_sweep.records import Exchange

INTERVAL_S = 0.1

DYING_S = 2.0
"""What a server whose connection broke gets to end, before it counts as alive: its guard tells us only after that."""

BROKEN_CONNECTION = frozenset({"connect", "disconnected", "truncated"})


class Watch:
    """While the block runs, a thread of its own looks at server, clock and stop request; `cause` says what it saw.

    crashed: the server ended (`exit_code`); trial_timeout: `deadline` (time.monotonic) has passed; worker_lost: we were
    asked to stop; pruned: a turn showed that the trial is surely worse than the best so far (`stop` says how much).
    None: the block may end as it likes.
    """

    def __init__(self, served: Served, client: Client, deadline: float, should_stop: StopRequest) -> None:
        self._served, self._client, self._deadline, self._should_stop = served, client, deadline, should_stop
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="trial-watch", daemon=True)
        self.cause: FailureKind | None = None
        self.exit_code: int | None = None
        self.stop: Stop | None = None

    def go_on(self, exchange: Exchange, judge: Callable[[], Stop | None] = lambda: None) -> bool:
        """Whether the next turn may be sent. `judge` is asked only where nothing else ends the trial."""
        if exchange.error_type in BROKEN_CONNECTION:
            self._served.wait_exit(DYING_S)
        if self.cause is None:
            self.cause = self._look()
        if self.cause is None and (stop := judge()) is not None:
            self.stop, self.cause = stop, FailureKind.PRUNED
        return self.cause is None

    def _look(self) -> FailureKind | None:
        if not self._served.alive():
            self.exit_code = self._served.exit_code()
            return FailureKind.CRASHED
        if time.monotonic() > self._deadline:
            return FailureKind.TRIAL_TIMEOUT
        return FailureKind.WORKER_LOST if self._should_stop() else None

    def _loop(self) -> None:
        while not self._done.wait(INTERVAL_S) and self.cause is None:
            if (seen := self._look()) is not None:
                self.cause = self.cause or seen
        if self.cause is not None:
            self._client.cancel()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.look_again()

    def look_again(self, *, broken: bool = False) -> None:
        """Whether the server is still there; also after the block, when it has been asked for its settings.

        `broken`: a connection to it has just failed, so it may be ending this very moment.
        """
        if broken and self.cause is None:
            self._served.wait_exit(DYING_S)
        if self.cause is None and not self._served.alive():
            self.cause, self.exit_code = FailureKind.CRASHED, self._served.exit_code()
