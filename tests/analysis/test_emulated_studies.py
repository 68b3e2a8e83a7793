"""Verdicts about studies of the emulator, whose truth is known: what wins where, and what never does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dflash_sweep.analysis.bound import structural_bound
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.verdicts import judge
from dflash_sweep.emulator import model
from dflash_sweep.emulator.noise import NoiseSetting
from dflash_sweep.records import Measurement, Verdict, VerdictStatus
from fakes.trial_tables import no_turns, study, table, trial

FIXED: dict[str, Any] = {"cache_type_k": "q4_0", "cache_type_v": "q4_0", "n_batch": 512}
STAGES = {"pack": "pack_ms", "draft": "draft_ms", "topk": "topk_ms", "target_tree": "verify_ms", "exact": "exact_ms",
          "accept": "accept_ms", "compact": "compact_ms", "rollback": "rollback_ms", "replay": "replay_ms"}  # fmt: skip


def launch(number: int, seed: int, workload: str, knobs: dict[str, Any] | None, role: str) -> dict[str, Any]:
    """One launch of the emulator as a row of the trial table; knobs None = plain decoding."""
    done = model.simulate(
        FIXED | (knobs or {}), workload=workload, seed=seed, turns=4, n_ctx=16384, speculative=knobs is not None,
        noise=NoiseSetting(seed=seed, launch_seed=number),
    )  # fmt: skip
    common: dict[str, Any] = {"role": role, "measurement": "emulated", "speculative": knobs is not None}
    if done.failure:
        common |= {"failure_kind": "out_of_memory", "failure_message": done.failure}
        return trial(number, tps=None, knobs=knobs, **common)
    tokens = sum(turn.decode_tokens for turn in done.turns)
    steps = sum(turn.steps for turn in done.turns)
    row = trial(number, tps=done.decode_tps, knobs=knobs, **common)
    row |= {
        "decode_tokens": tokens,
        "decode_ms": sum(turn.decode_ms for turn in done.turns),
        "verify_steps": steps or None,
    }
    row["acceptance_length"] = tokens / steps if steps else None
    for key, name in {**STAGES, "step": "step_ms"}.items():
        total = sum(turn.stages_ms.get(key, 0.0) for turn in done.turns)
        row[name] = total / steps if steps and total > 0 else None
    return row


def rows_of(seed: int, workload: str, verifier: str, searched: int) -> list[dict[str, Any]]:
    """Three plain launches, the default twice, then random settings."""
    rng = np.random.default_rng(seed)
    default = {"budget": 16, "proposal_temp": 0.7, "target_feat_ctx": 128, "verifier": verifier}
    plan: list[tuple[str, dict[str, Any] | None]] = [("baseline", None)] * 3 + [("calibrate", default)] * 2
    for _ in range(searched):
        plan.append(
            ("search", {"budget": int(rng.choice([8, 12, 16])), "proposal_temp": float(rng.choice([0.3, 0.7, 1.0])),
                        "target_feat_ctx": int(rng.choice([64, 128, 512, 1024])), "verifier": verifier})
        )  # fmt: skip
    return [launch(number, seed, workload, knobs, role) for number, (role, knobs) in enumerate(plan)]


def bound(frame: pd.DataFrame) -> Verdict:
    return structural_bound(gather(frame, no_turns(), study(measurement=Measurement.EMULATED)))[0]


@pytest.mark.parametrize("seed", range(8))
def test_one_by_one_verification_is_stopped_after_five_launches(seed: int) -> None:
    verdict = bound(table(rows_of(seed, "agent", "exact", 0)))
    assert verdict.status is VerdictStatus.HOLDS, verdict.statement
    assert verdict.subject == "exact_ms"


@pytest.mark.parametrize("seed", range(8))
def test_batched_verification_of_code_is_never_stopped(seed: int) -> None:
    for searched in (0, 3, 20):
        verdict = bound(table(rows_of(seed, "code", "trusted", searched)))
        assert verdict.status is not VerdictStatus.HOLDS, verdict.statement


def test_a_whole_emulated_study_says_what_is_true_of_it() -> None:
    frame = table(rows_of(3, "code", "trusted", 60))
    found = judge(frame, no_turns(), study(measurement=Measurement.EMULATED))
    draft = next(v for v in found if v.id == "stage_attribution")
    assert draft.subject == "draft_ms"  # the shared draft path takes most of a step
    window = next(v for v in found if v.id == "dead_axis" and v.subject == "target_feat_ctx")
    assert window.status is VerdictStatus.DOES_NOT_HOLD  # 1,024 features make drafting slower
    spot = next(v for v in found if v.id == "sweet_spot" and v.subject == "target_feat_ctx")
    assert spot.status is VerdictStatus.HOLDS
    assert spot.ci_high is not None
    assert spot.ci_high < 1024
