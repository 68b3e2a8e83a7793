"""The curator keeps a running study's pages, takes little time for it, and cannot harm the study."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta
from optuna_dashboard import get_note

from dflash_sweep.records import Role, StoredTrial, TrialSpec, Verdict
from dflash_sweep.showcase import hanging
from dflash_sweep.showcase.curator import FIRST_RETRY_S, LEAST_PAUSE_S, SHARE, Curator
from dflash_sweep.showcase.optuna_side import OptunaSide
from dflash_sweep.store import Store
from dflash_sweep.watcher import Best
from fakes.shown_study import ShownStudy, out_of_memory

pytestmark = pytest.mark.long


class Recorder:
    """What people would have seen."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.notes: list[str] = []

    def phase(self, name: str, total: int) -> None:
        self.events.append(f"phase {name} {total}")

    def started(self, spec: TrialSpec) -> None:
        self.events.append(f"started {spec.role}")

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        self.events.append(f"finished {trial.role}")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def verdict(self, verdict: Verdict) -> None:
        self.events.append(f"verdict {verdict.id}")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A study whose watcher is a curator before a recorder."""

    def __init__(self, url: str, name: str, tmp_path: Path) -> None:
        self.seen, self.clock, self.folder = Recorder(), Clock(), tmp_path / "artifacts"
        self.study = ShownStudy(url, tmp_path / "evidence", name=name)
        self.curator = Curator(self.seen, Store(url), name, folder=self.folder, clock=self.clock)
        self.study.watcher = self.curator

    def notes(self) -> list[str]:
        return [get_note(_Target(self.study.study, trial)) for trial in self.study.study.trials]


class _Target:
    """A finished trial, as the dashboard's function for notes wants it."""

    def __init__(self, study: optuna.Study, trial: Any) -> None:
        self.storage, self.study, self._trial_id = study._storage, study, trial._trial_id


@pytest.fixture
def watched(url: str, name: str, tmp_path: Path) -> Watched:
    return Watched(url, name, tmp_path)


def test_every_event_is_passed_on_and_every_trial_gets_its_page(watched: Watched) -> None:
    watched.curator.phase("search", 2)
    watched.study.plain()
    trial = watched.study.search()
    watched.study.search(out_of_memory())
    assert watched.seen.events == [
        "phase search 2", *["started baseline", "finished baseline"], *["started search", "finished search"] * 2,
    ]  # fmt: skip
    assert watched.seen.notes == []
    first, second = watched.notes()
    assert f"budget={trial.knobs['budget']}" in first
    assert "plain decoding: 25.0" in first
    assert "out_of_memory" in second.replace("\\", "")
    stored = watched.study.study.trials
    assert [trial.user_attrs["tags"] for trial in stored] == ["emulated", "emulated failed"]
    files = [
        {meta.filename for meta in get_all_artifact_meta(trial, storage=watched.study.study._storage)}
        for trial in stored
    ]
    assert files == [{"server.log", "turns.jsonl", "stages.svg"}, {"server.log"}]
    note = get_note(watched.study.study)
    assert "search, 1 of 2 runs" in note  # written after the first run; the next is not due yet
    assert "EMULATED" in note


def test_plain_decoding_like_a_finalist_is_no_run_of_the_finalist(watched: Watched) -> None:
    watched.study.plain()
    trial = watched.study.search()
    assert trial.candidate is not None
    watched.study.plain(Role.CONTROL, candidate=trial.candidate, tps=9.0)
    watched.study.confirm(trial.candidate, trial.knobs)
    (note,) = watched.notes()
    assert "95 % interval of 2 runs" in note
    assert "9.00" not in note
    assert "plain decoding: 25.0" in note


