"""Two sides, figure by figure: the best setting by fair runs, ratios with intervals, single runs by known noise."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sweep.analysis.contrast import contrast, side
from dflash_sweep.analysis.intervals import pooled_speedup
from fakes.trial_tables import no_turns, table, trial, turn, turns


def study(scale: float = 1.0, prefix: str = "a", plain: float = 40.0) -> pd.DataFrame:
    """Plain 40 tok/s, budget 8 at 50, budget 16 at 60 (confirmed at 58): ±1 % around each."""
    rows = [
        trial(n, tps=plain * value, speculative=False, uid=f"{prefix}/{n}") for n, value in enumerate((0.99, 1.0, 1.01))
    ]
    rows += [trial(3, tps=50 * scale, knobs={"budget": 8}, uid=f"{prefix}/3")]
    rows += [trial(4, tps=60 * scale, knobs={"budget": 16}, uid=f"{prefix}/4")]
    rows += [
        trial(5 + n, tps=58 * scale * value, knobs={"budget": 16}, role="confirm", candidate=4, uid=f"{prefix}/{5 + n}")
        for n, value in enumerate((0.99, 1.0, 1.01))
    ]
    return table(rows)


def test_a_study_is_meant_by_its_best_setting_without_the_flattered_search_run() -> None:
    one = side("a", study(), "decode_tps")
    assert one.numbers == (5, 6, 7)
    assert one.setting == "budget=16"
    assert sorted(one.plain["number"]) == [0, 1, 2]


def test_less_is_better_picks_the_smallest() -> None:
    frame = study()
    frame["ttft_ms"] = frame["decode_tps"]
    frame = frame[frame["number"] != 4]
    assert side("a", frame, "ttft_ms", sign=-1.0).setting == "budget=16"  # the only one with two runs
    single = frame[frame["number"].isin([0, 1, 2, 3, 5])]
    assert side("a", single, "ttft_ms", sign=-1.0).setting == "budget=8"


def test_two_studies_give_ratios_of_what_is_the_same() -> None:
    a, b = side("a", study(), "decode_tps"), side("b", study(1.1, "b"), "decode_tps")
    found = contrast(a, b, no_turns(), no_turns())
    assert found.plain is not None
    assert found.plain.ratio is not None
    assert not found.plain.ratio.excludes(1.0)
    assert found.meant.ratio is not None
    assert found.meant.ratio.value == pytest.approx(1.1)
    assert found.meant.ratio.excludes(1.0)
    assert (found.meant.words(1.0), found.meant.words(-1.0)) == ("B is better", "B is worse")
    assert found.relative is not None
    assert found.relative.a is not None
    assert found.relative.a.value == pytest.approx(58 / 40, rel=1e-3)
    assert found.relative.ratio is not None
    assert found.relative.ratio.value == pytest.approx(1.1)
    assert (found.common, [line.name for line in found.settings]) == (2, ["budget=16", "budget=8"])


def test_a_single_run_has_the_interval_that_the_repeats_noise_gives() -> None:
    a, b = side("a", study(), "decode_tps", 3), side("b", study(1.1, "b"), "decode_tps", 3)
    found = contrast(a, b, no_turns(), no_turns()).meant.ratio
    assert found is not None
    assert a.spread is not None
    expected = pooled_speedup([55.0], [50.0], a.spread)
    assert found.low == pytest.approx(expected.low)
    assert found.high == pytest.approx(expected.high)


def test_without_repeats_there_is_no_interval() -> None:
    rows = table([trial(0, tps=50, knobs={"budget": 8})])
    found = contrast(side("a", rows, "decode_tps"), side("b", rows, "decode_tps"), no_turns(), no_turns())
    assert found.meant.words(1.0) == "no repeats, no interval"
    assert found.plain is None


def test_a_side_without_a_figure_is_told() -> None:
    rows = table([trial(0, tps=None, knobs={"budget": 8}, failure_kind="crashed")])
    found = contrast(side("a", rows, "decode_tps", 0), side("b", study(), "decode_tps"), no_turns(), no_turns())
    assert found.meant.a is None
    assert found.meant.words(1.0) == "one side only"


def test_two_trials_of_one_study_share_its_baseline_and_settings() -> None:
    frame = study()
    found = contrast(side("a", frame, "decode_tps", 3), side("b", frame, "decode_tps", 5), no_turns(), no_turns())
    assert found.plain is None
    assert found.settings == ()


def test_turns_with_the_same_prompt_are_paired() -> None:
    """Ratios 1.1, 1.2, 1.1·1.2/1.1: the pair with another prompt and the warm-up do not count."""
    frame = study()
    rows = []
    for uid, speeds in (("a/3", (10.0, 20.0, 5.0, 9.0)), ("a/5", (11.0, 24.0, 50.0, 9.9))):
        for index, tps in enumerate(speeds):
            prompt = f"other {uid}" if index == 2 else f"p{index}"
            rows.append(turn(uid, index=index, decode_tps=tps, prompt_sha256=prompt, warmup=index == 3))
    both = turns(rows)
    found = contrast(side("a", frame, "decode_tps", 3), side("b", frame, "decode_tps", 5), both, both).turns
    assert found is not None
    assert found.n == 2
    assert found.value == pytest.approx(math.sqrt(1.1 * 1.2))


def test_controls_are_no_baseline() -> None:
    frame = study()
    control = table(
        [trial(9, tps=20, speculative=False, role="control", candidate=4, uid="a/9", knobs={"budget": None})]
    )
    assert 9 not in set(side("a", pd.concat([frame, control]), "decode_tps").plain["number"])


@settings(max_examples=10)
@given(scale=st.floats(0.5, 2.0), seed=st.integers(0, 99))
def test_exchanging_the_sides_turns_the_ratio_round(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames = []
    for prefix, factor in (("a", 1.0), ("b", scale)):
        frame = study(factor, prefix)
        frame["decode_tps"] = frame["decode_tps"] * np.exp(rng.normal(0, 0.01, len(frame)))
        frames.append(frame)
    a, b = side("a", frames[0], "decode_tps"), side("b", frames[1], "decode_tps")
    one = contrast(a, b, no_turns(), no_turns()).meant.ratio
    other = contrast(b, a, no_turns(), no_turns()).meant.ratio
    assert one is not None
    assert other is not None
    assert one.value == pytest.approx(1 / other.value)
    assert one.low == pytest.approx(1 / other.high)  # type: ignore[operator]
