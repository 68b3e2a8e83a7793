"""The candidate table: one row a setting, baseline included."""

from __future__ import annotations

import pytest

from dflash_sweep.analysis.summary import CANDIDATE_COLUMNS, candidate_table
from fakes.trial_tables import table, trial


def test_runs_of_a_setting_make_one_row_with_interval_and_speedup() -> None:
    rows = [trial(i, tps=40.0 + i, speculative=False) for i in range(3)]
    rows += [trial(3 + i, tps=80.0 + i, knobs={"budget": 22}, candidate=7, draft_ms=10.0) for i in range(3)]
    rows += [trial(9, tps=None, knobs={"budget": 64}, candidate=8, failure_kind="out_of_memory")]
    found = candidate_table(table(rows))
    assert list(found["n"]) == [3, 3, 0]  # fastest first, failed ones last
    best, plain, failed = (found.iloc[i] for i in range(3))
    assert best["candidate"] == 7
    assert best["decode_tps"] == pytest.approx((80 * 81 * 82) ** (1 / 3))
    assert best["speedup"] == pytest.approx((80 * 81 * 82 / (40 * 41 * 42)) ** (1 / 3))
    assert best["speedup_low"] < best["speedup"] < best["speedup_high"]
    assert best["draft_ms"] == pytest.approx(10.0)
    assert best["uids"] == ("s/3", "s/4", "s/5")
    assert plain["setting_text"] == "plain decoding"
    assert plain["speedup"] != plain["speedup"]  # the baseline has none
    assert failed["failures"] == {"out_of_memory": 1}


def test_an_early_stop_is_listed_but_is_no_failure() -> None:
    kinds = ("pruned", "crashed")
    rows = [trial(i, tps=None, knobs={"budget": 64}, candidate=8, failure_kind=kind) for i, kind in enumerate(kinds)]
    (found,) = candidate_table(table(rows)).to_dict("records")
    assert found["failures"] == {"pruned": 1, "crashed": 1}
    assert found["n_failed"] == 1


def test_rows_on_other_terms_are_not_pooled() -> None:
    rows = [trial(i, knobs={"budget": 22}, comparability_key=f"k{i % 2}") for i in range(4)]
    rows += [trial(4, speculative=False, comparability_key="k0"), trial(5, speculative=False, comparability_key="k0")]
    found = candidate_table(table(rows))
    assert list(found["n"]) == [2, 2, 2]
    spec = found[found["speculative"]].set_index("comparability_key")
    assert spec.loc["k0", "speedup"] == pytest.approx(1.0)
    assert spec["speedup"].isna().tolist() == [False, True]  # k1 has no plain row on its terms


def test_a_single_run_has_no_interval() -> None:
    found = candidate_table(table([trial(0, knobs={"budget": 22}), trial(1, speculative=False)]))
    spec = found[found["speculative"]].iloc[0]
    assert spec["decode_tps"] == pytest.approx(100.0)
    assert spec["decode_tps_low"] is None or spec["decode_tps_low"] != spec["decode_tps_low"]
    assert spec["interval_method"] == "single run"


def test_an_empty_table_has_the_columns() -> None:
    assert list(candidate_table(table([])).columns) == list(CANDIDATE_COLUMNS)
