"""The dashboard's server in a thread of the test, as the command serves it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dflash_sweep.showcase.server import address, dashboard_server


@contextmanager
def served(url: str, folder: Path, study_id: int | None) -> Iterator[str]:
    """The dashboard of a database, as the command serves it; gives the address it prints."""
    server = dashboard_server(url, folder, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield address(server, study_id)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
