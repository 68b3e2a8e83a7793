"""A script of short tool calls in quick succession: little text a turn, many turns. Imports `policy` only."""

from __future__ import annotations

from dflash_sweep.agent.policy import Request, Script, Step

TOOL_BURSTS = Script(
    name="tool_bursts",
    system_prompt=(
        "You answer questions about a small repository. Every answer starts from the tools: list, search, read, run. "
        "One call at a time unless calls are independent. No text next to a call. When you know enough, answer in at "
        "most three sentences."
    ),
    tools=("list_files", "read_file", "search_text", "run_tests"),
    requests=(
        Request(
            text="Which modules import something from another module of the package, and which import nothing?",
            steps=(
                Step(calls=(("list_files", {"directory": "durations"}),)),
                Step(
                    calls=(("search_text", {"pattern": r"^(from|import) ", "directory": "durations"}),),
                    needs=("durations/units.py",),
                ),
                Step(
                    calls=(("read_file", {"path": "durations/units.py"}),),
                    needs=("durations/report.py:3:",),
                ),
                Step(
                    say=(
                        "`parsing.py` and `rendering.py` import `UNITS_S` from `units.py`, `report.py` imports "
                        "`render`, and `__init__.py` imports from both. Only `units.py` imports nothing."
                    ),
                    bucket="prose",
                    needs=("UNITS_S = ",),
                ),
            ),
        ),
        Request(
            text="Which test modules pass?",
            steps=(
                Step(
                    calls=(
                        ("run_tests", {"module": "tests.test_parsing"}),
                        ("run_tests", {"module": "tests.test_rendering"}),
                    ),
                ),
                Step(
                    say="Neither: in `tests.test_parsing` and in `tests.test_rendering` one of four tests fails.",
                    bucket="prose",
                    needs=("3 passed, 1 failed",),
                ),
            ),
        ),
        Request(
            text="Where is `DurationError` raised, and with which texts?",
            steps=(
                Step(calls=(("search_text", {"pattern": "DurationError"}),)),
                Step(
                    calls=(("read_file", {"path": "durations/parsing.py", "first_line": 14, "last_line": 21}),),
                    needs=("raise DurationError",),
                ),
                Step(
                    say=(
                        "Only in `parse`, `durations/parsing.py` line 19, for a unit that is not in `UNITS_S`; the "
                        "text names the unit, the whole input, and the units there are."
                    ),
                    bucket="prose",
                    needs=("unknown unit",),
                ),
            ),
        ),
        Request(
            text="And how long are the two longest files?",
            steps=(
                Step(calls=(("list_files", {}),)),
                Step(
                    say="`durations/parsing.py`: 21 lines; `durations/rendering.py` and `tests/test_parsing.py`: 20.",
                    bucket="prose",
                    needs=("durations/parsing.py (21 lines)", "durations/rendering.py (20 lines)"),
                ),
            ),
        ),
    ),
)
