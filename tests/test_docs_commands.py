"""What the README and the docs say is true of the program: commands run or are taken, links and anchors lead somewhere.

A fenced `sh` block is run line by line in a folder of its own that holds what the pages' readers have: a session, a
trace, an old log, two finished studies. Searches are cut to a few runs on the emulator. A block behind a comment
`<!-- checked only: reason -->` is not run: its overrides are composed and held against the schema and the engine's
knobs, its other commands are parsed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import dflash_sweep
from dflash_sweep import app, engines, exits, preflight, settings
from dflash_sweep.analysis.verdicts import VERDICT_IDS
from dflash_sweep.cli import app as command_line
from dflash_sweep.space import SearchSpace
from fakes import documented
from fakes.command_host import Ended, Host
from fakes.documented import ROOT, Block

GROUP = typer.main.get_command(command_line)
COMMANDS: dict[str, object] = getattr(GROUP, "commands", {})
FEW_RUNS = (
    "cluster.kind=inline", "cluster.workers=1", "protocol.half_width=null", "protocol.confirm_blocks=0",
    "report.formats=[png]", "storage.dashboard=false",
)  # fmt: skip
"""Added to every study that is run: what makes it short and changes nothing that a page is about."""

PREPARED = (
    ["dflash-sweep", "run", "+study=ddtree"],
    ["dflash-sweep", "archive", "export", "ddtree", "--out", "ddtree.zip"],
    ["dflash-sweep", "archive", "import", "ddtree.zip", "--as", "ddtree-2"],
)
"""Run once, for the folder that every page begins with; those that a page shows are not run again."""

FOREIGN = ("nvidia-smi", "createdb", "ray", "export")
"""Programs of others that pages name; never run here."""

EXAMPLE_LOG = Path(dflash_sweep.__file__).parent / "data" / "castle-runs-001-113.jsonl"
SAMPLES = Path(__file__).parent / "traces" / "samples"


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ---------------------------------------------------------------- checking


def check_study(words: list[str], folder: Path) -> None:
    """Compose overrides, hold them against the schema, and axes, fixed values and options against the engine."""
    own, overrides = app.own_folder([word for word in words if word not in ("--cfg", "job")])
    cfg = app.compose_overrides(app.normalise(overrides), own)
    stand_in = folder / "stand-in.gguf"
    stand_in.touch()
    for key in ("binary", "model", "draft_model"):
        if cfg.engine.get(key) is not None:
            cfg.engine[key] = str(stand_in)
    built = settings.build(cfg, launch_dir=folder, run_dir=folder, sampling_seed=1)
    engine = engines.get(built.engine.name)
    space = SearchSpace(axes=tuple(preflight.bind_axis(engine, axis) for axis in built.space.axes))
    preflight.bind_knobs(engine, built.fixed, "fixed")
    assert {axis.name for axis in space.axes}.isdisjoint(built.fixed)
    known = {definition.name for definition in engine.options}
    assert set(built.engine.options) <= known


def check_command(words: list[str]) -> None:
    """Let each level of `dflash-sweep` parse its words, without running it; overrides among them are composed."""
    command, context, rest = GROUP, None, words
    while True:
        context = command.make_context("dflash-sweep", list(rest), parent=context, resilient_parsing=False)
        if not hasattr(command, "resolve_command"):
            break
        rest = [*context._protected_args, *context.args]
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
    overrides = [word for word in words if "=" in word.partition("/")[0] and not word.startswith("-")]
    if overrides:
        settings.merge(app.compose_overrides(app.normalise([*overrides, "study_name=none"])))


def check(words: list[str], folder: Path) -> None:
    name = documented.program(words)
    rest = words[next(place for place, word in enumerate(words) if Path(word).name == name) + 1 :]
    if name == "make":
        subprocess.run(["make", "--dry-run", *rest], cwd=ROOT, check=True, capture_output=True)
    elif name == "dflash-sweep" and rest[0] != "run":
        check_command(rest)
    elif name in ("dflash-sweep", "sweep.py") or rest[:1] == ["sweep.py"]:
        check_study(rest[1:] if rest[0] in ("run", "sweep.py") else rest, folder)
    elif name == "python" and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None
    else:
        assert name in FOREIGN, f"{' '.join(words)}: which program is this?"


# ---------------------------------------------------------------- running


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host() as running:
        yield running


@pytest.fixture(scope="module")
def readers_folder(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages' readers have: files of their own, and two finished studies."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copy(SAMPLES / "pi.jsonl", folder / "my-session.jsonl")
    (folder / "system-prompt.txt").write_text("You are a toy agent.\n")
    (folder / "tools.json").write_text(json.dumps([{"type": "function", "function": {"name": "bash"}}]))
    lines = EXAMPLE_LOG.read_text().splitlines(keepends=True)
    (folder / "autoresearch.jsonl").write_text("".join(lines[:16]))
    words = ["traces", "import", "my-session.jsonl", "--out", "my-agent.jsonl", "--infer-tools"]
    assert host.run("cli", words, folder).code == 0
    for words in PREPARED:
        done = run(host, words, folder)
        assert done.code == 0, f"{' '.join(words)}\n{done.err}"
    return folder


def shortened(words: list[str]) -> list[str]:
    """The words of a study, made short: a small trace where the page names none, few runs."""
    if "--cfg" in words:
        return words
    given = {word.partition("=")[0] for word in words}
    few = [word for word in FEW_RUNS if word.partition("=")[0] not in given]
    if not given & {"trace", "trace.path", "--config-dir"}:
        few.append("trace=agent_short")
    if "+study=one" in words:  # it has no search
        few += ["protocol.baseline_repeats=1", "protocol.default_repeats=1"]
    elif ["dflash-sweep", "run", *words] in PREPARED:
        few += ["protocol.baseline_repeats=2", "protocol.default_repeats=1", "n_trials=1"]
    else:
        few += ["protocol.baseline_repeats=1", "protocol.default_repeats=0"]
        few.append("n_trials=2" if "resume=true" in words else "n_trials=1")
    return [*words, *few]


def run(host: Host, words: list[str], folder: Path) -> Ended:
    name = documented.program(words)
    at = next(place for place, word in enumerate(words) if Path(word).name == name)
    environment = dict(word.split("=", 1) for word in words[:at])
    rest = words[at + 1 :]
    if name == "dflash-sweep":
        if rest[0] == "run":
            rest = ["run", *shortened(rest[1:])]
        elif rest[0] == "report":
            rest = [*rest, "report.formats=[png]"]
        elif rest[0] == "rerun":
            rest = [*rest, "cluster=inline"]  # no Ray of its own
        return host.run("cli", rest, folder, environment)
    if name == "python" and rest[0] == "sweep.py":
        return host.run("app", shortened(rest[1:]), folder, environment)
    if name == "python" and rest[0] == "-m":
        return host.run("module", rest[1:], folder, environment)
    raise AssertionError(f"{' '.join(words)}: not a command that can be run here; say why in a comment above its block")


def page_blocks(page: Path) -> list[Block]:
    return [block for block in documented.blocks(page) if block.language in ("sh", "console")]


def shown_files(page: Path, folder: Path) -> Path:
    """The folder, with the files in it that the page shows."""
    for name, content in documented.files(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def started(page: Path) -> bool:
    return any(block.reason is None for block in page_blocks(page))


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in documented.PAGES if started(page)], ids=page_id)
def test_the_commands_of_a_page_run(
    page: Path, host: Host, readers_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    shutil.copytree(readers_folder, folder)
    shown_files(page, folder)
    monkeypatch.chdir(folder)
    for block in page_blocks(page):
        for words in block.commands():
            if block.reason is not None:
                check(words, folder)
            elif words not in PREPARED:
                done = run(host, words, folder)
                allowed = (0, exits.EXIT_UNDECIDED) if "rerun" in words else (0,)  # two repeats may be too few to say
                assert done.code in allowed, f"{' '.join(words)}\n{done.out}\n{done.err}"


@pytest.mark.parametrize("page", [page for page in documented.PAGES if not started(page)], ids=page_id)
def test_the_commands_of_a_page_are_taken(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shown_files(page, tmp_path)
    monkeypatch.chdir(folder)
    for block in page_blocks(page):
        for words in block.commands():
            check(words, folder)


@pytest.mark.parametrize("page", documented.PAGES, ids=page_id)
def test_commands_in_sentences_exist(page: Path, tmp_path: Path) -> None:
    for words in documented.inline_commands(page):
        if len(words) > 2 and ("sweep.py" in words or words[1] == "run"):
            check(words, tmp_path)
        elif len(words) > 1 and "sweep.py" not in words and not words[1].startswith("-"):
            assert words[1] in COMMANDS, " ".join(words)


@pytest.mark.parametrize("page", documented.PAGES, ids=page_id)
def test_every_command_stands_in_a_block_that_is_tested(page: Path) -> None:
    for block in documented.blocks(page):
        if block.language in ("sh", "console", "bash"):
            continue
        first_words = [line.split()[:1] for line in block.body.splitlines()]
        assert [word for word in first_words if word and Path(word[0]).name in documented.OURS] == []
    assert "\n    dflash-sweep" not in documented.prose(page)


def test_the_readme_begins_with_two_commands() -> None:
    for page in (ROOT / "README.md", ROOT / "README.zh.md"):
        first = next(iter(page_blocks(page)))
        assert list(first.commands()) == [["make", "study"], ["make", "test"]]


def test_both_readmes_name_the_same_commands() -> None:
    english, chinese = (
        [words for block in page_blocks(page) for words in block.commands()]
        for page in (ROOT / "README.md", ROOT / "README.zh.md")
    )
    assert [[word for word in words if word != "report.lang=zh"] for words in chinese] == english


@pytest.mark.parametrize(
    "wrong",
    [
        ["dflash-sweep", "reprot", "x"],
        ["dflash-sweep", "import", "a", "--studdy", "b"],
        ["dflash-sweep", "report", "x", "report.langg=zh"],
        ["python", "sweep.py", "+study=ddtree", "n_trails=4"],
        ["python", "sweep.py", "+study=ddtree", "space.budgett=choice(1,2)"],
        ["dflash-sweep", "run", "+study=beellama", "engine.model=/m/x.gguf", "fixed.flash_attn=never"],
    ],
)
def test_the_check_notices_a_wrong_command(wrong: list[str], tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)no such|not allowed"):
        check(wrong, tmp_path)


def test_the_run_notices_a_command_that_fails(host: Host, tmp_path: Path) -> None:
    done = run(host, ["dflash-sweep", "report", "nothing"], tmp_path)
    assert done.code == 2
    assert done.err.startswith("error: ")


@pytest.mark.parametrize("page", documented.PAGES, ids=page_id)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    dead = []
    for link in documented.links(page):
        name, _, anchor = link.partition("#")
        target = page if not name else (page.parent / name)
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in documented.anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in documented.links(index)}
    pages = {page.resolve() for page in documented.PAGES if page.parent != ROOT and page != index}
    assert sorted(page_id(page) for page in pages - linked) == []


def test_the_page_of_verdicts_names_every_verdict_in_their_order() -> None:
    named = re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(dict.fromkeys(named)) == VERDICT_IDS


def test_the_page_of_exit_codes_names_every_code() -> None:
    named = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code) for code in named} == {value for name, value in vars(exits).items() if name.startswith("EXIT_")}
