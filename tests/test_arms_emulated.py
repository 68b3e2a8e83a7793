"""Arms from end to end: played on the emulator, stored, read back, paired, and said on the page.

The emulated DDTree server asks its grammar once for each token that a speculative step keeps (unless it is launched
without grammar verify), so tools cost time there and none in plain decoding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dflash_sweep import arms, engines, frames, metrics, objective, traces, trial
from dflash_sweep.analysis.arm_effects import arm_effects
from dflash_sweep.analysis.evidence import Evidence, gather
from dflash_sweep.records import (
    AS_RECORDED,
    Device,
    EngineSettings,
    Knobs,
    Measurement,
    ReplayPolicy,
    Role,
    StoredTrial,
    StudyInfo,
    TrialSpec,
)
from dflash_sweep.report import findings_json, writer
from dflash_sweep.store import Store, comparability_key

CARD = Device(kind="emulated", index=0, name="rtx4090")
SETTINGS = EngineSettings(name="emulator", n_ctx=32768, options={"card": "rtx4090", "clock": "virtual", "noise": 0.0})
KNOBS: Knobs = {
    "verifier": "exact",
    "budget": 16,
    "target_feat_ctx": 128,
    "cache_type_k": "q4_0",
    "cache_type_v": "q4_0",
}
POLICY = ReplayPolicy(max_tokens=48, arms=(AS_RECORDED, arms.NO_TOOLS, arms.NO_GRAMMAR))
STUDY = StudyInfo(name="arms", engine="emulator", measurement=Measurement.EMULATED)


def spec(folder: Path, number: int, knobs: Knobs | None) -> TrialSpec:
    role = Role.BASELINE if knobs is None else Role.SEARCH
    return TrialSpec(
        uid=f"arms/{role}/{number}/0/0",
        study="arms",
        role=role,
        candidate=None if knobs is None else number,
        speculative=knobs is not None,
        knobs=knobs or {},
        engine=SETTINGS,
        build=engines.get("emulator").probe(SETTINGS),
        trace=traces.load(traces.resolve("tool_bursts")),
        policy=POLICY,
        evidence_dir=str(folder / str(number)),
    )


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredTrial, ...]:
    folder = tmp_path_factory.mktemp("arms")
    with Store(f"sqlite:///{folder / 'studies.db'}") as store:
        store.save_study(STUDY)
        plans: list[Knobs | None] = [None, {**KNOBS, "grammar_verify": True}, {**KNOBS, "grammar_verify": False}]
        for number, knobs in enumerate(plans):
            planned = spec(folder, number, knobs)
            store.begin(planned, "test", comparability_key(planned, CARD.name))
            store.finish(trial.run_trial(planned, CARD))
        return store.trials("arms")


def evidence(stored: tuple[StoredTrial, ...], *numbers: int) -> Evidence:
    chosen = [entry for entry in stored if entry.number in numbers]
    return gather(frames.trial_frame(chosen), frames.turn_frame(chosen), STUDY)


def test_only_the_first_arm_counts(stored: tuple[StoredTrial, ...]) -> None:
    for entry in stored:
        assert entry.result.failure is None
        turns = [turn for turn in entry.result.turns if not turn.warmup]
        by_arm = {arm: [turn for turn in turns if turn.exchange.arm == arm] for arm in POLICY.arms}
        assert {arm: len(own) for arm, own in by_arm.items()} == dict.fromkeys(POLICY.arms, 11)
        row = frames.trial_row(entry)
        assert (row["n_turns"], row["n_valid_turns"]) == (11, 11)
        assert row["wall_tps"] is None  # it would hold the other arms' time
        assert row["decode_tps"] == metrics.pooled_decode_tps(by_arm[AS_RECORDED])
        assert objective.figure(entry.result, "decode_tps") == row["decode_tps"]
        assert {turn.invalid_reason for turn in by_arm[arms.NO_TOOLS]} == {"other_arm"}


def test_the_grammar_costs_what_the_server_was_built_to_cost(stored: tuple[StoredTrial, ...]) -> None:
    slowed = {(effect.setting is None, effect.other): effect for effect in arm_effects(evidence(stored, 0, 1))}
    assert set(slowed) == {(plain, other) for plain in (True, False) for other in (arms.NO_TOOLS, arms.NO_GRAMMAR)}
    grammar = slowed[False, arms.NO_GRAMMAR]
    assert grammar.speed.high is not None
    assert grammar.speed.high < 1  # slower with it
    assert (grammar.turns, grammar.runs) == (11, 1)
    assert grammar.length is not None
    assert grammar.length.value == pytest.approx(1.0)  # the same prompt: the same steps
    assert slowed[True, arms.NO_GRAMMAR].speed.value == pytest.approx(1.0, abs=1e-3)  # plain decoding has no such walk
    free = {(effect.setting is None, effect.other): effect for effect in arm_effects(evidence(stored, 0, 2))}
    assert free[False, arms.NO_GRAMMAR].speed.value == pytest.approx(1.0, abs=1e-3)


def test_the_page_and_the_json_say_it(stored: tuple[StoredTrial, ...], tmp_path: Path) -> None:
    page = writer.write(STUDY, stored[:2], tmp_path, formats=("png",)).read_text()
    assert "## Tools and grammar: with against without" in page
    assert "without a grammar (11 turns in pairs, 1 run): slower. Tokens per step: 1.000" in page
    assert "left out of every figure" not in page
    loaded: dict[str, Any] = json.loads((tmp_path / "findings.json").read_text())
    jsonschema.validate(loaded, findings_json.schema(), cls=jsonschema.Draft202012Validator)
    assert [(entry["other"], entry["turns"]) for entry in loaded["arms"]] == [
        ("no_tools", 11), ("no_tools", 11), ("no_grammar", 11), ("no_grammar", 11),
    ]  # fmt: skip
