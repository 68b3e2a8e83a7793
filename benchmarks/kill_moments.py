"""Does a study come to the same end whatever is killed in it, and whenever?

    python benchmarks/kill_moments.py [--moments 50] [--who driver,machine,worker,server] [--seed 0]

Small emulated studies (virtual clock, no noise, random search) are disturbed at random moments, one kill each:

- driver: SIGKILL, then the study is taken up again by a new driver;
- machine: the same, and the stored rows say that the machine was started anew since: what was running must not be
  tried again;
- worker: SIGKILL of a Ray actor's process, one of two;
- server: SIGKILL of an emulated server.

Each must end with the same finished candidates as an undisturbed study, every run with exactly one result that counts,
Optuna and our own tables in agreement, no row left running and no server left behind. Exits with 1 if one does not.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import psutil
from optuna.trial import TrialState
from sqlalchemy import update

from dflash_sweep import app, leftovers, owner, pool, run, settings
from dflash_sweep.driver import Driver
from dflash_sweep.errors import FailureKind
from dflash_sweep.jobs import is_final
from dflash_sweep.records import Role, StoredTrial
from dflash_sweep.runner import Context
from dflash_sweep.seeds import derive
from dflash_sweep.store import Store
from dflash_sweep.tables import TrialRow
from dflash_sweep.watcher import Silent

KINDS = ("driver", "machine", "worker", "server")
RETRIES = 2
OVERRIDES = (
    "+study=ddtree", "trace=agent_short", "sampler=random", "engine.options.noise=0",
    "protocol.gate=false", "protocol.baseline_repeats=2", "protocol.default_repeats=1", "protocol.half_width=null",
    "protocol.confirm_top=1", "protocol.confirm_blocks=1", "protocol.canary_every=2", f"protocol.retries={RETRIES}",
)  # fmt: skip
CHOSEN_BY_VALUE = (Role.CONFIRM, Role.CONTROL, "incumbent")
"""Whom the confirm phase runs, and whether there is an incumbent to run again, depends on who had a value: a crashed
candidate is not confirmed."""

Run = tuple[str, int | None, int]
FORK = multiprocessing.get_context("fork")
"""A forked driver has everything imported already; it is made before any thread or Ray of this process."""


@dataclass
class Tally:
    """What became of the studies of one kind. `wrong`: sentences, one a study that came out differently."""

    studies: int = 0
    hit: int = 0
    again: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Place:
    """A folder with a database in which studies of this benchmark run."""

    def __init__(self, folder: Path, workers: int, candidates: int) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.url = folder, f"sqlite:///{folder / 'studies.db'}"
        self.workers, self.candidates = workers, candidates

    def context(self, name: str, store: Store, workers: pool.Pool | None = None) -> Context:
        own = {"study_name": name, "storage.url": self.url, "n_trials": self.candidates}
        words = [*OVERRIDES, *(f"{key}={value}" for key, value in own.items()), f"cluster.workers={self.workers}"]
        cfg = app.compose_overrides(app.normalise(words))
        chosen = settings.build(
            cfg, launch_dir=self.folder, run_dir=self.folder / "sweeps" / name, sampling_seed=derive(7, "sampling")
        )
        engine, preflight = run.prepare(chosen)
        return Context(
            settings=chosen, preflight=preflight, engine=engine, store=store,
            pool=workers or pool.InlinePool(preflight.devices[0]), watcher=Silent(), provenance={},
        )  # fmt: skip

    def play(self, name: str, workers: pool.Pool | None = None) -> None:
        """Run a study to its end, in this process."""
        with Store(self.url) as store:
            context = self.context(name, store, workers)
            try:
                Driver(context).run()
            finally:
                if workers is None:
                    context.pool.close()

    def rows(self, name: str) -> tuple[StoredTrial, ...]:
        with Store(self.url) as store:
            return store.trials(name)


def in_child(work: Callable[[], None], log: Path) -> Any:
    """A process of its own that does this; what it says goes to `log`."""

    def child() -> None:
        with log.open("a") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            try:
                work()
            except BaseException:  # noqa: BLE001 (a forked process must not go on in its parent's code)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        os._exit(0)

    process = FORK.Process(target=child)
    process.start()
    return process


# ---------------------------------------------------------------- what must hold


def final_runs(rows: tuple[StoredTrial, ...]) -> dict[Run, list[StoredTrial]]:
    found: dict[Run, list[StoredTrial]] = {}
    for row in rows:
        if is_final(row, RETRIES):
            found.setdefault(_run_of(row), []).append(row)
    return found


def _run_of(row: StoredTrial) -> Run:
    """Who is the incumbent depends on which of two workers was first: its canaries are counted, not named."""
    incumbent = row.role is Role.CANARY and row.speculative
    return ("incumbent", None, row.repeat) if incumbent else (str(row.role), row.candidate, row.repeat)


def _knobs(key: Run, row: StoredTrial) -> dict[str, Any]:
    return {} if key[0] == "incumbent" else row.knobs


def problems(place: Place, name: str, expected: dict[Run, dict[str, Any]], *, same_finalists: bool) -> list[str]:
    """What is not as in an undisturbed study, in words."""
    with Store(place.url) as store:
        rows, info, running = store.trials(name), store.study(name), store.running(name)
    found: list[str] = []
    if info is None or info.status != "finished":
        found.append(f"ended {info.status if info else 'nowhere'}: {info.stop_reason if info else ''}")
    if running:
        found.append(f"still running: {running}")
    if sorted(row.number for row in rows) != list(range(len(rows))):
        found.append("numbers are missing or given twice")
    final = final_runs(rows)
    found += [f"{key} counts {len(ended)} times" for key, ended in final.items() if len(ended) != 1]
    chosen = {str(role) for role in CHOSEN_BY_VALUE} if not same_finalists else set()
    ours = {key: _knobs(key, ended[0]) for key, ended in final.items() if key[0] not in chosen}
    wanted = {key: knobs for key, knobs in expected.items() if key[0] not in chosen}
    found += [f"{key} is missing" for key in wanted.keys() - ours.keys()]
    found += [f"{key} is not expected" for key in ours.keys() - wanted.keys()]
    found += [f"{key} has other knobs" for key in ours.keys() & wanted.keys() if ours[key] != wanted[key]]
    return [*found, *optuna_problems(place, name, rows)]


def optuna_problems(place: Place, name: str, rows: tuple[StoredTrial, ...]) -> list[str]:
    """Whether Optuna knows each candidate once, with the value that our row has."""
    searched = {row.candidate: row for row in rows if row.role is Role.SEARCH and is_final(row, RETRIES)}
    trials = optuna.load_study(study_name=name, storage=place.url).trials
    found = [
        f"Optuna's trial {trial.number} is {trial.state.name}" for trial in trials if not trial.state.is_finished()
    ]
    complete = {trial.number for trial in trials if trial.state is TrialState.COMPLETE}
    measured = {number for number, row in searched.items() if row.result.failure is None}
    if complete != measured:
        found.append(f"Optuna has values of {sorted(complete)}, the store of {sorted(n or 0 for n in measured)}")
    return found


def servers() -> list[psutil.Process]:
    """Processes of servers that were started with this benchmark's own folder for markers."""
    token = f"{leftovers.TOKEN_VARIABLE}="
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "dflash_sweep.emulator" in (process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error, OSError):
                environ = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
                if token in environ and f"TMPDIR={tempfile.gettempdir()}\0" in environ:
                    found.append(process)
    return found


