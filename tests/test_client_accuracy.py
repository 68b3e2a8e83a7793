"""The accuracy benchmark works: what it compares belongs together. How exact, how cheap: the benchmark says it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parent.parent / "benchmarks" / "client_accuracy.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("client_accuracy", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["client_accuracy"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_token_of_the_emulator_is_seen_once_and_after_it_was_sent(benchmark: ModuleType) -> None:
    seen = benchmark.measure(3000.0, 60)
    assert (seen.tokens, seen.chunks) == (60, 60)
    assert seen.lag_min_us > 0  # one clock on both sides: nothing arrives before it is sent
    assert seen.sent_tps > 0
    assert seen.seen_tps > 0
    assert seen.core_share > 0
    assert "3000" in benchmark.table([seen])


def test_the_limits(benchmark: ModuleType) -> None:
    def row(**fields: float) -> bool:
        defaults = {"asked_tps": 300.0, "timings_tps": 300.0, "sent_tps": 300.0, "seen_tps": 300.0, "core_share": 0.1}
        lags = {"lag_min_us": 1.0, "lag_median_us": 1.0, "lag_max_us": 1.0}
        return bool(benchmark.Accuracy(tokens=9, chunks=9, **{**defaults, **lags, **fields}).holds)

    assert row(seen_tps=301.4)
    assert not row(seen_tps=301.6)  # 0.53 % fast
    assert not row(seen_tps=298.4)
    assert not row(timings_tps=298.4)  # true to what was sent, but the server did not send at the pace it states
    assert row(core_share=0.199)
    assert not row(core_share=0.2)
