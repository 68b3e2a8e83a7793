"""A phase played in rounds, so that the sequence of its candidates does not depend on how fast workers are.

`cluster.scheduling=deterministic`. Imports `jobs` and `records`.

Without it a worker that becomes idle is given the next candidate at once, and what the sampler knows by then depends on
which of the other runs happened to be finished. Here a round is as many jobs as there are workers: all of them are
asked for before any of their results is told, and the results are told in the order of asking once the last is there.
The price is that fast workers wait for the slowest of each round.
"""

from __future__ import annotations

from dflash_sweep.jobs import Job, Phase
from dflash_sweep.records import StoredTrial


class Rounds:
    """The phase `phase` in rounds of `width` jobs; the first round has `first` jobs where that is not 0.

    `first`: runs that a driver which died left unfinished; they were asked for together and end together.
    """

    def __init__(self, phase: Phase, width: int, *, first: int = 0) -> None:
        self.name, self.total = phase.name, phase.total
        self._phase, self._width = phase, width
        self._size = first or width
        self._order: list[str] = []
        self._ended: dict[str, tuple[Job, StoredTrial]] = {}
        self._full = False

    def next(self) -> Job | None:
        """The round's next job; None when it has all of them, or when the phase has none for now.

        A round that a worker joins late stays open for it: nothing of the round has been told meanwhile.
        """
        if self._full:
            return None
        job = self._phase.next()
        if job is not None:
            self._order.append(_run(job))
            self._full = len(self._order) == self._size
            return job
        if not self._order:
            return None
        self._full = True
        self._settle()
        return self.next()

    def took(self, job: Job, trial: StoredTrial) -> None:
        """Keep the result; the round's last one has all of them told, in the order of asking."""
        self._ended[_run(job)] = job, trial
        self._settle()

    def _settle(self) -> None:
        if not self._full or len(self._ended) < len(self._order):
            return
        for name in self._order:
            self._phase.took(*self._ended[name])
        self._order, self._ended, self._full, self._size = [], {}, False, self._width


def _run(job: Job) -> str:
    """The run of a job, whatever its attempt."""
    return job.uid("").rpartition("/")[0]
