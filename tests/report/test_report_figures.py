"""Every figure: what it computes, and the conventions that hold for all (stamp, readable letters, free legend)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN, CARETUP
from matplotlib.text import Text

from dflash_sweep import metrics
from dflash_sweep.records import UNSET, Role, StoredTrial, Verdict, VerdictStatus
from dflash_sweep.report import (
    acceptance,
    axis_curves,
    axis_effects,
    buckets,
    figures,
    interactions,
    memory,
    noise_strip,
    pareto,
    stage_breakdown,
    style,
    timeline,
    tradeoff,
)
from dflash_sweep.report.axis_levels import levels, shown_label
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.texts import texts_for

Builder = Callable[..., Any]
TEXTS = texts_for("en")

SWEET = Verdict(
    id="sweet_spot", subject="proposal_temp", status=VerdictStatus.HOLDS, statement="s", value=0.7, ci_low=0.5,
    ci_high=1.0, n=9,
)  # fmt: skip
DEAD = Verdict(
    id="dead_axis", subject="chain_seed", status=VerdictStatus.HOLDS, statement="s", value=1.01, ci_low=0.99,
    ci_high=1.03, n=20,
    details={
        "reference": "true", "margin": 1.06,
        "levels": [
            {"value": "false", "runs": 9, "ratio": 1.01, "ci_low": 0.99, "ci_high": 1.03},
            {"value": "true", "runs": 11, "ratio": None, "ci_low": None, "ci_high": None},
            {"value": UNSET, "runs": 1, "ratio": None, "ci_low": None, "ci_high": None},
        ],
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def material(build_study: Builder, build_trials: Builder) -> Material:
    made: Material = collect(build_study(), build_trials(48), (SWEET, DEAD))
    return made


@pytest.fixture(scope="module")
def sparse(build_study: Builder, build_trials: Builder) -> Material:
    made: Material = collect(build_study(), build_trials(5, turns=2), ())
    return made


def drawn(material: Material) -> dict[str, Figure]:
    stamp = figures.stamp_for(material, TEXTS)
    found = {name: draw(material, TEXTS, stamp) for name, (_, draw) in figures.FIGURES.items()}
    return {name: figure for name, figure in found.items() if figure is not None}


def check_conventions(name: str, figure: Figure) -> None:
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    assert figure.get_figwidth() == style.WIDTH_IN
    words = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert sum("EMULATED" in text.get_text() for text in words) == 2, f"{name}: stamped in a corner and in the footer"
    assert min(float(text.get_fontsize()) for text in words) >= 8, name
    box = figure.get_tightbbox()  # of what is really drawn, in inches
    margins = (box.x0, box.y0, style.WIDTH_IN - box.x1, figure.get_figheight() - box.y1)
    assert min(margins) > -0.01, f"{name}: something reaches out of the figure"
    for legend in figure.legends:
        box = legend.get_window_extent()
        for axes in figure.axes:
            assert not box.overlaps(axes.bbox), f"{name}: the legend covers data"
    assert not [axes for axes in figure.axes if axes.get_legend() is not None], f"{name}: a legend inside the axes"


def test_all_figures_keep_the_conventions(material: Material) -> None:
    with style.conventions():
        found = drawn(material)
        assert set(found) == set(figures.FIGURES)
        for name, figure in found.items():
            check_conventions(name, figure)


def test_few_rows_keep_the_conventions(sparse: Material) -> None:
    with style.conventions():
        found = drawn(sparse)
        assert "axis_effects" not in found, "nothing is concluded of axes: no figure of effects"
        assert "interactions" not in found
        for name, figure in found.items():
            check_conventions(name, figure)


def test_long_names_keep_the_conventions(build_study: Builder, build_trials: Builder) -> None:
    knobs = {f"a_knob_with_a_long_name_{index}": "value " * 6 for index in range(9)}
    trials: list[StoredTrial] = []
    for trial in build_trials(6, turns=2):
        own = dict(trial.knobs) | {name: f"{value}{trial.number}" for name, value in knobs.items()}
        trials.append(trial if not trial.speculative else type(trial)(**{**_fields(trial), "knobs": own}))
    study = build_study(name="a study with $a$ very long name 漢字 " * 6)
    with style.conventions():
        for name, figure in drawn(collect(study, trials, (SWEET, DEAD))).items():
            check_conventions(name, figure)


def _fields(trial: StoredTrial) -> dict[str, Any]:
    return {name: getattr(trial, name) for name in StoredTrial.__dataclass_fields__}


def candidate(**fields: Any) -> Candidate:
    own: dict[str, Any] = {
        "number": 1, "label": None, "speculative": True, "knobs": {}, "samples": (10.0,), "repeats": (10.0,),
        "numbers": (1,),
        "uids": ("u",), "n_failed": 0, "value": 10.0, "low": None, "high": None, "speedup": None,
        "speedup_low": None, "speedup_high": None, "unlike": False, "plain_ms": None,
        "tps": 10.0, "tps_low": None, "tps_high": None,
        "acceptance_length": 2.0, "step_ms": 100.0, "peak_memory_mib": None, "stages": {}, "confirmed": False,
    }  # fmt: skip
    return Candidate(**{**own, **fields})


def test_stages_add_up_to_the_step() -> None:
    entry = candidate(
        step_ms=100.0, stages={"draft_ms": 40.0, "topk_ms": 5.0, "verify_ms": 20.0, "exact_ms": 25.0, "pack_ms": 3.0}
    )
    # other = pack 3 + what no stage accounts for: 100 − 93 = 7
    assert stage_breakdown.split_ms(entry) == {"draft": 40.0, "topk": 5.0, "verify": 45.0, "other": 10.0}


def test_missing_stages_are_not_zero() -> None:
    assert stage_breakdown.split_ms(candidate(stages={})) == {"unknown": 100.0}
    assert stage_breakdown.split_ms(candidate(stages={}, step_ms=None)) is None
    only_draft = stage_breakdown.split_ms(candidate(step_ms=None, stages={"draft_ms": 40.0}))
    assert only_draft == {"draft": 40.0}, "without a step time nothing is left over"
    # stages that sum to more than the step (rounding of the log) leave no negative rest
    assert stage_breakdown.split_ms(candidate(step_ms=39.99, stages={"draft_ms": 40.0})) == {"draft": 40.0}


@given(st.dictionaries(st.sampled_from(metrics.SUMMED_STAGES), st.floats(0, 500), min_size=1), st.floats(1, 6000))
def test_parts_never_lose_time(stages: dict[str, float], step_ms: float) -> None:
    parts = stage_breakdown.split_ms(candidate(stages=stages, step_ms=step_ms))
    assert parts is not None
    assert all(part >= 0 for part in parts.values())
    assert math.isclose(sum(parts.values()), max(step_ms, sum(stages.values())), rel_tol=1e-9, abs_tol=0.051)


def test_plain_line_and_break_even_mark(material: Material) -> None:
    with style.conventions():
        figure = stage_breakdown.draw(material, TEXTS, figures.stamp_for(material, TEXTS))
    assert figure is not None
    axes = figure.axes[0]
    plain_ms = material.plain_ms
    assert plain_ms is not None
    assert plain_ms == pytest.approx(24.7, rel=0.02)
    verticals = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]  # type: ignore[index]
    assert verticals == [plain_ms]
    first = material.candidates[0]
    marks = [float(np.asarray(line.get_xdata())[0]) for line in axes.lines if line.get_marker() == "D"]
    assert first.acceptance_length is not None
    assert marks[0] == pytest.approx(first.acceptance_length * plain_ms)


def test_what_settings_differ_in_is_never_cut(build_study: Builder, build_trials: Builder) -> None:
    trials: list[StoredTrial] = []
    for trial in build_trials(48, turns=2):
        long = {f"a_knob_with_a_long_name_{index}": (trial.candidate or 0) % 5 + index for index in range(5)}
        own = {"mode": "always", **dict(trial.knobs), **long, "z_last": f"end{trial.candidate}"}
        trials.append(replace(trial, knobs=own) if trial.speculative else trial)
    found = collect(build_study(), trials, ())
    with style.conventions():
        stamp = figures.stamp_for(found, TEXTS)
        made = [stage_breakdown.draw(found, TEXTS, stamp), noise_strip.draw(found, TEXTS, stamp)]
        for figure in made:
            assert figure is not None
            check_conventions("labels", figure)
            labels = [text.get_text() for text in figure.axes[0].texts if "z_last" in text.get_text()]
            assert len(labels) > 1
            assert all(re.search(r"z_last=end\d+$", label) for label in labels)
            assert not any("mode=" in label for label in labels)
            assert any(
                re.search(r"The same for all:.* mode=always", text.get_text(), re.DOTALL) for text in figure.texts
            )
            boxes = [text.get_window_extent() for text in figure.axes[0].texts if "z_last" in text.get_text()]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_lines_break_inside_a_word_only_where_it_is_too_long() -> None:
    assert style.wrapped("a=1 b=2", within_in=3.0) == ["a=1 b=2"]
    lines = style.wrapped("first=1 second=2 " + "x" * 40, within_in=1.0)
    assert lines[:2] == ["first=1", "second=2"]
    assert "".join(lines[2:]) == "x" * 40
    assert all(style.advance_in(line, 8.0, False) <= 1.0 for line in lines)
    assert style.wrapped("", within_in=1.0) == [""]
    assert style.stacked([1, 1, 2], 0.14) == [0.0, 1.0, 3.0]


def test_step_curves_are_round_and_few() -> None:
    assert tradeoff.step_levels([60.0, 140.0]) == [60.0, 80.0, 100.0, 120.0, 140.0]
    levels_ = tradeoff.step_levels([81.0, 82.0])
    assert levels_[0] < 81 < levels_[-1]
    assert len(levels_) <= tradeoff.MAX_CURVES + 1


def test_every_curve_is_named(material: Material) -> None:
    # plain decoding far above everything else presses the curves together
    baseline = replace(material.everyone[0], speculative=False, knobs={}, tps=400.0, tps_low=None, tps_high=None)
    pressed = replace(material)
    pressed.__dict__["everyone"] = (baseline, *material.candidates)
    with style.conventions():
        figure = tradeoff.draw(pressed, TEXTS, figures.stamp_for(pressed, TEXTS))
    assert figure is not None
    axes = figure.axes[0]
    curves = [line for line in axes.lines if line.get_linestyle() == ":"]
    names = [text for text in axes.texts if text.get_text().endswith(" ms")]
    assert len(names) == len(curves) > 3
    heights = sorted(float(text.xy[1]) for text in names)  # type: ignore[attr-defined]
    low, high = axes.get_ylim()
    assert min(np.diff(heights)) > 0.04 * (high - low), "no name lies on another"
    check_conventions("tradeoff", figure)


def test_labels_are_moved_as_little_as_keeps_them_apart() -> None:
    assert tradeoff.spread_out([9.0, 5.0, 1.0], 2.0, 0.0, 10.0) == [9.0, 5.0, 1.0]
    assert tradeoff.spread_out([5.0, 4.0, 0.5], 2.0, 0.0, 10.0) == [5.0, 3.0, 0.5]
    assert tradeoff.spread_out([1.0, 0.9, 0.8], 2.0, 0.0, 10.0) == [4.0, 2.0, 0.0]
    assert tradeoff.spread_out([], 2.0, 0.0, 10.0) == []


def test_levels_follow_the_axis(material: Material) -> None:
    found = levels(material, "target_feat_ctx", lambda entry: entry.value)
    assert [level.label for level in found] == ["64", "128", "256", "1024"]
    means = [level.mean for level in found]
    assert means == sorted(means, reverse=True), "the model slows down with the window"
    assert sum(len(level.candidates) for level in found) == len(material.candidates)


def test_true_and_one_are_different_levels(build_study: Builder, build_trials: Builder) -> None:
    trials = build_trials(4, turns=1)
    changed = [type(trial)(**{**_fields(trial), "knobs": {"x": value}}) for trial, value in zip(trials[2:], (True, 1))]  # noqa: B905
    found = levels(collect(build_study(axes=()), [*trials[:2], *changed], ()), "x", lambda entry: entry.value)
    assert sorted(level.label for level in found) == ["1", "true"]


def with_unset(trials: Sequence[StoredTrial]) -> list[StoredTrial]:
    """Every fourth run has no budget of its own, as where its tree is switched off."""
    return [replace(t, knobs={**t.knobs, "budget": None}) if t.speculative and t.number % 4 == 0 else t for t in trials]


def heads(figure: Figure) -> list[tuple[int, float]]:
    """Arrow heads of intervals that are cut: which way (1 = up), and whereabouts in the frame (0 to 1)."""
    found = []
    for axes in figure.axes:
        low, high = axes.get_ylim()
        for line in axes.lines:
            if line.get_marker() in (CARETUP, CARETDOWN):
                place = float(np.asarray(line.get_ydata())[0])
                found.append((1 if line.get_marker() == CARETUP else -1, (place - low) / (high - low)))
    return found


def test_an_interval_that_leaves_the_frame_says_so(build_study: Builder, build_trials: Builder) -> None:
    levels_of = [
        {"value": "1", "runs": 9, "ratio": None, "ci_low": None, "ci_high": None},
        {"value": "2", "runs": 2, "ratio": 1.01, "ci_low": 0.2, "ci_high": 5.0},
    ]
    wide = replace(DEAD, details={"reference": "1", "margin": 1.06, "levels": levels_of})
    found = collect(build_study(), build_trials(26, turns=2), (wide, DEAD))
    with style.conventions():
        stamp = figures.stamp_for(found, TEXTS)
        effects, curves = axis_effects.draw(found, TEXTS, stamp), axis_curves.draw(found, TEXTS, stamp)
    assert effects is not None
    assert curves is not None
    assert sorted(heads(effects)) == [(-1, 0.0), (1, 1.0)]
    for figure in (effects, curves):
        told = any(text.get_text() == TEXTS("legend.beyond") for text in figure.legends[0].get_texts())
        assert told == bool(heads(figure))
    assert heads(curves), "three candidates far apart have an interval wider than all candidates"


def test_an_unset_level_has_one_name_and_is_not_joined_to_numbers(build_study: Builder, build_trials: Builder) -> None:
    verdict = replace(DEAD, subject="budget")
    found = collect(build_study(), with_unset(build_trials(48, turns=2)), (verdict,))
    assert [shown_label(UNSET, texts) for texts in (TEXTS, texts_for("zh"))] == ["unset", "未设"]
    with style.conventions():
        stamp = figures.stamp_for(found, TEXTS)
        effects, curves = axis_effects.draw(found, TEXTS, stamp), axis_curves.draw(found, TEXTS, stamp)
    assert effects is not None
    assert curves is not None
    for figure in (effects, curves):
        words = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
        assert "unset" in words
        assert "default" not in words
        assert any("Unset: not given" in text for text in words), "the picture says what unset is"
    assert {pair.row_labels[-1] for pair in interactions.pairs(found) if pair.rows == "budget"} <= {UNSET}
    (budget,) = [axes for axes in curves.axes if axes.get_title(loc="left") == "budget"]
    places = [label.get_text() for label in budget.get_xticklabels()]
    assert places[-1] == "unset"
    (line,) = [line for line in budget.lines if line.get_linestyle() == "-" and len(np.asarray(line.get_xdata())) > 1]
    assert list(np.asarray(line.get_xdata())) == list(range(len(places) - 1))


def test_an_unset_level_stays_beside_many_numbers(build_study: Builder, build_trials: Builder) -> None:
    trials = [
        replace(t, knobs={**t.knobs, "budget": t.number}) if t.speculative else t for t in build_trials(48, turns=1)
    ]
    found = collect(build_study(), with_unset(trials), ())
    labels = [level.label for level in levels(found, "budget", lambda entry: entry.value)]
    assert len(labels) == 6
    assert labels[-1] == UNSET


def test_effects_come_from_the_conclusion(material: Material) -> None:
    (panel,) = axis_effects.panels(material)
    assert panel[0] is DEAD
    changes = [(level.text, level.change, level.is_reference) for level in panel[1]]
    assert changes == [("false", pytest.approx(1.0), False), ("true", None, True), (UNSET, None, False)]


def test_the_picture_says_what_a_question_mark_is(material: Material) -> None:
    with style.conventions():
        figure = axis_effects.draw(material, TEXTS, figures.stamp_for(material, TEXTS))
    assert figure is not None
    assert any(text.get_text() == "?" for text in figure.axes[0].texts)
    assert any("?: measured" in text.get_text() for text in figure.texts)


def test_sweet_spot_is_shaded(material: Material) -> None:
    names = [name for name, _ in axis_curves.axis_means(material)]
    entries = dict(axis_curves.axis_means(material))["proposal_temp"]
    assert "proposal_temp" in names
    # values 0, 0.5, 0.7, 1 and the sweet spot from 0.5 to 1: positions 1 to 3
    assert axis_curves._sweet(material, "proposal_temp", entries) == (1, 3)
    assert axis_curves._sweet(material, "budget", entries) is None


def test_additive_cells_have_no_interaction() -> None:
    rows, columns = np.array([1.0, 2.0, 5.0]), np.array([10.0, 30.0])
    assert interactions.residual_range(rows[:, None] + columns[None, :]) == pytest.approx(0.0, abs=1e-9)
    # one cell of a 2×2 table raised by 4: least squares spreads it as ±1 over the four cells
    assert interactions.residual_range(np.array([[0.0, 0.0], [0.0, 4.0]])) == pytest.approx(2.0)
    assert interactions.residual_range(np.array([[1.0, np.nan], [np.nan, 2.0]])) is None
    assert interactions.residual_range(np.array([[1.0, 2.0, 3.0], [4.0, np.nan, np.nan]])) is None, (
        "nothing is left over"
    )


def test_pairs_that_are_shown_to_interact_are_framed(material: Material) -> None:
    assert interactions.sure(material) == set()
    both = replace(SWEET, subject="budget × proposal_temp", unit="ratio")
    shown = replace(material, verdicts=(both, DEAD))
    assert interactions.sure(shown) == {frozenset({"budget", "proposal_temp"})}
    with style.conventions():
        figure = interactions.draw(shown, TEXTS, figures.stamp_for(shown, TEXTS))
    assert figure is not None
    frames = [patch for patch in figure.axes[0].patches if not patch.get_fill()]
    assert len(frames) == 1


def point(cost: float, tps: float) -> pareto.Point:
    return pareto.Point(candidate=candidate(), cost=cost, tps=tps)


def test_front_of_hand_made_points() -> None:
    found = [point(1, 5), point(2, 4), point(2, 7), point(3, 7), point(4, 9)]
    assert [(entry.cost, entry.tps) for entry in pareto.front(found)] == [(1, 5), (2, 7), (4, 9)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_front_is_what_no_point_beats(pairs: list[tuple[int, int]]) -> None:
    chosen = {(entry.cost, entry.tps) for entry in pareto.front([point(*pair) for pair in pairs])}
    beaten = {
        pair for pair in pairs if any(o != pair and o[0] <= pair[0] and o[1] >= pair[1] for o in pairs)
    }  # fmt: skip
    assert chosen == set(pairs) - beaten


def test_histograms_are_pooled_and_never_invented(material: Material, sparse: Material) -> None:
    best = material.candidates[0]
    histogram = acceptance.pooled_histogram(material.turns, best.uids)
    assert histogram is not None
    # 60 steps a turn, 10 turns a run; a step that accepts nothing still emits one token
    assert sum(histogram.values()) == 600 * best.n
    assert min(histogram) == 1
    plain = material.baseline
    assert plain is not None
    assert acceptance.pooled_histogram(material.turns, plain.uids) is None


def test_bucket_rates_pool_tokens_over_time(material: Material) -> None:
    plain = material.baseline
    assert plain is not None
    rates = buckets.bucket_rates(material.turns, plain.uids)
    assert set(rates) == {"code", "tool_call", "thinking", "prose", "long_context", "other"}
    value, low, high, runs = rates["code"]
    assert runs == plain.n
    assert value == pytest.approx(1000 / 24.7, rel=0.02)
    assert low is not None
    assert high is not None
    assert low < value < high


def test_two_runs_get_the_noise_that_all_repeated_settings_tell() -> None:
    rates = {"a1": 100.0, "a2": 110.0, "b1": 50.0, "b2": 51.0, "b3": 52.0}
    turns = pd.DataFrame(
        {"uid": list(rates), "bucket": "code", "invalid_reason": None, "warmup": False, "decode_tokens": 100,
         "decode_ms": [100_000 / rate for rate in rates.values()]}
    )  # fmt: skip
    found = buckets.bucket_spreads(turns, [("a1", "a2"), ("b1", "b2", "b3"), ("a1",)])["code"]
    logs = [np.log([100, 110]), np.log([50, 51, 52])]
    squares = sum(float(((own - own.mean()) ** 2).sum()) for own in logs)
    assert found.df == 3
    assert found.sd == pytest.approx((squares / 3) ** 0.5)
    _, low, high, runs = buckets.bucket_rates(turns, ("a1", "a2"), {"code": found})["code"]
    _, alone, _, _ = buckets.bucket_rates(turns, ("a1", "a2"))["code"]
    assert runs == 2
    assert low is not None
    assert high is not None
    assert alone is not None
    # t with 3 degrees of freedom is 3.182: exp(±3.182 · sd / √2) about the geometric mean, 104.88
    assert [low, high] == pytest.approx([104.881 * np.exp(s * 3.1824 * found.sd / 2**0.5) for s in (-1, 1)], rel=1e-4)
    assert alone < low


def test_memory_slope_is_that_of_the_model(material: Material) -> None:
    with style.conventions():
        figure = memory.draw(material, TEXTS, figures.stamp_for(material, TEXTS))
    assert figure is not None
    assert any(text.get_text() == "77.6 MiB per node" for text in figure.findobj(Text) if isinstance(text, Text))


def test_timeline_has_a_bar_a_trial(material: Material) -> None:
    rows = timeline.spans(material)
    assert len(rows) == 48
    # loading 4 s + replay 55 s
    assert set(rows["length_s"]) == {59.0}
    assert rows["start_s"].min() == 0
    plain = [trial for trial in material.stored if not trial.speculative]
    assert {trial.role for trial in plain} == {Role.BASELINE, Role.CANARY, Role.CONFIRM}
    # plain decoding in the confirm blocks is a baseline
    canaries = sum(trial.role is Role.CANARY for trial in plain)
    assert rows["role"].value_counts()["baseline"] == len(plain) - canaries


def test_repeats_put_plain_decoding_first(material: Material) -> None:
    entries = noise_strip.repeated(material)
    assert not entries[0].speculative
    assert all(len(entry.repeats) > 1 for entry in entries)


def test_text_that_fonts_lack_is_boxed() -> None:
    assert style.printable("a\n b\tc") == "a b c"
    assert style.printable("x" * 300, 10) == "xxxxxxxxx…"
    assert style.printable("short", within_in=3.0) == "short"
    narrow = style.printable("wide enough to be cut", within_in=0.6)
    assert narrow.endswith("…")
    assert style.advance_in(narrow, 8.0, False) <= 0.6 < style.advance_in(narrow[:-1] + "www…", 8.0, False)
    assert style.printable("\U000f0000") == "□"


def test_figures_leave_no_settings_behind() -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    with style.conventions():
        assert mpl.rcParams["svg.hashsalt"] == "dflash-sweep"
    assert dict(mpl.rcParams) == before


def test_nothing_to_draw_is_none(build_study: Builder) -> None:
    empty = collect(build_study(), (), ())
    assert drawn(empty) == {}


def test_objective_in_ms_is_drawn_as_such(build_study: Builder, build_trials: Builder) -> None:
    trials: Sequence[StoredTrial] = build_trials(8, turns=2)
    found = collect(build_study(objective="ttft_ms", direction="minimize"), trials, ())
    assert found.metric.name == "ttft_ms"
    values = [entry.value for entry in found.everyone if entry.value is not None]
    assert values == sorted(values)
    assert found.candidates[0].tps is not None, "decode rates stay known beside another objective"
    with style.conventions():
        figure = figures.FIGURES["objective_history"][1](found, TEXTS, figures.stamp_for(found, TEXTS))
    assert figure is not None
    assert figure.axes[0].get_ylabel() == "time to first token, ms"
