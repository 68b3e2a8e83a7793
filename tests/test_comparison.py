"""Several engines on one trace: each against its own plain decoding, missing ones named with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_sweep import app, help_page
from dflash_sweep.errors import ConfigError

pytestmark = pytest.mark.long

QUICK = [
    "+study=engines",
    "progress=quiet",
    "report.formats=[png]",
    "protocol.baseline_repeats=2",
    "protocol.default_repeats=2",
]
LEFT_OUT = ["~compare.llamacpp", "~compare.beellama", "~compare.lucebox", "~compare.vllm", "~compare.sglang"]


def test_engines_stand_side_by_side_and_missing_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main([*QUICK, *LEFT_OUT]) == 0
    page = tmp_path / "reports" / "engines" / "findings.md"
    assert capsys.readouterr().out.splitlines()[-1] == str(page)
    text = page.read_text()
    assert "| [emulator](../engines-emulator/findings.md) | emulated |" in text
    assert "## Skipped" in text
    assert "| ddtree | ddtree: no llama-server on the PATH and engine.binary is not set" in text
    assert "| attach | " in text
    found = json.loads(page.with_suffix(".json").read_text())
    (line,) = found["engines"]
    assert line["runs"] == 4
    assert line["plain"][0] > 0
    assert line["stages"]["exact_ms"] > 0
    assert set(found["skipped"]) == {"ddtree", "attach"}


def test_no_engine_at_all_is_an_error_with_every_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main([*QUICK, *LEFT_OUT, "~compare.emulator"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: compare: none of these engines can run here: ddtree: ")
    assert "attach: " in error


def test_an_unknown_engine_is_named(tmp_path: Path) -> None:
    from dflash_sweep.comparison import group

    with pytest.raises(ConfigError, match=r"compare\.nope: there is no such engine; allowed: attach, beellama"):
        group(help_page.config_dir() / "engine", "nope")
