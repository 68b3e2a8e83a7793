"""Every command in the README and the docs is one that the program takes; every link leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dflash_sweep import app, settings
from dflash_sweep.cli import app as command_line
from dflash_sweep.errors import ConfigError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\]\((?!https?://|#)([^)\s#]+)")
OURS = ("make", "dflash-sweep", "python", "sweep.py")
GROUP = typer.main.get_command(command_line)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Page and words of each command line of ours inside a fenced block."""
    for page in PAGES:
        for _, body in FENCE.findall(page.read_text()):
            for line in body.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True) if line.strip() else []
                if words and Path(words[0]).name in OURS:
                    yield page.name, words


def check_overrides(words: list[str]) -> None:
    settings.merge(app.compose_overrides(app.normalise(words)))


def check_command(words: list[str]) -> None:
    """Let each level of the command parse its words, without running it."""
    if words[:1] == ["run"]:
        check_overrides(words[1:])
        return
    command, context, rest = GROUP, None, words
    while True:
        context = command.make_context("dflash-sweep", list(rest), parent=context, resilient_parsing=False)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context._protected_args, *context.args]
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found


def check(words: list[str]) -> None:
    program = Path(words[0]).name
    if program == "make":
        subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif program == "dflash-sweep":
        check_command(words[1:])
    elif program == "sweep.py" or words[1:2] == ["sweep.py"]:
        check_overrides([word for word in words[1:] if word != "sweep.py"])
    elif words[1:2] == ["-m"]:
        assert importlib.util.find_spec(words[2]) is not None


@pytest.mark.parametrize(("page", "words"), list(commands()), ids=lambda value: " ".join(value)[:60])
def test_a_documented_command_is_taken(page: str, words: list[str]) -> None:
    check(words)


def test_the_check_notices_a_wrong_command() -> None:
    for wrong in (["dflash-sweep", "reprot", "x"], ["dflash-sweep", "import", "a", "--studdy", "b"]):
        with pytest.raises(Exception, match=r"(?i)no such"):
            check(wrong)
    with pytest.raises(ConfigError, match="no such key"):
        check(["python", "sweep.py", "+study=ddtree", "n_trails=4"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []
