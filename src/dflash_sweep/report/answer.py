"""The one sentence a study was run for, and the command that follows from it.

Imports `analysis.decision`, `records` and `report` siblings. A winner is named only from interleaved confirm blocks;
the highest figure of a search is never called one.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from dflash_sweep.analysis import eligibility, rows
from dflash_sweep.analysis.decision import Decision
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.records import Knobs, StoredTrial, VerdictStatus
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.translation import translated
from dflash_sweep.report.wording import factor, interval, knob_text, rate

NEIGHBOURS = 8
"""A setting is described by the knobs in which it and so many best settings differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`outcome`: nothing, all_failed, only_plain, winner, plain_wins, tie or search_only.

    `run` is the setting whose command line follows; `is_advice` False = it is only the highest figure so far.
    `numbers` are the trials the sentence rests on; `n` counts their runs (blocks, where blocks decided).
    """

    outcome: str
    statement: str
    run: Candidate | None = None
    is_advice: bool = False
    value: Interval | None = None
    speedup: Interval | None = None
    n: int = 0
    numbers: tuple[int, ...] = ()


def decision(material: Material) -> Decision:
    """What the confirm blocks of the study's own rows allow to say, looked at as often as the study looked at them."""
    return eligibility.decision(material.confirmed, material.turns, material.study)


def answer(material: Material, texts: Texts) -> Answer:
    """The study's answer, also for studies without rows, without baseline, or with failures only."""
    if material.trials.empty:
        return Answer(outcome="nothing", statement=texts("answer.nothing"))
    if not material.everyone:
        failed = int(rows.failed(material.trials).sum())
        total = len(material.trials)
        return Answer(outcome="all_failed", statement=texts("answer.all_failed", failed=failed, total=total))
    if not material.candidates:
        return _only_plain(material, texts)
    if not material.eligible and material.baseline is not None:
        return _none_eligible(material, texts)
    reached = decision(material)
    found = _decided(material, texts, reached)
    speculative = found.run is not None and found.run.speculative
    named = reached.contenders if found.outcome in ("winner", "tie") else (found.run.number,) if found.run else ()
    said = eligibility.remarks(
        material.turns,
        [number for number in named if number is not None] if speculative else [],
        _barred_late(material),
    )
    words = [found.statement, *(translated(sentence, texts.lang) for sentence in said)]
    return replace(found, statement=texts("space").join(words))


def _barred_late(material: Material) -> dict[int, str]:
    """Finalists that turned out not to keep a constraint; those of the search are counted among the assumptions."""
    confirm = material.own[material.own["role"].map(str) == "confirm"]
    again = set(confirm["candidate"].dropna().map(int))
    return {number: why for number, why in material.barred.items() if number in again}


def _decided(material: Material, texts: Texts, reached: Decision) -> Answer:
    if reached.devices:
        return _by_device(material, texts, reached)
    if reached.outcome == "winner" and (found := _numbered(material, reached.winner)):
        return _winner(material, texts, reached, found)
    if reached.outcome == "not_distinguishable" and (found := _numbered(material, reached.cheapest)):
        return _tie(material, texts, reached, found)
    return _search_only(material, texts)


def _by_device(material: Material, texts: Texts, reached: Decision) -> Answer:
    """Devices of several names: what each decided. Advice only where all of them agree; no figure is pooled."""
    numbers = tuple(sorted(int(number) for number in material.trials.loc[_confirm_rows(material), "number"]))
    statement = translated(reached.statement, texts.lang)
    fields: dict[str, Any] = {"statement": statement, "n": reached.blocks, "numbers": numbers}
    if reached.beats_plain is False and material.baseline is not None:
        return Answer(outcome="plain_wins", run=material.baseline, is_advice=True, **fields)
    best = next((number for number in (reached.winner, *reached.contenders) if number is not None), None)
    won = reached.winner is not None
    return Answer(outcome="winner" if won else "tie", run=_numbered(material, best), is_advice=won, **fields)


def _confirm_rows(material: Material) -> pd.Series:
    return material.trials["role"].map(str).isin(("confirm", "control")) & ~rows.failed(material.trials)


