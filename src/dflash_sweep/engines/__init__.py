"""The engines by name. Import an adapter through `get`; nothing outside this package spells an engine's flags."""

from __future__ import annotations

from importlib import import_module

from dflash_sweep.engines.base import Engine, EngineFacts, KnobDef, LaunchRequest
from dflash_sweep.errors import ConfigError

__all__ = ["REGISTRY", "Engine", "EngineFacts", "KnobDef", "LaunchRequest", "get"]

REGISTRY: dict[str, str] = {
    "attach": "dflash_sweep.engines.attach:AttachEngine",
    "beellama": "dflash_sweep.engines.beellama:BeellamaEngine",
    "ddtree": "dflash_sweep.engines.ddtree:DDTreeEngine",
    "emulator": "dflash_sweep.engines.emulator:EmulatorEngine",
    "llamacpp": "dflash_sweep.engines.llamacpp:LlamacppEngine",
    "lucebox": "dflash_sweep.engines.lucebox:LuceboxEngine",
    "sglang": "dflash_sweep.engines.sglang:SglangEngine",
    "vllm": "dflash_sweep.engines.vllm:VllmEngine",
}
"""Engine name → "module:class". Classes take no arguments and hold no state."""


def get(name: str) -> Engine:
    """The adapter of one engine. Raises ConfigError, listing the engines there are."""
    if name not in REGISTRY:
        raise ConfigError(f"engine.name: unknown engine {name!r}; allowed: {', '.join(sorted(REGISTRY))}")
    module, _, attribute = REGISTRY[name].partition(":")
    engine: Engine = getattr(import_module(module), attribute)()
    return engine
