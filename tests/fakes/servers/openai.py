"""A process that poses as one of the servers people attach to, by what its pages and its last chunk look like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from fakes.servers.stub import Answer, Stub, as_json, text_chunks

TOKENS = 25
USAGE = {"prompt_tokens": 30, "completion_tokens": TOKENS, "total_tokens": 55}


def _models(owner: str) -> Answer:
    return as_json({"object": "list", "data": [{"id": "m", "owned_by": owner, "created": 1}]})


def pages(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {"/health": lambda: as_json({"status": "ok"}), "/v1/models": lambda: _models(kind)}
    if kind == "ollama":
        found["/"] = lambda: (200, "text/plain", "Ollama is running")
        found["/api/version"] = lambda: as_json({"version": "0.19.1"})
    if kind == "koboldcpp":
        found["/api/extra/version"] = lambda: as_json({"result": "KoboldCpp", "version": "1.76"})
    if kind == "lmstudio":
        found["/api/v1/models"] = lambda: as_json({"models": []})
    if kind == "dflash-mlx":
        found["/metrics"] = lambda: as_json({"rates": {}, "recent_requests": []})
    if kind == "ik_llama":
        found["/version"] = lambda: as_json({"version": 4, "features": {}})
    if kind == "empty":
        found["/v1/models"] = lambda: as_json({"data": []})
    if kind == "locked":
        found["/v1/models"] = lambda: as_json({"error": "key"}, 401)
    if kind == "atomic":
        found["/v1/models"] = lambda: _models("llama.cpp-upstream")
    return found


def last(kind: str) -> dict[str, Any]:
    chunk: dict[str, Any] = {"id": "x", "choices": [], "usage": USAGE}
    if kind == "koboldcpp":
        chunk["usage"] = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    if kind == "ik_llama":
        depths = [{"depth": 1, "draft_n": 9, "draft_n_accepted": 6}, {"depth": 2, "draft_n": 9, "draft_n_accepted": 9}]
        chunk["timings"] = {
            "prompt_n": 20, "prompt_ms": 100.0, "predicted_n": TOKENS, "predicted_ms": 400.0, "draft_n": 18,
            "draft_n_accepted": 15, "draft_by_depth": depths,
        }  # fmt: skip
    return chunk


def main(arguments: list[str], argv: list[str]) -> NoReturn:
    kind = arguments[0]

    def chat(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from text_chunks("x", TOKENS)
        yield last(kind)

    def not_found(path: str) -> Answer:
        if kind == "lmstudio":
            return as_json({"error": f"Unexpected endpoint or method. (GET {path})"})
        return as_json({"error": "not found"}, 404)

    stub = Stub("127.0.0.1", int(argv[0]), pages(kind), chat, not_found)
    stub.run("ready")
