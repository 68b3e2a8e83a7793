"""Which part of the space does not fit into memory, and what the memory is made of.

Imports `evidence`, `intervals`, `rows` and `frames` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.proportion import proportion_confint

from dflash_sweep.analysis import levels as lv
from dflash_sweep.analysis.evidence import HOLDS, UNKNOWN, Evidence, between, runs_in_words, unknown
from dflash_sweep.analysis.intervals import Interval, mean_interval
from dflash_sweep.analysis.rows import is_missing, knob_columns, numbers, row_name, value_text, whole_settings
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
from dflash_sweep.frames import KNOB_PREFIX, MEMORY_PREFIX
from dflash_sweep.records import UNSET, Verdict

MAX_TERMS = 3
"""Conditions in the description of what does not fit."""

MIN_MIB = 1.0
"""A knob that moves less than this over its whole range moves nothing."""

MIN_SETTINGS = 4
"""Settings that a memory model needs beyond its columns."""

MOSTLY = 0.8
"""A condition "does not fit" if at least this share of its runs ran out of memory."""

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*(MiB|MB|GiB|GB)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Settings that run out of memory: all `terms` (knob, value) hold. `failed` of `failed` + `fitted` runs did."""

    terms: tuple[tuple[str, str], ...]
    failed: int
    fitted: int
    share: Interval
    exceptions: tuple[str, ...]


def memory(evidence: Evidence) -> list[Verdict]:
    """What does not fit; MiB per unit of a knob from messages and log figures; peak memory along the knobs."""
    found = [*_fits(evidence), *_messages(evidence), *_figures(evidence)]
    return found or [_nothing_shown(evidence.trials)]


def _nothing_shown(rows: pd.DataFrame) -> Verdict:
    """What is known of memory where nothing follows from it: runs that did not fit, figures that no knob explains."""
    failed = int((rows["failure_kind"].map(str) == "out_of_memory").sum()) if len(rows) else 0
    figures = {column: numbers(rows, column).notna() for column in _figure_columns(rows)}
    figures = {column: known for column, known in figures.items() if known.any()}
    if not failed and not figures:
        return unknown("memory", "device memory", say("No run ran out of memory and no memory figure was recorded."))
    n = int(np.logical_or.reduce(list(figures.values())).sum()) if figures else 0
    text = together(
        say("{runs} ran out of memory, but none of them states its whole setting.", runs=runs_in_words(failed))
        if failed
        else say("No run ran out of memory."),
        say(
            "Memory was recorded in {runs} ({figures}), but these show no knob that moves it.",
            runs=runs_in_words(n),
            figures=listed(figures),
        )
        if figures
        else say("No memory figure was recorded."),
    )
    return unknown("memory", "device memory", text, max(n, failed))


def _fits(evidence: Evidence) -> list[Verdict]:
    rows = evidence.trials
    failed = rows["failure_kind"].map(str) == "out_of_memory" if len(rows) else pd.Series(dtype=bool)
    if not failed.any():
        return []
    rows = whole_settings(rows)
    failed = failed.loc[rows.index]
    if not failed.any():
        return []
    judged = rows[failed | rows["failure_kind"].isna()]
    misfit = worst_condition(judged, failed.loc[judged.index])
    if misfit is None:
        template = "{count} runs ran out of memory, in settings that have nothing in common beyond chance."
        return [unknown("memory", "out of memory", say(template, count=int(failed.sum())), int(failed.sum()))]
    words = _condition(misfit)
    text = together(
        say(
            "{condition} does not fit{device}: {failed} of {tried} runs ran out of memory.",
            condition=words,
            device=_device(rows),
            failed=misfit.failed,
            tried=misfit.failed + misfit.fitted,
        ),
        say("Exceptions that fit: {runs}.", runs=listed(misfit.exceptions, "; ")) if misfit.exceptions else "",
        _nearby(judged, failed.loc[judged.index], misfit),
    )
    return [
        Verdict(
            id="memory",
            subject=words,
            status=HOLDS if misfit.failed > 1 else UNKNOWN,
            statement=text,
            value=misfit.share.value,
            unit="share of runs",
            ci_low=misfit.share.low,
            ci_high=misfit.share.high,
            n=misfit.failed + misfit.fitted,
            details={
                "terms": dict(misfit.terms),
                "out_of_memory": [row_name(row) for _, row in rows[failed].iterrows()],
            },
            how_to_check=say("failure_kind out_of_memory against the knob columns named; Wilson interval"),
        )
    ]


def _condition(misfit: Misfit) -> str | Sentence:
    """ "n_ctx=65536 with batch unset and tree=true"."""
    terms = [say("{knob} unset", knob=name) if value == UNSET else f"{name}={value}" for name, value in misfit.terms]
    if len(terms) == 1:
        return terms[0]
    rest = terms[1] if len(terms) == 2 else say("{one} and {other}", one=terms[1], other=terms[2])
    return say("{first} with {rest}", first=terms[0], rest=rest)


