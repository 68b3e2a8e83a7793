"""What in a text looks like a secret or personal data: patterns with names, and where they match. Imports `stand_ins`.

Two grades: *secret* (keys, tokens, passwords: a trace with one may not be shared) and *personal* (addresses, names of
homes and hosts: replaced as well). Values that are reserved for documentation, and our own stand-ins, do not count.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dflash_sweep.traces.stand_ins import is_name, is_stand_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A match in a text: `text[start:end]` is what has to be replaced. `grade`: secret or personal."""

    kind: str
    grade: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Pattern:
    """`regex` has a group `v` around what is replaced (the part of a key after its well-known prefix, a name)."""

    kind: str
    grade: str
    regex: re.Pattern[str]


def _secret(kind: str, regex: str, flags: int = 0) -> _Pattern:
    return _Pattern(kind, "secret", re.compile(regex, flags))


def _personal(kind: str, regex: str, flags: int = 0) -> _Pattern:
    return _Pattern(kind, "personal", re.compile(regex, flags))


_END = r"(?![A-Za-z0-9_-])"
# The first pattern that claims a piece of text wins; the specific ones stand before the general ones.
_PATTERNS = (
    _secret(
        "private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<v>[\s\S]*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    ),
    _secret("AWS access key", r"\b(?:AKIA|ASIA)(?P<v>[0-9A-Z]{16})\b"),
    _secret("GitHub token", r"\b(?:gh[pousr]_|github_pat_)(?P<v>[A-Za-z0-9_]{20,})"),
    _secret("GitLab token", r"\bglpat-(?P<v>[A-Za-z0-9_-]{20,})"),
    _secret("Anthropic key", r"\bsk-ant-(?P<v>[A-Za-z0-9_-]{20,})"),
    _secret("OpenAI-style key", r"\bsk-(?:proj-|svcacct-|or-v1-)?(?P<v>[A-Za-z0-9_-]{20,})"),
    _secret("Hugging Face token", r"\bhf_(?P<v>[A-Za-z0-9]{30,})"),
    _secret("Slack token", r"\bxox[abeoprs]-(?P<v>[A-Za-z0-9-]{10,})"),
    _secret("Google key", r"\bAIza(?P<v>[A-Za-z0-9_-]{35})" + _END),
    _secret("PyPI token", r"\bpypi-(?P<v>[A-Za-z0-9_-]{40,})"),
    _secret("npm token", r"\bnpm_(?P<v>[A-Za-z0-9]{36})" + _END),
    _secret("JSON web token", r"\beyJ(?P<v>[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,})"),
    _secret("bearer token", r"\b[Bb]earer\s+(?P<v>[A-Za-z0-9._~+/-]{16,}=*)"),
    _secret("password in a URL", r"\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]{1,64}:(?P<v>[^\s/@'\"]{3,})@"),
    _secret(
        "assigned secret",
        r"(?:api[_-]?key|secret|passw(?:or)?d|passwd|auth[_-]?token|access[_-]?token|client[_-]?secret|private[_-]?key)"
        r"[A-Za-z0-9_-]{0,20}\\?[\"']?\s*(?:=|:|=>)\s*\\?[\"']?(?P<v>[^\s\"'\\,;(){}\[\]<>$]{8,})",
        re.IGNORECASE,
    ),
    _personal(
        "e-mail", r"\b(?P<v>[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.[A-Za-z]{2,24})\b"
    ),
    _personal(
        "home",
        r"(?:/home/|/Users/|\b[A-Za-z]:(?:\\{1,2}|/)Users(?:\\{1,2}|/))"
        r"(?P<v>[^\s/\\:\"'`<>|*?(){}\[\],;]{1,48})",
    ),
    _personal("host", r"(?:\b[a-z_][a-z0-9_-]{0,31}@)(?P<v>[A-Za-z0-9][A-Za-z0-9.-]{1,62})(?=:[~/])"),
    _personal(
        "host",
        r"\b(?P<v>(?:[A-Za-z0-9-]{1,63}\.)+(?:local|lan|internal|intranet|corp|home\.arpa))\b(?![(.])(?P<port>:\d)?",
    ),
    _personal(
        "host",
        r"\b(?:https?|ssh|ftp|postgres(?:ql)?|redis|amqp)://(?:[^\s/@'\"]*@)?"
        r"(?P<v>[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)",
    ),
    _personal("IP address", r"(?<![\d.])(?P<v>(?:\d{1,3}\.){3}\d{1,3})(?![\d.]*\d|/\d)"),
)  # fmt: skip

_GENERIC_HOMES = {
    "user", "username", "you", "me", "name", "ubuntu", "root", "admin", "runner", "app", "node", "vscode", "coder",
    "shared", "public", "guest", "dev", "someone", "work", "x", "*",
}  # fmt: skip
_PUBLIC_HOSTS = (
    "github.com", "githubusercontent.com", "gitlab.com", "python.org", "pypi.org", "pythonhosted.org", "npmjs.org",
    "npmjs.com", "wikipedia.org", "w3.org", "mozilla.org", "stackoverflow.com", "debian.org", "kernel.org",
    "huggingface.co", "openai.com", "anthropic.com", "nvidia.com", "google.com", "readthedocs.io", "apache.org",
    "json-schema.org", "schema.org", "rust-lang.org", "crates.io", "docs.rs", "golang.org", "go.dev",
)  # fmt: skip
_RESERVED_HOST = re.compile(r"(?:^|\.)(?:example(?:\.(?:com|org|net))?|test|invalid|localhost)$", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"[<\[{$].*|(?:your|my|some|dummy|fake|test|example|change|the)(?:[_-][a-z]+)*|[xX*.]+|[A-Za-z_][A-Za-z_.]*"
    r"|(?:os|process|env|self|config|settings|args|request|kwargs)\..*",
    re.IGNORECASE,
)
_MIN_ENTROPY_BITS = 2.8


def entropy_bits(text: str) -> float:
    """Shannon entropy of the characters of a text, bits a character."""
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) if text else 0.0


