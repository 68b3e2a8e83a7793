"""One emulated turn: the DDTree really runs over seeded proposals, the cost model says how long it took.

Imports `ddtree` and this package's `costs`, `dials`, `noise`, `proposals`, `setting`. Both the server process and
`simulate` (for studies without HTTP) call `run_turn`; a search space's noise-free optimum can be computed with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from dflash_sweep import ddtree
from dflash_sweep.emulator import costs, devices, dials, proposals
from dflash_sweep.emulator.devices import Card
from dflash_sweep.emulator.dials import Dials
from dflash_sweep.emulator.noise import Factors, LaunchNoise, NoiseSetting
from dflash_sweep.emulator.setting import Setting, from_knobs
from dflash_sweep.records import Knobs

DIVERGENCE_PER_TOKEN = 0.0036
"""Chance per token that a trusted batched verify picks another token than plain decoding: 4 of 10 public HumanEval
outputs of about 256 tokens were bit-equal, and (1 − 0.0036)^256 = 0.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInput:
    """One request as the model sees it. `seed` stands for the prompt (and decides text, difficulty and luck);
    `prompt_tokens` counts cached ones too; `grammar`: the request brings tools or a schema."""

    seed: int
    dials: Dials
    prompt_tokens: int
    cached_tokens: int = 0
    max_tokens: int = 128
    natural_stop: bool = True
    grammar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFigures:
    """What a turn did. `commits`: tokens committed per step (the last may overshoot the end); `nodes`: tree size per
    step. `stages_ms`: totals by the log's key, `step` included; empty for plain decoding. `sample_ms`: what sampler and
    grammar took of the exact stage. `diverges_at`: first output token that differs from plain decoding (None = none).
    """

    output_tokens: int
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    prompt_ms: float
    decode_ms: float
    commits: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    batched_commits: tuple[int, ...] = ()
    stages_ms: dict[str, float] = field(default_factory=dict)
    sample_ms: float = 0.0
    diverges_at: int | None = None

    @property
    def steps(self) -> int:
        return len(self.commits)

    @property
    def committed(self) -> int:
        return sum(self.commits)

    @property
    def decode_tokens(self) -> int:
        """Tokens made within `decode_ms`: all with speculation, all but the first (it comes from prefill) without."""
        return self.output_tokens if self.commits else max(self.output_tokens - 1, 0)


def stable_seed(*parts: object) -> int:
    """A 63-bit number from the parts' text, the same in every process and version."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def natural_length(turn: TurnInput) -> int:
    """Tokens after which the answer ends by itself: log-normal around the dials' mean, fixed by the prompt."""
    draw = np.random.Generator(np.random.Philox(key=[turn.seed, 0x1E])).standard_normal()
    return max(int(turn.dials.mean_tokens * np.exp(0.5 * draw - 0.125)), 4)


def cached_prefix(setting: Setting, prompt_tokens: int, reusable_tokens: int) -> int:
    """Prompt tokens really reused: ddtree mode decodes the last `target_feat_ctx` again to refill the feature ring,
    any server at least one."""
    again = min(setting.target_feat_ctx, prompt_tokens) if setting.speculative else 1
    return max(min(reusable_tokens, prompt_tokens - again), 0)


def run_turn(setting: Setting, card: Card, turn: TurnInput, factors: Factors | None = None) -> TurnFigures:
    """One turn on a server that fits its memory. `factors` None = noise-free."""
    noise = factors or Factors()
    length = min(natural_length(turn), turn.max_tokens) if turn.natural_stop else turn.max_tokens
    finish = "stop" if turn.natural_stop and natural_length(turn) <= turn.max_tokens else "length"
    cached = min(turn.cached_tokens, max(turn.prompt_tokens - 1, 0))
    prompt_ms = costs.prefill_ms(setting, card, turn.prompt_tokens - cached) * noise.target * noise.all
    context = turn.prompt_tokens + length / 2
    common: dict[str, Any] = {
        "output_tokens": length, "finish_reason": finish, "prompt_tokens": turn.prompt_tokens, "cached_tokens": cached,
    }  # fmt: skip
    if not setting.speculative:
        per_token = costs.plain_ms_per_token(card, context) * noise.target * noise.all
        return TurnFigures(**common, prompt_ms=prompt_ms, decode_ms=per_token * max(length - 1, 0))
    commits, nodes = verify_steps(setting, turn, length)
    step_costs = costs.step_costs(setting, card, context, turn.grammar)
    totals = step_costs.stages(len(commits), sum(commits), sum(nodes))
    stages = {name: value * stage_factor(name, noise) for name, value in totals.items()}
    decode_ms = sum(stages.values())
    return TurnFigures(
        **common,
        prompt_ms=prompt_ms,
        decode_ms=decode_ms,
        commits=commits,
        nodes=nodes,
        stages_ms={"step": decode_ms, **stages},
        sample_ms=step_costs.sample_per_token_ms * sum(commits) * noise.target * noise.all,
        diverges_at=_divergence(setting, turn, length),
    )


def stage_factor(stage: str, noise: Factors) -> float:
    """Draft work scatters by launch, target work little, host work not at all."""
    if stage in ("draft", "topk"):
        return noise.draft * noise.all
    return (noise.target if stage in ("exact", "target_tree", "replay", "snap") else 1.0) * noise.all