def _device(rows: pd.DataFrame) -> str | Sentence:
    names = [str(name) for name in rows["device"].dropna().unique() if str(name) != "unknown"]
    sizes = numbers(rows, "device_memory_mib").dropna()
    size = f" ({sizes.iloc[0] / 1024:.0f} GB)" if len(sizes) else ""
    return say(" on {device}", device=f"{names[0]}{size}") if len(names) == 1 else ""


def worst_condition(rows: pd.DataFrame, failed: pd.Series) -> Misfit | None:
    """The condition (up to MAX_TERMS knob values) that separates the failed runs best; None if none is beyond chance.

    Among conditions whose runs failed in MOSTLY of the cases: the smallest p of Fisher's exact test against the other
    runs (one-sided), fewest terms on ties; below 1 % after Bonferroni's correction for the conditions tried.
    """
    texts = {column[len(KNOB_PREFIX) :]: _texts(rows, column) for column in knob_columns(rows)}
    bad = failed.to_numpy(dtype=bool)
    conditions = list(_conditions({name: text for name, text in texts.items() if len(set(text)) > 1}, bad))
    if not conditions:
        return None
    inside = np.array([mask.sum() for _, mask in conditions])
    hits = np.array([(mask & bad).sum() for _, mask in conditions])
    p = np.asarray(stats.hypergeom.sf(hits - 1, len(bad), bad.sum(), inside))
    mostly = hits >= MOSTLY * inside
    if not mostly.any() or float(p[mostly].min()) * len(conditions) >= 0.01:
        return None
    score = [(float(p[i]) if mostly[i] else 2.0, len(conditions[i][0]), i) for i in range(len(conditions))]
    terms, mask = conditions[min(score)[2]]
    n, k = int(mask.sum()), int((mask & bad).sum())
    low, high = proportion_confint(k, n, method="wilson")
    fits = rows[mask & ~bad]
    return Misfit(
        terms=terms,
        failed=k,
        fitted=n - k,
        share=Interval(value=k / n, low=float(low), high=float(high), n=n, method="Wilson"),
        exceptions=tuple(
            say("{run} ({setting})", run=row_name(row), setting=_unusual(row, rows, dict(terms)))
            for _, row in fits.iterrows()
        ),
    )


def _texts(rows: pd.DataFrame, column: str) -> np.ndarray:
    return np.array([UNSET if is_missing(v) else value_text(v) for v in rows[column]], dtype=object)


_Terms = tuple[tuple[str, str], ...]


def _conditions(varied: dict[str, np.ndarray], bad: np.ndarray) -> Iterator[tuple[_Terms, np.ndarray]]:
    """Conjunctions of up to MAX_TERMS knob values that hold for at least two failed runs but not for all runs."""
    single = []
    for name, text in varied.items():
        for value in dict.fromkeys(text[bad]):
            mask = text == value
            if (mask & bad).sum() >= 2 and not mask.all():
                single.append(((name, str(value)), mask))
    single.sort(key=lambda entry: int((entry[1] & ~bad).sum()) - int((entry[1] & bad).sum()))
    for count in range(1, MAX_TERMS + 1):
        for chosen in combinations(single[:24], count):
            mask = np.logical_and.reduce([part for _, part in chosen])
            if len({term[0] for term, _ in chosen}) == count and (mask & bad).sum() >= 2:
                yield tuple(term for term, _ in chosen), mask


def _unusual(row: pd.Series, rows: pd.DataFrame, terms: dict[str, str]) -> str | Sentence:
    """What a row sets differently from most rows, beside the terms."""
    parts = []
    for column in knob_columns(rows):
        name = column[len(KNOB_PREFIX) :]
        texts = pd.Series(_texts(rows, column))
        own = UNSET if is_missing(row[column]) else value_text(row[column])
        if name not in terms and own != str(texts.mode().iloc[0]):
            parts.append(f"{name}={own}")
    return ", ".join(parts[:3]) or say("usual settings")


def _nearby(rows: pd.DataFrame, failed: pd.Series, misfit: Misfit) -> str | Sentence:
    """Runs that share the first term but not all of them, and fit."""
    name, value = misfit.terms[0]
    texts = _texts(rows, KNOB_PREFIX + name)
    inside = pd.Series(True, index=rows.index)
    for term, wanted in misfit.terms:
        inside &= _texts(rows, KNOB_PREFIX + term) == wanted
    fits = rows[(texts == value) & ~inside & ~failed]
    if fits.empty or len(misfit.terms) < 2:
        return ""
    others = [term for term, _ in misfit.terms[1:]]
    texts_of = {term: pd.Series(_texts(fits, KNOB_PREFIX + term), index=fits.index) for term in others}
    shown = [
        say(
            "{run} ({setting})",
            run=row_name(row),
            setting=", ".join(f"{term}={texts_of[term].loc[place]}" for term in others),
        )
        for place, row in fits.head(6).iterrows()
    ]
    return say("{setting} fits in {runs}.", setting=f"{name}={value}", runs=listed(shown))


