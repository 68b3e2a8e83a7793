"""What the agent does next: the scripted policies that drove the shipped recordings. Imports nothing of ours.

A script holds the developer's messages and the steps that answer each. A step may name texts that the results of the
step before must hold, so a script that no longer fits the repository stops instead of recording nonsense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One answer of the model: a text, tool calls (name, arguments), or both. `needs`: texts the last results held."""

    say: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    bucket: str = "tool_call"
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A developer's message and the steps that answer it; the last step has no calls."""

    text: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A whole session. `tools`: names of the tools offered, in order; `system_prompt` None = the agent's full one."""

    name: str
    requests: tuple[Request, ...]
    tools: tuple[str, ...] | None = None
    system_prompt: str | None = None


_RENDER_OLD = """\
    parts = []
    rest_s = seconds
    for unit, size_s in UNITS_S.items():
        if unit == nearest:
            amount = round(rest_s / size_s)
            rest_s = 0
        else:
            amount, rest_s = divmod(rest_s, size_s)
        if amount:
"""

_RENDER_NEW = """\
    if nearest is not None:
        # Rounded before it is split, so that 60 minutes carry into the hour; whole numbers only, half rounds up.
        size_s = UNITS_S[nearest]
        seconds = (seconds + size_s // 2) // size_s * size_s
    parts = []
    rest_s = seconds
    for unit, size_s in UNITS_S.items():
        amount, rest_s = divmod(rest_s, size_s)
        if amount:
"""

_PARSE_OLD = """\
    total_s = 0
    for amount, unit in _PART.findall(text.lower()):
        if unit not in UNITS_S:
            raise DurationError(f"unknown unit {unit!r} in {text!r}; units are {', '.join(UNITS_S)}")
        total_s += int(amount) * UNITS_S[unit]
    return total_s
"""

_PARSE_NEW = """\
    rest = text.lower().strip()
    if not rest:
        raise DurationError("the text is empty; write a duration like '1h 30m'")
    total_s = 0
    while rest:
        part = _PART.match(rest)
        if part is None:
            raise DurationError(f"cannot read {rest!r} in {text!r}; write a duration like '1h 30m'")
        amount, unit = part.groups()
        if unit not in UNITS_S:
            raise DurationError(f"unknown unit {unit!r} in {text!r}; units are {', '.join(UNITS_S)}")
        total_s += int(amount) * UNITS_S[unit]
        rest = rest[part.end() :].lstrip()
    return total_s
"""

_TEST_REPORT = """\
import unittest

from durations.report import table


class TableTest(unittest.TestCase):
    def test_pads_the_names(self):
        self.assertEqual(table([("a", 60), ("long", 120)]), "a     1m\\nlong  2m")

    def test_carries_a_rounded_minute_into_the_hour(self):
        # 3 h 59 min 40 s is nearest to 4 h.
        self.assertEqual(table([("build", 14380)]), "build  4h")

    def test_is_empty_without_rows(self):
        self.assertEqual(table([]), "")
"""

_TEST_ROUND_TRIP = """\
import unittest

from durations import parse, render

DAY_S = 86400


class RoundTripTest(unittest.TestCase):
    def test_reads_back_what_it_wrote(self):
        for seconds in (0, 1, 59, 60, 3599, 3600, 5400, DAY_S - 1, DAY_S, 3 * DAY_S + 7):
            with self.subTest(seconds=seconds):
                self.assertEqual(parse(render(seconds)), seconds)

    def test_is_at_most_half_a_unit_off_when_rounded(self):
        for nearest, half_s in (("m", 30), ("h", 1800), ("d", DAY_S // 2)):
            for seconds in (half_s - 1, half_s, half_s + 1, 7199, DAY_S - 1, DAY_S + half_s):
                with self.subTest(nearest=nearest, seconds=seconds):
                    error_s = abs(parse(render(seconds, nearest=nearest)) - seconds)
                    self.assertLessEqual(error_s, half_s)
"""

_REPORT = """\
Both failing tests showed real faults, and both are fixed; all 11 tests pass now.

- `durations/rendering.py`: `render` rounded each part on its own, after the hours had been split off. With 7199 \
seconds the minutes became 60 and stayed there, which gave `1h 60m`. It now rounds the whole duration first and \
splits it afterwards, in whole seconds. As a side effect a value exactly in the middle is rounded up; the old \
code rounded to the even number.
- `durations/parsing.py`: `parse` collected what looked like a part and skipped everything else, so `soon` was 0 \
seconds and `1h and more` was one hour. It now reads the text from left to right and raises `DurationError` at \
the first piece that it cannot read, quoting it.

`report.table` was affected by the first fault, because it renders to the nearest minute. It needed no change of \
its own; I added `tests/test_report.py`, which covers the carry there. The changelog has two lines. Nothing else \
was touched."""

