"""A real llama.cpp server (the wheel behind our launcher) with a micro pair, for tests: launched, asked, ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_sweep import server
from dflash_sweep.client import Client
from dflash_sweep.engines.base import LaunchRequest
from dflash_sweep.engines.llamacpp import LlamacppEngine
from dflash_sweep.records import Device, EngineBuild, EngineSettings, Exchange, Knobs, LaunchSpec

CPU = Device(kind="cpu", index=0, name="test CPU")
UNKNOWN_BUILD = EngineBuild(engine="llamacpp", version="test", binary="launcher")


@dataclass
class MicroServer:
    process: server.Server
    client: Client

    def ask(self, text: str, *, index: int = 0, **fields: Any) -> Exchange:
        """One chat turn: 48 greedy tokens unless the fields say otherwise."""
        payload = {"messages": [{"role": "user", "content": text}], "max_tokens": 48, "temperature": 0.0, "seed": 1}
        return self.client.chat(payload | fields, index, self.process.log_size(), timeout_s=30)

    def log(self) -> bytes:
        return self.process.read_log()


def settings(target: Path, draft: Path | None = None, **more: Any) -> EngineSettings:
    return EngineSettings(
        name="llamacpp", model=str(target), draft_model=None if draft is None else str(draft), n_ctx=1024, **more
    )


def launch(engine: EngineSettings, knobs: Knobs, port: int, *, speculative: bool = True, slots: int = 1) -> LaunchSpec:
    return LlamacppEngine().launch_spec(
        LaunchRequest(
            settings=engine, build=UNKNOWN_BUILD, knobs={"threads": 1, **knobs}, speculative=speculative, device=CPU,
            host="127.0.0.1", port=port, n_parallel=slots,
        )
    )  # fmt: skip


@contextlib.contextmanager
def serving(
    engine: EngineSettings,
    knobs: Knobs,
    folder: Path,
    *words: str,
    speculative: bool = True,
    slots: int = 1,
    first_request: bool = True,
) -> Iterator[MicroServer]:
    """A server that has answered one token (or, without `first_request`, its health page). `words` are appended as
    they are, past all checks of the adapter."""
    port = server.free_port()
    spec = launch(engine, knobs, port, speculative=speculative, slots=slots)
    spec = LaunchSpec(argv=(*spec.argv, *words), env=spec.env)

    def ready(base_url: str) -> bool:
        with Client(base_url, timeout_s=10) as client:
            if not client.health():
                return False
            if not first_request:
                return True
            hello = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
            return client.chat(hello, -1).error_type is None

    with (
        server.running(spec, port=port, log_path=folder / "server.log", startup_timeout_s=30, ready=ready) as process,
        Client(process.base_url, timeout_s=30) as client,
    ):
        yield MicroServer(process, client)
