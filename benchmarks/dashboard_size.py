"""How large a study the dashboard stays usable with: python benchmarks/dashboard_size.py [--trials 5000]

Stores so many trials with notes and files, and measures, beside a study of forty trials: what a finished trial costs
the driver, what an update of the study's page costs, how long the page's answers take, through this program's server
and through the dashboard's own, and what the findings cost in the end. Times are processor seconds, so that a busy
machine matters little; ratios travel between machines.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.artifacts import FileSystemArtifactStore
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial
from optuna_dashboard import wsgi
from sqlalchemy import text

from dflash_sweep import report
from dflash_sweep.evidence import TrialFiles
from dflash_sweep.objective import score
from dflash_sweep.records import (
    AxisInfo,
    Device,
    EngineBuild,
    EngineSettings,
    Exchange,
    LaunchSpec,
    Measurement,
    ReplayPolicy,
    Role,
    StageTime,
    StoredTrial,
    StudyInfo,
    Trace,
    TraceHeader,
    TrialResult,
    TrialSpec,
    TurnCounters,
    TurnRecord,
)
from dflash_sweep.report.texts import texts_for
from dflash_sweep.showcase import Progress, hanging
from dflash_sweep.showcase.curator import Curator
from dflash_sweep.showcase.linear import Completed, QuickStorage
from dflash_sweep.showcase.optuna_side import OWN_WORDS, OptunaSide, storage_for
from dflash_sweep.showcase.trial_note import trial_note
from dflash_sweep.store import Store
from dflash_sweep.watcher import Silent

BUDGETS, WINDOWS, TOP_K = tuple(range(4, 68, 4)), tuple(range(32, 1056, 64)), tuple(range(1, 21))
SPACE: dict[str, CategoricalDistribution] = {
    "budget": CategoricalDistribution(BUDGETS),
    "target_feat_ctx": CategoricalDistribution(WINDOWS),
    "top_k": CategoricalDistribution(TOP_K),
}
AXES = (
    AxisInfo(name="budget", kind="int", values=BUDGETS, ordered=True),
    AxisInfo(name="target_feat_ctx", kind="int", values=WINDOWS, ordered=True),
    AxisInfo(name="top_k", kind="int", values=TOP_K, ordered=True),
)
SMALL = 40
CURATED = 30
"""The last so many trials go through the curator, as in a running study; the others are written in bulk."""
TURNS = 2


class Bench:
    """One study of made-up runs, its curator, and its evidence on the disk."""

    def __init__(self, url: str, name: str, folder: Path) -> None:
        self.store, self.name, self.folder = Store(url), name, folder
        self.study = optuna.create_study(
            storage=url, study_name=name, direction="maximize", sampler=optuna.samplers.RandomSampler(seed=7)
        )
        self.store.save_study(
            StudyInfo(name=name, engine="emulator", measurement=Measurement.EMULATED, axes=AXES, n_trials=5000)
        )
        self.rng = random.Random(7)
        self.runs = self.files = 0
        self.clock = 0.0
        self.curator = Curator(Silent(), self.store, name, folder=folder / "artifacts", clock=lambda: self.clock)
        self.curator._study_due = float("inf")  # the study's page is measured apart

    def curated_s(self) -> float:
        """One run from ask to tell, as in a running study; processor seconds that the curator took of it."""
        asked = self.study.ask(dict(SPACE))
        trial, spec = self._stored(asked.number, dict(asked.params))
        self.curator.started(spec)
        began = time.process_time()
        self.curator.finished(trial, None, None)
        took = time.process_time() - began
        self.study.tell(asked, score(trial.result.turns, "decode_tps"))
        return took

    def fill(self, count: int) -> None:
        """So many finished trials with notes and files, written in bulk under the keys that the dashboard reads."""
        self._stored(None, {})
        notes = []
        info = self.store.study(self.name)
        assert info is not None
        for number in range(count):
            knobs = {name: self.rng.choice(axis.choices) for name, axis in SPACE.items()}
            trial, spec = self._stored(number, knobs)
            files = {
                f"artifacts:{self._artifact(name)}": json.dumps(self._meta(name))
                for name in ("server.log", "turns.jsonl", "stages.svg")
            }
            self.study.add_trial(
                create_trial(
                    value=score(trial.result.turns, "decode_tps"), params=knobs, distributions=dict(SPACE),
                    user_attrs={"tags": "emulated", "trial": trial.number, "measurement": "emulated"},
                    system_attrs=files,
                )
            )  # fmt: skip
            notes.append(trial_note([trial], info, texts_for("en"), plain_ms=25.0, folder=spec.evidence_dir))
        storage = storage_for(self.store.url)
        ids = {trial.number: trial._trial_id for trial in self.study.get_trials(deepcopy=False)}
        insert = text("INSERT INTO study_system_attributes (study_id, key, value_json) VALUES (:study, :key, :value)")
        with storage.engine.begin() as connection:
            for number, note in enumerate(notes):
                for key, value in (("note_ver", 1), ("note_str:0", note + OWN_WORDS)):
                    row = {"study": self.study._study_id, "key": f"dashboard:{ids[number]}:{key}"}
                    connection.execute(insert, {**row, "value": json.dumps(value)})

    def _artifact(self, name: str) -> str:
        self.files += 1
        return f"{self.files:08d}-0000-4000-8000-{zlib.crc32(name.encode()):012d}"

    def _meta(self, name: str) -> dict[str, Any]:
        return {"artifact_id": self._artifact(name), "filename": name, "mimetype": "text/plain", "encoding": None}

    def _stored(self, number: int | None, knobs: dict[str, Any]) -> tuple[StoredTrial, TrialSpec]:
        """A finished run in the store, with its evidence."""
        role = Role.BASELINE if number is None else Role.SEARCH
        uid = f"{self.name}/{role}/{self.runs}/0/0"
        evidence = self.folder / "evidence" / str(self.runs)
        spec = TrialSpec(
            uid=uid, study=self.name, role=role, candidate=number, speculative=number is not None, knobs=knobs,
            engine=EngineSettings(name="emulator"), build=EngineBuild(engine="emulator", version="1", binary="e"),
            trace=Trace(header=TraceHeader(name="t", source="made up"), turns=()), policy=ReplayPolicy(),
            evidence_dir=str(evidence),
        )  # fmt: skip
        turns = tuple(self._turn(order, knobs) for order in range(TURNS))
        files = TrialFiles(evidence)
        files.write_log(b"one line of a log that is not read\n" * 100)
        files.write_turns(turns)
        self.store.begin(spec, "bench", "k")
        result = TrialResult(
            uid=uid, measurement=Measurement.EMULATED, clock="virtual", turns=turns,
            device=Device(kind="emulated", index=0, name="made up"),
            launch=LaunchSpec(argv=("llama-server", "-m", "model.gguf", "--port", "40001") * 6),
        )  # fmt: skip
        self.store.finish(result, "k")
        self.runs += 1
        return self.store.trial(uid), spec

    def _turn(self, order: int, knobs: dict[str, Any]) -> TurnRecord:
        budget, window = int(knobs.get("budget", 0)), int(knobs.get("target_feat_ctx", 0))
        step_ms = (24.0 if not knobs else 30 + budget / 4 + window / 64) * self.rng.gauss(1, 0.01)
        steps, tokens = 60, 60 if not knobs else round(60 * (1.5 + min(budget, 32) / 32))
        counters = TurnCounters(
            output_tokens=tokens, decode_tokens=tokens, decode_ms=steps * step_ms, timing_source="json",
            verify_steps=steps if knobs else None, prompt_tokens=100, cached_tokens=0, prompt_ms=50.0,
            stages=(StageTime(name="draft_ms", total_ms=10.0 * steps),) if knobs else (),
        )  # fmt: skip
        return TurnRecord(
            conversation="c", index=order, bucket="code", order=order, counters=counters,
            exchange=Exchange(turn_index=order, send_ns=0, end_ns=10**9), prompt_sha256="p", text_sha256="t",
        )  # fmt: skip

    def update_s(self) -> float:
        """Seconds for one update of the study's page."""
        storage = storage_for(self.store.url)
        side = OptunaSide(storage, self.name, self.folder / "artifacts")
        info = self.store.study(self.name)
        assert info is not None
        began = time.process_time()
        stored: tuple[StoredTrial, ...] = self.store.trials(self.name)
        hanging.show_running(side, info, stored, texts_for("en"), Progress(phase="search", done=0, total=0))
        return time.process_time() - began

    def report_s(self) -> float:
        """Seconds for the findings of the finished study, pictures included."""
        info = self.store.study(self.name)
        assert info is not None
        began = time.process_time()
        report.write(info, self.store.trials(self.name), self.folder / "report")
        return time.process_time() - began


