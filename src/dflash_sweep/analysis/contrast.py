"""Two studies, or two trials, figure by figure: ratios with intervals. Pure; imports `rows`, `intervals`,
`likeness`, `noise`.

A side is all rows of one study and, where only one trial of it is meant, that row. What may be ranked is decided by the
comparability keys of the rows that are compared, never by their figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dflash_sweep.analysis.intervals import (
    Interval,
    Spread,
    log_mean_interval,
    paired_speedup,
    pooled_speedup,
    speedup,
)
from dflash_sweep.analysis.likeness import Reference, hardest, settings_of
from dflash_sweep.analysis.noise import spreads
from dflash_sweep.analysis.rows import (
    fair_runs,
    is_plain,
    knobs_of,
    main_stratum,
    numbers,
    setting_text,
    usable,
    with_keys,
)

MOST_SETTINGS = 12
"""Settings of both sides that are shown one by one; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: its name, the rows of its study with keys, the rows that are meant, and plain decoding beside them.

    `spread` and `plain_spread` are the noise of the study's repeats, None = it has none. `keys`: comparability keys of
    `rows` (one, unless a study's rows have several and its main ones could not be told). `column` holds the figure.
    `rival`: the plain decoding that `rows` have to beat, their own control where that is the faster (see likeness).
    """

    name: str
    column: str
    rows: pd.DataFrame
    plain: pd.DataFrame
    rival: Reference
    settings: pd.DataFrame
    spread: Spread | None
    plain_spread: Spread | None

    @property
    def values(self) -> list[float]:
        return numbers(self.rows, self.column).dropna().tolist()

    @property
    def keys(self) -> tuple[str, ...]:
        both = pd.concat([self.rows, self.plain])
        return tuple(sorted(both["comparability_key"].map(str).unique())) if len(both) else ()

    @property
    def is_plain(self) -> bool:
        return len(self.rows) > 0 and bool(is_plain(self.rows).all())

    @property
    def setting(self) -> str:
        """What is meant, in words; "" where nothing was measured."""
        if self.rows.empty:
            return ""
        return "plain decoding" if self.is_plain else setting_text(knobs_of(self.rows.iloc[0]))

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(number) for number in self.rows["number"]) if len(self.rows) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the comparison. `a` and `b`: figures with 95 % intervals; `ratio` is b / a, None where one side is
    missing. Ratios of single runs rest on the noise of other settings' repeats; None of their ends = no repeats."""

    name: str
    a: Interval | None
    b: Interval | None
    ratio: Interval | None
    setting_a: str = ""
    setting_b: str = ""

    def words(self, sign: float) -> str:
        """b against a: faster, slower, or not to be told apart; `sign` +1 if more is better."""
        if self.ratio is None:
            return "one side only"
        if self.ratio.low is None or self.ratio.high is None:
            return "no repeats, no interval"
        if not self.ratio.excludes(1.0):
            return "cannot be told apart"
        return "B is better" if (self.ratio.value > 1) == (sign > 0) else "B is worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """All lines: plain decoding, what is meant, that relative to plain decoding, and settings of both sides.

    `turns`: b / a over turns that both replayed (of two single trials), None = no such turns. Its interval is over
    turns of one pair of runs: how even the difference is, not what another run would give. `common`: settings that
    both sides measured, `shown` of them in `settings`, all at a level adjusted for their number.
    """

    plain: Line | None
    meant: Line
    relative: Line | None
    settings: tuple[Line, ...]
    common: int
    turns: Interval | None = None


def side(name: str, trials: pd.DataFrame, column: str, number: int | None = None, *, sign: float = 1.0) -> Side:
    """One side from all rows of its study. `number` picks a trial; None = the study's best setting, by its fair runs.

    The best is taken among settings with at least two runs where there are any, for a single run that looks best is
    flattered. A study without speculative rows is meant by its plain ones.
    """
    noise, plain_noise = spreads(trials, column)
    if number is None:
        good = main_stratum(trials, column)
        fair = fair_runs(good[~is_plain(good)])
        rows = _best(fair, column, sign) if len(fair) else _baseline(good)
    else:
        keyed = with_keys(trials)
        rows = usable(keyed[keyed["number"] == number], column)
        good = usable(keyed, column)
        good = good[good["stratum"].isin(rows["stratum"])]
        fair = fair_runs(good[~is_plain(good)])
    plain = good[is_plain(good)]
    rival = hardest(plain, settings_of(rows), numbers(plain, column), larger_is_better=sign > 0)
    return Side(
        name=name,
        column=column,
        rows=rows,
        plain=_baseline(good),
        rival=rival,
        settings=fair,
        spread=noise,
        plain_spread=plain_noise,
    )


def _baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """Plain decoding as the study has it; controls share a finalist's own threads or cache types."""
    return rows[is_plain(rows) & (rows["role"].map(str) != "control")]


def _best(fair: pd.DataFrame, column: str, sign: float) -> pd.DataFrame:
    counts = fair["setting"].map(fair["setting"].value_counts())
    among = fair[counts > 1] if (counts > 1).any() else fair
    means = numbers(among, column).groupby(among["setting"]).mean() * sign
    return among[among["setting"] == means.idxmax()]


def contrast(a: Side, b: Side, turns_a: pd.DataFrame, turns_b: pd.DataFrame) -> Contrast:
    """B against A. The turn tables are looked at where each side is one trial; they hold the turns of both studies."""
    plain = None
    same = bool(len(a.plain)) and a.plain["uid"].tolist() == b.plain["uid"].tolist()  # two trials of one study
    if not same and (len(a.plain) or len(b.plain)):
        plain = _line("plain decoding", a, b, a.plain, b.plain, plain=True)
    meant = _line("what is compared", a, b, a.rows, b.rows, plain=a.is_plain and b.is_plain)
    settings, common = ((), 0) if same else _settings(a, b)
    return Contrast(
        plain=plain,
        meant=meant,
        relative=None if a.is_plain or b.is_plain else _relative(a, b),
        settings=settings,
        common=common,
        turns=_turns(a, b, turns_a, turns_b),
    )


def _line(
    name: str, a: Side, b: Side, rows_a: pd.DataFrame, rows_b: pd.DataFrame, *, plain: bool, level: float = 0.95
) -> Line:
    x, y = (numbers(rows, a.column).dropna().tolist() for rows in (rows_a, rows_b))
    spread_a, spread_b = (a.plain_spread, b.plain_spread) if plain else (a.spread, b.spread)
    return Line(
        name=name,
        a=log_mean_interval(x, spread_a) if x else None,
        b=log_mean_interval(y, spread_b) if y else None,
        ratio=_ratio(x, y, spread_a, spread_b, level) if x and y else None,
        setting_a=setting_text(knobs_of(rows_a.iloc[0])) if len(rows_a) else "",
        setting_b=setting_text(knobs_of(rows_b.iloc[0])) if len(rows_b) else "",
    )


def _ratio(
    a: Sequence[float], b: Sequence[float], spread_a: Spread | None, spread_b: Spread | None, level: float
) -> Interval:
    """b / a: Welch's interval from two runs on; of single runs by the larger of both studies' noise."""
    if min(len(a), len(b)) >= 2:
        return speedup(b, a, spread_b, spread_a, level)
    known = [spread for spread in (spread_a, spread_b) if spread is not None]
    if not known:
        return speedup(b, a)  # no ends: nothing tells the noise
    return pooled_speedup(b, a, max(known, key=lambda spread: spread.sd), level)


def _relative(a: Side, b: Side) -> Line | None:
    """Each side over the plain decoding that it has to beat, and the ratio of these ratios."""
    parts = [_gain(side) for side in (a, b)]
    if parts[0] is None and parts[1] is None:
        return None
    ratio = None
    if parts[0] is not None and parts[1] is not None:
        ratio = _ratio_of(parts[0], parts[1])
    return Line(name="relative to plain decoding", a=parts[0], b=parts[1], ratio=ratio)


def _gain(one: Side) -> Interval | None:
    plain = numbers(one.rival.rows, one.column).dropna().tolist()
    return _ratio(plain, one.values, one.plain_spread, one.spread, 0.95) if plain and one.values else None


def _ratio_of(a: Interval, b: Interval) -> Interval:
    """b / a of two independent ratios: their half widths on the log scale add in squares (both at 95 %)."""
    value, n = b.value / a.value, min(a.n, b.n)
    ends = a.low, a.high, b.low, b.high
    if any(end is None or end <= 0 for end in ends):
        return Interval(value=value, low=None, high=None, n=n, method="single run")
    widths = [(math.log(high) - math.log(low)) / 2 for low, high in ((a.low, a.high), (b.low, b.high)) if low and high]
    half = math.hypot(*widths)
    return Interval(
        value=value, low=value * math.exp(-half), high=value * math.exp(half), n=n, method="ratio of ratios, log scale"
    )


def _settings(a: Side, b: Side) -> tuple[tuple[Line, ...], int]:
    """Settings that both sides measured, best of A first; levels adjusted for their number (Bonferroni)."""
    if a.settings.empty or b.settings.empty:
        return (), 0
    common = [key for key in a.settings["knob_key"].unique() if (b.settings["knob_key"] == key).any()]
    level = 1 - 0.05 / max(1, len(common))
    lines = [
        _line(
            setting_text(knobs_of(rows.iloc[0])), a, b, rows, b.settings[b.settings["knob_key"] == key], plain=False,
            level=level,
        )
        for key in common
        for rows in [a.settings[a.settings["knob_key"] == key]]
    ]  # fmt: skip
    lines.sort(key=lambda line: -(line.a.value if line.a is not None else 0.0))
    return tuple(lines[:MOST_SETTINGS]), len(common)


def _turns(a: Side, b: Side, turns_a: pd.DataFrame, turns_b: pd.DataFrame) -> Interval | None:
    """b / a over the turns with the same prompt that two single trials replayed; None with fewer than two."""
    if a.column != "decode_tps" or len(a.rows) != 1 or len(b.rows) != 1 or turns_a.empty or turns_b.empty:
        return None
    tables = [_counted(turns, side.rows["uid"].iloc[0]) for turns, side in ((turns_a, a), (turns_b, b))]
    both = tables[0].add_suffix("_a").join(tables[1].add_suffix("_b"), how="inner").dropna()
    both = both[both["prompt_a"] == both["prompt_b"]]
    both = both[(both["tps_a"] > 0) & (both["tps_b"] > 0)]
    return paired_speedup(both["tps_b"].tolist(), both["tps_a"].tolist()) if len(both) > 1 else None


def _counted(turns: pd.DataFrame, uid: str) -> pd.DataFrame:
    own = turns[(turns["uid"] == uid) & turns["invalid_reason"].isna() & ~turns["warmup"].astype(bool)]
    table = pd.DataFrame(
        {"prompt": own["prompt_sha256"], "tps": numbers(own, "decode_tps"), "conversation": own["conversation"],
         "index": own["index"]}
    )  # fmt: skip
    return table.drop_duplicates(["conversation", "index"]).set_index(["conversation", "index"])
