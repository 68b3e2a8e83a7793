"""Notes, tags, figures and files of a study as Optuna keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import plotly.graph_objects as go
import pytest
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta
from optuna_dashboard import get_note, save_note
from optuna_dashboard._custom_plot_data import get_plotly_graph_objects

from dflash_sweep.showcase.optuna_side import MAX_NOTE, OWN_WORDS, OptunaSide, storage_for


@pytest.fixture
def study(url: str, name: str) -> optuna.Study:
    return optuna.create_study(storage=url, study_name=name, direction="maximize")


@pytest.fixture
def side(url: str, study: optuna.Study, tmp_path: Path) -> OptunaSide:
    return OptunaSide(storage_for(url), study.study_name, tmp_path / "artifacts")


def test_a_study_that_optuna_does_not_have_is_a_key_error(side: OptunaSide) -> None:
    with pytest.raises(KeyError):
        OptunaSide(side.storage, "other", Path("nowhere"))


def test_a_trial_that_ran_and_failed_is_not_one_that_never_ran(study: optuna.Study, side: OptunaSide) -> None:
    attributes: tuple[dict[str, Any], ...] = (
        {"problem": "budget > 32 needs more memory"},
        {"trial": 7, "failure": "out_of_memory", "problem": "out_of_memory: cudaMalloc failed"},
        {"duplicate": True},
    )
    for own in attributes:
        asked = study.ask()
        for name, value in own.items():
            asked.set_user_attr(name, value)
        study.tell(asked, state=optuna.trial.TrialState.PRUNED)
    assert list(side.not_run()) == [(0, "budget > 32 needs more memory"), (2, None)]


def test_what_people_write_below_the_line_is_kept(study: optuna.Study, side: OptunaSide) -> None:
    side.put_note("first")
    assert get_note(study) == "first" + OWN_WORDS
    save_note(study, get_note(study) + "my own words\n")
    side.put_note("second")
    assert get_note(study) == "second" + OWN_WORDS + "my own words\n"


def test_a_note_without_our_line_is_somebodys_own_as_a_whole(study: optuna.Study, side: OptunaSide) -> None:
    save_note(study, "all mine")
    side.put_note("ours")
    side.put_note("ours again")
    assert get_note(study) == "ours again" + OWN_WORDS + "all mine"


def test_a_note_of_a_finished_trial_can_still_be_written_and_keeps_own_words(
    study: optuna.Study, side: OptunaSide
) -> None:
    trial = study.ask()
    study.tell(trial, 1.0)
    side.put_trial_note(0, "first")
    save_note(trial, get_note(trial) + "mine")
    side.put_trial_note(0, "second")
    assert get_note(trial) == "second" + OWN_WORDS + "mine"


def test_an_unchanged_note_is_not_written_again(study: optuna.Study, side: OptunaSide) -> None:
    def version() -> object:
        return side.storage.get_study_system_attrs(side.study_id)["dashboard:note_ver"]

    side.put_note("same")
    before = version()
    side.put_note("same")
    assert version() == before


def test_a_note_is_bounded(study: optuna.Study, side: OptunaSide) -> None:
    side.put_note("word\n" * MAX_NOTE)
    assert len(get_note(study)) <= MAX_NOTE + len(OWN_WORDS) + 10
    assert "…" in get_note(study)


def test_files_of_a_running_and_of_a_finished_trial_are_both_found(
    study: optuna.Study, side: OptunaSide, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    log.write_text("log")
    trial = study.ask()
    side.put_trial_file(0, "server.log", log)
    study.tell(trial, 1.0)
    side.put_trial_file(0, "late.svg", b"<svg/>")
    (meta,) = get_all_artifact_meta(study.trials[0], storage=study._storage)
    assert meta.filename == "server.log"
    store = FileSystemArtifactStore(tmp_path / "artifacts")
    with store.open_reader(meta.artifact_id) as stored:
        assert stored.read() == b"log"
    # a second name of the same file, not a second copy of it
    assert (tmp_path / "artifacts" / meta.artifact_id).stat().st_nlink == 2
    held = side.storage.get_study_system_attrs(side.study_id)
    assert [key for key in held if key.startswith(f"dashboard:artifacts:{trial._trial_id}:")]


def test_a_file_of_the_study_replaces_the_one_of_its_name(
    study: optuna.Study, side: OptunaSide, tmp_path: Path
) -> None:
    side.put_file("findings.html", b"old")
    side.put_file("results.csv", b"a,b")
    side.put_file("findings.html", b"new")
    held = side._study_files()
    assert sorted(meta["filename"] for meta in held) == ["findings.html", "results.csv"]
    kept = {path.read_bytes() for path in (tmp_path / "artifacts").iterdir()}
    assert kept == {b"new", b"a,b"}


def test_a_finished_trial_takes_no_tags(study: optuna.Study, side: OptunaSide) -> None:
    trial = study.ask()
    assert side.tag(0, {"tags": "emulated"})
    study.tell(trial, 1.0)
    assert not side.tag(0, {"tags": "other"})
    assert study.trials[0].user_attrs == {"tags": "emulated"}


def test_a_figure_of_the_same_id_is_replaced(study: optuna.Study, side: OptunaSide) -> None:
    side.put_chart("c", go.Figure(data=[go.Bar(x=list(range(2000)))]))
    side.put_chart("c", go.Figure(data=[go.Bar(x=[7])]))
    held = side.storage.get_study_system_attrs(side.study_id)
    assert [trace["x"] for trace in json.loads(get_plotly_graph_objects(held)["c"])["data"]] == [[7]]