def _messages(evidence: Evidence) -> list[Verdict]:
    """Amounts in out-of-memory messages that are proportional to an ordered knob: MiB per unit."""
    rows = evidence.trials
    failed = rows[rows["failure_kind"].map(str) == "out_of_memory"] if len(rows) else rows
    amounts = failed["failure_message"].map(_mib) if len(failed) else pd.Series(dtype=float)
    amounts = amounts.dropna()
    found = []
    for column in knob_columns(rows):
        per_unit = _proportional(amounts, numbers(failed.loc[amounts.index], column))
        if per_unit is not None:
            found.append(_per_unit(column[len(KNOB_PREFIX) :], per_unit, rows))
    return found


def _mib(message: object) -> float | None:
    matches = _AMOUNT.findall(message) if isinstance(message, str) else []
    sizes = [float(number) * (1024 if unit.lower().startswith("g") else 1) for number, unit in matches]
    return max(sizes, default=None)


def _proportional(amounts: pd.Series, knob: pd.Series) -> pd.Series | None:
    """Ratios amount / knob of the rows that agree within 0.1 %, over at least two knob values and three rows."""
    ratios = (amounts / knob.where(knob > 0)).dropna()
    for centre in ratios:
        same: pd.Series = ratios[(ratios / centre - 1).abs() < 0.001]
        if len(same) >= 3 and knob[same.index].nunique() >= 2:
            return same
    return None


def _per_unit(name: str, ratios: pd.Series, rows: pd.DataFrame) -> Verdict:
    interval = mean_interval(ratios.tolist())
    known = {"budget": say("tree node"), "n_ctx": say("context token")}
    unit = known.get(name, say("unit of {knob}", knob=name))
    text = say(
        "What did not fit asked for {amount} per {unit} ({knob}), by the messages of {runs}.",
        amount=between(interval, 3, "MiB"),
        unit=unit,
        knob=name,
        runs=listed(row_name(row) for _, row in rows.loc[ratios.index].iterrows()),
    )
    return Verdict(
        id="memory",
        subject=say("MiB per {unit}", unit=unit),
        status=HOLDS,
        statement=text,
        value=interval.value,
        unit=say("MiB per {unit}", unit=unit),
        ci_low=interval.low,
        ci_high=interval.high,
        n=interval.n,
        how_to_check=say("MiB in the failure message / {knob}", knob=name),
    )


def _figures(evidence: Evidence) -> list[Verdict]:
    """Peak memory and the log's figures along each ordered knob, all knobs in one linear model."""
    found = []
    for column in _figure_columns(evidence.known):
        found += _slopes(evidence.known, column)
    return found


def _figure_columns(rows: pd.DataFrame) -> list[str]:
    return ["peak_memory_mib", *(str(c) for c in rows.columns if str(c).startswith(MEMORY_PREFIX))]


def _slopes(rows: pd.DataFrame, column: str) -> list[Verdict]:
    """MiB per unit of each ordered knob, the other knobs held equal; nothing where the settings cannot tell them apart.

    Repeats add nothing here: the settings must outnumber the model's columns by MIN_SETTINGS.
    """
    y = numbers(rows, column)
    good = rows[y.notna()]
    table = lv.axis_table(good)
    ordered = [name for name in table.names if table.ordered[name] and not np.isnan(table.figures[name]).any()]
    places = np.arange(len(good))
    if not ordered or y.nunique() < 2:
        return []
    others = [lv.trend(table, name, places) for name in table.names if name not in ordered]
    design = np.column_stack([np.ones(len(good)), *(table.figures[name] for name in ordered), *others])
    columns = design.shape[1]
    if np.linalg.matrix_rank(design) < columns or good["knob_key"].nunique() < columns + MIN_SETTINGS:
        return []
    fitted = OLS(y[good.index].to_numpy(), design).fit()
    ends = fitted.conf_int(0.01 / len(ordered))
    found = []
    for place, knob in enumerate(ordered, start=1):
        low, high = (float(end) for end in ends[place])
        value = float(fitted.params[place])
        sure = np.isfinite(low) and np.isfinite(high) and (low > 0 or high < 0) and float(fitted.rsquared) > 0.5
        if sure and abs(value) * float(np.ptp(table.figures[knob])) >= MIN_MIB:
            slope = Interval(value=value, low=low, high=high, n=len(good), method="least squares")
            found.append(
                Verdict(
                    id="memory",
                    subject=say("{figure} per {knob}", figure=column, knob=knob),
                    status=HOLDS,
                    statement=say(
                        "{figure} grows by {slope} per unit of {knob}.",
                        figure=column,
                        slope=between(slope, 4, "MiB"),
                        knob=knob,
                    ),
                    value=value,
                    unit="MiB",
                    ci_low=low,
                    ci_high=high,
                    n=len(good),
                    how_to_check=say("{figure} against the knobs, linear model", figure=column),
                )
            )
    return found