_ANSWER = """\
I added `tests/test_round_trip.py`; the suite has 13 tests and all of them pass.

The first test renders ten values, from zero to several days, and reads the text back: the number of seconds has \
to be the same. The second one renders with `nearest` set to minutes, hours and days and checks that the result \
is never more than half a unit away from the input. It tries the values just below, at, and just above the half, \
where an error of one would show.

One thing it made visible, though it is not a fault: `parse` accepts a unit twice and in any order, so `5s 1h \
5s` is 3610 seconds. `render` never writes such a text. If you want `parse` to refuse it, that is a small change \
in the loop in `durations/parsing.py`, but it could break callers who rely on it, so I left it alone."""

AGENT = Script(
    name="agent",
    requests=(
        Request(
            text=(
                "Two tests fail on the main branch. Please find the causes and fix them; the tests are right. "
                "`report.table` shows durations to the nearest minute, so check whether it was affected too, "
                "and cover it with a test."
            ),
            steps=(
                Step(
                    say="I start with an overview of the repository.",
                    calls=(("list_files", {}),),
                ),
                Step(
                    say="Now the tests, to see the failures.",
                    calls=(("run_tests", {}),),
                    needs=("durations/rendering.py",),
                ),
                Step(
                    say="One fault is in parsing and one in rendering. I read both modules.",
                    calls=(
                        ("read_file", {"path": "durations/parsing.py"}),
                        ("read_file", {"path": "durations/rendering.py"}),
                    ),
                    needs=("6 passed, 2 failed", "'1h 60m' != '2h'"),
                ),
                Step(
                    say="Before I change `render` I look for everything that uses it.",
                    calls=(("search_text", {"pattern": r"render|nearest"}),),
                    needs=("round(rest_s / size_s)", "_PART.findall"),
                ),
                Step(
                    say="`render` rounds after the hours are split off; it has to round first.",
                    calls=(
                        (
                            "replace_in_file",
                            {"path": "durations/rendering.py", "old_text": _RENDER_OLD, "new_text": _RENDER_NEW},
                        ),
                    ),
                    bucket="code",
                    needs=("durations/report.py:9:",),
                ),
                Step(
                    say="`findall` skips whatever does not match, so `parse` never refuses a text.",
                    calls=(
                        (
                            "replace_in_file",
                            {"path": "durations/parsing.py", "old_text": _PARSE_OLD, "new_text": _PARSE_NEW},
                        ),
                    ),
                    bucket="code",
                    needs=("replaced",),
                ),
                Step(
                    say="`table` calls `render` with `nearest`, so it was affected. This test covers the carry there.",
                    calls=(("write_file", {"path": "tests/test_report.py", "content": _TEST_REPORT}),),
                    bucket="code",
                    needs=("replaced",),
                ),
                Step(calls=(("run_tests", {}),), needs=("created tests/test_report.py",)),
                Step(
                    say="All pass. The changelog gets a line for each fault.",
                    calls=(
                        (
                            "replace_in_file",
                            {
                                "path": "CHANGELOG.md",
                                "old_text": "## Unreleased\n",
                                "new_text": (
                                    "## Unreleased\n\n- Durations rounded to a minute or an hour no longer show 60 of "
                                    "them.\n- Texts that are no duration were read as far as they went; they are "
                                    "refused now.\n"
                                ),
                            },
                        ),
                    ),
                    needs=("11 passed, 0 failed",),
                ),
                Step(say=_REPORT, bucket="prose", needs=("replaced",)),
            ),
        ),
        Request(
            text=(
                "Good. Please add a test that what `render` writes can be read back by `parse`, "
                "rounded values included."
            ),
            steps=(
                Step(
                    say="A round trip over the edges of every unit, exact and rounded.",
                    calls=(("write_file", {"path": "tests/test_round_trip.py", "content": _TEST_ROUND_TRIP}),),
                    bucket="code",
                ),
                Step(calls=(("run_tests", {}),), needs=("created tests/test_round_trip.py",)),
                Step(say=_ANSWER, bucket="prose", needs=("13 passed, 0 failed",)),
            ),
        ),
    ),
)

AGENT_SHORT = Script(
    name="agent_short",
    system_prompt=(
        "You are a coding agent in a small repository. Use the tools to look at files and to run the tests. "
        "Never guess a result. Answer in plain prose when you are done."
    ),
    tools=("read_file", "run_tests"),
    requests=(
        Request(
            text="The rendering tests fail. What is the cause? Do not change anything.",
            steps=(
                Step(
                    say="I run the rendering tests first.",
                    calls=(("run_tests", {"module": "tests.test_rendering"}),),
                ),
                Step(
                    say="The minutes are not carried into the hour. I read the module.",
                    calls=(("read_file", {"path": "durations/rendering.py"}),),
                    needs=("'1h 60m' != '2h'", "3 passed, 1 failed"),
                ),
                Step(
                    say=(
                        "`render` in `durations/rendering.py` splits off the hours first and rounds the minutes "
                        "afterwards (line 14). For 7199 seconds it takes one hour, has 3599 seconds left, and rounds "
                        "those to 60 minutes, so it writes `1h 60m`. It should round the whole duration to the unit "
                        "before it splits it. I changed nothing."
                    ),
                    bucket="prose",
                    needs=(" 14  ", "round(rest_s / size_s)"),
                ),
            ),
        ),
    ),
)
