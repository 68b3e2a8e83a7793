"""Tools and tool_choice in the one shape servers know. Imports the `traces` rules only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_sweep.traces.changes import ChangeKind, Changes
from dflash_sweep.traces.legal import LONE_SURROGATE, texts
from dflash_sweep.traces.message_rules import replace_surrogates

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def _parameters(flat: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("parameters", "input_schema", "inputSchema"):
        if isinstance(flat.get(key), Mapping):
            return dict(flat[key])
    return dict(_NO_PARAMETERS)


def _tool(raw: Any, number: int, changes: Changes) -> dict[str, Any] | None:
    if not isinstance(raw, Mapping):
        changes.add(ChangeKind.TOOL_UNSUPPORTED, -1, f"tool {number}")
        return None
    nested = raw.get("function")
    flat = nested if isinstance(nested, Mapping) else raw
    name, kind = flat.get("name"), raw.get("type", "function")
    # Anthropic's own tools have no type or "custom"; anything else runs on a vendor's server.
    if not isinstance(name, str) or not name or kind not in ("function", "custom"):
        changes.add(ChangeKind.TOOL_UNSUPPORTED, -1, str(kind if kind != "function" else f"tool {number}"))
        return None
    function: dict[str, Any] = {"name": name}
    if isinstance(flat.get("description"), str):
        function["description"] = flat["description"]
    function["parameters"] = _parameters(flat)
    tool = {"type": "function", "function": function}
    if tool != raw:
        changes.add(ChangeKind.TOOL_SHAPE, -1, name)
    return tool


def clean_tools(raw: Any, changes: Changes) -> tuple[dict[str, Any], ...] | None:
    """Tools as OpenAI functions, None when there are none. Takes OpenAI, Responses and Anthropic shapes."""
    if raw is None:
        return None
    if not isinstance(raw, list | tuple):
        changes.add(ChangeKind.TOOL_UNSUPPORTED, -1, type(raw).__name__)
        return None
    if any(LONE_SURROGATE.search(text) for text in texts(raw)):
        changes.add(ChangeKind.SURROGATE, -1, "tools")
        raw = replace_surrogates(raw)
    tools = tuple(tool for number, item in enumerate(raw) if (tool := _tool(item, number, changes)) is not None)
    if not tools:
        changes.add(ChangeKind.TOOLS_EMPTY)
        return None
    return tools


def clean_tool_choice(raw: Any, tools: tuple[dict[str, Any], ...] | None, changes: Changes) -> Any:
    """auto, none, required or a named function of these tools; None = not sent."""
    if raw is None:
        return None
    kind = raw.get("type") if isinstance(raw, Mapping) else raw
    choice: Any = {"any": "required"}.get(kind, kind) if isinstance(kind, str) else None
    if isinstance(raw, Mapping) and choice in ("function", "tool"):
        nested = raw.get("function")
        name = nested.get("name") if isinstance(nested, Mapping) else raw.get("name")
        names = {tool["function"]["name"] for tool in tools or ()}
        choice = {"type": "function", "function": {"name": name}} if name in names else None
    elif choice not in ("auto", "none", "required"):
        choice = None
    if tools is None:
        choice = None
    if choice != raw:
        changes.add(ChangeKind.TOOL_CHOICE)
    return choice
