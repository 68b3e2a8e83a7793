"""One request from JSON to figures, text and log lines: everything about an answer but its delivery.

Imports this package's `costs`, `launch`, `logs`, `model`, `noise`, `prompts`, `texts`, `dials`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_sweep.emulator import costs, devices, dials, logs, model, texts
from dflash_sweep.emulator.faults import Faults
from dflash_sweep.emulator.launch import Launch
from dflash_sweep.emulator.model import TurnFigures, TurnInput, stable_seed
from dflash_sweep.emulator.noise import LaunchNoise
from dflash_sweep.emulator.prompts import Prompt, PromptCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request gets. `chunks`: text pieces in the order and grouping of the verify steps, `gaps_ms` the time
    each took. `kind` of a chunk: content, reasoning or arguments. `before` and `after` are log lines."""

    task: int
    figures: TurnFigures
    chunks: tuple[tuple[str, str], ...]
    gaps_ms: tuple[float, ...]
    timings: dict[str, Any]
    tool: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def finish_reason(self) -> str:
        if self.tool is not None and self.figures.finish_reason == "stop":
            return "tool_calls"
        return self.figures.finish_reason

    @property
    def usage(self) -> dict[str, Any]:
        figures = self.figures
        return {
            "prompt_tokens": figures.prompt_tokens,
            "completion_tokens": figures.output_tokens,
            "total_tokens": figures.prompt_tokens + figures.output_tokens,
            "prompt_tokens_details": {"cached_tokens": figures.cached_tokens},
        }


