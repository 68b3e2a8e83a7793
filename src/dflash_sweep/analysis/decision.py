"""What the confirm blocks allow to say, and its words. Pure; imports `intervals`, `rows`, `sentences`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.rows import knobs_of, setting_text
from dflash_sweep.analysis.sentences import Sentence, listed, say
from dflash_sweep.records import Knobs

BEST_MEAN = "best mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the confirm blocks allow to say.

    `outcome`: winner (one setting is better than every other finalist), not_distinguishable or not_enough_data.
    `winner` is a candidate number; `contenders` are the settings that may be the best, best mean first (only the winner
    if there is one). `cheapest` is the contender to take when they cannot be told apart, by the figure in
    `cheapest_by`. `value` is the mean of the winner (else of the best contender) and `speedup` its ratio to plain
    decoding over the same blocks, both adjusted for the number of finalists and looks (half of the level is for which
    setting, half for plain decoding) and lowered by what chance adds to the best of several (see `flattery`). Where
    plain decoding also ran with the setting's own threads, cache types and the like (role control) and was faster so,
    that is what it is compared with: `control` holds its knobs, `apart` those that the baseline has otherwise.
    `unlike`: the settings of plain decoding where all of it ran with others than the setting's own (see likeness), so
    that the gain may be theirs; None = it did not. `beats_plain`: by these intervals, None = undecided, unlike, or no
    plain rows. `finished`: another planned block would not be used. With one of `finalists` nothing is better
    than but plain decoding. `devices`: where the blocks ran on devices of several names, the decision of each; the
    whole then has a winner only if it is the same on all of them, and no figure of its own.
    """

    outcome: str
    statement: str
    winner: int | None = None
    contenders: tuple[int, ...] = ()
    cheapest: int | None = None
    cheapest_by: str | None = None
    value: Interval | None = None
    speedup: Interval | None = None
    control: Knobs | None = None
    apart: Knobs = field(default_factory=dict)
    unlike: str | None = None
    beats_plain: bool | None = None
    blocks: int = 0
    finalists: int = 0
    alpha: float = 0.05
    finished: bool = False
    devices: tuple[tuple[str, Decision], ...] = ()


def worded(decision: Decision, rows: pd.DataFrame) -> Decision:
    """The decision with its statement; `rows` name the settings of its contenders."""
    names = {number: _named(rows, number) for number in decision.contenders}
    if decision.winner is not None:
        one, several = say("it was the only finalist"), "better than each of {count} other finalists"
        text = say(
            "Best finalist: {setting}, {rivals} over {blocks} blocks, but {speed}."
            if decision.beats_plain is False
            else "Winner: {setting}, {rivals} over {blocks} blocks; {speed}.",
            setting=names[decision.winner],
            rivals=one if decision.finalists == 1 else say(several, count=decision.finalists - 1),
            blocks=decision.blocks,
            speed=_speed_words(decision),
        )
    else:
        text = say(
            "Not distinguishable after {blocks} blocks: these {count} settings: {settings}. Take {cheapest} ({why}). "
            "The best of them: {speed}.",
            blocks=decision.blocks,
            count=len(names),
            settings=listed(names.values(), "; "),
            cheapest=names[decision.cheapest] if decision.cheapest is not None else say("any"),
            why=say(decision.cheapest_by or BEST_MEAN),
            speed=_speed_words(decision),
        )
    return replace(decision, statement=text)


def _named(rows: pd.DataFrame, number: int) -> Sentence:
    row = rows[rows["candidate"] == number].iloc[0]
    return say("candidate {number} ({setting})", number=number, setting=setting_text(knobs_of(row)))


def _speed_words(decision: Decision) -> Sentence:
    gain = decision.speedup
    if gain is None:
        return say("no plain rows in the blocks")
    no_ends = gain.low is None or gain.high is None
    known = {
        True: say("faster than plain decoding"),
        False: say("slower than plain decoding"),
        None: say("plain decoding undecided"),
    }
    like = setting_text(decision.apart) if decision.apart else decision.unlike or ""
    if decision.unlike is not None and gain.excludes(1.0):
        known[None] = say("how much of that is speculation's is not known, plain decoding did not run like it")
    return say(
        "{ratio:.3f} times plain decoding{like} {ends}: {outcome}",
        ratio=gain.value,
        like=say(" with {setting}", setting=like) if like else "",
        ends=say("no interval") if no_ends else f"[{gain.low:.3f}, {gain.high:.3f}]",
        outcome=known[decision.beats_plain],
    )
