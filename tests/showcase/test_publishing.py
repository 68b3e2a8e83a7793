"""All pages of a stored study: at its end, of an imported one, and again."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from optuna_dashboard import get_note

from dflash_sweep.errors import StorageError
from dflash_sweep.importing import read
from dflash_sweep.showcase.optuna_rows import as_trial, distributions
from dflash_sweep.showcase.optuna_side import OptunaSide, storage_for
from dflash_sweep.showcase.publishing import number_of, publish
from dflash_sweep.store import Store
from fakes.builders import make_stored
from fakes.shown_study import SPACE, ShownStudy

pytestmark = pytest.mark.long

LOG = """timestamp,decode_tps,status,description,budget,verifier
1,50.0,keep,baseline,,
2,61.5,keep,budget 22,22,exact
3,58.0,discard,budget 32,32,exact
4,,crash,budget 64,64,batched
"""


def pages(url: str, study_id: int, name: str) -> tuple[list[str], dict[str, str]]:
    """Notes of the trials, and the study's attributes for people."""
    storage = storage_for(url)
    held = OptunaSide(storage, name, Path("nowhere")).attributes()
    trials = storage.get_all_trials(study_id)
    attributes = storage.get_study_user_attrs(study_id)
    notes = [held.get_study_system_attrs(0).get(f"dashboard:{trial._trial_id}:note_str:0", "") for trial in trials]
    return notes, attributes


def test_a_finished_studys_pages_are_whole_and_written_once(url: str, name: str, tmp_path: Path) -> None:
    study = ShownStudy(url, tmp_path / "evidence", name=name)
    study.plain()
    first = study.search()
    study.search()
    for _ in range(2):
        study.confirm(0, first.knobs)
    info = study.save("finished", confirmed_candidate=0)
    report = tmp_path / "report"
    report.mkdir()
    (report / "findings.html").write_text("<p>findings</p>")
    for _ in range(2):  # a second time changes nothing
        study_id = publish(study.store, info, folder=tmp_path / "artifacts", report_dir=report)
        notes, attributes = pages(url, study_id, name)
        assert "`winner`" in notes[0]
        assert "# search #1" in notes[1]
        assert attributes["figures"] == "emulated"
        assert attributes["winner"] == "#0"
        assert attributes["confirm"] == "#0"
        assert attributes["runs beside the search"] == "1 baseline, 2 confirm"
        # log, turns and picture of two trials, and the findings
        assert len(list((tmp_path / "artifacts").iterdir())) == 7
    assert len(optuna.load_study(study_name=name, storage=url).trials) == 2
    assert "![" not in get_note(study.study)


def test_trials_that_never_ran_say_why(url: str, name: str, tmp_path: Path) -> None:
    study = ShownStudy(url, tmp_path / "evidence", name=name)
    study.search()
    for number, (attribute, value) in enumerate(
        (("duplicate", True), ("problem", "budget > 32 needs *more* memory")), 1
    ):
        asked = study.study.ask(SPACE)
        asked.set_user_attr(attribute, value)
        study.study.tell(number, state=TrialState.PRUNED)
    study_id = publish(study.store, study.save("finished"), folder=tmp_path / "artifacts")
    notes, _ = pages(url, study_id, name)
    assert "same server as an earlier candidate" in notes[1]
    assert "budget > 32 needs *more* memory" in notes[2]


def test_an_imported_studys_rows_are_trials_on_the_dashboard(url: str, name: str, tmp_path: Path) -> None:
    log = tmp_path / "runs.csv"
    log.write_text(LOG)
    imported = read(log, aliases=(), study=name, direction="maximize")
    with Store(url) as store:
        store.save_study(imported.study)
        store.add_imported(imported.trials)
        for _ in range(2):
            study_id = publish(store, imported.study, folder=tmp_path / "artifacts")
        rows = [row for row in store.trials(name) if row.speculative]
    trials = optuna.load_study(study_name=name, storage=url).trials
    assert len(trials) == len(rows)
    assert [trial.value for trial in trials if trial.state is TrialState.COMPLETE] == [
        row.result.claimed.get("decode_tps") for row in rows if row.result.failure is None
    ]
    assert {trial.user_attrs["measurement"] for trial in trials} == {"imported"}
    notes, attributes = pages(url, study_id, name)
    assert all("`imported`" in note and "measured nothing" in note for note in notes)
    assert attributes["figures"] == "imported"
    assert number_of(url, name) == study_id


def test_a_study_deleted_on_the_dashboard_is_shown_again_without_its_trials(
    url: str, name: str, tmp_path: Path
) -> None:
    study = ShownStudy(url, tmp_path / "evidence", name=name)
    study.plain()
    study.search()
    optuna.delete_study(study_name=name, storage=url)
    assert number_of(url, name) is None
    study_id = publish(study.store, study.save("finished"), folder=tmp_path / "artifacts")
    notes, attributes = pages(url, study_id, name)
    assert notes == []
    assert attributes["status"] == "finished"


def test_a_folder_that_cannot_be_written_is_one_clear_line(url: str, name: str, tmp_path: Path) -> None:
    study = ShownStudy(url, tmp_path / "evidence", name=name)
    study.search()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        publish(study.store, study.save("finished"), folder=tmp_path / "file")


def test_knobs_keep_their_kind_and_their_order() -> None:
    rows = [
        make_stored(0, knobs={"budget": 8, "temp": 0.5, "seed": True, "k": None, "mixed": 1}),
        make_stored(1, knobs={"budget": 32, "temp": 1, "seed": False, "k": 4, "mixed": "auto"}),
        make_stored(2, knobs={"budget": 16}),
    ]
    axes = distributions(rows)
    assert axes == {
        "budget": optuna.distributions.IntDistribution(8, 32),
        "temp": optuna.distributions.FloatDistribution(0.5, 1.0),
        "seed": optuna.distributions.CategoricalDistribution((True, False)),
        "k": optuna.distributions.CategoricalDistribution(("default", 4)),
        "mixed": optuna.distributions.CategoricalDistribution((1, "auto")),
    }
    trials = [as_trial(row, 1.0, axes) for row in rows]
    assert trials[0].params == {"budget": 8, "temp": 0.5, "seed": True, "k": "default", "mixed": 1}
    assert trials[2].params == {"budget": 16}
    assert as_trial(rows[0], None, axes).state is TrialState.PRUNED
