"""How fast the emulator is: `python benchmarks/emulator_speed.py [--turns 10000]`.

Measures emulated turns a second in this process and over HTTP (virtual clock), and the start of the server process.
Times are processor seconds of one core, so that a busy machine matters little; wall time is printed beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from dflash_sweep.emulator import model
from dflash_sweep.records import Knobs

KNOBS: Knobs = {
    "budget": 32, "proposal_temp": 0.7, "target_feat_ctx": 128, "cache_type_k": "q4_0", "cache_type_v": "q4_0",
    "verifier": "exact", "n_batch": 512,
}  # fmt: skip
TOKENS = 128


def in_process(turns: int) -> tuple[float, float]:
    """(processor seconds, wall seconds) of so many turns of 128 tokens."""
    cpu, wall = time.process_time(), time.perf_counter()
    done = 0
    while done < turns:
        done += len(model.simulate(KNOBS, seed=done, turns=min(50, turns - done)).turns)
    return time.process_time() - cpu, time.perf_counter() - wall


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[httpx.Client, float]]:
    """A server process and the wall seconds until it answered /health."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "dflash_sweep.emulator", "--port", str(port), "--speculative-mode", "ddtree"]
    argv += ["-md", "d", "--parallel", "1", "--ddtree-budget", "32", "-ctk", "q4_0", "-ctv", "q4_0", "-c", "32768"]
    env = {"PATH": os.environ["PATH"], "LLAMA_DDTREE_VERIFIER": "exact", "LLAMA_DDTREE_PROPOSAL_TEMP": "0.7"}
    start = time.perf_counter()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=env)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/health").status_code == 200:
                        break
                time.sleep(0.005)
            yield client, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def over_http(turns: int) -> tuple[float, float, float]:
    """(server's processor seconds, wall seconds, start-up seconds) of so many streamed turns of 128 tokens."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (client, started_s):
        wall = time.perf_counter()
        for index in range(turns):
            messages = [
                {"role": "system", "content": "You help with code. " * 100},
                {"role": "user", "content": f"turn {index}"},
            ]
            body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True,
                    "stream_options": {"include_usage": True}}  # fmt: skip
            client.post("/v1/chat/completions", json=body).raise_for_status()
        wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--http-turns", type=int, default=2_000)
    options = parser.parse_args()
    cpu, wall = in_process(options.turns)
    http_cpu, http_wall, started = over_http(options.http_turns)
    scale = 10_000 / options.http_turns
    result = {
        "tokens_per_turn": TOKENS,
        "in_process_s_per_10000_turns": round(cpu * 10_000 / options.turns, 1),
        "in_process_wall_s_per_10000_turns": round(wall * 10_000 / options.turns, 1),
        "http_server_s_per_10000_turns": round(http_cpu * scale, 1),
        "http_wall_s_per_10000_turns": round(http_wall * scale, 1),
        "start_s": round(started, 2),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
