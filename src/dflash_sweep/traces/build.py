"""From a file in any known format to a canonical trace, with an account of everything left out or changed.

Imports the importers, the normaliser, `canonical`, `records` and `errors`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.traces.buckets import bucket_of, estimated_tokens, message_chars
from dflash_sweep.traces.canonical import read, with_hash
from dflash_sweep.traces.changes import Change, summary
from dflash_sweep.traces.detect import by_name, detect, is_own_format
from dflash_sweep.traces.importers.base import SYSTEM_PROMPT, TOOL_SCHEMAS, Call, Format, Ledger, items, mapping
from dflash_sweep.traces.message_rules import CleanMemo
from dflash_sweep.traces.normalise import Normalised, NormaliseOptions, NothingToSend, normalise, normalise_answer
from dflash_sweep.traces.sources import open_source
from dflash_sweep.traces.threads import SharedMessages, by_group, conversations, in_time_order

_OWN = "dflash-sweep"
_FAITHFUL = (SYSTEM_PROMPT, TOOL_SCHEMAS, "assistant_answers", "texts", "history", "compaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """What formats do not store, given by the user. `system` is a text, `tools` a list in any known shape.

    `infer_tools`: make permissive schemas from the calls in the history where none are known (noted as a loss).
    """

    system: str | None = None
    tools: tuple[Any, ...] | None = None
    infer_tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A trace and how it came about. `read` = `used` + sum of `skipped` (by reason), in records of the source.

    `dropped`: model calls that were read but cannot be replayed, by reason.
    """

    trace: Trace
    format: str
    read: int
    used: int
    skipped: dict[str, int]
    dropped: dict[str, int]
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """The account as lines of text."""
        skipped = [f"  skipped {count}: {reason}" for reason, count in sorted(self.skipped.items())]
        return (
            f"format {self.format}: {self.read} records read, {self.used} used, {sum(self.skipped.values())} skipped",
            *skipped,
            *(f"  left out {count}: {reason}" for reason, count in sorted(self.dropped.items())),
            *(f"  warning: {warning}" for warning in self.warnings),
            *(f"  changed: {line}" for line in summary(self.changes)),
            *(f"  lost: {loss}" for loss in self.trace.header.losses),
        )


def read_side_files(system: Path | None, tools: Path | None, *, infer_tools: bool = False) -> SideFiles:
    """The user's side files. Raises TraceError when one is missing or is not what its option takes."""
    text = None if system is None else _read(system, "--system")
    if text is not None and not text.strip():
        raise TraceError(f"--system {system}: empty; it takes the text of the system prompt")
    if tools is None:
        return SideFiles(system=text, infer_tools=infer_tools)
    try:
        value = json.loads(_read(tools, "--tools"))
    except ValueError as error:
        raise TraceError(f"--tools {tools}: not JSON: {error}") from None
    listed = value.get("tools") if isinstance(value, dict) else value
    if not isinstance(listed, list) or not listed:
        raise TraceError(f"--tools {tools}: takes a JSON array of tools, or an object with a key tools")
    return SideFiles(system=text, tools=tuple(listed), infer_tools=infer_tools)


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TraceError(f"{option} {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{option} {path}: cannot be read as UTF-8 text: {error}") from None


def import_trace(
    path: str | Path,
    *,
    format_name: str | None = None,
    side: SideFiles | None = None,
    options: NormaliseOptions | None = None,
    require_faithful: bool = False,
    name: str | None = None,
) -> Imported:
    """Read a file of any known format. Raises TraceError: unknown format, nothing usable, losses where none may be."""
    ledger = Ledger()
    source = open_source(path, ledger)
    if format_name is None and is_own_format(source):
        return _own(Path(path), options or NormaliseOptions())
    form = by_name(format_name) if format_name is not None else detect(source)
    builder = _Builder(form, ledger, side or SideFiles(), options or NormaliseOptions())
    turns = builder.turns(in_time_order(form.read(source, ledger)))
    if not turns:
        left_out = ledger.skipped + ledger.dropped
        reasons = "; ".join(f"{count} × {reason}" for reason, count in left_out.items()) or "no model calls in it"
        raise TraceError(f"{path}: read as {form.name}, but nothing can be replayed: {reasons}")
    builder.check_side_files_used(path)
    header = TraceHeader(
        name=name or Path(path).stem,
        source=f"imported from {form.title}",
        content_kind="synthetic" if form.synthetic else "real",
        losses=tuple(f"{key}: {why}" for key, why in sorted(ledger.losses.items())),
    )
    if require_faithful and (missing := [key for key in sorted(ledger.losses) if key in _FAITHFUL]):
        raise TraceError(f"{path}: not a faithful trace, {', '.join(missing)} missing; --system, --tools can help")
    return Imported(
        trace=with_hash(Trace(header=header, turns=turns)),
        format=form.name,
        read=ledger.read,
        used=ledger.used,
        skipped=dict(ledger.skipped),
        dropped=dict(ledger.dropped),
        changes=builder.changes,
        warnings=tuple(ledger.warnings),
    )


