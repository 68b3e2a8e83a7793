"""A request to stop is never lost and never tears anything; a second one is raised at once."""

from __future__ import annotations

import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_sweep import app
from dflash_sweep.driver import Driver
from dflash_sweep.interrupts import Interrupts
from dflash_sweep.records import TrialSpec
from fakes.studying import Bench, Notes, Says

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def ask(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def swallowed() -> None:
    """A request that comes inside a weak reference's callback, from where nothing can be raised."""

    class Referent:
        pass

    referent = Referent()
    reference = weakref.ref(referent, lambda _: ask())
    del referent
    assert reference() is None


@contextmanager
def quiet(hook: Callable[[object], None]) -> Iterator[None]:
    """What Python says of exceptions that it cannot raise goes to `hook`."""
    before, sys.unraisablehook = sys.unraisablehook, hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_outside_a_wait_a_request_is_kept_until_the_next_one(number: int) -> None:
    with Interrupts() as interrupts:
        with interrupts.raised():
            pass
        assert not interrupts.asked()
        ask(number)
        assert interrupts.asked()
        with pytest.raises(KeyboardInterrupt), interrupts.raised():
            pytest.fail("the wait began")


def test_in_a_wait_it_is_raised_at_once() -> None:
    def wait() -> None:
        ask()
        pytest.fail("the wait went on")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.raised():
        wait()


def test_one_that_python_swallowed_is_raised_when_the_wait_is_over() -> None:
    lost: list[object] = []
    with quiet(lost.append), Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.raised():
        swallowed()
    assert len(lost) == 1


def test_a_second_one_is_raised_wherever_it_comes() -> None:
    with Interrupts():
        ask()
        with pytest.raises(KeyboardInterrupt):
            ask()


def test_the_former_handlers_come_back_and_an_ignored_one_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        with Interrupts() as interrupts:
            ask(signal.SIGINT)
            assert not interrupts.asked()
            assert signal.getsignal(signal.SIGTERM) != terminate
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == terminate
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["in a trial", "while a result is told", "between two phases"])
def test_a_study_ends_with_all_it_has_though_the_request_was_swallowed(tmp_path: Path, where: str) -> None:
    class Asking(Notes):
        def finished(self, *_: object) -> None:
            if where == "while a result is told":
                swallowed()

        def phase(self, name: str, total: int) -> None:
            super().phase(name, total)
            if where == "between two phases" and name == "calibrate":
                swallowed()

    def measure(_spec: TrialSpec) -> Says:
        if where == "in a trial":
            swallowed()
        return Says()

    bench, lost = Bench(tmp_path, measure), list[object]()
    with quiet(lost.append), bench.context() as context, context.interrupts, pytest.raises(KeyboardInterrupt):
        Driver(replace(context, watcher=Asking())).run()
    stored = bench.trials()
    assert len(stored) == {"in a trial": 0, "while a result is told": 1, "between two phases": 2}[where]
    again = bench.drive()
    assert again.status == "finished"
    assert len(bench.trials()) > 6
    assert len({trial.uid for trial in bench.trials()}) == len(bench.trials())


def test_before_and_after_a_study_sigterm_is_ctrl_c_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    former = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)

    def begun(*_: object) -> int:
        ask(signal.SIGTERM)
        pytest.fail("the run went on")

    assert app.main(["+study=ddtree"], begun) == 130
    assert signal.getsignal(signal.SIGTERM) == former
