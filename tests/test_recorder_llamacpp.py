"""Recorded from a real llama-server by each of its doors, replayed through one: the prompts have the same length.

The micro model reads bytes, so that a prompt's token count is its length and the smallest difference shows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from dflash_sweep.recorder import bind, make_server
from dflash_sweep.recording import Recording
from dflash_sweep.records import ReplayPolicy
from dflash_sweep.replay import play
from dflash_sweep.traces import load
from fakes import micropair
from fakes.microserver import MicroServer, serving, settings

pytest.importorskip("xllamacpp")

TEMPLATE = """\
{%- for tool in tools or [] %}<tool>{{ tool | tojson }}{% endfor %}
{%- for message in messages %}<{{ message.role }}>{{ message.reasoning_content or '' }}|{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}
{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""

SYSTEM, QUESTION, RESULT = "You count lines — é.", "How long is list.txt?", "7 list.txt"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroServer]:
    folder = tmp_path_factory.mktemp("real")
    target = micropair.write_target(folder / "target.gguf")
    (folder / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    words = ("--chat-template-file", str(folder / "template.jinja"))
    with serving(settings(target), {}, folder, *words, speculative=False) as server:
        yield server


def by_chat(url: str) -> None:
    function = {"name": "wc", "arguments": '{"file":"list.txt","n":1}'}
    history: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}, {"type": "text", "text": "Really?"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": RESULT},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "And b?"},
    ]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for end in (2, 4, 6):
            client.chat.completions.create(model="micro", messages=history[:end], max_tokens=2, temperature=0)


def by_anthropic(url: str) -> None:
    def text(*parts: str) -> Any:
        return [{"type": "text", "text": part} for part in parts]

    call = {"type": "tool_use", "id": "c1", "name": "wc", "input": {"file": "list.txt", "n": 1}}
    results = [{"type": "tool_result", "tool_use_id": "c1", "content": text(RESULT, " Done.")}]
    history: list[Any] = [
        {"role": "user", "content": text(QUESTION, "Really?")},
        {"role": "assistant", "content": [*text("I look."), call]},
        {"role": "user", "content": results},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "And b?"},
    ]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        for end in (1, 3, 5):
            client.messages.create(
                model="micro", messages=history[:end], system=text(SYSTEM, " Briefly."), max_tokens=2
            )


def by_responses(url: str) -> None:
    history: list[Any] = [
        {"role": "user", "content": QUESTION},
        {"type": "function_call", "call_id": "c1", "name": "wc", "arguments": '{"file":"list.txt"}'},
        {"type": "function_call_output", "call_id": "c1", "output": RESULT},
        {"role": "user", "content": [{"type": "input_text", "text": "And b?"}]},
    ]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for end in (1, 3, 4):
            client.responses.create(model="micro", input=history[:end], instructions=SYSTEM, max_output_tokens=2)


@pytest.mark.parametrize("talk", [by_chat, by_anthropic, by_responses])
def test_the_replayed_prompts_are_as_long_as_the_recorded_ones(talk: Any, real: MicroServer, tmp_path: Path) -> None:
    recording = Recording(tmp_path, "real")
    proxy = make_server(real.process.base_url, recording)
    with bind("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=proxy.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            talk(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            proxy.should_exit = True
            thread.join()
    assert recording.skipped == {}
    (path,) = recording.written
    trace = load(path)
    policy = ReplayPolicy(warmup_turns=0, max_tokens=2)
    played = play(trace, policy, real.client, request_fields=lambda _: {}, log_size=real.process.log_size)
    recorded = [turn.recorded.prompt_tokens for turn in trace.turns]
    assert [entry.exchange.error for entry in played] == [None] * 3
    assert [(entry.exchange.usage or {})["prompt_tokens"] for entry in played] == recorded
    assert recorded == sorted({count for count in recorded if count is not None})  # each prompt longer than the last
