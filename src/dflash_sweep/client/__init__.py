"""The HTTP clients: of a model server under measurement, and of the server behind the recording proxy.

The only package that imports httpx. Besides, it imports `chat_stream`, `payload`, `sse`, `records`, `errors`.
"""

from __future__ import annotations

from dflash_sweep.client.checks import RequestError, checked_base_url
from dflash_sweep.client.http_client import Client, Health
from dflash_sweep.client.upstream import Upstream, UpstreamAnswer

__all__ = ["Client", "Health", "RequestError", "Upstream", "UpstreamAnswer", "checked_base_url"]
