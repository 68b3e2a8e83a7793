"""What the page's figures take for granted, one sentence each. Imports `records` and `report` siblings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_sweep.analysis import eligibility
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.translation import word


def assumptions(material: Material, texts: Texts) -> tuple[str, ...]:
    """Kind of numbers, replay, ranking, intervals, left-out rows: only what applies to this study."""
    found = [
        texts(f"assume.{material.study.measurement}"),
        _replay(material.study.config.get("replay"), texts),
        texts("assume.counting"),
        _objective(material, texts),
        *_several(material, texts),
        *_constraints(material, texts),
        _held_out(material, texts),
        *_left_out(material, texts),
        _sources(material, texts),
    ]
    return tuple(sentence for sentence in found if sentence)


def _replay(policy: Any, texts: Texts) -> str:
    if not isinstance(policy, Mapping):
        return ""
    mode = str(policy.get("mode", ""))
    key = f"assume.{mode}"
    if not texts.has(key):
        return ""
    return texts(
        key, max_tokens=policy.get("max_tokens", "?"), temperature=policy.get("temperature", "?"),
        concurrency=policy.get("concurrency", "?"), pauses=policy.get("pauses", "?"),
    )  # fmt: skip


def _objective(material: Material, texts: Texts) -> str:
    wanted, used = material.study.objective, material.metric.name
    if wanted != used:
        return texts("assume.other_objective", wanted=wanted, used=used)
    return texts("assume.objective", name=used, formula=word(material.metric.formula, texts.lang))


def _several(material: Material, texts: Texts) -> list[str]:
    names = material.study.objectives
    return [texts("assume.objectives", first=names[0], others=texts("joiner").join(names[1:]))] if names else []


def _constraints(material: Material, texts: Texts) -> list[str]:
    limits = eligibility.limits_of(material.study)
    if not limits:
        return []
    listed = texts("joiner").join(limit.name if limit.words() == "equal" else f"{limit.name} {limit.words()}"
                                  for limit in limits)  # fmt: skip
    return [texts("assume.constraints", limits=listed, count=len(material.barred))]


def _held_out(material: Material, texts: Texts) -> str:
    """Which turns the confirm runs replayed: those that the search has seen, or others."""
    confirm = material.confirmed[material.confirmed["role"].map(str) == "confirm"]
    if confirm.empty:
        return ""
    searched = material.own[material.own["role"].map(str) == "search"]
    unseen = confirm[~confirm["trace_sha256"].isin(set(searched["trace_sha256"]))]
    if unseen.empty:
        return texts("assume.same_turns")
    turns = int(unseen["n_turns"].max())
    return texts("assume.held_out", name=str(unseen["trace"].iloc[0]), turns=turns)


def _left_out(material: Material, texts: Texts) -> list[str]:
    """Rows that enter no ranking, and why."""
    found = []
    others = material.trials["measurement"].map(str) != str(material.study.measurement)
    for kind, count in sorted(material.trials.loc[others, "measurement"].map(str).value_counts().items()):
        found.append(texts("assume.other_kind", count=count, kind=texts(f"word.{kind}")))
    apart = int(material.own["value"].notna().sum()) - len(material.ranked)
    if apart > 0:
        found.append(texts("assume.apart", count=apart))
    return found


def _sources(material: Material, texts: Texts) -> str:
    turns = material.turns
    if turns.empty:
        return ""
    timing = sorted({str(value) for value in turns["timing_source"].dropna()})
    derived = set(turns["steps_source"].dropna()) == {"derived"}
    sentence = texts("assume.timing", sources=", ".join(timing)) if timing else ""
    return f"{sentence} {texts('assume.steps_derived') if derived else ''}".strip()
