"""Faults that a server answers on through: each trial on the real emulator process, and none of them counts as fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_sweep import engines, traces, trial
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Device, EngineSettings, Knobs, ReplayPolicy, Role, TrialSpec

CARD = Device(kind="emulated", index=0, name="rtx4090")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (None, None),
        ("oom_in_decode", FailureKind.OUT_OF_MEMORY),
        ("draft_inactive", FailureKind.DRAFT_INACTIVE),
        ("zero_drafts", FailureKind.DRAFT_INACTIVE),
    ],
)
def test_a_server_that_answers_on_without_doing_its_work_has_failed(
    tmp_path: Path, fault: str | None, kind: FailureKind | None
) -> None:
    options: Knobs = {"card": "rtx4090", "clock": "virtual", "noise": 0.0}
    options |= {} if fault is None else {"fault": fault}
    settings = EngineSettings(name="emulator", n_ctx=32768, options=options)
    spec = TrialSpec(
        uid="s/search/0/0/0",
        study="s",
        role=Role.SEARCH,
        candidate=0,
        speculative=True,
        knobs={
            "verifier": "exact",
            "budget": 16,
            "target_feat_ctx": 128,
            "cache_type_k": "q4_0",
            "cache_type_v": "q4_0",
        },
        engine=settings,
        build=engines.get("emulator").probe(settings),
        trace=traces.load(traces.resolve("agent_short")),
        policy=ReplayPolicy(max_tokens=48),
        evidence_dir=str(tmp_path / "evidence"),
        timeout_s=120.0,
    )
    failure = trial.run_trial(spec, CARD).failure
    assert (None if failure is None else failure.kind) == kind, failure
