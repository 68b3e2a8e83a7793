"""How true the streaming client is, and what it costs: `python benchmarks/client_accuracy.py`.

The emulator streams plain decoding with its real clock at 30, 300 and 3,000 tokens a second, one token an event, from
a process of its own on the same machine. The client's decode rate is compared with two truths: the server's own timings
(`predicted_n` and `predicted_ms`, whose pace the stream must have kept) and the moments at which the server handed over
each event (by the same monotonic clock). The client's cost is the processor time of its thread over the time of the
stream. Exit code 1 if a rate is off either by more than 0.5 % or the client takes 20 % of a core or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dflash_sweep import metrics
from dflash_sweep.client import Client
from dflash_sweep.emulator import __main__ as emulator
from dflash_sweep.emulator import devices, launch
from dflash_sweep.emulator.answers import Answer, Server
from dflash_sweep.emulator.app import App
from dflash_sweep.emulator.faults import Faults

RATES_TPS = (30.0, 300.0, 3000.0)
MAX_ERROR = 0.005
MAX_CORE_SHARE = 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """One stream. `timings_tps`: the rate that the server states; `sent_tps`: that of the moments at which it sent;
    `seen_tps`: by the client. `lag_*_us`: from handing an event over in the server to its place in its record."""

    asked_tps: float
    timings_tps: float
    sent_tps: float
    seen_tps: float
    tokens: int
    chunks: int
    core_share: float
    lag_min_us: float
    lag_median_us: float
    lag_max_us: float

    @property
    def error(self) -> float:
        """Against the moments of sending; relative, positive = the client says faster than it was."""
        return self.seen_tps / self.sent_tps - 1

    @property
    def timings_error(self) -> float:
        """Against the server's own timings."""
        return self.seen_tps / self.timings_tps - 1

    @property
    def holds(self) -> bool:
        """Whether the client's rate is within the limit of both truths, at a cost within its own."""
        worst = max(abs(self.error), abs(self.timings_error))
        return worst <= MAX_ERROR and self.core_share < MAX_CORE_SHARE


# ---------------------------------------------------------------- the server's side


class _TimedApp(App):
    """The emulator as it is; it also notes when it hands over each event that holds text."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._sent_ns: list[int] = []
        self.asgi.router.routes.insert(0, Route("/sent", self._sent))

    async def _sent(self, _: Request) -> Response:
        return JSONResponse(self._sent_ns)

    async def _paced(self, answer: Answer, events: list[bytes], active: Faults) -> AsyncIterator[bytes]:
        self._sent_ns = []
        texts = iter([*events[1 : 1 + len(answer.chunks)], b""])  # between the role and the end
        text = next(texts)
        async for part in super()._paced(answer, events, active):
            if part is text:
                self._sent_ns.append(time.monotonic_ns())
                text = next(texts)
            yield part


def serve(rate_tps: float) -> None:
    """Run the emulator at this rate of plain decoding until it is ended; prints its port."""
    tables = tomllib.loads(resources.files("dflash_sweep.emulator").joinpath("devices/rtx4090.toml").read_text("utf-8"))
    tables["plain"] = {"base_ms": 1000 / rate_tps, "per_kctx_ms": 0.0}
    card = devices.card_from("rtx4090", tables)
    devices.load = lambda key: card  # type: ignore[assignment] # a card of any speed, which no user needs
    words = ["-m", "any.gguf", "-c", "65536", "--emulator-clock", "real", "--emulator-noise", "0", "--port", "0"]
    wanted = launch.read(words, {})
    with emulator._bind(wanted) as listener:  # type: ignore[union-attr]
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        listener.listen(8)
        config = uvicorn.Config(_TimedApp(Server.start(wanted)).asgi, log_config=None, access_log=False, lifespan="off")
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


@contextmanager
def running(rate_tps: float) -> Iterator[str]:
    """The server as a process of its own; gives its address."""
    command = [sys.executable, __file__, "--serve", str(rate_tps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


# ---------------------------------------------------------------- the client's side


def measure(rate_tps: float, tokens: int) -> Accuracy:
    """Stream so many tokens at this rate and compare. A short stream comes first, so that both sides are warm."""
    payload: dict[str, Any] = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True}
    with running(rate_tps) as url, Client(url) as client:
        client.chat({**payload, "max_tokens": 10}, turn_index=0)
        cpu_s = time.thread_time()
        seen = client.chat({**payload, "max_tokens": tokens}, turn_index=1)
        cpu_s = time.thread_time() - cpu_s
        sent_ns: list[int] = client.get_json("/sent")
    plain = seen.timings  # of plain decoding: the first token comes from prefill, before the timed decodes
    if seen.error_type is not None or plain is None or seen.usage is None:
        raise RuntimeError(f"the stream failed: {seen.error_type}: {seen.error}")
    if seen.end_ns is None or seen.first_token_ns is None:
        raise RuntimeError("the stream held no text")
    output_tokens = int(seen.usage["completion_tokens"])
    tpot_ms = metrics.tpot_ms(seen, output_tokens)
    arrived_ns = [seen.first_token_ns]
    for gap_ms in seen.chunk_gaps_ms:
        arrived_ns.append(arrived_ns[-1] + round(gap_ms * 1e6))
    lags_us = sorted((arrived - sent) / 1e3 for arrived, sent in zip(arrived_ns, sent_ns, strict=True))
    return Accuracy(
        asked_tps=rate_tps,
        timings_tps=1000 * (plain["predicted_n"] - 1) / plain["predicted_ms"],
        sent_tps=(len(sent_ns) - 1) * 1e9 / (sent_ns[-1] - sent_ns[0]),
        seen_tps=1000 / tpot_ms if tpot_ms else 0.0,
        tokens=output_tokens,
        chunks=seen.chunks,
        core_share=cpu_s * 1e9 / (seen.end_ns - seen.send_ns),
        lag_min_us=lags_us[0],
        lag_median_us=lags_us[len(lags_us) // 2],
        lag_max_us=lags_us[-1],
    )


def table(rows: Sequence[Accuracy]) -> str:
    """The results as text."""
    lines = [
        f"{'asked':>6} {'timings':>10} {'sent':>10} {'client':>10} {'of timings':>11} "
        f"{'of sent':>9} {'core':>7} {'lag median':>11} {'lag max':>11}"
    ]
    for row in rows:
        lines.append(
            f"{row.asked_tps:6.0f} {row.timings_tps:10.3f} {row.sent_tps:10.3f} {row.seen_tps:10.3f} "
            f"{row.timings_error:+11.4%} {row.error:+9.4%} {row.core_share:7.2%} {row.lag_median_us:8.0f} µs "
            f"{row.lag_max_us:8.0f} µs{'' if row.holds else '   beyond the limits'}"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each stream")
    parser.add_argument("--json", action="store_true", help="print one JSON object per rate instead of the table")
    parser.add_argument("--serve", type=float, metavar="TPS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    rows = [measure(rate, max(20, round(rate * options.seconds))) for rate in RATES_TPS]
    if options.json:
        for row in rows:
            sys.stdout.write(json.dumps({"error": row.error, **{n: getattr(row, n) for n in row.__slots__}}) + "\n")
    else:
        sys.stdout.write(table(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
