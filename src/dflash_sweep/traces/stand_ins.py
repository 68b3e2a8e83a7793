"""Stand-ins for what redaction takes out: stable, of the same shape, and recognisable as stand-ins. Imports nothing.

A key's stand-in keeps length, punctuation and the class of each character, so that it costs about as many tokens and
is drafted about as badly as the key itself. Its last four letters and digits are a checksum of the others: a check for
secrets knows it again. Names come from short lists, addresses from the ranges reserved for documentation.
"""

from __future__ import annotations

import hashlib
import random
import string

NAMES = ("alder", "birch", "cedar", "hazel", "linden", "maple", "rowan", "willow", "ash", "beech", "juniper", "oak")
_CHECK_CHARS = 4
_MIN_CHECKED = 8


def _like(character: str, rng: random.Random) -> str:
    for alphabet in (string.ascii_lowercase, string.ascii_uppercase, string.digits):
        if character in alphabet:
            return rng.choice(alphabet)
    return character


def _check(characters: list[str], places: list[int]) -> list[str]:
    """The checksum characters for these places, each in the class of the character it replaces."""
    body = "".join(c for n, c in enumerate(characters) if n not in places)
    digest = hashlib.sha256(f"stand-in {body}".encode()).digest()
    checked = []
    for byte, place in zip(digest, places, strict=False):
        alphabet = next(
            a for a in (string.ascii_lowercase, string.ascii_uppercase, string.digits) if characters[place] in a
        )
        checked.append(alphabet[byte % len(alphabet)])
    return checked


def _check_places(text: str) -> list[int]:
    return [n for n, c in enumerate(text) if c in string.ascii_letters + string.digits][-_CHECK_CHARS:]


def key_like(value: str, seed: str) -> str:
    """A stand-in of the same length and shape. The same seed gives the same stand-in."""
    rng = random.Random(f"{seed} {len(value)}")
    characters = [_like(character, rng) for character in value]
    places = _check_places(value)
    if len(value) >= _MIN_CHECKED and len(places) == _CHECK_CHARS:
        for place, character in zip(places, _check(characters, places), strict=True):
            characters[place] = character
    return "".join(characters)


def is_stand_in(value: str) -> bool:
    """Whether a key-like text is one of ours (a chance text is taken for one about once in 10,000 or less often)."""
    places = _check_places(value)
    if len(value) < _MIN_CHECKED or len(places) < _CHECK_CHARS:
        return False
    return [value[place] for place in places] == _check(list(value), places)


def name_like(value: str, number: int) -> str:
    """The number-th name of our list, of the value's length if there is one; later rounds carry a number."""
    same = [name for name in NAMES if len(name) == len(value)] or list(NAMES)
    name = same[number % len(same)]
    return name if number < len(same) else f"{name}{number // len(same) + 1}"


def is_name(value: str) -> bool:
    """Whether a name is one that `name_like` gives."""
    return value.rstrip(string.digits) in NAMES


def host_like(number: int) -> str:
    """A host in the domain reserved for documentation."""
    return f"{name_like('', number)}.example"


def email_like(number: int) -> str:
    """An address in the domain reserved for documentation."""
    return f"{name_like('', number)}@example.org"


def address_like(number: int) -> str:
    """An IPv4 address from the ranges reserved for documentation (RFC 5737)."""
    net = ("192.0.2", "198.51.100", "203.0.113")[number // 254 % 3]
    return f"{net}.{number % 254 + 1}"
