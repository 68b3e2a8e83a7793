"""What failed and why: runs by kind of failure, and turns that were left out by reason. Imports `arms`,
`report` siblings."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from dflash_sweep import arms
from dflash_sweep.analysis import rows
from dflash_sweep.report.document import Block, Inline, Paragraph, Table, code
from dflash_sweep.report.material import Material
from dflash_sweep.report.settings_table import row_link
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import knob_text

MAX_MESSAGE = 180


def failed_rows(material: Material) -> pd.DataFrame:
    """Every failed run of the study, of any kind of measurement, in the order of numbers."""
    return material.trials[rows.failed(material.trials)]


def _shared_knobs(material: Material, uids: set[str]) -> str:
    """Settings that all of these runs have and not all other runs have: where to look first."""
    inside = [trial.knobs for trial in material.stored if trial.uid in uids]
    outside = [trial.knobs for trial in material.stored if trial.uid not in uids and trial.speculative]
    if len(inside) < 2 or not outside:
        return ""
    shared = {
        name: value for name, value in inside[0].items()
        if all(knobs.get(name) == value for knobs in inside) and any(knobs.get(name) != value for knobs in outside)
    }  # fmt: skip
    return knob_text(shared, joiner=" ")


def _message(group: pd.DataFrame, texts: Texts) -> str:
    messages = Counter(str(message) for message in group["failure_message"])
    text, _ = messages.most_common(1)[0]
    flat = " ".join(text.split())
    flat = flat if len(flat) <= MAX_MESSAGE else flat[: MAX_MESSAGE - 1] + "…"
    return flat + (f" {texts('failures.more', count=len(messages) - 1)}" if len(messages) > 1 else "")


def _row(kind: str, group: pd.DataFrame, material: Material, texts: Texts) -> tuple[Inline, ...]:
    shared = _shared_knobs(material, set(group["uid"]))
    key = f"failure.{kind}"
    return (
        code(kind), str(len(group)), texts(key) if texts.has(key) else "", _message(group, texts),
        code(shared) if shared else "—", row_link(material, tuple(int(number) for number in group["number"])),
    )  # fmt: skip


def failure_blocks(material: Material, texts: Texts, word: str) -> list[Block]:
    """The table of failures, the most frequent kind first, and a sentence on turns that were left out."""
    failed = failed_rows(material)
    blocks: list[Block] = []
    if failed.empty:
        blocks.append(Paragraph(texts("failures.none", total=len(material.trials))))
    else:
        groups = sorted(failed.groupby("failure_kind", sort=True), key=lambda item: (-len(item[1]), str(item[0])))
        header = (
            texts("column.kind"), texts("column.runs"), texts("column.meaning"), texts("column.message"),
            texts("column.shared"), texts("column.trials"),
        )  # fmt: skip
        body = tuple(_row(str(kind), group, material, texts) for kind, group in groups)
        caption = texts("table.failures.caption", word=word, failed=len(failed), total=len(material.trials))
        blocks.append(Table(header, body, "lrllll", caption))
    throttled = material.trials["throttled"].map(lambda value: value is True).astype(bool)
    slowed = material.trials[throttled & ~rows.failed(material.trials)]
    if len(slowed):
        blocks.append(_named(material, slowed, texts("failures.throttled", count=len(slowed))))
    stopped = material.trials[rows.stopped_early(material.trials)]
    if len(stopped):
        text = texts("failures.stopped", count=len(stopped), message=_message(stopped, texts))
        blocks.append(_named(material, stopped, text))
    if sentence := _left_out_turns(material, texts):
        blocks.append(Paragraph(sentence))
    return blocks


def _named(material: Material, runs: pd.DataFrame, text: str) -> Paragraph:
    """A sentence and the runs that it is about."""
    return Paragraph((text, " ", row_link(material, tuple(int(number) for number in runs["number"]))))


def _left_out_turns(material: Material, texts: Texts) -> str:
    turns = material.turns
    if turns.empty:
        return ""
    counted = turns[~turns["warmup"].astype(bool) & ~turns["invalid_reason"].map(arms.is_other).astype(bool)]
    reasons = counted.loc[counted["invalid_reason"].notna(), "invalid_reason"].value_counts()
    if reasons.empty:
        return ""
    listed = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))
    return texts("failures.turns", count=int(reasons.sum()), total=len(counted), reasons=listed)
