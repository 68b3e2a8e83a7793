"""Stored trials measured again: rebuilt from the store alone, refused where they are no longer the same, judged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from sqlalchemy import text

from dflash_sweep import app, originals, owner, repeating, rerun, settings, traces
from dflash_sweep.engines import get
from dflash_sweep.errors import ConfigError, FailureKind, StorageError, TraceError
from dflash_sweep.exits import EXIT_DIFFERS, EXIT_OK
from dflash_sweep.interrupts import Interrupts
from dflash_sweep.lease import Lease
from dflash_sweep.records import (
    EngineSettings,
    Failure,
    Measurement,
    ReplayPolicy,
    Role,
    StoredTrial,
    StudyInfo,
    TrialResult,
    TrialSpec,
)
from dflash_sweep.schema import Config, EngineConfig
from dflash_sweep.store import Store
from dflash_sweep.terminal import json_lines
from fakes.builders import DEVICE, make_result
from fakes.sweeping import sweep


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of two candidates on the emulator, in a folder of its own."""
    folder = tmp_path_factory.mktemp("study")
    run = sweep(folder, "n_trials=2", "protocol.baseline_repeats=3", "protocol.default_repeats=3")
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture
def folder(study: Path, tmp_path: Path) -> Path:
    """A copy of the study's database that a test may write."""
    shutil.copy(study / "studies.db", tmp_path / "studies.db")
    return tmp_path


def opened(folder: Path) -> Store:
    return Store(f"sqlite:///{folder / 'studies.db'}", create=False)


def configured(*words: str) -> Config:
    return settings.merge(app.compose_overrides(app.normalise(["study_name=ddtree", "progress=quiet", *words])))


def again(folder: Path, number: int, *words: str) -> tuple[int, dict[str, Any]]:
    """Rerun a trial as the command does; exit code and rerun.json."""
    overrides = [f"rerun.trial={number}", "cluster=inline", *words]
    code = rerun.run_rerun(configured(*overrides), overrides, folder, folder / "sweeps" / "run")
    newest = max(folder.glob("reports/*/rerun.json"), key=lambda path: path.stat().st_mtime_ns)
    return code, json.loads(newest.read_text())


def numbers(folder: Path, role: Role) -> list[int]:
    with opened(folder) as store:
        return [trial.number for trial in store.trials("ddtree") if trial.role is role]


# ---------------------------------------------------------------- measured


@pytest.mark.long
def test_stored_trials_come_out_again_and_leave_their_study_as_it_was(folder: Path) -> None:
    with opened(folder) as store:
        before = store.study("ddtree"), store.trials("ddtree")
    number, values = numbers(folder, Role.SEARCH)[0], []
    for _ in range(2):
        code, found = again(folder, number)
        assert (code, found["outcome"]) == (EXIT_OK, "reproduced"), found["statement"]
        assert found["differences"] == []
        assert (found["n_then"], found["n_now"]) == (1, 3)
        assert all(turn["equal"] == turn["runs"] == 3 for turn in found["texts"])
        values.append(found["now"])
    assert values[0] != values[1]  # each rerun has noise of its own
    with opened(folder) as store:
        assert (store.study("ddtree"), store.trials("ddtree")) == before
        name = f"ddtree-trial-{number}-rerun-2"
        rows = store.trials(name)
        assert {row.role for row in rows} == {Role.RERUN}
        assert [row.speculative for row in rows].count(False) == 3
        info = store.study(name)
        assert info is not None
        assert info.status == "finished"
        assert info.provenance["rerun"]["study"] == "ddtree"
        assert info.provenance["rerun"]["outcome"] == "reproduced"
    page = (folder / "reports" / name / "rerun.md").read_text()
    assert page.startswith(f"# Rerun of ddtree, trial {number} — EMULATED")
    assert "Nothing: build, models, trace, device, driver, kernel and packages are the same." in page


@pytest.mark.long
def test_a_machine_5_percent_slower_is_a_drift_of_the_baseline_too(folder: Path) -> None:
    code, found = again(folder, numbers(folder, Role.SEARCH)[0], "engine.options.slowdown=0.05")
    assert (code, found["outcome"]) == (EXIT_DIFFERS, "drifted"), found["statement"]
    assert found["plain_moved"]
    slower = 1 / 1.05
    for change in (found["change"], found["plain"]):
        assert change["interval"]["low"] < slower < change["interval"]["high"]
    assert [entry["key"] for entry in found["differences"]] == ["engine.options.slowdown"]


