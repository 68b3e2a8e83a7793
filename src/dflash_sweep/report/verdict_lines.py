"""Conclusions as lines of a page: name, status, sentence, figure with interval, n, and how to check. Imports `records`,
`report` siblings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dflash_sweep.records import Verdict, VerdictStatus
from dflash_sweep.report.document import Inline, Span, code, em, strong
from dflash_sweep.report.texts import Texts
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
    key = f"verdict.{verdict.id}"
    title = texts(key) if texts.has(key) else verdict.id.replace("_", " ")
    whole = verdict.subject in _WHOLE_STUDY or len(verdict.subject) > _MAX_SUBJECT  # the sentence names a whole setting
    return title if whole else f"{title}: {verdict.subject}"


def figure(verdict: Verdict) -> str:
    """ "0.71 [0.68, 0.74] ×, n = 6"; only what is known."""
    parts = []
    if verdict.value is not None:
        ends = (
            ""
            if verdict.ci_low is None or verdict.ci_high is None
            else f" [{number(verdict.ci_low)}, {number(verdict.ci_high)}]"
        )
        parts.append(f"{number(verdict.value)}{ends} {verdict.unit or ''}".rstrip())
    elif verdict.ci_low is not None and verdict.ci_high is not None:
        parts.append(f"[{number(verdict.ci_low)}, {number(verdict.ci_high)}] {verdict.unit or ''}".rstrip())
    return ", ".join([*parts, f"n = {verdict.n}"])


def line(verdict: Verdict, texts: Texts) -> Inline:
    """One conclusion as a list item."""
    parts: list[str | Span] = [
        strong(name(verdict, texts)),
        texts("stated", status=texts(f"status.{verdict.status}"), statement=verdict.statement),
        code(figure(verdict)),
    ]
    if verdict.how_to_check:
        parts += [" ", em(texts("checked", how=verdict.how_to_check))]
    return tuple(parts)


def lines(verdicts: Sequence[Verdict], texts: Texts) -> tuple[Inline, ...]:
    return tuple(line(verdict, texts) for verdict in verdicts)
