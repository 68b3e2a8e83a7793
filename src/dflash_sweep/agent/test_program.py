"""Runs a repository's unit tests and prints one line for each that did not pass. A script; imports nothing of ours.

Usage: test_program.py ROOT [MODULE]. Unlike unittest's own text it names no absolute path and no running time.
"""

from __future__ import annotations

import os
import sys
import traceback
import types
import unittest
from typing import TypeAlias

_Caught: TypeAlias = tuple[type[BaseException], BaseException, types.TracebackType]


class _Lines(unittest.TestResult):
    def __init__(self, root: str) -> None:
        super().__init__()
        self.root = root
        self.rows: list[str] = []
        self.failed: set[str] = set()

    def _add(self, word: str, test: unittest.TestCase, err: _Caught) -> None:
        kind, error, trace = err
        place = self._place(trace)
        text = (str(error).strip().splitlines() or [""])[0]
        self.failed.add(test.id().split(" ")[0])
        self.rows.append(f"{word} {test.id()} at {place}: {kind.__name__}: {text}")

    def _place(self, trace: types.TracebackType | None) -> str:
        own = [f for f in traceback.extract_tb(trace) if f.filename.startswith(self.root + os.sep)]
        return f"{os.path.relpath(own[-1].filename, self.root)}:{own[-1].lineno}" if own else "?"

    def addFailure(self, test, err):  # type: ignore[no-untyped-def]
        super().addFailure(test, err)
        self._add("FAILED", test, err)

    def addError(self, test, err):  # type: ignore[no-untyped-def]
        super().addError(test, err)
        self._add("ERROR", test, err)

    def addSubTest(self, test, subtest, err):  # type: ignore[no-untyped-def]
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._add("FAILED", subtest, err)


def main() -> int:
    root = os.path.realpath(sys.argv[1])
    sys.path.insert(0, root)
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromName(sys.argv[2]) if len(sys.argv) > 2 else loader.discover(root, top_level_dir=root)
    result = _Lines(root)
    suite.run(result)
    rows = [*result.rows, f"{result.testsRun - len(result.failed)} passed, {len(result.failed)} failed"]
    sys.stdout.write("\n".join(rows) + "\n")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
