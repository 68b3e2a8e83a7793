"""A watcher that keeps Optuna's side of a running study readable. It can only fail by being out of date.

Passes every event on first. A trial's own page is written when the trial ends, the study's page at intervals: the time
spent on it stays a small share of the study's. Whatever goes wrong here (a full disk, a locked database, a missing
package) is caught, logged, said once, and tried again later; the study goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_sweep import metrics
from dflash_sweep.metrics import pooled_decode_tps
from dflash_sweep.records import StoredTrial, StudyInfo, TrialSpec, Verdict
from dflash_sweep.report.texts import Texts, texts_for
from dflash_sweep.settings import Settings
from dflash_sweep.showcase import Progress, files_dir
from dflash_sweep.store import Store
from dflash_sweep.watcher import Best, Watcher

if TYPE_CHECKING:
    from dflash_sweep.showcase.optuna_side import Attributes, OptunaSide
    from dflash_sweep.showcase.study_note import Counted

_LOG = logging.getLogger(__name__)

LEAST_PAUSE_S = 5.0
SHARE = 0.05
"""The study's page is written again after LEAST_PAUSE_S, and so late that writing takes at most this share of time.
In between only its lead is: the phase, the counts, the best so far."""
LONGEST_WAIT_S = 120.0
"""So long the study's page waits for a moment in which nothing runs."""
FIRST_RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0
"""Pause after something went wrong; it doubles each time."""
_CATCH_UP = 5
"""Trials that were missed are made up for, so many at a time."""


class Curator:
    """Stands between the driver and the watcher that people see. Use as a context manager around the driver."""

    def __init__(
        self,
        inner: Watcher,
        store: Store,
        study: str,
        *,
        folder: Path,
        lang: str = "en",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner, self._store, self._clock = inner, store, clock
        self._name, self._folder = study, folder
        self._texts = texts_for(lang)
        self._side: OptunaSide | None = None
        self._held: Attributes | None = None
        self._folders: dict[str, Path] = {}
        self._missed: dict[str, tuple[StoredTrial, Path | None]] = {}
        self._runs: dict[int, list[StoredTrial]] | None = None
        self._plain_tps: list[float] = []
        self._phase, self._done, self._total = "starting", 0, 0
        self._best: Best | None = None
        self._counted: Counted | None = None
        self._note: str | None = None
        self._study_due = self._lead_due = self._usable_from = float("-inf")
        self._pause_s = FIRST_RETRY_S
        self._said = False

    def __enter__(self) -> Curator:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._missed:
            self._guarded(lambda: self._catch_up(len(self._missed)))
        self._drop()

    # ------------------------------------------------------------ events

    def phase(self, name: str, total: int) -> None:
        self._inner.phase(name, total)
        self._phase, self._done, self._total = name, 0, total

    def started(self, spec: TrialSpec) -> None:
        self._inner.started(spec)
        self._folders[spec.uid] = Path(spec.evidence_dir)

    def finished(self, trial: StoredTrial, value: float | None, best: Best | None) -> None:
        self._inner.finished(trial, value, best)
        self._done += 1
        self._best = best or self._best
        if self._counted is not None:
            self._counted = self._counted.more(trial)
        self._missed[trial.uid] = (trial, self._folders.pop(trial.uid, None))
        self._guarded(lambda: self._catch_up(_CATCH_UP))

    def note(self, text: str) -> None:
        self._inner.note(text)

    def verdict(self, verdict: Verdict) -> None:
        self._inner.verdict(verdict)

    # ------------------------------------------------------------ showing

    def _guarded(self, act: Callable[[], None]) -> None:
        """Do it if that may work; a failure costs the page, never the study."""
        if self._clock() < self._usable_from:
            return
        try:
            act()
            self._pause_s = FIRST_RETRY_S
        except Exception as error:  # noqa: BLE001 - the boundary: nothing that is only shown may stop a measurement
            _LOG.warning("Optuna's dashboard is not up to date", exc_info=error)
            self._usable_from = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_RETRY_S)
            self._drop()
            if not self._said:
                self._said = True
                self._inner.note(out_of_date(self._name, error))

    def _drop(self) -> None:
        side, self._side, self._runs, self._held = self._side, None, None, None
        if side is not None:
            with suppress(Exception):
                side.close()

    def _catch_up(self, count: int) -> None:
        """Show the newest trials that are not shown yet, then the study."""
        from dflash_sweep.showcase import hanging  # loads pandas and more: not before something is shown

        side = self._opened()
        if side is None:
            return
        runs = self._all_runs()
        for uid, (trial, folder) in list(self._missed.items())[: -count - 1 : -1]:
            if trial.candidate is not None and trial.speculative:
                study = self._store.study(self._name)
                assert study is not None, "a study with finished runs is stored"
                so_far = [run for run in runs[trial.candidate] if run.number <= trial.number]
                if self._held is None or len(runs) <= hanging.LARGE:
                    self._held = side.attributes()  # thousands take a while to read: then only with the study's page
                hanging.show_trial(
                    side, so_far, study, self._texts, plain_ms=self._plain_ms(), folder=folder, held=self._held
                )
            del self._missed[uid]
        self._show_study(side)

    def _opened(self) -> OptunaSide | None:
        """Optuna's study; None while it has none (a study without a search has no trials to show)."""
        from dflash_sweep.showcase.optuna_side import OptunaSide, storage_for  # a missing package is caught

        if self._side is None:
            storage = storage_for(self._store.url)
            try:
                self._side = OptunaSide(storage, self._name, self._folder)
            except KeyError:
                storage.engine.dispose()
        return self._side

    def _all_runs(self) -> dict[int, list[StoredTrial]]:
        """All runs by candidate. Those of an earlier driver are read once, those of this one come as they end."""
        known = {run.uid for runs in (self._runs or {}).values() for run in runs}
        if self._runs is None:
            self._runs, self._plain_tps = {}, []
            new = self._store.trials(self._name)
        else:
            new = tuple(trial for trial, _ in self._missed.values() if trial.uid not in known)
        for run in new:
            if run.candidate is not None:
                if run.speculative:  # plain decoding like a finalist is no run of the finalist
                    self._runs.setdefault(run.candidate, []).append(run)
            elif not run.speculative and (tps := pooled_decode_tps(run.result.turns)) is not None:
                self._plain_tps.append(tps)
        return self._runs

    def _plain_ms(self) -> float | None:
        if not self._plain_tps:
            return None
        return metrics.ratio(1000.0, sum(self._plain_tps) / len(self._plain_tps))

    def _show_study(self, side: OptunaSide) -> None:
        """The study's page if it is due, else how far the study is."""
        # drawing beside another worker's measurement would disturb it: wait for a gap, but not for ever
        due = self._study_due + (LONGEST_WAIT_S if self._folders else 0.0)
        if self._note is None or self._clock() >= due:
            self._show_all(side)
        elif self._clock() >= self._lead_due:
            self._lead_due = self._timed(partial(self._show_lead, side, self._note))

    def _show_all(self, side: OptunaSide) -> None:
        from dflash_sweep.report import material  # noqa: F401 - loading takes a second once: not counted as writing
        from dflash_sweep.showcase import charts, hanging  # noqa: F401
        from dflash_sweep.showcase.study_note import Counted

        def show() -> None:
            study = self._store.study(self._name)
            assert study is not None, "a study with finished runs is stored"
            stored = self._store.trials(self._name)
            self._counted = Counted.of(stored)
            self._note = hanging.show_running(side, study, stored, self._texts, self._progress())

        self._study_due = self._timed(show)
        self._lead_due = self._clock() + LEAST_PAUSE_S
        self._held = None

    def _show_lead(self, side: OptunaSide, note: str) -> None:
        from dflash_sweep.showcase import hanging

        assert self._counted is not None, "counted with the page"
        hanging.show_lead(side, note, self._counted, self._texts, self._progress())

    def _timed(self, show: Callable[[], None]) -> float:
        """Do it; when it may be done again, so that it takes a small share of the time."""
        began = self._clock()
        show()
        ended = self._clock()
        return ended + max(LEAST_PAUSE_S, (ended - began) / SHARE)

    def _progress(self) -> Progress:
        return Progress(
            phase=self._phase, done=self._done, total=self._total, best=_best_words(self._best, self._texts)
        )


