"""The repainted block on a small terminal: what a person sees is the events and one block, whatever happens."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from dflash_sweep.terminal.steady import SteadyBlock
from fakes.screen import Screen

LINE = st.text(st.sampled_from("abc 123"), max_size=12)


class Display:
    """A block whose lines a test sets, on a screen that a test reads."""

    def __init__(self, width: int = 40, height: int = 20) -> None:
        self.screen = Screen(width)
        self.console = Console(file=self.screen, width=width, height=height, force_terminal=True, color_system=None)
        self.lines: list[str] = []
        self.block = SteadyBlock(self.console, lambda _width, _height: [Text(line) for line in self.lines])

    def paint(self, *lines: str) -> None:
        self.lines = list(lines)
        self.block.refresh()


@pytest.fixture
def display() -> Display:
    found = Display()
    found.block.start()
    return found


def test_a_block_is_repainted_in_place(display: Display) -> None:
    for elapsed in range(5):
        display.paint("head", f"running {elapsed}", "best")
    assert display.screen.shown() == ["head", "running 4", "best"]
    display.block.stop()
    assert display.screen.shown() == []


def test_nothing_is_erased_and_only_what_changed_is_written(display: Display) -> None:
    display.paint("head", "running 8", "best")
    display.screen.erased = 0
    before = display.screen.writes
    display.paint("head", "running 9", "best")
    assert display.screen.shown() == ["head", "running 9", "best"]
    assert display.screen.erased == 0, "an erased line is a flicker"
    assert display.screen.writes - before == 1, "one frame is one write"
    display.paint("head", "running 9", "best")
    assert display.screen.writes - before <= 2
    display.block.stop()


def test_a_line_that_gets_shorter_leaves_nothing_behind(display: Display) -> None:
    display.paint("a long line of text", "second")
    display.paint("short", "second")
    assert display.screen.shown() == ["short", "second"]
    display.block.stop()


def test_events_stay_above(display: Display) -> None:
    display.paint("head", "best")
    display.block.above(Text("candidate 1"))
    display.block.above(Text("candidate 2\nits second line"))
    assert display.screen.shown() == ["candidate 1", "candidate 2", "its second line", "head", "best"]
    display.block.stop()
    assert display.screen.shown() == ["candidate 1", "candidate 2", "its second line"]


def test_what_a_library_prints_goes_above() -> None:
    before = sys.stdout, sys.stderr
    display = Display()
    display.block.start()
    display.paint("head", "best")
    print("a word from a library")  # noqa: T201
    sys.stderr.write("a warning\n")
    assert display.screen.shown() == ["a word from a library", "a warning", "head", "best"]
    display.block.stop()
    assert (sys.stdout, sys.stderr) == before


def test_no_line_reaches_the_last_column(display: Display) -> None:
    display.paint("x" * 60)
    assert display.screen.widest == 39
    display.block.stop()


def test_a_narrower_terminal_has_wrapped_the_old_lines(display: Display) -> None:
    """40 columns became 10: the terminal shows a line of 25 as three rows, so the block begins three rows up."""
    display.paint("x" * 25, "best")
    display.screen.lines = ["x" * 10, "x" * 10, "x" * 5, "best"]
    display.screen.row = 3
    display.console.size = (10, 20)
    display.paint("new", "best")
    assert display.screen.shown() == ["new", "best"]
    display.block.stop()


def test_it_stops_once_however_often_it_is_told(display: Display) -> None:
    display.paint("head")
    display.block.stop()
    display.block.stop()
    display.block.refresh()
    assert display.screen.shown() == []


@given(
    st.lists(
        st.one_of(
            LINE.map(lambda text: ("above", text)), st.lists(LINE, max_size=6).map(lambda lines: ("paint", lines))
        )
    )
)
def test_the_screen_is_always_the_events_and_one_block(steps: list[tuple[str, str | list[str]]]) -> None:
    display = Display()
    display.block.start()
    events: list[str] = []
    for what, given_text in steps:
        if what == "above":
            assert isinstance(given_text, str)
            display.block.above(Text(given_text))
            events.append(given_text)
        else:
            assert isinstance(given_text, list)
            display.paint(*given_text)
        expected = [line.rstrip() for line in [*events, *display.lines]]
        while expected and not expected[-1]:
            expected.pop()
        assert display.screen.shown() == expected
    display.block.stop()
