"""The table of best settings, plain decoding among them. Imports `report` siblings."""

from __future__ import annotations

from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.document import Inline, Span, Table, code, rows, strong
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import DASH, factor, interval, knob_text, rate

MAX_ROWS = 8


def chosen(material: Material) -> list[Candidate]:
    """The best settings, all finalists and plain decoding included wherever they stand, in order of the objective."""
    wanted = [entry for entry in (material.winner, material.baseline, *material.finalists) if entry is not None]
    free = [entry for entry in material.candidates if entry not in wanted]
    head = free[: max(0, MAX_ROWS - len(material.finalists))]
    kept = {id(entry) for entry in (*head, *wanted)}
    return [entry for entry in material.everyone if id(entry) in kept]


def row_link(material: Material, numbers: tuple[int, ...]) -> Span | str:
    """Up to six trials by name as a link to their rows."""
    names = [material.row_names.get(number, str(number)) for number in numbers[:6]]
    shown = ", ".join(names) + (f" … ({len(numbers)})" if len(numbers) > 6 else "")
    return rows(numbers, shown)


def _cells(entry: Candidate, material: Material, names: tuple[str, ...], texts: Texts) -> tuple[Inline, ...]:
    head = material.name(entry, texts)
    if entry.speculative and entry.number in material.barred:
        head = f"{head} ({texts('barred')})"
    mark: str | Span = strong(f"{head} ← {texts('winner')}") if entry.confirmed else head
    knobs = knob_text(entry.knobs, names, joiner=" ") if entry.speculative else ""
    name: Inline = (mark, " ", code(knobs)) if knobs else mark
    gain = factor(entry.speedup)
    if entry.speedup_low is not None and entry.speedup_high is not None:
        gain += f" [{entry.speedup_low:.2f}, {entry.speedup_high:.2f}]"
    if entry.unlike:
        gain += " †"
    return (
        name, str(entry.n), rate(entry.value), interval(entry.low, entry.high), gain if entry.speculative else DASH,
        rate(entry.acceptance_length), rate(entry.step_ms), str(entry.n_failed) if entry.n_failed else DASH,
        row_link(material, entry.numbers),
    )  # fmt: skip


def settings_table(material: Material, texts: Texts, word: str) -> Table | None:
    """Setting, n, mean, interval, speed-up over plain, AL, step time, failures, rows. None without a good run."""
    entries = chosen(material)
    if not entries:
        return None
    names = material.differing(entries)
    same = material.shared(entries)
    caption = texts("table.settings.caption", word=word, total=len(material.candidates))
    if same:
        caption += " " + texts("table.settings.same", knobs=knob_text(same, joiner=" "))
    if any(entry.unlike for entry in entries):
        caption += " " + texts("table.settings.unlike", settings=material.plain_settings)
    header = (
        texts("column.setting"), "n", f"{texts('column.mean')} {material.metric.unit}", texts("column.interval"),
        texts("column.speedup"), "AL", texts("column.step_ms"), texts("column.failed"), texts("column.trials"),
    )  # fmt: skip
    return Table(header, tuple(_cells(entry, material, names, texts) for entry in entries), "lrrrrrrrl", caption)
