"""Two studies or trials side by side, as a page: what differs first, then figures with intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_sweep import metrics
from dflash_sweep.analysis.change import change_words
from dflash_sweep.analysis.contrast import Contrast, Line, Side
from dflash_sweep.analysis.intervals import Interval
from dflash_sweep.analysis.likeness import settings_of
from dflash_sweep.differences import Difference, Effect
from dflash_sweep.report.document import Block, Bullets, Document, Heading, Inline, Paragraph, Table, code, strong

_MEANING = {
    Effect.CONFLICT: "another question",
    Effect.ENVIRONMENT: "other ground",
    Effect.NOTE: "no influence expected",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a page is made of. `apart`: why the two may not be ranked; () = they may. `forced`: they are all the same.

    `never`: not even when forced (an emulated figure against a measured one). `kinds`: what numbers A and B are.
    """

    a: Side
    b: Side
    objective: str
    sign: float
    kinds: tuple[str, str]
    contrast: Contrast
    found: tuple[Difference, ...]
    apart: tuple[str, ...] = ()
    never: bool = False
    forced: bool = False
    text: str | None = None

    @property
    def is_ranked(self) -> bool:
        return not self.apart or (self.forced and not self.never)


def figure(interval: Interval | None, sign: str = "", *, brief: bool = False) -> str:
    """ "12.30 ±3.3 % n=4", "12.30 n=1", or "—"; ± is half of the 95 % interval, in percent of the figure."""
    if interval is None:
        return "—"
    half = ""
    if not brief and interval.low is not None and interval.high is not None and interval.low > 0:
        half = f" ±{100 * (math.sqrt(interval.high / interval.low) - 1):.1f} %"
    return f"{interval.value:.2f}{sign}{half} n={interval.n}"


def statement(page: Comparison) -> str:
    """The answer in one or two sentences."""
    meant, plain = page.contrast.meant, page.contrast.plain
    if not page.is_ranked:
        why = "; ".join(page.apart)
        tail = (
            "Figures of different kinds are never ranked, forced or not."
            if page.never
            else "Each stands beside its own plain decoding below; --force ranks them all the same."
        )
        return f"Not ranked: the two were not measured under the same terms ({why}). {tail}"
    if meant.ratio is None:
        missing = page.a.name if meant.a is None else page.b.name
        return f"Nothing to compare: {missing} has no {page.objective}."
    unit = metrics.METRIC[page.objective].unit
    words = {
        "B is better": f"{page.b.name} is better",
        "B is worse": f"{page.a.name} is better",
        "cannot be told apart": "The two cannot be told apart",
        "no repeats, no interval": "Neither study has repeats, so nothing tells the noise",
    }[meant.words(page.sign)]
    assert meant.a is not None
    assert meant.b is not None
    text = (
        f"{words}: B {meant.b.value:.2f} {unit}, A {meant.a.value:.2f} {unit}, B against A {change_words(meant.ratio)}."
    )
    if plain is not None and plain.ratio is not None and not page.a.is_plain:
        same = plain.words(page.sign) == "cannot be told apart"
        text += f" Plain decoding {'cannot be told apart' if same else 'differs'}: {change_words(plain.ratio)}."
    return text


def _row(
    page: Comparison, name: Inline, line: Line, *, ratios: bool = False, brief: bool = False
) -> tuple[Inline, ...]:
    """A line of a table; a ratio that is surely not 1 is bold. `brief`: figures without their intervals."""
    sign = "×" if ratios else ""
    figures = figure(line.a, sign, brief=brief), figure(line.b, sign, brief=brief)
    if line.ratio is None or not page.is_ranked:
        return (name, *figures, "—")
    words = change_words(line.ratio)
    return (name, *figures, strong(words) if line.ratio.excludes(1.0) else words)


def _main_table(page: Comparison) -> Table:
    contrast = page.contrast
    rows: list[tuple[Inline, ...]] = []
    if contrast.plain is not None:
        rows.append(_row(page, "plain decoding", contrast.plain))
    if not (page.a.is_plain and page.b.is_plain):
        rows.append(_row(page, strong("the settings"), contrast.meant))
    if contrast.relative is not None:
        name, *figures, ratio = _row(page, "over plain", contrast.relative, ratios=True)
        marked = [
            f"{shown} †" if _unlike(page, *of) else shown for shown, of in zip(figures, _gains(page), strict=True)
        ]
        rows.append((name, *marked, ratio))
    if contrast.turns is not None and page.is_ranked:
        rows.append(("turn by turn", "", "", change_words(contrast.turns)))
    return Table(
        header=("", *_sides(page), "B against A"),
        rows=tuple(rows),
        align="lrrr",
        caption=f"{page.objective} in {metrics.METRIC[page.objective].unit}. ± and brackets are 95 %; n counts runs; "
        "bold: surely different.",
    )