def left_behind(patience_s: float = 20.0) -> list[str]:
    deadline = time.monotonic() + patience_s
    while (alive := servers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"server {process.pid} was left behind" for process in alive]


# ---------------------------------------------------------------- kills


def kill_driver(place: Place, name: str, moment_s: float, tally: Tally, *, reboot: bool) -> None:
    """One driver killed, another one that goes on."""
    log = place.folder / f"{name}.log"
    first = in_child(lambda: place.play(name), log)
    first.join(moment_s)
    tally.hit += first.exitcode is None
    if first.exitcode is None:
        os.kill(first.pid, signal.SIGKILL)
    first.join()
    if reboot:
        with Store(place.url) as store, store.session() as session:
            session.execute(update(TrialRow).where(TrialRow.study == name).values(owner=_before_the_boot()))
    second = in_child(lambda: place.play(name), log)
    second.join()
    if second.exitcode:
        tally.wrong.append(f"{name}: the driver that went on failed; see {log}")


def _before_the_boot() -> str:
    return owner.current().partition("@")[0] + "@an-earlier-start-of-this-machine"


def kill_beside(place: Place, name: str, moment_s: float, tally: Tally, workers: pool.Pool, what: str) -> None:
    """Run a study here while a thread kills one worker or one server, as soon as there is one after the moment."""
    over, rng = threading.Event(), random.Random(name)

    def kill() -> None:
        over.wait(moment_s)
        while not over.is_set():
            alive = servers() if what == "server" else actors()
            if alive:
                with contextlib.suppress(psutil.Error):
                    rng.choice(alive).kill()
                    tally.hit += 1
                    return
            over.wait(0.01)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        place.play(name, workers)
    except Exception as error:  # noqa: BLE001 (every other study is still to be disturbed)
        tally.wrong.append(f"{name}: {type(error).__name__}: {error}")
    finally:
        over.set()
        killer.join()


