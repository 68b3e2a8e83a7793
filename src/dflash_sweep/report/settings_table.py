"""The table of best settings, plain decoding among them. Imports `report` siblings."""

from __future__ import annotations

from dflash_sweep.report.document import Inline, Span, Table, code, rows, strong
from dflash_sweep.report.material import Candidate, Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import DASH, factor, interval, knob_text, rate

MAX_ROWS = 8


def chosen(material: Material) -> list[Candidate]:
    """The best settings, the winner and plain decoding included wherever they stand, in order of the objective."""
    head = [entry for entry in material.everyone if entry.speculative][:MAX_ROWS]
    wanted = [entry for entry in (material.winner, material.baseline) if entry is not None]
    kept = {id(entry) for entry in (*head, *wanted)}
    return [entry for entry in material.everyone if id(entry) in kept]


def row_link(numbers: tuple[int, ...]) -> Span | str:
    """Up to six trial numbers as a link to their rows."""
    shown = ", ".join(map(str, numbers[:6])) + (f" … ({len(numbers)})" if len(numbers) > 6 else "")
    return rows(numbers, shown)


def _cells(entry: Candidate, material: Material, texts: Texts) -> tuple[Inline, ...]:
    best = entry.confirmed
    if not entry.speculative:
        name: Inline = texts("plain")
    else:
        head = texts("candidate", number=entry.number) if entry.number is not None else entry.label or ""
        knobs = knob_text(entry.knobs, material.varied, joiner=" ")
        mark: str | Span = strong(f"{head} ← {texts('winner')}") if best else head
        name = (mark, " ", code(knobs)) if knobs else mark
    gain = factor(entry.speedup)
    if entry.speedup_low is not None and entry.speedup_high is not None:
        gain += f" [{entry.speedup_low:.2f}, {entry.speedup_high:.2f}]"
    return (
        name, str(entry.n), rate(entry.value), interval(entry.low, entry.high), gain if entry.speculative else DASH,
        rate(entry.acceptance_length), rate(entry.step_ms), str(entry.n_failed) if entry.n_failed else DASH,
        row_link(entry.numbers),
    )  # fmt: skip


def settings_table(material: Material, texts: Texts, word: str) -> Table | None:
    """Setting, n, mean, interval, speed-up over plain, AL, step time, failures, rows. None without a good run."""
    entries = chosen(material)
    if not entries:
        return None
    same = {
        name: value
        for name, value in material.candidates[0].knobs.items()
        if name not in material.varied
    } if material.candidates else {}  # fmt: skip
    caption = texts("table.settings.caption", word=word, total=len(material.candidates))
    if same:
        caption += " " + texts("table.settings.same", knobs=knob_text(same, joiner=" "))
    header = (
        texts("column.setting"), "n", f"{texts('column.mean')} {material.metric.unit}", texts("column.interval"),
        texts("column.speedup"), "AL", texts("column.step_ms"), texts("column.failed"), texts("column.trials"),
    )  # fmt: skip
    return Table(header, tuple(_cells(entry, material, texts) for entry in entries), "lrrrrrrrl", caption)
