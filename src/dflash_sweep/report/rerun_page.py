"""What a rerun found, as a page: the judgement, then against now, the text, what differs. Pure but for `write`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from dflash_sweep import metrics
from dflash_sweep.analysis.change import change_words
from dflash_sweep.analysis.divergence import answer_of, first_divergence, in_words
from dflash_sweep.analysis.intervals import log_mean_interval
from dflash_sweep.analysis.reproduction import Change, Reproduction
from dflash_sweep.analysis.rows import setting_text
from dflash_sweep.differences import Difference, Effect
from dflash_sweep.frames import counted_turns, trial_row
from dflash_sweep.objective import BY_CLIENT
from dflash_sweep.records import StoredTrial, StudyInfo, TurnRecord
from dflash_sweep.report.document import Block, Bullets, Document, Heading, Paragraph, Table, code, strong
from dflash_sweep.report.markdown import Renderer
from dflash_sweep.report.writer import replace_file

_SIDE_FIGURES = ("acceptance_length", "step_ms", "ttft_ms", "prefill_tps")
"""Figures shown beside the objective where both sides have them: they tell why a figure moved."""

_SHOWN_DIVERGENCES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A finished rerun. `info` is the new runs' study, `refused` the differences that `force` let through."""

    info: StudyInfo
    original: StoredTrial
    runs: tuple[StoredTrial, ...]
    judgement: Reproduction
    found: tuple[Difference, ...]
    refused: tuple[Difference, ...] = ()

    @property
    def again(self) -> tuple[StoredTrial, ...]:
        """The new runs of the trial itself."""
        return tuple(run for run in self.runs if run.speculative == self.original.speculative)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """One turn's answers now against the stored one. `divergence`: the first difference of the first run that differs,
    in words; None = all equal."""

    conversation: str
    index: int
    runs: int
    equal: int
    divergence: str | None


# ---------------------------------------------------------------- text


def texts(original: StoredTrial, again: Sequence[StoredTrial]) -> tuple[TurnText, ...]:
    """The answers of every turn that both sides have, turn by turn; warm-up left out."""
    return tuple(
        _turn_text(turn, [other for run in again for other in run.result.turns if _same_turn(turn, other)])
        for turn in original.result.turns
        if not turn.warmup and turn.exchange.error is None
    )


def _same_turn(one: TurnRecord, other: TurnRecord) -> bool:
    return (
        all(getattr(one, name) == getattr(other, name) for name in ("conversation", "index", "warmup"))
        and one.exchange.arm == other.exchange.arm
    )


def _turn_text(then: TurnRecord, now: Sequence[TurnRecord]) -> TurnText:
    expected = answer_of(then.exchange, then.counters.output_tokens)
    differing = [turn for turn in now if turn.text_sha256 != then.text_sha256]
    words = None
    if differing:
        found = first_divergence(expected, answer_of(differing[0].exchange, differing[0].counters.output_tokens))
        words = "by its hash only" if found is None else str(in_words(found, "then", "now"))
    return TurnText(
        conversation=then.conversation,
        index=then.index,
        runs=len(now),
        equal=len(now) - len(differing),
        divergence=words,
    )


def _text_blocks(page: Rerun) -> list[Block]:
    found = [turn for turn in texts(page.original, page.again) if turn.runs]
    if not found:
        return [Paragraph("No turn was answered on both sides.")]
    differing = [turn for turn in found if turn.divergence is not None]
    answers = sum(turn.runs for turn in found)
    if not differing:
        return [
            Paragraph(f"All {answers} answers of {len(found)} turns equal the stored text, character for character.")
        ]
    unequal = answers - sum(turn.equal for turn in found)
    said = f"{unequal} of {answers} answers differ from the stored text, in {len(differing)} of {len(found)} turns"
    more = len(differing) - _SHOWN_DIVERGENCES
    items = [
        f"{turn.conversation}, turn {turn.index}: {turn.equal} of {turn.runs} equal; first difference {turn.divergence}"
        for turn in differing[:_SHOWN_DIVERGENCES]
    ]
    return [Paragraph(f"{said}:"), Bullets((*items, *([f"and {more} more turn(s)"] if more > 0 else [])))]


# ---------------------------------------------------------------- figures


def _figures_table(page: Rerun) -> Table:
    judgement, unit = page.judgement, metrics.METRIC[page.info.objective].unit
    rows: list[tuple[str, ...]] = []
    if judgement.change is not None and judgement.then is not None and judgement.now is not None:
        name = f"{page.info.objective} ({unit})"
        rows.append((name, f"{judgement.then:.2f}", f"{judgement.now:.2f}", change_words(judgement.change.interval)))
    if page.original.speculative and judgement.plain is not None:
        plain = (f"{value:.2f}" for value in (judgement.plain_then, judgement.plain_now) if value is not None)
        rows.append(("plain decoding", *plain, change_words(judgement.plain.interval)))
        if judgement.relative is not None:
            rows.append(("relative to plain decoding", "", "", change_words(judgement.relative.interval)))
    then = trial_row(page.original)
    now = [trial_row(run) for run in page.again if run.result.failure is None]
    for name in _SIDE_FIGURES:
        if name in BY_CLIENT and page.original.result.clock == "virtual":
            continue
        values = [row[name] for row in now if row.get(name)]
        if then.get(name) and values and name != page.info.objective:
            mean = log_mean_interval(values).value
            rows.append((f"{name} ({metrics.METRIC[name].unit})", f"{then[name]:.2f}", f"{mean:.2f}",
                         f"{100 * (mean / then[name] - 1):+.1f} %"))  # fmt: skip
    return Table(header=("", "then", "now", "change, 95 % interval"), rows=tuple(rows), align="lrrr")


