"""The JSON schema of a trace file's lines, and what is wrong with a line in one sentence. Imports `errors` only."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

FORMAT = "dflash-sweep-trace"
FORMAT_VERSION = 1


@cache
def trace_schema() -> dict[str, Any]:
    """The schema that ships with the package (JSON Schema 2020-12)."""
    text = files("dflash_sweep.traces").joinpath("trace.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def _validator(kind: str) -> Draft202012Validator:
    schema = trace_schema()
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]})


def _place(error: ValidationError) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")


def _allowed(error: ValidationError) -> str:
    """The rule that was broken, without the (possibly huge) value that broke it."""
    rule: Any = error.validator_value
    schema: Any = error.schema
    value: Any = error.instance
    match error.validator:
        case "type":
            return f"must be {rule}, is {_json_type(value)}"
        case "enum":
            return f"must be one of {', '.join(map(str, rule))}"
        case "const":
            return f"must be {json.dumps(rule)}"
        case "minimum":
            return f"must be {rule} or more, is {value}"
        case "pattern":
            return f"must match {rule}"
        case "required":
            return f"lacks {', '.join(key for key in rule if key not in value)}"
        case "additionalProperties":
            known = schema["properties"]
            return f"has unknown keys {', '.join(sorted(set(value) - set(known)))}; known: {', '.join(known)}"
        case _:
            return error.message if len(error.message) <= 160 else error.message[:157] + "…"


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


def line_problem(kind: str, line: Any) -> str | None:
    """What keeps a decoded line from being a `header` or a `turn`; None = it is one."""
    error = best_match(_validator(kind).iter_errors(line))
    if error is None:
        return None
    place = _place(error)
    return f"{place} {_allowed(error)}" if place else f"{kind} {_allowed(error)}"