def _own(path: Path, options: NormaliseOptions) -> Imported:
    """A trace of this program, normalised again: for files edited by hand or recorded as they were sent."""
    trace, warnings = read(path)
    changes: dict[tuple[str, Change], None] = {}
    turns = []
    skipped: Counter[str] = Counter()
    for turn in trace.turns:
        try:
            done = normalise(turn.messages, turn.tools, turn.tool_choice, options)
        except NothingToSend as error:
            skipped[str(error)] += 1
            continue
        changes |= dict.fromkeys((turn.conversation, change) for change in done.changes)
        turns.append(replace(turn, messages=done.messages, tools=done.tools, tool_choice=done.tool_choice))
    if not turns:
        raise TraceError(f"{path}: nothing can be replayed: no turn has a user message")
    return Imported(
        trace=with_hash(replace(trace, turns=tuple(turns))),
        format=_OWN,
        read=len(trace.turns),
        used=len(turns),
        skipped=dict(skipped),
        dropped={},
        changes=tuple(change for _, change in changes),
        warnings=warnings,
    )


class _Builder:
    """Makes turns of calls: side files, normaliser, numbering, buckets."""

    def __init__(self, form: Format, ledger: Ledger, side: SideFiles, options: NormaliseOptions) -> None:
        self.form = form
        self.ledger = ledger
        self.side = side
        self.options = options
        self._changes: dict[tuple[str, Change], None] = {}
        self._memo = CleanMemo(keep_reasoning=options.reasoning == "keep")
        self._inferred: list[dict[str, Any]] = []
        self._side_used = {"system": False, "tools": False}

    @property
    def changes(self) -> tuple[Change, ...]:
        """What the normaliser changed: once for each message, however many turns have it in their history."""
        return tuple(change for _, change in self._changes)

    def turns(self, calls: Sequence[Call]) -> tuple[Turn, ...]:
        if self.side.infer_tools:
            self._inferred = [_permissive(name, keys) for name, keys in _called_names(calls).items()]
        shared = SharedMessages()
        ready: list[tuple[Call, Normalised]] = []
        for call in calls:
            try:
                done = normalise(
                    self._with_system(call.messages), self._tools(call), call.tool_choice, self.options, self._memo
                )
            except NothingToSend as error:
                self.ledger.drop(f"call with {error} in its history")
            else:
                ready.append((call, replace(done, messages=shared.share(done.messages))))
        groups = [call.conversation for call, _ in ready]
        histories = [done.messages for _, done in ready]
        names = by_group(groups) if self.form.synthetic else conversations(groups, histories, shared)
        indices: Counter[str] = Counter()
        ends: dict[str, float | None] = {}
        turns = []
        for name, (call, done) in zip(names, ready, strict=True):
            self._changes |= dict.fromkeys((name, change) for change in done.changes)
            turns.append(self._turn(name, indices[name], call, done, ends.get(name)))
            indices[name] += 1
            ends[name] = call.ended_s
        return tuple(turns)

    def check_side_files_used(self, path: str | Path) -> None:
        """A side file that no request needed is a mistake, not something to pass over."""
        for option, given in (("system", self.side.system), ("tools", self.side.tools)):
            if given is not None and not self._side_used[option]:
                raise TraceError(f"{path}: every request has its own {option} already; leave --{option} out")

    def _turn(self, conversation: str, index: int, call: Call, done: Normalised, ended_before_s: float | None) -> Turn:
        answer = self._answer(call, done)
        prompt_tokens = call.prompt_tokens or estimated_tokens(message_chars(done.messages))
        return Turn(
            conversation=conversation,
            index=index,
            messages=done.messages,
            tools=done.tools,
            tool_choice=done.tool_choice,
            max_tokens=_cap(call),
            pause_ms=_pause_ms(call, ended_before_s),
            bucket=bucket_of(answer, prompt_tokens),
            recorded=_recorded(call, answer),
        )

    def _with_system(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if messages and str(messages[0].get("role")) in ("system", "developer"):
            return messages
        if self.side.system is not None:
            self._side_used["system"] = True
            return [{"role": "system", "content": self.side.system}, *messages]
        if SYSTEM_PROMPT in self.form.lacks:
            self.ledger.lose(SYSTEM_PROMPT, f"{self.form.name} does not store it; --system gives it")
        return messages

    def _tools(self, call: Call) -> Any:
        if call.tools:
            return call.tools
        if self.side.tools is not None:
            self._side_used["tools"] = True
            return list(self.side.tools)
        if self._inferred:
            # The same for every call: tools that came and went would change prompts which were alike.
            self.ledger.lose(TOOL_SCHEMAS, "not recorded: permissive ones were made up from the calls")
            return self._inferred
        if TOOL_SCHEMAS not in self.ledger.losses and (TOOL_SCHEMAS in self.form.lacks or _called_names([call])):
            self.ledger.lose(TOOL_SCHEMAS, "not recorded; --tools gives them, --infer-tools makes permissive ones")
        return call.tools

    def _answer(self, call: Call, done: Normalised) -> dict[str, Any] | None:
        """The recorded answer in the shape it has as history; that of the request's end where the source gives none."""
        if call.answer is None:
            return done.answer
        return normalise_answer(call.answer, done.messages, self.options)


def _called_names(calls: Sequence[Call]) -> dict[str, list[str]]:
    """Tools called in the histories and answers, with the argument names that occurred."""
    names: dict[str, list[str]] = {}
    seen: set[int] = set()
    for message in (message for call in calls for message in [*call.messages, call.answer or {}]):
        if id(message) in seen:
            continue
        seen.add(id(message))
        for one in items(message.get("tool_calls")):
            function = mapping(mapping(one).get("function"))
            if isinstance(function.get("name"), str):
                keys = names.setdefault(function["name"], [])
                keys += [key for key in _argument_names(function.get("arguments")) if key not in keys]
    return names


def _argument_names(arguments: Any) -> list[str]:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return []
    return [str(key) for key in value] if isinstance(value, dict) else []


def _permissive(name: str, keys: Sequence[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {} for key in keys}, "additionalProperties": True}
    function = {"name": name, "description": "schema not recorded", "parameters": parameters}
    return {"type": "function", "function": function}


def _cap(call: Call) -> int | None:
    """The recorded length, else the request's own limit; None = left to the study."""
    known = [count for count in (call.output_tokens, call.max_tokens) if count]
    return min(known) if known else None


def _pause_ms(call: Call, ended_before_s: float | None) -> float | None:
    if call.pause_ms is not None:
        return round(call.pause_ms, 3)
    if ended_before_s is None or call.started_s is None:
        return None
    return round(max(0.0, (call.started_s - ended_before_s) * 1000), 3)


def _span_ms(start_s: float | None, end_s: float | None) -> float | None:
    if start_s is None or end_s is None or end_s < start_s:
        return None
    return round((end_s - start_s) * 1000, 3)


def _recorded(call: Call, answer: dict[str, Any] | None) -> RecordedAnswer:
    said = answer or {}
    return RecordedAnswer(
        content=said.get("content") or None,
        reasoning=said.get("reasoning_content"),
        tool_calls=tuple(said.get("tool_calls", ())),
        output_tokens=call.output_tokens,
        prompt_tokens=call.prompt_tokens,
        cached_tokens=call.cached_tokens,
        finish_reason=call.finish_reason,
        ttft_ms=_span_ms(call.started_s, call.first_token_s),
        duration_ms=_span_ms(call.started_s, call.ended_s),
    )
