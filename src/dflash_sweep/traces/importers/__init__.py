"""One importer per format. `FORMATS` is the registry; the order decides between formats that recognise equally much."""

from __future__ import annotations

from dflash_sweep.traces.importers import (
    claude_code,
    codex,
    langfuse,
    lengths,
    litellm,
    llama_server,
    openai_log,
    openhands,
    otel,
    pi,
    sglang,
    sharegpt,
    swe_agent,
)
from dflash_sweep.traces.importers.base import Format

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        pi,
        claude_code,
        codex,
        openhands,
        swe_agent,
        sglang,
        litellm,
        langfuse,
        otel,
        sharegpt,
        llama_server,
        lengths,
        openai_log,
    )
}

__all__ = ["FORMATS", "Format"]
