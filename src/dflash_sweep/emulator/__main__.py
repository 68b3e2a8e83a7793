"""`python -m dflash_sweep.emulator`: the emulated llama-server as a process. Imports uvicorn and this package."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from importlib import metadata

import uvicorn

from dflash_sweep.emulator import devices, launch, logs
from dflash_sweep.emulator.answers import Server
from dflash_sweep.emulator.app import App
from dflash_sweep.emulator.launch import ArgumentError, Launch


def version() -> str:
    """The package's version; the emulator has no other."""
    return metadata.version("dflash-sweep")


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code: 0 after a signal, 1 for a bad argument or a failed load."""
    words = sys.argv[1:] if argv is None else argv
    if "--version" in words:
        _say(f"version: {version()} (emulator)", "built with Python for any platform")
        return 0
    if "-h" in words or "--help" in words:
        _say("usage: python -m dflash_sweep.emulator [options]", "", *sorted(launch.FLAG_NAMES))
        return 0
    try:
        wanted = launch.read(words, os.environ)
    except ArgumentError as error:
        _say(str(error))
        return 1
    logging.disable(logging.CRITICAL)  # stderr is the server's log: only the fork's lines may appear there
    if wanted.log_file:
        with open(wanted.log_file, "ab", buffering=0) as file:  # noqa: PTH123 - a raw descriptor is wanted
            os.dup2(file.fileno(), 2)
    return _serve(wanted)


def _say(*lines: str) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _serve(wanted: Launch) -> int:
    server = Server.start(wanted)
    app = App(server)
    if wanted.faults.has("survives_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if wanted.faults.has("hang_at_start"):
        app.log([f"main: loading model '{wanted.model}'"])
        threading.Event().wait()
    memory = server.memory
    if wanted.faults.has("oom_at_load"):
        memory = type(memory)(parts=memory.parts, free_mib=-1.0, failure="compute", stage="load")
    app.log(logs.loading(wanted, memory, version()))
    if memory.stage == "load":
        return 1
    if wanted.faults.has("crash_before_ready"):
        code = wanted.faults.text("crash_before_ready")
        if code:
            return int(float(code))
        os.abort()
    listener = _bind(wanted)
    if listener is None:
        app.log([f"main: couldn't bind HTTP server socket, hostname: {wanted.host}, port: {wanted.port}"])
        return 1
    with contextlib.closing(listener):
        asyncio.run(_run(app, wanted, listener))
    return 0


def _bind(wanted: Launch) -> socket.socket | None:
    if wanted.faults.has("port_in_use"):
        return None
    # The protocol is named because asyncio switches Nagle's delay off only for sockets that say they are TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((wanted.host, wanted.port))
    except OSError:
        listener.close()
        return None
    return listener


class _Uvicorn(uvicorn.Server):
    """Leaves signals to us: the fork ends with code 0 after the first TERM and with 1 after the second."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(app: App, wanted: Launch, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app.asgi, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1, loop="asyncio"
    )
    server = _Uvicorn(config)

    def stop() -> None:
        if server.should_exit:
            os._exit(1)
        server.should_exit = True

    loop = asyncio.get_running_loop()
    if not wanted.faults.has("survives_term"):
        loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop)
    load_s = float(devices.load(wanted.device).costs["load"]["base_s"]) if wanted.clock == "real" else 0.0
    app.ready = load_s == 0.0
    listener.listen(128)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    if load_s:
        await asyncio.wait([serving], timeout=load_s)
        app.ready = True
    app.log([f"main: server is listening on http://{wanted.host}:{listener.getsockname()[1]}"])
    await serving
    app.log(["srv    operator(): operator(): cleaning up before exit..."])


if __name__ == "__main__":
    sys.exit(main())
