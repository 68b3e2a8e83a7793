"""The live block as text: what it shows, and that it fits whatever terminal it is drawn for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dflash_sweep.records import Role
from dflash_sweep.terminal import stage_bar
from dflash_sweep.terminal.board import Board, Step, step_of
from dflash_sweep.terminal.frame import frame
from dflash_sweep.watcher import Best
from fakes.scenes import make_scene, plain_trial, spec, trial

BEST = Best(candidate=3, value=25.0, unit="tok/s", low=24.5, high=25.5, plain=50.0, gain=0.5, gain_low=0.48,
            gain_high=0.52)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def running_board(workers: int = 2, clock: Clock | None = None) -> Board:
    """Two plain runs of 10 s and one candidate of 20 s are done; candidates 4 and 5 run, for 7 s."""
    clock = clock or Clock()
    board = Board(make_scene(workers, where=lambda: {spec(4).uid: 1, spec(5).uid: 0}), clock)
    board.phase("baseline", 2)
    for repeat in range(2):
        clock.now += 10.0
        board.finished(plain_trial(repeat), None)
    board.phase("search", 40)
    board.started(spec(3))
    clock.now += 20.0
    board.finished(trial(3), BEST)
    for candidate in (4, 5):
        board.started(spec(candidate))
    clock.now += 7.0
    return board


def lines(board: Board, width: int, height: int = 30) -> list[str]:
    return [line.plain for line in frame(board, width, height)]


def test_it_shows_study_kind_phase_workers_stages_and_best() -> None:
    rule, head, first, second, legend, best_bar, best = lines(running_board(), 160)
    assert set(rule) == {"─"}
    assert head.startswith("ddtree  EMULATED   search 1/40 ━")
    assert first.startswith("worker 1  test card #0     0:07  candidate 5  target_feat_ctx=128  budget=22")
    assert second.startswith("worker 2  test card #1     0:07  candidate 4  ")
    assert "draft" in legend
    assert "exact" in legend
    assert "verify" not in legend  # this engine prints none
    assert best_bar.endswith("100.0 ms, pays below 50.00")  # 2.5 tokens a step, plain decoding 20 ms each
    assert best == "best      #3: 25.00 tok/s [24.50, 25.50]  0.50× [0.48, 0.52] of plain 50.00"


def test_eighty_columns_hold_the_best_against_plain_decoding() -> None:
    assert lines(running_board(), 79)[-1].endswith("0.50× [0.48, 0.52] of plain 50.00")


def test_the_time_left_is_what_runs_have_taken() -> None:
    board = running_board(workers=2)
    # one run was seen to take 20 s; 39 are left, two of them under way for 7 s: (39 · 20 - 2 · 7) / 2 workers
    assert board.phase_left_s() == pytest.approx(383)
    assert board.study_left_s() == pytest.approx(543)  # and 16 runs to confirm: 383 + 16 · 20 / 2
    assert "6 min left, about 9 min in all" in lines(board, 160)[1]


def test_plain_decoding_like_a_finalist_moves_no_break_even_mark() -> None:
    board = running_board()
    before = board.plain_ms
    board.finished(replace(plain_trial(7), role=Role.CONTROL, candidate=3), BEST)
    assert board.plain_ms == before
    assert board.best_step is not None


def test_no_time_is_promised_before_a_run_has_ended() -> None:
    board = Board(make_scene())
    board.phase("baseline", 3)
    board.started(spec(0))
    assert board.phase_left_s() is None
    assert "left" not in "".join(lines(board, 160))


def test_idle_workers_and_waiting_runs_are_told() -> None:
    board = Board(make_scene(3, where=lambda: {spec(1).uid: 2}), Clock())
    for candidate in range(1, 6):
        board.started(spec(candidate))
    shown = lines(board, 160)
    assert [line.split()[-1] for line in shown if "worker" in line][:2] == ["idle", "idle"]
    assert any(line == "waiting   2 runs" for line in shown)


@given(st.integers(20, 200), st.integers(2, 60), st.integers(1, 40))
def test_it_always_fits(width: int, height: int, workers: int) -> None:
    shown = lines(running_board(workers), width, height)
    assert 0 < len(shown) <= height
    assert max(map(cell_len, shown)) <= width


@given(st.integers(60, 200))
def test_no_number_is_cut(width: int) -> None:
    """Every number of the block stands in the widest block, too."""
    whole = set(re.findall(r"\d+(?:\.\d+)?", " ".join(lines(running_board(), 200))))
    assert set(re.findall(r"\d+(?:\.\d+)?", " ".join(lines(running_board(), width)))) <= whole


def test_many_workers_leave_room_for_the_rest() -> None:
    shown = lines(running_board(40), 100, 20)
    assert len(shown) == 20
    assert shown[-1].startswith("best ")
    assert any(re.search(r"and \d+ more", line) for line in shown)


def test_a_step_is_what_the_engine_prints() -> None:
    step = step_of(trial(3))
    assert step == Step(3, {"draft_ms": 40.0, "topk_ms": 10.0, "exact_ms": 45.0}, 100.0, 2.5)
    assert step_of(plain_trial()) is None


def test_a_bar_is_as_long_as_its_parts() -> None:
    step = Step(3, {"draft_ms": 40.0, "topk_ms": 10.0, "exact_ms": 45.0}, 100.0, 2.5)
    assert stage_bar.cells(step, 100.0, 20) == "█" * 8 + "▓" * 2 + "▒" * 9 + "·"
    assert stage_bar.cells(step, 200.0, 20) == "█" * 4 + "▓" + "▒" * 5 + " " * 10  # 95 of 200 ms end in the tenth cell


@given(st.lists(st.floats(0, 1e4), min_size=4, max_size=4), st.floats(1, 1e5), st.integers(10, 120))
def test_a_bar_never_leaves_its_field(stages: list[float], step_ms: float, width: int) -> None:
    names = ("draft_ms", "topk_ms", "verify_ms", "exact_ms")
    step = Step(0, dict(zip(names, stages, strict=True)), step_ms, 2.0)
    assert len(stage_bar.cells(step, max(step_ms, sum(stages), 1e-6), width)) == width