def _cited(material: Material, reached: Decision) -> tuple[int, ...]:
    """The rows that a decision rests on: those of its contenders and of plain decoding in the confirm blocks."""
    blocks = material.trials[_confirm_rows(material)]
    own = ~blocks["speculative"].astype(bool) | blocks["candidate"].isin(reached.contenders)
    return tuple(sorted(int(number) for number in blocks.loc[own, "number"]))


def _numbered(material: Material, number: int | None) -> Candidate | None:
    return next((entry for entry in material.candidates if entry.number == number), None)


def setting_name(entry: Candidate, texts: Texts, material: Material) -> str:
    """ "#19 (budget=22 chain_seed=true)": a candidate by name and by what tells it from the best others."""
    names = material.differing([*material.candidates[:NEIGHBOURS], entry])
    alone = tuple(name for name, value in entry.knobs.items() if value is not None)
    knobs = knob_text(entry.knobs, names or alone, joiner=" ")
    head = material.name(entry, texts)
    return texts("named", head=head, knobs=knobs) if knobs and entry.speculative else head


def _figure(value: Interval | None, unit: str, texts: Texts, over: str = "ends") -> str:
    if value is None:
        return f"— {unit}"
    return texts("figure", value=f"{rate(value.value)} {unit}", ends=_ends(value, texts, over))


def _ends(value: Interval, texts: Texts, over: str) -> str:
    """`over`: the text for what the level holds for; "ends" = this figure alone, "ends_all" = all that was compared."""
    if value.low is None or value.high is None:
        return texts("no_interval")
    return texts(over, ends=interval(value.low, value.high))


def _gain(
    gain: Interval | None, texts: Texts, apart: Knobs | None = None, unlike: str | None = None, over: str = "ends"
) -> str:
    """`apart`: the knobs of a control that the baseline has otherwise; `unlike`: the settings of plain decoding where
    it had none of the setting's own (see `decision.Decision`)."""
    if gain is None:
        return texts("answer.no_plain")
    fields = {"factor": factor(gain.value), "ends": _ends(gain, texts, over)}
    if unlike is not None:
        return texts("answer.gain_unlike", settings=unlike, **fields)
    if not apart:
        return texts("answer.gain", **fields)
    return texts("answer.gain_over_control", knobs=knob_text(apart, joiner=" "), **fields)


def _only_plain(material: Material, texts: Texts) -> Answer:
    plain = material.baseline
    assert plain is not None, "without candidates the only setting is plain decoding"
    figure = _figure(plain.result, material.metric.unit, texts)
    return Answer(
        outcome="only_plain", statement=texts("answer.only_plain", figure=figure, n=plain.n), run=plain, is_advice=True,
        value=plain.result, n=plain.n, numbers=plain.numbers,
    )  # fmt: skip


def _none_eligible(material: Material, texts: Texts) -> Answer:
    plain = material.baseline
    assert plain is not None, "asked for only where there is one"
    why = translated(next(iter(material.barred.values())), texts.lang)
    figure = _figure(plain.result, material.metric.unit, texts)
    return Answer(
        outcome="plain_wins", statement=texts("answer.none_eligible", why=why, figure=figure, n=plain.n), run=plain,
        is_advice=True, value=plain.result, n=plain.n, numbers=plain.numbers,
    )  # fmt: skip


def _winner(material: Material, texts: Texts, reached: Decision, found: Candidate) -> Answer:
    fields = {
        "name": setting_name(found, texts, material), "blocks": reached.blocks,
        "gain": _gain(reached.speedup, texts, reached.apart, reached.unlike, "ends_all"),
        "figure": _figure(reached.value, material.metric.unit, texts, "ends_all"),
    }  # fmt: skip
    if reached.beats_plain is False and material.baseline is not None:
        return _plain_wins(material, texts("answer.plain_wins", **fields), reached)
    tail = texts("answer.pays") if reached.beats_plain else texts("answer.undecided") if reached.speedup else ""
    statement = texts("space").join(part for part in (texts("answer.winner", **fields), tail) if part)
    return Answer(
        outcome="winner", statement=statement, run=found, is_advice=True,
        value=reached.value, speedup=reached.speedup, n=reached.blocks, numbers=_cited(material, reached),
    )  # fmt: skip


