"""A Chinese page is Chinese: every sentence that conclusions can be made of has a translation, and pages show it."""

from __future__ import annotations

import ast
import re
import string
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_sweep import importing
from dflash_sweep.analysis.sentences import listed, say, together
from dflash_sweep.errors import FailureKind
from dflash_sweep.records import Failure, StoredTrial, StudyInfo, Verdict, VerdictStatus
from dflash_sweep.report import html, markdown, style, translation, verdict_lines, writer
from dflash_sweep.report.answer import answer
from dflash_sweep.report.material import Material, collect
from dflash_sweep.report.page import findings
from dflash_sweep.report.rows_table import rows_table
from dflash_sweep.report.texts import Texts, texts_for
from dflash_sweep.report.translation import recognised, translated

PACKAGE = Path(str(resources.files("dflash_sweep")))
TABLE = translation.table("zh")
ZH = texts_for("zh")


def fields(template: str) -> set[str]:
    return {name for _, name, *_ in string.Formatter().parse(template) if name}


def docstrings(tree: ast.Module) -> set[int]:
    """Lines of expressions that are nothing but a text."""
    return {
        node.value.lineno for node in ast.walk(tree) if isinstance(node, ast.Expr) and _text(node.value) is not None
    }


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def templates(path: Path) -> Iterator[str]:
    """Texts given to `say`, and every text with {fields} that is not itself an f-string."""
    tree = ast.parse(path.read_text())
    skipped = docstrings(tree)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "say" and (said := _text(node.args[0])):
            yield said
        text = _text(node)
        if text and id(node) not in inside and node.lineno not in skipped and re.search(r"\{\w+(:[^}]*)?\}", text):  # type: ignore[attr-defined]
            yield text


def all_templates() -> list[str]:
    paths = sorted((PACKAGE / "analysis").glob("*.py"))
    return sorted({text for path in paths for text in templates(path)})


def test_templates_are_found() -> None:
    found = all_templates()
    assert len(found) > 150
    assert "{axis}: two of its values" not in found
    assert {"{count} builds", "inside the noise", "{axis}: undecided ({shown}); {why}."} <= set(found)


def test_every_template_is_translated() -> None:
    missing = [text for text in all_templates() if translation.needs_translation(text) and text not in TABLE]
    assert missing == []


def test_translations_have_the_fields_of_their_template() -> None:
    assert {
        english: fields(english) ^ fields(own) for english, own in TABLE.items() if fields(english) != fields(own)
    } == {}


def test_a_sentence_is_said_with_its_fields_translated_too() -> None:
    sentence = together(
        say("Not shown by any server: {names}.", names=listed(["budget", "top_k"])),
        say("First in {run}, turn {turn}, {place}.", run=say("trial {number}", number=3), turn="c/0",
            place=say("at {place}: other token ids, the same text", place=say("token {position}", position=4))),
    )  # fmt: skip
    assert sentence.startswith("Not shown by any server: budget, top_k. First in trial 3")
    assert translated(sentence, "zh") == (
        "没有服务器显示：budget, top_k。最先出现在试验 3的 c/0 轮，"
        "位于第 4 个 token（从 0 数起）：token 编号不同，文本相同。"
    )
    assert translated(sentence, "en") is sentence
    assert translated("a name of somebody's", "zh") == "a name of somebody's"


def test_a_stored_sentence_is_recognised_by_its_words() -> None:
    assert recognised("the budget of 3.5 h is spent", "zh") == "3.5 小时的预算已用完"
    assert recognised("nobody ever said this", "zh") == "nobody ever said this"
    budget = (
        "the budget of 5 in money is spent (2 device(s) at 0.4 an hour for 6.25 h) but for what the confirm phase needs"
    )
    assert recognised(budget, "zh") == "5 的费用预算已用完（2 台设备，每小时 0.4，共 6.25 小时），只留下确认阶段所需"
    phases = "only these phases were asked for: baseline, default"
    assert recognised(phases, "zh") == "只要求了这些阶段：baseline, default"
    nested = say(
        "{share}; plain decoding was measured once ({plain:.2f} ms per token), which gives no interval.",
        share=say("{stage} costs {cost} per committed token", stage="exact_ms", cost="24.7 ms [24.6, 24.8]"),
        plain=24.5,
    )
    assert recognised(str(nested), "zh") == translated(nested, "zh")
    both = together(nested, say("No setting was repeated often enough to know the noise."))
    assert recognised(str(both), "zh") == translated(both, "zh")


def test_other_peoples_words_are_left_alone_and_cost_no_time() -> None:
    error = "The server said: failed to do x, twice. And it (really) died, with a code. Something else. " * 20
    began = time.process_time()
    assert recognised(error, "zh") == error
    assert time.process_time() - began < 20


def test_a_conclusion_that_ended_a_study_is_known_by_its_text(build_study: Callable[..., StudyInfo]) -> None:
    said = say("{share}, {against}, but {escape}.", share="a", against="b", escape=say("no limit known"))
    verdict = Verdict(id="structural_bound", subject="s", status=VerdictStatus.HOLDS, statement=said)
    study = build_study(stop_reason=str(said))
    assert verdict_lines.stop_reason(study, [verdict], ZH) == "a，即b；但上限未知。"


