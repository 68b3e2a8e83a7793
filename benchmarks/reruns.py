"""How stored trials come out when they are measured again.

    python benchmarks/reruns.py [--engine emulator|llamacpp] [--trials 20] [--tries 1] [--repeats 3] [--slowdown 0.05]
        [--study FOLDER] [--out FILE]

A study is run in a folder of its own; then trials drawn from it are measured again, each as `rerun.trial=N` does, and
the outcomes are counted. With the emulator as many trials are measured once more on a machine that is `--slowdown`
slower, and one with another model file. `--tries` repeats the reruns of the same trials. `--study FOLDER` is where the
study is run, or was run before.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from dflash_sweep import app, rerun, settings
from dflash_sweep.errors import ConfigError
from dflash_sweep.records import Role
from dflash_sweep.store import Store

ROOT = Path(__file__).parents[1]
NAME = "again"
STUDIES = {
    "emulator": ("+study=ddtree", "n_trials=30"),
    "llamacpp": (
        "+study=llamacpp_cpu", "trace.path=prose", "n_trials=3", "replay.max_tokens=12", "space.threads=choice(1)",
        "protocol.baseline_repeats=3", "protocol.default_repeats=3", "protocol.confirm_blocks=0",
        "protocol.canary_every=0", "protocol.pruning=false",
    ),
}  # fmt: skip


def run_study(engine: str, folder: Path) -> None:
    """The study whose trials are measured again."""
    words = [sys.executable, str(ROOT / "sweep.py"), *STUDIES[engine], f"study_name={NAME}", "cluster=inline",
             "progress=plain", "report.formats=[png]"]  # fmt: skip
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def chosen(folder: Path, count: int) -> list[int]:
    """Numbers of `count` searched trials that have a figure, drawn once and for all."""
    with Store(f"sqlite:///{folder / 'studies.db'}", create=False) as store:
        rows = store.trials(NAME)
    good = [row.number for row in rows if row.role is Role.SEARCH and row.result.failure is None]
    return sorted(random.Random(7).sample(good, min(count, len(good))))


def again(folder: Path, number: int, *words: str) -> dict[str, Any]:
    """One rerun: the content of its rerun.json."""
    overrides = [f"rerun.trial={number}", "cluster=inline", "progress=quiet", *words]
    config = settings.merge(app.compose_overrides(app.normalise([f"study_name={NAME}", *overrides])))
    before = set(folder.glob("reports/*/rerun.json"))
    rerun.run_rerun(config, overrides, folder, folder / "sweeps" / f"{number}-{time.time_ns()}")
    (made,) = set(folder.glob("reports/*/rerun.json")) - before
    found: dict[str, Any] = json.loads(made.read_text())
    return found


def covers(found: dict[str, Any], side: str, ratio: float) -> bool:
    """True if the 95 % interval of the change holds `ratio`."""
    interval = (found[side] or {}).get("interval")
    return bool(interval) and interval["low"] is not None and interval["low"] <= ratio <= interval["high"]


def refused(folder: Path, number: int) -> str:
    """What is said of another model file; "" if it was measured."""
    (folder / "other.gguf").write_bytes(b"")
    try:
        again(folder, number, "engine.model=other.gguf")
    except ConfigError as error:
        return str(error)
    return ""


def counted(found: list[dict[str, Any]]) -> str:
    return ", ".join(f"{outcome} {count}" for outcome, count in Counter(entry["outcome"] for entry in found).items())


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def on_a_slower_machine(folder: Path, numbers: list[int], slowdown: float) -> dict[str, Any]:
    """The same trials on an emulated machine that became slower, and one with another model file."""
    slower = []
    for number in numbers:
        slower.append(again(folder, number, f"engine.options.slowdown={slowdown}"))
        say(f"slower, trial {number}: {slower[-1]['statement']}")
    ratio = 1 / (1 + slowdown)
    held = [sum(covers(entry, side, ratio) for entry in slower) for side in ("change", "plain")]
    say(
        f"{100 * slowdown:g} % slower: {counted(slower)} of {len(slower)}; intervals that cover "
        f"{100 * math.expm1(math.log(ratio)):.1f} %: of the trial {held[0]}, of plain decoding {held[1]}"
    )
    message = refused(folder, numbers[0])
    say(f"another model file: {message or 'MEASURED, not refused'}")
    return {"slower": slower, "covered": held, "refused": message}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=list(STUDIES), default="emulator")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slowdown", type=float, default=0.05)
    parser.add_argument("--study", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.study or Path(scratch)).resolve()
        if not (folder / "studies.db").is_file():
            run_study(arguments.engine, folder)
        numbers = chosen(folder, arguments.trials)
        unchanged: list[dict[str, Any]] = []
        for attempt in range(arguments.tries):
            for number in numbers:
                unchanged.append(again(folder, number, f"rerun.repeats={arguments.repeats}"))
                say(f"try {attempt + 1}, trial {number}: {unchanged[-1]['statement']}")
        say(f"unchanged: {counted(unchanged)} of {len(unchanged)}")
        result: dict[str, Any] = {"engine": arguments.engine, "trials": numbers, "unchanged": unchanged}
        if arguments.engine == "emulator":
            result |= on_a_slower_machine(folder, numbers, arguments.slowdown)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
