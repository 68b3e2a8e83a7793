"""A model server that speaks three protocols, answers by a fixed script, and renders each request to its prompt.

The renderers are this test's own reading of the protocols, apart from the program's: what the model would see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fakes.sse_server import Reply, Request, chunk, json_reply, sse

CALL_ARGUMENTS = '{"file":"list é.txt","lines":true}'
THOUGHT = "wc will do."
ANSWERS = {(1, 1): "Seven lines.\n", (2, 1): 'Zero: it is empty \u2028 "😀".'}


def _parts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or [])


def _tools(tools: list[dict[str, Any]]) -> list[Any]:
    """Name, description and schema of each tool, whatever the protocol calls them; the order of keys is kept."""
    flat = [tool.get("function", tool) for tool in tools]
    return [[tool["name"], tool.get("description"), tool.get("parameters", tool.get("input_schema"))] for tool in flat]


def _line(role: str, text: str) -> str:
    return f"<{role}>{text}</{role}>"


def _call(name: str, arguments: Any) -> str:
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    return f"[{name} {arguments}]"


def render_chat(body: dict[str, Any]) -> str:
    lines = [json.dumps(_tools(body.get("tools") or []))]
    for message in body["messages"]:
        calls = "".join(
            _call(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []
        )
        thought = f"({message['reasoning_content']})" if message.get("reasoning_content") else ""
        lines.append(_line(message["role"], thought + _parts(message.get("content")) + calls))
    return "\n".join(lines)


def render_anthropic(body: dict[str, Any]) -> str:
    lines = [json.dumps(_tools(body.get("tools") or []))]
    system = body.get("system")
    if system:
        lines.append(_line("system", system if isinstance(system, str) else "".join(part["text"] for part in system)))
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        lines += [_line("tool", _parts(block["content"])) for block in blocks if block["type"] == "tool_result"]
        thought = "".join(f"({block['thinking']})" for block in blocks if block["type"] == "thinking")
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        calls = "".join(_call(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use")
        if text or calls:
            lines.append(_line(message["role"], thought + text + calls))
    return "\n".join(lines)


def render_responses(body: dict[str, Any], remembered: list[dict[str, Any]]) -> str:
    lines = [json.dumps(_tools(body.get("tools") or []))]
    if body.get("instructions"):
        lines.append(_line("system", body["instructions"]))
    given = body["input"]
    answer = ""
    for item in [*remembered, *([{"role": "user", "content": given}] if isinstance(given, str) else given)]:
        kind = item.get("type", "message")
        if kind == "reasoning":
            answer += f"({_parts(item['summary'])})"
        elif kind == "message" and item["role"] == "assistant":
            answer += _parts(item["content"])
        elif kind == "function_call":
            answer += _call(item["name"], item["arguments"])
        else:
            lines += [_line("assistant", answer)] if answer else []
            answer = ""
            is_tool = kind == "function_call_output"
            lines.append(_line("tool", item["output"]) if is_tool else _line(item["role"], _parts(item["content"])))
    return "\n".join([*lines, *([_line("assistant", answer)] if answer else [])])


class AgentUpstream:
    """The handler of an SSEServer. `prompts` are the rendered prompts of all requests, in order."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self._items: dict[str, list[dict[str, Any]]] = {}  # response id → items so far, for previous_response_id

    def __call__(self, request: Request) -> Reply:
        if request.method == "GET":
            return json_reply({"object": "list", "data": []})
        if not {"messages", "input"} & set(request.json):
            return json_reply({"error": {"message": "nothing was asked"}}, 500)
        return {"completions": self._chat, "messages": self._anthropic, "responses": self._responses}[
            request.path.split("?")[0].rsplit("/", 1)[1]
        ](request.json)

    def _script(self, prompt: str) -> str | None:
        """The answer's text, None for the tool call."""
        self.prompts.append(prompt)
        return ANSWERS.get((prompt.count("<user>"), prompt.count("<tool>")))

    # ------------------------------------------------------------ chat-completions

    def _chat(self, body: dict[str, Any]) -> Reply:
        text = self._script(render_chat(body))
        usage = {"prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 40}}
        if not body.get("stream"):
            message = {
                "role": "assistant",
                "content": text,
                "tool_calls": None if text else [self._tool_call(CALL_ARGUMENTS)],
            }
            choice = {"index": 0, "message": message, "finish_reason": "stop" if text else "tool_calls"}
            return json_reply(
                {
                    "id": "c-1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "toy",
                    "choices": [choice],
                    "usage": usage,
                }
            )
        head = chunk(delta={"role": "assistant", "content": None})
        tail = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage}
        if text is not None:
            return Reply(
                sse(head, *(chunk(text[i : i + 3]) for i in range(0, len(text), 3)), chunk(finish="stop"), tail)
            )
        first = {"index": 0, **self._tool_call("")}
        more = [
            {"index": 0, "function": {"arguments": CALL_ARGUMENTS[i : i + 9]}} for i in range(0, len(CALL_ARGUMENTS), 9)
        ]
        pieces = [chunk(delta={"tool_calls": [piece]}) for piece in (first, *more)]
        return Reply(sse(head, chunk(delta={"reasoning_content": THOUGHT}), *pieces, chunk(finish="tool_calls"), tail))

    @staticmethod
    def _tool_call(arguments: str) -> dict[str, Any]:
        return {"id": "call_1", "type": "function", "function": {"name": "wc", "arguments": arguments}}

    # ------------------------------------------------------------ Anthropic messages

    def _anthropic(self, body: dict[str, Any]) -> Reply:
        text = self._script(render_anthropic(body))
        blocks: list[dict[str, Any]] = (
            [{"type": "text", "text": text}]
            if text is not None
            else [
                {"type": "thinking", "thinking": THOUGHT, "signature": "AAAA"},
                {"type": "tool_use", "id": "toolu_1", "name": "wc", "input": json.loads(CALL_ARGUMENTS)},
            ]
        )
        reason = "end_turn" if text is not None else "tool_use"
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "toy", "stop_sequence": None}
        usage = {
            "input_tokens": 12,
            "cache_read_input_tokens": 80,
            "cache_creation_input_tokens": 8,
            "output_tokens": 1,
        }
        if not body.get("stream"):
            return json_reply(
                {**head, "content": blocks, "stop_reason": reason, "usage": {**usage, "output_tokens": 9}}
            )
        events = [{"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": usage}}]
        for index, block in enumerate(blocks):
            events += _anthropic_block(index, block)
        events.append(
            {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": None},
                "usage": {"output_tokens": 9},
            }
        )
        events.append({"type": "message_stop"})
        return Reply(_typed_events(events))

    # ------------------------------------------------------------ responses

    def _responses(self, body: dict[str, Any]) -> Reply:
        remembered = self._items.get(body.get("previous_response_id") or "", [])
        text = self._script(render_responses(body, remembered))
        reply_id = f"resp_{len(self.prompts)}"
        output: list[dict[str, Any]]
        if text is not None:
            part = {"type": "output_text", "text": text, "annotations": []}
            output = [{"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "content": [part]}]
        else:
            output = [
                {"type": "reasoning", "id": "r_1", "summary": [{"type": "summary_text", "text": THOUGHT}]},
                {"type": "function_call", "id": "f_1", "call_id": "call_1", "name": "wc", "arguments": CALL_ARGUMENTS,
                 "status": "completed"},
            ]  # fmt: skip
        given = body["input"]
        new = [{"role": "user", "content": given}] if isinstance(given, str) else given
        self._items[reply_id] = [*remembered, *new, *output]
        usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 9,
                 "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 109}  # fmt: skip
        response = {
            "id": reply_id, "object": "response", "created_at": 1, "model": "toy", "status": "completed",
            "output": output, "usage": usage, "error": None, "tools": [], "tool_choice": "auto",
            "parallel_tool_calls": True, "incomplete_details": None, "instructions": None, "metadata": {},
            "temperature": 0.0, "top_p": 1.0,
        }  # fmt: skip
        if not body.get("stream"):
            return json_reply(response)
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**response, "status": "in_progress", "output": [], "usage": None}}
        ]
        for index, item in enumerate(output):
            events += _response_item(index, item)
        events.append({"type": "response.completed", "response": response})
        return Reply(_typed_events([{**event, "sequence_number": n} for n, event in enumerate(events)]))


def _typed_events(events: list[dict[str, Any]]) -> list[bytes]:
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def _anthropic_block(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kinds = {
        "text": ("text_delta", "text"),
        "thinking": ("thinking_delta", "thinking"),
        "tool_use": ("input_json_delta", "partial_json"),
    }
    delta, field = kinds[block["type"]]
    value = json.dumps(block["input"]) if block["type"] == "tool_use" else block[field]
    start = {**block, "input": {}} if block["type"] == "tool_use" else {**block, field: ""}
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for i in range(0, len(value), 5):
        yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, field: value[i : i + 5]}}
    yield {"type": "content_block_stop", "index": index}


def _response_item(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    place = {"item_id": item["id"], "output_index": index}
    yield {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress"}}
    if item["type"] == "message":
        text = item["content"][0]["text"]
        for i in range(0, len(text), 4):
            yield {
                "type": "response.output_text.delta",
                **place,
                "content_index": 0,
                "delta": text[i : i + 4],
                "logprobs": [],
            }
    elif item["type"] == "function_call":
        yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}
