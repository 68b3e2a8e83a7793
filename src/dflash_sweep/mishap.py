"""How every command says what went wrong: one line, an exit code, and where the details are. Imports `errors`, `exits`.

What we raise on purpose says itself how to mend it. Anything else is a defect of this program: its traceback is kept in
a file (the run's log, or one below `$XDG_STATE_HOME`), and the one line names that file. Tracebacks come on request.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from dflash_sweep.errors import ConfigError, DflashSweepError
from dflash_sweep.exits import EXIT_CONFIG, EXIT_DEFECT, EXIT_FAILED, EXIT_PIPE

VERBOSE = ("-v", "--verbose")


def take_verbose(words: Sequence[str]) -> tuple[list[str], bool]:
    """A command line without -v and --verbose, and whether it had one (or verbose=true). After -- nothing is ours."""
    end = list(words).index("--") if "--" in words else len(words)
    ours, rest = words[:end], words[end:]
    asked = any(word in VERBOSE or word.lstrip("+") == "verbose=true" for word in ours)
    return [*(word for word in ours if word not in VERBOSE), *rest], asked


def state_dir() -> Path:
    """Where this program keeps notes about itself: `$XDG_STATE_HOME/dflash-sweep` or `~/.local/state/dflash-sweep`."""
    root = os.environ.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "dflash-sweep"


def exit_code(error: BaseException) -> int:
    """The exit code an error ends with."""
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    return EXIT_FAILED if isinstance(error, DflashSweepError) else EXIT_DEFECT


def one_line(error: BaseException, details: Path | None = None) -> str:
    """What went wrong, in one line. `details`: the file that holds the traceback, where there is one."""
    message = " ".join(str(error).split())
    if isinstance(error, DflashSweepError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    where = f"details: {details}; -v shows them here" if details is not None else "-v shows the details"
    return f"this is a defect of dflash-sweep: {type(error).__name__}: {message[:200]}{place}; {where}"


def keep(error: BaseException) -> Path | None:
    """Write the traceback of a defect into a file of its own; None if that cannot be done."""
    now = datetime.now(UTC)
    path = state_dir() / f"defect-{now:%Y%m%d-%H%M%S}-{os.getpid()}.txt"
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError, RuntimeError):  # no home, or one that cannot be written
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{now:%Y-%m-%dT%H:%M:%SZ}\n{shlex.join(sys.argv)}\nPython {sys.version}\n\n{text}")
        return path
    return None


def tell(error: BaseException, *, verbose: bool, details: Path | None = None) -> int:
    """Print an error as one line on standard error, after its traceback if asked; gives the exit code.

    `details`: the log that already holds a defect's traceback; None = it is kept in a file of its own.
    """
    if isinstance(error, BrokenPipeError):  # whoever read our output has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    if details is None and not isinstance(error, DflashSweepError):
        details = keep(error)
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    print(f"error: {one_line(error, details)}", file=sys.stderr)  # noqa: T201
    return exit_code(error)
