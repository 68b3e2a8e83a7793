"""The shipped studies for a card pass the preflight on stand-ins of their servers: the builds have every knob."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_sweep import app, engines, preflight, settings
from dflash_sweep.records import Device
from fakes.servers import arrange

CARD = Device(kind="gpu", index=0, name="test card", memory_mib=24_576)
TREE = ("space.target_feat_ctx=choice(256,512,1024)", "space.budget=choice(16,22,32)", "space.top_k=choice(2,4)")


def examined(study: str, variant: str, folder: Path, *words: str) -> preflight.Preflight:
    server = arrange.settings_for(study, variant, folder)
    paths = [
        f"engine.binary={server.binary}",
        f"engine.model={server.model}",
        f"engine.draft_model={server.draft_model}",
    ]
    cfg = app.compose_overrides(app.normalise([f"+study={study}", *paths, *words]))
    chosen = settings.build(cfg, launch_dir=folder, run_dir=folder, sampling_seed=1)
    return preflight.examine(
        engines.get(study),
        chosen.engine,
        trace_path=chosen.trace_path,
        max_turns=1,
        policy=chosen.policy,
        space=chosen.space,
        fixed=chosen.fixed,
        plain=chosen.plain,
        seed_points=chosen.seed_points,
        devices=lambda: (CARD,),
    )


@pytest.mark.parametrize(("variant", "words"), [("A1", ()), ("A2", TREE), ("B1", ()), ("B2", ())])
def test_beellama(variant: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """The stand-in's draft has a block of 8, so drafts end at 7 tokens; nothing else may be refused."""
    found = examined("beellama", variant, tmp_path, *words)
    assert found.dead_axes == ()
    assert len(found.axes) == 5 + len(words)
    assert all("the draft's block holds 7 drafts" in reason for reason in found.impossible)
    assert sum(found.impossible.values()) == (found.space.size or 0) / 2  # draft_max 8, 12, 15 of six values


@pytest.mark.parametrize("variant", ["G2", "G3"])
def test_lucebox(variant: str, tmp_path: Path) -> None:
    found = examined("lucebox", variant, tmp_path)
    assert (found.dead_axes, found.impossible) == ((), {})
    assert (found.space.size, found.effective_points) == (20, 12)  # a chain has no budget: 2 + 2 × 5


def test_lucebox_of_may_2026_has_no_tree(tmp_path: Path) -> None:
    found = examined("lucebox", "G1", tmp_path)
    (reason,) = found.impossible
    assert "always drafts a chain" in reason
    assert found.impossible[reason] == 10
