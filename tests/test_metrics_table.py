"""docs/metrics.md is what the program prints."""

from __future__ import annotations

from pathlib import Path

import dflash_sweep.figures
from dflash_sweep import live_history, metrics, sanity, turn_marks
from dflash_sweep.metrics_table import MARKS, page

DOC = Path(__file__).parent.parent / "docs" / "metrics.md"


def test_the_page_is_current() -> None:
    assert DOC.read_text(encoding="utf-8") == page(), "print it anew: python -m dflash_sweep.metrics_table"


def test_every_metric_stage_and_mark_is_on_it() -> None:
    text = page()
    names = [metric.name for metric in metrics.METRICS] + list(metrics.STAGE_NAMES)
    for module in (turn_marks, live_history):
        names += [value for name, value in vars(module).items() if name.isupper() and _is_mark(value)]
    missing = [name for name in names if f"`{name}`" not in text]
    assert missing == []
    assert len(MARKS) == len(dict(MARKS)) == 10


def _is_mark(value: object) -> bool:
    return isinstance(value, str) and value.replace("_", "").isalpha() and value.islower()


def test_every_source_is_a_metric() -> None:
    assert set(dflash_sweep.figures.SOURCES) <= set(metrics.METRIC)
    assert sanity.FOREIGN_PROCESS in page()
