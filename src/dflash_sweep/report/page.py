"""The findings page of a study as a document: verdict first, provenance last. Imports `report` siblings."""

from __future__ import annotations

from collections.abc import Iterable

from dflash_sweep.report import verdict_lines
from dflash_sweep.report.answer import Answer, command_line, launch_trial, setting_name
from dflash_sweep.report.assumptions import assumptions
from dflash_sweep.report.document import (
    PICTURE,
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Inline,
    Paragraph,
    Picture,
    Span,
    em,
    strong,
)
from dflash_sweep.report.failures import failure_blocks
from dflash_sweep.report.figures import FIGURES
from dflash_sweep.report.front import front_blocks
from dflash_sweep.report.material import Material
from dflash_sweep.report.provenance import provenance_table
from dflash_sweep.report.settings_table import row_link, settings_table
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.translation import translated

PLACED = ("stage_breakdown", "tradeoff", "axis_effects")
"""Figures shown where they belong; the others are linked at the end of a short page, shown in a full one."""


def findings(
    material: Material,
    found: Answer,
    texts: Texts,
    pictures: Iterable[str],
    server_command: str | None,
    *,
    full: bool,
    captions: bool = False,
) -> Document:
    """The page. `pictures` are the names of figures that exist; `full` shows them all instead of linking some.

    `captions`: repeat under each figure what to see in it, for figures whose own words are in another language.
    """
    existing = set(pictures)
    shown = {name: _picture(material, texts, name, captions) for name in FIGURES if name in existing}
    word = texts(f"word.{material.study.measurement}")
    blocks: list[Block] = [
        Paragraph((em(texts(f"kind.{material.study.measurement}")),)),
        *([Paragraph((em(texts("figures.no_font")),))] if captions else []),
        *_verdict(material, found, texts),
        *_run(material, found, texts, server_command),
        *_settings(material, texts, word, shown),
        *front_blocks(material, texts, shown.get("pareto")),
        *_section(material, texts, "axes", shown, ("axis_effects",)),
        *_importance(material, texts),
        *_section(material, texts, "time", shown, ("stage_breakdown",)),
        *_arms(material, texts),
        Heading(texts("head.failed")),
        *failure_blocks(material, texts, word),
        *_bullets(material, texts, "failed"),
        *_trust(material, texts),
        Heading(texts("head.provenance")),
        provenance_table(material, texts, word),
        *_more_pictures(material, texts, shown, full=full),
    ]
    title = texts("title", study=material.study.name)
    return Document(title=title, label=word, blocks=tuple(blocks), lang=texts.lang)