@pytest.mark.long
def test_plain_decoding_itself_can_be_rerun_and_told_to_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = again(folder, numbers(folder, Role.BASELINE)[0], "rerun.repeats=2", "progress=json")
    assert (code, found["outcome"]) == (EXIT_OK, "reproduced"), found["statement"]
    assert len(found["runs"]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    event = json.loads(line)
    jsonschema.validate(event, json_lines.schema())
    assert (event["event"], event["exit_code"], event["study"]) == ("end", EXIT_OK, found["study"])
    assert event["findings"].endswith("rerun.md")


@pytest.mark.long
def test_a_study_that_is_being_measured_here_is_named(folder: Path) -> None:
    with opened(folder) as store:
        assert rerun.running_here(store) == []
        with Lease(store, "ddtree", owner.current()):
            assert rerun.running_here(store) == ["ddtree"]


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["engine.model=other.gguf"], "engine.model: not set → "),
        (["engine.options.card=rtx3090"], "device.name: rtx4090 → rtx3090"),
        (["engine.n_ctx=16384"], "engine.n_ctx: 32768 → 16384"),
    ],
)
@pytest.mark.long
def test_another_measurement_is_refused_with_the_difference_named(folder: Path, words: list[str], named: str) -> None:
    (folder / "other.gguf").write_bytes(b"")
    with pytest.raises(ConfigError, match="would not be the same measurement") as refusal:
        again(folder, numbers(folder, Role.SEARCH)[0], *words)
    assert named in str(refusal.value)
    assert "rerun.force=true" in str(refusal.value)
    with opened(folder) as store:
        assert store.study_names() == ("ddtree",)


@pytest.mark.long
def test_a_forced_rerun_is_marked(folder: Path) -> None:
    (folder / "other.gguf").write_bytes(b"")
    words = "engine.model=other.gguf", "rerun.force=true", "rerun.repeats=2"
    _, found = again(folder, numbers(folder, Role.BASELINE)[0], *words)
    assert found["forced"] == ["engine.model"]
    page = (folder / "reports" / found["study"] / "rerun.md").read_text()
    assert "**Forced: **not the same measurement (engine.model)" in page.replace("**Forced:** ", "**Forced: **")


@pytest.mark.parametrize("word", ["n_trials=4", "fixed.budget=8", "+trace=workloads", "replay.max_tokens=9",
                                  "engine=ddtree", "engine.name=ddtree"])  # fmt: skip
def test_what_is_measured_comes_from_the_store(word: str) -> None:
    with pytest.raises(ConfigError, match="a rerun takes what it measures from the store"):
        rerun.check_words([word])


def test_where_it_is_measured_may_be_said() -> None:
    where = "+study=ddtree rerun.trial=1 storage.url=sqlite:///x.db cluster=inline report.dir=r progress=plain"
    rerun.check_words([*where.split(), "engine.model=x", "++engine.options.slowdown=0.1", "trace.path=t.jsonl"])


