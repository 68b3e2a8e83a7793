"""`python sweep.py` from outside, as a user runs it: rows, findings and exit codes of whole studies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta

from dflash_sweep.records import Role, VerdictStatus
from dflash_sweep.store import Store
from fakes.sweeping import SWEEP, figures, sweep, trials


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, sweep(folder, "n_trials=4", "storage.dashboard=true")


def test_a_study_ends_with_rows_findings_and_exit_code_0(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, run = finished
    assert run.returncode == 0, run.stderr
    findings = folder / "reports" / "ddtree" / "findings.md"
    assert run.stdout.splitlines()[-1] == str(findings)
    text = findings.read_text()
    assert "EMULATED" in text.splitlines()[0]
    assert "](figures/stage_breakdown.png)" in text
    assert (findings.parent / "figures" / "stage_breakdown.png").stat().st_size > 10_000
    rows = trials(folder)
    roles = [row.role for row in rows]
    assert roles.count(Role.BASELINE) == 2
    assert roles.count(Role.CALIBRATE) == 1
    assert roles.count(Role.SEARCH) == 4
    assert all(row.result.measurement == "emulated" and row.result.clock == "virtual" for row in rows)
    stored = optuna.load_study(study_name="ddtree", storage=f"sqlite:///{folder / 'studies.db'}")
    assert len([trial for trial in stored.trials if trial.state.is_finished()]) >= 4


def test_the_findings_say_that_exact_verification_cannot_win(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = finished
    found = json.loads((folder / "reports" / "ddtree" / "findings.json").read_text())
    bound = next(verdict for verdict in found["verdicts"] if verdict["id"] == "structural_bound")
    assert bound["status"] == VerdictStatus.HOLDS
    assert "exact_ms" in bound["subject"]


def test_the_dashboard_has_every_trials_page_and_the_findings(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, run = finished
    assert "not up to date" not in run.stderr
    study = optuna.load_study(study_name="ddtree", storage=f"sqlite:///{folder / 'studies.db'}")
    held = study._storage.get_study_system_attrs(study._study_id)
    assert "EMULATED" in held["dashboard:note_str:0"]
    measured = [trial for trial in study.trials if trial.value is not None]
    assert len(measured) == 4
    for trial in measured:
        assert held[f"dashboard:{trial._trial_id}:note_str:0"].startswith(f"# search #{trial.number} — EMULATED")
        names = {meta.filename for meta in get_all_artifact_meta(trial, storage=study._storage)}
        assert names == {"server.log", "turns.jsonl", "stages.svg"}
        assert trial.user_attrs["tags"] == "emulated"
    assert {meta.filename for meta in get_all_artifact_meta(study)} == {"findings.html", "findings.md", "results.csv"}
    assert len(list((folder / "artifacts").iterdir())) == 3 * 4 + 3


def test_every_trial_leaves_its_evidence(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    (run,) = (folder / "sweeps" / "ddtree").iterdir()
    evidence = run / "trials" / "search" / "0" / "0" / "0"
    assert {path.name for path in evidence.iterdir()} >= {"launch.json", "server.log", "turns.jsonl", "result.json"}


@pytest.mark.long
def test_the_same_seed_gives_the_same_parameters_and_values(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder, _ = finished
    again = sweep(tmp_path, "n_trials=4")
    assert again.returncode == 0, again.stderr
    assert figures(trials(tmp_path)) == figures(trials(folder))


@pytest.mark.long
def test_a_second_run_gets_a_name_of_its_own_and_keeps_the_first(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = finished
    before = trials(folder)
    run = sweep(folder, "n_trials=1", "protocol.confirm_blocks=0")
    assert run.returncode == 0, run.stderr
    assert "this one is 'ddtree-2'" in " ".join(run.stderr.split())
    assert len([row for row in trials(folder, "ddtree-2") if row.role is Role.SEARCH]) == 1
    assert trials(folder) == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("space.cache_type_k=choice(f16,q8_0,q4_0,q5_1)", "space.cache_type_k differs from the stored study 'ddtree"),
        ("objective=ttft_ms", "objective=ttft_ms: the stored study 'ddtree"),
    ],
)
def test_a_conflict_with_the_stored_study_is_told_before_anything_runs(
    finished: tuple[Path, subprocess.CompletedProcess[str]], override: str, said: str
) -> None:
    """More plain runs would be due, but none is made: neither a server nor a row nor the stored description changes."""
    folder, _ = finished
    with Store(f"sqlite:///{folder / 'studies.db'}", create=False) as store:
        before = [(store.study(name), store.trials(name)) for name in store.study_names()]
        run = sweep(folder, "resume=true", "n_trials=6", "protocol.baseline_repeats=4", override)
        assert run.returncode == 2, run.stderr
        line = run.stderr.strip().splitlines()[-1]
        assert line.startswith("error: " + said)
        assert "choose another study_name" in line
        assert [(store.study(name), store.trials(name)) for name in store.study_names()] == before


def test_configuration_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    run = sweep(tmp_path, "space.budget=choice(8,big)")
    assert run.returncode == 2
    (line,) = run.stderr.strip().splitlines()
    assert line == "error: space.budget='big' is not allowed: it takes a whole number"
    assert not (tmp_path / "studies.db").exists()


def test_a_study_whose_every_run_fails_reports_and_ends_with_3(tmp_path: Path) -> None:
    run = sweep(tmp_path, "n_trials=2", "engine.options.fault=crash_before_ready")
    assert run.returncode == 3, run.stderr
    assert "plain decoding could not be measured" in run.stderr
    assert "crashed" in (tmp_path / "reports" / "ddtree" / "findings.md").read_text()


@pytest.mark.long
def test_a_real_llama_server_is_measured_from_end_to_end(tmp_path: Path) -> None:
    words = [sys.executable, str(SWEEP), "+study=llamacpp_cpu", "trace=agent_short", "cluster=inline", "n_trials=1",
             "progress=plain", "report.formats=[png]", "protocol.baseline_repeats=2", "protocol.default_repeats=0",
             "protocol.confirm_blocks=0",
             # one thread: on a busy machine a second one waits for the first at every layer
             "space.threads=choice(1)", "plain.threads=1", "fixed.threads_batch=1", "seed_points=[]"]  # fmt: skip
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    rows = trials(tmp_path, "llamacpp_cpu")
    assert [row.role for row in rows] == [Role.BASELINE, Role.BASELINE, Role.SEARCH]
    assert all(row.result.measurement == "measured" and row.result.clock == "real" for row in rows)
    for turn in rows[0].result.turns:
        assert turn.counters.timing_source == "json"
    text = (tmp_path / "reports" / "llamacpp_cpu" / "findings.md").read_text()
    assert "MEASURED" in text.splitlines()[0]
    for named in ("llama.cpp b", "Q4_1", "sha256"):  # build, model file and its hash
        assert named in text


@pytest.mark.long
def test_one_setting_prints_what_an_agent_loop_reads(tmp_path: Path) -> None:
    words = [sys.executable, str(SWEEP), "+study=one", "trace=agent_short", "report.formats=[png]", "fixed.budget=32"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    *metrics, path = run.stdout.splitlines()
    assert path == str(tmp_path / "reports" / "one" / "findings.md")
    assert metrics[0].startswith("METRIC decode_tps=")
    assert all(re.fullmatch(r"METRIC [\w.]+=-?[0-9.e+-]+", line) for line in metrics)
    assert {row.knobs["budget"] for row in trials(tmp_path, "one") if row.speculative} == {32}