class ContextExceeded(Exception):
    """The prompt does not fit the context. `tokens` and `limit` go into the error object."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the request exceeds the available context size ({tokens} tokens, {limit} available)")
        self.tokens = tokens
        self.limit = limit


@dataclass(slots=True)
class Server:
    """State of one emulated server: what it was launched with, its noise, its cache, its virtual clock."""

    launch: Launch
    memory: costs.Memory
    noise: LaunchNoise
    cache: PromptCache
    tasks: int = 0
    elapsed_s: float = 0.0
    reserved: bool = False
    totals: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prompt", "cached", "out", "p_s", "d_s"), 0.0)
    )

    @classmethod
    def start(cls, launch: Launch) -> Server:
        card = devices.load(launch.device)
        return cls(
            launch=launch,
            memory=costs.memory(launch.setting, card),
            noise=LaunchNoise(launch.noise, card),
            cache=PromptCache(32 if launch.cache_ram else 1),
        )

    def answer(self, request: Mapping[str, Any], prompt: Prompt, faults: Faults) -> Answer:
        """Run one request. Raises ContextExceeded."""
        setting, card = self.launch.setting, devices.load(self.launch.device)
        if faults.has("zero_drafts") or self.launch.faults.has("draft_inactive"):
            setting = replace(setting, speculative=False)
        if prompt.tokens >= setting.n_ctx:
            raise ContextExceeded(prompt.tokens, setting.n_ctx)
        task, self.tasks = self.tasks, self.tasks + 1
        reusable = self.cache.reusable(prompt) if request.get("cache_prompt", True) else 0
        cached = model.cached_prefix(setting, prompt.tokens, reusable)
        before = [f"slot launch_slot_: id  0 | task {task} | processing task"]
        before += logs.cache_cap(task, reusable, cached, min(setting.target_feat_ctx, prompt.tokens)) if cached else []
        turn = self._turn(request, prompt, cached)
        figures = model.run_turn(setting, card, turn, self.noise.factors(task, self.elapsed_s))
        after: list[str] = []
        if setting.speculative:
            figures, after = self._memory_effects(figures, faults)
        if faults.has("empty_answer"):
            figures = replace(figures, output_tokens=0, commits=(), nodes=(), decode_ms=0.0, stages_ms={})
        self.cache.remember(prompt)
        self._account(figures)
        return self._compose(task, request, turn, figures, faults, before, after)

    def _turn(self, request: Mapping[str, Any], prompt: Prompt, cached: int) -> TurnInput:
        launch = self.launch
        workload = launch.workload
        if workload == "auto":
            workload = dials.for_bucket(str(request.get("emulator_bucket", "other"))).name
        sampling: tuple[Any, ...] = ()
        if (request.get("temperature", 0.8) or 0) > 0:
            sampling = (request.get("temperature"), request.get("seed"))
        limit = next(
            (request[key] for key in ("max_tokens", "max_completion_tokens", "n_predict") if request.get(key)), -1
        )
        room = launch.setting.n_ctx - prompt.tokens
        grammar = any(request.get(key) for key in ("tools", "grammar", "json_schema", "response_format"))
        return TurnInput(
            seed=stable_seed(launch.seed, prompt.digest, *sampling),
            dials=dials.load(workload),
            prompt_tokens=prompt.tokens,
            cached_tokens=cached,
            max_tokens=min(int(limit), room) if limit > 0 else min(room, 4096),
            natural_stop=not request.get("ignore_eos", False),
            grammar=grammar and not (request.get("tools") and request.get("tool_choice") == "none"),
        )

    def _memory_effects(self, figures: TurnFigures, faults: Faults) -> tuple[TurnFigures, list[str]]:
        """Persist buffers are taken by the first request; one that does not fit ends every answer at once."""
        if self.memory.failure == "persist":
            return _cut(figures, 0), logs.reserve(self.launch, self.memory)
        lines = [] if self.reserved else logs.reserve(self.launch, self.memory)
        self.reserved = True
        if self.memory.failure or faults.has("oom_in_decode"):
            return _cut(figures, min(2, figures.steps - 1)), [*lines, *logs.out_of_memory_in_decode()]
        return figures, lines

    def _account(self, figures: TurnFigures) -> None:
        self.elapsed_s += (figures.prompt_ms + figures.decode_ms) / 1000
        self.totals["prompt"] += figures.prompt_tokens - figures.cached_tokens
        self.totals["cached"] += figures.cached_tokens
        self.totals["out"] += figures.output_tokens
        self.totals["p_s"] += figures.prompt_ms / 1000
        self.totals["d_s"] += figures.decode_ms / 1000

    def _compose(
        self,
        task: int,
        request: Mapping[str, Any],
        turn: TurnInput,
        figures: TurnFigures,
        faults: Faults,
        before: list[str],
        after: list[str],
    ) -> Answer:
        setting = self.launch.setting
        tool, tokens, kinds = _text(request, turn, figures)
        if faults.has("degenerate"):
            tokens = [" again"] * len(tokens)
        if faults.has("split_utf8"):
            tokens = [f"{token}é→漢" for token in tokens]
        chunks, gaps = _grouped(tokens, kinds, figures)
        if figures.steps and setting.profile:
            before = [*before, *logs.profile(figures, min(setting.target_feat_ctx, figures.prompt_tokens))]
        if figures.steps and self.launch.dump_draft_top:
            before = [*before, logs.draft_top(self.launch, figures.prompt_tokens)]
        ending = logs.request_end(task, figures, setting.batched, setting.rolls_back_fast, setting.budget)
        return Answer(
            task=task,
            figures=figures,
            chunks=chunks,
            gaps_ms=gaps,
            timings=timings(figures, setting.budget),
            tool=tool,
            before=tuple(before),
            after=(*after, *ending),
        )


def _cut(figures: TurnFigures, steps: int) -> TurnFigures:
    """The same turn ended after so many steps, as when a step fails and counts as the end of the text."""
    commits = figures.commits[:steps]
    share = steps / max(figures.steps, 1)
    return replace(
        figures,
        output_tokens=sum(commits),
        finish_reason="stop",
        commits=commits,
        nodes=figures.nodes[:steps],
        decode_ms=figures.decode_ms * share,
        stages_ms={name: value * share for name, value in figures.stages_ms.items()},
    )


def _text(request: Mapping[str, Any], turn: TurnInput, figures: TurnFigures) -> tuple[str | None, list[str], list[str]]:
    """(called tool, tokens, kind per token)."""
    count, workload = figures.output_tokens, turn.dials.name
    tools = request.get("tools") or []
    if workload == "tool_call" and tools and request.get("tool_choice") != "none":
        chosen = tools[turn.seed % len(tools)].get("function", {})
        tokens = texts.arguments_tokens(chosen.get("parameters") or {}, turn.seed, count)[:count]
        tokens += texts.answer_tokens("code", turn.seed, count - len(tokens))
        return str(chosen.get("name", "tool")), tokens, ["arguments"] * count
    tokens = texts.answer_tokens(workload, turn.seed, count, figures.diverges_at)
    thinks = workload == "thinking" and request.get("chat_template_kwargs", {}).get("enable_thinking", True)
    reasoning = int(count * 0.7) if thinks else 0
    return None, tokens, ["reasoning"] * reasoning + ["content"] * (count - reasoning)


def _grouped(
    tokens: list[str], kinds: list[str], figures: TurnFigures
) -> tuple[tuple[tuple[str, str], ...], tuple[float, ...]]:
    """Chunks as they leave the server: one per verify step (split where the kind changes), one per token without."""
    sizes = figures.commits or (1,) * figures.output_tokens
    count = figures.steps or max(figures.output_tokens - 1, 1)
    each = figures.decode_ms / count if count else 0.0
    chunks: list[tuple[str, str]] = []
    gaps: list[float] = []
    place = 0
    for index, size in enumerate(sizes):
        part, part_kinds = tokens[place : place + size], kinds[place : place + size]
        place += size
        gap = 0.0 if index == 0 and not figures.steps else each
        for kind in dict.fromkeys(part_kinds):
            text = "".join(token for token, own in zip(part, part_kinds, strict=True) if own == kind)
            chunks.append((kind, text))
            gaps.append(gap)
            gap = 0.0
    return tuple(chunks), tuple(gaps)


def timings(figures: TurnFigures, budget: int) -> dict[str, Any]:
    """The `timings` object of the fork's answers."""
    processed, out = figures.prompt_tokens - figures.cached_tokens, figures.output_tokens
    found: dict[str, Any] = {
        "cache_n": figures.cached_tokens,
        "prompt_n": processed,
        "prompt_ms": round(figures.prompt_ms, 3),
        "prompt_per_token_ms": figures.prompt_ms / processed if processed else None,
        "prompt_per_second": 1000 * processed / figures.prompt_ms if figures.prompt_ms else None,
        "predicted_n": out,
        "predicted_ms": round(figures.decode_ms, 3),
        "predicted_per_token_ms": figures.decode_ms / out if out else None,
        "predicted_per_second": 1000 * out / figures.decode_ms if figures.decode_ms else None,
    }
    if figures.steps > 1:
        drafted, accepted = logs.draft_counts(figures, budget)
        found |= {"draft_n": drafted, "draft_n_accepted": accepted}
    return found


def as_tool_calls(answer: Answer) -> list[dict[str, Any]]:
    """The answer's tool call as the non-streaming API shows it."""
    arguments = "".join(text for kind, text in answer.chunks if kind == "arguments")
    return [
        {"type": "function", "id": f"call_{answer.task}", "function": {"name": answer.tool, "arguments": arguments}}
    ]


def dumps(value: Any) -> str:
    """JSON as the server sends it: UTF-8, no spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
