"""SGLang's agentic-trace files (one JSON object). Imports `importers.base` only.

Source of the format: sgl-project/sglang, the benchmark's agentic_trace dataset. A turn holds only the new messages
that are not the assistant's: SGLang lets the live server answer. The recorded answers are not in the file.
"""

from __future__ import annotations

from typing import Any

from dflash_sweep.traces.importers.base import Call, Format, Ledger, Message, Source, items, mapping, whole

ANSWER_UNKNOWN = "[answer not recorded]"
DEFAULT_OUTPUT_TOKENS = 220
"""SGLang's own default for a turn of such a trace."""


def _conversations(row: dict[str, Any]) -> list[list[Any]]:
    return [one for one in items(row.get("conversations")) if isinstance(one, list)]


def recognises(source: Source) -> int:
    """Objects whose conversations are lists of turns with messages."""
    return sum(
        10 * any(items(mapping(turn).get("messages")) for turns in _conversations(row)[:3] for turn in turns[:3])
        for _, row in source.objects()
    )


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each turn. The history between turns gets a fixed text where the answer was."""
    ledger.recount(source)
    ledger.lose(
        "assistant_answers",
        "the file has no answers: the history holds a placeholder for each; replay free-running to have real ones",
    )
    calls = []
    turns = [(n, turn) for _, row in source.objects() for n, c in enumerate(_conversations(row)) for turn in c]
    history: dict[int, list[Message]] = {}
    for number, turn in turns:
        ledger.read += 1
        added = [mapping(message) for message in items(mapping(turn).get("messages"))]
        if not added:
            ledger.skip("turn without messages")
            continue
        ledger.used += 1
        before = history.setdefault(number, [])
        if before:
            before.append({"role": "assistant", "content": ANSWER_UNKNOWN})
        before += added
        calls.append(
            Call(
                conversation=f"conversation {number}",
                messages=list(before),
                max_tokens=DEFAULT_OUTPUT_TOKENS,
                prompt_tokens=whole(mapping(turn).get("prompt_tokens")),
            )
        )
    return calls


FORMAT = Format(name="sglang", title="SGLang agentic trace (.json)", recognises=recognises, read=read)
