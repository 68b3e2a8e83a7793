"""Where rows come from: everything known is named, nothing of the machine's owner is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash_sweep.report.material import collect
from dflash_sweep.report.provenance import provenance_rows
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


def test_what_is_not_known_is_left_out(build_study: Builder) -> None:
    rows = dict(provenance_rows(collect(build_study(provenance={}), (), ()), texts_for("en")))
    assert set(rows) == {"study", "kind", "engine", "trials", "seed", "time", "status"}
