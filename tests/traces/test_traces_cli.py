"""`dflash-sweep traces …` from the outside: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dflash_sweep import traces
from dflash_sweep.errors import TraceError
from dflash_sweep.traces.cli import app

RUN = CliRunner()


@pytest.fixture
def samples() -> Path:
    return Path(__file__).parent / "samples"


def output(*arguments: str) -> str:
    done = RUN.invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_list_names_every_shipped_trace() -> None:
    assert all(name in output("list") for name in traces.SHIPPED)


def test_show_draws_text_and_png(tmp_path: Path) -> None:
    text = output("show", "agent", "--png", str(tmp_path / "a.png"))
    assert "13 turns in 1 conversation" in text
    assert text.count("█") > 100
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_show_turn_prints_the_messages() -> None:
    text = output("show", "agent_short", "--turn", "1")
    assert "--- system" in text
    assert "→ run_tests" in text
    with pytest.raises(TraceError, match="no turn 9"):
        output("show", "agent_short", "--turn", "9")


def test_stats_are_json() -> None:
    figures = json.loads(output("stats", "agent"))
    assert figures["conversations"] == 1
    assert len(figures["turns"]) == 13
    assert figures["by_bucket"]["code"][0] == 4


def test_validate_says_what_is_wrong(tmp_path: Path, samples: Path) -> None:
    assert "every request is acceptable" in output("validate", "agent")
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(traces.shipped("agent_short").read_bytes().replace(b'"role":"system"', b'"role":"developer"'))
    done = RUN.invoke(app, ["validate", str(bad)])
    assert done.exit_code == 2
    assert "role 'developer'; servers know system, user, assistant, tool" in done.stderr
    assert done.stdout == ""
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    output("import", str(samples / "mooncake.jsonl"), "--out", str(tmp_path / "m.jsonl"))
    output("validate", str(tmp_path / "m.jsonl"), "--for", "prefill_tps")
    with pytest.raises(TraceError, match="invented from lengths"):
        output("validate", str(tmp_path / "m.jsonl"), "--for", "decode_tps")
    with pytest.raises(TraceError, match="not faithful"):
        output("validate", str(tmp_path / "m.jsonl"), "--faithful")


def test_import_prints_the_account_and_writes_the_trace(tmp_path: Path, samples: Path) -> None:
    (tmp_path / "system.md").write_text("You are Pi.")
    text = output(
        "import", str(samples / "pi.jsonl"), "--out", str(tmp_path / "t.jsonl"), "--name", "mine", "--infer-tools",
        "--system", str(tmp_path / "system.md"),
    )  # fmt: skip
    assert "format pi: 13 records read, 9 used, 4 skipped" in text
    assert "skipped 1: other branch of the session" in text
    assert "lost: tool_schemas: not recorded: permissive ones were made up from the calls" in text
    trace = traces.load(tmp_path / "t.jsonl")
    assert trace.header.name == "mine"
    assert trace.turns[0].messages[0] == {"role": "system", "content": "You are Pi."}
    with pytest.raises(TraceError, match="reasoning is one of"):
        output("import", str(samples / "pi.jsonl"), "--out", str(tmp_path / "t.jsonl"), "--reasoning", "maybe")


def test_split_writes_pieces(tmp_path: Path, samples: Path) -> None:
    source = str(tmp_path / "t.jsonl")
    output("import", str(samples / "sharegpt.json"), "--out", source)
    output("split", source, "--out-dir", str(tmp_path / "p"), "--by", "conversation")
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["t-c1.jsonl", "t-c2.jsonl"]
    assert traces.validate(tmp_path / "p" / "t-c1.jsonl") == ()
    assert "t-0-0.jsonl: 2 turns" in output("split", source, "--out-dir", str(tmp_path / "q"), "--turns", "0-0")
    assert "t-check.jsonl" in output("split", source, "--out-dir", str(tmp_path / "r"), "--check", "0.5")
    for wrong in (["--by", "colour"], ["--turns", "x"], [], ["--by", "bucket", "--check", "0.5"]):
        with pytest.raises(TraceError, match="takes"):
            output("split", source, "--out-dir", str(tmp_path / "s"), *wrong)


def test_sharing_is_refused_until_redacted(tmp_path: Path) -> None:
    key = "sk-aB3dE5gH7jK9mN1pQ3sT5vX7"
    row = {"messages": [{"role": "user", "content": f"use {key} on jroe@gpu-box:~/x"}]}
    (tmp_path / "log.jsonl").write_text(json.dumps(row))
    dirty, clean = str(tmp_path / "dirty.jsonl"), str(tmp_path / "clean.jsonl")
    output("import", str(tmp_path / "log.jsonl"), "--out", dirty)
    with pytest.raises(TraceError, match="probably holds secrets"):
        output("share", dirty, "--out", str(tmp_path / "shared.jsonl"))
    assert not (tmp_path / "shared.jsonl").exists()
    report = output("redact", dirty, "--out", clean)
    assert "OpenAI-style key (secret): 1 × 24 characters" in report
    assert key not in report + Path(clean).read_text()
    output("share", clean, "--out", str(tmp_path / "shared.jsonl"))
    directly = output("import", str(tmp_path / "log.jsonl"), "--out", dirty, "--redact")
    assert "redacted: OpenAI-style key" in directly
    assert traces.load(dirty).turns == traces.load(clean).turns
