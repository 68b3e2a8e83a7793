"""Does a second, slower card mislead the search?

    python benchmarks/unlike_cards.py [--seeds 30] [--candidates 60]

Drawn figures, no server: a space of 8,820 points in which each value of a knob has a factor of its own on speed (6 %
scatter), noise of 3 % a run, and candidates that run on one of two cards at random, of which the second has 0.6 times
the speed of the first. Each seed has a space of its own. Shown are the best true speed among the candidates and the
mean one of their second half, as shares of the true optimum, for three searches: on one card; on both, as `study` does
it (see `levelling`); on both, with the measured values as they are.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Callable
from statistics import fmean

from dflash_sweep.outcomes import Outcome
from dflash_sweep.records import Knobs
from dflash_sweep.samplers import SamplerChoice
from dflash_sweep.space import parse_space
from dflash_sweep.study import Study

SPACE = parse_space(
    {
        "target_feat_ctx": "choice(32, 64, 128, 256, 512, 1024, 2048)",
        "budget": "choice(8, 12, 16, 22, 28, 32, 40)",
        "proposal_temp": "choice(0.3, 0.5, 0.7, 0.85, 1.0)",
        "top_k": "choice(1, 2, 4)",
        "chain_seed": "choice(true, false)",
        "cache_type_k": "choice(q4_0, q8_0, f16)",
        "cache_type_v": "choice(q8_0, f16)",
    }
)
SCATTER, NOISE, SECOND_CARD = 0.06, 0.03, 0.6
WAYS = ("one card", "two cards, levelled", "two cards, as measured")


def truth(seed: int) -> Callable[[Knobs], float]:
    """The true speed of each point, as the product of a factor for each value."""
    draws = random.Random(f"space {seed}")
    factors = {
        (axis.name, repr(value)): math.exp(draws.gauss(0.0, SCATTER))
        for axis in SPACE.axes
        for value in axis.values or ()
    }
    return lambda point: math.prod(factors[name, repr(value)] for name, value in point.items())


def searched(seed: int, way: str, candidates: int) -> tuple[float, float]:
    """(best, mean of the second half) of the true speeds of the candidates, over the true optimum."""
    speed, draws = truth(seed), random.Random(f"runs {seed}")
    optimum = max(speed(point) for point in SPACE.points())
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        study = Study(
            f"sqlite:///{folder}/studies.db",
            "s",
            SPACE,
            directions=["maximize"],
            sampler=SamplerChoice(name="tpe", n_startup_trials=10, forecast_every=3),
            seed=seed,
        )
        known: dict[tuple[tuple[str, str], ...], Outcome | None] = {}
        while len(shares) < candidates and (asked := study.ask(known)) is not None:
            number, point = asked
            card = "first" if way == "one card" else draws.choice(("first", "second"))
            figure = 20.0 * speed(point) * math.exp(draws.gauss(0.0, NOISE)) * (SECOND_CARD if card == "second" else 1)
            outcome = Outcome(values=(figure,), device="" if way == "two cards, as measured" else card)
            known[study.key(point)] = outcome
            study.tell(number, outcome, {})
            shares.append(speed(point) / optimum)
    return max(shares), fmean(shares[len(shares) // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description="Does a second, slower card mislead the search?")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--candidates", type=int, default=60)
    given = parser.parse_args()
    sys.stdout.write(
        f"{given.seeds} seeds, {given.candidates} candidates, shares of the true optimum (drawn figures)\n"
    )
    for way in WAYS:
        found = [searched(seed, way, given.candidates) for seed in range(given.seeds)]
        best, later = (fmean(column) for column in zip(*found, strict=True))
        sys.stdout.write(f"{way:24} best candidate {best:.3f}   mean of the second half {later:.3f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
