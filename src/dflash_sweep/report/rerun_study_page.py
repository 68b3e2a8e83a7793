"""What the rerun of a whole study found, as a page. Pure but for `write`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from dflash_sweep.analysis.change import change_words
from dflash_sweep.analysis.reproduction import Outcome, Reproduction
from dflash_sweep.records import StudyInfo
from dflash_sweep.report.document import Document, Paragraph, Table, strong
from dflash_sweep.report.markdown import Renderer
from dflash_sweep.report.writer import replace_file

_WORDS = {
    Outcome.REPRODUCED: "reproduced",
    Outcome.DRIFTED: "drifted",
    Outcome.NOT_REPRODUCED: "not reproduced",
    Outcome.INCONCLUSIVE: "inconclusive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a study, judged."""

    name: str
    judgement: Reproduction


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRerun:
    """A study and its repetition. `n_same`: candidates with the same number and knobs in both; `n_apart` of them are
    shown to differ, each by itself."""

    then: StudyInfo
    now: StudyInfo
    parts: tuple[Part, ...]
    outcome: Outcome
    n_candidates: int
    n_same: int
    n_apart: int
    unit: str


def statement(page: StudyRerun) -> str:
    """The answer in one sentence."""
    named = ", ".join(part.name for part in page.parts if part.judgement.outcome is page.outcome)
    return f"{_WORDS[page.outcome].capitalize()}: {named or 'nothing could be judged'}."


def _figure(value: float | None, n: int) -> str:
    return "—" if value is None else f"{value:.2f} n={n}"


def document(page: StudyRerun) -> Document:
    """The whole page."""
    rows = tuple(
        (
            part.name,
            _figure(part.judgement.then, part.judgement.n_then),
            _figure(part.judgement.now, part.judgement.n_now),
            "—" if part.judgement.change is None else change_words(part.judgement.change.interval),
            _WORDS[part.judgement.outcome],
        )
        for part in page.parts
    )
    return Document(
        title=f"Rerun of study {page.then.name} as {page.now.name}",
        label=str(page.now.measurement).upper(),
        blocks=(
            Paragraph(strong(statement(page))),
            Table(
                header=("", "then", "now", "change, 95 % interval", ""),
                rows=rows,
                align="lrrrl",
                caption=f"{page.then.objective} in {page.unit}; n counts runs.",
            ),
            *(Paragraph(f"{part.name}: {part.judgement.statement}") for part in page.parts),
            Paragraph(
                f"{page.n_same} of {page.n_candidates} candidates have the same number and knobs in both; "
                f"{page.n_apart} of these moved by more than noise, each looked at alone (level 0.3 %)."
            ),
        ),
    )


def write(page: StudyRerun, shown: Document, folder: Path) -> Path:
    """Write rerun.md and rerun.json into the new study's report folder; returns the path of the page."""
    replace_file(folder / "rerun.md", Renderer({}, "rerun.json").render(shown).encode())
    data = {
        "study": page.now.name,
        "of": {"study": page.then.name},
        "measurement": str(page.now.measurement),
        "objective": page.then.objective,
        "outcome": str(page.outcome),
        "statement": statement(page),
        "parts": [{"name": part.name, **asdict(part.judgement)} for part in page.parts],
        "n_candidates": page.n_candidates,
        "n_same": page.n_same,
        "n_apart": page.n_apart,
    }
    replace_file(folder / "rerun.json", msgspec.json.format(msgspec.json.encode(data)) + b"\n")
    return folder / "rerun.md"
