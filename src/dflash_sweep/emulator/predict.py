"""What the emulator says about a published run: noise-free figures, mean over seeds. Imports `costs`, `devices`,
`dials`, `model`, `rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from dflash_sweep.emulator import costs, devices, dials, model, rows
from dflash_sweep.emulator.devices import Card
from dflash_sweep.emulator.dials import Dials
from dflash_sweep.emulator.model import TurnInput
from dflash_sweep.emulator.rows import PROMPT_TOKENS, Row
from dflash_sweep.emulator.setting import Setting

SEEDS = 300
"""Prompts that a prediction is the mean of: the standard error of an acceptance length is then about 0.02."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Means over seeds for an answer of some length: steps, tokens committed, tree nodes."""

    steps: float
    committed: float
    nodes: float

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per step, pooled over seeds (the last step's overshoot included, as the fork counts)."""
        return self.committed / self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Emulated figures of one row. `failure`: why it would have crashed (then the figures are None)."""

    failure: str | None = None
    acceptance_length: float | None = None
    tps: float | None = None
    step_ms: float | None = None
    stages_ms: dict[str, float] | None = None


def counts(
    setting: Setting, tokens: int, chosen: Dials, seeds: int = SEEDS, prompt_tokens: int = PROMPT_TOKENS
) -> Counts:
    """Run the algorithm for `tokens` tokens on `seeds` prompts."""
    steps = committed = nodes = 0
    for seed in range(seeds):
        turn = TurnInput(
            seed=model.stable_seed("check", seed),
            dials=chosen,
            prompt_tokens=prompt_tokens,
            max_tokens=tokens,
            natural_stop=False,
        )
        commits, sizes = model.verify_steps(setting, turn, tokens)
        steps += len(commits)
        committed += sum(commits)
        nodes += sum(sizes)
    return Counts(steps=steps / seeds, committed=committed / seeds, nodes=nodes / seeds)


@lru_cache(maxsize=4096)
def cached_counts(setting: Setting, tokens: int, chosen: Dials, seeds: int = SEEDS) -> Counts:
    """The same, remembered: many rows are repeats of one setting."""
    return counts(setting, tokens, chosen, seeds)


CountsOf = Callable[[Setting, int], Counts]


def row(entry: Row, card: Card | None = None, counts_of: CountsOf | None = None) -> Prediction:
    """Prediction for one row. `card` and `counts_of` replace the shipped model (the fitting program does so)."""
    card = card or devices.load("rtx4090")
    setting = entry.setting
    if setting is None:
        return Prediction(failure=None)
    if refused := rows.refusal(setting):
        return Prediction(failure=refused)
    fit = costs.memory(setting, card)
    if fit.failure:
        return Prediction(failure=f"out of memory at {fit.stage} ({fit.failure})")
    if useless := rows.unusable(setting):
        return Prediction(failure=useless)
    if entry.gen_tokens is None:
        return Prediction()
    if counts_of is None:
        own = cached_counts(setting, entry.gen_tokens, dials.load("agent"))
    else:
        own = counts_of(setting, entry.gen_tokens)
    context = PROMPT_TOKENS + entry.gen_tokens / 2
    each = costs.step_costs(setting, card, context)
    totals = each.stages(own.steps, own.committed, own.nodes)
    step_ms = sum(totals.values()) / own.steps
    tps = 1000 * entry.gen_tokens / (own.steps * step_ms)
    if entry.end_to_end:
        total_s = (
            costs.load_s(card) + costs.prefill_ms(setting, card, PROMPT_TOKENS) / 1000 + own.steps * step_ms / 1000
        )
        tps = entry.gen_tokens / total_s
    return Prediction(
        acceptance_length=own.acceptance_length,
        tps=tps,
        step_ms=step_ms,
        stages_ms={stage: totals[stage] / own.steps for stage in ("pack", "draft", "topk", "exact")},
    )
