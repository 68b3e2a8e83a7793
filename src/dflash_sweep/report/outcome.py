"""A study's answer as one record: the sentence, the settings it rests on, the command that follows from it.

Imports `records`, `analysis` and `report` siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.records import StoredTrial, StudyInfo, Verdict
from dflash_sweep.report.answer import Answer, answer, command_line, launch_trial
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.texts import Texts, texts_for
from dflash_sweep.report.wording import knob_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting over its good runs, `n` of them. `value` in the outcome's unit; `gain` the ratio to plain decoding,
    None also where that ran with other threads, cache types and the like only.

    `knobs` are those in which the best settings differ, as "name=value". None = not known. `advised`: the answer's;
    `finalist`: measured again in confirm blocks.
    """

    name: str
    speculative: bool
    knobs: tuple[str, ...]
    n: int
    value: Interval | None
    gain: Interval | None
    acceptance_length: float | None
    step_ms: float | None
    advised: bool
    finalist: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`outcome` as in `answer.Answer`; `settings` the best first, plain decoding among them.

    `command` None: nothing is advised (the highest figure of a search is no winner), or it is not known.
    """

    outcome: str
    statement: str
    is_advice: bool
    candidate: int | None
    unit: str
    settings: tuple[Setting, ...]
    command: str | None


def _setting(entry: Candidate, material: Material, found: Answer, names: Sequence[str], texts: Texts) -> Setting:
    knobs = tuple(f"{name}={knob_value(entry.knobs.get(name))}" for name in names) if entry.speculative else ()
    return Setting(
        name=material.name(entry, texts),
        speculative=entry.speculative,
        knobs=knobs,
        n=entry.n,
        value=entry.result,
        gain=None if entry.unlike else entry.gain,
        acceptance_length=entry.acceptance_length,
        step_ms=entry.step_ms,
        advised=found.is_advice and found.run is entry,
        finalist=entry in material.finalists,
    )


def outcome(study: StudyInfo, trials: Sequence[StoredTrial], verdicts: Sequence[Verdict] | None = None) -> Outcome:
    """The answer of a study from its rows; `verdicts` None = the rows are judged here."""
    texts = texts_for("en")
    material = collect(study, trials, verdicts)
    found = answer(material, texts)
    trial = launch_trial(found.run, material.stored) if found.is_advice else None
    names = material.differing(material.candidates)
    return Outcome(
        outcome=found.outcome,
        statement=found.statement,
        is_advice=found.is_advice,
        candidate=None if found.run is None else found.run.number,
        unit=material.metric.unit,
        settings=tuple(
            _setting(entry, material, found, names, texts)
            for entry in material.everyone
            if entry.number not in material.barred
        ),
        command=None if trial is None else command_line(trial),
    )
