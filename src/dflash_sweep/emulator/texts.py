"""What the emulated target writes: seeded text per bucket, token by token, and the emulated tokenizer.

Imports nothing of ours. The text depends on the prompt and the emulator's seed alone, never on a setting: greedy
answers of lossless modes are equal by construction.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import resources

VOCABULARY = 248_320
_PIECE = re.compile(r" ?[^\W\d_]{1,7}|\d{1,3}| ?[^\w\s]|_|\n+|[ \t]+|\s")

_WORDS = tomllib.loads(resources.files("dflash_sweep.emulator").joinpath("words.toml").read_text("utf-8"))
NOUNS, VERBS, ADJECTIVES, LINKS = (_WORDS[kind].split() for kind in ("nouns", "verbs", "adjectives", "links"))


def tokens_of(text: str) -> list[str]:
    """The text cut into emulated tokens (about four characters each); joined they are the text again."""
    return _PIECE.findall(text)


def token_ids(text: str) -> list[int]:
    """Stable ids of the emulated tokens."""
    return [zlib.crc32(piece.encode()) % VOCABULARY for piece in tokens_of(text)]


@lru_cache(maxsize=4096)
def count_tokens(text: str) -> int:
    """Number of emulated tokens."""
    return sum(1 for _ in _PIECE.finditer(text))


def _prose(draw: random.Random) -> str:
    def clause() -> str:
        return f"the {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)}"

    text = clause()
    for _ in range(draw.randrange(3)):
        text += f" {draw.choice(LINKS)} {clause()}"
    end = "\n\n" if draw.random() < 0.15 else " "
    return text[0].upper() + text[1:] + "." + end


def _code(draw: random.Random) -> str:
    name, other, third = draw.choice(NOUNS), draw.choice(NOUNS), draw.choice(NOUNS)
    adjective, number = draw.choice(ADJECTIVES), draw.randrange(1, 500)
    return draw.choice(
        (
            f"def {adjective}_{name}({other}, {third}={number}):\n",
            f"    {name} = {other}.get('{third}', {number})\n",
            f"    if {name}.{other} > {number}:\n        return {third}\n",
            f"    for {name} in {adjective}_{other}:\n        {third}.append({name} + {number})\n",
            f"    # the {adjective} {name} comes before the {other}\n",
            f"    {name}_{other} = [{third} for {third} in {adjective}_{name} if {third} != {number}]\n",
            f"    return {adjective}_{name}({other}, {number})\n\n",
            f"class {name.title()}{other.title()}:\n",
        )
    )


def _thinking(draw: random.Random) -> str:
    starts = ("Wait, ", "So ", "The user wants that ", "First, ", "Maybe ", "Let me check whether ", "That means ")
    return draw.choice(starts) + _prose(draw)[:1].lower() + _prose(draw)[1:]


def _mixed(draw: random.Random) -> str:
    return draw.choice((_prose, _prose, _code, _thinking))(draw)


_WRITERS: dict[str, Callable[[random.Random], str]] = {
    "code": _code,
    "thinking": _thinking,
    "prose": _prose,
    "gsm8k": _thinking,
    "math500": _thinking,
}


def _stream(workload: str, seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    write = _WRITERS.get(workload, _mixed)
    while True:
        yield from tokens_of(write(draw))


def answer_tokens(workload: str, seed: int, count: int, diverges_at: int | None = None) -> list[str]:
    """`count` tokens of the answer to the prompt that `seed` stands for; from `diverges_at` on another continuation."""
    source = _stream(workload, seed)
    tokens = [next(source) for _ in range(count if diverges_at is None else diverges_at)]
    if diverges_at is not None:
        other = _stream(workload, seed ^ 0x5DEECE66D)
        tokens += [next(other) for _ in range(count - diverges_at)]
    return tokens


def arguments_tokens(parameters: dict[str, object], seed: int, count: int) -> list[str]:
    """About `count` tokens of JSON that a call of a tool with these parameters (a JSON schema) could carry."""
    draw = random.Random(seed)
    properties = parameters.get("properties")
    names = list(properties) if isinstance(properties, dict) and properties else ["input"]
    values: dict[str, object] = {}
    for name in names:
        kind = properties.get(name, {}).get("type") if isinstance(properties, dict) else None
        values[name] = draw.randrange(1, 400) if kind in ("integer", "number") else draw.choice(NOUNS)
    target = next((name for name in names if isinstance(values[name], str)), None)
    if target is not None:
        missing = max(count - count_tokens(json.dumps(values)), 0)
        values[target] = (f"{values[target]} " + "".join(answer_tokens("code", seed, missing))).strip()
    return tokens_of(json.dumps(values))
