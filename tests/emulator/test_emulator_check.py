"""The emulator against the published runs: the errors it must stay below, and the program that compares them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dflash_sweep.emulator import check, cli, devices, dials, fit, fit_costs, predict, references, rows, tables
from dflash_sweep.emulator.check import Report
from dflash_sweep.errors import ConfigError

SEEDS = 100


@pytest.fixture(scope="module")
def report() -> Report:
    return check.check_file(None, SEEDS)


def figure(report: Report, name: str) -> float:
    value = report.totals[name]
    assert value is not None
    return value


def test_rates_are_within_three_percent_in_the_median_and_eight_at_the_90th_percentile(report: Report) -> None:
    assert figure(report, "rows") == 83  # 113 runs less 18 crashes, 9 code changes, 3 traces
    assert figure(report, "tps_median_error") <= 0.03
    assert figure(report, "tps_p90_error") <= 0.08
    assert figure(report, "al_median_error") <= 0.12


def test_every_stage_is_near_its_published_time(report: Report) -> None:
    for stage in ("step", "pack", "draft", "topk", "exact"):
        assert figure(report, f"{stage}_ms_median_error") <= 0.04, stage


def test_exactly_the_runs_that_ran_out_of_memory_do_so_here(report: Report) -> None:
    assert figure(report, "memory_crashes") == figure(report, "memory_crashes_foreseen") == 13
    assert figure(report, "ran") == figure(report, "ran_foreseen") == 95
    by_run = {entry.run: entry for entry in report.rows}
    for run in (25, 27, 41, 48, 52, 94, 96, 100):
        assert by_run[run].predicted == "out of memory"
    for run in (40, 47):
        assert by_run[run].predicted == "refused"


def test_orders_that_published_noise_can_tell_are_the_same(report: Report) -> None:
    orders = {order.axis: order for order in report.orders}
    assert orders["target_feat_ctx"].pairs >= 10
    assert orders["proposal_temp"].pairs >= 4
    for order in report.orders:
        assert order.agree == order.pairs, order.axis
    budgets = orders["budget"]
    rates = dict(zip(budgets.values, budgets.emulated_tps, strict=True))
    assert rates[22] < rates[24] <= rates[32] <= rates[40]


def test_repeats_scatter_as_published(report: Report) -> None:
    spread = report.dispersion
    assert spread is not None
    assert spread["published_mean"] == pytest.approx(10.347, abs=0.001)
    assert spread["emulated_mean"] == pytest.approx(spread["published_mean"], rel=0.02)
    # A standard deviation from 9 runs is known to about a quarter of its value.
    assert spread["emulated_sd"] == pytest.approx(spread["published_sd"], rel=0.25)
    assert spread["emulated_min"] == pytest.approx(spread["published_min"], rel=0.04)
    assert spread["emulated_max"] == pytest.approx(spread["published_max"], rel=0.04)


def test_reference_points_are_within_their_limits(report: Report) -> None:
    missed = {entry.name for entry in report.references if entry.limit is not None and abs(entry.error) > entry.limit}
    assert not missed
    assert sum(entry.limit is not None for entry in report.references) == 15


def test_fit_on_half_the_runs_foresees_the_stages_of_the_other_half() -> None:
    entries = rows.read()
    for own, other in (("odd", "even"), ("even", "odd")):
        card = devices.card_from("rtx4090", fit_costs.fit_costs(fit.half(entries, own)))
        totals = check.check(fit.half(entries, other), card, dials.load("agent"), 15, with_references=False).totals
        for stage in ("step", "draft", "topk", "exact"):
            error = totals[f"{stage}_ms_median_error"]
            assert error is not None
            assert error <= 0.04, (own, stage)


def test_the_search_for_dials_lowers_the_error_of_the_rows() -> None:
    entries = [entry for entry in fit.half(rows.read(), "even") if entry.kind == "measured"][:8]
    before = fit.row_error(entries, fit.NEUTRAL, 6)
    _, after = fit.fit_dials(entries, fit.NEUTRAL, seeds=6, evaluations=16)
    assert after < before


def test_shipped_costs_are_what_the_program_fits() -> None:
    fitted, shipped = fit_costs.fit_costs(rows.read()), devices.load("rtx4090").costs
    for table in ("plain", "pack"):
        assert fitted[table] == pytest.approx(shipped[table], rel=1e-3)
    for table in ("draft", "topk"):
        assert fitted[table]["shared"] == pytest.approx(shipped[table]["shared"], rel=1e-3)
    assert fitted["noise"]["draft_deviations"] == pytest.approx(shipped["noise"]["draft_deviations"], abs=1e-4)


def test_least_absolute_deviations_ignore_an_outlier() -> None:
    # y = 2 + 3 x but for one point that is 100 too high.
    x = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    y = [2.0, 5.0, 108.0, 11.0, 14.0, 17.0]
    base, slope = fit_costs.least_absolute([[1.0] * 6, x], y)
    assert base == pytest.approx(2.0, abs=0.1)
    assert slope == pytest.approx(3.0, abs=0.05)


def test_rewriting_a_data_file_keeps_its_comments() -> None:
    text = '# [b] in words\nname = "x"\n\n[a]\n# why\none = 1\n\n[b]\none = 2\n'
    assert fit.rewrite(text, "b", {"one": 3.5, "two": [0.25]}) == (
        '# [b] in words\nname = "x"\n\n[a]\n# why\none = 1\n\n[b]\none = 3.5\ntwo = [0.2500]\n\n'
    )


def test_quantile_is_a_value_of_the_list() -> None:
    assert check.quantile([3.0, 1.0, 2.0, 4.0], 0.9) == 4.0
    assert check.quantile([float(n) for n in range(1, 11)], 0.9) == 9.0
    assert check.quantile([], 0.5) is None


# ---------------------------------------------------------------- reading files, printing


def test_rows_are_classified_and_defaults_filled_in() -> None:
    by_run = {entry.run: entry for entry in rows.read()}
    assert by_run[1].kind == "other_crash"
    assert by_run[1].setting is None
    assert by_run[13].kind == "code_change"
    assert by_run[91].kind == "trace"
    assert by_run[3].end_to_end
    assert not by_run[4].end_to_end
    assert by_run[4].committed == 33  # 18 steps × 1.833
    setting = by_run[8].setting
    assert setting is not None
    assert (setting.n_ctx, setting.cache_type_k, setting.verifier, setting.proposal_temp) == (
        65536,
        "q4_0",
        "exact",
        1e-6,
    )
    rolled = by_run[95].setting
    assert rolled is not None
    assert rolled.rolls_back_fast
    assert rolled.n_ctx == 32768


def small_file(folder: Path, **changes: str) -> Path:
    lines = list(csv.DictReader(rows.shipped().splitlines()))
    chosen = [line for line in lines if line["run"] in ("4", "8", "25", "90")]
    chosen[0] |= changes
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(lines[0]))
    writer.writeheader()
    writer.writerows(chosen)
    path = folder / "runs.csv"
    path.write_text(out.getvalue(), "utf-8")
    return path


def test_command_line_checks_any_file_with_the_columns(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    result = CliRunner().invoke(cli.app, ["check", str(path), "--json", "--seeds", "5"])
    assert result.exit_code == 0
    given = json.loads(result.stdout)
    assert [row["run"] for row in given["rows"]] == [4, 8, 25, 90]
    assert given["totals"]["memory_crashes_foreseen"] == 1
    assert given["dispersion"] is None
    shown = CliRunner().invoke(cli.app, ["check", str(path), "--seeds", "5"])
    assert "90th percentile" in shown.stdout
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("90 ")]
    assert line.count("│") == len(tables.ROW_COLUMNS) - 1, "unfolded where no terminal reads it"
    assert "…" not in shown.stdout


@pytest.mark.parametrize("width", [50, 80, 120, 400])
def test_no_number_is_cut_in_a_narrow_terminal(report: Report, width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    for table in tables.all_tables(report, width):
        console.print(table)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in out.getvalue()
    for entry in report.rows:
        cells = [cell for cell in tables.row_cells(entry)[2:] if any(map(str.isdigit, cell))]
        parts = [cell.strip() for line in lines if line.startswith(f"{entry.run} ") for cell in line.split("│")]
        assert set(cells) <= set(parts), entry.run


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"tps": "fast"}, "line 2: tps='fast' is not a number"), ({"kv_type": "q3_x"}, "Unsupported cache type: q3_x")],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    result = CliRunner().invoke(cli.app, ["check", str(small_file(tmp_path, **changes))])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_missing_files_and_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        rows.read(tmp_path / "none.csv")
    path = tmp_path / "other.csv"
    path.write_text("run,tps\n1,2\n")
    with pytest.raises(ConfigError, match="columns missing: status, gen_tokens"):
        rows.read(path)


def test_list_names_cards_workloads_and_faults() -> None:
    shown = CliRunner().invoke(cli.app, ["list"]).stdout
    for word in ("rtx4090", "rtx3090", "agent", "crash_before_ready", "half_event"):
        assert word in shown


def test_markdown_tables_have_a_rule_and_as_many_cells() -> None:
    text = tables.markdown(("a", "b"), [("1", "2")])
    assert text.splitlines() == ["| a | b |", "| --- | ---: |", "| 1 | 2 |"]
    assert tables.markdown(("a", "b"), [("1", "two")]).splitlines()[1] == "| --- | --- |"
    assert tables.percent(None) == tables.number(None) == "–"


def test_predictions_are_remembered_by_setting() -> None:
    setting = next(entry.setting for entry in rows.read() if entry.setting is not None)
    first = predict.cached_counts(setting, 16, dials.load("agent"), 5)
    assert predict.cached_counts(setting, 16, dials.load("agent"), 5) is first
    assert references.AGENT_TURN_TOKENS > 0
