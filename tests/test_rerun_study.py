"""A whole study again: its configuration from the store, judged part by part."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from omegaconf import DictConfig
from typer.testing import CliRunner

from dflash_sweep import app, cli, rerun_study, settings
from dflash_sweep.analysis.reproduction import Outcome
from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.records import Measurement, Role, StoredTrial, StudyInfo
from dflash_sweep.report import console, rerun_study_page
from dflash_sweep.store import Store
from fakes.builders import make_result, make_stored, make_turn
from fakes.sweeping import sweep, trials


def composed(*words: str) -> DictConfig:
    return app.compose_overrides(app.normalise(["study_name=ddtree", "rerun.study=ddtree", *words]))


def stored_info(**fields: Any) -> StudyInfo:
    config = settings.merge(app.compose_overrides(["+study=ddtree", "n_trials=7"]))
    plain = msgspec.to_builtins(config)
    defaults: dict[str, Any] = {"name": "ddtree", "engine": "emulator", "measurement": Measurement.EMULATED}
    return StudyInfo(**{**defaults, "config": plain, **fields})


def rows(scale: float = 1.0, *, plain_scale: float = 1.0) -> list[StoredTrial]:
    """Plain 40 tok/s, default 50, candidates 60 and 45, candidate 0 confirmed at 60: ±1 % where repeated."""
    made: list[StoredTrial] = []

    def add(role: Role, candidate: int | None, tps: float, **fields: Any) -> None:
        turns = (make_turn(0, decode_ms=1e5 / tps),)
        uid = f"s/{role}/{candidate}/{len(made)}/0"
        knobs = {"budget": 8 if candidate is None else 16 + candidate}
        made.append(
            make_stored(
                len(made), role=role, uid=uid, candidate=candidate, result=make_result(uid, turns=turns),
                **{"knobs": knobs, **fields},
            )
        )  # fmt: skip

    for factor in (0.99, 1.0, 1.01):
        add(Role.BASELINE, None, 40 * factor * plain_scale, speculative=False, knobs={})
        add(Role.CALIBRATE, None, 50 * factor * scale)
        add(Role.CONFIRM, 0, 60 * factor * scale)
    add(Role.SEARCH, 0, 60 * scale)
    add(Role.SEARCH, 1, 45 * scale)
    return made


def judged(now: list[StoredTrial], margin: float | None = None) -> rerun_study_page.StudyRerun:
    then = StudyInfo(name="s", engine="e", measurement=Measurement.EMULATED, confirmed_candidate=0)
    return rerun_study.compared(then, rows(), replace(then, name="s-again"), now, margin)


def test_the_same_figures_are_reproduced_in_every_part() -> None:
    page = judged(rows())
    assert page.outcome is Outcome.REPRODUCED
    assert [part.name for part in page.parts] == ["plain decoding", "the default setting", "candidate 0, confirmed"]
    assert (page.n_same, page.n_candidates, page.n_apart) == (2, 2, 0)
    text = str(rerun_study_page.document(page))
    assert "Reproduced: plain decoding, the default setting, candidate 0, confirmed." in text
    assert "2 of 2 candidates have the same number and knobs" in text


def test_a_slower_machine_is_a_drift() -> None:
    page = judged(rows(1 / 1.1, plain_scale=1 / 1.1))
    assert page.outcome is Outcome.DRIFTED
    assert page.n_apart == 2


def test_a_setting_that_lost_its_gain_decides_over_the_rest() -> None:
    page = judged(rows(0.7))
    assert page.outcome is Outcome.NOT_REPRODUCED
    assert page.parts[0].judgement.outcome is Outcome.REPRODUCED
    assert rerun_study_page.statement(page) == "Not reproduced: the default setting, candidate 0, confirmed."


def test_candidates_with_other_knobs_are_not_compared() -> None:
    now = [replace(row, knobs={"budget": 99}) if row.candidate == 1 else row for row in rows()]
    assert (judged(now).n_same, judged(now).n_candidates) == (1, 2)


def test_the_page_can_be_shown_and_written(tmp_path: Path) -> None:
    page = judged(rows())
    shown = rerun_study_page.document(page)
    path = rerun_study_page.write(page, shown, tmp_path)
    assert path.read_text().startswith("# Rerun of study s as s-again — EMULATED")
    assert '"outcome": "reproduced"' in (tmp_path / "rerun.json").read_text()
    console.rendered(shown)


def test_the_stored_configuration_is_taken_with_where_to_run(tmp_path: Path) -> None:
    cfg = composed("storage.url=sqlite:///other.db", "cluster=inline", "engine.options.slowdown=0.05")
    own = rerun_study.stored_config(
        stored_info(),
        cfg,
        ["storage.url=sqlite:///other.db", "cluster=inline", "++engine.options.slowdown=0.05"],
        tmp_path,
    )
    assert (own.study_name, own.n_trials, own.resume) == ("ddtree-again", 7, False)
    assert (own.storage.url, own.cluster.kind) == ("sqlite:///other.db", "inline")
    assert own.engine.options.slowdown == 0.05
    assert own.rerun.study == "ddtree"
    assert settings.merge(own).n_trials == 7


def test_relative_files_count_from_where_the_study_was_launched(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.jsonl").touch()
    info = stored_info(provenance={"launch_dir": str(tmp_path / "there")})
    info.config["trace"]["path"] = "mine.jsonl"
    own = rerun_study.stored_config(info, composed(), [], tmp_path)
    assert own.trace.path == str(tmp_path / "there" / "mine.jsonl")


def test_an_imported_study_cannot_be_run_again(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="was imported: there is nothing to run again"):
        rerun_study.stored_config(stored_info(config={}), composed(), [], tmp_path)


def test_a_study_without_rows_has_nothing_to_compare_with(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        store.save_study(stored_info())
    with pytest.raises(StorageError, match="has no finished trial"):
        rerun_study.run_study_again(composed(), [], tmp_path, tmp_path / "run")
    with pytest.raises(ConfigError, match="a rerun takes what it measures from the store"):
        rerun_study.run_study_again(composed(), ["n_trials=3"], tmp_path, tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["ddtree", "42"], ["study_name=ddtree", "rerun.trial=42"]),
        (
            ["ddtree", "42", "--repeats", "5", "--margin", "2.5", "--force", "cluster=inline"],
            ["study_name=ddtree", "rerun.trial=42", "rerun.repeats=5", "rerun.margin=2.5",
             "rerun.force=true", "cluster=inline"],
        ),
        (["ddtree", "cluster=inline"], ["study_name=ddtree", "rerun.study=ddtree", "cluster=inline"]),
    ],
)  # fmt: skip
def test_the_command_says_what_hydra_is_told(
    words: list[str], passed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []

    def main(argv: list[str]) -> int:
        told.append(argv)
        return 4

    monkeypatch.setattr(app, "main", main)
    assert CliRunner().invoke(cli.app, ["rerun", *words]).exit_code == 4
    assert told == [passed]


@pytest.mark.long
def test_a_study_is_repeated_from_outside(tmp_path: Path) -> None:
    """The emulator's noise follows from the seed, so the same study gives the same figures to the last digit."""
    assert sweep(tmp_path, "n_trials=1", "protocol.confirm_blocks=0", "protocol.default_repeats=2").returncode == 0
    words = [sys.executable, "-m", "dflash_sweep", "rerun", "ddtree", "cluster=inline", "progress=plain"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(tmp_path / "reports" / "ddtree-again" / "rerun.md")
    assert [row.knobs for row in trials(tmp_path, "ddtree-again")] == [row.knobs for row in trials(tmp_path)]
