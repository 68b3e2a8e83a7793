"""A whole report, written from stored trials: what is in it, and that odd studies get one too."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dflash_sweep import report
from dflash_sweep.errors import ConfigError, FailureKind
from dflash_sweep.records import Failure, LaunchSpec, Measurement, Role, StoredTrial, StudyInfo
from dflash_sweep.report import findings_json, style, writer
from dflash_sweep.report.figures import FIGURES
from dflash_sweep.report.outcome import outcome

ROOT = Path(__file__).resolve().parents[2]
Builder = Callable[..., Any]


def check_files(folder: Path) -> dict[str, Any]:
    """findings.json of a report, after checks that hold for every report."""
    loaded: dict[str, Any] = json.loads((folder / "findings.json").read_text(), parse_constant=pytest.fail)
    jsonschema.validate(loaded, findings_json.schema(), cls=jsonschema.Draft202012Validator)
    for name in ("findings.md", "results.csv", "findings.html"):
        text = (folder / name).read_text()
        assert not re.search(r"\b(nan|NaN|inf|None|NaT)\b", text), name
    for files in loaded["files"].values():
        assert all((folder / file).stat().st_size > 1000 for file in files)
    return loaded


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn but not rendered: for tests of words."""
    monkeypatch.setattr(style, "rendered", lambda figure, suffix: b"drawn, not rendered: to save time" * 40)


