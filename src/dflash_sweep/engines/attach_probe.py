"""Which server answers at an address? A few GETs, judged by the shape of the body. Imports `errors`.

The status alone proves nothing: one server answers 200 to every route. Routes are asked in an order in which the
imitators of a route come before the imitated. Only GETs; nothing is loaded, flushed or changed.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dflash_sweep.errors import ConfigError, EngineMissing

TIMEOUT_S = 2.0
MAX_BODY = 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """What answers. `kind`: the server's family; `models`: ids of /v1/models, in its order."""

    kind: str
    version: str
    models: tuple[str, ...] = ()


def root_url(url: str) -> str:
    """The address without a trailing slash or /v1. Raises ConfigError: not an http(s) address."""
    parts = urlsplit(url.strip())
    try:
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        port_ok = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise ConfigError(f"engine.options.url={url!r}: not an address; for example http://127.0.0.1:8080")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


class _Unreachable(Exception):
    """Nobody answers at all."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like another: followed, it would carry the key to a host nobody named."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


def _get(url: str, key: str | None) -> tuple[int, str]:
    """(status, body); errors of the server are answers too."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    # The user names the server: a proxy of the environment must not answer in its place.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read(MAX_BODY).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(MAX_BODY).decode("utf-8", "replace")
    except TimeoutError:
        return 0, ""
    except (urllib.error.URLError, OSError) as error:
        if isinstance(getattr(error, "reason", None), TimeoutError):
            return 0, ""
        raise _Unreachable(str(getattr(error, "reason", error))) from None


def _json(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _ollama(get: Callable[[str], tuple[int, str]]) -> Found | None:
    if "Ollama is running" not in get("/")[1]:
        return None
    found = _json(get("/api/version")[1])
    return Found("ollama", str(found["version"])) if isinstance(found, Mapping) and "version" in found else None


def _koboldcpp(get: Callable[[str], tuple[int, str]]) -> Found | None:
    found = _json(get("/api/extra/version")[1])
    if isinstance(found, Mapping) and found.get("result") == "KoboldCpp":
        return Found("koboldcpp", str(found.get("version", "unknown")))
    return None


def _lmstudio(get: Callable[[str], tuple[int, str]]) -> Found | None:
    for route, key in (("/api/v1/models", "models"), ("/api/v0/models", "data")):
        found = _json(get(route)[1])
        if isinstance(found, Mapping) and isinstance(found.get(key), list):
            return Found("lmstudio", route.split("/")[2])
    return None


def _by_version(get: Callable[[str], tuple[int, str]]) -> Found | None:
    """`/version`: a text is vLLM's, a number ik_llama.cpp's."""
    found = _json(get("/version")[1])
    version = found.get("version") if isinstance(found, Mapping) else None
    if isinstance(version, str) and version[:1].isdigit():
        return Found("vllm", version)
    if isinstance(version, int) and not isinstance(version, bool):
        return Found("ik_llama", str(version))
    return None


def _sglang(get: Callable[[str], tuple[int, str]]) -> Found | None:
    for route in ("/server_info", "/model_info", "/get_server_info", "/get_model_info"):
        found = _json(get(route)[1])
        if isinstance(found, Mapping) and ("internal_states" in found or "model_path" in found):
            return Found("sglang", str(found.get("version", "unknown")))
    return None


def _llama_family(get: Callable[[str], tuple[int, str]]) -> Found | None:
    found = _json(get("/props")[1])
    if not isinstance(found, Mapping):
        return None
    if "build_info" in found or "default_generation_settings" in found:
        kind = "lucebox" if "budget_envelope" in found or "api" in found else "llamacpp"
        return Found(kind, str(found.get("build_info", "unknown")))
    return None


def _dflash_mlx(get: Callable[[str], tuple[int, str]]) -> Found | None:
    found = _json(get("/metrics")[1])
    if isinstance(found, Mapping) and "rates" in found and "recent_requests" in found:
        return Found("dflash-mlx", "unknown")
    return None


_PROBES = (_ollama, _koboldcpp, _lmstudio, _by_version, _sglang, _llama_family, _dflash_mlx)
_OWNERS = {
    "vllm": "vllm", "sglang": "sglang", "omlx": "omlx", "llama.cpp": "atomic-chat", "llama.cpp-upstream": "atomic-chat",
    "mlx": "atomic-chat", "remote": "atomic-chat",
}  # fmt: skip


def _by_owner(body: str) -> Found:
    """The owner that /v1/models names; anything else is some OpenAI-compatible server."""
    found = _json(body)
    entries = found.get("data") if isinstance(found, Mapping) else None
    owners = [str(entry.get("owned_by")) for entry in entries or [] if isinstance(entry, Mapping)]
    return Found(_OWNERS.get(owners[0], "openai") if owners else "openai", "unknown")


def _model_ids(body: str) -> tuple[str, ...] | None:
    found = _json(body)
    entries = found.get("data") if isinstance(found, Mapping) else None
    if not isinstance(entries, list):
        return None
    return tuple(str(entry["id"]) for entry in entries if isinstance(entry, Mapping) and "id" in entry)


def identify(url: str, key: str | None = None) -> Found:
    """The server at an address. Raises EngineMissing: nobody answers, a key is needed, or it has no /v1/models."""
    root = root_url(url)

    def get(path: str) -> tuple[int, str]:
        return _get(root + path, key)

    try:
        status, listed = get("/v1/models")
        models = _model_ids(listed)
        if status in (401, 403):
            raise EngineMissing(
                f"{root} wants a key (HTTP {status}): name the variable that holds it in engine.options.api_key_env"
            )
        if models is None:
            raise EngineMissing(
                f"{root}/v1/models gives no list of models (HTTP {status}): not an OpenAI-compatible server"
            )
        found = next((one for probe in _PROBES if (one := probe(get)) is not None), None) or _by_owner(listed)
    except _Unreachable as error:
        raise EngineMissing(
            f"nobody answers at {root} ({error}): start the server yourself, load a model in it, "
            "and give its address in engine.options.url"
        ) from None
    return Found(found.kind, found.version, models)
