"""A real study in a real terminal (tmux) at 80 and at 160 columns: nothing wraps, nothing is left behind.

A line that the terminal had to wrap is found by capturing twice, once with wrapped lines joined: both must be equal.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from fakes.sweeping import SWEEP

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
STUDY = (
    "+study=ddtree", "cluster=inline", "trace=agent_short", "n_trials=3", "report.formats=[png]",
    "protocol.baseline_repeats=2", "protocol.default_repeats=1", "protocol.confirm_blocks=0",
)  # fmt: skip
OVER = "the run ended with"
RULE = "─"
NUMBER_AT_THE_END = re.compile(r"[\d.,\[]$")


class Terminal:
    """One tmux server with one window. `captures`: every screen seen; `wrapped`: those that had wrapped lines."""

    def __init__(self, folder: Path, width: int, height: int, command: str) -> None:
        self._name = f"dfs-{uuid4().hex[:8]}"
        self.width = width
        self.captures: list[list[str]] = []
        self.wrapped: list[tuple[list[str], list[str]]] = []
        size = ["-x", str(width), "-y", str(height)]
        shell = f"trap : INT; cd {shlex.quote(str(folder))} && {command}; echo {OVER} $?; sleep 600"
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "env", "-u", "NO_COLOR", "sh", "-c", shell)

    def _tmux(self, *words: str) -> str:
        run = subprocess.run(["tmux", "-L", self._name, *words], capture_output=True, text=True, check=True)
        return run.stdout

    def look(self, *, history: bool = False) -> list[str]:
        start = ["-S", "-"] if history else []
        plain = self._tmux("capture-pane", "-p", *start).splitlines()
        joined = self._tmux("capture-pane", "-p", "-J", *start).splitlines()
        again = self._tmux("capture-pane", "-p", *start).splitlines()
        if plain == again:  # nothing was written between the two captures
            if [line.rstrip() for line in plain] != [line.rstrip() for line in joined]:
                self.wrapped.append((plain, joined))
            if not history:
                self.captures.append(plain)
        return plain

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def cursor_is_on(self) -> bool:
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def until(self, seen: Callable[[list[str]], bool], timeout_s: float = 400.0) -> list[str]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            lines = self.look()
            if seen(lines):
                return lines
            time.sleep(0.15)
        pytest.fail("not seen in time:\n" + "\n".join(self.look(history=True)))

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], capture_output=True, check=False)


def ended(lines: list[str]) -> bool:
    return any(line.startswith(OVER) for line in lines)


def heads(lines: list[str]) -> list[str]:
    return [line for line in lines if re.match(r"ddtree +EMULATED ", line)]


def command() -> str:
    return shlex.join([sys.executable, str(SWEEP), *STUDY])


def demo(trials: int, each_s: float) -> str:
    """The live view of an invented study."""
    return shlex.join(
        [sys.executable, str(Path(__file__).parents[1] / "fakes" / "live_demo.py"), str(trials), str(each_s)]
    )


@pytest.fixture(scope="module", params=[80, 160])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Terminal, list[str]]:
    """The terminal after a whole study, and everything that stands in it."""
    terminal = Terminal(tmp_path_factory.mktemp("run"), request.param, 24, command())
    try:
        terminal.until(ended)
        return terminal, terminal.look(history=True)
    finally:
        terminal.close()


def test_the_block_was_seen_and_only_once_at_a_time(seen: tuple[Terminal, list[str]]) -> None:
    terminal, _ = seen
    counts = [len(heads(lines)) for lines in terminal.captures]
    assert max(counts) == 1
    assert counts.count(1) >= 3
    assert any(RULE * (terminal.width - 1) in lines for lines in terminal.captures), "the whole width is used"
    shown = {line.split()[0] for lines in terminal.captures if heads(lines) for line in lines if line}
    assert {"worker", "a", "best", "last"} <= shown


def test_no_line_was_wrapped_by_the_terminal(seen: tuple[Terminal, list[str]]) -> None:
    terminal, _ = seen
    unwanted = [(plain, joined) for plain, joined in terminal.wrapped if not ended(plain)]
    assert unwanted == []


def test_no_line_of_the_block_is_cut_inside_a_number(seen: tuple[Terminal, list[str]]) -> None:
    """A cut line ends at the last column; ours end before it, with a whole word or the sign for more."""
    terminal, _ = seen
    for lines in terminal.captures:
        if heads(lines):
            assert not [line for line in lines if len(line) >= terminal.width and NUMBER_AT_THE_END.search(line)]


def test_nothing_of_the_block_is_left_behind(seen: tuple[Terminal, list[str]]) -> None:
    _, lines = seen
    assert heads(lines) == []
    assert not [line for line in lines if re.match(r"(worker [ \d] |a step |best {6}|waiting|  best |  last )", line)]
    assert not [line for line in lines if "━" in line]


def test_every_run_stands_in_the_history_once(seen: tuple[Terminal, list[str]]) -> None:
    _, lines = seen
    for candidate in range(3):
        assert len([line for line in lines if re.match(rf"[\d:]+ candidate {candidate}: \d+\.\d\d tok/s", line)]) == 1


def test_it_ends_with_the_summary_and_the_path(seen: tuple[Terminal, list[str]]) -> None:
    _, lines = seen
    end = next(number for number, line in enumerate(lines) if line.startswith(OVER))
    assert lines[end] == f"{OVER} 0"
    start = next(number for number, line in enumerate(lines) if line.startswith("ddtree finished: "))
    text = "".join(lines[start:end])
    assert text.endswith("/reports/ddtree/findings.md")
    assert end - start <= 21  # twenty lines, and the path may be wider than the terminal


def test_a_terminal_that_changes_its_size_is_repainted(tmp_path: Path) -> None:
    """tmux tells a program of its new size with a delay and may push wrapped rows out of reach: what was painted in
    between stays in the history. From the first frame at the new size on nothing more is left behind."""
    terminal = Terminal(tmp_path, 160, 40, demo(24, 0.3))
    try:
        terminal.until(lambda lines: any("candidate 1:" in line for line in lines))
        terminal.resize(70, 40)
        terminal.until(lambda lines: RULE * 69 in lines)
        left = len(heads(terminal.look(history=True)))
        terminal.until(lambda lines: any("candidate 9:" in line for line in lines))
        assert len(heads(terminal.look(history=True))) == left
        terminal.resize(120, 40)
        terminal.until(lambda lines: RULE * 119 in lines)
        left = len(heads(terminal.look(history=True)))
        terminal.until(ended)
        lines = terminal.look(history=True)
    finally:
        terminal.close()
    assert len(heads(lines)) == left - 1, "the block itself is taken away"


def test_ctrl_c_gives_the_terminal_back(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, 80, 24, demo(1000, 0.2))
    try:
        terminal.until(lambda lines: any("candidate 2:" in line for line in lines))
        terminal.press("C-c")
        lines = terminal.until(ended)
        cursor = terminal.cursor_is_on()
    finally:
        terminal.close()
    assert f"{OVER} 130" in lines
    assert cursor
    assert heads(lines) == []