def actors() -> list[psutil.Process]:
    """Ray's processes of this process's workers."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("ray::Worker") or "ray::Worker" in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def crew(place: Place) -> Iterator[pool.Pool]:
    with Store(place.url) as store:
        devices = place.context("crew", store, pool.RecordedPool(())).preflight.devices
    with pool.make("ray", devices) as made:
        yield made


# ---------------------------------------------------------------- the whole


def undisturbed(place: Place, name: str, workers: pool.Pool | None) -> tuple[dict[Run, dict[str, Any]], float]:
    """The runs of a study that nobody disturbs, and how long it took, s."""
    began = time.monotonic()
    if workers is None:
        process = in_child(lambda: place.play(name), place.folder / f"{name}.log")
        process.join()
    else:
        place.play(name, workers)
    took_s = time.monotonic() - began
    expected = {key: _knobs(key, ended[0]) for key, ended in final_runs(place.rows(name)).items()}
    if len({key for key in expected if key[0] == str(Role.SEARCH)}) != place.candidates:
        raise SystemExit(f"the undisturbed study has not {place.candidates} candidates: see {place.folder}")
    return expected, took_s


def disturbed(
    place: Place, what: str, moments: int, seed: int, workers: pool.Pool | None, minutes: float = math.inf
) -> Tally:
    """As many studies as there are moments, or as the time allows."""
    tally, rng = Tally(), random.Random(f"{seed}/{what}")
    expected, first_s = undisturbed(place, f"{what}-whole", workers)
    whole_s = first_s
    if moments > 1:  # the first one reads everything from the disk
        again, second_s = undisturbed(place, f"{what}-again", workers)
        whole_s = min(first_s, second_s)
        if again != expected:
            raise SystemExit(f"two undisturbed studies differ: see {place.folder}")
    began = time.monotonic()
    for number in range(moments):
        if time.monotonic() - began > 60 * minutes:
            break
        name, moment_s = f"{what}-{number}", rng.uniform(0.0, 0.97 * whole_s)
        if workers is None:
            kill_driver(place, name, moment_s, tally, reboot=what == "machine")
        else:
            kill_beside(place, name, moment_s, tally, workers, what)
        tally.studies += 1
        for row in place.rows(name):
            if row.result.failure is not None and row.result.failure.kind is not FailureKind.OUT_OF_MEMORY:
                tally.again[str(row.result.failure.kind)] += 1
        same = what in ("driver", "worker")
        tally.wrong += [f"{name}: {text}" for text in problems(place, name, expected, same_finalists=same)]
        if workers is None:
            tally.wrong += [f"{name}: {text}" for text in left_behind()]
    tally.seconds = time.monotonic() - began
    return tally


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--trials", type=int, default=3, help="candidates of each study")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no further study of a kind after this time")
    parser.add_argument("--who", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder to work in, kept afterwards")
    given = parser.parse_args(argv)
    kinds = [kind for kind in KINDS if kind in given.who.split(",")]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dfs-kill-")))
        folder.mkdir(parents=True, exist_ok=True)
        own = folder / "tmp"
        own.mkdir(exist_ok=True)
        os.environ["TMPDIR"], tempfile.tempdir = str(own), str(own)
        tallies: dict[str, Tally] = {}
        for kind in (kind for kind in kinds if kind in ("driver", "machine")):
            place = Place(folder / kind, 1, given.trials)
            tallies[kind] = shown(kind, disturbed(place, kind, given.moments, given.seed, None, given.minutes))
        if rest := [kind for kind in kinds if kind in ("worker", "server")]:
            place = Place(folder / "beside", 2, given.trials)
            workers = stack.enter_context(crew(place))
            for kind in rest:
                tallies[kind] = shown(kind, disturbed(place, kind, given.moments, given.seed, workers, given.minutes))
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


def shown(kind: str, tally: Tally) -> Tally:
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(tally.again.items())) or "none"
    lines = [
        f"{kind:8} {tally.studies} studies, {tally.hit} kills while running, {len(tally.wrong)} differences; "
        f"failed attempts: {kinds}; {tally.seconds / max(1, tally.studies):.1f} s each",
        *(f"         {text}" for text in tally.wrong[:20]),
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    return tally


if __name__ == "__main__":
    sys.exit(main())
