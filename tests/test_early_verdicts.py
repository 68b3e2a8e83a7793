"""Conclusions while a study runs: new ones once, alarms only where they hold, and no harm done by a broken one."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_sweep.early_verdicts import LEAST_PAUSE_S, SHARE, EarlyVerdicts
from dflash_sweep.records import Verdict, VerdictStatus
from dflash_sweep.watcher import Silent
from fakes.scenes import spec, trial

HOLDS, FAILS, UNKNOWN = VerdictStatus.HOLDS, VerdictStatus.DOES_NOT_HOLD, VerdictStatus.NOT_ENOUGH_DATA


class Listener(Silent):
    def __init__(self) -> None:
        self.told: list[object] = []

    def phase(self, name: str, total: int) -> None:
        self.told.append(name)

    def verdict(self, verdict: Verdict) -> None:
        self.told.append((verdict.id, verdict.subject, verdict.status))


def found(name: str, status: VerdictStatus, subject: str = "study") -> Verdict:
    return Verdict(id=name, subject=subject, status=status, statement="…")


def course(*rounds: list[Verdict]) -> list[object]:
    """What is told when a run ends before each phase, and the rows then allow these conclusions."""
    listener = Listener()
    judged: Iterator[list[Verdict]] = iter(rounds)
    watcher = EarlyVerdicts(listener, lambda: next(judged))
    for number in range(len(rounds)):
        watcher.started(spec(number))
        watcher.finished(trial(number), 25.0, None)
        watcher.phase(f"phase {number}", 1)
    return listener.told


def test_a_conclusion_is_told_when_it_is_new_or_turns_round() -> None:
    told = course(
        [found("break_even", FAILS)], [found("break_even", FAILS, "another setting")], [found("break_even", HOLDS)]
    )
    assert told == [
        ("break_even", "study", FAILS), "phase 0", "phase 1", ("break_even", "study", HOLDS), "phase 2",
    ]  # fmt: skip


def test_what_is_not_known_or_not_urgent_waits_for_the_findings() -> None:
    assert course([found("break_even", UNKNOWN), found("sweet_spot", HOLDS), found("drift", FAILS)]) == ["phase 0"]


def test_an_alarm_is_told() -> None:
    assert course([found("drift", HOLDS)]) == [("drift", "study", HOLDS), "phase 0"]


def test_only_the_weightiest_of_an_id_is_told() -> None:
    told = course([found("structural_bound", HOLDS, "exact_ms"), found("structural_bound", FAILS, "verify_ms")])
    assert told == [("structural_bound", "exact_ms", HOLDS), "phase 0"]


def test_nothing_is_judged_before_a_run_has_ended() -> None:
    def never() -> list[Verdict]:
        raise AssertionError("judged without rows")

    listener = Listener()
    EarlyVerdicts(listener, never).phase("baseline", 3)
    assert listener.told == ["baseline"]


def test_a_defect_in_a_conclusion_does_not_end_the_study() -> None:
    def broken() -> list[Verdict]:
        raise ZeroDivisionError

    listener = Listener()
    watcher = EarlyVerdicts(listener, broken)
    watcher.finished(trial(0), 25.0, None)
    watcher.phase("search", 3)
    assert listener.told == ["search"]


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_within_a_phase_the_rows_are_judged_after_a_pause_and_only_where_no_server_is_busy() -> None:
    listener, clock = Listener(), Clock()

    def judge() -> list[Verdict]:
        clock.now_s += 3.0
        return [found("setting_not_applied", HOLDS), found("drift", HOLDS)]

    watcher = EarlyVerdicts(listener, judge, clock)

    def run(number: int, seconds: float) -> None:
        watcher.started(spec(number))
        clock.now_s += seconds
        watcher.finished(trial(number), 25.0, None)

    run(0, LEAST_PAUSE_S - 1)
    assert listener.told == []
    run(1, 2)
    assert listener.told == [("setting_not_applied", "study", HOLDS)]  # and no drift: that waits for the phase's end
    watcher.phase("confirm", 3)
    assert listener.told[1:] == [("drift", "study", HOLDS), "confirm"]

    looked = clock.now_s
    listener.told.clear()
    watcher._told.clear()
    run(2, 3.0 / SHARE - 1)  # judging took 3 s: the next look is 150 s later
    assert listener.told == []
    watcher.started(spec(3))
    watcher.started(spec(4))
    clock.now_s = looked + 3.0 / SHARE + 1
    watcher.finished(trial(3), 25.0, None)
    assert listener.told == []  # trial 4 is being measured
    watcher.finished(trial(4), 25.0, None)
    assert listener.told == [("setting_not_applied", "study", HOLDS)]
