"""`resume=true` after the build has changed: plain decoding is measured again, and the findings say what is stale."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from dflash_sweep.exits import EXIT_CONFIG, EXIT_OK
from fakes.sweeping import sweep, trials


@pytest.mark.long
def test_a_new_build_makes_the_old_baseline_stale(tmp_path: Path) -> None:
    quiet = ("protocol.confirm_blocks=0", "protocol.canary_every=0", "protocol.half_width=null")
    assert sweep(tmp_path, "n_trials=1", *quiet).returncode == EXIT_OK
    first = [trial.uid for trial in trials(tmp_path)]
    with sqlite3.connect(tmp_path / "studies.db") as database:  # as if these rows had been made by an older build
        database.execute("UPDATE dfs_trial SET build = 'older', spec = json_set(spec, '$.build.version', 'older')")

    # Another question is refused, in one line that names it; another build is not.
    other = sweep(tmp_path, "n_trials=2", "resume=true", "replay.max_tokens=64", *quiet)
    assert other.returncode == EXIT_CONFIG
    assert "replay.max_tokens=64: the stored study 'ddtree' has 128" in other.stderr
    assert [trial.uid for trial in trials(tmp_path)] == first

    done = sweep(tmp_path, "n_trials=2", "resume=true", *quiet)
    assert done.returncode == EXIT_OK, done.stderr
    assert "Changed since 4 stored run(s): build older → " in " ".join(done.stderr.split())
    rows = trials(tmp_path)
    # Two plain runs and one of the default setting again, and the second candidate; the first one is kept.
    assert [trial.uid.partition("/")[2] for trial in rows[len(first) :]] == [
        "baseline/plain/2/0", "baseline/plain/3/0", "calibrate/default/1/0", "search/1/0/0",
    ]  # fmt: skip
    findings = json.loads((tmp_path / "reports" / "ddtree" / "findings.json").read_text())
    (verdict,) = [entry for entry in findings["verdicts"] if entry["id"] == "comparability"]
    assert "4 runs are from before a change (build older → " in verdict["statement"]
    new = {trial.number for trial in rows[len(first) :]}
    judged = {number for setting in findings["settings"] for number in setting["trials"]}
    assert judged == new
