"""`python sweep.py …` and `dflash-sweep run …`: Hydra's command line, checked before anything starts.

Hydra itself exits with 1 and a page of text for a wrong override. So the configuration is composed here first, and an
error becomes one line and exit code 2; everything else (--cfg, --help, --multirun, completion) is Hydra's own.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from dflash_sweep import mishap, settings
from dflash_sweep.errors import ConfigError
from dflash_sweep.exits import EXIT_INTERRUPTED, EXIT_OK
from dflash_sweep.help_page import config_dir
from dflash_sweep.interrupts import terminate_as_interrupt

Job: TypeAlias = Callable[[DictConfig, Path, Path], int]
"""Gets the configuration, the launch directory and the run's own folder; gives the exit code."""

_UNREADABLE = (
    "mismatched input", "token recognition", "no viable alternative", "Ambiguous value", "LexerNoViableAlt",
)  # fmt: skip
"""How Hydra begins what it says of a value with signs that mean something to it."""

_SETTINGS = "settings are written key=value"

_OPEN_SECTIONS = (
    "space.", "constraints.", "compare.", "fixed.", "plain.", "engine.options.", "engine.env.", "sampler.options.",
)  # fmt: skip
"""Sections whose keys are the user's own."""

_OWN_FOLDER = ("--config-dir", "-cd")

_FLAGS = (
    "-h", "--help", "--hydra-help", "--version", "--resolve", "-r", "--run", "-m", "--multirun", "-sc",
    "--shell-completion",
)  # fmt: skip
_VALUED = (
    "-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir", "-i",
    "--info", "--experimental-rerun",
)  # fmt: skip
_OPTIONAL = ("-i", "--info")
"""Hydra's own options: without a value, with one, and with one that may be left out."""

_LOG = logging.getLogger(__name__)


def choices(group: str, own: Path | None = None) -> tuple[str, ...]:
    """The names of one configuration group; `own`: a folder of the user's, laid out as conf/."""
    folders = [config_dir(), *([own] if own is not None else [])]
    return tuple(sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")}))


def user_folder() -> Path | None:
    """The user's standing configuration folder, `$XDG_CONFIG_HOME/dflash-sweep` or `~/.config/dflash-sweep`, if any.

    Its groups stand beside the shipped ones, as those of --config-dir do, which it makes room for.
    """
    root = os.environ.get("XDG_CONFIG_HOME")
    folder = (Path(root) if root else Path.home() / ".config") / "dflash-sweep"
    return folder if folder.is_dir() else None


def own_folder(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Hydra's `--config-dir FOLDER` (or -cd) and the other words. Raises ConfigError if there is no such folder."""
    folder: str | None = None
    rest: list[str] = []
    waiting = False
    for word in words:
        name, equals, value = word.partition("=")
        if waiting or (equals and name in _OWN_FOLDER):
            folder, waiting = (word if waiting else value), False
        elif word in _OWN_FOLDER:
            waiting = True
        else:
            rest.append(word)
    if waiting or (folder is not None and not Path(folder).is_dir()):
        raise ConfigError(f"--config-dir {folder or ''}: needs a folder laid out as conf/, e.g. with study/mine.yaml")
    return (None if folder is None else Path(folder).absolute()), rest


def _is_override(word: str) -> bool:
    return not word.startswith("-") and "=" in word


def _open_section(word: str) -> str:
    """`space.budget=choice(16,22)` → `++space.budget='choice(16,22)'`: an axis is data, not a Hydra sweep.

    Keys of the open sections can be set whether the study names them or not. A value of `space` that is quoted already
    comes back as it is; within quotes Hydra takes everything literally but quotes and a backslash before one.
    """
    name, equals, value = word.partition("=")
    bare = name.lstrip("+")
    if not equals or not bare.startswith(_OPEN_SECTIONS):
        return word
    literal = value[:1] not in ("'", '"', "") if bare.startswith("space.") else value[:1] in ("<", ">")
    if literal:
        value = "'" + value.replace("'", "\\'") + "'"
    return f"++{bare}={value}"


def normalise(words: Sequence[str]) -> list[str]:
    """The command line as Hydra wants it: `study=x` works as well as `+study=x`, axes are quoted."""
    return [_open_section("+" + word if word.startswith("study=") else word) for word in words]


def compose_overrides(overrides: Sequence[str], own: Path | None = None) -> DictConfig:
    """The composed configuration of dotted overrides; `own`: the user's own configuration folder.

    Raises ConfigError with Hydra's reason in one line.
    """
    searched = [] if own is None else [f"hydra.searchpath=['file://{own}']"]
    try:
        OverridesParser.create().parse_overrides(list(overrides))
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(config_dir()), version_base="1.3"):
            return compose("config", overrides=[*overrides, *searched], return_hydra_config=False)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_reason(error, overrides, own)) from error


