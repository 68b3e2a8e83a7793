"""The real clock keeps its rate whatever each wait costs: with a clock and a sleep that the test holds."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from importlib import resources
from typing import Any

import httpx
import pytest

from dflash_sweep.emulator import devices, launch
from dflash_sweep.emulator.answers import Server
from dflash_sweep.emulator.app import App
from dflash_sweep.emulator.pace import Pace


class LateClock:
    """A clock that moves by sleeping only, and a sleep that ends late: an event loop's millisecond, and some work."""

    def __init__(self, late_s: float, work_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.late_s, self.work_s = late_s, work_s
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += self.work_s + (seconds + self.late_s if seconds > 0 else 0.0)

    def pace(self) -> Pace:
        return Pace(self.time, self.sleep)


def test_lateness_does_not_add_up_and_is_caught_up_with() -> None:
    clock = LateClock(late_s=0.003)
    pace = clock.pace()
    moments = []

    async def five() -> None:
        for _ in range(5):
            await pace.wait(0.002)
            moments.append(round(clock.now_s - 100.0, 6))

    asyncio.run(five())
    # Due at 2, 4, 6, 8, 10 ms. The first ends at 2 + 3 = 5; 4 is over by then; 1 ms is left to 6, which ends at 9; 8 is
    # over; 1 ms is left to 10, which ends at 13.
    assert moments == [0.005, 0.005, 0.009, 0.009, 0.013]
    assert clock.slept == pytest.approx([0.002, 0.0, 0.001, 0.0, 0.001])


def app_at(rate_tps: float, clock: LateClock, monkeypatch: pytest.MonkeyPatch) -> App:
    """The emulator on a card that decodes plainly at this rate, noise-free, with this clock."""
    tables = tomllib.loads(resources.files("dflash_sweep.emulator").joinpath("devices/rtx4090.toml").read_text("utf-8"))
    tables["plain"] = {"base_ms": 1000 / rate_tps, "per_kctx_ms": 0.0}
    card = devices.card_from("rtx4090", tables)
    monkeypatch.setattr(devices, "load", lambda key: card)
    words = ["-m", "any.gguf", "-c", "8192", "--emulator-clock", "real", "--emulator-noise", "0"]
    return App(Server.start(launch.read(words, {})), log_fd=_null(), pace=clock.pace)


def _null() -> int:
    return os.open(os.devnull, os.O_WRONLY)


async def ask(app: App, **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 600, "ignore_eos": True, **fields}
    transport = httpx.ASGITransport(app=app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://emulator") as client:
        return (await client.post("/v1/chat/completions", json=body)).text


@pytest.mark.parametrize("rate_tps", [30.0, 300.0, 3000.0])
def test_a_stream_takes_the_time_that_its_timings_say(rate_tps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LateClock(late_s=0.001, work_s=0.0002)
    text = asyncio.run(ask(app_at(rate_tps, clock, monkeypatch), stream=True))
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    timings = events[-1]["timings"]
    assert timings["predicted_n"] == 600
    assert timings["predicted_ms"] == pytest.approx(599 * 1000 / rate_tps, abs=0.001)
    took_ms = 1000 * (clock.now_s - 100.0)
    # Late by one sleep and the work of the last few events, not by 600 of them (which would be 720 ms).
    assert 0 <= took_ms - timings["prompt_ms"] - timings["predicted_ms"] < 3


def test_a_whole_answer_takes_the_time_that_its_timings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LateClock(late_s=0.001)
    timings = json.loads(asyncio.run(ask(app_at(300.0, clock, monkeypatch))))["timings"]
    took_ms = 1000 * (clock.now_s - 100.0)
    assert took_ms == pytest.approx(timings["prompt_ms"] + timings["predicted_ms"] + 1, abs=0.01)


def test_the_real_clock_waits_no_less_than_it_says() -> None:
    async def two() -> float:
        pace = Pace()
        start = asyncio.get_running_loop().time()
        await pace.wait(0.0005)
        await pace.wait(0.003)
        return asyncio.get_running_loop().time() - start

    assert asyncio.run(two()) >= 0.0033