@given(st.text(), st.integers())
def test_braces_and_signs_in_fields_are_left_alone(message: str, number: int) -> None:
    sentence = say("{run}: {message}", run=say("trial {number}", number=number), message=message)
    assert translated(sentence, "zh").startswith(f"试验 {number}：")
    assert str(sentence) == f"trial {number}: {message}"


# ---------------------------------------------------------------- whole pages

_CODE = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|<style.*?</style>|<script.*?</script>|<code>.*?</code>|<[^>]*>", re.DOTALL
)
_ENGLISH = re.compile(r"[A-Za-z][a-z']+(?:[ ,]+[a-z][a-z']*){2,}")


def english(page: str, quoted: Iterable[str]) -> list[str]:
    """Three English words or more in a row, outside code, that nobody of `quoted` (servers, authors) said."""
    said = " ".join(quoted)
    return [words for words in _ENGLISH.findall(_CODE.sub(" | ", page)) if words not in said]


def quoted(trials: Sequence[StoredTrial]) -> Iterator[str]:
    """What others wrote: messages of servers, an author's labels, builds and names of traces."""
    for trial in trials:
        yield from (trial.label or "", trial.build, trial.trace_name, trial.result.device.name)
        yield trial.result.failure.message if trial.result.failure else ""


def pages(study: StudyInfo, trials: Sequence[StoredTrial]) -> tuple[str, str]:
    return pages_of(collect(study, trials))


def pages_of(material: Material) -> tuple[str, str]:
    found = answer(material, ZH)
    short = findings(material, found, ZH, (), None, full=False, captions=True)
    full = findings(material, found, ZH, (), None, full=True)
    hints = {name: ZH(f"hint.{name}") for name in ("sort", "filter")}
    return markdown.Renderer({}, "results.csv").render(short), html.Renderer({}).render(
        full, rows_table(material, ZH), hints
    )


@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_no_english_is_left_on_a_page(
    count: int, build_study: Callable[..., StudyInfo], build_trials: Callable[..., Sequence[StoredTrial]]
) -> None:
    trials = build_trials(count)
    study = build_study(stop_reason="the budget of 3 h is spent", status="finished")
    for page in pages(study, trials):
        assert "预算" in page
        assert english(page, quoted(trials)) == []


def _every_failure(rows: Sequence[StoredTrial]) -> list[StoredTrial]:
    """The rows, and one more for each kind of failure."""
    row = next(row for row in rows if row.speculative)
    return [
        *rows,
        *(
            replace(row, uid=f"f{kind}", number=1000 + place, candidate=1000 + place,
                    result=replace(row.result, turns=(), failure=Failure(kind=kind, message="the server's own words")))
            for place, kind in enumerate(FailureKind)
        ),
    ]  # fmt: skip


def _two_devices(rows: Sequence[StoredTrial]) -> list[StoredTrial]:
    return [
        replace(row, result=replace(row.result, device=replace(row.result.device, name=f"card {place % 2}")))
        for place, row in enumerate(rows)
    ]


def _other_terms(rows: Sequence[StoredTrial]) -> list[StoredTrial]:
    return [replace(row, comparability_key=f"k{place % 5 == 0}") for place, row in enumerate(rows)]


@pytest.mark.parametrize("change", [_every_failure, _two_devices, _other_terms])
def test_no_english_is_left_of_what_is_rare(
    change: Callable[[Sequence[StoredTrial]], list[StoredTrial]],
    build_study: Callable[..., StudyInfo],
    build_trials: Callable[..., Sequence[StoredTrial]],
) -> None:
    replayed = {"mode": "free_running", "max_tokens": 64, "temperature": 0.0, "concurrency": 2, "pauses": "drop"}
    study = build_study(
        status="interrupted",
        stop_reason="only these phases were asked for: calibrate",
        objectives=("decode_tps", "joules_per_token"),
        config={"constraints": {"vram_mib": "<= 18500", "bit_equal": True, "ttft_ms": "<= 100"}, "replay": replayed},
    )
    trials = change(build_trials(45))
    for page in pages(study, trials):
        assert "只要求了这些阶段" in page
        assert english(page, quoted(trials)) == []


def test_no_english_is_left_of_an_imported_log() -> None:
    found = importing.read(PACKAGE / "data" / "castle-runs-001-113.jsonl", study="castle")
    material = collect(found.study, found.trials)
    (bound,) = (verdict for verdict in material.verdicts if verdict.id == "structural_bound")
    assert recognised(str(bound.statement), "zh") == translated(
        bound.statement, "zh"
    )  # as the reason of a stored study
    for page in pages_of(material):
        assert "结构上限" in page
        assert english(page, quoted(found.trials)) == []


@pytest.mark.parametrize("font", [None, "WenQuanYi Micro Hei"])
def test_without_a_chinese_font_figures_are_english_and_the_page_says_so(
    font: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    build_study: Callable[..., StudyInfo],
    build_trials: Callable[..., Sequence[StoredTrial]],
) -> None:
    drawn: list[Texts] = []

    def draw_all(_material: object, texts: Texts, _formats: object) -> dict[str, dict[str, bytes]]:
        drawn.append(texts)
        return {}

    monkeypatch.setattr(style, "cjk_font", lambda: font)
    monkeypatch.setattr(writer, "draw_all", draw_all)
    page = writer.write(build_study(), build_trials(5), tmp_path, lang="zh", formats=("png",)).read_text()
    assert [texts.lang for texts in drawn] == ["en" if font is None else "zh"]
    assert ("图中文字是英文：本机没有中文字体" in page) is (font is None)
