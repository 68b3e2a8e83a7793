"""What can be wrong with an address, a connection or an answer, in one line each. Imports `chat_stream`, `errors`."""

from __future__ import annotations

import httpx

from dflash_sweep.chat_stream import clean_text, decode_json, error_text
from dflash_sweep.errors import ConfigError, FailureKind, TrialFailed

ERROR_CHARS = 500
"""An error body is kept up to this length: servers echo whole prompts in them."""


class RequestError(TrialFailed):
    """A GET that did not bring what was asked. `status` None = there was no HTTP answer at all."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(FailureKind.REQUEST_FAILED, message)
        self.status = status


def checked_base_url(base_url: str) -> str:
    """The address without a trailing slash or /v1. Raises ConfigError, saying what an address looks like."""
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL as error:
        raise ConfigError(f"server address {base_url!r}: {error}; allowed: http://host:port or https://…") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"server address {base_url!r} is not allowed: it takes http://host:port or https://…")
    return str(url).rstrip("/").removesuffix("/v1")


def reason(error: Exception) -> str:
    """An exception's words, or its name if it has none."""
    return str(error) or type(error).__name__


def body_text(response: httpx.Response) -> str:
    """What an error answer says, in one line."""
    try:
        text = error_text(decode_json(response.content))
    except ValueError:
        text = clean_text(response.text)
    return " ".join(text.split())[:ERROR_CHARS]