def answer_s(app: Callable[..., Any], path: str, query: str, times: int = 3) -> tuple[float, int]:
    """Median seconds of a request, and the bytes of its answer."""
    took, size = [], 0
    for _ in range(times):
        environ = {
            "PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": "GET", "SERVER_NAME": "x", "SERVER_PORT": "80",
            "HTTP_HOST": "127.0.0.1", "wsgi.input": io.BytesIO(), "wsgi.url_scheme": "http",
            "wsgi.errors": io.StringIO(), "SERVER_PROTOCOL": "HTTP/1.1",
        }  # fmt: skip
        began = time.process_time()
        size = len(b"".join(app(environ, lambda *_: None)))
        took.append(time.process_time() - began)
    return statistics.median(took), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5000)
    trials = parser.parse_args().trials
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = []
        for count in (SMALL, trials):  # each in a database of its own
            place = folder / str(count)
            place.mkdir()
            bench = Bench(f"sqlite:///{place / 'studies.db'}", "s", place)
            bench.fill(count - CURATED)
            costs = [bench.curated_s() for _ in range(CURATED)]
            rows.append(measured(bench, costs, count))
            print(f"{count} trials done", flush=True)  # noqa: T201
        show(rows)


def measured(bench: Bench, costs: list[float], count: int) -> dict[str, float]:
    """Every figure of one study."""
    update = bench.update_s()
    storage = QuickStorage(bench.store.url, {})
    store = FileSystemArtifactStore(bench.folder / "artifacts")
    remembered = optuna.storages.get_storage(storage)
    ours, own = Completed(wsgi(remembered, store), storage), wsgi(storage_for(bench.store.url), store)
    path = f"/api/studies/{bench.study._study_id}"
    whole, size = answer_s(ours, path, "after=0")
    return {
        "trials": count,
        "a finished trial, ms (median of the last 30)": 1000 * statistics.median(costs),
        "the study's page, s": update,
        "notes and figures read whole, s": whole,
        "the same, dashboard alone, s": answer_s(own, path, "after=0", times=1)[0],
        "a poll for new trials, s": answer_s(ours, path, f"after={count - 3}")[0],
        "answer, KiB": size / 1024,
        "findings of the finished study, s": bench.report_s(),
    }


def show(rows: list[dict[str, float]]) -> None:
    small, large = rows
    rule = f"{'processor time':48} {small['trials']:>9.0f} {large['trials']:>9.0f}   ratio"
    print(rule)  # noqa: T201
    for name in list(small)[1:]:
        print(f"{name:48} {small[name]:9.3f} {large[name]:9.3f} {large[name] / small[name]:7.1f}")  # noqa: T201


if __name__ == "__main__":
    main()
