"""Trials, settings and times as words that fit a line. Pure; imports `records`, `watcher` and `report.wording`.

Nothing is cut inside a word or a number: what does not fit a line is left out whole, and "…" says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len

from dflash_sweep.records import Knobs, Role, StoredTrial, TrialSpec, VerdictStatus
from dflash_sweep.report.wording import factor, interval, knob_value, rate
from dflash_sweep.terminal.scene import Scene
from dflash_sweep.watcher import Best

MORE = "…"
_ROLES = {
    Role.BASELINE: "plain decoding",
    Role.CALIBRATE: "default setting",
    Role.SEARCH: "candidate",
    Role.CANARY: "plain decoding (canary)",
    Role.CONFIRM: "confirm candidate",
    Role.CONTROL: "plain decoding like candidate",
    Role.RERUN: "rerun",
}
STATUS_MARKS = {
    VerdictStatus.HOLDS: "●",
    VerdictStatus.DOES_NOT_HOLD: "○",
    VerdictStatus.NOT_ENOUGH_DATA: "·",
}


def fit(pieces: Sequence[str], width: int, gap: str = "  ") -> str:
    """As many leading pieces as fit into `width` cells, then "…" for those left out; the first is cut at a word."""
    kept: list[str] = []
    used = 0
    for index, piece in enumerate(pieces):
        room = width - used - (len(gap) if kept else 0)
        tail = cell_len(gap + MORE) if index + 1 < len(pieces) else 0
        if cell_len(piece) + tail <= room or (not tail and cell_len(piece) <= room):
            kept.append(piece)
            used += cell_len(piece) + (len(gap) if len(kept) > 1 else 0)
            continue
        kept.append(cut(piece, room) if not kept else MORE)
        break
    return gap.join(kept)


def cut(text: str, width: int) -> str:
    """A text in one line of at most `width` cells, cut between two words and closed by "…" where it is longer."""
    line = " ".join(text.split())
    if cell_len(line) <= width:
        return line
    kept: list[str] = []
    for word in line.split(" "):
        if cell_len(" ".join([*kept, word])) + 2 > width:
            break
        kept.append(word)
    return " ".join([*kept, MORE]) if kept else MORE


def first_sentence(text: str) -> str:
    """The statement without its explanation; points inside numbers and abbreviations do not end it."""
    match = re.search(r"(?<=[a-z0-9)\]])[.:;] (?=[A-Z])", text)
    return text if match is None else text[: match.start()] + "."


def knob_pieces(knobs: Knobs, axes: Sequence[str]) -> list[str]:
    """The knobs that are searched, in the study's order; fixed ones are the same in every line."""
    return [f"{name}={knob_value(knobs[name])}" for name in axes if knobs.get(name) is not None]


def who(role: Role, candidate: int | None, speculative: bool) -> str:
    """What a run is a run of."""
    if role is Role.CONFIRM and not speculative:
        return "confirm plain decoding"
    if role is Role.CANARY and speculative:
        return f"candidate {candidate} again (canary)"
    return _ROLES[role] + ("" if candidate is None else f" {candidate}")


def spec_pieces(spec: TrialSpec, scene: Scene) -> list[str]:
    """A running trial: what it is of, then its knobs."""
    return [
        who(spec.role, spec.candidate, spec.speculative),
        *_searched(spec.role, spec.speculative, spec.knobs, scene),
    ]


def _searched(role: Role, speculative: bool, knobs: Knobs, scene: Scene) -> list[str]:
    return knob_pieces(knobs, scene.axes) if speculative and role not in (Role.CONFIRM, Role.CANARY) else []


def trial_pieces(trial: StoredTrial, value: float | None, scene: Scene) -> list[str]:
    """A finished trial: what it is of, its figure or why it has none, then its knobs."""
    name = who(trial.role, trial.candidate, trial.speculative)
    failure = trial.result.failure
    if failure is not None:
        head = name if failure.kind.is_stop else f"{name}: {failure.kind} —"
        return [f"{head} {' '.join(failure.message.split())}"]
    figure = "no value" if value is None else f"{rate(value)} {scene.unit}"
    return [f"{name}: {figure}", *_searched(trial.role, trial.speculative, trial.knobs, scene)]


def best_pieces(best: Best | None) -> list[str]:
    """The best candidate so far, its interval if it has one, and how it stands to plain decoding."""
    if best is None:
        return ["no candidate yet"]
    ends = f" {interval(best.low, best.high)}" if best.low is not None and best.high is not None else ""
    card = f" on {best.device}" if best.device else ""
    pieces = [f"#{best.candidate}{card}: {rate(best.value)} {best.unit}{ends}"]
    if best.plain is None:
        return pieces
    if best.gain is None:
        return [*pieces, f"plain {rate(best.plain)} has other settings"]
    gain = f"{factor(best.gain)} "
    if best.gain_low is not None and best.gain_high is not None:
        gain += f"[{best.gain_low:.2f}, {best.gain_high:.2f}] "
    return [*pieces, f"{gain}of plain {rate(best.plain)}"]


def clock(seconds: float) -> str:
    """0:42, 12:05, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def about(seconds: float) -> str:
    """A time that is only estimated: 40 s, 12 min, 3.2 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
