"""Words, escaping and answers of a report's pages."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from matplotlib.text import Text

from dflash_sweep import metrics
from dflash_sweep.analysis.verdicts import VERDICT_IDS
from dflash_sweep.errors import ConfigError, FailureKind
from dflash_sweep.objective import direction
from dflash_sweep.records import UNSET, Measurement, Role, StoredTrial, Verdict, VerdictStatus
from dflash_sweep.report import document as doc
from dflash_sweep.report import figures, html, markdown, style, texts_en, texts_zh, tradeoff, verdict_lines, wording
from dflash_sweep.report.answer import answer
from dflash_sweep.report.findings_json import plain
from dflash_sweep.report.material import collect
from dflash_sweep.report.settings_table import settings_table
from dflash_sweep.report.texts import texts_for

Builder = Callable[..., Any]
EN, ZH = texts_for("en"), texts_for("zh")


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_say_the_same_things() -> None:
    assert list(texts_en.TEXTS) == list(texts_zh.TEXTS)
    for key, text in texts_en.TEXTS.items():
        assert fields(text) == fields(texts_zh.TEXTS[key]), key


def test_every_kind_of_thing_has_words() -> None:
    keys = [f"failure.{kind}" for kind in FailureKind] + [f"role.{role}" for role in Role]
    keys += [f"verdict.{name}" for name in VERDICT_IDS] + [f"status.{status}" for status in VerdictStatus]
    keys += [f"{group}.{kind}" for kind in Measurement for group in ("word", "kind", "assume")]
    keys += [f"axis.{name}" for name in ("decode_tps", "api_tps", "wall_tps", "ttft_ms") if direction(name)]
    assert [key for key in keys if not (EN.has(key) and ZH.has(key))] == []


def test_unknown_language_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^report\.lang: 'xx' is not a language of reports; allowed: en, zh$"):
        texts_for("xx")


# ---------------------------------------------------------------- escaping


def shown(page: str) -> str:
    """The text a Markdown reader sees, code and links included."""
    parts: list[str] = []
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        for child in token.children or ():
            parts.append(" " if child.type == "softbreak" else child.content)
    return "".join(parts)


PIECES = st.sampled_from(
    ["a", "Z9", " ", "_", "*", "**", "`", "```", "|", "<b>", "&amp;", "[x](y)", "[", "]", "\\", "#", "- ", "1. ", "+",
     "~~", "!", "漢", "\n", "proposal_temp", "=", ">", "$"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    renderer = markdown.Renderer({}, "results.csv")
    page = renderer.render(doc.Document("t", "", (doc.Paragraph(("x", text, "x")),)))
    flat = " ".join(f"x{text}x".split()) if not text[:1].isspace() else None
    body = shown(page.split("\n\n", 1)[1])
    if flat is not None and not text[-1:].isspace():
        assert body == flat


@given(st.lists(PIECES, min_size=1, max_size=8).map("".join), st.booleans())
def test_cells_keep_their_columns(text: str, as_code: bool) -> None:
    cell = doc.code(text) if as_code else text
    table = doc.Table(("one", "two"), ((cell, "end"),), "lr", "caption")
    page = markdown.Renderer({}, "results.csv").render(doc.Document("t", "", (table,)))
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    cells = [tokens[index + 1] for index, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 2
    assert cells[1].content == "end"


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


@given(st.lists(PIECES | st.sampled_from(['"', "'", "<script>", "</p>"]), max_size=8).map("".join))
def test_html_shows_text_as_it_is(text: str) -> None:
    block = html.Renderer({})._block(doc.Paragraph((text, doc.code(text))))
    reader = _Text()
    reader.feed(str(block))
    reader.close()
    assert reader.text == text * 2
    assert set(reader.tags) <= {"p", "code"}


def test_links_lead_to_rows_and_pictures() -> None:
    table = doc.Paragraph((doc.rows((3, 7), "3, 7"), " ", doc.Span("drift", "", doc.PICTURE + "drift")))
    page = markdown.Renderer({"drift": "figures/drift.png"}, "results.csv").render(doc.Document("t", "", (table,)))
    assert "[3, 7](results.csv) [drift](figures/drift.png)" in page
    block = html.Renderer({"drift": {"png": b"x"}})._block(table)
    assert str(block) == '<p><a href="#trial-3">3, 7</a> <a href="#figure-drift">drift</a></p>'
    script = html.Renderer({})._block(doc.Paragraph((doc.Span("x", "", "javascript:alert(1)"),)))
    assert 'href="#"' in str(script)


def test_words_of_tables_may_wrap_anywhere() -> None:
    """A path without a space in a cell must not push the last column out of the page."""
    table = doc.Table(("message", "trials"), (("/models/" + "x" * 300, "1"),), "ll", "")
    page = html.Renderer({}).render(doc.Document("t", "EMULATED", (table,)), None, {})
    assert ".sortable:not(#all-rows) td.l { overflow-wrap: anywhere; }" in page
    assert '<table class="sortable">' in page
    assert '<td class="l">/models/' in page


# ---------------------------------------------------------------- numbers


def test_unknown_numbers_are_dashes() -> None:
    for value in (None, float("nan"), float("inf")):
        assert wording.number(value) == wording.rate(value) == wording.factor(value) == "—"
    assert wording.interval(None, 3.0) == "—"
    assert wording.knob_value(None) == UNSET


def test_numbers_are_short() -> None:
    assert wording.number(0.0) == "0"
    assert wording.number(0.00001) == "0.000"
    assert wording.number(0.71234) == "0.712"
    assert wording.number(24.6913) == "24.69"
    assert wording.number(1707.75) == "1708"
    assert wording.number(123456.7) == "123,457"
    assert wording.number(-3.14159) == "-3.142"
    assert wording.rate(9.9) == "9.90"
    assert wording.rate(145.84) == "145.8"
    assert wording.knob_text({"b": True, "t": 0.7, "n": None}, ("t", "b", "n"), joiner=" ") == "t=0.7 b=true"
    assert wording.knob_text({"n": None}, ("n",)) == "n=unset"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=9,
    )
)
def test_json_never_holds_nan(value: Any) -> None:
    def finite(entry: Any) -> bool:
        if isinstance(entry, float):
            return entry == entry and abs(entry) != float("inf")
        if isinstance(entry, dict):
            return all(finite(inner) for inner in entry.values())
        return all(finite(inner) for inner in entry) if isinstance(entry, list) else True

    assert finite(plain(value))


# ---------------------------------------------------------------- conclusions


def verdict(**given_fields: Any) -> Verdict:
    own: dict[str, Any] = {"id": "noise", "subject": "study", "status": VerdictStatus.HOLDS, "statement": "S."}
    return Verdict(**{**own, **given_fields})


def words(inline: doc.Inline) -> str:
    return "".join(span.text for span in doc.spans(inline))


def test_figure_of_a_conclusion_holds_only_what_is_known() -> None:
    assert verdict_lines.figure(verdict(value=0.71, ci_low=0.68, ci_high=0.74, unit="ratio", n=6), EN) == (
        "0.710 [0.680, 0.740] ratio, n = 6"
    )
    assert verdict_lines.figure(verdict(n=3), EN) == "n = 3"
    assert (
        verdict_lines.figure(verdict(ci_low=32.0, ci_high=512.0, unit="tokens", n=3), EN) == "[32, 512] tokens, n = 3"
    )


def test_what_is_checked_alike_is_said_once() -> None:
    found = [verdict(subject=name, how_to_check="look") for name in ("a", "b")] + [verdict(how_to_check="other")]
    lines = [words(line) for line in verdict_lines.lines(found, EN)]
    assert lines[-1] == "Check all of these: look."
    assert sum("look" in line for line in lines) == 1
    assert lines[2].endswith("Check: other.")


def test_dead_axes_share_one_line() -> None:
    dead = {"id": "dead_axis", "value": 1.02, "ci_low": 0.95, "ci_high": 1.1, "n": 9, "unit": "ratio"}
    found = [
        verdict(**dead, subject="a", details={"reference": "8"}),
        verdict(**dead, subject="b"),
        verdict(id="sweet_spot", subject="a", status=VerdictStatus.DOES_NOT_HOLD),
        verdict(**dead | {"status": VerdictStatus.DOES_NOT_HOLD}, subject="c"),
    ]
    lines = [words(line) for line in verdict_lines.lines(found, EN)]
    assert len(lines) == 2, "one for c, one for both dead axes; no sweet spot on a dead axis"
    assert "a (leave it at 8) +2.0 % [-5.0, +10.0], n = 9; b +2.0 % [-5.0, +10.0], n = 9." in lines[1]
    assert lines[0].startswith("Axis with an effect: c: S.")


def test_every_conclusion_has_a_section() -> None:
    placed = [name for ids in verdict_lines.SECTIONS.values() for name in ids]
    assert sorted(placed) == sorted(VERDICT_IDS)
    assert verdict_lines.section_of("a_new_one") == "first"


# ---------------------------------------------------------------- answers


def study_of(build_study: Builder, rows: list[StoredTrial], **given_fields: Any) -> Any:
    return collect(build_study(**given_fields), rows, ())


def confirm_blocks(runs: Any, speeds: dict[int, float], blocks: int = 4) -> list[StoredTrial]:
    """Interleaved blocks: candidates of the cost model with their own verify time, and plain decoding."""
    make, plain_run = runs
    rng = random.Random(5)
    rows: list[StoredTrial] = []
    for block in range(blocks):
        for candidate, verify_ms in speeds.items():
            knobs = {"target_feat_ctx": 64, "budget": 32, "proposal_temp": 0.7, "top_k": candidate}
            rows.append(make(rng, len(rows), knobs, turns=2, verify_ms=verify_ms, candidate=candidate,
                             role=Role.CONFIRM, repeat=block))  # fmt: skip
        rows.append(plain_run(rng, len(rows), turns=2, role=Role.CONFIRM, repeat=block))
    return rows


def test_a_clear_winner(build_study: Builder, build_runs: Any) -> None:
    rows = confirm_blocks(build_runs, {1: 6.0, 2: 12.0})
    found = answer(study_of(build_study, rows, confirmed_candidate=1), EN)
    assert found.outcome == "winner"
    assert found.is_advice
    assert found.run is not None
    assert found.run.number == 1
    assert "#1 (top_k=1) is the fastest" in found.statement
    assert found.statement.endswith("Speculation pays here.")
    # a step of 64/16 + 14 + 3 + 2 + 1.5 + 6·2.4 = 38.9 ms yields 2.4 tokens: 61.7 tok/s against 40.5
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(1.52, rel=0.03)
    assert found.n == 4


def with_plain_settings(rows: list[StoredTrial], speculative: str) -> list[StoredTrial]:
    """The same runs, plain decoding with one thread and speculation with these settings of plain decoding."""
    found = []
    for row in rows:
        settings = {"plain_settings": speculative if row.speculative else "threads=1"}
        found.append(replace(row, result=replace(row.result, environment=settings)))
    return found


def test_a_gain_over_plain_decoding_with_other_threads_is_no_advice_to_speculate(
    build_study: Builder, build_runs: Any
) -> None:
    rows = confirm_blocks(build_runs, {1: 6.0, 2: 12.0})
    same, other = (
        study_of(build_study, with_plain_settings(rows, own), confirmed_candidate=1)
        for own in ("threads=1", "threads=2")
    )
    said = answer(other, EN)
    assert said.outcome == "winner"
    assert "which ran with threads=1: how much of that is speculation's is not known" in said.statement
    assert "Speculation pays here." not in said.statement
    assert answer(same, EN).statement.endswith("Speculation pays here.")
    assert ([entry.unlike for entry in same.candidates], other.candidates[0].unlike) == ([False, False], True)
    for material, marked in ((same, False), (other, True)):
        with style.conventions():
            figure = tradeoff.draw(material, EN, figures.stamp_for(material, EN))
        assert figure is not None
        assert ("†" in [text.get_text() for text in figure.findobj(Text)]) is marked
        table = settings_table(material, EN, "EMULATED")
        assert table is not None
        assert ("†" in str(table)) is marked


def test_equal_settings_are_a_tie(build_study: Builder, build_runs: Any) -> None:
    rows = confirm_blocks(build_runs, {1: 6.0, 2: 6.0})
    found = answer(study_of(build_study, rows), EN)
    assert found.outcome == "tie"
    assert "cannot be told apart" in found.statement
    assert found.run is not None


def test_plain_decoding_wins_over_a_slow_winner(build_study: Builder, build_runs: Any) -> None:
    rows = confirm_blocks(build_runs, {1: 25.0, 2: 40.0})
    found = answer(study_of(build_study, rows), EN)
    assert found.outcome == "plain_wins"
    assert found.run is not None
    assert not found.run.speculative


def test_minimised_objectives_are_read_the_right_way(build_study: Builder, build_runs: Any) -> None:
    rows = confirm_blocks(build_runs, {1: 6.0, 2: 12.0})
    found = answer(study_of(build_study, rows, objective="ttft_ms", direction="minimize"), EN)
    # all first tokens come after 900 ms: nothing to choose, and nothing may be claimed
    assert found.outcome in ("tie", "search_only")
    assert metrics.METRIC["ttft_ms"].unit in found.statement or "cannot be told apart" in found.statement


def test_a_bound_on_the_space_decides_without_confirm(build_study: Builder, build_trials: Builder) -> None:
    trials = [trial for trial in build_trials(30) if trial.role is not Role.CONFIRM][:6]
    bound = verdict(id="structural_bound", statement="No setting can.")
    found = answer(collect(build_study(), trials, (bound,)), EN)
    assert found.outcome == "plain_wins"
    assert answer(
        collect(build_study(), trials, (replace(bound, status=VerdictStatus.DOES_NOT_HOLD),)), EN
    ).outcome == ("search_only")
