"""What a trial's page says: what it is, its result, its failure in words, its command line. Pure; imports L0, L1 and
`report`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dflash_sweep import frames, metrics, standing
from dflash_sweep.analysis.intervals import Interval, mean_interval
from dflash_sweep.records import Failure, Measurement, Role, StoredTrial, StudyInfo
from dflash_sweep.report.answer import command_line
from dflash_sweep.report.document import Block, Code, Document, Heading, Inline, Paragraph, code, em, strong
from dflash_sweep.report.material import known, mean_of
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import interval, knob_text, rate
from dflash_sweep.showcase.note_look import NoteRenderer
from dflash_sweep.showcase.stage_bar import stage_bar
from dflash_sweep.showcase.words import words

_MAX_MESSAGE, _MAX_TAIL, _MAX_COMMAND = 600, 900, 2500
_TAIL_LINES = 8
_GROUPS = {"draft_ms": "draft", "topk_ms": "topk", "verify_ms": "verify", "exact_ms": "verify"}
"""Stage → its group in pictures; every other stage is "other"."""


def tags(runs: Sequence[StoredTrial], study: StudyInfo) -> tuple[str, ...]:
    """What sort of trial this is: emulated, imported, retried, failed, stopped-early, canary, confirm, rerun,
    winner."""
    newest = runs[-1]
    found = [str(newest.result.measurement)]
    if max(run.attempt for run in runs):
        found.append("retried")
    if (failure := newest.result.failure) is not None:
        found.append("stopped-early" if failure.kind.is_stop else "failed")
    found += [str(role) for role in (Role.CANARY, Role.CONFIRM, Role.RERUN) if any(run.role is role for run in runs)]
    if newest.candidate is not None and newest.candidate == study.confirmed_candidate:
        found.append("winner")
    return tuple(found)


def trial_note(
    runs: Sequence[StoredTrial],
    study: StudyInfo,
    texts: Texts,
    *,
    plain_ms: float | None,
    folder: str | None,
    judged: Interval | None = None,
) -> str:
    """The note of one candidate. `runs`: all its runs so far, at least one, in the order they were finished; `folder`:
    where its evidence lies, None = not known; `judged`: its result as the report judges it, None = by its runs alone.
    """
    first, newest = runs[0], runs[-1]
    lang = texts.lang
    marks: list[Inline] = [code(tag) for tag in tags(runs, study)]
    head = tuple(part for mark in marks for part in (mark if isinstance(mark, tuple) else (mark, " ")))
    axes = [axis.name for axis in study.axes if axis.name in first.knobs]
    blocks: list[Block] = [
        Paragraph(head),
        *_result(runs, study, lang, judged),
        *_step(_used(runs), plain_ms, lang),
        *_failure(newest.result.failure, texts),
        Heading(words(lang, "setting"), 4),
        Paragraph(code(knob_text(first.knobs, axes or None))),
        *_imported(newest, lang),
    ]
    if command := command_line(newest):
        blocks += [Heading(words(lang, "command"), 4), Code(command[:_MAX_COMMAND], "sh")]
    if folder:
        blocks.append(Paragraph(em(words(lang, "evidence", folder=folder).replace("`", ""))))
    title = f"{texts(f'role.{first.role}')} #{first.number if first.candidate is None else first.candidate}"
    document = Document(title=title, label=texts(f"word.{newest.result.measurement}"), blocks=tuple(blocks), lang=lang)
    return NoteRenderer().render(document)


def figure(runs: Sequence[StoredTrial], objective: str) -> tuple[str, str]:
    """The result of some runs of one setting and how many it rests on: "61.2 [60.1, 62.3] tok/s", "4"."""
    values = _values(runs, objective)
    if not values:
        return "—", "0"
    return _shown(mean_interval(values), objective), str(len(values))


def _shown(result: Interval, objective: str) -> str:
    unit = metrics.METRIC[objective].unit if objective in metrics.METRIC else ""
    ends = "" if result.low is None else f" {interval(result.low, result.high)}"
    return f"{rate(result.value)}{ends} {unit}".rstrip()


def _used(runs: Sequence[StoredTrial]) -> list[StoredTrial]:
    """The runs a setting is judged by: of one that was measured again those runs only (the confirm phase before
    canaries), for its search run was chosen for looking good."""
    again = ([run for run in runs if run.role is role] for role in (Role.CONFIRM, Role.CANARY))
    own = [run for run in runs if run.role is not Role.RERUN]
    return next((found for found in again if len(found) > 1), own)


def _values(runs: Sequence[StoredTrial], objective: str) -> list[float]:
    return [value for run in _used(runs) if (value := _value(run, objective)) is not None]


def _value(run: StoredTrial, objective: str) -> float | None:
    if run.result.measurement is Measurement.IMPORTED and run.result.failure is None:
        return run.result.claimed.get(objective)
    return standing.value(run, objective)


def _result(runs: Sequence[StoredTrial], study: StudyInfo, lang: str, judged: Interval | None) -> list[Block]:
    text, count = figure(runs, study.objective) if judged is None else (_shown(judged, study.objective), str(judged.n))
    if count == "0":
        return [Paragraph(strong(words(lang, "no_value")))]
    basis = words(lang, "one_run") if count == "1" else words(lang, "interval", n=count)
    found: list[Block] = [Paragraph((strong(text), f" ({basis})"))]
    if count != "1":
        found.append(Paragraph(words(lang, "runs", figures=", ".join(map(rate, _values(runs, study.objective))))))
    others = [name for name in study.objectives if name != study.objective]
    return [*found, *(Paragraph(f"{name}: {figure(runs, name)[0]}") for name in others)]


def _step(runs: Sequence[StoredTrial], plain_ms: float | None, lang: str) -> list[Block]:
    """Tokens and milliseconds of a step, as means over the runs that the result rests on."""
    rows = [frames.trial_row(run) for run in runs if run.speculative]
    al, step = mean_of(row["acceptance_length"] for row in rows), mean_of(row["step_ms"] for row in rows)
    if al is None or step is None:
        return []
    text = words(lang, "al", al=rate(al), step=rate(step))
    return [Paragraph(text if plain_ms is None else f"{text}; {words(lang, 'plain', plain=rate(plain_ms))}")]


def _failure(failure: Failure | None, texts: Texts) -> list[Block]:
    if failure is None:
        return []
    meaning = texts(f"failure.{failure.kind}") if texts.has(f"failure.{failure.kind}") else ""
    message = " ".join(failure.message.split())
    shown = message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
    if failure.kind.is_stop:
        return [Paragraph((strong(meaning), ". ", shown))]
    blocks: list[Block] = [
        Paragraph((strong(words(texts.lang, "failed", kind=failure.kind)), " ", em(meaning))),
        Paragraph(shown),
    ]
    tail = "\n".join(failure.log_tail.rstrip().splitlines()[-_TAIL_LINES:])[-_MAX_TAIL:]
    if tail:
        blocks += [Heading(words(texts.lang, "log_tail"), 4), Code(tail)]
    return blocks


def _imported(run: StoredTrial, lang: str) -> list[Block]:
    if run.result.measurement is not Measurement.IMPORTED:
        return []
    text = words(lang, "imported", label=run.label or f"#{run.number}")
    if run.status_claimed:
        text += " " + words(lang, "claimed", status=run.status_claimed)
    return [Paragraph(text)]


def stage_picture(run: StoredTrial, texts: Texts, *, plain_ms: float | None) -> bytes | None:
    """The run's verify step as an SVG; None where no step time is known."""
    row = frames.trial_row(run)
    parts: dict[str, float] = {}
    for stage in metrics.SUMMED_STAGES:
        if (time_ms := known(row[stage])) is not None:
            group = _GROUPS.get(stage, "other")
            parts[group] = parts.get(group, 0.0) + time_ms
    step = known(row["step_ms"])
    if not parts and step is None:
        return None
    if not parts:
        parts = {"unknown": step or 0.0}
    elif step is not None and step - sum(parts.values()) > 0.05:
        parts["other"] = parts.get("other", 0.0) + step - sum(parts.values())
    order = [name for name in ("draft", "topk", "verify", "other", "unknown") if name in parts]
    al = known(row["acceptance_length"])
    number = run.number if run.candidate is None else run.candidate
    return stage_bar(
        words(texts.lang, "stage_title", number=number),
        {name: parts[name] for name in order},
        {name: texts(f"stage.{name}") for name in order},
        tie_ms=None if al is None or plain_ms is None or not run.speculative else al * plain_ms,
        tie_name=words(texts.lang, "tie"),
    )
