"""What an archive does not tell about people and machines: secrets, home folders, names of hosts. Imports `evidence`.

Secrets are always hidden. Home folders become ~ and hosts host1, host2 …, unless names are to be kept. In logs a home
folder is replaced by as many bytes as it had, because turns point into logs by byte: ~ and slashes, which is the same
path to every system. Prompts and answers are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash_sweep.evidence import HIDDEN, SECRET_WORDS, without_secrets

_SETTINGS = frozenset({"env", "options", "request_fields", "headers"})
"""Mappings whose names are somebody's own words: one of them may be called api_key."""
_WORDS = frozenset({"argv", "extra_args"})
_HOSTS = frozenset({"host", "worker", "owner"})
_MEASURED = frozenset({"turns"})
"""What was asked and answered: it has hashes, and is compared byte for byte. It is taken along as it is."""
_URL_PASSWORD = re.compile(r"(\w+://[^:/@\s]+):[^@/\s]+@")
_MIN_HOME = 2
"""A home folder of "/" is in every path."""


class Mask:
    """Hides what is to be hidden, the same thing under the same name throughout an archive.

    `home`: the home folder to be hidden; None = names and paths are kept.
    """

    def __init__(self, home: str | None) -> None:
        self._home = home.rstrip("/") if home and len(home.rstrip("/")) >= _MIN_HOME else None
        self._keep = home is None
        self._hosts: dict[str, str] = {}
        self._path = None if self._home is None else re.compile(re.escape(self._home) + r"(?![\w.-])")
        self._bytes = None if self._path is None else re.compile(self._path.pattern.encode())

    def text(self, value: str) -> str:
        """A text without passwords in URLs and without the home folder."""
        shown = _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", value)
        return shown if self._path is None else self._path.sub("~", shown)

    def log(self, content: bytes) -> bytes:
        """A log, every byte at its place."""
        if self._bytes is None:
            return content
        return self._bytes.sub(lambda found: b"~" + b"/" * (len(found.group()) - 1), content)

    def data(self, value: Any, key: str = "") -> Any:
        """Plain data of any depth; `key`: the name it stands under."""
        if key in _MEASURED:
            return value
        if isinstance(value, Mapping):
            shown = without_secrets(dict(value)) if key in _SETTINGS else value
            return {self.text(str(name)): self.data(entry, str(name)) for name, entry in shown.items()}
        if isinstance(value, list | tuple):
            items = _without_secret_words(list(value)) if key in _WORDS else value
            return [self.data(entry) for entry in items]
        if not isinstance(value, str):
            return value
        return self._host(value) if key in _HOSTS and not self._keep else self.text(value)

    def _host(self, value: str) -> str:
        """host, worker (host:pid) and owner (host:pid:…): the host by number, the rest as it is."""
        name, colon, rest = value.partition(":")
        if not name:
            return value
        return self._hosts.setdefault(name, f"host{len(self._hosts) + 1}") + colon + rest


def _without_secret_words(words: list[Any]) -> list[Any]:
    """A command line in which the values of --api-key, --hf-token=… are hidden."""
    shown: list[Any] = []
    secret = False
    for word in words:
        name, equals, _ = str(word).partition("=")
        if secret and not str(word).startswith("--"):
            shown.append(HIDDEN)
            secret = False
            continue
        secret = _is_secret(name) and not equals
        shown.append(f"{name}={HIDDEN}" if equals and _is_secret(name) else word)
    return shown


def _is_secret(name: str) -> bool:
    return name.startswith("-") and re.split(r"[-_]", name.lower())[-1] in SECRET_WORDS
