"""Asking a server's executable what it is: where it stands, its version, its help text, its switches.

Imports `errors`, `records`, `gguf_meta` (file hashes). The only place of an adapter that starts a process; it is given
a small environment so that stray variables do not change what a binary says about itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash_sweep.errors import EngineMissing
from dflash_sweep.records import EngineSettings

KEPT_VARIABLES = (
    "PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH",
    "CUDA_VISIBLE_DEVICES", "HF_HOME",
)  # fmt: skip
PROBE_TIMEOUT_S = 60.0
_HELP_COLUMN = 40

_WORD = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_LONG = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_ALLOWED = re.compile(r"allowed values:\s*([^\n(]+)")
_CHOICES = re.compile(r"\{([^{}\s]+)\}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run of a binary said: exit code, and stdout and stderr together."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Help:
    """A help text, read: every switch that exists, and the allowed values of those that list them."""

    flags: frozenset[str] = frozenset()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_values(self) -> frozenset[str]:
        """The switches, and `--flag=value` for every listed value: the form kept in EngineBuild.flags."""
        listed = {f"{flag}={value}" for flag, values in self.values.items() for value in values}
        return self.flags | listed


def find_binary(settings: EngineSettings, names: Sequence[str], how: str) -> str:
    """Absolute path of the executable: `settings.binary`, or the first of `names` on the PATH.

    Raises EngineMissing with `how`, a sentence that says how to get the engine.
    """
    if settings.binary is not None:
        path = Path(settings.binary).expanduser()
        if not path.is_file():
            raise EngineMissing(f"engine.binary={settings.binary}: there is no such file. {how}")
        return str(path.absolute())
    for name in names:
        if found := shutil.which(name):
            return str(Path(found).absolute())
    raise EngineMissing(f"{settings.name}: no {' or '.join(names)} on the PATH and engine.binary is not set. {how}")


def ask(argv: Sequence[str], timeout_s: float = PROBE_TIMEOUT_S) -> Answer:
    """Run a binary to its end and keep what it says. Raises EngineMissing: it cannot be run, or does not end."""
    env = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {"LC_ALL": "C", "COLUMNS": "200"}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EngineMissing(f"{' '.join(argv)}: did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise EngineMissing(f"{argv[0]}: cannot be run: {error.strerror or error}") from None
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"))


def binary_sha256(path: str) -> str:
    """Hash of the executable, remembered while the file stays the same."""
    from dflash_sweep.gguf_meta import file_sha256

    return file_sha256(path)


def reason(answer: Answer) -> str:
    """Why a probe failed: its last non-empty line and its exit code."""
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    return f"exit code {answer.code}: {lines[-1][:200] if lines else 'it printed nothing'}"


def entry_help(text: str) -> Help:
    """Help of llama.cpp's form: entries start in column 0, their text is indented. Removed entries are left out."""
    flags: set[str] = set()
    values: dict[str, tuple[str, ...]] = {}
    for spellings, body in _entries(text):
        if "the argument has been removed" in body:
            continue
        words = set(_WORD.findall(spellings))
        flags |= words
        listed = _ALLOWED.search(body)
        if listed:
            options = tuple(option.strip() for option in listed[1].split(",") if option.strip())
            values |= dict.fromkeys(words, options)
        elif hint := _value_list(spellings):
            values |= dict.fromkeys(words, hint)
    return Help(frozenset(flags), values)


def _entries(text: str) -> list[tuple[str, str]]:
    """(spellings, help) of each entry. Help starts in column 40, or on the next line if the spellings are longer."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            split = _HELP_COLUMN if line[_HELP_COLUMN - 1 : _HELP_COLUMN] == " " else len(line)
            found.append((line[:split], line[split:] + "\n"))
        elif found and line[:1].isspace():
            spellings, body = found[-1]
            found[-1] = (spellings, body + line.strip() + "\n")
    return found


def _value_list(spellings: str) -> tuple[str, ...]:
    """Values named in a hint such as `--spec-type none,draft-dflash` or `[on|off|auto]`."""
    hint = spellings.split()[-1] if spellings.split() else ""
    hint = hint.strip("[]{}<>")
    parts = re.split(r"[,|]", hint)
    return tuple(parts) if len(parts) > 1 and all(re.fullmatch(r"[a-z0-9][\w+-]*", part) for part in parts) else ()


def argparse_help(text: str) -> Help:
    """Help of Python's argparse: a switch exists if it begins an entry; `{a,b}` lists its values."""
    flags: set[str] = set()
    values: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped.startswith("-") or not line[:1].isspace():
            continue
        spelled = stripped.split("  ", 1)[0]
        words = set(_LONG.findall(spelled))
        flags |= words
        if listed := _CHOICES.search(spelled):
            values |= dict.fromkeys(words, tuple(listed[1].split(",")))
    return Help(frozenset(flags), values)


def usage_flags(text: str) -> frozenset[str]:
    """Every long switch that a free-form usage text names."""
    return frozenset(_LONG.findall(text))