def _reason(error: Exception, overrides: Sequence[str], own: Path | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if missing := re.search(r"Could not find '(\w+)/([^']*)'", text):
        group, wanted = missing.groups()
        return f"{group}={wanted}: there is no such {group}; allowed: {', '.join(choices(group, own))}"
    if unknown := re.search(r"(?:Could not override|Could not append to config|Key) '([^']+)'", text):
        return _unknown_key(unknown.group(1))
    if unread := re.search(r"Error parsing override '([^']*)'", text):
        return f"{unread.group(1)}: not a setting; {_SETTINGS}, e.g. storage.url=sqlite:///studies.db"
    if any(words in text for words in _UNREADABLE):
        odd = [word for word in overrides if any(sign in word.partition("=")[2] for sign in "=#(~% ,|")]
        quoted = f"'{odd[0].partition('=')[0]}=\"{odd[0].partition('=')[2]}\"'" if odd else ""
        return text + (f"; a value with special signs needs quotes twice: {quoted}" if odd else "")
    return text


def _unknown_key(key: str) -> str:
    close = difflib.get_close_matches(key, settings.key_names(), n=3, cutoff=0.65)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"{key}: there is no such key{hint} (all keys: --cfg job)"


def _as_config_error(error: Exception, words: Sequence[str]) -> Exception:
    """What Hydra raises outside of a run is about the configuration, or about the folder it makes for the run."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        found: Exception = ConfigError(_reason(error, [word for word in words if _is_override(word)], None))
    elif isinstance(error, OSError) and error.filename is not None:
        found = ConfigError(f"hydra.run.dir: {error.filename} cannot be made: {error.strerror}")
    else:
        return error
    found.__cause__ = error
    return found


def fail(error: Exception, *, verbose: bool, as_json: bool, log: Path | None = None) -> int:
    """Say in one line what ended a run (as JSON too if that was asked for); gives the exit code.

    `log`: the run's own log, which gets the traceback; None = there is no run yet.
    """
    if log is not None:
        _LOG.error("this ended the run", exc_info=error)
    code = mishap.tell(error, verbose=verbose, details=log)
    if as_json:
        from dflash_sweep.terminal import write_end

        write_end(sys.stdout, None, code, error=mishap.one_line(error, log))
    return code


def ordered(words: Sequence[str]) -> list[str]:
    """The settings of a command line, then Hydra's options: it takes settings only in one piece.

    Raises ConfigError for a word that is neither, about which Hydra would print a page.
    """
    overrides: list[str] = []
    options: list[str] = []
    waiting = ""
    for word in words:
        name, equals, _ = word.partition("=")
        if waiting and not (waiting in _OPTIONAL and (equals or word.startswith("-"))):
            options.append(word)
            waiting = ""
        elif word.startswith("-"):
            _check_option(name)
            options.append(word)
            waiting = "" if equals or name not in _VALUED else name
        elif equals or word.startswith("~"):
            overrides.append(word)
        else:
            hint = f"did you mean +study={word}?" if word in choices("study") else _SETTINGS
            raise ConfigError(f"{word}: not a setting; {hint}")
    if waiting and waiting not in _OPTIONAL:
        raise ConfigError(f"{waiting}: needs a value behind it (all options: --hydra-help)")
    return [*overrides, *options]


def _check_option(name: str) -> None:
    if name not in (*_FLAGS, *_VALUED):
        close = difflib.get_close_matches(name, (*_FLAGS, *_VALUED), n=1)
        hint = f"did you mean {close[0]}?" if close else f"{_SETTINGS}, without dashes"
        raise ConfigError(f"{name}: there is no such option; {hint} (all options: --hydra-help)")


def _needs_check(words: Sequence[str]) -> bool:
    """True for a plain run; False where Hydra only prints something or runs many jobs."""
    return all(_is_override(word) or word.startswith("~") for word in words)


def _study_chosen(cfg: DictConfig) -> None:
    if "study_name" not in cfg or cfg.get("study_name") in (None, "???"):
        raise ConfigError(f"no study is chosen: add +study=NAME; there are: {', '.join(choices('study'))}")


def _start(cfg: DictConfig, launch_dir: Path, run_dir: Path) -> int:
    """The job of a configuration: one study, several engines side by side, or something stored that is run again."""
    if cfg.rerun.trial is not None or cfg.rerun.study is not None:
        from hydra.core.hydra_config import HydraConfig

        from dflash_sweep.rerun import run_rerun
        from dflash_sweep.rerun_study import run_study_again

        words = HydraConfig.get().overrides.task
        if cfg.rerun.trial is None:
            return run_study_again(cfg, words, launch_dir, run_dir)
        return run_rerun(settings.merge(cfg), words, launch_dir, run_dir)
    if cfg.compare:
        from dflash_sweep.comparison import run_comparison

        return run_comparison(cfg, config_dir() / "engine", launch_dir, run_dir)
    from dflash_sweep.run import run_study

    return run_study(cfg, launch_dir, run_dir)


def main(argv: Sequence[str] | None = None, job: Job | None = None) -> int:
    """Run Hydra on a command line; returns the exit code."""
    try:
        with terminate_as_interrupt():
            return _run(argv, job)
    except KeyboardInterrupt:  # a request that came while an error was being told
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str] | None, job: Job | None) -> int:
    given, verbose = mishap.take_verbose(sys.argv[1:] if argv is None else argv)
    words = normalise(given)
    as_json = any(word.lstrip("+") == "progress=json" for word in words)
    codes: list[int] = []
    logging.raiseExceptions = False  # a log that cannot be written (a closed pipe, a full disk) is no page of traceback

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    def run(cfg: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig

        logging.captureWarnings(True)  # libraries' warnings belong into the run's log
        if verbose or cfg.verbose:
            logging.getLogger("dflash_sweep").setLevel(logging.DEBUG)
        runtime = HydraConfig.get().runtime
        try:
            codes.append((job or _start)(cfg, Path(runtime.cwd), Path(runtime.output_dir)))
        except KeyboardInterrupt:
            codes.append(EXIT_INTERRUPTED)
        except Exception as error:  # noqa: BLE001 - Hydra would print a page of its own insides
            log = Path(runtime.output_dir) / f"{HydraConfig.get().job.name}.log"
            codes.append(fail(error, verbose=verbose, as_json=as_json, log=log))

    try:
        words = ordered(words)
        own, plain_words = own_folder(words)
        if own is None and (own := user_folder()) is not None:
            words = [*words, f"--config-dir={own}"]
        if _needs_check(plain_words):
            cfg = compose_overrides(plain_words, own)
            _study_chosen(cfg)
            merged = settings.merge(cfg)
            if merged.rerun.trial is None and merged.rerun.study is None:
                settings.check(merged)  # before Hydra makes the run's folder, whose name is the study's
            GlobalHydra.instance().clear()
        sys.argv = [sys.argv[0], *words]
        os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints a page of its own and ends the process
        run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last boundary: one line, whatever it was
        return fail(_as_config_error(error, words), verbose=verbose, as_json=as_json)
    finally:
        _close_logs()
    return max(codes, default=EXIT_OK)


def _close_logs() -> None:
    """Hydra opens a log file for each run and leaves it open."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, logging.FileHandler)]:
        root.removeHandler(handler)
        handler.close()
