"""What the pages of studies and trials say, and that they stay small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep import frames, standing
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Failure, LaunchSpec, Role, StoredTrial
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.texts import Texts, texts_for
from dflash_sweep.report.wording import rate
from dflash_sweep.showcase import Progress
from dflash_sweep.showcase.charts import charts
from dflash_sweep.showcase.hanging import LARGE, _most_telling
from dflash_sweep.showcase.study_note import MAX_LETTERS, Counted, study_note
from dflash_sweep.showcase.tradeoff_chart import MAX_POINTS, points
from dflash_sweep.showcase.trial_note import stage_picture, tags, trial_note
from dflash_sweep.showcase.words import WORDS
from fakes.shown_study import ShownStudy, out_of_memory

EN, ZH = texts_for("en"), texts_for("zh")


@pytest.fixture(scope="module")
def shown(url: str, tmp_path_factory: pytest.TempPathFactory) -> Material:
    """Two baselines, ten candidates of which one failed, a canary, two blocks of candidate 0 and plain decoding."""
    study = ShownStudy(url, tmp_path_factory.mktemp("evidence"), name="notes")
    rows = [study.plain(), study.plain()]
    rows += [study.search(out_of_memory() if number == 3 else None) for number in range(10)]
    rows.append(study.plain(Role.CANARY))
    for _ in range(2):
        rows += [study.confirm(0, rows[2].knobs), study.plain(Role.CONFIRM)]
    info = study.save("finished")
    return collect(info, study.store.trials("notes"))


def of(material: Material, candidate: int) -> list[StoredTrial]:
    return [trial for trial in material.stored if trial.candidate == candidate]


def test_a_trials_page_says_what_it_is_what_came_out_and_how_to_run_it(shown: Material) -> None:
    note = trial_note(of(shown, 1), shown.study, EN, plain_ms=shown.plain_ms, folder="sweeps/x")
    budget = int(of(shown, 1)[0].knobs["budget"] or 0)
    assert note.startswith("# search #1 — EMULATED")
    assert f"budget={budget}" in note
    assert "one run: no interval" in note
    assert "```sh\nllama-server -m 'target model.gguf' --port 40001\n```" in note
    assert "plain decoding: 25.0" in note
    assert "sweeps/x" in note


def test_a_confirmed_trial_is_judged_by_its_confirm_runs(shown: Material) -> None:
    runs = of(shown, 0)
    assert [run.role for run in runs] == [Role.SEARCH, Role.CONFIRM, Role.CONFIRM]
    note = trial_note(runs, shown.study, EN, plain_ms=None, folder=None)
    assert "95 % interval of 2 runs" in note
    assert note.count(" tok/s**") == 1
    assert tags(runs, shown.study) == ("emulated", "confirm")
    assert tags(runs, replace(shown.study, confirmed_candidate=0)) == ("emulated", "confirm", "winner")


def test_a_trial_measured_again_during_the_search_is_judged_by_those_runs(shown: Material) -> None:
    first, *_ = of(shown, 1)
    again = [replace(run, role=Role.CANARY, candidate=1, number=90 + n) for n, run in enumerate(of(shown, 0)[1:])]
    longer = tuple(
        replace(turn, counters=replace(turn.counters, decode_ms=2 * (turn.counters.decode_ms or 0.0), stages=()))
        for turn in again[1].result.turns
    )
    again[1] = replace(again[1], result=replace(again[1].result, turns=longer))
    steps = [float(frames.trial_row(run)["step_ms"]) for run in again]
    assert steps[1] > 1.5 * steps[0]
    note = trial_note([first, *again], shown.study, EN, plain_ms=None, folder=None)
    assert "95 % interval of 2 runs" in note
    assert f"{rate(sum(steps) / 2)} ms" in note  # of both runs, like the result
    assert tags([first, *again], shown.study) == ("emulated", "canary")


def test_a_failure_is_told_in_words_with_the_end_of_the_log(shown: Material) -> None:
    note = trial_note(of(shown, 3), shown.study, EN, plain_ms=None, folder=None)
    assert "Failed: out\\_of\\_memory" in note or "Failed: out_of_memory" in note
    assert "the settings do not fit in memory" in note
    assert "CUDA error: out of memory" in note
    assert "allocating 9 GiB\nfailed" in note
    assert "failed" in tags(of(shown, 3), shown.study)


def test_a_trial_that_was_ended_early_has_not_failed(shown: Material) -> None:
    (run,) = of(shown, 3)
    stopped = Failure(kind=FailureKind.PRUNED, message="12 % behind after 4 turns")
    early = replace(run, result=replace(run.result, failure=stopped))
    note = trial_note([early], shown.study, EN, plain_ms=None, folder=None)
    assert "ended early" in note
    assert "12 % behind after 4 turns" in note
    assert "Failed" not in note
    assert tags([early], shown.study) == ("emulated", "stopped-early")
    assert Counted.of([early, run]) == Counted(runs=2, failed=1)


def test_a_trials_page_is_bounded(shown: Material) -> None:
    (run,) = of(shown, 3)
    launch = LaunchSpec(argv=("x" * 50,) * 2000)
    long = replace(run.result, failure=out_of_memory("no memory " * 10_000), launch=launch)
    note = trial_note([replace(run, result=long)], shown.study, EN, plain_ms=None, folder=None)
    assert len(note) < 6_000


def test_the_stage_picture_adds_up_and_marks_the_break_even(shown: Material) -> None:
    (run,) = of(shown, 1)
    budget = int(run.knobs["budget"] or 0)
    picture = (stage_picture(run, EN, plain_ms=25.0) or b"").decode()
    # 25 ms a token times 2 + budget / 32 tokens a step
    assert f"break-even {25 * (2 + budget / 32):.2f}"[:14] in picture
    assert f"top-k {budget / 2:.2f} ms" in picture
    assert stage_picture(of(shown, 3)[0], EN, plain_ms=25.0) is None


@pytest.mark.parametrize("texts", [EN, ZH], ids=["en", "zh"])
def test_a_studys_page_has_the_verdict_and_the_runs_that_are_no_trials(shown: Material, texts: Texts) -> None:
    note = study_note(shown, texts, study_id=7, progress=None)
    assert texts("head.verdict") in note
    assert WORDS[texts.lang]["beside"] in note
    for role in ("baseline", "canary", "confirm (plain)"):
        assert role in note
    assert "/dashboard/studies/7/trials?numbers=3" in note  # the failed one, by its number on the dashboard
    assert "findings.html" in note
    assert len(note) <= MAX_LETTERS + 100


def test_a_running_studys_page_says_how_far_it_is(shown: Material) -> None:
    note = study_note(shown, EN, study_id=7, progress=Progress(phase="search", done=3, total=40))
    assert "search, 3 of 40 runs" in note


def test_a_studys_page_is_shortened_at_a_section_and_says_so(shown: Material) -> None:
    note = study_note(shown, EN, study_id=7, progress=None, max_letters=2500)
    assert len(note) <= 2500
    assert "Shortened here" in note
    assert EN("head.verdict") in note


def test_of_thousands_of_runs_the_page_shows_the_fastest_and_says_so(shown: Material) -> None:
    runs = [run for run in shown.stored if run.role is Role.SEARCH and run.result.failure is None]
    others = [run for run in shown.stored if run.role is not Role.SEARCH]
    crowd = [*others, *(replace(run, uid=f"{run.uid}x{copy}") for copy in range(200) for run in runs)]
    kept = _most_telling(crowd, "decode_tps")
    assert len(kept) == LARGE
    assert [run for run in kept if run.role is not Role.SEARCH] == sorted(others, key=lambda run: run.number)
    # 200 copies of each of nine runs: as many of the fastest as there is room for
    values = sorted((standing.value(run, "decode_tps") or 0.0 for run in runs for _ in range(200)), reverse=True)
    found = sorted((standing.value(run, "decode_tps") or 0.0 for run in kept if run.role is Role.SEARCH), reverse=True)
    assert found == values[: LARGE - len(others)]
    counted = Counted.of(crowd)
    note = study_note(collect(shown.study, kept, ()), EN, study_id=7, progress=None, counted=counted)
    assert f"{len(crowd)} runs stored" in note
    assert "conclusions over all of them are drawn at the end" in note
    assert EN("head.failed") not in note


def test_every_text_is_there_in_both_languages() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()


def test_the_figures_say_what_kind_of_numbers_they_show(shown: Material) -> None:
    found = charts(shown, EN)
    assert set(found) == {"dflash-stages", "dflash-tradeoff", "dflash-effects"}
    for figure in found.values():
        assert "EMULATED" in figure.layout.title.text
        assert len(figure.to_json()) < 30_000


def test_the_stage_figure_holds_every_stage_and_the_plain_line(shown: Material) -> None:
    figure = charts(shown, EN)["dflash-stages"]
    bars = {trace.name: trace for trace in figure.data if trace.type == "bar"}
    place = list(bars["draft"].y).index("#1")
    budget = int(of(shown, 1)[0].knobs["budget"] or 0)
    assert bars["draft"].x[place] == pytest.approx(10.0)
    assert bars["top-k"].x[place] == pytest.approx(budget / 2)
    assert bars["exact + verify"].x[place] == pytest.approx(18.0)
    (line,) = [shape for shape in figure.layout.shapes if shape.type == "line"]
    assert line.x0 == pytest.approx(25.0, abs=0.05)


def test_the_tradeoff_figure_is_thinned_out_where_there_are_thousands(shown: Material) -> None:
    many = [replace(shown.candidates[0], number=number) for number in range(5000)]
    crowd = replace(shown)
    crowd.__dict__["candidates"] = tuple(many)
    kept = points(crowd)
    assert len(kept) <= MAX_POINTS
    assert [entry.number for entry in kept[:120]] == list(range(120))


def test_a_study_without_candidates_has_no_figures(shown: Material, tmp_path: Path) -> None:
    plain = collect(shown.study, [trial for trial in shown.stored if not trial.speculative])
    assert charts(plain, EN) == {}
    assert "plain" in study_note(plain, EN, study_id=1, progress=None)
    assert charts(collect(shown.study, []), EN) == {}
    assert study_note(collect(shown.study, []), EN, study_id=1, progress=None)
