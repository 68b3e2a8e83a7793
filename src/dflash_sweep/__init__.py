"""dflash-sweep: which speculative-decoding settings are fastest for your agents, and how sure that is."""

from __future__ import annotations

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """The version is looked up when it is asked for: that takes longer than every other import of `--help`."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dflash-sweep")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
