"""The agent's loop: ask the policy, run its calls, keep everything as a trace. Imports `traces`, `records`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from dflash_sweep.agent.policy import Script, Step
from dflash_sweep.agent.workspace import TOOLS, Workspace
from dflash_sweep.errors import TraceError
from dflash_sweep.records import RecordedAnswer, Trace, TraceHeader, Turn
from dflash_sweep.traces.canonical import with_hash

_MIN_MAX_TOKENS = 32
ESTIMATE = "estimate: 3.3 characters a token"
_NOTE = (
    "A scripted policy decided the texts and the calls; the tools were really run on the sample repository "
    "and their results kept. No model answered while this was recorded."
)


def answer_text(step: Step) -> str:
    """A step as a model would write it (Hermes-style tool calls), for counting its tokens."""
    calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in step.calls]
    return "\n".join([*([step.say] if step.say else []), *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])


def estimated_tokens(text: str) -> int:
    """A cautious count where no tokenizer is at hand: 3.3 characters a token, rounded up."""
    return -(-len(text) * 10 // 33)


def _assistant(step: Step, first_id: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.say}
    if step.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for number, (name, arguments) in enumerate(step.calls, first_id)
        ]
    return message


def _check_needs(script: Script, index: int, step: Step, results: str) -> None:
    for text in step.needs:
        if text not in results:
            raise TraceError(
                f"script {script.name}, step {index}: the last results lack {text!r}; the script does not fit the "
                f"repository. They were: {results[:300]!r}"
            )


def _turns(script: Script, workspace: Workspace, count_tokens: Callable[[str], int]) -> Iterator[Turn]:
    system = script.system_prompt or files("dflash_sweep.agent").joinpath("system_prompt.md").read_text("utf-8").strip()
    tools = tuple(tool for tool in TOOLS if script.tools is None or tool["function"]["name"] in script.tools)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    index = calls_made = 0
    for request in script.requests:
        messages.append({"role": "user", "content": request.text})
        results: list[str] = []
        pause_ms = 0.0
        for step in request.steps:
            _check_needs(script, index, step, "\n".join(results))
            answer = _assistant(step, calls_made)
            tokens = count_tokens(answer_text(step))
            yield Turn(
                conversation=script.name,
                index=index,
                messages=tuple(messages),
                tools=tools,
                max_tokens=max(_MIN_MAX_TOKENS, tokens),
                pause_ms=round(pause_ms, 1),
                bucket=step.bucket,
                recorded=RecordedAnswer(
                    content=step.say or None,
                    tool_calls=tuple(answer.get("tool_calls", ())),
                    output_tokens=tokens,
                    finish_reason="tool_calls" if step.calls else "stop",
                ),
            )
            messages.append(answer)
            started = time.monotonic()
            results = [workspace.call(name, arguments) for name, arguments in step.calls]
            pause_ms = (time.monotonic() - started) * 1000
            messages += [
                {"role": "tool", "tool_call_id": f"call_{number}", "content": result}
                for number, result in enumerate(results, calls_made)
            ]
            calls_made += len(step.calls)
            index += 1


def record(
    script: Script,
    folder: Path,
    count_tokens: Callable[[str], int] = estimated_tokens,
    tokenizer: str = ESTIMATE,
) -> Trace:
    """Play a script in a fresh sample repository below `folder` and return the trace, one turn a model call.

    `max_tokens` of a turn is the token count of the answer, 32 at least. Raises TraceError when a result is not what
    the script expects, ConfigError when `folder` holds files.
    """
    workspace = Workspace.create(folder)
    header = TraceHeader(
        name=script.name,
        source=f"dflash-sweep agent script {script.name!r} on its sample repository",
        license="Apache-2.0",
        tokenizer=tokenizer,
        note=_NOTE,
    )
    return with_hash(Trace(header=header, turns=tuple(_turns(script, workspace, count_tokens))))
