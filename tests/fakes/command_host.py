"""Runs commands of the program in forked children of one process that has imported everything once.

Importing pandas, Optuna and matplotlib takes seconds; a documented command takes tenths. `python command_host.py` reads
one JSON object a line (kind, words, folder, environment, out, err) and answers with one: {"code": exit code}.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

LONGEST_S = 240
PRELOADED = (
    "dflash_sweep.app", "dflash_sweep.cli", "dflash_sweep.doctor", "dflash_sweep.exporting", "dflash_sweep.importing",
    "dflash_sweep.report", "dflash_sweep.run", "dflash_sweep.traces",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one command ended."""

    code: int
    out: str
    err: str


class Host:
    """The process that is forked for every command. Use as a context manager."""

    def __enter__(self) -> Host:
        words = [sys.executable, str(Path(__file__))]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=LONGEST_S)
        self._process.stdout.close()

    def run(self, kind: str, words: list[str], folder: Path, environment: dict[str, str] | None = None) -> Ended:
        """Run one command: `cli` = dflash-sweep, `app` = sweep.py, `module` = python -m."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = folder / ".out", folder / ".err"
        job = {
            "kind": kind, "words": words, "folder": str(folder), "environment": environment or {}, "out": str(out),
            "err": str(err),
        }  # fmt: skip
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the host of commands has died"
        return Ended(code=json.loads(answer)["code"], out=out.read_text(), err=err.read_text())


def _perform(kind: str, words: list[str]) -> int:
    if kind == "module":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return 0
    if kind == "app":
        from dflash_sweep.app import main

        sys.argv = ["sweep.py", *words]
        return main()
    from dflash_sweep.cli import main as command_line

    sys.argv = ["dflash-sweep", *words]
    command_line()
    return 0


def _child(job: dict[str, Any]) -> None:
    signal.alarm(LONGEST_S)
    os.chdir(job["folder"])
    os.environ.update(job["environment"])
    for number, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
        handle = os.open(path, os.O_RDWR | (0 if number == 0 else os.O_CREAT | os.O_TRUNC), 0o644)
        os.dup2(handle, number)
    code = 1
    try:
        code = _perform(job["kind"], job["words"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - this is where a command ends, however it does
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    for name in PRELOADED:
        __import__(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
