"""llama-server's command line as the forks have it: help text, error texts, exit codes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fakes.servers.stub import die, log


@dataclass(frozen=True)
class Option:
    """One entry of the help. `hint` empty = a switch; `allowed` = others are refused; `removed`: an error."""

    names: str
    hint: str = ""
    text: str = "does what it says"
    allowed: tuple[str, ...] = ()
    removed: bool = False
    env: str = ""


def help_text(options: tuple[Option, ...]) -> str:
    """Entries in column 0, their text in column 40, then `allowed values:` and `(env: …)` lines."""
    lines = ["----- common params -----", ""]
    for option in options:
        head = f"{option.names} {option.hint}".rstrip()
        text = ["the argument has been removed. use another one"] if option.removed else [option.text]
        if option.allowed:
            text.append(f"allowed values: {', '.join(option.allowed)}")
        if option.env:
            text.append(f"(env: {option.env})")
        if len(head) < 40:
            lines.append(f"{head:<40}{text.pop(0)}")
        else:
            lines.append(head)
        lines += [" " * 40 + line for line in text]
    return "\n".join(lines)


def parse(options: tuple[Option, ...], argv: list[str]) -> dict[str, str]:
    """Long name of each given option → its word ("" for a switch). Exits as llama-server does on a bad one."""
    by_name = {name.strip(): option for option in options for name in option.names.split(",")}
    for name in os.environ:
        if name.startswith("LLAMA_ARG_"):
            die(f'error while handling environment variable "{name}": not allowed in this test', 1)
    given: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        name = word.replace("_", "-") if word.startswith("--") else word
        if name not in by_name:
            die(f"error: invalid argument: {word}", 1)
        option = by_name[name]
        if option.removed:
            die(f"error: the argument has been removed. use another one (argument {word})", 1)
        long = [name.strip() for name in option.names.split(",")][-1]
        if not option.hint:
            given[long] = ""
            continue
        if not words:
            die(f"error: expected value for argument {word}", 1)
        value = words.pop(0)
        if option.allowed and value not in option.allowed:
            die(
                f'error while handling argument "{word}": Unsupported value: {value}\n\nusage:\n{word} {option.hint}', 1
            )
        if option.hint == "N" and not value.lstrip("-").isdigit():
            die(f'error while handling argument "{word}": stoi\n\nusage:\n{word} N', 1)
        given[long] = value
    return given


def check_model(given: dict[str, str]) -> None:
    """A model that is not there ends the server as upstream does."""
    for name in ("--model", "--spec-draft-model"):
        if name in given and not os.path.exists(given[name]):  # noqa: PTH110 a stub starts faster without pathlib
            log(f"llama_model_load: error loading model: failed to open {given[name]}")
            die("srv  main: exiting due to model loading error", 1)
