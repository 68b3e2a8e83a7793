"""`progress=json` and `progress=quiet` from outside, on whole small studies; the other modes by what they write."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console
from rich.text import Text

from dflash_sweep import settings_table
from dflash_sweep.records import Measurement
from dflash_sweep.terminal import json_lines
from dflash_sweep.terminal.plain import PlainLines
from dflash_sweep.terminal.quiet import Quiet
from dflash_sweep.terminal.summary import MOST_LINES
from dflash_sweep.terminal.view import close, console, results, tell, view
from dflash_sweep.watcher import Best
from fakes.scenes import make_ending, make_scene, plain_trial, spec, trial, verdict
from fakes.sweeping import SWEEP

SMALL = (
    "+study=ddtree", "cluster=inline", "trace=agent_short", "n_trials=2", "report.formats=[png]",
    "protocol.baseline_repeats=2", "protocol.default_repeats=1", "protocol.confirm_blocks=0",
)  # fmt: skip


def sweep(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SWEEP), *SMALL, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("json")
    return folder, sweep(folder, "progress=json", "metric_lines=true")


def events(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.long
def test_every_line_is_an_event_of_the_schema(as_json: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, run = as_json
    assert run.returncode == 0, run.stderr
    checker = jsonschema.Draft202012Validator(json_lines.schema())
    for event in events(run):
        checker.validate(event)
        assert event["measurement"] == "emulated"
        assert event["study"] == "ddtree"


@pytest.mark.long
def test_the_events_tell_the_whole_course(as_json: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, run = as_json
    told = events(run)
    kinds = [event["event"] for event in told]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("end") == 1
    started = [event["uid"] for event in told if event["event"] == "started"]
    finished = [event for event in told if event["event"] == "finished"]
    assert sorted(started) == sorted(event["uid"] for event in finished)
    assert [event["role"] for event in finished][:3] == ["baseline", "baseline", "calibrate"]
    assert all(event["value"] > 0 and event["unit"] == "tok/s" for event in finished)
    last = finished[-1]
    assert last["phase"] == "search"
    assert last["done"] == last["total"] == 2
    assert last["best"]["gain"] == pytest.approx(last["best"]["value"] / last["plain"], rel=0.02)
    assert last["stages_ms"]["exact_ms"] > 0
    assert "structural_bound" in {event["id"] for event in told if event["event"] == "verdict"}


@pytest.mark.long
def test_the_end_says_how_it_ended_and_where(as_json: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, run = as_json
    end = events(run)[-1]
    assert end["exit_code"] == 0
    assert end["status"] == "finished"
    assert end["findings"] == str(folder / "reports" / "ddtree" / "findings.md")
    assert Path(end["findings"]).is_file()
    assert end["runs"] == sum(event["event"] == "finished" for event in events(run))
    assert end["answer"]["statement"]
    assert {found["id"] for found in end["verdicts"]} >= {"structural_bound", "break_even", "noise"}
    assert end["metrics"]["plain_decode_tps"] > 0


def test_an_error_before_the_start_is_an_end_event_too(tmp_path: Path) -> None:
    run = sweep(tmp_path, "progress=json", "n_trails=3")
    (end,) = events(run)
    assert run.returncode == end["exit_code"] == 2
    assert end["error"] == "n_trails: there is no such key; did you mean n_trials? (all keys: --cfg job)"
    assert run.stderr == f"error: {end['error']}\n"
    jsonschema.Draft202012Validator(json_lines.schema()).validate(end)


@pytest.mark.long
def test_quiet_says_how_it_ended_and_where_the_findings_are(tmp_path: Path) -> None:
    run = sweep(tmp_path, "progress=quiet", "engine.options.fault=crash_before_ready")
    assert run.returncode == 3
    assert run.stdout == f"{tmp_path / 'reports' / 'ddtree' / 'findings.md'}\n"
    lines = run.stderr.splitlines()
    assert lines[0].startswith("error: plain decoding could not be measured: crashed")
    assert len(lines) <= MOST_LINES
    assert lines[-1] == f"findings: {run.stdout.strip()}"


# ---------------------------------------------------------------- what the views write


BEST = Best(candidate=0, value=25.0, unit="tok/s", plain=50.0, gain=0.5)


def on_paper(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None, highlight=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines_are_one_an_event() -> None:
    out = on_paper()
    with PlainLines(out, make_scene()) as lines:
        lines.phase("search", 2)
        lines.started(spec(0))
        lines.finished(trial(0), 25.0, BEST)
        lines.note("a note\nof two lines")
        lines.verdict(verdict(1))
    told = [line.split(" ", 1)[1] for line in written(out).splitlines()]
    assert told[0] == "== search: 2 runs"
    assert told[1].startswith("[1/2] candidate 0: 25.00 tok/s target_feat_ctx=128 budget=22")
    assert "| best #0: 25.00 tok/s; 0.50× of plain 50.00 |" in told[1]
    assert told[2:] == ["a note of two lines", "● Finding 1 holds."]


def test_quiet_writes_nothing_before_the_end() -> None:
    out = on_paper()
    with Quiet(out, make_scene()) as quiet:
        quiet.phase("search", 2)
        quiet.started(spec(0))
        quiet.finished(plain_trial(0), 50.0, None)
        quiet.note("a note")
        quiet.verdict(verdict(1))
    assert written(out) == ""
    quiet.end(make_ending())
    assert written(out).startswith("ddtree finished: 61 runs")


@pytest.mark.parametrize(
    ("mode", "terminal", "name"),
    [("auto", True, "LiveView"), ("auto", False, "PlainLines"), ("live", False, "PlainLines"),
     ("live", True, "LiveView"), ("plain", True, "PlainLines"), ("quiet", True, "Quiet"), ("json", True, "JsonLines")],
)  # fmt: skip
def test_which_view_a_mode_means(mode: str, terminal: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert type(view(mode, make_scene(), on_paper(terminal))).__name__ == name


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(view("auto", make_scene(), on_paper(True)), PlainLines)


def test_every_mode_is_on_the_configuration_page() -> None:
    page = settings_table.page()
    assert all(f"{mode}" in page for mode in ("auto", "live", "plain", "quiet", "json"))


def test_json_holds_no_number_that_json_cannot() -> None:
    out = io.StringIO()
    lines = json_lines.JsonLines(out, make_scene(measurement=Measurement.MEASURED))
    lines.finished(trial(0), float("nan"), Best(candidate=0, value=float("inf"), unit="tok/s"))
    event = json.loads(out.getvalue(), parse_constant=lambda name: pytest.fail(name))
    assert event["value"] is None
    assert event["measurement"] == "measured"


@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("1", False)])
def test_no_color_means_no_colour(no_color: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pseudo-terminal of the kernel, as a shell would give one."""
    leader, follower = os.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    with os.fdopen(follower, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        console().print(Text("word", style="red"))
        stream.flush()
        assert (b"\x1b[31m" in os.read(leader, 1000)) is coloured
    os.close(leader)


def test_a_terminal_says_its_size_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS may be that of a shell that was resized since; where there is no terminal it is all we have."""
    monkeypatch.setenv("COLUMNS", "33")
    monkeypatch.setenv("LINES", "7")
    leader, follower = os.openpty()
    termios.tcsetwinsize(leader, (50, 160))
    with os.fdopen(follower, "w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        assert console().width != 33
    os.close(leader)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert console().width == 33


def test_several_studies_end_in_one_event(capsys: pytest.CaptureFixture[str]) -> None:
    tell("json", "engines", "vllm: skipped — it is not here")
    close("json", "engines", 0, "the page", Path("/r/findings.md"))
    out, err = capsys.readouterr()
    note, end = (json.loads(line) for line in out.splitlines())
    for event in (note, end):
        jsonschema.Draft202012Validator(json_lines.schema()).validate(event)
    assert note["note"] == "vllm: skipped — it is not here"
    assert (end["event"], end["exit_code"], end["findings"]) == ("end", 0, "/r/findings.md")
    assert err == ""


def test_several_studies_end_with_a_page_and_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    tell("plain", "engines", "vllm: skipped")
    tell("quiet", "engines", "never said")
    close("plain", "engines", 0, "the page", Path("/r/findings.md"))
    results("quiet", ["METRIC x=1"])
    results("json", ["never said"])
    out, err = capsys.readouterr()
    assert out == "/r/findings.md\nMETRIC x=1\n"
    assert err == "vllm: skipped\nthe page\n"