def _gains(page: Comparison) -> tuple[tuple[Side, Interval | None], ...]:
    line = page.contrast.relative
    return () if line is None else ((page.a, line.a), (page.b, line.b))


def _unlike(page: Comparison, side: Side, gain: Interval | None) -> bool:
    """Whether a side is better than plain decoding, which ran with other threads, caches or the like only."""
    return not side.rival.alike and gain is not None and page.sign * (gain.value - 1) > 0


def _rivals(page: Comparison) -> list[Inline]:
    """What plain decoding ran with where that is not all the baseline's, or not the setting's own."""
    notes: list[Inline] = []
    for side, gain in _gains(page):
        ran = settings_of(side.rival.rows) or "other settings"
        if _unlike(page, side, gain):
            notes.append(f"† {side.name}: plain decoding ran with {ran}; the gain is not speculation's alone.")
        elif gain is not None and settings_of(side.plain) != settings_of(side.rival.rows):
            notes.append(
                f"{side.name} over plain: plain decoding with the setting's own {ran}, which is the faster one."
            )
    return notes


def _sides(page: Comparison) -> tuple[str, str]:
    """Heads of both columns; the kind of numbers where it differs."""
    if page.kinds[0] == page.kinds[1]:
        return "A", "B"
    return f"A {page.kinds[0]}", f"B {page.kinds[1]}"


def _notes(page: Comparison) -> list[Block]:
    notes = _rivals(page)
    if page.contrast.turns is not None and page.is_ranked:
        notes.append(
            f"Turn by turn: over the {page.contrast.turns.n} turns of these two runs; how even the difference is, "
            "not what further runs would give."
        )
    if any(
        line.ratio is not None and line.a is not None and min(line.a.n, line.ratio.n) < 2
        for line in (page.contrast.meant,)
    ):
        notes.append("A single run is as noisy as the study's repeats say; its interval rests on that.")
    return [Bullets(tuple(notes))] if notes else []


def _difference_table(found: Sequence[Difference]) -> Block:
    if not found:
        return Paragraph("Nothing: configuration, build, models, trace, policy and device are the same.")
    order = sorted(found, key=lambda entry: list(Effect).index(entry.effect))
    rows = tuple(
        (
            code(entry.key),
            entry.old,
            entry.new,
            "the setting" if entry.key.startswith("knobs.") else _MEANING[entry.effect],
        )
        for entry in order
    )
    return Table(header=("what", "A", "B", "meaning"), rows=rows, align="llll")


def _settings(page: Comparison) -> list[Block]:
    lines = page.contrast.settings
    if not lines:
        return []
    common, own = _parted(lines)
    table = Table(
        header=("setting", *_sides(page), "B against A"),
        rows=tuple(_row(page, name, line, brief=True) for name, line in zip(own, lines, strict=True)),
        align="lrrr",
        caption=(f"All with {common}. " if common else "")
        + f"Intervals of the ratios are adjusted for {page.contrast.common} comparison(s) (Bonferroni).",
    )
    more = page.contrast.common - len(lines)
    tail: list[Block] = [Paragraph(f"{more} further common setting(s) are left out.")] if more > 0 else []
    return [Heading("Settings that both measured"), table, *tail]


def _parted(lines: Sequence[Line]) -> tuple[str, list[str]]:
    """What all settings share, and what is each one's own, in words."""
    if len(lines) < 2:
        return "", [line.name for line in lines]
    words = [line.name.split() for line in lines]
    shared = [word for word in words[0] if all(word in other for other in words)]
    own = [" ".join(word for word in entry if word not in shared) or "the same" for entry in words]
    return " ".join(shared), own


def _text(page: Comparison) -> list[Block]:
    return [Heading("Text"), Paragraph(page.text)] if page.text else []


def document(page: Comparison) -> Document:
    """The whole page: what differs comes first."""
    marked: list[Block] = []
    if page.apart and page.is_ranked:
        marked = [Paragraph((strong("Forced: "), f"ranked although {'; '.join(page.apart)}."))]
    sides = tuple(
        (letter, side.name, side.setting or "nothing measured", ", ".join(map(str, side.numbers)) or "—", kind)
        for letter, side, kind in (("A", page.a, page.kinds[0]), ("B", page.b, page.kinds[1]))
    )
    return Document(
        title=f"{page.a.name} against {page.b.name}",
        label=" / ".join(dict.fromkeys(kind.upper() for kind in page.kinds)),
        blocks=(
            Table(header=("", "what", "setting", "trials", "numbers"), rows=sides, align="lllll"),
            Heading("What differs"),
            _difference_table(page.found),
            Heading("Result"),
            *marked,
            Paragraph(strong(statement(page))),
            _main_table(page),
            *_notes(page),
            *_text(page),
            *_settings(page),
        ),
    )