def _tie(material: Material, texts: Texts, reached: Decision, found: Candidate) -> Answer:
    fields = {
        "names": ", ".join(texts("candidate", number=number) for number in reached.contenders),
        "count": len(reached.contenders), "blocks": reached.blocks, "name": setting_name(found, texts, material),
        "reason": texts(f"cheapest.{(reached.cheapest_by or 'best mean').replace(' ', '_')}"),
        "gain": _gain(reached.speedup, texts, reached.apart, reached.unlike, "ends_all"),
    }  # fmt: skip
    if reached.beats_plain is False and material.baseline is not None:
        return _plain_wins(material, texts("answer.plain_beats_tie", **fields), reached)
    return Answer(
        outcome="tie", statement=texts("answer.tie", **fields), run=found, is_advice=True, value=reached.value,
        speedup=reached.speedup, n=reached.blocks, numbers=_cited(material, reached),
    )  # fmt: skip


def _plain_wins(material: Material, statement: str, reached: Decision) -> Answer:
    plain = material.control(reached.control) if reached.control is not None else material.baseline
    assert plain is not None, "plain decoding cannot win unmeasured"
    return Answer(
        outcome="plain_wins", statement=statement, run=plain, is_advice=True, value=plain.result,
        speedup=reached.speedup, n=reached.blocks, numbers=_cited(material, reached),
    )  # fmt: skip


def _search_only(material: Material, texts: Texts) -> Answer:
    """Without confirm blocks: plain decoding can be shown to win, a speculative setting cannot."""
    best, plain = material.eligible[0], material.baseline
    if plain is not None and _loses(best, material):
        # the best figure of a search is biased in its favour: if even it loses, that can be said
        return _plain_wins_search(material, texts, best, "answer.plain_beats_search")
    bound = material.verdict("structural_bound")
    repeated = next((entry for entry in material.eligible if entry.n > 1), best)
    if plain is not None and bound is not None and bound.status is VerdictStatus.HOLDS:
        key = "answer.plain_beats_space" if repeated.n > 1 else "answer.plain_beats_space_once"
        return _plain_wins_search(material, texts, repeated, key)
    return Answer(
        outcome="search_only", statement=texts("answer.search_only", **_search_fields(material, texts, best)), run=best,
        value=best.result, speedup=best.gain, n=best.n, numbers=best.numbers,
    )  # fmt: skip


def _search_fields(material: Material, texts: Texts, entry: Candidate) -> dict[str, str | int]:
    return {
        "name": setting_name(entry, texts, material), "figure": _figure(entry.result, material.metric.unit, texts),
        "n": entry.n,
        "gain": _gain(entry.gain, texts, unlike=material.plain_settings if entry.unlike else None),
    }  # fmt: skip


def _plain_wins_search(material: Material, texts: Texts, entry: Candidate, key: str) -> Answer:
    plain = material.baseline
    assert plain is not None, "plain decoding cannot win unmeasured"
    return Answer(
        outcome="plain_wins", statement=texts(key, **_search_fields(material, texts, entry)), run=plain, is_advice=True,
        value=plain.result, speedup=entry.gain, n=entry.n, numbers=(*entry.numbers, *plain.numbers),
    )  # fmt: skip


def _loses(best: Candidate, material: Material) -> bool:
    if best.speedup_low is None or best.speedup_high is None:
        return False
    return best.speedup_high < 1 if material.larger_is_better else best.speedup_low > 1


def launch_trial(entry: Candidate | None, stored: Sequence[StoredTrial]) -> StoredTrial | None:
    """The last good run of a setting whose command line is known."""
    if entry is None:
        return None
    known = [trial for trial in stored if trial.uid in entry.uids and trial.result.launch is not None]
    return known[-1] if known else None


def command_line(trial: StoredTrial) -> str | None:
    """The command that a run was launched with, quoted for a shell, its added environment in front."""
    launch = trial.result.launch
    if launch is None or not launch.argv:
        return None
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(launch.env.items())]
    return " ".join([*variables, shlex.join(launch.argv)])
