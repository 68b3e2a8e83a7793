"""What importers make of every format is accepted by a real llama-server, turn by turn.

The server has a micro model and a chat template as strict as any: one system message in front, no role twice in a row,
arguments that are objects. Untidy requests are shown to be refused by it, so that being accepted means something.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dflash_sweep import arms, traces
from dflash_sweep.client import Client
from dflash_sweep.payload import build_payload
from dflash_sweep.records import ReplayPolicy, Turn
from dflash_sweep.traces.build import import_trace
from dflash_sweep.traces.importers import FORMATS
from dflash_sweep.traces.normalise import NormaliseOptions, normalise
from fakes import micropair
from fakes.microserver import MicroServer, serving, settings

pytest.importorskip("xllamacpp")

CONTEXT_TOKENS = 4096
"""All that the micro model takes."""

STRICT_TEMPLATE = """\
{%- if tools %}<|start|>tools
{%- for tool in tools %}
{{ tool.function.name }} {{ tool.function.parameters | tojson }}
{%- endfor %}<|end|>{% endif %}
{%- set seen = namespace(role='') %}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('system message must be first') }}{% endif %}
{%- if message.role == seen.role and message.role != 'tool' %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('unknown role') }}{% endif %}
{%- set seen.role = message.role %}<|start|>{{ message.role }}
{{ message.content }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
[call {{ call.function.name }}]
{%- for name, value in call.function.arguments | items %} {{ name }}={{ value | tojson }}{% endfor %}
{%- endfor %}
{%- endif %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant
{% endif %}"""


@pytest.fixture
def samples() -> Path:
    return Path(__file__).parent / "samples"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroServer]:
    folder = tmp_path_factory.mktemp("strict")
    target = micropair.write_target(folder / "target.gguf")
    (folder / "template.jinja").write_text(STRICT_TEMPLATE, encoding="utf-8")
    engine = settings(target)
    words = ("--chat-template-file", str(folder / "template.jinja"), "--ctx-size", str(CONTEXT_TOKENS))
    with serving(engine, {}, folder, *words, speculative=False) as server:
        yield server


def ask(server: MicroServer, turn: Turn) -> str | None:
    """The error of one short answer to this turn; None if the server took it.

    With tools the server reads the answer as a tool call or a text; what a random model says is neither, and that is
    no fault of the request, which was rendered, read and answered.
    """
    payload = build_payload(turn, ReplayPolicy(max_tokens=4), {})
    with Client(server.process.base_url, timeout_s=60) as client:  # the server hangs up after an error: a new one each
        exchange = client.chat(payload, turn.index)
    if exchange.error_type is None or "does not match the expected" in (exchange.error or ""):
        return None
    return f"{exchange.error_type}: {exchange.error}"


def rendered(server: MicroServer, turn: Turn) -> str:
    """The prompt as the server's template makes it, without decoding. Fails if the server refuses."""
    body = {"messages": turn.messages, **({"tools": turn.tools} if turn.tools else {})}
    answer = httpx.post(f"{server.process.base_url}/apply-template", json=body, timeout=30).raise_for_status()
    return str(answer.json()["prompt"])


@pytest.mark.slow
def test_every_turn_of_every_format_is_accepted(strict: MicroServer, samples: Path) -> None:
    refused: dict[str, str] = {}
    formats: set[str] = {"lengths"}  # see the test below
    turns = 0
    for path in sorted(samples.iterdir()):
        if path.name in ("mooncake.jsonl", "weka.json"):
            continue  # thousands of words, and this tokenizer takes a byte a token: see the test below
        # Pi and tool results before a user message: this template insists on turns.
        done = import_trace(path, options=NormaliseOptions(strict_roles=True))
        formats.add(done.format)
        for turn in done.trace.turns:
            turns += 1
            if (error := ask(strict, turn)) is not None:
                refused[f"{path.name} {turn.conversation} {turn.index}"] = error
    assert refused == {}
    assert formats == set(FORMATS)
    assert turns >= 38


@pytest.mark.slow
def test_invented_prompts_are_accepted(strict: MicroServer, tmp_path: Path) -> None:
    rows = [{"timestamp": n, "input_length": 90, "output_length": 4, "hash_ids": []} for n in range(3)]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [ask(strict, turn) for turn in import_trace(tmp_path / "m.jsonl").trace.turns] == [None] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["agent_short", "coding", "prose"])
def test_shipped_traces_are_accepted(name: str, strict: MicroServer) -> None:
    assert [error for turn in traces.load(traces.shipped(name)).turns if (error := ask(strict, turn))] == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "calls"), [("agent", 12), ("tool_bursts", 8)])
def test_prompts_of_a_conversation_continue_each_other(name: str, calls: int, strict: MicroServer) -> None:
    before = ""
    for turn in traces.load(traces.shipped(name)).turns:
        prompt = rendered(strict, turn)
        assert prompt.startswith(before.removesuffix("<|start|>assistant\n"))  # a cache serves all but the new part
        before = prompt
    assert before.count("[call ") == calls


CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
USER = {"role": "user", "content": "hello"}
REFUSED: dict[str, list[dict[str, Any]]] = {
    "no content": [{"role": "user"}],
    "late system": [USER, {"role": "assistant", "content": "a"}, {"role": "system", "content": "s"}, USER],
    "two users": [USER, USER],
    "null strings": [USER, {"role": "assistant", "content": "a", "name": None, "reasoning_content": None}, USER],
    "image": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
    "tool result part": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}],
    "no call type": [USER, {"role": "assistant", "content": "", "tool_calls": [{**CALL, "type": None}]},
                     {"role": "tool", "tool_call_id": "call_1", "content": "x"}],
    "broken arguments": [USER, {"role": "assistant", "content": "", "tool_calls": [
        {**CALL, "function": {"name": "ls", "arguments": "{"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "x"}],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_refused_untidy_is_accepted_normalised(name: str, strict: MicroServer) -> None:
    messages = REFUSED[name]
    assert ask(strict, Turn(conversation="c", index=0, messages=tuple(messages))) is not None
    done = normalise(messages)
    assert done.changes
    assert ask(strict, Turn(conversation="c", index=0, messages=done.messages)) is None


@pytest.mark.slow
def test_arms_change_the_grammar_and_the_prompt_as_they_say(strict: MicroServer) -> None:
    """A random model keeps to a call's form only where a grammar makes it: there is none in no_grammar, whose prompt
    holds the tools all the same."""
    parameters = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    tools = ({"type": "function", "function": {"name": "switch", "parameters": parameters}},)
    turn = Turn(conversation="c", index=0, messages=(USER,), tools=tools, tool_choice="required")
    policy = ReplayPolicy(max_tokens=200, arms=("as_recorded", "no_tools", "no_grammar"))
    answers = {}
    for arm in policy.arms:
        own = arms.asked(turn, policy, arm)
        assert own is not None
        with Client(strict.process.base_url, timeout_s=60) as client:
            answers[arm] = client.chat(build_payload(own[0], own[1], {}), 0)
        assert answers[arm].error_type is None, answers[arm].error
    prompts = {arm: (answer.usage or {})["prompt_tokens"] for arm, answer in answers.items()}
    assert prompts["no_grammar"] == prompts["as_recorded"] > prompts["no_tools"]
    (call,) = answers["as_recorded"].tool_calls
    assert call["function"]["name"] == "switch"
    assert isinstance(json.loads(call["function"]["arguments"])["on"], bool)
    assert answers["no_grammar"].tool_calls == answers["no_tools"].tool_calls == ()
