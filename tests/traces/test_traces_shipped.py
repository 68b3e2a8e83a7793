"""The shipped traces, and the agent script that recorded them: run again, it gives the same texts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_sweep import traces
from dflash_sweep.agent.__main__ import PROMPT_SETS, SCRIPTS, main, make
from dflash_sweep.agent.policy import AGENT_SHORT, Request, Script, Step
from dflash_sweep.agent.recording import estimated_tokens, record
from dflash_sweep.agent.workspace import TOOLS, Workspace
from dflash_sweep.errors import ConfigError, TraceError
from dflash_sweep.records import Trace
from dflash_sweep.traces.redact import redact
from dflash_sweep.traces.stats import trace_stats


@pytest.mark.parametrize("name", list(traces.SHIPPED))
def test_shipped_traces_are_valid_and_hold_nothing_personal(name: str) -> None:
    path = traces.shipped(name)
    assert traces.validate(path) == ()
    trace = traces.load(path)
    assert trace.header.name == name
    assert trace.header.license == "Apache-2.0"
    assert trace.header.content_kind == "real"
    assert redact(trace).found == ()
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(tmp|root|var|opt|work)/|\.venv", text)


def test_agent_meets_its_requirements() -> None:
    trace = traces.load(traces.shipped("agent"))
    assert len(trace.turns) >= 8
    assert len(trace.turns[0].tools or ()) >= 5
    assert all(tool["function"]["parameters"]["properties"] for tool in trace.turns[0].tools or ())
    assert "scripted policy" in (trace.header.note or "")
    assert {turn.bucket for turn in trace.turns} == {"tool_call", "code", "prose"}
    # 2,194 tokens with SmolLM2's tokenizer; 4.5 characters a token is more than any usual vocabulary makes of English.
    assert len(trace.turns[0].messages[0]["content"]) / 4.5 > 2000
    # Tools rendered into the prompt, 3.3 characters a token (a cautious figure), plus 256 tokens of output.
    last = trace.turns[-1]
    rendered = json.dumps(last.messages) + json.dumps(last.tools)
    assert estimated_tokens(rendered) + 256 < 8192
    assert all(turn.max_tokens == max(32, turn.recorded.output_tokens or 0) for turn in trace.turns)
    calls = [call for turn in trace.turns for call in turn.recorded.tool_calls]
    results = [message for message in last.messages if message["role"] == "tool"]
    assert len(calls) == len(results)
    assert any("failed" in message["content"] for message in results)
    assert "13 passed, 0 failed" in results[-1]["content"]


def texts(trace: Trace) -> Trace:
    """A trace without what differs between recordings: measured pauses, token counts, the tokenizer's name."""
    turns = tuple(
        replace(turn, pause_ms=None, max_tokens=None, recorded=replace(turn.recorded, output_tokens=None))
        for turn in trace.turns
    )
    return Trace(header=replace(trace.header, tokenizer=None, sha256=""), turns=turns)


@pytest.mark.parametrize("name", [name for name in [*SCRIPTS, *PROMPT_SETS] if name != "long_context"])
def test_recording_again_gives_the_same_texts(name: str) -> None:
    assert texts(make(name)) == texts(traces.load(traces.shipped(name)))


def test_long_context_is_long_and_asks_about_this_project() -> None:
    trace = traces.load(traces.shipped("long_context"))
    assert trace_stats(trace).turns[0].prompt_tokens > 24_000
    assert {turn.bucket for turn in trace.turns} == {"long_context"}
    assert len(make("long_context").turns) == 3  # the texts are those of the day of recording


def test_every_script_has_its_shipped_trace() -> None:
    assert set(SCRIPTS) | set(PROMPT_SETS) <= set(traces.SHIPPED)


def test_names_and_paths_are_resolved(tmp_path: Path) -> None:
    assert traces.resolve("agent") == traces.shipped("agent")
    (tmp_path / "agent").write_text("x")
    assert traces.resolve(tmp_path / "agent") == tmp_path / "agent"
    with pytest.raises(TraceError, match="agent_short"):
        traces.resolve("nope.jsonl")
    with pytest.raises(TraceError, match="agent_short"):
        traces.shipped("nope")


# ---------------------------------------------------------------- the agent's tools


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "repository")


def test_tools_have_schemas_and_work(workspace: Workspace) -> None:
    assert [tool["function"]["name"] for tool in TOOLS] == [
        "list_files", "read_file", "search_text", "replace_in_file", "write_file", "run_tests",
    ]  # fmt: skip
    assert "durations/parsing.py (21 lines)" in workspace.call("list_files", {})
    assert workspace.call("read_file", {"path": "durations/units.py", "first_line": 3, "last_line": 3}).startswith(
        "  3  "
    )
    assert workspace.call("search_text", {"pattern": "^UNITS_S"}).startswith("durations/units.py:3: ")
    assert workspace.call("write_file", {"path": "new/a.txt", "content": "x\n"}) == "created new/a.txt (1 lines)"
    changed = workspace.call("replace_in_file", {"path": "new/a.txt", "old_text": "x", "new_text": "y"})
    assert changed == "replaced 1 lines by 1 at new/a.txt:1"
    assert (workspace.root / "new/a.txt").read_text() == "y\n"


def test_tests_really_run(workspace: Workspace) -> None:
    assert "3 passed, 1 failed" in workspace.call("run_tests", {"module": "tests.test_rendering"})
    workspace.call(
        "write_file", {"path": "durations/rendering.py", "content": "def render(*a, **k):\n    return '2h'\n"}
    )
    assert "FAILED tests.test_rendering.RenderTest.test_zero_has_a_unit" in workspace.call("run_tests", {})


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("read_file", {"path": "../../etc/passwd"}, "outside of the repository"),
        ("write_file", {"path": "/etc/x", "content": ""}, "outside of the repository"),
        ("read_file", {"path": "nope"}, "no file nope"),
        ("read_file", {"path": "README.md", "first_line": 99}, "has 13 lines"),
        ("read_file", {"file": "README.md"}, "does not take these arguments: file"),
        ("search_text", {"pattern": "("}, "not a regular expression"),
        ("replace_in_file", {"path": "README.md", "old_text": "zzz", "new_text": ""}, "occurs 0 times"),
        ("format_disk", {}, "no tool 'format_disk'"),
    ],
)
def test_wrong_calls_say_what_was_wrong(name: str, arguments: dict[str, str], words: str, workspace: Workspace) -> None:
    result = workspace.call(name, arguments)
    assert result.startswith("error: ")
    assert words in result


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        Workspace.create(tmp_path)


def test_a_script_that_does_not_fit_stops(tmp_path: Path) -> None:
    steps = (Step(calls=(("list_files", {}),)), Step(say="x", needs=("no such file in the list",)))
    script = Script(name="bad", system_prompt="s", requests=(Request(text="t", steps=steps),))
    with pytest.raises(TraceError, match="step 1: the last results lack 'no such file in the list'"):
        record(script, tmp_path / "w")


def test_agent_command_writes_a_trace(tmp_path: Path) -> None:
    import typer

    command = typer.Typer()
    command.command()(main)
    done = CliRunner().invoke(command, ["agent_short", "--out", str(tmp_path / "t.jsonl")])
    assert done.exit_code == 0
    assert texts(traces.load(tmp_path / "t.jsonl")) == texts(traces.load(traces.shipped(AGENT_SHORT.name)))
    wrong = CliRunner().invoke(command, ["nope", "--out", str(tmp_path / "u.jsonl")])
    assert wrong.exit_code == 2
    assert "no script 'nope'" in wrong.output
