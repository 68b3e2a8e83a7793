"""The dashboard's pages on a real PostgreSQL: written while a study runs, and served."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from dflash_sweep.showcase.curator import Curator
from dflash_sweep.showcase.publishing import publish
from dflash_sweep.watcher import Silent
from fakes.served import served
from fakes.shown_study import ShownStudy


def test_pages_are_written_and_served_from_postgresql(postgres_url: str, tmp_path: Path) -> None:
    study = ShownStudy(postgres_url, tmp_path / "evidence")
    folder = tmp_path / "artifacts"
    with Curator(Silent(), study.store, "s", folder=folder) as curator:
        study.watcher = curator
        study.plain()
        study.search()
    study_id = publish(study.store, study.save("finished"), folder=folder)
    with (
        served(postgres_url, folder, study_id) as address,
        urllib.request.urlopen(address.replace("/dashboard/", "/api/"), timeout=20) as answer,
    ):
        detail = json.loads(answer.read())
    study.close()
    assert detail["note"]["body"].startswith("# Findings: s")
    (trial,) = detail["trials"]
    assert trial["note"]["body"].startswith("# search #0")
    assert {meta["filename"] for meta in trial["artifacts"]} == {"server.log", "turns.jsonl", "stages.svg"}
    assert {chart["id"] for chart in detail["plotly_graph_objects"]} >= {"dflash-stages", "dflash-tradeoff"}
