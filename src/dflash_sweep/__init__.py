"""dflash-sweep: which speculative-decoding settings are fastest for your agents, and how sure that is."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("dflash-sweep")
