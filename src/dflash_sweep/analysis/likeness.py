"""Which plain decoding a speculative setting is compared with. Pure; imports `rows`.

A setting that runs with more threads or smaller caches than the baseline is faster by that alone. It has to beat the
baseline, and plain decoding with its own settings too (role control, see `controls`): of several the fastest counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from dflash_sweep.analysis.rows import is_missing

COLUMN = "plain_settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Rows of plain decoding that a setting has to beat.

    `alike`: plain decoding with the setting's own settings is among what was looked at, or nothing is known of a
    difference; False = a gain may be that of other threads or caches.
    """

    rows: pd.DataFrame
    alike: bool


def settings_of(rows: pd.DataFrame) -> str | None:
    """What plain decoding reads of the settings of these rows, which have one setting; None = not known."""
    known = [] if COLUMN not in rows.columns else [text for text in rows[COLUMN] if not is_missing(text)]
    return str(known[-1]) if known else None


def alike(plain: pd.DataFrame, settings: str | None) -> pd.Series:
    """True for the plain rows with these settings; for all where it is not known of the setting or of the row."""
    if settings is None or COLUMN not in plain.columns:
        return pd.Series(True, index=plain.index, dtype=bool)
    return plain[COLUMN].map(lambda text: is_missing(text) or text == settings).astype(bool)


def hardest(
    plain: pd.DataFrame, settings: str | None, figures: pd.Series, *, larger_is_better: bool = True
) -> Reference:
    """The baseline's rows or those of the setting's own control, whichever are better by the mean of their `figures`.

    `plain`: good plain rows that may be compared with the setting, controls among them, `figures` with the same index.
    """
    same = alike(plain, settings)
    control = plain["role"].map(str) == "control"
    groups = [group for group in (plain[~control], plain[control & same]) if len(group)]
    if not groups:
        return Reference(rows=plain.iloc[:0], alike=False)
    sign = 1 if larger_is_better else -1
    best = max(groups, key=lambda group: sign * float(figures.loc[group.index].mean()))
    return Reference(rows=best, alike=bool(same.any()))
