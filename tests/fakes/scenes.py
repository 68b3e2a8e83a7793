"""Scenes, trials and endings for the tests of the terminal. The figures are invented."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.records import (
    Device,
    Knobs,
    Measurement,
    Role,
    StageTime,
    StoredTrial,
    StudyInfo,
    TrialSpec,
    Verdict,
    VerdictStatus,
)
from dflash_sweep.report.outcome import Outcome, Setting
from dflash_sweep.terminal import Ending, Scene
from fakes.builders import make_result, make_spec, make_stored, make_turn

AXES = ("target_feat_ctx", "budget", "proposal_temp", "top_k", "chain_seed", "cache_type_k", "cache_type_v")
KNOBS: Knobs = {"target_feat_ctx": 128, "budget": 22, "proposal_temp": 0.85, "top_k": 8, "chain_seed": True,
         "cache_type_k": "q4_0", "cache_type_v": "q4_0"}  # fmt: skip


def make_scene(workers: int = 1, **fields: Any) -> Scene:
    defaults: dict[str, Any] = {
        "study": "ddtree", "measurement": Measurement.EMULATED, "unit": "tok/s", "axes": AXES,
        "devices": tuple(Device(kind="emulated", index=index, name="test card") for index in range(workers)),
        "planned": {"baseline": 3, "calibrate": 2, "search": 40, "confirm": 16},
    }  # fmt: skip
    return Scene(**{**defaults, **fields})


def spec(candidate: int = 0, **fields: Any) -> TrialSpec:
    return make_spec(f"ddtree/search/{candidate}/0/0", candidate=candidate, knobs=KNOBS, **fields)


def trial(candidate: int = 0, **fields: Any) -> StoredTrial:
    """100 tokens in 40 steps of 100 ms: draft 40, topk 10, exact 45, the rest 5; 25 tok/s."""
    stages = tuple(
        StageTime(name=name, total_ms=40 * ms) for name, ms in (("draft_ms", 40), ("topk_ms", 10), ("exact_ms", 45))
    )
    turn = make_turn(tokens=100, decode_ms=4000.0, steps=40, stages=stages)
    uid = f"ddtree/search/{candidate}/0/0"
    own = {"uid": uid, "candidate": candidate, "knobs": KNOBS, "result": make_result(uid, turns=(turn,))}
    return make_stored(candidate, **{**own, **fields})


def plain_trial(repeat: int = 0, ms_per_token: float = 20.0) -> StoredTrial:
    """100 tokens of plain decoding, 20 ms each: 50 tok/s."""
    uid = f"ddtree/baseline/plain/{repeat}/0"
    turn = make_turn(tokens=100, decode_ms=100 * ms_per_token, steps=0, stages=())
    return make_stored(repeat, role=Role.BASELINE, uid=uid, repeat=repeat, result=make_result(uid, turns=(turn,)))


def setting(name: str, value: float, *, advised: bool = False, speculative: bool = True) -> Setting:
    gain = Interval(value=value / 50, low=value / 52, high=value / 48, n=4, method="") if speculative else None
    return Setting(
        name=name, speculative=speculative, knobs=("budget=22", "top_k=8") if speculative else (), n=4,
        value=Interval(value=value, low=value * 0.99, high=value * 1.01, n=4, method=""), gain=gain,
        acceptance_length=2.5 if speculative else None, step_ms=100.0 if speculative else None, advised=advised,
    )  # fmt: skip


def verdict(number: int = 0, status: VerdictStatus = VerdictStatus.HOLDS, statement: str | None = None) -> Verdict:
    return Verdict(id=f"v{number}", subject="study", status=status, statement=statement or f"Finding {number} holds.")


def make_ending(**fields: Any) -> Ending:
    """A study that was won by candidate 3. `statement`, `command`, `settings` go to the outcome."""
    outcome = {name: fields.pop(name) for name in ("statement", "command", "settings") if name in fields}
    status = {name: fields.pop(name) for name in ("status", "stop_reason", "measurement") if name in fields}
    study = StudyInfo(name="ddtree", engine="emulator", measurement=Measurement.EMULATED, status="finished")
    plain = setting("plain decoding", 50.0, speculative=False)
    slower = (setting("#2", 40.0), setting("#0", 30.0))
    settings = (setting("#3", 60.0, advised=True), setting("#1", 55.0), plain, *slower)
    base = Outcome(
        outcome="winner", statement="#3 is the fastest: 60.00 tok/s, 1.20× plain decoding.", is_advice=True,
        candidate=3, unit="tok/s", settings=settings, command="server -m target.gguf --budget 22",
    )  # fmt: skip
    own: dict[str, Any] = {
        "study": replace(study, **status), "code": 0, "outcome": replace(base, **outcome),
        "verdicts": tuple(verdict(number) for number in range(8)), "runs": 61, "failed": 2,
        "findings": Path("/home/me/reports/ddtree/findings.md"),
    }  # fmt: skip
    return Ending(**{**own, **fields})