@pytest.mark.parametrize("repeats", [0, -2])
def test_what_makes_no_sense_is_refused_before_anything_is_stored(repeats: int, tmp_path: Path) -> None:
    words = ["rerun.trial=1", f"rerun.repeats={repeats}"]
    with pytest.raises(ConfigError, match=rf"rerun\.repeats={repeats}: must be at least 1"):
        rerun.run_rerun(configured(*words), words, tmp_path, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_margins_are_percentages() -> None:
    with pytest.raises(ConfigError, match=r"rerun\.margin=0: must be more than 0"):
        rerun.run_rerun(configured("rerun.trial=1", "rerun.margin=0"), [], Path(), Path())


# ---------------------------------------------------------------- rebuilt


@pytest.mark.long
def test_a_spec_is_rebuilt_from_the_store_alone(folder: Path) -> None:
    number = numbers(folder, Role.SEARCH)[0]
    with opened(folder) as store:
        found = originals.load(store, "ddtree", number, launch_dir=folder)
        stored = store.spec_json(found.trial.uid)
    assert stored is not None
    assert found.spec.knobs == found.trial.knobs
    assert found.spec.trace.header.sha256 == found.trial.trace_sha256
    assert len(found.spec.trace.turns) == 3
    rebuilt: dict[str, Any] = json.loads(msgspec.json.encode(found.spec))
    rebuilt["trace"] = rebuilt["trace"]["header"]
    assert {**rebuilt, "prune": stored["prune"]} == stored
    assert found.plain is not None
    assert not found.plain.speculative


@pytest.mark.long
def test_missing_trials_studies_and_imports_are_told(folder: Path) -> None:
    with opened(folder) as store:
        with pytest.raises(StorageError, match=r"study 'other' is not stored; there are: ddtree"):
            originals.load(store, "other", 0, launch_dir=folder)
        with pytest.raises(StorageError, match=r"has no trial 999: its trials are 0 to \d+"):
            originals.load(store, "ddtree", 999, launch_dir=folder)
        with store.engine.begin() as connection:
            connection.execute(text("UPDATE dfs_trial SET spec = '{}' WHERE number = 0"))
        with pytest.raises(StorageError, match="trial 0 of study 'ddtree' was imported"):
            originals.load(store, "ddtree", 0, launch_dir=folder)


def _trace_moved(folder: Path, store: Store, path: str) -> None:
    """The study says that its trace was this file."""
    info = store.study("ddtree")
    assert info is not None
    config = {**info.config, "trace": {**info.config["trace"], "path": path}}
    store.save_study(replace(info, config=config, provenance={**info.provenance, "trace_path": path}))
    with store.engine.begin() as connection:
        connection.execute(
            text("UPDATE dfs_trial SET spec = json_set(spec, '$.trace.name', 'mine')"),
        )


@pytest.mark.long
def test_a_trace_is_found_by_its_content_and_told_if_it_is_gone_or_another(folder: Path) -> None:
    shipped = Path(originals.__file__).parent / "traces" / "data"
    number = numbers(folder, Role.SEARCH)[0]
    there = folder / "mine.jsonl"
    with opened(folder) as store:
        _trace_moved(folder, store, str(there))
        with pytest.raises(TraceError, match=r"trace 'mine' is not here any more \(looked for .*mine\.jsonl"):
            originals.load(store, "ddtree", number, launch_dir=folder)
        shutil.copy(shipped / "agent_short.jsonl", there)
        assert originals.load(store, "ddtree", number, launch_dir=folder).trace_path == str(there)
        shutil.copy(shipped / "prose.jsonl", there)
        with pytest.raises(TraceError, match="is not what was replayed: its content is") as other:
            originals.load(store, "ddtree", number, launch_dir=folder)
        assert "trace.path=FILE" in str(other.value)
        found = originals.load(store, "ddtree", number, launch_dir=folder, trace_path="agent_short")
        assert found.trace_path == "agent_short"
        forced = originals.load(store, "ddtree", number, launch_dir=folder, any_trace=True)
        engine = get("emulator")
        now = originals.renewed(forced.spec, engine, forced.spec.engine)
        different = originals.differences(forced, now, forced.trial.result.device)
        assert "trace.sha256" in {entry.key for entry in originals.refused(different, engine)}


def test_first_turns_and_held_out_turns_are_parts_of_their_whole_trace() -> None:
    whole = traces.load(traces.resolve("agent"))
    config = {"trace": {"max_turns": 8}, "protocol": {"held_out": 0.25}}
    info = StudyInfo(name="s", engine="emulator", measurement=Measurement.EMULATED, config=config)
    parts = list(originals._variants(whole, info, ReplayPolicy()))
    assert [len(part.turns) for part in parts] == [13, 8, 6, 2]
    assert len({part.header.sha256 for part in parts}) == 4


def test_an_engine_section_keeps_what_is_not_named() -> None:
    section = rerun.changed_engine(
        EngineSettings(name="emulator", n_ctx=4096, options={"card": "rtx3090", "seed": 5}, extra_args=("-x",)),
        EngineConfig(name="emulator", model="m.gguf", n_ctx=1, options={"slowdown": 0.1}),
        ["engine.model=m.gguf", "++engine.options.slowdown=0.1", "cluster=inline"],
    )
    assert (section.n_ctx, section.model, section.extra_args) == (4096, "m.gguf", ["-x"])
    assert section.options == {"card": "rtx3090", "seed": 5, "slowdown": 0.1}


# ---------------------------------------------------------------- the loop


class _Pool:
    """Answers specs with results, or with a lost worker as often as told."""

    def __init__(self, lost: int) -> None:
        self.devices = (DEVICE,)
        self.lost, self.seen = lost, list[TrialSpec]()

    def submit(self, spec: TrialSpec, *, on: object = None) -> None:
        assert on == DEVICE
        self.seen.append(spec)

    def wait(self, timeout_s: float | None = None) -> tuple[TrialResult, ...]:
        spec = self.seen[-1]
        if self.lost:
            self.lost -= 1
            gone = Failure(kind=FailureKind.WORKER_LOST, message="gone")
            return (make_result(spec.uid, turns=(), failure=gone),)
        return (make_result(spec.uid),)


@pytest.mark.long
def test_a_passing_failure_is_run_again(folder: Path) -> None:
    number = numbers(folder, Role.SEARCH)[0]
    told: list[StoredTrial] = []
    with opened(folder) as store:
        original = originals.load(store, "ddtree", number, launch_dir=folder)
        found = rerun.plan(original, configured(f"rerun.trial={number}", "cluster=inline"), [], folder)
        assert found.plain is not None
        pair = found.spec, found.plain
        specs = repeating.blocks(pair, "again", 2, run_dir=folder, seed=7, launch_seeds=True)
        info = store.study("ddtree")
        assert info is not None
        store.save_study(replace(info, name="again"))
        pool = _Pool(lost=2)
        runs = repeating.measure(store, pool, DEVICE, specs, 2, told.append, Interrupts())  # type: ignore[arg-type]
    assert len(specs) == len(runs) == 4
    assert [run.attempt for run in runs] == [2, 0, 0, 0]
    assert [trial.uid.rpartition("/")[2] for trial in told[:3]] == ["0", "1", "2"]
    assert {spec.repeat for spec in specs} == {0, 1}
    assert all(spec.own_server and not spec.prune and spec.role is Role.RERUN for spec in specs)
    assert len({spec.engine.options["launch_seed"] for spec in specs}) == 4
