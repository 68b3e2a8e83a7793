"""What a study's page says: the report's own sentences, what is running, and runs that are no trials of the sampler.

Pure; imports L0, L1 and `report`. Bounded in size: sections are left out from the end, and the note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_sweep.records import Role, StoredTrial
from dflash_sweep.report.answer import answer
from dflash_sweep.report.document import ROWS, Block, Document, Heading, Paragraph, Picture, Table, strong
from dflash_sweep.report.material import Material
from dflash_sweep.report.page import findings
from dflash_sweep.report.texts import Texts
from dflash_sweep.showcase import Progress
from dflash_sweep.showcase.note_look import NoteRenderer
from dflash_sweep.showcase.trial_note import figure
from dflash_sweep.showcase.words import words

MAX_LETTERS = 12_000
MAX_LISTED = 24
"""Runs beside the search that the note lists, the newest."""

_LEFT_OUT = ("head.provenance", "head.pictures")
"""Sections of the page that the dashboard has elsewhere."""
_BEFORE_BESIDE = 4
"""Sections before the list of other runs: kind of figures, verdict, what to run, best settings."""
_BESIDE = (Role.BASELINE, Role.CALIBRATE, Role.CANARY, Role.CONFIRM, Role.CONTROL, Role.RERUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Runs of a study, and how many of them failed."""

    runs: int
    failed: int

    def more(self, trial: StoredTrial) -> Counted:
        """With one run more."""
        one = Counted.of([trial])
        return Counted(runs=self.runs + one.runs, failed=self.failed + one.failed)

    @classmethod
    def of(cls, trials: Sequence[StoredTrial]) -> Counted:
        failures = [failure for trial in trials if (failure := trial.result.failure) and not failure.kind.is_stop]
        return cls(runs=len(trials), failed=len(failures))


class _Linked(NoteRenderer):
    """Links to rows lead to the trials of the dashboard; rows that are none are named without a link."""

    def __init__(self, study_id: int, candidates: dict[int, int]) -> None:
        super().__init__()
        self._study_id, self._candidates = study_id, candidates

    def _target(self, href: str) -> str:
        if not href.startswith(ROWS):
            return super()._target(href)
        numbers = [int(number) for number in href.removeprefix(ROWS).split(",")]
        trials = dict.fromkeys(self._candidates[number] for number in numbers if number in self._candidates)
        query = f"/trials?numbers={','.join(map(str, trials))}" if trials else ""
        return f"/dashboard/studies/{self._study_id}{query}"


def study_note(
    material: Material,
    texts: Texts,
    *,
    study_id: int,
    progress: Progress | None,
    counted: Counted | None = None,
    max_letters: int = MAX_LETTERS,
) -> str:
    """The note of a study. `study_id`: Optuna's, for links; `progress` None = no driver is at work.

    `counted`: what is counted over all rows where `material` holds only the fastest of very many; then the note draws
    no conclusions but those that the fastest allow, and says so. None = `material` holds all rows.
    """
    lang = texts.lang
    page = findings(material, answer(material, texts), texts, (), None, full=False)
    candidates = {trial.number: trial.candidate for trial in material.stored if trial.candidate is not None}
    renderer = _Linked(study_id, candidates)
    shown = None if counted is None else len(material.stored)
    lead = lead_words(lang, counted or Counted.of(material.stored), progress, shown)
    opening = f"# {page.title} — {page.label}\n\n{lead}"
    sections = _sections(_kept(page.blocks, texts))
    if counted is not None:
        sections = sections[:_BEFORE_BESIDE]
    if beside := _beside(material, lang):
        sections.insert(_BEFORE_BESIDE, beside)
    parts = [
        renderer.render(Document(title="", label="", blocks=tuple(section), lang=lang)).split("\n", 2)[2].strip()
        for section in sections
    ]
    return _fitting(opening, parts, lang, max_letters)


def lead_words(lang: str, counted: Counted, progress: Progress | None, shown: int | None) -> str:
    """The paragraph under the title: how far the study is. `shown`: how many rows the page looks at, None = all."""
    parts = []
    if progress is not None:
        parts.append(words(lang, "phase", phase=progress.phase, done=progress.done, total=progress.total))
        if progress.best:
            parts.append(words(lang, "best", best=progress.best))
    parts.append(words(lang, "rows", count=counted.runs, failed=counted.failed))
    if shown is not None:
        parts.append(words(lang, "large", shown=shown))
    return " ".join(parts)


def with_lead(note: str, lead: str) -> str:
    """The note with another paragraph under its title."""
    title, _, rest = note.split("\n\n", 2)
    return f"{title}\n\n{lead}\n\n{rest}"


def _kept(blocks: Iterable[Block], texts: Texts) -> list[Block]:
    """The page without pictures and without the sections that the dashboard has elsewhere."""
    skipped = {texts(key) for key in _LEFT_OUT}
    kept: list[Block] = []
    skipping = False
    for block in blocks:
        if isinstance(block, Heading):
            skipping = block.text in skipped
        if not skipping and not isinstance(block, Picture):
            kept.append(block)
    return kept


def _sections(blocks: Sequence[Block]) -> list[list[Block]]:
    found: list[list[Block]] = [[]]
    for block in blocks:
        if isinstance(block, Heading) and found[-1]:
            found.append([])
        found[-1].append(block)
    return [section for section in found if section]


def _fitting(opening: str, parts: Sequence[str], lang: str, max_letters: int) -> str:
    end = words(lang, "full")
    short = f"{words(lang, 'shortened')} {end}"
    text = opening
    for part in parts:
        if len(text) + len(part) + len(short) + 4 > max_letters:
            end = short
            continue
        text += "\n\n" + part
    return f"{text}\n\n{end}"


def _beside(material: Material, lang: str) -> list[Block]:
    """The runs that are no trials of the sampler, the newest first."""
    runs = [trial for trial in material.stored if trial.role in _BESIDE]
    if not runs:
        return []
    rows = tuple(
        (
            str(trial.number),
            str(trial.role) + ("" if trial.speculative or trial.role is not Role.CONFIRM else " (plain)"),
            "—" if trial.candidate is None else str(trial.candidate),
            strong(str(trial.result.failure.kind))
            if trial.result.failure is not None
            else figure([trial], material.study.objective)[0],
        )
        for trial in reversed(runs[-MAX_LISTED:])
    )
    header = tuple(words(lang, f"column.{name}") for name in ("run", "what", "candidate", "figure"))
    blocks: list[Block] = [Heading(words(lang, "beside")), Paragraph(words(lang, "beside.why"))]
    blocks.append(Table(header, rows, "rlrl", ""))
    if len(runs) > MAX_LISTED:
        blocks.append(Paragraph(words(lang, "beside.more", count=len(runs) - MAX_LISTED)))
    return blocks
