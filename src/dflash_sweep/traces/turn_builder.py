"""Makes turns of the calls that an importer found: side files, normaliser, conversations, buckets.

Imports the importers' base, the normaliser, `buckets`, `threads`, records and errors.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Turn
from dflash_sweep.traces.buckets import bucket_of, estimated_tokens, message_chars
from dflash_sweep.traces.changes import Change
from dflash_sweep.traces.importers.base import SYSTEM_PROMPT, TOOL_SCHEMAS, Call, Format, Ledger, items, mapping
from dflash_sweep.traces.message_rules import CleanMemo
from dflash_sweep.traces.normalise import Normalised, NormaliseOptions, NothingToSend, normalise, normalise_answer
from dflash_sweep.traces.threads import SharedMessages, by_group, conversations


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFiles:
    """What formats do not store, given by the user. `system` is a text, `tools` a list in any known shape.

    `infer_tools`: make permissive schemas from the calls in the history where none are known (noted as a loss).
    """

    system: str | None = None
    tools: tuple[Any, ...] | None = None
    infer_tools: bool = False


class TurnBuilder:
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
        partly = TOOL_SCHEMAS in self.ledger.losses  # names without parameters: a side file is better
        if call.tools and not (partly and self.side.tools is not None):
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