@pytest.fixture(scope="module")
def full(build_study: Builder, build_trials: Builder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    assert report.write(build_study(), build_trials(48), folder) == folder / "findings.md"
    return folder


def test_page_holds_every_part(full: Path) -> None:
    page = (full / "findings.md").read_text()
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert heads == [
        "Verdict", "What to run now", "Best settings", "What matters and what does not", "Where the time goes",
        "What failed and why", "What was assumed, and how far to trust it", "Provenance", "More pictures",
    ]  # fmt: skip
    assert page.startswith("# Findings: example — EMULATED\n")
    # the invented model pays one plain decode per committed token: plain decoding must win
    assert "**Plain decoding wins" in page
    assert "A=1 llama-server -m 'target model.gguf' --port 40001" in page
    assert page.count("*EMULATED.") == 3, "each of the three tables says what kind of numbers it holds"
    assert page.count("\n") < 140
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert (full / target).exists(), target


def test_json_twin_agrees_with_the_rows(full: Path, build_trials: Builder) -> None:
    found = check_files(full)
    trials: Sequence[StoredTrial] = build_trials(48)
    failed = [trial for trial in trials if trial.result.failure]
    assert found["measurement"] == "emulated"
    assert found["counts"]["trials"] == 48
    assert found["counts"]["failed"] == len(failed) == sum(entry["count"] for entry in found["failures"])
    assert found["answer"]["outcome"] == "plain_wins"
    assert set(found["files"]) == set(FIGURES)
    assert {verdict["id"] for verdict in found["verdicts"]} >= {"break_even", "structural_bound", "dead_axis"}
    assert {uid for entry in found["failures"] for uid in entry["uids"]} == {trial.uid for trial in failed}
    named = {uid for setting in found["settings"] for uid in setting["uids"]}
    judged_by = {trial.uid for trial in trials if trial.result.failure is None}
    confirmed = {trial.candidate for trial in trials if trial.role is Role.CONFIRM and trial.speculative}
    judged_by -= {trial.uid for trial in trials if trial.candidate in confirmed and trial.role is not Role.CONFIRM}
    assert named == judged_by, "confirmed settings are judged by their confirm runs, all others by every good run"


def test_every_row_is_in_the_table(full: Path, build_trials: Builder) -> None:
    rows = list(csv.DictReader(io.StringIO((full / "results.csv").read_text())))
    assert [row["uid"] for row in rows] == [trial.uid for trial in build_trials(48)]
    plain = [row for row in rows if row["speculative"] == "False"]
    assert all(row["draft_ms"] == "" for row in plain), "a stage that is not printed is empty, never 0"


def test_failures_are_listed_by_kind(full: Path) -> None:
    page = (full / "findings.md").read_text()
    table = page[page.index("## What failed") : page.index("## What was assumed")]
    assert re.search(r"\| `out_of_memory` \| \d+ \| the settings do not fit in memory \| CUDA error", table)
    assert re.search(r"\| `request_failed` \| \d+ \|", table)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_html_is_self_contained(full: Path) -> None:
    page = _Page()
    page.feed((full / "findings.html").read_text())
    images = [attrs["src"] or "" for tag, attrs in page.tags if tag == "img"]
    assert len(images) == len(FIGURES)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object")]
    assert all("src" not in attrs for tag, attrs in page.tags if tag == "script")
    ids = {attrs["id"] for _, attrs in page.tags if attrs.get("id")}
    links = {attrs["href"] or "" for tag, attrs in page.tags if tag == "a"}
    assert links
    assert {link.removeprefix("#") for link in links} <= ids
    assert {f"trial-{number}" for number in range(48)} <= ids


def test_same_rows_give_same_files(build_study: Builder, build_trials: Builder, tmp_path: Path) -> None:
    trials = build_trials(4, turns=1)
    for name in ("one", "two"):
        report.write(build_study(), tuple(trials) if name == "one" else tuple(reversed(trials)), tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert files == sorted(
        path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*") if path.is_file()
    )
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def broken(trial: StoredTrial, kind: FailureKind = FailureKind.CRASHED) -> StoredTrial:
    return replace(trial, result=replace(trial.result, turns=(), failure=Failure(kind=kind, message="a|b\n`c` <d>")))


def without_stages(trial: StoredTrial) -> StoredTrial:
    turns = tuple(
        replace(turn, counters=replace(turn.counters, stages=(), acceptance_histogram=None, verify_steps=None))
        for turn in trial.result.turns
    )
    return replace(trial, result=replace(trial.result, turns=turns))


ODD: dict[str, tuple[Callable[[Sequence[StoredTrial]], Sequence[StoredTrial]], str]] = {
    "empty": (lambda trials: (), "nothing"),
    "all failed": (lambda trials: [broken(trial) for trial in trials], "all_failed"),
    "no baseline": (lambda trials: [trial for trial in trials if trial.speculative][:4], "search_only"),
    "only the baseline": (lambda trials: trials[:2], "only_plain"),
    "one trial": (lambda trials: trials[2:3], "search_only"),
    "one failed trial": (lambda trials: [broken(trials[2])], "all_failed"),
    "no stages": (lambda trials: [without_stages(trial) for trial in trials[:6]], "search_only"),
    "no command": (
        lambda trials: [replace(trial, result=replace(trial.result, launch=None)) for trial in trials[:4]],
        "plain_wins",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_studies_get_a_page(case: str, build_study: Builder, build_trials: Builder, tmp_path: Path) -> None:
    change, outcome = ODD[case]
    trials = change(build_trials(12, turns=2))
    report.write(build_study(status="running"), trials, tmp_path, formats=("svg",))
    found = check_files(tmp_path)
    assert found["answer"]["outcome"] == outcome
    page = (tmp_path / "findings.md").read_text()
    assert "still running" in page
    assert "EMULATED" in page
    if case == "no baseline":
        assert all(setting["speedup"]["value"] is None for setting in found["settings"])
        assert "plain decoding was not measured" in page
    if case == "no command":
        assert found["answer"]["command"] is None
        assert "The command line of these runs is not known. Run plain decoding." in page


@pytest.mark.usefixtures("unrendered")
def test_failure_messages_cannot_break_the_page(build_study: Builder, build_trials: Builder, tmp_path: Path) -> None:
    report.write(build_study(), [broken(trial) for trial in build_trials(6, turns=1)], tmp_path, formats=("svg",))
    page = (tmp_path / "findings.md").read_text()
    assert r"a\|b \`c\` \<d\>" in page
    assert "a|b `c` &lt;d&gt;" in (tmp_path / "findings.html").read_text()


@pytest.mark.usefixtures("unrendered")
def test_a_report_in_chinese(build_study: Builder, build_trials: Builder, tmp_path: Path) -> None:
    report.write(build_study(), build_trials(4, turns=2), tmp_path, lang="zh", formats=("svg",))
    check_files(tmp_path)
    page = (tmp_path / "findings.md").read_text()
    assert page.startswith("# 结论：example — 模拟\n")
    assert "## 现在该运行什么" in page
    assert '<html lang="zh-Hans">' in (tmp_path / "findings.html").read_text()


def test_stale_figures_go_and_other_files_stay(build_study: Builder, build_trials: Builder, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in ("figures/timeline.png", "figures/own.png", "notes.txt"):
        (tmp_path / name).write_text("mine")
    report.write(build_study(), (), tmp_path)
    assert not (tmp_path / "figures/timeline.png").exists()
    assert (tmp_path / "figures/own.png").exists()
    assert (tmp_path / "notes.txt").exists()
    assert not [path for path in tmp_path.rglob(".*")], "no half-written file stays behind"


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"lang": "fr"}, "report.lang: 'fr'"),
        ({"formats": ("pdf",)}, "report.formats"),
        ({"formats": ()}, "report.formats"),
    ],
)
def test_wrong_words_are_refused(keys: dict[str, Any], part: str, build_study: Builder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(part)) as caught:
        report.write(build_study(), (), tmp_path / "out", **keys)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_one_line(build_study: Builder, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match=r"report\.dir: .*out cannot be written"):
        report.write(build_study(), (), tmp_path / "out")


@pytest.mark.usefixtures("unrendered")
def test_command_can_be_given(build_study: Builder, build_trials: Builder, tmp_path: Path) -> None:
    report.write(build_study(), build_trials(3, turns=1), tmp_path, formats=("svg",), server_command="run --me")
    assert "```sh\nrun --me\n```" in (tmp_path / "findings.md").read_text()


def test_winner_command(build_study: Builder, build_trials: Builder) -> None:
    trials: Sequence[StoredTrial] = build_trials(48)
    assert outcome(build_study(), trials).command == "A=1 llama-server -m 'target model.gguf' --port 40001"
    assert outcome(build_study(), trials[2:4]).command is None, "the highest of a search is no winner"
    assert outcome(build_study(), ()).command is None


def test_quoting_survives_a_shell(build_study: Builder, build_trials: Builder) -> None:
    launch = LaunchSpec(argv=(sys.executable, "-c", "import sys; print(sys.argv[1:])", "a b", "$HOME", "'", ""))
    trials = [replace(trial, result=replace(trial.result, launch=launch)) for trial in build_trials(2, turns=1)]
    command = outcome(build_study(), trials).command
    assert command is not None
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(["a b", "$HOME", "'", ""])


@pytest.mark.usefixtures("unrendered")
def test_other_kinds_of_numbers_are_named_and_not_ranked(
    build_study: Builder, build_trials: Builder, tmp_path: Path
) -> None:
    trials: list[StoredTrial] = list(build_trials(5, turns=1))
    fast = replace(trials[3].result, measurement=Measurement.IMPORTED)
    trials[3] = replace(trials[3], result=fast)
    report.write(build_study(), trials, tmp_path, formats=("svg",))
    found = check_files(tmp_path)
    assert all(trials[3].uid not in setting["uids"] for setting in found["settings"])
    assert "1 rows of another kind (IMPORTED)" in (tmp_path / "findings.md").read_text()
    assert trials[3].uid in (tmp_path / "results.csv").read_text()


def test_schema_in_docs_is_the_one_that_travels() -> None:
    packaged = resources.files("dflash_sweep.report").joinpath("findings.schema.json").read_bytes()
    assert (ROOT / "docs/findings.schema.json").read_bytes() == packaged
    jsonschema.Draft202012Validator.check_schema(json.loads(packaged))
    assert json.loads(packaged)["properties"]["schema_version"]["const"] == findings_json.SCHEMA_VERSION


def test_importing_reports_is_cheap() -> None:
    code = "import sys, dflash_sweep.report; print([m for m in ('matplotlib', 'pandas', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "findings.md"
    writer.replace_file(target, b"old")

    def refuse(self: Path, other: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        writer.replace_file(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("unrendered")
def test_many_trials(build_study: Builder, build_trials: Builder, tmp_path: Path) -> None:
    study: StudyInfo = build_study(name="many <b> | ` names")
    report.write(study, build_trials(300, turns=1), tmp_path, formats=("svg",))
    found = check_files(tmp_path)
    assert found["counts"]["trials"] == 300
    assert (tmp_path / "findings.md").read_text().count("\n") < 140, "a page of 300 trials is as short as one of 40"
