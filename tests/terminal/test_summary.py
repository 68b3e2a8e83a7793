"""The end of a run: at most twenty lines, the answer first, the command whole."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from dflash_sweep.records import Measurement
from dflash_sweep.terminal.summary import MOST_LINES, summary
from fakes.scenes import make_ending, setting


def shown(width: int = 80, **fields: object) -> list[str]:
    return [line.plain.rstrip() for line in summary(make_ending(**fields), width, say_where=True)]


def test_answer_table_command_and_path() -> None:
    lines = shown()
    assert lines[0] == "ddtree finished: 61 runs, 2 failed, EMULATED numbers"
    assert lines[1] == "#3 is the fastest: 60.00 tok/s, 1.20× plain decoding."
    assert lines[2:5] == ["● Finding 0 holds.", "● Finding 1 holds.", "● Finding 2 holds."]
    assert lines[5].split() == ["tok/s", "95", "%", "×", "plain", "95", "%", "runs", "AL"]
    assert lines[6].split()[:4] == ["#3", "60.00", "[59.40,", "60.60]"]
    assert [line.split()[0] for line in lines[6:10]] == ["#3", "#1", "plain", "#2"]
    assert lines[10:12] == ["run it with:", "  server -m target.gguf --budget 22"]
    assert lines[12] == "findings: /home/me/reports/ddtree/findings.md"


def test_measured_numbers_need_no_mark() -> None:
    assert shown(measurement=Measurement.MEASURED)[0] == "ddtree finished: 61 runs, 2 failed"


def test_a_failed_study_says_why_first() -> None:
    lines = shown(status="failed", stop_reason="plain decoding could not be measured: crashed", code=3, settings=())
    assert lines[0] == "error: plain decoding could not be measured: crashed"


def test_an_interrupted_study_says_how_to_go_on() -> None:
    assert shown(status="interrupted", code=130)[1].startswith("everything measured so far is kept; the same command")


def test_without_advice_there_is_no_command() -> None:
    assert not any("run it with" in line for line in shown(command=None))


def test_the_advised_setting_and_plain_decoding_are_always_in_the_table() -> None:
    settings = (*(setting(f"#{number}", 90.0 - number) for number in range(9)), setting("#42", 30.0, advised=True),
                setting("plain decoding", 20.0, speculative=False))  # fmt: skip
    names = [line.split()[0] for line in shown(settings=settings)]
    assert "#42" in names
    assert "plain" in names


def test_finalists_come_before_single_runs_that_look_better() -> None:
    lucky = [setting(f"#{number}", 90.0 - number) for number in range(4)]
    again = [replace(setting(f"#{number}", 60.0 - number), finalist=True) for number in (7, 8)]
    settings = (*lucky, *again, setting("plain decoding", 20.0, speculative=False))
    names = [line.split()[0] for line in shown(settings=settings)]
    assert [name for name in names if name.startswith("#")][-3:] == ["#0", "#7", "#8"]


def test_the_weightiest_conclusion_has_its_line_beside_a_long_command() -> None:
    command = shlex.join(["server", *(f"--option-{number:02d}={'x' * 60}" for number in range(9))])
    lines = shown(command=command, statement="word " * 40)
    assert len(lines) <= MOST_LINES
    assert "● Finding 0 holds." in lines
    assert any("plain" in line for line in lines)


WORDS = st.lists(st.text(st.sampled_from("abc/-. "), min_size=1, max_size=70), min_size=1, max_size=60)


@given(WORDS, st.text(st.sampled_from("word 1.5 ["), max_size=900), st.integers(80, 200))
def test_it_never_takes_more_than_twenty_lines(words: list[str], statement: str, width: int) -> None:
    command = shlex.join(["server", *words])
    lines = shown(width, command=command, statement=statement)
    assert len(lines) <= MOST_LINES
    if "run it with:" in lines:
        start = lines.index("run it with:") + 1
        pasted = "\n".join(lines[start:-1]).replace("\\\n", "")
        assert shlex.split(pasted) == ["server", *words]
    else:
        assert any("What to run now" in line for line in lines)


@given(st.integers(40, 200))
def test_the_table_fits(width: int) -> None:
    lines = shown(width)
    start = next(number for number, line in enumerate(lines) if "tok/s" in line and "#3 is" not in line)
    assert max(map(cell_len, lines[start : start + 3])) <= width


@pytest.mark.parametrize("width", [80, 120, 160])
def test_no_figure_is_broken(width: int) -> None:
    lines = shown(width)
    assert sum("[59.40, 60.60]" in line for line in lines) == 1
    assert sum("1.20×" in line for line in lines) == 2
