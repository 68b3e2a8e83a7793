"""Does the gate stop what cannot win, early, and let go on what can?

    python benchmarks/gate.py [--seeds 100]

The runs that a study makes before its gate (plain decoding three times, the default setting twice) on the emulator's
model with its measured noise; each seed has a conversation and launches of its own. On the agent workload with the
exact verifier no setting can win, so the gate must stop every study, naming the stage; on the code workload with the
batched verifier the best settings win, so it must stop none. Exits with 1 if one is judged wrongly.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from dflash_sweep.analysis import gate
from dflash_sweep.emulator.model import Trial, TurnFigures, simulate
from dflash_sweep.emulator.noise import NoiseSetting
from dflash_sweep.errors import FailureKind
from dflash_sweep.frames import trial_frame, turn_frame
from dflash_sweep.records import (
    Device,
    Exchange,
    Failure,
    Knobs,
    Measurement,
    Role,
    StageTime,
    StoredTrial,
    StudyInfo,
    TrialResult,
    TurnCounters,
    TurnRecord,
    Verdict,
)

CASES = (("agent", "exact", 22, True), ("code", "trusted", 16, False), ("code", "trusted", 22, False))
"""Workload, verifier, the default's budget (22 does not fit the card with the batched verifier), must it stop?"""
DEFAULT: Knobs = {
    "target_feat_ctx": 128, "proposal_temp": 1.0, "top_k": 8, "chain_seed": True,
    "cache_type_k": "q4_0", "cache_type_v": "q4_0", "grammar_verify": False,
}  # fmt: skip
STAGES = {
    "pack": "pack_ms", "draft": "draft_ms", "topk": "topk_ms", "target_tree": "verify_ms", "exact": "exact_ms",
    "accept": "accept_ms", "compact": "compact_ms", "rollback": "rollback_ms", "replay": "replay_ms",
}  # fmt: skip
"""Stages of the fork's log → the glossary's names."""
CARD = Device(kind="emulated", index=0, name="rtx4090")


def turn(index: int, figures: TurnFigures) -> TurnRecord:
    stages = tuple(
        StageTime(name=STAGES[name], total_ms=total) for name, total in figures.stages_ms.items() if name in STAGES
    )
    return TurnRecord(
        conversation="c",
        index=index,
        bucket="other",
        order=index,
        counters=TurnCounters(
            output_tokens=figures.output_tokens,
            prompt_tokens=figures.prompt_tokens,
            cached_tokens=figures.cached_tokens,
            prompt_ms=figures.prompt_ms,
            decode_tokens=figures.decode_tokens,
            decode_ms=figures.decode_ms,
            verify_steps=figures.steps or None,
            stages=stages,
        ),
        exchange=Exchange(turn_index=index, send_ns=0),
        prompt_sha256=f"p{index}",
        text_sha256=f"t{index}",
    )


def stored(number: int, role: Role, knobs: Knobs, done: Trial) -> StoredTrial:
    uid = f"s/{role}/{number}"
    return StoredTrial(
        uid=uid,
        study="s",
        number=number,
        role=role,
        candidate=None,
        repeat=number,
        attempt=0,
        speculative=role is Role.CALIBRATE,
        knobs=knobs,
        engine="emulator",
        build="1",
        trace_name="t",
        trace_sha256="t",
        comparability_key="k",
        result=TrialResult(
            uid=uid,
            measurement=Measurement.EMULATED,
            clock="virtual",
            device=CARD,
            turns=tuple(turn(index, figures) for index, figures in enumerate(done.turns)),
            failure=Failure(kind=FailureKind.OUT_OF_MEMORY, message=done.failure) if done.failure else None,
        ),
    )


def stopped(seed: int, workload: str, verifier: str, budget: int) -> tuple[int, Verdict | None]:
    """Runs made before the gate, and the verdict by which it stops the study (None = it goes on)."""
    rows = []
    for number, role in enumerate([Role.BASELINE] * 3 + [Role.CALIBRATE] * 2):
        speculative = role is Role.CALIBRATE
        default: Knobs = {**DEFAULT, "verifier": verifier, "budget": budget}
        knobs: Knobs = default if speculative else {"cache_type_k": "q4_0"}
        noise = NoiseSetting(seed=seed, launch_seed=number)
        done = simulate(knobs, workload=workload, seed=seed, turns=8, noise=noise, speculative=speculative, n_ctx=16384)
        rows.append(stored(number, role, knobs, done))
    study = StudyInfo(
        name="s", engine="emulator", measurement=Measurement.EMULATED, objective="decode_tps", direction="maximize"
    )
    return len(rows), gate.stop(trial_frame(rows), turn_frame(rows), study)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=100)
    seeds, wrong = parser.parse_args().seeds, 0
    for workload, verifier, budget, must_stop in CASES:
        found = [stopped(seed, workload, verifier, budget) for seed in range(seeds)]
        stops = [verdict for _, verdict in found if verdict is not None]
        named = Counter(verdict.subject for verdict in stops)
        wrong += seeds - len(stops) if must_stop else len(stops)
        runs = max(count for count, _ in found)
        sys.stdout.write(
            f"{workload}, {verifier} verifier, budget {budget} (emulated): "
            f"stopped {len(stops)} of {seeds} studies after {runs} runs"
            f"{''.join(f', {count} × {stage}' for stage, count in named.items())}\n"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