def _method(page: Rerun) -> str:
    change, judgement = page.judgement.change, page.judgement
    if change is None or change.sd is None or judgement.margin is None or change.df is None:
        return ""
    return (
        f"{judgement.n_then} run then, {judgement.n_now} now; one run scatters by {100 * change.sd:.2f} % "
        f"({change.df:.3g} degrees of freedom). The 90 % interval of the change is {change_words(change.equal)}; "
        f"within ±{100 * judgement.margin:.1f} % it counts as the same."
    )


def _difference_blocks(page: Rerun) -> list[Block]:
    if not page.found:
        return [Paragraph("Nothing: build, models, trace, device, driver, kernel and packages are the same.")]
    refused = set(page.refused)
    names = {
        Effect.CONFLICT: "another question",
        Effect.ENVIRONMENT: "other ground",
        Effect.NOTE: "no influence expected",
    }
    rows = tuple(
        (code(entry.key), entry.old, entry.new, "forced" if entry in refused else names[entry.effect])
        for entry in sorted(page.found, key=lambda entry: (entry not in refused, list(Effect).index(entry.effect)))
    )
    return [Table(header=("what", "then", "now", "meaning"), rows=rows, align="llll")]


def _run_rows(page: Rerun) -> Table:
    objective = page.info.objective
    rows = []
    for run in page.runs:
        row = trial_row(run)
        value = row.get(objective)
        failure = run.result.failure
        rows.append(
            (
                str(run.number),
                "trial" if run.speculative == page.original.speculative else "plain decoding",
                "—" if value is None or failure else f"{value:.2f}",
                str(len(counted_turns(run))),
                run.result.device.name,
                str(failure.kind) if failure else "",
            )
        )
    header = ("run", "what", metrics.METRIC[objective].unit, "turns", "device", "failure")
    return Table(header=header, rows=tuple(rows), align="rlrrll")


def document(page: Rerun) -> Document:
    """The whole page."""
    trial = page.original
    setting = (
        setting_text({k: v for k, v in trial.knobs.items() if v is not None}) if trial.speculative else "plain decoding"
    )
    marked: list[Block] = []
    if page.refused:
        names = ", ".join(entry.key for entry in page.refused)
        marked = [
            Paragraph(
                (strong("Forced: "), f"not the same measurement ({names}); the judgement compares them all the same.")
            )
        ]
    return Document(
        title=f"Rerun of {trial.study}, trial {trial.number}",
        label=str(page.info.measurement).upper(),
        blocks=(
            *marked,
            Paragraph(strong(page.judgement.statement)),
            Paragraph(f"Setting: {setting}. First measured {trial.result.started_utc or 'at an unknown time'}."),
            _figures_table(page),
            *([Paragraph(_method(page))] if _method(page) else []),
            Heading("Text"),
            *_text_blocks(page),
            Heading("What differs from then"),
            *_difference_blocks(page),
            Heading("Runs"),
            _run_rows(page),
        ),
    )


def _change_data(change: Change | None) -> dict[str, Any] | None:
    return None if change is None else asdict(change)


def as_data(page: Rerun) -> dict[str, Any]:
    """The same as JSON-able data."""
    judgement = page.judgement
    return {
        "study": page.info.name,
        "of": {"study": page.original.study, "trial": page.original.number, "uid": page.original.uid},
        "measurement": str(page.info.measurement),
        "objective": page.info.objective,
        "outcome": str(judgement.outcome),
        "statement": judgement.statement,
        "then": judgement.then,
        "now": judgement.now,
        "n_then": judgement.n_then,
        "n_now": judgement.n_now,
        "margin": judgement.margin,
        "margin_from": judgement.margin_from,
        "more_repeats": judgement.more_repeats,
        "change": _change_data(judgement.change),
        "plain": _change_data(judgement.plain),
        "plain_moved": judgement.plain_moved,
        "plain_then": judgement.plain_then,
        "plain_now": judgement.plain_now,
        "relative": _change_data(judgement.relative),
        "texts": [asdict(turn) for turn in texts(page.original, page.again)],
        "differences": [asdict(entry) for entry in page.found],
        "forced": [entry.key for entry in page.refused],
        "runs": [run.uid for run in page.runs],
    }


def write(page: Rerun, shown: Document, folder: Path) -> Path:
    """Write rerun.md and rerun.json into `folder`; returns the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "rerun.md", Renderer({}, "rerun.json").render(shown).encode())
    replace_file(folder / "rerun.json", msgspec.json.format(msgspec.json.encode(as_data(page))) + b"\n")
    return folder / "rerun.md"
