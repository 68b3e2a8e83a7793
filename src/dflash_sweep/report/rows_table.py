"""All rows of a study as a table for the full page. Imports `frames` and `report` siblings."""

from __future__ import annotations

import pandas as pd

from dflash_sweep.analysis.rows import knobs_of
from dflash_sweep.report.html import Appendix
from dflash_sweep.report.material import Material, known
from dflash_sweep.report.texts import Texts, role_name
from dflash_sweep.report.wording import DASH, knob_text, rate


def _cells(row: pd.Series, column: str, workers: dict[str, str], texts: Texts) -> tuple[str, ...]:
    candidate = known(row["candidate"])
    speculative = bool(row["speculative"])
    role = role_name(texts, str(row["role"]), speculative=speculative)
    failure = row["failure_kind"]
    setting = knob_text(knobs_of(row), joiner=" ") if speculative else texts("plain")
    return (
        str(row["number"]), role, DASH if candidate is None else f"{candidate:.0f}",
        rate(known(row[column])), rate(known(row["acceptance_length"])), rate(known(row["step_ms"])),
        _whole(known(row["peak_memory_mib"])), f"{row['n_valid_turns']}/{row['n_turns']}", setting or DASH,
        DASH if pd.isna(failure) else f"{failure}: {row['failure_message']}", workers.get(row["worker"], DASH),
        texts(f"word.{row['measurement']}"), str(row["uid"]),
    )  # fmt: skip


def _whole(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}"


def rows_table(material: Material, texts: Texts) -> Appendix | None:
    """One line a trial, failed ones too, in the order of numbers; None without trials."""
    if material.trials.empty:
        return None
    workers = material.worker_names(texts)
    header = (
        "#", texts("column.role"), texts("column.candidate"), material.metric.unit, "AL", texts("column.step_ms"),
        "MiB", texts("column.turns"), texts("column.setting"), texts("column.failure"), texts("column.worker"),
        texts("provenance.kind"), "uid",
    )  # fmt: skip
    return Appendix(
        title=texts("head.rows"),
        header=header,
        rows=tuple(_cells(row, material.column, workers, texts) for _, row in material.trials.iterrows()),
        numbers=tuple(int(value) for value in material.trials["number"]),
        align="rlrrrrrrlllll",
    )
