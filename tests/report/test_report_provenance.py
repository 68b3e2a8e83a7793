"""Where rows come from: everything known is named, nothing of the machine's owner is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from dflash_sweep.records import Role
from dflash_sweep.report.material import collect
from dflash_sweep.report.provenance import provenance_rows
from dflash_sweep.report.rows_table import rows_table
from dflash_sweep.report.texts import texts_for

Builder = Callable[..., Any]


def test_everything_known_is_named(build_study: Builder, build_trials: Builder) -> None:
    known = {
        "host": "workstation-of-someone", "cpu": "A CPU", "cpu_cores": 8, "os": "Linux-6", "python": "3.12.1",
        "packages": {"optuna": "5.0.0", "absent": None}, "git": {"commit": "c" * 40, "dirty": True},
        "build": {"version": "b1234", "binary_sha256": "d" * 64},
        "models": [
            {"role": "target", "path": "/home/someone/models/big.gguf", "quantisation": "Q4_K_M",
             "size_bytes": 1024 * 2**20, "sha256": "e" * 64},
            {"role": "draft", "path": "/home/someone/models/small.gguf", "sha256": "f" * 64},
        ],
    }  # fmt: skip
    rows = dict(provenance_rows(collect(build_study(provenance=known), build_trials(4, turns=1), ()), texts_for("en")))
    assert rows["models"] == (
        "target: big.gguf Q4_K_M 1024 MiB sha256 eeeeeeeeeeee…; draft: small.gguf sha256 ffffffffffff…"
    )
    assert rows["build"] == "0.1.0 sha256 dddddddddddd…"
    assert rows["machine"] == "A CPU, 8 cores, Linux-6"
    assert rows["versions"] == "python 3.12.1, optuna 5.0.0"
    assert rows["code"] == "cccccccccccc + local changes"
    assert rows["trace"] == "agent sha256 abababababab…"
    assert rows["device"] == "emulated 24 GB card (24564 MiB)"
    assert rows["trials"] == "4 runs, 0 failed, 0 stopped early: baseline (plain) 2, search 2"
    assert "someone" not in " ".join(rows.values()), "names of hosts, users and folders stay out"


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("en", "canary (plain) 2, canary (best so far) 1, search 1"),
        ("zh", "哨兵（普通解码） 2, 哨兵（当时最好） 1, 搜索 1"),
    ],
)
def test_both_kinds_of_canary_are_told_apart(build_study: Builder, build_runs: Any, lang: str, said: str) -> None:
    make, make_plain = build_runs
    knobs = {"target_feat_ctx": 64, "budget": 8, "proposal_temp": 0.7}
    trials = [make(random.Random(1), 0, knobs, turns=1), make(random.Random(1), 1, knobs, turns=1, role=Role.CANARY)]
    trials += [make_plain(random.Random(1), number, turns=1, role=Role.CANARY) for number in (2, 3)]
    material, texts = collect(build_study(), trials, ()), texts_for(lang)
    assert dict(provenance_rows(material, texts))["trials"].endswith(said)
    appendix = rows_table(material, texts)
    assert appendix is not None
    assert [row[1] for row in appendix.rows[1:3]] == [texts("role.canary_best"), texts("role.canary")]


def test_what_is_not_known_is_left_out(build_study: Builder) -> None:
    rows = dict(provenance_rows(collect(build_study(provenance={}), (), ()), texts_for("en")))
    assert set(rows) == {"study", "kind", "engine", "trials", "seed", "time", "status"}
