"""The help of `sweep.py` and `dflash-sweep run`, printed without Hydra, which takes longer to load than to be read.

The text is `hydra.help.template` of conf/config.yaml, so that Hydra itself prints the same where more than `--help` is
asked. Imports nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_INDENT = " " * 6
_PACKAGE = Path(__file__).parent
_IN_CHECKOUT = _PACKAGE.parents[1] / "conf"


def config_dir() -> Path:
    """The configuration folder: the checkout's own, or the one that travels inside the installed package."""
    return _IN_CHECKOUT if (_IN_CHECKOUT / "config.yaml").is_file() else _PACKAGE / "conf"


def is_asked(words: Sequence[str]) -> bool:
    """True if a command line asks for help and nothing else."""
    return list(words) in (["--help"], ["-h"])


def template(config: str) -> str:
    """The block of text under `template: |` in a configuration: its lines without their common indent."""
    _, _, rest = config.partition("    template: |\n")
    lines = []
    for line in rest.splitlines():
        if line.strip() and not line.startswith(_INDENT):
            break
        lines.append(line.removeprefix(_INDENT))
    return "\n".join(lines)


def text() -> str:
    """The page, with the groups that are there now."""
    folder = config_dir()
    groups = {path.name: sorted(entry.stem for entry in path.glob("*.yaml")) for path in folder.iterdir()}
    lines = "".join(f"{name}: {', '.join(entries)}\n" for name, entries in sorted(groups.items()) if entries)
    page = template((folder / "config.yaml").read_text(encoding="utf-8"))
    return page.replace("$APP_CONFIG_GROUPS", lines).rstrip() + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The door of `sweep.py`: the help, or Hydra's command line; returns the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if is_asked(words):
        print(text(), end="")  # noqa: T201
        return 0
    from dflash_sweep.app import main as run_main

    return run_main(words)
