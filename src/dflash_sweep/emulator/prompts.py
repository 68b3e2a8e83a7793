"""Prompts as the emulated server sees them: tokens, seed, and what of them is still in the cache. Imports `texts`."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_sweep.emulator.texts import count_tokens

REMEMBERED_PROMPTS = 32
"""Prompts kept for reuse (llama-server's host-memory prompt cache holds more or fewer, by size)."""

_PER_MESSAGE_TOKENS = 4
"""Role markers and separators of a chat template, per message."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`segments`: (digest, tokens) of tools and messages in order; a common prefix of segments can be reused."""

    segments: tuple[tuple[bytes, int], ...]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.segments) + _PER_MESSAGE_TOKENS  # the opened assistant turn

    @property
    def digest(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for digest, _ in self.segments:
            whole.update(digest)
        return whole.hexdigest()


def _segment(value: Any) -> tuple[bytes, int]:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return digest, count_tokens(text) + _PER_MESSAGE_TOKENS


def chat_prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, switches: Any = None) -> Prompt:
    """The prompt of a chat request. Template switches are part of it: they change the rendered text."""
    parts: list[Any] = [{"tools": tools, "switches": switches}] if tools or switches else []
    return Prompt(tuple(_segment(part) for part in (*parts, *messages)))


def text_prompt(text: str) -> Prompt:
    """A prompt of plain text, cut into pieces so that a longer one can reuse a shorter one's."""
    pieces = [text[start : start + 512] for start in range(0, len(text), 512)] or [""]
    return Prompt(tuple(_segment(piece) for piece in pieces))


class PromptCache:
    """Prompts that were processed, newest last. `limit` 1 = only what the slot itself holds (`--cache-ram 0`)."""

    def __init__(self, limit: int = REMEMBERED_PROMPTS) -> None:
        self._limit = max(limit, 1)
        self._prompts: OrderedDict[str, Prompt] = OrderedDict()

    def reusable(self, prompt: Prompt) -> int:
        """Tokens of the longest common prefix with a remembered prompt."""
        best = 0
        for other in self._prompts.values():
            common = 0
            for mine, theirs in zip(prompt.segments, other.segments, strict=False):
                if mine != theirs:
                    break
                common += mine[1]
            best = max(best, common)
        return best

    def remember(self, prompt: Prompt) -> None:
        self._prompts.pop(prompt.digest, None)
        self._prompts[prompt.digest] = prompt
        while len(self._prompts) > self._limit:
            self._prompts.popitem(last=False)
