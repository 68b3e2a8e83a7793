"""Turns a recorded request into one that every server accepts, and lists each change. Imports `traces` rules only.

The order of the steps matters: messages are cleaned one by one (`message_rules`), then put in order (`turn_order`),
then the tools. Normalising twice changes nothing more, and the output has no `legal.request_problems`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_sweep.traces.changes import Change, Changes
from dflash_sweep.traces.message_rules import CleanMemo, clean_message
from dflash_sweep.traces.tool_rules import clean_tool_choice, clean_tools
from dflash_sweep.traces.turn_order import finished_answer, order_messages

REASONING = ("keep", "drop")
LATE_SYSTEM = ("user", "front")


@dataclass(frozen=True, slots=True, kw_only=True)
class NormaliseOptions:
    """What a study may choose; the same for all of its traces, because it changes the prompts.

    `reasoning`: keep recorded thinking as `reasoning_content` of assistant messages, or drop it. `late_system`: a
    system message inside the history becomes a marked user text, or is merged into the first one. `strict_roles`: put
    a short assistant message between a tool result and a user message, for templates that insist on alternation.
    """

    reasoning: str = "keep"
    late_system: str = "user"
    strict_roles: bool = False

    def __post_init__(self) -> None:
        if self.reasoning not in REASONING or self.late_system not in LATE_SYSTEM:
            raise ValueError(f"reasoning is one of {REASONING}, late_system one of {LATE_SYSTEM}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised:
    """A request ready to send. `answer`: the assistant messages cut from its end, as one; None if there were none."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None
    tool_choice: Any
    answer: dict[str, Any] | None
    changes: tuple[Change, ...] = field(default=())


class NothingToSend(ValueError):
    """The history holds no user message, so no legal request can be made of it."""


def normalise_answer(
    answer: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], options: NormaliseOptions | None = None
) -> dict[str, Any] | None:
    """A recorded answer in the shape it has as history after these (normalised) messages; None if it is no message."""
    keep = (options or NormaliseOptions()).reasoning == "keep"
    cleaned = clean_message({**answer, "role": "assistant"}, len(messages), Changes(), keep_reasoning=keep)
    return None if cleaned is None else finished_answer(cleaned, messages)


def normalise(
    messages: Sequence[Any],
    tools: Any = None,
    tool_choice: Any = None,
    options: NormaliseOptions | None = None,
    memo: CleanMemo | None = None,
) -> Normalised:
    """The same request in the form that every server accepts. Raises NothingToSend when it has no user message.

    `memo` (made for the same options) saves work where many calls share message objects.
    """
    options = options or NormaliseOptions()
    memo = memo or CleanMemo(keep_reasoning=options.reasoning == "keep")
    changes = Changes()
    cleaned = [
        message for position, raw in enumerate(messages) if (message := memo.clean(raw, position, changes)) is not None
    ]
    ordered, answer = order_messages(
        cleaned, changes, late_system=options.late_system, strict_roles=options.strict_roles
    )
    if not any(message["role"] == "user" for message in ordered):
        raise NothingToSend("no user message")
    legal_tools = clean_tools(tools, changes)
    return Normalised(
        messages=tuple(ordered),
        tools=legal_tools,
        tool_choice=clean_tool_choice(tool_choice, legal_tools, changes),
        answer=answer,
        changes=changes.listed(),
    )
