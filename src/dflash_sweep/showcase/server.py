"""The dashboard as a web server of this machine alone. Imports optuna, optuna_dashboard and siblings.

It listens on 127.0.0.1 and answers only requests that name this machine: a page of somebody else's, open in the same
browser, cannot read studies by giving its own name this address.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
from optuna.artifacts import FileSystemArtifactStore
from optuna.exceptions import ExperimentalWarning
from optuna_dashboard import wsgi

from dflash_sweep.errors import ConfigError, StorageError
from dflash_sweep.showcase.linear import Completed, Environ, QuickStorage, StartResponse

_LOG = logging.getLogger(__name__)
HOST = "127.0.0.1"
_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_LOCK_TIMEOUT_S = 10.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    storage: QuickStorage | None = None

    def server_close(self) -> None:
        super().server_close()
        if self.storage is not None:
            self.storage.remove_session()
            self.storage.engine.dispose()


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        _LOG.debug(format, *args)


class OnlyHere:
    """Refuses requests whose Host is not this machine (another port is fine: it may be a tunnel's)."""

    def __init__(self, app: Callable[[Environ, StartResponse], Iterable[bytes]]) -> None:
        self._app = app

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        name = str(environ.get("HTTP_HOST", "")).rpartition(":")[0] or str(environ.get("HTTP_HOST", ""))
        if name.lower() in _OWN_NAMES:
            return self._app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"this dashboard answers to 127.0.0.1 and localhost only\n"]


def dashboard_server(url: str, folder: Path, *, port: int) -> WSGIServer:
    """A server, listening, not serving yet. `port` 0 = any free one.

    Raises ConfigError for a port that is taken or not allowed, StorageError for a database that cannot be used.
    """
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options: dict[str, Any] = {"connect_args": {"timeout": _LOCK_TIMEOUT_S}} if url.startswith("sqlite") else {}
    try:
        storage = QuickStorage(url, options)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StorageError(f"storage.url={url}: Optuna cannot use this database: {reason}") from error
    folder.mkdir(parents=True, exist_ok=True)
    remembered = optuna.storages.get_storage(storage)  # finished trials never change: thousands are read only once
    app = OnlyHere(Completed(wsgi(remembered, FileSystemArtifactStore(folder)), storage))
    try:
        server = make_server(HOST, port, app, server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--port {port}: cannot be used on {HOST} ({reason}); choose another, or 0 for any free one"
        ) from error
    server.storage = storage
    return server


def address(server: WSGIServer, study_id: int | None) -> str:
    """The URL that people open: a study's page, or the list of studies."""
    page = "/dashboard" if study_id is None else f"/dashboard/studies/{study_id}"
    return f"http://{HOST}:{server.server_port}{page}"
