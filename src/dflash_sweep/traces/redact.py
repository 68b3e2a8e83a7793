"""Takes secrets and personal data out of a trace and says what it found. Imports `sensitive`, `stand_ins`, records.

The same value gets the same stand-in everywhere in a trace, so that what refers to each other still does. The report
never holds a value, only its kind, how often it occurred and where it stood first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Trace, Turn
from dflash_sweep.traces import stand_ins
from dflash_sweep.traces.canonical import with_hash
from dflash_sweep.traces.sensitive import Finding, find

_WHOLE_WORD_MIN = 4
"""A home's name is also replaced where it stands alone, if it is at least this long."""


@dataclass(slots=True, kw_only=True)
class Found:
    """One value that was found: `where` is its first place, `count` its occurrences in the turns' own new texts."""

    kind: str
    grade: str
    stand_in: str
    where: str
    count: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """A redacted trace and what was replaced in it."""

    trace: Trace
    found: tuple[Found, ...]

    def lines(self) -> tuple[str, ...]:
        """The report as lines of text: no value is shown, only what stands for it."""
        if not self.found:
            return ("nothing found: no keys, tokens, e-mail addresses, homes, hosts or addresses",)
        return tuple(
            f"{one.kind} ({one.grade}): {one.count} × {one.length} characters, first at {one.where}, "
            f"now {_short(one.stand_in)}"
            for one in self.found
        )


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= 24 else f"{shown[:23]}…"


_MAX_PASSES = 4
"""Each pass makes one stand-in of what stands together; more than a few cannot follow one another."""


@dataclass(slots=True)
class _Replacer:
    """Replaces values in texts; remembers them by kind and value."""

    found: dict[tuple[str, str], Found] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def text(self, text: str, where: str) -> str:
        """The text with stand-ins. Neighbours without a gap can look like one new key: then that is replaced too."""
        text = self._once(text, where)
        for _ in range(_MAX_PASSES):
            if not any(finding.grade == "secret" for finding in find(text)):
                break
            text = self._once(text, where)
        return text

    def _once(self, text: str, where: str) -> str:
        pieces: list[str] = []
        at = 0
        for finding in sorted(find(text), key=lambda f: f.start):
            value = text[finding.start : finding.end]
            pieces += [text[at : finding.start], self._stand_in(finding, value, where)]
            at = finding.end
        return "".join(pieces) + text[at:]

    def _stand_in(self, finding: Finding, value: str, where: str) -> str:
        key = (finding.kind, value)
        if key not in self.found:
            number = self._numbers.get(finding.kind, 0)
            self._numbers[finding.kind] = number + 1
            made = _stand_in_for(finding.kind, value, number)
            self.found[key] = Found(
                kind=finding.kind, grade=finding.grade, stand_in=made, where=where, length=len(value)
            )
        self.found[key].count += 1
        return self.found[key].stand_in

    def names(self) -> dict[str, str]:
        """Names of homes that may stand alone elsewhere (a prompt, an author), with their stand-ins."""
        return {
            value: one.stand_in
            for (kind, value), one in self.found.items()
            if kind == "home" and len(value) >= _WHOLE_WORD_MIN
        }


def _stand_in_for(kind: str, value: str, number: int) -> str:
    match kind:
        case "home":
            return stand_ins.name_like(value, number)
        case "host":
            return stand_ins.host_like(number)
        case "e-mail":
            return stand_ins.email_like(number)
        case "IP address":
            return stand_ins.address_like(number)
        case _:
            return stand_ins.key_like(value, f"{kind} {number}")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value


class _TurnRedactor:
    """Redacts turns. A message shared by many turns is looked at once, so counts are those of the texts themselves."""

    def __init__(self) -> None:
        self.replacer = _Replacer()
        self._done: dict[int, tuple[Any, Any]] = {}

    def turn(self, turn: Turn) -> Turn:
        place = f"{turn.conversation} turn {turn.index}"
        return replace(
            turn,
            messages=tuple(self._once(message, f"{place}, {message.get('role')}") for message in turn.messages),
            tools=None if turn.tools is None else tuple(self._once(tool, f"{place}, tools") for tool in turn.tools),
            recorded=self._recorded(turn.recorded, f"{place}, answer"),
        )

    def _once(self, value: Any, where: str) -> Any:
        if id(value) not in self._done:
            changed = _mapped(value, lambda text: self.replacer.text(text, where))
            self._done[id(value)] = (value, changed)
        return self._done[id(value)][1]

    def _recorded(self, recorded: RecordedAnswer, where: str) -> RecordedAnswer:
        return _map_recorded(recorded, lambda text: self.replacer.text(text, where))


def _map_recorded(recorded: RecordedAnswer, change: Callable[[str], str]) -> RecordedAnswer:
    return replace(
        recorded,
        content=None if recorded.content is None else change(recorded.content),
        reasoning=None if recorded.reasoning is None else change(recorded.reasoning),
        tool_calls=_mapped(recorded.tool_calls, change),
    )


def _replace_words(turns: tuple[Turn, ...], names: dict[str, str]) -> tuple[Turn, ...]:
    if not names:
        return turns
    words = re.compile(r"\b(?:" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + r")\b")

    def change(text: str) -> str:
        return words.sub(lambda match: names[match.group()], text)

    done: dict[int, tuple[Any, Any]] = {}

    def once(value: Any) -> Any:
        if id(value) not in done:
            done[id(value)] = (value, _mapped(value, change))
        return done[id(value)][1]

    return tuple(
        replace(
            turn,
            messages=tuple(map(once, turn.messages)),
            tools=None if turn.tools is None else tuple(map(once, turn.tools)),
            recorded=_map_recorded(turn.recorded, change),
        )
        for turn in turns
    )


def redact(trace: Trace) -> Redacted:
    """The trace with stand-ins for everything that `sensitive.find` finds, header texts included; hash made anew."""
    redactor = _TurnRedactor()
    turns = tuple(redactor.turn(turn) for turn in trace.turns)
    header = replace(
        trace.header,
        name=redactor.replacer.text(trace.header.name, "header"),
        source=redactor.replacer.text(trace.header.source, "header"),
        note=None if trace.header.note is None else redactor.replacer.text(trace.header.note, "header"),
    )
    turns = _replace_words(turns, redactor.replacer.names())
    return Redacted(
        trace=with_hash(replace(trace, header=header, turns=turns)), found=tuple(redactor.replacer.found.values())
    )


def check_shareable(trace: Trace) -> None:
    """Refuse to hand out a trace with probable secrets. Raises TraceError with their kinds and places."""
    secrets = [one for one in redact(trace).found if one.grade == "secret"]
    if secrets:
        places = "; ".join(f"{one.kind} in {one.where}" for one in secrets[:5])
        more = f" and {len(secrets) - 5} more" if len(secrets) > 5 else ""
        raise TraceError(
            f"trace {trace.header.name} probably holds secrets ({places}{more}); "
            "`dflash-sweep traces redact` replaces them, then it can be shared"
        )
