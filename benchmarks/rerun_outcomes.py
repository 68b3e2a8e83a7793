"""How often a rerun is judged rightly, over many studies drawn from the emulator's model with its measured noise.

    python benchmarks/rerun_outcomes.py [--studies 200] [--turns 4]

Each study has what the noise is told from (plain decoding eight times, the default three times, three finalists in four
blocks) and one search trial that was run once. That trial is judged again from three new runs beside three of plain
decoding: on the same machine, on one 2, 5 and 10 % slower, and on one where speculation alone became 30 % slower. One
run in nine of the published repeats is far faster than the others, and so is one here.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter

from dflash_sweep.analysis.intervals import Spread
from dflash_sweep.analysis.reproduction import Outcome, Reproduction, judge
from dflash_sweep.emulator.model import simulate
from dflash_sweep.emulator.noise import NoiseSetting
from dflash_sweep.records import Knobs

DEFAULT: Knobs = {
    "target_feat_ctx": 128, "budget": 22, "proposal_temp": 1.0, "top_k": 8, "chain_seed": True, "cache_type_k": "q4_0",
    "cache_type_v": "q4_0", "verifier": "exact", "grammar_verify": False,
}  # fmt: skip
FINALISTS: tuple[Knobs, ...] = tuple({**DEFAULT, "budget": budget} for budget in (12, 16, 32))
SEARCHED: Knobs = {**DEFAULT, "top_k": 4}
PLAIN: Knobs = {"cache_type_k": "q4_0"}
CASES = (
    ("nothing changed", 0.0, 1.0),
    ("2 % slower", 0.02, 1.0),
    ("5 % slower", 0.05, 1.0),
    ("10 % slower", 0.10, 1.0),
    ("speculation alone 30 % slower", 0.0, 1 / 1.3),
)
"""What happened, the machine's slow-down, and a factor on the speculative figure alone."""


class Machine:
    """Launches of one study, each with noise of its own."""

    def __init__(self, seed: int, turns: int) -> None:
        self._seed, self._turns, self._launches = seed, turns, 0

    def runs(self, knobs: Knobs, count: int, slowdown: float = 0.0) -> list[float]:
        """tok/s of `count` launches."""
        return [self._run(knobs, slowdown) for _ in range(count)]

    def _run(self, knobs: Knobs, slowdown: float) -> float:
        self._launches += 1
        noise = NoiseSetting(seed=self._seed, launch_seed=self._launches, slowdown=slowdown)
        done = simulate(
            knobs, workload="agent", seed=self._seed, turns=self._turns, noise=noise, speculative=knobs is not PLAIN,
            n_ctx=16384,
        )  # fmt: skip
        tokens = sum(turn.decode_tokens for turn in done.turns)
        return 1000.0 * tokens / sum(turn.decode_ms for turn in done.turns)


def spread(groups: list[list[float]]) -> Spread:
    """Dispersion pooled over repeated settings, as analysis.noise.repeat_noise gives it."""
    logs = [[math.log(value) for value in group] for group in groups]
    squares = sum((value - sum(group) / len(group)) ** 2 for group in logs for value in group)
    df = sum(len(group) - 1 for group in logs)
    return Spread(sd=math.sqrt(squares / df), df=df)


def reruns(seed: int, turns: int) -> list[Reproduction]:
    """One study, and its search trial judged again in every case."""
    machine = Machine(seed, turns)
    plain = machine.runs(PLAIN, 8)
    repeated = [machine.runs(DEFAULT, 3), *(machine.runs(knobs, 4) for knobs in FINALISTS)]
    then = machine.runs(SEARCHED, 1)
    return [
        judge(
            then,
            [factor * value for value in machine.runs(SEARCHED, 3, slowdown)],
            plain_then=plain,
            plain_now=machine.runs(PLAIN, 3, slowdown),
            spread=spread(repeated),
            plain_spread=spread([plain]),
        )
        for _, slowdown, factor in CASES
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4)
    arguments = parser.parse_args()
    found = [reruns(seed, arguments.turns) for seed in range(arguments.studies)]
    for case, (name, slowdown, factor) in enumerate(CASES):
        judged = [study[case] for study in found]
        counts = Counter(entry.outcome for entry in judged)
        words = ", ".join(f"{outcome.replace('_', ' ')} {counts[outcome]}" for outcome in Outcome if counts[outcome])
        covered = []
        for ratio, changes in (
            (factor / (1 + slowdown), [entry.change for entry in judged]),
            (1 / (1 + slowdown), [entry.plain for entry in judged]),
        ):
            intervals = [change.interval for change in changes if change is not None]
            covered.append(sum(not interval.excludes(ratio) for interval in intervals))
        sys.stdout.write(
            f"{name}: {words} of {len(judged)}; the true change is in the 95 % interval of {covered[0]} trials and "
            f"{covered[1]} baselines\n"
        )
    false = sum(study[0].outcome is Outcome.NOT_REPRODUCED for study in found)
    return 1 if false > 0.02 * len(found) else 0


if __name__ == "__main__":
    sys.exit(main())
