"""How often the verdicts claim something where nothing is: studies whose axes are all dead.

    python benchmarks/false_claims.py [--studies 200] [--seed 0]

Each study has its own space, number of trials, noise (1.6 to 6 %, the range that public rigs show) and search: half of
them sample at random, half crowd around what looked best so far. Every setting has the same true speed; in half of the
studies plain decoding has it too, in the others a truth about plain decoding is no false claim. Exits with 1 if more
than 5 % of the studies hold a false claim.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dflash_sweep.analysis.verdicts import judge
from dflash_sweep.frames import KNOB_PREFIX, TRIAL_COLUMNS, TURN_COLUMNS
from dflash_sweep.records import AxisInfo, Measurement, StudyInfo, Verdict, VerdictStatus

LIMIT = 0.05

SPACE: dict[str, tuple[Any, ...]] = {
    "budget": (8, 14, 16, 22, 32, 40),
    "target_feat_ctx": (64, 128, 256, 512, 1024),
    "proposal_temp": (0.25, 0.5, 0.7, 0.85, 1.0),
    "top_k": (1, 2, 4, 8),
    "chain_seed": (True, False),
    "cache_type_k": ("f16", "q8_0", "q4_0"),
    "cache_type_v": ("f16", "q8_0", "q4_0"),
}

EFFECT_IDS = ("sweet_spot", "saturation", "drift", "structural_bound", "oracle_gate")
"""Verdicts that claim something when they hold."""


def null_study(rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame, StudyInfo]:
    """Trial table, turn table and study of one null study with all its phases."""
    axes = list(SPACE)[: int(rng.integers(2, len(SPACE) + 1))]
    plain = 1.0 if rng.random() < 0.5 else float(rng.uniform(0.5, 2.0))
    maker = _Maker(rng, axes, float(rng.uniform(0.016, 0.06)), plain, stochastic=bool(rng.random() < 0.5))
    trials = int(rng.choice([12, 24, 40, 80, 120]))
    for _ in range(3):
        maker.run("baseline", None, {})
    default = {name: SPACE[name][0] for name in axes}
    for _ in range(2):
        maker.run("calibrate", 0, default)
    adaptive = bool(rng.random() < 0.5)
    for number in range(1, trials):
        maker.run("search", number, maker.proposal(adaptive))
        if number % 10 == 0:
            maker.run("canary", None, {})
    top = maker.best(3)
    for block in range(4):
        entries: list[tuple[int | None, dict[str, Any]]] = [*top, (None, {})]
        for place in rng.permutation(len(entries)):
            number, knobs = entries[place]
            maker.run("confirm", number, knobs, repeat=block)
    frame = pd.DataFrame(maker.rows, columns=[*TRIAL_COLUMNS, *(KNOB_PREFIX + name for name in axes)])
    for name in axes:
        frame[KNOB_PREFIX + name] = pd.Series([row.get(KNOB_PREFIX + name) for row in maker.rows], dtype=object)
    study = StudyInfo(
        name="null",
        engine="synthetic",
        measurement=Measurement.EMULATED,
        axes=tuple(_axis(name) for name in axes),
        n_trials=trials,
        status="finished",
        config={"protocol": {"confirm_blocks": 4}},
        provenance={"speed_of_plain": plain},
    )
    return frame, pd.DataFrame(columns=list(TURN_COLUMNS)), study


def _axis(name: str) -> AxisInfo:
    values = SPACE[name]
    ordered = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return AxisInfo(name=name, kind="int" if ordered else "choice", values=values, ordered=ordered)


class _Maker:
    """Makes rows: 1,000 tokens in 400 steps; the time is the true one times log-normal noise."""

    def __init__(
        self, rng: np.random.Generator, axes: Sequence[str], sd: float, plain: float, *, stochastic: bool
    ) -> None:
        self.rng, self.axes, self.sd, self.plain, self.stochastic = rng, tuple(axes), sd, plain, stochastic
        self.rows: list[dict[str, Any]] = []

    def proposal(self, adaptive: bool) -> dict[str, Any]:
        point = {name: SPACE[name][int(self.rng.integers(len(SPACE[name])))] for name in self.axes}
        if adaptive and len(self.rows) > 12 and self.rng.random() < 0.7:
            best = self.best(4)
            source = best[int(self.rng.integers(len(best)))][1]
            point = {name: source[name] if self.rng.random() < 0.7 else point[name] for name in self.axes}
        return point

    def best(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        found: dict[int, tuple[float, dict[str, Any]]] = {}
        for row in self.rows:
            if row["role"] in ("calibrate", "search"):
                knobs = {name: row[KNOB_PREFIX + name] for name in self.axes}
                found[row["candidate"]] = (row["decode_tps"], knobs)
        ranked = sorted(found.items(), key=lambda item: -item[1][0])[:count]
        return [(number, knobs) for number, (_, knobs) in ranked]

    def run(self, role: str, candidate: int | None, knobs: dict[str, Any], repeat: int = 0) -> None:
        plain = candidate is None
        steps = None if plain else int(self.rng.normal(400, 4)) if self.stochastic else 400
        decode_ms = 25_000.0 / (self.plain if plain else 1.0) * float(np.exp(self.rng.normal(0, self.sd)))
        step = decode_ms / steps if steps else None
        number = len(self.rows)
        row: dict[str, Any] = dict.fromkeys(TRIAL_COLUMNS)
        row |= {
            "uid": f"null/{number}", "study": "null", "number": number, "role": role, "candidate": candidate,
            "repeat": repeat, "attempt": 0, "speculative": not plain, "engine": "synthetic", "build": "1",
            "measurement": "emulated", "clock": "virtual", "device": "card", "comparability_key": "k", "trace": "t",
            "decode_tokens": 1000, "output_tokens": 1000, "decode_ms": decode_ms, "verify_steps": steps,
            "decode_tps": 1e6 / decode_ms, "acceptance_length": 1000 / steps if steps else None, "step_ms": step,
            "draft_ms": 0.6 * step if step else None, "verify_ms": 0.4 * step if step else None,
        }  # fmt: skip
        row |= {KNOB_PREFIX + name: value for name, value in knobs.items()}
        self.rows.append(row)


def false_claims(verdicts: Sequence[Verdict], speed_of_plain: float = 1.0) -> list[str]:
    """What a null study's verdicts claim though it is not so, as "id subject"."""
    claims = []
    for verdict in verdicts:
        holds = verdict.status is VerdictStatus.HOLDS
        moved = verdict.id == "dead_axis" and verdict.status is VerdictStatus.DOES_NOT_HOLD
        beats = verdict.details.get("beats_plain")
        if verdict.id == "break_even" and verdict.status is not VerdictStatus.NOT_ENOUGH_DATA:
            beats = holds
        about_plain = beats is not None and (speed_of_plain == 1.0 or beats != (speed_of_plain < 1.0))
        kept = verdict.id == "keep_discard" and holds
        if moved or about_plain or kept or (holds and verdict.id in EFFECT_IDS):
            claims.append(f"{verdict.id} {verdict.subject}")
    return claims


def count(studies: int, seed: int) -> tuple[int, Counter[str]]:
    """Studies with any claim, and the claims by verdict id."""
    with_claim, kinds = 0, Counter[str]()
    for number in range(studies):
        trials, turns, study = null_study(np.random.default_rng((seed, number)))
        claims = false_claims(judge(trials, turns, study), study.provenance["speed_of_plain"])
        with_claim += bool(claims)
        kinds.update({claim.split()[0] for claim in claims})
    return with_claim, kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    started = time.perf_counter()
    with_claim, kinds = count(chosen.studies, chosen.seed)
    share = with_claim / chosen.studies
    sys.stdout.write(
        f"{with_claim} of {chosen.studies} null studies report an effect or a winner ({100 * share:.1f} %, limit "
        f"{100 * LIMIT:.0f} %)\nby verdict: {dict(kinds)}\n{time.perf_counter() - started:.0f} s\n"
    )
    return int(share > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