def _is_assigned_secret(match: re.Match[str]) -> bool:
    """Whether an assigned value is a secret and not a name, a type or a placeholder.

    A literal (in quotes, or NAME=value as in an environment file) needs two classes of characters; anything else
    could be code and needs three, or twelve characters.
    """
    value = match.group("v")
    if _PLACEHOLDER.fullmatch(value) or entropy_bits(value) < _MIN_ENTROPY_BITS:
        return False
    classes = (str.isdigit, str.islower, str.isupper, lambda c: not c.isalnum())
    mixed = sum(any(test(c) for c in value) for test in classes)
    before = match.string[match.start() : match.start("v")]
    literal = before[-1:] in "\"'" or (before.isupper() and before.endswith("="))
    return mixed >= 2 and (literal or mixed >= 3 or len(value) >= 12)


def _is_public_host(host: str) -> bool:
    lower = host.lower()
    if _RESERVED_HOST.search(lower):
        return True
    return any(lower == public or lower.endswith(f".{public}") for public in _PUBLIC_HOSTS)


def _is_personal_address(value: str) -> bool:
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        return False
    documentation = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
    if any(address in ipaddress.IPv4Network(net) for net in documentation):
        return False
    # Four small numbers are a version more often than an address, unless they are of a private range.
    private = any(address in ipaddress.IPv4Network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
    return not (address.is_loopback or address.is_unspecified) and (private or max(address.packed) >= 32)


def _is_host(match: re.Match[str]) -> bool:
    """`threading.local` is no host: under an inner domain, plain words need a digit, a hyphen or a port."""
    value = match.group("v")
    if _is_public_host(value) or re.fullmatch(r"[\d.]+", value):
        return False
    inner = "port" in match.re.groupindex
    return not inner or bool(re.search(r"[\d-]", value)) or match.group("port") is not None


def _counts(kind: str, match: re.Match[str]) -> bool:
    """Whether a match is real: no placeholder and no reserved or public name."""
    value = match.group("v")
    match kind:
        case "e-mail":
            return not _RESERVED_HOST.search(value.rsplit("@", 1)[1]) and not value.startswith("git@")
        case "home":
            return value.lower() not in _GENERIC_HOMES and not is_name(value)
        case "host":
            return _is_host(match)
        case "IP address":
            return _is_personal_address(value)
        case "assigned secret":
            return _is_assigned_secret(match)
        case "password in a URL":
            return not _PLACEHOLDER.fullmatch(value)
        case _:
            return len(set(value)) > 3


def find(text: str) -> Iterator[Finding]:
    """Findings in a text, without overlaps, in no particular order."""
    taken: list[tuple[int, int]] = []
    for pattern in _PATTERNS:
        for match in pattern.regex.finditer(text):
            start, end = match.span("v")
            if any(start < other_end and other_start < end for other_start, other_end in taken):
                continue
            if pattern.grade == "secret" and is_stand_in(match.group("v")):
                taken.append((start, end))  # so that no broader pattern takes it for a secret together with its prefix
            elif _counts(pattern.kind, match):
                taken.append((start, end))
                yield Finding(kind=pattern.kind, grade=pattern.grade, start=start, end=end)