@lru_cache(maxsize=256)
def _drawn(
    chosen: Dials, seed: int, positions: int, window: int, depths: int, variant: int, loss: float
) -> proposals.Proposals:
    return proposals.draw(chosen, seed, positions, window, depths, variant, loss)


def verify_steps(setting: Setting, turn: TurnInput, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens committed and tree sizes, step by step, until `length` tokens are out."""
    window = min(setting.target_feat_ctx, turn.prompt_tokens)
    depths = min(setting.depths, proposals.MAX_DEPTHS)
    loss = turn.dials.batched_loss if setting.batched else 0.0
    if setting.block_size != ddtree.BLOCK_SIZE:
        loss += turn.dials.block_loss
    drawn = _drawn(turn.dials, turn.seed, length, window, depths, setting.numerics, loss)
    top_k = min(ddtree.effective_top_k(setting.budget, setting.top_k, setting.block_size), 64)
    scores = ddtree.proposal_scores(drawn.log_probs(top_k), setting.proposal_temp)
    budget, seeded, cap = setting.budget, setting.chain_seed, setting.chain_depth_cap
    full = 1 + (budget if top_k > 1 else min(budget, depths))  # with two candidates a depth a tree fills any budget
    commits: list[int] = []
    nodes: list[int] = []
    all_ranks = drawn.ranks.tolist()
    position = 0
    while position < length:
        ranks, size = all_ranks[position], full
        committed = ddtree.committed_without_tree(ranks, budget, top_k, seeded) if cap is None else None
        if committed is None:
            tree = ddtree.build_tree(scores[position].tolist(), budget, seeded, cap)
            committed, size = ddtree.committed_by_ranks(tree, ranks), tree.size
        commits.append(committed)
        nodes.append(size)
        position += committed
    return tuple(commits), tuple(nodes)


def _divergence(setting: Setting, turn: TurnInput, length: int) -> int | None:
    """Where a batched verify leaves the text of plain decoding: depends on prompt and tree numerics."""
    if not setting.batched:
        return None
    key = stable_seed(turn.seed, "divergence", setting.budget, setting.numerics)
    place = int(np.random.Generator(np.random.Philox(key=[key, 0])).geometric(DIVERGENCE_PER_TOKEN))
    return place if place < length else None


# ---------------------------------------------------------------- whole trials without a process


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Figures of one emulated launch: per turn, or why there are none."""

    turns: tuple[TurnFigures, ...] = ()
    failure: str | None = None

    @property
    def decode_tps(self) -> float | None:
        """Pooled decode rate, tokens per second; None without tokens."""
        tokens, total = sum(turn.decode_tokens for turn in self.turns), sum(turn.decode_ms for turn in self.turns)
        return 1000 * tokens / total if total > 0 and tokens else None

    @property
    def acceptance_length(self) -> float | None:
        """Output tokens per verify step, pooled; None for plain decoding."""
        steps = sum(turn.steps for turn in self.turns)
        return sum(turn.output_tokens for turn in self.turns) / steps if steps else None


def conversation(
    workload: str, seed: int, turns: int, *, max_tokens: int = 128, prompt_tokens: int = 4000, growth_tokens: int = 400
) -> tuple[TurnInput, ...]:
    """Turns of one conversation: each prompt `growth_tokens` longer than the one before, all of that cached."""
    chosen = dials.load(workload)
    return tuple(
        TurnInput(
            seed=stable_seed(seed, workload, index),
            dials=chosen,
            prompt_tokens=prompt_tokens + index * growth_tokens,
            cached_tokens=prompt_tokens + (index - 1) * growth_tokens if index else 0,
            max_tokens=max_tokens,
            natural_stop=False,
        )
        for index in range(turns)
    )


def simulate(
    knobs: Knobs,
    device: str = "rtx4090",
    workload: str = "agent",
    seed: int = 0,
    turns: int = 8,
    *,
    noise: NoiseSetting | None = None,
    inputs: Sequence[TurnInput] | None = None,
    speculative: bool = True,
    draft_path: str = "shared",
    n_ctx: int = 32768,
    **others: Any,
) -> Trial:
    """One trial in this process: same model as the server, no HTTP.

    `noise` None = noise-free, so the best point of a space is the best value of this function. `inputs` replaces the
    conversation that `workload`, `seed` and `turns` would make. Out of memory comes back as `failure`. Raises
    ConfigError for unknown names.
    """
    setting = from_knobs(knobs, speculative=speculative, draft_path=draft_path, n_ctx=n_ctx, **others)
    card = devices.load(device)
    fit = costs.memory(setting, card)
    if fit.failure:
        return Trial(failure=f"out of memory at {fit.stage}: {fit.failure}")
    launch = LaunchNoise(noise, card) if noise else None
    elapsed_s, done = 0.0, []
    for index, turn in enumerate(inputs if inputs is not None else conversation(workload, seed, turns)):
        factors = launch.factors(index, elapsed_s) if launch else None
        figures = run_turn(setting, card, turn, factors)
        elapsed_s += (figures.prompt_ms + figures.decode_ms) / 1000
        done.append(figures)
    return Trial(turns=tuple(done))