def _best_words(best: Best | None, texts: Texts) -> str:
    if best is None:
        return ""
    ends = "" if best.low is None or best.high is None else f" [{best.low:.2f}, {best.high:.2f}]"
    plain = "" if best.plain is None else f"; {texts('plain')}: {best.plain:.2f}"
    card = f" ({best.device})" if best.device else ""
    return f"#{best.candidate}{card}: {best.value:.2f}{ends} {best.unit}{plain}"


@contextmanager
def curated(watcher: Watcher, store: Store, chosen: Settings, launch_dir: Path) -> Iterator[Watcher]:
    """The watcher, with a curator around it where the configuration wants one."""
    if not chosen.config.storage.dashboard:
        yield watcher
        return
    folder = files_dir(chosen.config.storage.files, chosen.storage_url, launch_dir)
    with Curator(watcher, store, chosen.study_name, folder=folder, lang=chosen.config.report.lang) as curator:
        yield curator


def concluded(
    store: Store,
    info: StudyInfo,
    chosen: Settings,
    launch_dir: Path,
    *,
    findings: Path,
    verdicts: Sequence[Verdict],
) -> str | None:
    """Write a study's pages for the last time; gives a sentence if that did not work, and raises nothing."""
    if not chosen.config.storage.dashboard:
        return None
    try:
        from dflash_sweep.showcase.publishing import number_of, publish

        if number_of(chosen.storage_url, info.name) is not None:
            folder = files_dir(chosen.config.storage.files, chosen.storage_url, launch_dir)
            section = chosen.config.report
            publish(store, info, folder=folder, lang=section.lang, report_dir=findings.parent, verdicts=verdicts)
    except Exception as error:  # noqa: BLE001 - the same boundary: the study is measured and its findings are written
        _LOG.warning("Optuna's dashboard is not up to date", exc_info=error)
        return out_of_date(info.name, error)
    return None


def out_of_date(study: str, error: Exception) -> str:
    """The one sentence about a failure to show something."""
    reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
    return (
        f"Optuna's dashboard is not up to date ({reason}); nothing measured is lost, and "
        f"`dflash-sweep dashboard {study}` writes what is missing."
    )
