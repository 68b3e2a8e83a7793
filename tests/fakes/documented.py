"""What the README and the docs tell a reader to type: fenced blocks, their commands and files, links and anchors."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md")))
OURS = ("make", "dflash-sweep", "sweep.py")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- checked only: (?P<reason>[^>]+) -->\s*\Z")
_INLINE = re.compile(r"`((?:dflash-sweep|(?:\.venv/bin/)?python sweep\.py)[^`]*)`")
_LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
_ACTIVATE = [".", ".venv/bin/activate"]
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. `reason`: why its commands are only checked; None = they are run."""

    language: str
    body: str
    reason: str | None

    def commands(self) -> Iterator[list[str]]:
        for line in self.body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words != _ACTIVATE:
                yield words


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        marker = _MARKER.search(text[: fence.start()])
        body = textwrap.dedent(fence["body"])
        found.append(Block(language=fence["language"], body=body, reason=marker["reason"] if marker else None))
    return found


def files(page: Path) -> dict[str, str]:
    """Path and content of the files that a page shows, as a reader pastes them: YAML blocks whose path stands in the
    sentence before them or in their own first line."""
    found, text = {}, page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language != "yaml":
            continue
        sentence = text[: text.index(block.body)].rpartition("```yaml")[0].rstrip().rpartition("\n\n")[2]
        named = re.findall(r"`([\w./-]+\.yaml)`", sentence) or re.findall(r"\A# ([\w./-]+\.yaml)\n", block.body)
        if named:
            found[named[-1]] = block.body
    return found


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def inline_commands(page: Path) -> list[list[str]]:
    """Commands inside sentences; those with a placeholder (… or a name in capitals) are left out."""
    written = [text for text in _INLINE.findall(prose(page)) if "…" not in text and not re.search(r"\b[A-Z]{2,}", text)]
    return [shlex.split(text) for text in written]


def links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(prose(page)) if not re.match(r"https?://", link)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    names: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", bare).replace(" ", "-")
        twin = next((f"{name}-{count}" for count in range(1, 99) if f"{name}-{count}" not in names), name)
        names.add(twin if name in names else name)
    return names


def program(words: list[str]) -> str:
    """The name of the program that a command line runs; variables in front of it are passed over."""
    return Path(next((word for word in words if not re.match(r"[A-Z_]+=", word)), "")).name
