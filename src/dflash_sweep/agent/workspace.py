"""The sample repository and the tools that work on it, confined to one folder. Imports `errors` only.

A tool's result is the text a model would read. Results hold no absolute path and no time of day, so that recording
twice gives the same texts; a wrong call gives a line that begins with "error:".
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from dflash_sweep.errors import ConfigError

_TEST_LIMIT_S = 60.0
_MAX_MATCHES = 40


def _parameters(required: tuple[str, ...] = (), **properties: tuple[str, str]) -> dict[str, Any]:
    described = {name: {"type": kind, "description": text} for name, (kind, text) in properties.items()}
    return {"type": "object", "properties": described, "required": list(required), "additionalProperties": False}


_PATH = ("string", "Path of the file, relative to the root of the repository.")

TOOLS: tuple[dict[str, Any], ...] = tuple(
    {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
    for name, description, parameters in (
        (
            "list_files",
            "List every file below a directory of the repository with its number of lines.",
            _parameters(directory=("string", "Directory to list; the root of the repository when left out.")),
        ),
        (
            "read_file",
            "Read a text file, or a range of its lines. Every line is shown with its number.",
            _parameters(
                ("path",),
                path=_PATH,
                first_line=("integer", "First line to show, counted from 1."),
                last_line=("integer", "Last line to show; the end of the file when left out."),
            ),
        ),
        (
            "search_text",
            "Find lines that match a regular expression, in all files or below one directory.",
            _parameters(
                ("pattern",),
                pattern=("string", "Regular expression, case-sensitive, in Python's syntax."),
                directory=("string", "Directory to search; the root of the repository when left out."),
            ),
        ),
        (
            "replace_in_file",
            "Replace one exact piece of text in a file. The old text must occur exactly once.",
            _parameters(
                ("path", "old_text", "new_text"),
                path=_PATH,
                old_text=("string", "The text to replace, with its exact indentation and line breaks."),
                new_text=("string", "The text to put in its place."),
            ),
        ),
        (
            "write_file",
            "Create a text file, or overwrite it completely.",
            _parameters(("path", "content"), path=_PATH, content=("string", "The whole content of the file.")),
        ),
        (
            "run_tests",
            "Run the unit tests in a fresh process and show what did not pass.",
            _parameters(module=("string", "One test module, such as tests.test_parsing; all when left out.")),
        ),
    )
)


class ToolError(Exception):
    """A call that a tool refuses; its text goes to the model as the result."""


class Workspace:
    """A folder holding the sample repository. `call` runs one tool in it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._tools: dict[str, Callable[..., str]] = {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "search_text": self.search_text,
            "replace_in_file": self.replace_in_file,
            "write_file": self.write_file,
            "run_tests": self.run_tests,
        }

    @classmethod
    def create(cls, root: Path) -> Workspace:
        """Write the sample repository into an empty or new folder. Raises ConfigError if the folder holds files."""
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise ConfigError(f"{root} is not empty; the sample repository is written into an empty folder")
        text = files("dflash_sweep.agent").joinpath("sample_repository.toml").read_text(encoding="utf-8")
        for entry in tomllib.loads(text)["file"]:
            path = root / entry["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(entry["text"], encoding="utf-8")
        return cls(root)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's result, or a line that begins with "error:" and says what was wrong with the call."""
        if name not in self._tools:
            return f"error: no tool {name!r}; tools are {', '.join(self._tools)}"
        try:
            return self._tools[name](**arguments)
        except ToolError as error:
            return f"error: {error}"
        except TypeError:
            return f"error: {name} does not take these arguments: {', '.join(arguments) or 'none'}"

    def _inside(self, path: str) -> Path:
        target = (self.root / path).resolve()
        if target != self.root and self.root not in target.parents:
            raise ToolError(f"{path} is outside of the repository")
        return target

    def _file(self, path: str) -> Path:
        target = self._inside(path)
        if not target.is_file():
            raise ToolError(f"no file {path}")
        return target

    def _files(self, directory: str) -> list[Path]:
        start = self._inside(directory)
        if not start.is_dir():
            raise ToolError(f"no directory {directory}")
        found = (path for path in start.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return sorted(found)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def list_files(self, directory: str = ".") -> str:
        rows = [(self._name(path), len(path.read_text("utf-8").splitlines())) for path in self._files(directory)]
        return "\n".join(f"{name} ({count} line{'s' * (count != 1)})" for name, count in rows) or "no files"

    def read_file(self, path: str, first_line: int = 1, last_line: int | None = None) -> str:
        rows = self._file(path).read_text("utf-8").splitlines()
        if not 1 <= first_line <= max(1, len(rows)):
            raise ToolError(f"first_line {first_line}: {path} has {len(rows)} lines")
        shown = rows[first_line - 1 : last_line]
        return "\n".join(f"{number:>3}  {row}".rstrip() for number, row in enumerate(shown, first_line)) or "empty file"

    def search_text(self, pattern: str, directory: str = ".") -> str:
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise ToolError(f"not a regular expression: {error}") from None
        hits = [
            f"{self._name(path)}:{number}: {row.strip()}"
            for path in self._files(directory)
            for number, row in enumerate(path.read_text("utf-8").splitlines(), 1)
            if expression.search(row)
        ]
        more = [f"… and {len(hits) - _MAX_MATCHES} more"] if len(hits) > _MAX_MATCHES else []
        return "\n".join(hits[:_MAX_MATCHES] + more) or "no match"

    def replace_in_file(self, path: str, old_text: str, new_text: str) -> str:
        target = self._file(path)
        text = target.read_text("utf-8")
        count = text.count(old_text) if old_text else 0
        if count != 1:
            raise ToolError(f"old_text occurs {count} times in {path}; it must occur exactly once")
        target.write_text(text.replace(old_text, new_text), encoding="utf-8")
        line = text[: text.index(old_text)].count("\n") + 1
        return f"replaced {len(old_text.splitlines())} lines by {len(new_text.splitlines())} at {path}:{line}"

    def write_file(self, path: str, content: str) -> str:
        target = self._inside(path)
        existed = target.exists()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        return f"{'overwrote' if existed else 'created'} {path} ({len(content.splitlines())} lines)"

    def run_tests(self, module: str | None = None) -> str:
        with as_file(files("dflash_sweep.agent").joinpath("test_program.py")) as program:
            argv = [sys.executable, "-B", "-I", str(program), str(self.root), *([module] if module else [])]
            try:
                done = subprocess.run(
                    argv, cwd=self.root, capture_output=True, text=True, timeout=_TEST_LIMIT_S, check=False
                )
            except subprocess.TimeoutExpired:
                return f"error: the tests took longer than {_TEST_LIMIT_S:.0f} s and were stopped"
        if done.returncode not in (0, 1):
            return f"error: the tests could not be run: {done.stderr.strip().splitlines()[-1:]}"
        return done.stdout.strip()
