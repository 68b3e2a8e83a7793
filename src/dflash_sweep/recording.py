"""Recorded model calls, grouped into conversations and written as canonical traces. Imports `traces`, `records`,
`recorder_requests`, `recorder_answers`, `errors`.

One file per conversation: a call belongs to the conversation whose latest history its own history begins with.
Holds no header of any request, so no key can get into a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_sweep.chat_stream import decode_json
from dflash_sweep.errors import TraceError
from dflash_sweep.recorder_answers import Answer, Piece, read_answer
from dflash_sweep.recorder_requests import NotRecorded, RecordedRequest, read_request
from dflash_sweep.records import Trace, TraceHeader, Turn
from dflash_sweep.traces import save
from dflash_sweep.traces.buckets import bucket_of, estimated_tokens, message_chars
from dflash_sweep.traces.canonical import lines, parse
from dflash_sweep.traces.changes import summary
from dflash_sweep.traces.normalise import NothingToSend, normalise


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """One request and answer that went through. Times are monotonic ns; `complete` False = the client went away."""

    protocol: str
    request: bytes
    status: int
    content_type: str
    pieces: Sequence[Piece]
    start_ns: int
    end_ns: int
    complete: bool = True


@dataclass(slots=True)
class _Conversation:
    name: str
    header: TraceHeader
    turns: list[Turn] = field(default_factory=list)
    end_ns: int = 0


class Recording:
    """Takes passed calls one after the other (not from several threads at once) and keeps the files current.

    `written`: files by conversation; `skipped`: calls that made no turn, by reason.
    """

    def __init__(self, out_dir: str | Path, name: str) -> None:
        if not name or Path(name).name != name or name.startswith("."):
            raise TraceError(f"name {name!r} is not allowed: it takes a file name without folders and ending")
        self.out_dir = Path(out_dir)
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(f"{out_dir}: cannot be made a folder for recordings: {error.strerror}") from None
        self._name = name
        self._conversations: list[_Conversation] = []
        self._histories: dict[str, tuple[dict[str, Any], ...]] = {}  # response id → history with its answer
        self.skipped: Counter[str] = Counter()

    @property
    def written(self) -> dict[Path, int]:
        """Trace file → its number of turns."""
        return {self._path(conversation.name): len(conversation.turns) for conversation in self._conversations}

    def add(self, passed: Passed) -> None:
        """Record one call; a call that cannot be replayed is counted with its reason."""
        try:
            turn_request, answer = self._read(passed)
        except NotRecorded as error:
            self.skipped[str(error)] += 1
            return
        conversation = self._conversation_of(turn_request, passed.protocol)
        pause_ms = max(0.0, (passed.start_ns - conversation.end_ns) / 1e6) if conversation.turns else None
        losses = list(turn_request.losses)
        if not passed.complete:
            losses.append("an answer was broken off")
        prompt_tokens = answer.prompt_tokens or estimated_tokens(message_chars(turn_request.messages))
        conversation.turns.append(
            Turn(
                conversation=conversation.name,
                index=len(conversation.turns),
                messages=turn_request.messages,
                tools=turn_request.tools,
                tool_choice=turn_request.tool_choice,
                max_tokens=turn_request.max_tokens,
                pause_ms=pause_ms,
                bucket=bucket_of(answer.message, prompt_tokens),
                recorded=answer.recorded(passed.start_ns, passed.end_ns),
            )
        )
        conversation.end_ns = passed.end_ns
        conversation.header = _with_losses(conversation.header, turn_request, losses)
        self._remember(turn_request, answer)
        save(Trace(header=conversation.header, turns=tuple(conversation.turns)), self._path(conversation.name))

    def _read(self, passed: Passed) -> tuple[RecordedRequest, Answer]:
        if not 200 <= passed.status < 300:
            raise NotRecorded(f"the server answered HTTP {passed.status}")
        try:
            body = decode_json(passed.request)
        except ValueError:
            raise NotRecorded("the request body is no JSON") from None
        request = self._readable(self._with_history(read_request(passed.protocol, body)))
        answer = read_answer(passed.protocol, passed.content_type, passed.pieces)
        if answer.error is not None:
            raise NotRecorded("the answer is an error")
        if answer.message is None and passed.complete:
            raise NotRecorded("the answer is empty")
        return request, answer

    def _readable(self, request: RecordedRequest) -> RecordedRequest:
        """The request itself if a trace can hold it as it was sent, else in the form that every server accepts."""
        turn = Turn(conversation="c", index=0, messages=request.messages, tools=request.tools)
        try:
            parse(b"\n".join(lines(Trace(header=TraceHeader(name="n", source="s"), turns=(turn,)))))
        except TraceError:
            try:
                done = normalise(request.messages, request.tools, request.tool_choice)
            except NothingToSend as error:
                raise NotRecorded(f"the request has {error}") from None
            changes = tuple(f"changed: {line}" for line in summary(done.changes))
            return replace(
                request,
                messages=done.messages,
                tools=done.tools,
                tool_choice=done.tool_choice,
                losses=(*request.losses, *changes),
            )
        return request

    def _with_history(self, request: RecordedRequest) -> RecordedRequest:
        """Put the history back that the client left to the server's memory."""
        if request.previous_response_id is None:
            return request
        before = self._histories.get(request.previous_response_id)
        if before is None:
            raise NotRecorded("the request goes on from an answer that was not recorded")
        system = tuple(message for message in request.messages[:1] if message.get("role") == "system")
        old = before[1:] if system and before and before[0].get("role") == "system" else before
        return replace(request, messages=(*system, *old, *request.messages[len(system) :]))

    def _remember(self, request: RecordedRequest, answer: Answer) -> None:
        if answer.response_id and answer.message is not None:
            self._histories[answer.response_id] = (*request.messages, answer.message)

    def _conversation_of(self, request: RecordedRequest, protocol: str) -> _Conversation:
        """The one that this call goes on from (the longest history wins), else a new one."""
        best: _Conversation | None = None
        for conversation in self._conversations:
            latest = conversation.turns[-1].messages
            longer = best is None or len(latest) >= len(best.turns[-1].messages)
            if longer and request.messages[: len(latest)] == latest:
                best = conversation
        if best is not None:
            return best
        name = self._free_name()
        header = TraceHeader(
            name=name,
            source=f"recorded through the dflash-sweep proxy ({protocol})",
            template_kwargs=request.template_kwargs,
            sampling=request.sampling,
            note=f"model: {request.model}" if request.model else None,
        )
        self._conversations.append(_Conversation(name, header))
        return self._conversations[-1]

    def _free_name(self) -> str:
        """The next number of which there is no file: a recording never writes over an earlier one."""
        taken = {conversation.name for conversation in self._conversations}
        number = 1
        while (name := f"{self._name}-{number:03d}") in taken or self._path(name).exists():
            number += 1
        return name

    def _path(self, name: str) -> Path:
        return self.out_dir / f"{name}.jsonl"


def _with_losses(header: TraceHeader, request: RecordedRequest, losses: Sequence[str]) -> TraceHeader:
    """The header with the losses of one more call, and a word if sampling or template switches changed on the way."""
    more = list(losses)
    if request.sampling != header.sampling:
        more.append("sampling changed between turns: the header keeps the first")
    if request.template_kwargs != header.template_kwargs:
        more.append("template switches changed between turns: the header keeps the first")
    return replace(header, losses=tuple(dict.fromkeys((*header.losses, *more))))