def test_the_studys_page_takes_a_small_share_of_the_time(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, list[float]] = {"page": [], "lead": []}

    def slow(kind: str, cost_s: float) -> Callable[..., str]:
        def write(*_: object) -> str:
            written[kind].append(watched.clock.now)
            watched.clock.now += cost_s
            return "# title\n\nlead\n\nrest"

        return write

    monkeypatch.setattr(hanging, "show_running", slow("page", 2.0))
    monkeypatch.setattr(hanging, "show_lead", slow("lead", 0.05))
    began = watched.clock.now
    for _ in range(60):
        watched.study.plain()
        watched.clock.now += 4.0
    gaps = {kind: min(later - before for before, later in itertools.pairwise(times)) for kind, times in written.items()}
    assert gaps["page"] >= 2.0 / SHARE  # 40 s
    assert LEAST_PAUSE_S <= gaps["lead"] < 2 * LEAST_PAUSE_S  # the next run that ends after 5 s
    spent = 2.0 * len(written["page"]) + 0.05 * len(written["lead"])
    assert spent < 2 * SHARE * (watched.clock.now - began)


def test_the_lead_of_the_page_is_renewed_in_between(watched: Watched) -> None:
    watched.curator.phase("search", 9)
    watched.study.plain()
    first = get_note(watched.study.study)
    assert "search, 1 of 9 runs" in first
    watched.clock.now += 2 * LEAST_PAUSE_S
    watched.curator._study_due = float("inf")  # only the lead
    watched.study.search(out_of_memory())
    second = get_note(watched.study.study)
    assert "search, 2 of 9 runs" in second
    assert "2 runs stored, 1 of them failed" in second
    assert second.split("\n\n", 2)[2] == first.split("\n\n", 2)[2]


def _full_disk(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def full(self: object, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(OptunaSide, "put_trial_file", full)
    return monkeypatch.undo


def _no_package(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("dflash_sweep.showcase.optuna_side"):
            raise ModuleNotFoundError("No module named 'optuna_dashboard'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    return monkeypatch.undo


def _locked(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def locked(self: object, *_: object) -> None:
        raise optuna.exceptions.StorageInternalError("database is locked")

    monkeypatch.setattr(optuna.storages.RDBStorage, "set_study_system_attr", locked)
    return monkeypatch.undo


@pytest.mark.parametrize(
    ("mishap", "words"),
    [(_full_disk, "No space left"), (_no_package, "No module named"), (_locked, "database is locked")],
)
def test_what_goes_wrong_is_said_once_and_made_up_for(
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    mishap: Callable[[Watched, pytest.MonkeyPatch], Callable[[], None]],
    words: str,
) -> None:
    mend = mishap(watched, monkeypatch)
    watched.study.plain()
    for _ in range(3):
        watched.study.search()
        watched.clock.now += FIRST_RETRY_S  # so that it is tried, and fails, again
    assert len(watched.study.store.trials(watched.study.name)) == 4
    (note,) = watched.seen.notes
    assert words in note
    assert f"dflash-sweep dashboard {watched.study.name}" in note
    mend()
    watched.clock.now += 100 * FIRST_RETRY_S
    watched.study.search()
    assert all("# search" in text for text in watched.notes())
    assert watched.seen.notes == [note]


def test_an_interrupt_is_not_swallowed(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: object, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OptunaSide, "put_trial_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        watched.study.search()


def test_a_study_that_optuna_does_not_have_has_no_pages(url: str, name: str, tmp_path: Path) -> None:
    study = ShownStudy(url, tmp_path, name=name)
    seen = Recorder()
    curator = Curator(seen, Store(url), name, folder=tmp_path / "artifacts")
    optuna.delete_study(study_name=name, storage=url)
    study.watcher = curator
    study.plain()
    assert seen.notes == []
    assert not (tmp_path / "artifacts").exists()


def test_a_confirmed_candidates_page_grows(watched: Watched) -> None:
    trial = watched.study.search()
    for _ in range(2):
        watched.study.confirm(0, trial.knobs)
    (note,) = watched.notes()
    assert "95 % interval of 2 runs" in note
    assert "`confirm`" in note


def test_a_later_driver_knows_the_runs_of_an_earlier_one(url: str, name: str, tmp_path: Path) -> None:
    study = ShownStudy(url, tmp_path / "evidence", name=name)
    study.plain()
    trial = study.search()
    study.watcher = Curator(Recorder(), Store(url), name, folder=tmp_path / "artifacts")
    study.confirm(0, trial.knobs)
    study.confirm(0, trial.knobs)
    note = get_note(_Target(study.study, study.study.trials[0]))
    assert "95 % interval of 2 runs" in note
    assert "plain decoding: 25.0" in note
