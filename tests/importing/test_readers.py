"""Foreign logs: formats, segments, torn lines, parameters with provenance; mutated logs never crash the importer."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dflash_sweep import frames, importing
from dflash_sweep.analysis.verdicts import judge
from dflash_sweep.errors import ConfigError, FailureKind
from dflash_sweep.importing import pi_log, table_log
from dflash_sweep.importing.aliases import Aliases, parse
from dflash_sweep.importing.parameters import of_row
from dflash_sweep.importing.rawlog import RawRow
from dflash_sweep.records import VerdictStatus

CONFIG = {"type": "config", "name": "x", "metricName": "tps", "metricUnit": "", "bestDirection": "higher"}
CASTLE = Path(str(resources.files("dflash_sweep"))) / "data" / "castle-runs-001-113.jsonl"


def run(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "run": number, "commit": "abc1234", "metric": 10.0 + number, "metrics": {}, "status": "keep",
        "description": "", "timestamp": 1_777_494_462_566 + number, "segment": 0, **fields,
    }  # fmt: skip


def write(tmp_path: Path, *lines: Any, name: str = "log.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n", encoding="utf-8")
    return path


def test_segments_hooks_and_torn_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"type": "hook", "stage": "before", "exit_code": 0},
        CONFIG,
        CONFIG,  # no run before it: still the first segment
        run(1),
        '{"run": 2, "metric": 1',  # torn
        {"type": "note"},
        {**CONFIG, "metricName": "loss", "bestDirection": "lower"},
        run(3),
    )
    log = pi_log.read(path.read_text())
    assert [row.segment for row in log.rows] == [0, 1]
    assert log.segments == ("tps", "loss")
    assert log.direction == "minimize"
    assert log.skipped == {"hook line": 1, "line of unknown type 'note'": 1}
    assert len(log.torn) == 1
    assert log.torn[0].startswith("line 5")


def test_unknown_status_and_missing_metric_are_no_success(tmp_path: Path) -> None:
    path = write(
        tmp_path, CONFIG, run(1), run(2, status="promising"), run(3, metric=None), run(4, metric=0, status="discard"),
        run(5, status="checks_failed"), run(6, status="crash", metric=0, description="boom"),
    )  # fmt: skip
    found = importing.read(path)
    failures = [trial.result.failure.kind if trial.result.failure else None for trial in found.trials]
    assert failures == [
        None, None, FailureKind.NO_MEASUREMENT, FailureKind.NO_MEASUREMENT, FailureKind.OUTPUT_MISMATCH,
        FailureKind.CRASHED,
    ]  # fmt: skip
    assert found.trials[1].status_claimed == "promising"
    assert found.coverage.odd_status == {"promising": 1}
    assert any("not taken for a keep" in line for line in found.coverage.lines())


def test_a_folder_with_a_log_is_enough(tmp_path: Path) -> None:
    (tmp_path / ".auto").mkdir()
    write(tmp_path / ".auto", CONFIG, run(1))
    write(tmp_path, CONFIG, run(1), run(2), name="autoresearch.jsonl")  # legacy file: ignored beside .auto
    assert len(importing.read(tmp_path).trials) == 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "hello\n", "no known format"),
        ("a.jsonl", json.dumps(CONFIG) + "\n", "without a run"),
        ("a.csv", "tps,status\n", "without a run"),
        ("a.bin", "\x00\x01", "no known format"),
        ("a.empty", "", "no known format"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        importing.read(tmp_path / name)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="no such file"):
        importing.read(tmp_path / "absent")


def test_the_karpathy_table(tmp_path: Path) -> None:
    path = tmp_path / "results.tsv"
    path.write_text(
        "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
        "a1b2c3d\t0.9979\t44.0\tkeep\tbaseline\n"
        "b2c3d4e\t0.9932\t44.2\tkeep\tincrease LR to 0.04\n"
        "c3d4e5f\t1.0050\t44.0\tdiscard\tswitch to GeLU\n"
        "d4e5f6g\t0.000000\t0.0\tcrash\tdouble model width (OOM)\n"
    )
    found = importing.read(path)
    assert (found.study.objective, found.study.direction) == ("val_bpb", "minimize")
    assert [trial.result.claimed.get("val_bpb") for trial in found.trials] == [0.9979, 0.9932, 1.005, None]
    assert found.trials[3].result.failure is not None
    assert found.trials[3].result.failure.kind is FailureKind.OUT_OF_MEMORY
    judge(frames.trial_frame(found.trials), frames.turn_frame(found.trials), found.study)


def test_the_iteration_table(tmp_path: Path) -> None:
    path = tmp_path / "autoresearch-results.tsv"
    path.write_text(
        "# metric_direction: higher\niteration\tcommit\tmetric\tdelta\tguard\tstatus\tdescription\n"
        "0\ta1b2c3d\t85.2\t0\t-\tbaseline\tinitial\n1\t-\t86.5\t+1.3\tpass\tkeep\tbudget 32\n"
        "2\t-\t0\t0\t-\trefine\t[REFINE] other layer\n3\t-\t80\t-6\n"
    )
    found = importing.read(path)
    assert len(found.trials) == 2
    assert found.study.direction == "maximize"
    assert found.coverage.skipped == {"no run of its own (refine)": 1}
    assert len(found.coverage.torn) == 1
    assert found.trials[1].knobs == {"budget": 32}
    assert found.trials[1].result.environment["provenance"] == {"budget": "description"}


def test_tables_of_tuners(tmp_path: Path) -> None:
    optuna = tmp_path / "trials.csv"
    optuna.write_text(
        "number,value,datetime_start,params_batch_size,params_gpu_layers,params_flash_attn,state\n"
        "0,41.5,2026-05-01 10:00:00,512,99,1,COMPLETE\n1,,2026-05-01 10:01:00,64,99,0,FAIL\n2,40,,512,20,1,RUNNING\n"
    )
    found = importing.read(optuna)
    assert found.trials[0].knobs == {"n_batch": 512, "gpu_layers": 99, "flash_attn": True}
    assert found.trials[0].result.started_utc.startswith("2026-05-01T")
    assert found.trials[1].result.failure is not None
    assert len(found.trials) == 2
    bench = tmp_path / "bench.csv"
    bench.write_text("model,n_batch,n_threads,n_gen,avg_ts,stddev_ts,odd\nm,512,8,128,33.5,0.2,q\n")
    one = importing.read(bench)
    assert one.trials[0].knobs == {"n_batch": 512, "threads": 8}
    assert one.coverage.unknown == {"odd": 1}


def row(description: str = "", **structured: Any) -> RawRow:
    return RawRow(line=1, run=1, segment=0, status="keep", metric=1.0, description=description, structured=structured)


@pytest.mark.parametrize(
    ("description", "knobs"),
    [
        ("feature window 128", {"target_feat_ctx": 128}),
        ("budget 32, window 112", {"budget": 32, "target_feat_ctx": 112}),
        ("proposal temperature 0.75", {"proposal_temp": 0.75}),
        ("budget 32, K capped at 4", {"budget": 32, "top_k": 4}),
        ("KV type q8_0, context 32k", {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "n_ctx": 32768}),
        ("ubatch 256 and batch 2048", {"n_ubatch": 256, "n_batch": 2048}),
        ("try --top-k=3 chain_seed=off", {"top_k": 3, "chain_seed": False}),
        ("repeat of run 18", {}),
        ("42 tokens at temperature 0.2", {}),  # the target's own temperature is no knob of ours
    ],
)
def test_parameters_in_prose(description: str, knobs: dict[str, Any]) -> None:
    found = of_row(row(description), Aliases())
    assert found.knobs == knobs
    assert set(found.provenance.values()) <= {"description"}


def test_the_structured_field_outweighs_prose_and_rules_outweigh_phrases() -> None:
    rules = parse(["kvt=cache_type_k", r"/beam (\d+)/=top_k", "n_ctx:=64k"])
    found = of_row(row("budget 16, beam 4", budget="22", kvt="f16", odd="1"), rules)
    assert found.knobs == {"budget": 22, "cache_type_k": "f16", "top_k": 4, "n_ctx": 65536}
    assert found.provenance == {"budget": "asi", "cache_type_k": "asi", "top_k": "rule", "n_ctx": "default"}
    assert found.unknown == ("odd",)
    assert "budget is 22 by its asi but 16 by its description" in found.conflicts[0]


@pytest.mark.parametrize("rule", ["budget", "=x", "a=B C", "/(a/=x", "/a/=x", "/(a)(b)/=x"])
def test_bad_rules_are_named(rule: str) -> None:
    with pytest.raises(ConfigError, match="alias"):
        parse([rule])


def test_rows_without_speculation_are_the_baseline(tmp_path: Path) -> None:
    path = write(tmp_path, CONFIG, run(1, asi={"params": {"speculative": False}}), run(2, asi={"params": "budget=8"}))
    plain, spec = importing.read(path).trials
    assert (plain.speculative, plain.candidate) == (False, None)
    assert (spec.speculative, spec.candidate) == (True, 0)


def test_a_noise_log_holds_no_claim(tmp_path: Path) -> None:
    # One setting again and again, ±3 %: a greedy author kept every new maximum
    import numpy as np

    rng = np.random.default_rng(11)
    lines: list[Any] = [CONFIG]
    best = 0.0
    for number in range(1, 41):
        metric = float(100 * np.exp(rng.normal(0, 0.03)))
        status, best = ("keep", metric) if metric > best else ("discard", best)
        lines.append(run(number, metric=metric, status=status, description="budget 32", asi={"note": "again"}))
    found = importing.read(write(tmp_path, *lines))
    verdicts = judge(frames.trial_frame(found.trials), frames.turn_frame(found.trials), found.study)
    claims = next(v for v in verdicts if v.subject == "claims")
    assert claims.status is VerdictStatus.DOES_NOT_HOLD
    assert claims.value == 0
    claiming = ("sweet_spot", "saturation", "structural_bound")
    assert not [v for v in verdicts if v.id in claiming and v.status is VerdictStatus.HOLDS]


LINES = CASTLE.read_text(encoding="utf-8").splitlines()


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_mutated_logs_are_read_and_judged(tmp_path: Path, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=25))
    mutated = []
    for line in kept:
        kind = data.draw(st.sampled_from(["as is", "as is", "cut", "field", "value"]))
        if kind == "cut":
            line = line[: data.draw(st.integers(0, len(line)))]
        elif kind in ("field", "value"):
            entry = json.loads(line)
            name = data.draw(st.sampled_from(sorted(entry)))
            if kind == "field":
                del entry[name]
            else:
                entry[name] = data.draw(st.sampled_from([None, 0, -1, "odd", [], {}, 1e308, True]))
            line = json.dumps(entry)
        mutated.append(line)
    path = write(tmp_path, *mutated)
    try:
        found = importing.read(path)
    except ConfigError:
        return  # no run was left in it
    judge(frames.trial_frame(found.trials), frames.turn_frame(found.trials), found.study)
    assert found.coverage.lines()


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    if pi_log.looks_like(text):
        pi_log.read(text)
    if table_log.looks_like(text):
        table_log.read(text)
