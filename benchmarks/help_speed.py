"""How long every `--help` takes, as CPU time and as a ratio to `python -c pass`: `python benchmarks/help_speed.py`.

CPU time of the child (user and system), because a loaded machine changes wall time and not this. Each command is run
once cold (its pages dropped from what Python keeps: no bytecode is read) and then warm; warm is the median of five.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence

import typer

from dflash_sweep import cli

RUNS = 5


def commands() -> Iterator[list[str]]:
    """The words of every command and group."""

    def walk(command: object, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, child in sorted(getattr(command, "commands", {}).items()):
            yield from walk(child, [*words, name])

    yield from walk(typer.main.get_command(cli.app), [])


def cpu_s(words: Sequence[str], *, cold: bool) -> float:
    """CPU time of one run, s. Cold: modules are compiled again instead of read from their caches."""
    environ = dict(os.environ)
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if cold:
        environ |= {"PYTHONPYCACHEPREFIX": "/dev/null", "PYTHONDONTWRITEBYTECODE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def warm_s(words: Sequence[str]) -> float:
    """Median CPU time over RUNS runs after one that does not count, s."""
    cpu_s(words, cold=False)
    return statistics.median(cpu_s(words, cold=False) for _ in range(RUNS))


def main() -> None:
    """One line a command, the slowest last; then everything as JSON on the last line."""
    empty = warm_s(["-c", "pass"])
    rows = []
    for words in commands():
        call = ["-m", "dflash_sweep", *words, "--help"]
        rows.append(
            {"command": " ".join(["dflash-sweep", *words]), "cold_s": cpu_s(call, cold=True), "warm_s": warm_s(call)}
        )
    rows.sort(key=lambda row: float(str(row["warm_s"])))
    print(f"{'python -c pass':<34}                      {empty:6.3f} s")  # noqa: T201
    for row in rows:
        warm, cold = float(str(row["warm_s"])), float(str(row["cold_s"]))
        print(f"{row['command']:<34} cold {cold:6.3f} s  warm {warm:6.3f} s  {warm / empty:5.1f} times")  # noqa: T201
    print(json.dumps({"python_pass_s": empty, "rows": rows}))  # noqa: T201


if __name__ == "__main__":
    main()
