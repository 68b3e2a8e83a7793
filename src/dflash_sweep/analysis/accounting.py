"""Time nobody accounts for, prefill's share, and what waits on the host.

Imports `evidence`, `intervals`, `rows`, `stages` and `metrics` only.
"""

from __future__ import annotations

import pandas as pd

from dflash_sweep import metrics
from dflash_sweep.analysis.evidence import FAILS, HOLDS, Evidence, between, from_interval, unknown
from dflash_sweep.analysis.intervals import mean_interval, paired_speedup, ratio_interval
from dflash_sweep.analysis.rows import numbers, row_name, usable
from dflash_sweep.analysis.sentences import Sentence, listed, say, together
from dflash_sweep.analysis.stages import focus
from dflash_sweep.records import Verdict

TOLERANCE = 0.05
"""Time that no stage accounts for above this share of a step is flagged."""

HOST_STAGES = ("pack_ms", "build_ms", "accept_ms", "compact_ms")
"""Stages that run on the host by their definition."""


def unaccounted(rows: pd.DataFrame) -> pd.Series:
    """Share of step_ms that the printed stages leave over, per row; NaN where no stage or no step time is known."""
    step = numbers(rows, "step_ms")
    parts = pd.DataFrame({name: numbers(rows, name) for name in metrics.SUMMED_STAGES})
    total = parts.sum(axis=1, min_count=2)
    return ((step - total) / step).where(step > 0)


def accounting(evidence: Evidence) -> list[Verdict]:
    """Holds = stages add up to the step within TOLERANCE in every run."""
    rows = usable(evidence.trials, evidence.column)
    gaps = unaccounted(rows).dropna() if len(rows) else pd.Series(dtype=float)
    client = _client_gap(evidence.turns)
    if len(gaps) < 2:
        why = together(say("Fewer than two runs have stage times to add up."), client)
        return [unknown("accounting", "step time", why, len(gaps))]
    bad = rows.loc[gaps[gaps.abs() > TOLERANCE].index]
    good = gaps[gaps.abs() <= TOLERANCE]
    typical = mean_interval((good if len(good) else gaps).tolist())
    if bad.empty:
        words = "The stages add up to the step: {left} of it is left over in {runs} runs."
        text = say(words, left=between(typical.scaled(100), 2, "%"), runs=len(gaps))
    else:
        text = say(
            "In {bad} of {runs} runs more than {limit:.0f} % of the step is in no printed stage (up to {most:.0f} %): "
            "{names}.",
            bad=len(bad),
            runs=len(gaps),
            limit=100 * TOLERANCE,
            most=100 * float(gaps.abs().max()),
            names=listed(row_name(row) for _, row in bad.iterrows()),
        )
    if len(bad) and len(good):
        words = "In the other {good} the stages add up ({left} left over)."
        text = together(text, say(words, good=len(good), left=between(typical.scaled(100), 2, "%")))
    return [
        from_interval(
            "accounting",
            "step time",
            HOLDS if bad.empty else FAILS,
            together(text, client),
            typical,
            "share of step",
            details={"flagged": [row_name(row) for _, row in bad.iterrows()], "largest": float(gaps.abs().max())},
            how_to_check=say("step_ms minus the sum of the stage columns, over step_ms"),
        )
    ]


def _client_gap(turns: pd.DataFrame) -> str | Sentence:
    """The client's time per token against the server's, in words; "" where one is missing."""
    if turns.empty:
        return ""
    table = pd.DataFrame({"client": numbers(turns, "tpot_ms"), "uid": turns["uid"]})
    table["server"] = numbers(turns, "decode_ms") / numbers(turns, "decode_tokens").where(lambda v: v > 0)
    table = table[(table["client"] > 0) & (table["server"] > 0)].groupby("uid")[["client", "server"]].mean()
    if len(table) < 2:
        return ""
    ratio = paired_speedup(table["client"].tolist(), table["server"].tolist())
    return say("The client's time per token is {ratio} times the server's.", ratio=between(ratio, 3))


