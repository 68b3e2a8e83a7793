"""Rows from before a change of driver, build, model or device: marked, and no baseline for what came after."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep.analysis.comparability import comparability
from dflash_sweep.analysis.evidence import gather
from dflash_sweep.analysis.rows import main_stratum, with_keys
from dflash_sweep.analysis.staleness import grounds, stale, words
from dflash_sweep.analysis.summary import candidate_table
from dflash_sweep.records import Measurement, StudyInfo
from fakes.trial_tables import no_turns, table, trial

STUDY = StudyInfo(name="s", engine="e", measurement=Measurement.MEASURED)


def _session(start: int, plain_tps: float, spec_tps: float, **ground: Any) -> list[dict[str, Any]]:
    """Two plain rows and two of one setting, numbered from `start`."""
    rows = [trial(start + place, tps=plain_tps + place, speculative=False, **ground) for place in range(2)]
    rows += [trial(start + 2 + place, tps=spec_tps + place, knobs={"budget": 8}, **ground) for place in range(2)]
    return rows


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"driver": "570.1"}, {"driver": "580.2"}, "driver 570.1 → 580.2"),
        ({"build": "b1"}, {"build": "b2"}, "build b1 → b2"),
        ({"models": "target aaa"}, {"models": "target bbb"}, "model files target aaa → target bbb"),
        (
            {"device": "H200", "device_uuid": "GPU-1", "study_devices": ("GPU-1",)},
            {"device": "H200", "device_uuid": "GPU-2", "study_devices": ("GPU-2",)},
            "device GPU-1 → GPU-2",
        ),
    ],
)
def test_an_earlier_baseline_is_stale_and_gives_no_speed_up(
    before: dict[str, Any], after: dict[str, Any], said: str
) -> None:
    """Plain 100 and 101 before, 50 and 51 after; the setting makes 60 and 61 after: 1.2 times plain, not 0.6 times."""
    frame = table(_session(0, 100, 60, **before) + _session(4, 50, 60, **after))
    marks = stale(frame)
    assert marks.tolist() == [said] * 4 + [None] * 4
    assert words(marks) == (said,)
    present = candidate_table(main_stratum(frame, "decode_tps"))
    (row,) = [row for _, row in present.iterrows() if row["speculative"]]
    assert row["speedup"] == pytest.approx(1.198, abs=0.005)  # sqrt(60·61 / (50·51))
    speedups = candidate_table(frame)
    assert sorted(speedups["speedup"].dropna().round(2)) == [0.6, 1.2]  # each by the baseline of its own ground
    (verdict,) = comparability(gather(frame, no_turns(), STUDY))
    assert f"4 runs are from before a change ({said})" in verdict.statement


def test_a_present_without_a_baseline_lets_the_old_rows_speak() -> None:
    frame = table([*_session(0, 100, 60, driver="570.1"), trial(4, tps=50, speculative=False, driver="580.2")])
    assert main_stratum(frame, "decode_tps")["number"].tolist() == [0, 1, 2, 3]
    assert stale(frame).tolist() == ["driver 570.1 → 580.2"] * 4 + [None]


def test_what_a_row_does_not_tell_counts_as_unchanged() -> None:
    frame = table([trial(0, driver=None), trial(1, driver="570.1"), trial(2, driver=None), trial(3, driver="570.1")])
    assert stale(frame).tolist() == [None] * 4
    assert grounds(frame).nunique() == 1


@pytest.mark.parametrize("fact", ["build", "binary", "models"])
def test_back_to_an_earlier_build_only_its_own_rows_are_of_the_present(fact: str) -> None:
    """A study has one build at a time: between two stretches of A, what B measured is stale and A's rows are not."""
    found: list[dict[str, Any]] = [{fact: value} for value in "AABBA"]
    frame = table([trial(place, **ground) for place, ground in enumerate(found)])
    assert [mark is None for mark in stale(frame)] == [True, True, False, False, True]


def test_two_hosts_at_a_time_are_two_grounds_and_neither_is_stale() -> None:
    frame = table([trial(place, driver=("570.1", "580.2")[place % 2]) for place in range(4)])
    assert stale(frame).tolist() == [None] * 4
    assert grounds(frame).nunique() == 2
    assert with_keys(frame)["stratum"].nunique() == 2


def test_the_cards_of_one_study_are_one_ground_also_where_one_of_them_is_left_out_later() -> None:
    both: dict[str, Any] = {"device": "H200", "study_devices": ("GPU-1", "GPU-2")}
    rows = [
        trial(0, device_uuid="GPU-1", **both),
        trial(1, device_uuid="GPU-2", **both),
        trial(2, device_uuid="GPU-2", device="H200", study_devices=("GPU-2",)),
    ]
    assert stale(table(rows)).tolist() == [None] * 3
    assert grounds(table(rows)).nunique() == 1


def test_failed_rows_and_reruns_do_not_say_what_the_present_is() -> None:
    rows = [
        trial(0, driver="570.1"),
        trial(1, driver="580.2", tps=None, failure_kind="crashed"),
        trial(2, driver="590.3", role="rerun"),
    ]
    assert stale(table(rows)).tolist() == [None] * 3


def test_imported_rows_are_never_stale() -> None:
    rows = [trial(0, build="b1", measurement="imported"), trial(1, build="b2", measurement="imported")]
    assert stale(table(rows)).tolist() == [None, None]
    assert stale(table([])).tolist() == []


def test_a_run_that_is_about_to_begin_is_asked_about_beforehand() -> None:
    frame = table(_session(0, 100, 60, driver="570.1", build="b1", device="H200", device_uuid="GPU-1"))
    same: dict[str, Any] = {"driver": "570.1", "build": "b1", "models": "", "study_devices": ("GPU-1",)}
    assert stale(frame, same).tolist() == [None] * 4
    assert (
        stale(frame, {**same, "driver": "580.2", "build": "b2"}).tolist() == ["driver 570.1 → 580.2; build b1 → b2"] * 4
    )
    assert stale(frame, {**same, "driver": None}).tolist() == [None] * 4
    assert stale(frame, {**same, "study_devices": ("GPU-9",)}).tolist() == ["device GPU-1 → GPU-9"] * 4
    assert stale(table([]), same).tolist() == []


@given(st.lists(st.tuples(st.sampled_from(["1", "2", None]), st.sampled_from(["a", "b"])), max_size=8))
def test_the_newest_row_is_never_stale_and_stale_rows_are_of_another_ground(
    facts: list[tuple[str | None, str]],
) -> None:
    frame = table([trial(place, driver=driver, build=build) for place, (driver, build) in enumerate(facts)])
    marks, keyed = stale(frame), with_keys(frame)
    if facts:
        assert marks.iloc[-1] is None
        strata = keyed["stratum"]
        assert all(strata[place] != strata.iloc[-1] for place in frame.index if marks[place] is not None)
