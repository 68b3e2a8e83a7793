"""results.csv: every row of a study, one line a trial. Imports pandas only."""

from __future__ import annotations

import pandas as pd

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def _cell(value: object) -> object:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front; an empty cell stays empty."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    return value


def results_csv(trials: pd.DataFrame) -> bytes:
    """UTF-8, a header line, LF; empty cell = not known; one line a trial in the order of numbers."""
    table = trials.copy()
    for name in table.columns:
        if table[name].dtype == object or pd.api.types.is_string_dtype(table[name]):
            table[name] = table[name].map(_cell)
    text: str = table.to_csv(index=False, lineterminator="\n")
    return text.encode()