def prefill_share(evidence: Evidence) -> list[Verdict]:
    """How much of a turn's server time is prompt processing; what tuning decode can bring at most."""
    rows = focus(evidence)
    rows = rows if len(rows) > 1 else evidence.ranked
    table = pd.DataFrame({"prompt": numbers(rows, "prompt_ms"), "decode": numbers(rows, "decode_ms")}).dropna()
    table = table[(table["prompt"] >= 0) & (table["decode"] > 0)]
    if len(table) < 2:
        why = say("Fewer than two runs have both prompt and decode times.")
        return [unknown("prefill_share", "turns", why, len(table))]
    share = ratio_interval(table["prompt"].tolist(), (table["prompt"] + table["decode"]).tolist()).within(0.0, 1.0)
    shown = between(share.scaled(100), 1, "%")
    if share.value > 0:
        text = say(
            "Prompt processing is {share} of the server's time: if decoding took no time at all, a turn would be at "
            "most {factor:.1f} times as fast.",
            share=shown,
            factor=1 / share.value,
        )
    else:
        text = say("Prompt processing is {share} of the server's time: a turn is as fast as decode gets.", share=shown)
    status = HOLDS if share.value > 0.2 else FAILS
    return [
        from_interval(
            "prefill_share",
            "turns",
            status,
            text,
            share,
            "share of server time",
            details={"holds_above": 0.2, "cached_share": _cached(rows)},
            how_to_check=say("prompt_ms / (prompt_ms + decode_ms), summed over counted turns"),
        )
    ]


def _cached(rows: pd.DataFrame) -> float | None:
    cached, prompt = numbers(rows, "cached_tokens").sum(), numbers(rows, "prompt_tokens").sum()
    return float(cached / prompt) if prompt > 0 else None


def host_cost(evidence: Evidence) -> list[Verdict]:
    """Share of the step in stages that run on the host; whether the accept walk is slower in tool-call turns."""
    rows = focus(evidence)
    rows = rows if len(rows) > 1 else evidence.ranked
    step, steps = numbers(rows, "step_ms"), numbers(rows, "verify_steps")
    known = [name for name in HOST_STAGES if numbers(rows, name).notna().any()]
    good = rows[(step > 0) & (steps > 0)]
    if not known or len(good) < 2:
        none, few = say("The engine prints no stage that runs on the host"), say("Fewer than two runs have step times")
        why = say("{reason}; GPU busy time is not in these rows.", reason=few if known else none)
        return [unknown("host_cost", "host stages", why, len(good))]
    weight = numbers(good, "verify_steps")
    host = sum((numbers(good, name).fillna(0.0) * weight for name in known), start=pd.Series(0.0, index=good.index))
    share = ratio_interval(host.tolist(), (numbers(good, "step_ms") * weight).tolist()).within(0.0, 1.0)
    words = "Stages on the host ({stages}) take {share} of a step."
    text = say(words, stages=", ".join(known), share=between(share.scaled(100), 1, "%"))
    status = HOLDS if share.value > 0.1 else FAILS
    return [
        from_interval(
            "host_cost",
            "host stages",
            status,
            together(text, _grammar(evidence.turns), say("GPU busy time is not in these rows.")),
            share,
            "share of step",
            details={"stages": known, "holds_above": 0.1},
            how_to_check=say("sum of the host stages / step_ms, weighted by verify_steps"),
        )
    ]


def _grammar(turns: pd.DataFrame) -> str | Sentence:
    """The accept walk in tool-call turns (where a grammar is in force) against the other turns of the same runs."""
    if turns.empty or not (numbers(turns, "accept_ms") > 0).any():
        return ""
    table = pd.DataFrame(
        {"uid": turns["uid"], "ms": numbers(turns, "accept_ms"), "tool": turns["bucket"] == "tool_call"}
    )
    means = table[table["ms"] > 0].groupby(["uid", "tool"])["ms"].mean().unstack()
    if means.shape[1] < 2 or len(means.dropna()) < 2:
        return ""
    both = means.dropna()
    ratio = paired_speedup(both[True].tolist(), both[False].tolist())
    if not ratio.excludes(1.0) or ratio.value < 1.5:
        return ""
    words = "The accept walk takes {ratio} times as long in tool-call turns: a grammar callback waits there."
    return say(words, ratio=between(ratio, 1))
