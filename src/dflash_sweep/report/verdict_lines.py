"""Conclusions as lines of a page: name, status, sentence, figure with interval, n, and how to check. Imports `records`,
`report` siblings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dflash_sweep.records import StudyInfo, Verdict, VerdictStatus
from dflash_sweep.report.document import Inline, Span, code, em, strong
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.translation import recognised, translated, word
from dflash_sweep.report.wording import number

SECTIONS: dict[str, tuple[str, ...]] = {
    "first": (
        "structural_bound", "break_even", "keep_discard", "correctness", "degenerate_output", "setting_not_applied",
    ),
    "axes": ("sweet_spot", "saturation", "dead_axis"),
    "time": ("stage_attribution", "oracle_gate", "host_cost", "prefill_share", "accounting"),
    "failed": ("memory",),
    "trust": ("noise", "drift", "comparability"),
}  # fmt: skip
"""Section of the page → ids of the conclusions it holds, in their order; every other id goes to "first"."""

PAIR = " × "
"""Between the names of two axes in the subject of a conclusion about both."""

HEADLINE = ("keep_discard", "winner")
"""Id and subject of the conclusion that the page's first sentence states already."""

_WHOLE_STUDY = ("study", "", "all")
_MAX_SUBJECT = 48


def section_of(verdict_id: str) -> str:
    return next((name for name, ids in SECTIONS.items() if verdict_id in ids), "first")


def in_section(verdicts: Iterable[Verdict], section: str) -> list[Verdict]:
    """Conclusions of one section that say something (holds or does not hold), in the order of SECTIONS."""
    ids = SECTIONS[section]
    chosen = [
        verdict for verdict in verdicts
        if section_of(verdict.id) == section and verdict.status is not VerdictStatus.NOT_ENOUGH_DATA
        and (verdict.id, verdict.subject) != HEADLINE
    ]  # fmt: skip
    return sorted(chosen, key=lambda verdict: ids.index(verdict.id) if verdict.id in ids else len(ids))


def undecided(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.status is VerdictStatus.NOT_ENOUGH_DATA]


def name(verdict: Verdict, texts: Texts) -> str:
    """The conclusion's name in words, with its subject where that is not the whole study."""
    title = _title(verdict, texts)
    # a whole setting is named by the sentence itself
    whole = verdict.subject in _WHOLE_STUDY or len(verdict.subject) > _MAX_SUBJECT
    return title if whole else texts("titled", title=title, subject=translated(verdict.subject, texts.lang))


def _own_title(verdict: Verdict) -> str:
    """Key of a title that already says how the conclusion came out ("No drift")."""
    return f"verdict.{verdict.id}.{verdict.status}"


def stop_reason(study: StudyInfo, verdicts: Iterable[Verdict], texts: Texts) -> str:
    """Why a study ended early, in the page's language; "" = it did not. A conclusion's words are known from it."""
    reason = study.stop_reason or ""
    said = next((verdict.statement for verdict in verdicts if verdict.statement == reason), reason)
    return recognised(said, texts.lang)


def _title(verdict: Verdict, texts: Texts) -> str:
    if texts.has(_own_title(verdict)):
        return texts(_own_title(verdict))
    key = f"verdict.{verdict.id}"
    return texts(key) if texts.has(key) else verdict.id.replace("_", " ")


def _amount(verdict: Verdict, texts: Texts) -> str:
    ends = ""
    if verdict.ci_low is not None and verdict.ci_high is not None:
        ends = f"[{number(verdict.ci_low)}, {number(verdict.ci_high)}]"
    value = number(verdict.value) if verdict.value is not None else ""
    unit = translated(verdict.unit or "", texts.lang) if value or ends else ""
    return " ".join(part for part in (value, ends, unit) if part)


def figure(verdict: Verdict, texts: Texts) -> str:
    """ "0.71 [0.68, 0.74] ratio, n = 6"; only what is known."""
    return ", ".join(part for part in (_amount(verdict, texts), f"n = {verdict.n}") if part)


def sentence(verdict: Verdict, texts: Texts) -> str:
    """The conclusion in the page's language."""
    return translated(verdict.statement, texts.lang)


def line(verdict: Verdict, texts: Texts, *, check: bool = True) -> Inline:
    """One conclusion as a list item; `check` False leaves out how to check it."""
    key = "stated" if texts.has(_own_title(verdict)) else "stated_status"
    parts: list[str | Span] = [
        strong(name(verdict, texts)),
        texts(key, status=texts(f"status.{verdict.status}"), statement=sentence(verdict, texts)),
        code(figure(verdict, texts)),
    ]
    if check and verdict.how_to_check:
        parts += [" ", em(texts("checked", how=translated(verdict.how_to_check, texts.lang)))]
    return tuple(parts)


def lines(verdicts: Sequence[Verdict], texts: Texts) -> tuple[Inline, ...]:
    """Conclusions as list items. Dead axes share one; what is checked alike is said once, at the end."""
    dead = [verdict for verdict in verdicts if _is_dead(verdict)]
    dead_axes = {verdict.subject for verdict in dead}
    rest = [
        verdict for verdict in verdicts
        if not _is_dead(verdict) and not (verdict.id == "sweet_spot" and verdict.subject in dead_axes)
    ]  # fmt: skip
    checks = Counter(verdict.how_to_check for verdict in (*rest, *dead) if verdict.how_to_check)
    found = [line(verdict, texts, check=checks[verdict.how_to_check or ""] == 1) for verdict in rest]
    if dead:
        found.append(_dead_axes(dead, texts))
    alike = [how for how, count in checks.items() if count > 1]
    found += [em(texts("checked_alike", how=translated(how, texts.lang))) for how in alike]
    return tuple(found)


def _is_dead(verdict: Verdict) -> bool:
    return verdict.id == "dead_axis" and verdict.status is VerdictStatus.HOLDS


def _dead_axes(verdicts: Sequence[Verdict], texts: Texts) -> Inline:
    """Axes without an effect in one item: name, largest difference with its interval, n, where to leave it."""
    parts: list[str | Span] = [strong(texts("verdict.dead_axis.holds")), texts("dead_lead")]
    for place, verdict in enumerate(verdicts):
        parts += ["; " if place else "", verdict.subject]
        if verdict.details.get("reference") is not None:
            parts.append(texts("dead_leave", value=word(str(verdict.details["reference"]), texts.lang)))
        parts += [" ", code(_change(verdict, texts))]
    return tuple([*parts, texts("stop")])


def _change(verdict: Verdict, texts: Texts) -> str:
    """ "+1.3 % [−5.4, +8.5], n = 65" of a conclusion whose figure is a ratio."""
    if verdict.value is None or verdict.ci_low is None or verdict.ci_high is None:
        return figure(verdict, texts)
    value, low, high = (100 * (ratio - 1) for ratio in (verdict.value, verdict.ci_low, verdict.ci_high))
    return f"{value:+.1f} % [{low:+.1f}, {high:+.1f}], n = {verdict.n}"


def open_question(verdict: Verdict, texts: Texts) -> str:
    """The name under which an undecided conclusion is listed."""
    named_by_itself = verdict.subject in verdict.statement
    return _title(verdict, texts) if named_by_itself else name(verdict, texts)
