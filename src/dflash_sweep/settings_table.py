"""Prints docs/configuration.md from the schemas in `schema`: `python -m dflash_sweep.settings_table`.

A key's meaning is the comment on its own line, so that it is written in one place only.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

from dflash_sweep import schema

_LINE = re.compile(r"^    (?P<name>\w+): (?P<type>[^=#]+?)(?: = (?P<default>.*?))?\s+# (?P<doc>.*)$")
_TITLE = """# Configuration

Every key, its type, default and meaning. Printed from the program's own schema; override any of them on the command
line (`n_trials=20 cluster.workers=2`). A study file sets what differs from these defaults.
"""


def documented(section: Any) -> dict[str, tuple[str, str]]:
    """Key → (type, meaning) of one schema, in its order. Raises ValueError for a key without a comment."""
    lines = inspect.getsource(section).splitlines()
    found = {match["name"]: (match["type"], match["doc"]) for line in lines if (match := _LINE.match(line))}
    plain = {entry.name for entry in fields(section)} - set(found)
    undocumented = [name for name in plain if str(_type(section, name)) not in schema.SECTIONS]
    if undocumented:
        raise ValueError(f"{section.__name__}.{undocumented[0]} has no comment that says what it is")
    return found


def _type(section: Any, name: str) -> Any:
    return next(entry.type for entry in fields(section) if entry.name == name)


def _default(section: Any, name: str) -> str:
    value = getattr(section(), name)
    if value == "???":
        return "must be set"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if value not in ("", {}, []) else "empty"


def _rows(section: Any, prefix: str) -> list[str]:
    rows = []
    for name, (kind, doc) in documented(section).items():
        shown = kind.replace("|", "\\|")
        allowed = schema.CHOICES.get(prefix + name)
        meaning = doc.replace("|", "\\|") + (
            f" ({', '.join(allowed)})" if allowed and not all(word in doc for word in allowed) else ""
        )
        rows.append(f"| `{prefix}{name}` | {shown} | {_default(section, name)} | {meaning} |")
    return rows


def page() -> str:
    """The whole page as markdown."""
    header = "| key | type | default | meaning |\n| --- | --- | --- | --- |"
    parts = [_TITLE, "\n".join([header, *_rows(schema.Config, "")])]
    for entry in fields(schema.Config):
        section = schema.SECTIONS.get(str(entry.type))
        if section is not None:
            intro = (inspect.getdoc(section) or "").splitlines()[0]
            parts.append(f"\n## {entry.name}\n\n{intro}\n\n" + "\n".join([header, *_rows(section, f"{entry.name}.")]))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - this is its purpose
