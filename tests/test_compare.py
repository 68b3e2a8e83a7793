"""`dflash-sweep compare`: what differs comes first; no ranking across terms unless forced, and marked then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dflash_sweep.cli import app
from dflash_sweep.compare import compared
from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.exits import EXIT_OK, EXIT_UNDECIDED
from dflash_sweep.records import Measurement, ReplayPolicy, Role, StudyInfo
from dflash_sweep.report import compare_page
from dflash_sweep.report.markdown import Renderer
from dflash_sweep.store import Store, comparability_key
from fakes.builders import DEVICE, make_result, make_spec, make_stored, make_turn


def add(store: Store, name: str, speed: float, *, kind: Measurement = Measurement.EMULATED, **spec: Any) -> None:
    """A study with three plain runs at 40 tok/s and three confirm runs of budget 22 at `speed`, ±1 %."""
    store.save_study(StudyInfo(name=name, engine="emulator", measurement=kind, config={"n_trials": 4, "seed": 7}))
    runs(store, name, Role.BASELINE, 40.0, kind=kind, **spec)
    runs(store, name, Role.CONFIRM, speed, kind=kind, **spec)


def runs(
    store: Store,
    name: str,
    role: Role,
    tps: float,
    *,
    kind: Measurement = Measurement.EMULATED,
    reads: str | None = None,
    **spec: Any,
) -> None:
    """Three runs of one setting. `reads`: what plain decoding reads of its settings."""
    speculative = role is Role.CONFIRM
    candidate = None if role is Role.BASELINE else 3
    for repeat, factor in enumerate((0.99, 1.0, 1.01)):
        uid = f"{name}/{role}/{'plain' if candidate is None else candidate}/{repeat}/0"
        made = make_spec(
            uid,
            study=name,
            role=role,
            candidate=candidate,
            repeat=repeat,
            speculative=speculative,
            knobs={"budget": 22 if speculative else None},
            **spec,
        )
        turns = tuple(make_turn(index, decode_ms=1e5 / (tps * factor * (1 + 0.1 * index))) for index in range(2))
        store.begin(made, "me", comparability_key(made, DEVICE.name))
        result = replace(make_result(uid, turns=turns), measurement=kind)
        store.finish(result if reads is None else replace(result, environment={"plain_settings": reads}))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(f"sqlite:///{tmp_path / 'studies.db'}")
    add(opened, "old", 50.0)
    add(opened, "new", 55.0)
    add(opened, "longer", 55.0, policy=ReplayPolicy(max_tokens=256))
    add(opened, "real", 55.0, kind=Measurement.MEASURED)
    return opened


def page(store: Store, a: str, b: str, *, force: bool = False) -> str:
    return Renderer({}, "").render(compare_page.document(compared(store, a, b, force=force)))


def test_studies_under_the_same_terms_are_ranked_with_an_interval(store: Store) -> None:
    found = compared(store, "old", "new")
    assert found.apart == ()
    assert found.contrast.meant.ratio is not None
    assert found.contrast.meant.ratio.value == pytest.approx(1.1)
    text = page(store, "old", "new")
    assert "**new is better: B 57.62 tok/s, A 52.38 tok/s, B against A +10.0 % [" in text
    assert "Plain decoding cannot be told apart: +0.0 % [" in text
    assert text.index("## What differs") < text.index("## Result")
    assert "Nothing: configuration, build, models, trace, policy and device are the same." in text


def test_other_terms_are_named_first_and_not_ranked(store: Store) -> None:
    found = compared(store, "old", "longer")
    assert not found.is_ranked
    text = page(store, "old", "longer")
    assert "`replay.max_tokens` | 128 | 256 | another question" in text
    assert "Not ranked: the two were not measured under the same terms (replay.max_tokens: 128 → 256)" in text
    assert "is better" not in text
    assert "[" not in text.partition("## Result")[2].partition("|  | A")[2]  # no ratio anywhere


def test_a_forced_ranking_is_marked(store: Store) -> None:
    text = page(store, "old", "longer", force=True)
    assert "**Forced:** ranked although replay.max\\_tokens: 128 → 256." in text.replace("max_tokens", "max\\_tokens")
    assert "longer is better" in text


def test_emulated_and_measured_figures_are_never_ranked(store: Store) -> None:
    found = compared(store, "old", "real", force=True)
    assert not found.is_ranked
    text = page(store, "old", "real", force=True)
    assert "emulated against measured figures" in text
    assert "never ranked, forced or not" in text
    assert "A emulated" in text


def test_two_trials_are_compared_by_knobs_figures_turns_and_text(store: Store) -> None:
    found = compared(store, "old:3", "new:4")
    assert found.a.numbers == (3,)
    assert found.contrast.turns is not None
    assert found.text == "All 2 turns that both answered have the same text."
    plain = compared(store, "old:0", "old:3")
    assert [entry.key for entry in plain.found] == ["knobs.budget", "speculative"]
    assert plain.is_ranked


def test_an_imported_study_is_another_kind_of_row(store: Store) -> None:
    store.save_study(StudyInfo(name="log", engine="other", measurement=Measurement.IMPORTED))
    row = make_stored(0, uid="log/0", study="log", comparability_key="imported")
    store.add_imported([replace(row, result=replace(row.result, uid="log/0", measurement=Measurement.IMPORTED))])
    found = compared(store, "old", "log", force=True)
    assert not found.is_ranked
    assert any(entry.key == "rows" for entry in found.found)


def test_wrong_names_are_told(store: Store) -> None:
    with pytest.raises(StorageError, match="study 'x' is not stored; there are: longer, new, old, real"):
        compared(store, "x", "old")
    with pytest.raises(StorageError, match=r"old:77: study 'old' has no trial 77: its trials are 0 to 5"):
        compared(store, "old:77", "new")
    with pytest.raises(ConfigError, match="the same thing twice"):
        compared(store, "old", "old")


def test_the_command_prints_and_writes_the_page(store: Store, tmp_path: Path) -> None:
    runner, words = CliRunner(), ["--set", f"storage.url={store.url}", "--out", str(tmp_path / "page.md")]
    ranked = runner.invoke(app, ["compare", "old", "new", *words])
    assert ranked.exit_code == EXIT_OK, ranked.output
    assert "new is better" in ranked.output
    assert (tmp_path / "page.md").read_text().startswith("# old against new — EMULATED")
    refused = runner.invoke(app, ["compare", "old", "longer", *words])
    assert refused.exit_code == EXIT_UNDECIDED
    assert runner.invoke(app, ["compare", "old", "longer", "--force", *words]).exit_code == EXIT_OK


@pytest.mark.parametrize("control", [None, 45.0, 35.0])
def test_a_side_is_held_to_plain_decoding_with_its_own_settings(store: Store, control: float | None) -> None:
    store.save_study(
        StudyInfo(name="two", engine="emulator", measurement=Measurement.EMULATED, config={"n_trials": 4, "seed": 7})
    )
    runs(store, "two", Role.BASELINE, 40.0, reads="threads=1")
    runs(store, "two", Role.CONFIRM, 50.0, reads="threads=2")
    if control is not None:
        runs(store, "two", Role.CONTROL, control, reads="threads=2")
    found = compared(store, "old", "two").contrast
    assert found.plain is not None
    assert found.plain.ratio is not None
    assert found.plain.ratio.value == pytest.approx(1.0)
    assert found.relative is not None
    assert found.relative.b is not None
    assert found.relative.b.value == pytest.approx(50.0 / max(40.0, control or 0.0))
    text = page(store, "old", "two")
    assert ("† two: plain decoding ran with threads=1; the gain is not speculation's alone." in text) is (
        control is None
    )
    assert (" † |" in text) is (control is None)
    own = "two over plain: plain decoding with the setting's own threads=2, which is the faster one."
    assert (own in text) is (control == 45.0)
