"""Arms of one replay: every turn asked as it was recorded, and again without its tools or its grammar.

Imports `records`, `errors`. Pure functions. Arms are played within one trial, on one server, conversation by
conversation, so that with and without differ in nothing else. The first arm is the study's own: its turns alone are
counted; those of the others are stored beside them (`other_arm`) and compared turn by turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dflash_sweep.errors import ConfigError
from dflash_sweep.records import AS_RECORDED, OTHER_ARM, ReplayPolicy, Turn

NO_TOOLS, NO_GRAMMAR = "no_tools", "no_grammar"

ARMS: dict[str, str] = {
    AS_RECORDED: "the request as the trace and the policy have it",
    NO_TOOLS: "without tools and tool_choice: the prompt loses the schemas, the server builds no grammar of them",
    NO_GRAMMAR: "with the tools in the prompt but tool_choice none, and without the policy's own grammar fields",
}
"""Arm → what is asked."""

GRAMMAR_FIELDS = ("response_format", "json_schema", "grammar", "guided_json", "structured_outputs", "ebnf", "regex")
"""Request fields by which servers are given a grammar: OpenAI's, llama-server's, vLLM's, SGLang's."""


def check(policy: ReplayPolicy) -> None:
    """Raises ConfigError if these arms cannot be played."""
    for arm in policy.arms:
        if arm not in ARMS:
            raise ConfigError(f"replay.arms={list(policy.arms)}: {arm!r} is not known; allowed: {', '.join(ARMS)}")
    if not policy.arms or len(set(policy.arms)) < len(policy.arms):
        raise ConfigError(f"replay.arms={list(policy.arms)} is not allowed: it takes one arm or several different ones")
    if len(policy.arms) > 1 and policy.mode != "teacher_forced":
        raise ConfigError(
            f"replay.arms={list(policy.arms)} is not allowed with replay.mode={policy.mode}: only recorded histories "
            "are the same in every arm"
        )


def check_trace(policy: ReplayPolicy, turns: Sequence[Turn]) -> None:
    """Raises ConfigError for an arm beside the first that would ask every turn of the trace as the first one does."""
    for arm in policy.arms[1:]:
        if not any(asked(turn, policy, arm) for turn in turns):
            raise ConfigError(
                f"replay.arms: no turn of this trace is asked differently in {arm} than in {policy.arms[0]}: it brings "
                "no tools (or replay.tools=false leaves them out), and the policy no grammar"
            )


def asked(turn: Turn, policy: ReplayPolicy, arm: str) -> tuple[Turn, ReplayPolicy] | None:
    """Turn and policy as the arm has them; None where an arm beside the first would ask what the first one asks."""
    own = _changed(turn, policy, arm)
    return None if arm != policy.arms[0] and own == _changed(turn, policy, policy.arms[0]) else own


def _changed(turn: Turn, policy: ReplayPolicy, arm: str) -> tuple[Turn, ReplayPolicy]:
    tools = turn.tools if policy.tools else None
    bare = replace(turn, tools=tools, tool_choice=turn.tool_choice if tools else None)
    if arm == NO_TOOLS:
        return replace(bare, tools=None, tool_choice=None), policy
    if arm == NO_GRAMMAR:
        fields = without_grammar(policy.request_fields)
        return replace(bare, tool_choice="none" if tools else None), replace(policy, request_fields=fields)
    return bare, policy


def without_grammar(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Request fields without those that bring a grammar."""
    return {name: value for name, value in fields.items() if name not in GRAMMAR_FIELDS}


def in_order(policy: ReplayPolicy, conversation: int) -> tuple[str, ...]:
    """The arms of the n-th conversation, in the order they are played: each is first equally often.

    The seed, and the trial by counting from another number, decide with which one the first conversation begins.
    """
    start = (policy.sampling_seed + conversation) % len(policy.arms)
    return policy.arms[start:] + policy.arms[:start]


def invalid_reason(policy: ReplayPolicy, arm: str, reason: str | None) -> str | None:
    """Why a turn does not count: its own reason in the first arm, "other_arm" or "other_arm: reason" in the others."""
    if arm == policy.arms[0]:
        return reason
    return OTHER_ARM if reason is None else f"{OTHER_ARM}: {reason}"


def is_other(reason: object) -> bool:
    """Whether an invalid_reason is that of a turn of another arm than the first."""
    return isinstance(reason, str) and reason.partition(":")[0] == OTHER_ARM


def listed(names: Iterable[str]) -> str:
    """Arms with what they ask, for help texts."""
    return "; ".join(f"{name}: {ARMS[name]}" for name in names)