def _importance(material: Material, texts: Texts) -> list[Block]:
    """Shares of importance beside the effects: no interval, so no conclusion rests on them."""
    shares = sorted(material.study.importance.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{axis} {share:.0%}" for axis, share in shares)
    return [Paragraph(texts("importance", shares=listed))] if shares else []


def _see(material: Material, texts: Texts, name: str) -> str:
    return texts(f"{FIGURES[name][0]}.see", metric=material.axis_label(texts))


def _picture(material: Material, texts: Texts, name: str, captions: bool) -> Picture:
    title, see = texts(f"{FIGURES[name][0]}.title"), _see(material, texts, name)
    return Picture(name, texts("alt", title=title, see=see), see if captions else "")


def _bullets(material: Material, texts: Texts, section: str) -> list[Block]:
    verdicts = verdict_lines.in_section(material.verdicts, section)
    return [Bullets(verdict_lines.lines(verdicts, texts))] if verdicts else []


def _verdict(material: Material, found: Answer, texts: Texts) -> list[Block]:
    line: list[str | Span] = [strong(found.statement)]
    if found.numbers:
        # a space in Chinese too: Markdown ends bold text only where a space or a sign follows its full stop
        line += [" ", texts("rows"), row_link(material, found.numbers), texts("stop")]
    headline = material.verdict(*verdict_lines.HEADLINE)
    if headline is not None and headline.how_to_check:
        line += [" ", em(texts("checked", how=translated(headline.how_to_check, texts.lang)))]
    blocks: list[Block] = [Heading(texts("head.verdict")), Paragraph(tuple(line))]
    if material.study.status in ("running", "interrupted", "failed"):
        reason = verdict_lines.stop_reason(material.study, material.verdicts, texts)
        blocks.append(
            Paragraph(texts("space").join(part for part in (texts(f"study.{material.study.status}"), reason) if part))
        )
    elif material.study.stop_reason:
        blocks.append(
            Paragraph(
                texts("study.stopped", reason=verdict_lines.stop_reason(material.study, material.verdicts, texts))
            )
        )
    return [*blocks, *_bullets(material, texts, "first")]


def _run(material: Material, found: Answer, texts: Texts, server_command: str | None) -> list[Block]:
    blocks: list[Block] = [Heading(texts("head.run"))]
    trial = launch_trial(found.run, material.stored)
    command = server_command or (command_line(trial) if trial is not None else None)
    if command is None:
        unknown = "" if found.run is None else texts("run.unknown", name=setting_name(found.run, texts, material))
        return [*blocks, Paragraph(unknown or texts("run.none"))]
    lead = texts("run.advice") if found.is_advice else texts("run.highest")
    notes = [lead]
    if str(material.study.measurement) == "emulated":
        notes.append(texts("run.emulated"))
    return [*blocks, Paragraph(texts("space").join(notes)), Code(command, "sh")]


def _settings(material: Material, texts: Texts, word: str, shown: dict[str, Picture]) -> list[Block]:
    table = settings_table(material, texts, word)
    if table is None:
        return []
    pictures = [shown["tradeoff"]] if "tradeoff" in shown else []
    return [Heading(texts("head.settings")), table, *pictures]


def _section(
    material: Material, texts: Texts, section: str, shown: dict[str, Picture], placed: tuple[str, ...]
) -> list[Block]:
    bullets = _bullets(material, texts, section)
    pictures = [shown[name] for name in placed if name in shown]
    if not bullets and not pictures:
        return []
    return [Heading(texts(f"head.{section}")), *bullets, *pictures]


def _arms(material: Material, texts: Texts) -> list[Block]:
    """With tools or grammar against without, turn by turn; nothing where the replay had one arm."""
    effects = material.arm_effects
    if not effects:
        return []
    lines: tuple[Inline, ...] = tuple(translated(effect.in_words(), texts.lang) for effect in effects)
    return [Heading(texts("head.arms")), Bullets((*lines, em(texts("arms.checked"))))]


def _trust(material: Material, texts: Texts) -> list[Block]:
    sentences: tuple[Inline, ...] = assumptions(material, texts)
    blocks: list[Block] = [Heading(texts("head.trust")), *_bullets(material, texts, "trust"), Bullets(sentences)]
    by_reason: dict[str, list[str]] = {}
    for verdict in verdict_lines.undecided(material.verdicts):
        why = verdict_lines.sentence(verdict, texts)
        by_reason.setdefault(why, []).append(verdict_lines.open_question(verdict, texts))
    if by_reason:
        blocks.append(Paragraph((strong(texts("head.undecided")),)))
        joiner = texts("joiner")
        lines = [texts("undecided", names=joiner.join(names), why=why) for why, names in by_reason.items()]
        blocks.append(Bullets(tuple(lines)))
    return blocks


def _more_pictures(material: Material, texts: Texts, shown: dict[str, Picture], *, full: bool) -> list[Block]:
    placed = (*PLACED, "pareto") if len(material.study.objectives) > 1 else PLACED
    rest = [name for name in shown if name not in placed]
    if not rest:
        return []
    head = Heading(texts("head.pictures"))
    if full:
        return [head, *(shown[name] for name in rest)]
    links: list[Inline] = [
        (Span(texts(f"{FIGURES[name][0]}.title"), "", PICTURE + name), f": {_see(material, texts, name)}")
        for name in rest
    ]
    return [head, Bullets(tuple(links))]
