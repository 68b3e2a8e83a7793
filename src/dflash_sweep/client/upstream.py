"""The server behind a proxy, for asyncio: answers as they arrive, byte for byte. Imports `checks`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx

from dflash_sweep.client.chat_turn import CONNECT_TIMEOUT_S
from dflash_sweep.client.checks import RequestError, checked_base_url, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAnswer:
    """An answer as it arrives: status, header lines, and the body's bytes exactly as they come. `close` it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]


class Upstream:
    """The server behind a proxy: requests go out as they are, answers come back byte for byte (asyncio)."""

    def __init__(self, base_url: str) -> None:
        self.base_url = checked_base_url(base_url)
        # No read timeout: how long a model may think is the agent's decision, not the proxy's.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, follow_redirects=False)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(
        self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> UpstreamAnswer:
        """Send a request for `target` (path and query). Raises RequestError if there is no answer at all."""
        request = self._http.build_request(method, self.base_url + target, content=body or None)
        request.headers = httpx.Headers([(b"host", request.headers["host"].encode()), *headers])
        if body:
            request.headers["content-length"] = str(len(body))
        try:
            response = await self._http.send(request, stream=True)
        except httpx.HTTPError as error:
            raise RequestError(f"{method} {self.base_url}{target}: {reason(error)}") from error
        return UpstreamAnswer(
            status=response.status_code,
            headers=tuple(response.headers.raw),
            body=_raw_body(response),
            close=response.aclose,
        )


async def _raw_body(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.HTTPError as error:
        raise RequestError(f"the server broke off its answer: {reason(error)}", response.status_code) from error
