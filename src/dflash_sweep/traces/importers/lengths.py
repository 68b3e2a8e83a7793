"""Length traces: Mooncake, AIPerf and Dynamo rows, WEKA. Imports `importers.base` only.

These files hold lengths and the hashes of shared prefix blocks, no texts. Prompts are invented from them: blocks with
the same hash get the same text, so that caches see the recorded sharing. Good for load shape, for nothing else.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

from dflash_sweep.traces.importers.base import Call, Format, Ledger, Source, items, mapping, whole

MOONCAKE_BLOCK_TOKENS = 512
WEKA_BLOCK_TOKENS = 64
_MAX_TOKENS = 4_000_000
"""Longer than any model's context: such a figure is damage, and no text is invented for it."""

_INPUT = ("input_length", "input_tokens", "in")
_OUTPUT = ("output_length", "output_tokens", "out")

# Common English words, each one token with its leading space in the usual vocabularies.
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body information back parent face "
    "others level office door health person art war history party result change morning reason research girl guy moment"
)
_WORDS = tuple(_VOCABULARY.split())


def _first(row: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((count for name in names if (count := whole(row.get(name))) is not None), None)


def _is_flat(row: dict[str, Any]) -> bool:
    return _first(row, _INPUT[:2]) is not None and _first(row, _OUTPUT[:2]) is not None and "messages" not in row


def _is_weka(row: dict[str, Any]) -> bool:
    first = mapping(next(iter(items(row.get("requests"))), None))
    return "in" in first or "subagent" in str(first.get("type"))


def recognises(source: Source) -> int:
    """Rows of lengths, or WEKA sessions."""
    return sum(10 if _is_weka(row) else _is_flat(row) for _, row in source.objects())


@lru_cache(maxsize=4096)
def _text(seed: str, tokens: int) -> str:
    """A text of about this many tokens that depends on the seed alone."""
    return " ".join(random.Random(seed).choices(_WORDS, k=max(1, tokens)))


def _prompt(row: dict[str, Any], input_tokens: int, block_tokens: int, own: str) -> str:
    """The prompt: one text a full block by its hash, then a text of its own for the rest."""
    hashes = items(row.get("hash_ids"))
    full = hashes[: input_tokens // block_tokens]
    rest = input_tokens - len(full) * block_tokens
    blocks = [_text(f"block {value!a}", block_tokens) for value in full]
    if rest:
        blocks.append(_text(own, rest))
    return " ".join(blocks)


def _pause_ms(row: dict[str, Any]) -> float | None:
    delay = row.get("delay", row.get("delay_ms"))
    return float(delay) if isinstance(delay, int | float) and not isinstance(delay, bool) and delay >= 0 else None


def _call(row: dict[str, Any], block_tokens: int, own: str, conversation: str, ledger: Ledger) -> Call | None:
    input_tokens, output_tokens = _first(row, _INPUT), _first(row, _OUTPUT)
    if not input_tokens or not output_tokens or max(input_tokens, output_tokens) > _MAX_TOKENS:
        ledger.skip("row without a usable input and output length")
        return None
    ledger.used += 1
    return Call(
        conversation=conversation,
        messages=[{"role": "user", "content": _prompt(row, input_tokens, block_tokens, own)}],
        max_tokens=output_tokens,
        output_tokens=output_tokens,
        prompt_tokens=input_tokens,
        started_s=_arrival_s(row),
        pause_ms=_pause_ms(row),
    )


def _arrival_s(row: dict[str, Any]) -> float | None:
    """Arrival in seconds: `timestamp` and `created_time` count milliseconds, WEKA's `t` counts seconds."""
    for name, scale in (("timestamp", 1000.0), ("created_time", 1000.0), ("t", 1.0)):
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value / scale
    return None


def _weka(row: dict[str, Any], name: str, ledger: Ledger) -> list[Call]:
    """A WEKA session; sub-agents are conversations of their own."""
    block_tokens = whole(row.get("block_size")) or WEKA_BLOCK_TOKENS
    calls: list[Call] = []
    for number, request in enumerate(map(mapping, items(row.get("requests")))):
        if items(request.get("requests")):
            calls += _weka({"block_size": block_tokens, **request}, f"{name} sub {number}", ledger)
            continue
        ledger.read += 1
        call = _call(request, block_tokens, f"{name} {number}", name, ledger)
        calls += [call] if call else []
    return calls


def _arrivals_to_pauses(calls: list[Call]) -> None:
    """Where the file gives arrivals and no delay, the gap to the arrival before becomes the pause."""
    arrivals = [call.started_s for call in calls]
    for call, before in zip(calls[1:], arrivals, strict=False):
        if call.pause_ms is None and before is not None and call.started_s is not None:
            call.pause_ms = max(0.0, (call.started_s - before) * 1000)


def read(source: Source, ledger: Ledger) -> list[Call]:
    """One call for each row of lengths."""
    ledger.recount(source)
    ledger.lose("texts", "the file holds lengths only: every prompt is invented, about one word a token")
    ledger.lose("pauses", "arrival times, where given, are kept as pauses between requests")
    calls: list[Call] = []
    for line, row in source.objects():
        if _is_weka(row):
            calls += _weka(row, f"session {line}", ledger)
            continue
        ledger.read += 1
        session = str(row.get("session_id", f"request {line}"))
        call = _call(row, MOONCAKE_BLOCK_TOKENS, f"own {line}", session, ledger)
        calls += [call] if call else []
    _arrivals_to_pauses(calls)
    return calls


FORMAT = Format(
    name="lengths",
    title="length trace: Mooncake, AIPerf, Dynamo, WEKA (.json, .jsonl)",
    recognises=recognises,
    read=read,
    synthetic=True,
)
