"""A live view of an invented study: what a test of terminals runs instead of a real one. Ends on Ctrl-C, or alone.

Arguments: how many trials, how long each takes in seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from dflash_sweep.terminal.live import LiveView
from dflash_sweep.terminal.view import console
from dflash_sweep.watcher import Best
from fakes.scenes import make_scene, plain_trial, spec, trial

BEST = Best(candidate=0, value=25.0, unit="tok/s", low=24.5, high=25.5, plain=50.0, gain=0.5, gain_low=0.48,
            gain_high=0.52)  # fmt: skip


def main(trials: int, each_s: float) -> None:
    with LiveView(console(), make_scene(2, where=lambda: {})) as view:
        view.phase("baseline", 1)
        view.finished(plain_trial(), 50.0, None)
        view.phase("search", trials)
        for candidate in range(trials):
            view.started(spec(candidate))
            time.sleep(each_s)
            view.finished(trial(candidate), 25.0, BEST)
            view.note(
                "A sentence that is long enough to need a second line in terminals of eighty columns, 12.5 tok/s."
            )


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), float(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(130)
