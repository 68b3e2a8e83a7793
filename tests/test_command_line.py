"""The `dflash-sweep` command as a program: help that is quick, errors of one line, completion, the list of studies."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dflash_sweep import __version__, app, cli, completion, help_page, mishap
from dflash_sweep.errors import ConfigError, StorageError, StudyFailed
from dflash_sweep.exits import EXIT_CONFIG, EXIT_DEFECT, EXIT_FAILED
from dflash_sweep.records import Measurement, StudyInfo
from dflash_sweep.terminal import studies_table

HEAVY = ("ray", "optuna", "pandas", "scipy", "matplotlib", "hydra", "plotly", "sqlalchemy", "numpy", "pyarrow")
ROOT = Path(__file__).parents[1]


def commands() -> Iterator[list[str]]:
    """The words of every command and group, `run` too."""

    def walk(command: object, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, [*words, name])

    yield from walk(typer.main.get_command(cli.app), [])


def python(code: str, *words: str, cwd: Path | None = None) -> str:
    run = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120, cwd=cwd,
                         check=True)  # fmt: skip
    return run.stdout


# ---------------------------------------------------------------- help


def test_no_help_loads_a_heavy_library() -> None:
    """All helps in one process; what it has loaded at the end is what they needed."""
    code = (
        "import contextlib, io, json, sys\n"
        "from dflash_sweep import cli\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    text = io.StringIO()\n"
        "    with contextlib.redirect_stdout(text):\n"
        "        assert cli.app(args=[*words, '--help'], standalone_mode=False) in (0, None), words\n"
        "    assert 'Usage: ' in text.getvalue(), words\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    asked = [words for words in commands() if words[:1] != ["run"]]
    assert len(asked) > 15
    assert set(json.loads(python(code, json.dumps(asked)))) & set(HEAVY) == set()


def test_the_help_of_a_run_is_hydras_without_loading_hydra(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from dflash_sweep.help_page import main\n"
        "assert main(['--help']) == 0\n"
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    text, _, loaded = python(code, cwd=tmp_path).rpartition("LOADED")
    assert set(loaded.split()) & set(HEAVY) == set()
    asked = [sys.executable, str(ROOT / "sweep.py")]
    door = subprocess.run([*asked, "--help"], capture_output=True, text=True, cwd=tmp_path, check=True, timeout=60)
    assert door.stdout == text
    hydra = subprocess.run([*asked, "--help", "seed=7"], capture_output=True, text=True, cwd=tmp_path, check=True,
                           timeout=60)  # fmt: skip
    assert hydra.stdout.split() == text.split()
    for said in ("Examples", "Groups", "study: ", "ddtree", "Exit codes", "n_trials=40", "--hydra-help"):
        assert said in text


def test_every_example_of_the_help_is_a_command_that_is_taken() -> None:
    from dflash_sweep import settings

    examples = help_page.text().partition("Examples")[2].partition("Groups:")[0].replace("\\\n", " ")
    lines = [line.strip() for line in examples.splitlines() if line.strip().startswith("python sweep.py")]
    assert len(lines) >= 5
    for line in lines:
        settings.merge(app.compose_overrides(app.normalise(shlex.split(line)[2:])))


@pytest.mark.parametrize("door", [["-m", "dflash_sweep"], ["-c", "from dflash_sweep.cli import main; main()"]])
def test_every_door_says_the_version(door: list[str]) -> None:
    run = subprocess.run([sys.executable, *door, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == f"dflash-sweep {__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", __version__), "a semantic version"


def test_the_package_says_that_it_is_typed() -> None:
    import dflash_sweep

    assert (Path(str(dflash_sweep.__file__)).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dflash_sweep.nothing


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reprot"], "No such command 'reprot'. Did you mean 'report'"),
        (["export"], "Missing argument"),
        (["export", "a", "--tuns"], "No such option: --tuns"),
        (["record"], "Missing option '--upstream'"),
        (["list", "storage.url=foo"], "storage.url=foo: not a database URL; for example sqlite:///studies.db"),
        (["list"], "there is no database yet; run a study first"),
        (["list", "foo"], "foo: not a setting; settings are written key=value, e.g. storage.url="),
        (["export", "ddtree", "--turns"], "--turns: rows of turns go into a table only; it takes --out FILE.csv"),
        (["export", "ddtree", "--turns", "--out", "log.jsonl"], "--turns: rows of turns go into a table only"),
        (["traces", "validate", "agent", "--for", "nonsense"], "--for nonsense: there is no such objective; allowed: "),
        (["traces", "validate", str(ROOT / "README.md")], "README.md, line 1: not JSON"),
        (["doctor", "engine=nope"], "engine=nope: there is no such engine; allowed: attach"),
        (["doctor", "engine.model=/m/q=4 (1).gguf"], "needs quotes twice: 'engine.model=\"/m/q=4 (1).gguf\"'"),
        (["report", "nope"], "there is no database yet"),
        (["traces", "show", "nope"], "trace nope: no such file, and no shipped trace"),
        (["import", "nope.jsonl"], "nope.jsonl: no such file"),
        (["run", "+study=nope"], "study=nope: there is no such study; allowed: "),
        (["run"], "no study is chosen: add +study=NAME"),
        (["run", "+study=ddtree", "n_trails=3"], "n_trails: there is no such key; did you mean n_trials?"),
        (
            ["run", "+study=ddtree", "progress=loud"],
            "progress=loud: not known; allowed: auto, live, plain, quiet, json",
        ),
        (["run", "--cfgg"], "--cfgg: there is no such option; did you mean --cfg?"),
        (["run", "--n_trials=3"], "--n_trials: there is no such option; settings are written key=value"),
        (["run", "ddtree"], "ddtree: not a setting; did you mean +study=ddtree?"),
        (["run", "+study=ddtree", "--cfg"], "--cfg: needs a value behind it"),
        (["run", "+study=ddtree", "study_name=${nothing}"], "Interpolation key 'nothing' not found"),
        (
            ["run", "+study=ddtree", "hydra.run.dir=/proc/nope"],
            "hydra.run.dir: /proc/nope cannot be made: No such file",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_one_line_and_code_2(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert cli._dispatch(words, verbose=False) == EXIT_CONFIG
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert not (tmp_path / "state").exists(), "a mistake of the user is no defect"


@pytest.mark.parametrize("words", [["list"], ["run", "+study=nope"], ["doctor", "engine=nope"]])
def test_v_shows_the_traceback_before_the_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli._dispatch(words, verbose=True) == EXIT_CONFIG
    lines = capfd.readouterr().err.splitlines()
    assert any(line == "Traceback (most recent call last):" for line in lines)
    assert lines[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("words", "rest", "verbose"),
    [
        (["-v", "list"], ["list"], True),
        (["list", "--verbose"], ["list"], True),
        (["run", "verbose=true"], ["run", "verbose=true"], True),
        (["list"], ["list"], False),
        (["x", "--", "-v"], ["x", "--", "-v"], False),
    ],
)
def test_v_may_stand_anywhere(words: list[str], rest: list[str], verbose: bool) -> None:
    assert mishap.take_verbose(words) == (rest, verbose)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("x"), EXIT_CONFIG), (StorageError("x"), EXIT_CONFIG), (StudyFailed("x"), EXIT_FAILED),
     (ZeroDivisionError("x"), EXIT_DEFECT)],
)  # fmt: skip
def test_exit_codes(error: Exception, code: int) -> None:
    assert mishap.exit_code(error) == code


def broken() -> None:
    raise ZeroDivisionError("division\nby zero")


def test_a_defect_is_one_line_that_names_its_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("dflash_sweep.doctor.examine", lambda *_: broken())
    assert cli._dispatch(["doctor"], verbose=False) == EXIT_DEFECT
    (line,) = capsys.readouterr().err.splitlines()
    found = re.fullmatch(
        r"error: this is a defect of dflash-sweep: ZeroDivisionError: division by zero "
        r"\(test_command_line\.py, line \d+\); details: (\S+); -v shows them here",
        line,
    )
    assert found is not None, line
    kept = Path(found.group(1))
    assert kept.parent == tmp_path / "dflash-sweep"
    assert "in broken" in kept.read_text()


def test_a_defect_in_a_run_points_at_the_runs_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main(["+study=ddtree"], lambda *_: broken() or 0) == EXIT_DEFECT  # type: ignore[func-returns-value]
    (line,) = capsys.readouterr().err.splitlines()
    found = re.search(r"details: (\S+); -v", line)
    assert found is not None
    log = Path(found.group(1))
    assert log.is_relative_to(tmp_path / "sweeps" / "ddtree")
    assert "ZeroDivisionError" in log.read_text()


def test_without_a_home_a_defect_is_still_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert mishap.keep(ZeroDivisionError()) is None
    assert mishap.one_line(ZeroDivisionError("x")).endswith("-v shows the details")


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m dflash_sweep run --cfg job +study=ddtree | head -1; echo ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=True)
    assert run.stdout.splitlines()[0] == "study_name: ddtree"
    assert run.stderr == ""


@pytest.mark.parametrize("word", ["study_name=../../escaped", "study_name=a/b", "study_name=", "n_trials=-1"])
def test_a_refused_command_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    (tmp_path / "in" / "side").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "in" / "side")
    assert app.main(["+study=ddtree", word]) == 2
    assert capsys.readouterr().err.startswith(f"error: {word.partition('=')[0]}=")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "side"]


# ---------------------------------------------------------------- XDG


def test_the_users_own_folder_is_found_without_being_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert app.user_folder() is None
    (tmp_path / "dflash-sweep" / "study").mkdir(parents=True)
    text = "# @package _global_\nstudy_name: mine\nspace: {budget: 'choice(16, 22)'}\n"
    (tmp_path / "dflash-sweep" / "study" / "mine.yaml").write_text(text)
    seen: list[str] = []
    monkeypatch.chdir(tmp_path)
    assert app.main(["+study=mine"], lambda cfg, *_: bool(seen.append(cfg.study_name))) == 0  # type: ignore[func-returns-value]
    assert seen == ["mine"]
    assert "mine" in app.choices("study", app.user_folder())


# ---------------------------------------------------------------- completion


def completed(line: str, tmp_path: Path) -> list[str]:
    """What bash would offer after this line (its words cut at "=", as bash cuts them)."""
    words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith(" ") else [])
    environ = {**os.environ, "_DFLASH_SWEEP_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words),
               "COMP_CWORD": str(len(words) - 1)}  # fmt: skip
    code = "import sys; sys.argv[0] = 'dflash-sweep'; from dflash_sweep.cli import main; main()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ,
                         cwd=tmp_path, check=False)  # fmt: skip
    return run.stdout.split()


def test_the_shell_completes_commands_and_overrides(tmp_path: Path) -> None:
    assert {"record", "report"} <= set(completed("dflash-sweep re", tmp_path))
    assert completed("dflash-sweep traces st", tmp_path) == ["stats"]
    assert completed("dflash-sweep run n_tr", tmp_path) == ["n_trials="]
    assert "ddtree" in completed("dflash-sweep run n_trials=3 +study=d", tmp_path)


def test_overrides_complete_to_keys_groups_and_names() -> None:
    assert completion.overrides("+st") == ["+study="]
    assert completion.overrides("storage.u") == ["storage.url="]
    assert completion.overrides("engine=em") == ["engine=emulator"]
    assert completion.overrides("em", ["engine", "="]) == ["emulator"]
    assert "ddtree" in completion.overrides("", ["+study"])
    assert completion.overrides("n_trials=") == []


@given(
    st.lists(st.sampled_from(["a=1", "~b", "+study=x"])),
    st.lists(st.sampled_from([["--cfg", "job"], ["-m"], ["--config-dir=/x"], ["--resolve"], ["--info", "config"]])),
    st.randoms(),
)
def test_settings_and_options_may_be_mixed(settings: list[str], options: list[list[str]], chance: Random) -> None:
    mixed = [[word] for word in settings] + options
    chance.shuffle(mixed)
    ordered = app.ordered([word for part in mixed for word in part])
    assert ordered[: len(settings)] == [part[0] for part in mixed if part[0] in settings]
    assert ordered[len(settings) :] == [word for part in mixed if part in options for word in part]


def test_hydra_completes_too(tmp_path: Path) -> None:
    environ = {**os.environ, "COMP_LINE": "python sweep.py +study=ddt", "COMP_POINT": "26"}
    command = [sys.executable, str(ROOT / "sweep.py"), "-sc", "query=bash"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path, check=False)
    assert run.stdout.split() == ["+study=ddtree"]


def test_completion_can_be_installed(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = "import sys; sys.argv[0] = 'dflash-sweep'; from dflash_sweep.cli import main; main()"
    command = [sys.executable, "-c", code, "--install-completion", "bash"]
    subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=True)
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and "_DFLASH_SWEEP_COMPLETE" in path.read_text()]
    assert scripts


# ---------------------------------------------------------------- list


STUDIES = (
    StudyInfo(name="ddtree", engine="emulator", measurement=Measurement.EMULATED, status="finished",
              created_utc="2026-01-02T03:04:05+00:00"),
    StudyInfo(name="mine-2", engine="llamacpp", measurement=Measurement.MEASURED, status="failed",
              created_utc="2026-01-03T03:04:05+00:00"),
)  # fmt: skip
COUNTS = {"ddtree": (61, 2)}


def test_studies_as_lines_for_programs() -> None:
    assert studies_table.lines(STUDIES, COUNTS) == [
        "ddtree\tfinished\temulator\temulated\t2026-01-02T03:04:05+00:00\t61\t2\tdecode_tps",
        "mine-2\tfailed\tllamacpp\tmeasured\t2026-01-03T03:04:05+00:00\t0\t0\tdecode_tps",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_studies_as_a_table_for_people(width: int) -> None:
    out = Console(file=io.StringIO(), width=width, color_system=None)
    out.print(studies_table.table(STUDIES, COUNTS, width))
    assert isinstance(out.file, io.StringIO)
    lines = [line for line in out.file.getvalue().splitlines() if line.strip()]
    assert len(lines) == 4  # header, rule, two studies: no row needs a second line
    assert lines[2].split()[:6] == ["ddtree", "finished", "emulator", "EMULATED", "61", "2"]
    assert "…" not in out.file.getvalue()
    assert ("objective" in lines[0]) is (width == 120)


@pytest.mark.parametrize(("flags", "shown"), [([], False), (["-v"], True)])
def test_warnings_of_libraries_are_shown_with_v_only(tmp_path: Path, flags: list[str], shown: bool) -> None:
    code = (
        "import sys, warnings; sys.argv[0] = 'dflash-sweep'\n"
        "from dflash_sweep import cli\n"
        "cli._dispatch = lambda words, verbose: warnings.warn('from deep inside', stacklevel=1) or 0\n"
        "cli.main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *flags, "list"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=True,
    )
    assert ("from deep inside" in run.stderr) is shown
