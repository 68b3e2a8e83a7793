"""A process that poses as a Lucebox server of one generation: usage text, refusals, banner, request lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from fakes.servers.stub import Stub, as_json, die, log, text_chunks

_VALUE_G1 = (
    "--draft", "--ddtree-budget", "--fa-window", "--max-ctx", "--cache-type-k", "--cache-type-v", "--draft-swa",
    "--chunk", "--prefix-cache-slots",
    "--prefill-compression", "--prefill-keep-ratio", "--prefill-drafter", "--prefill-threshold",
    "--port", "--host", "--model-name", "--target-device", "--draft-device", "--chat-template-file",
)  # fmt: skip
_VALUE_G2 = (*_VALUE_G1, "--verify-width", "--prefill-cache-slots", "--draft-residency", "--kvflash")
_VALUE_G3 = (*_VALUE_G2, "--ddtree-tau", "--specla-top-k", "--draft-block-size")
VALUES = {"G1": _VALUE_G1, "G2": _VALUE_G2, "G3": _VALUE_G3}
SWITCHES = {
    "G1": ("--ddtree", "--no-cors", "--lazy-draft", "--peer-access"),
    "G2": ("--ddtree", "--no-cors", "--lazy-draft", "--peer-access", "--fast-rollback", "--no-fast-rollback"),
    "G3": ("--ddtree", "--no-cors", "--lazy-draft", "--fast-rollback", "--no-fast-rollback", "--specla"),
}
G0 = (
    "--host", "--port", "--target", "--draft", "--bin", "--budget", "--verify-mode", "--max-ctx", "--cache-type-k",
    "--cache-type-v", "--fa-window", "--prefix-cache-slots", "--prefill-compression", "--prefill-keep-ratio",
)  # fmt: skip
G0_SWITCHES = ("--kv-f16", "--lazy-draft", "--verbose-daemon")
TOKENS, STEPS, SECONDS = 40, 10, 0.500
"""Each answer: 40 tokens in 10 steps and 0.5 s, acceptance length 4."""


def usage(generation: str) -> str:
    lines = ["usage: dflash_server <target.gguf> [options]", ""]
    lines += [f"  {flag} <value>   what it sets" for flag in VALUES[generation]]
    lines += [f"  {flag}   switches it on" for flag in SWITCHES[generation]]
    return "\n".join(lines)


def parse(generation: str, argv: list[str]) -> dict[str, str]:
    """Flags as the server reads them: the target first, values apart from flags, exit code 2 for anything else."""
    if not argv or argv[0].startswith("-"):
        die(usage(generation), 2)
    given, words = {"target": argv[0]}, argv[1:]
    while words:
        word = words.pop(0)
        if word in SWITCHES[generation]:
            given[word] = ""
        elif word in VALUES[generation] and words:
            given[word] = words.pop(0)
        else:
            die(f"[server] unknown option: {word}\n{usage(generation)}", 2)
    return given


def parse_g0(argv: list[str]) -> dict[str, str]:
    """Flags of the Python server: argparse's words and exit code 2."""
    given: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in G0_SWITCHES:
            given[word] = ""
        elif word in G0 and words:
            given[word] = words.pop(0)
        else:
            die(f"usage: server.py [-h]\nserver.py: error: unrecognized arguments: {word}", 2)
    given["target"] = given.get("--target", "")
    return given


class Model:
    def __init__(self, generation: str, given: dict[str, str]) -> None:
        self.generation, self.given, self.requests = generation, given, 0
        self.speculative = "--draft" in given
        self.tree = self.speculative and generation not in ("G0", "G1") and "--ddtree" in given
        self.tree = self.tree and "--no-fast-rollback" not in given
        prefix = "LUCE" if generation == "G3" else "DFLASH"
        self.diagnostics = os.environ.get(f"{prefix}_SINGLE_CHAIN_ROLLBACK_DIAG") == "1"

    def banner(self) -> list[str]:
        given = self.given
        rows = {
            "model": given["target"],
            "draft": given.get("--draft", "(none)"),
            "max_ctx": given.get("--max-ctx", "8192"),
            "fa_window": given.get("--fa-window", "0"),
            "ddtree": "ON" if "--ddtree" in given else "off",
            "fast_rollback": "off" if "--no-fast-rollback" in given else "ON",
            "ddtree_budget": given.get("--ddtree-budget", "22"),
            "prefix_cache": f"{given.get('--prefix-cache-slots', '32')} slots",
            "cache_type_k": given.get("--cache-type-k", "family default"),
            "cache_type_v": given.get("--cache-type-v", "family default"),
        }
        return [f"[server] │  {key:<16}= {value}" for key, value in rows.items()]

    def chat(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        identifier = f"chatcmpl_{self.requests:016x}"
        self.requests += 1
        yield from text_chunks(identifier, TOKENS)
        for line in self.request_lines(identifier, request):
            log(line)
        usage_ = {"prompt_tokens": 30, "completion_tokens": TOKENS, "total_tokens": 70}
        times = {"prefill_ms": 60.0, "decode_ms": 500.0, "decode_tokens_per_sec": 80.0}
        yield {"id": identifier, "choices": [], "usage": usage_ | {"timings": times}}

    def request_lines(self, identifier: str, request: dict[str, Any]) -> list[str]:
        greedy = request.get("temperature", 1) == 0
        lines = [
            f"[server] chat START {identifier} format=chat stream=true prompt_tokens=30 max_tokens=64 tools=0",
            f"[server] chat CACHE {identifier} restore=false slot=-1 prefix_len=0 effective_prompt=30 pflash=false",
        ]
        if self.generation == "G0":
            lines = self.daemon_lines() if self.speculative else []
        elif self.speculative and greedy:
            lines.append(
                f"[spec-decode] tokens={TOKENS} time={SECONDS:.3f} s speed=80.00 tok/s steps={STEPS} "
                "accepted=40/160 (25.0%) avg_commit=4.00"
            )
            if self.diagnostics:
                hist = ",".join(f"{n}:{0 if self.tree or n != 4 else STEPS}" for n in range(1, 16)) + ",16+:0"
                lines.append(f"[chain-rollback-policy] checkpoint=off threshold=5 legacy_replay=0 accept_hist={hist}")
        else:
            lines.append(f"[ar-decode] tokens={TOKENS} time=1.000 s speed=40.00 tok/s")
        done = f"chat DONE {identifier} ok=true in=30 effective_in=30 out={TOKENS} 0.6s 66.7 tok/s finish=length"
        return [*lines, f"[server] {done} prefill=0.1s decode=0.5s(80.0tok/s) error=- detail=-"]

    def daemon_lines(self) -> list[str]:
        rows = {"draft_compute": 20.0, "draft_logits": 5.0, "verify_compute": 18.0, "accept": 1.0}
        lines = [f"[timing] per-step averages over {STEPS} steps (ms):"]
        lines += [f"  {name:<15}{value:.2f}" for name, value in rows.items()]
        lines += ["  ----- sum     44.00", f"[dflash] generated {TOKENS} tokens in {SECONDS:.3f} s  ->  80.00 tok/s"]
        lines.append(f"[dflash] {STEPS} draft steps, accepted={TOKENS}/160 (25.0% per step), avg commit/step=4.00")
        return [f"  [daemon] {line}" for line in lines]

    def pages(self) -> dict[str, Any]:
        given = self.given
        runtime = {
            "fa_window": int(given.get("--fa-window", "0")),
            "kv_cache_k": given.get("--cache-type-k", "family default"),
            "kv_cache_v": given.get("--cache-type-v", "family default"),
        }
        budget = int(given.get("--ddtree-budget", "22"))
        props = {
            "build_info": "x",
            "runtime": runtime,
            "speculative": {"enabled": True, "ddtree_budget": budget},
            "api": {},
        }
        found = {
            "/health": lambda: as_json({"status": "ok"}),
            "/v1/models": lambda: as_json({"data": [{"id": "dflash", "owned_by": "lucebox"}]}),
        }
        return found | ({} if self.generation in ("G0", "G1") else {"/props": lambda: as_json(props)})


def main(arguments: list[str], argv: list[str]) -> NoReturn:
    generation = arguments[0]
    if generation == "G0" and argv == ["--help"]:
        die("usage: server.py [-h]\n" + "\n".join(f"  {flag} X" for flag in (*G0, *G0_SWITCHES)), 0, out=True)
    given = parse_g0(argv) if generation == "G0" else parse(generation, argv)
    for key in ("target", "--draft"):
        if key in given and not os.path.exists(given[key]):  # noqa: PTH110 a stub starts faster without pathlib
            role = "target" if key == "target" else "draft"
            log(f"{role} load: cannot open {given[key]}")
            die("[server] backend creation failed", 1)
    pair = given.get("--cache-type-k"), given.get("--cache-type-v")
    if pair[0] == "tq3_0" and pair[1] in ("q4_1", "q5_0", "q5_1"):
        log(f"KV pair (K={pair[0]}, V={pair[1]}) not supported by fattn-cuda")
        sys.stderr.flush()
        os.abort()
    model = Model(generation, given)
    for line in model.banner():
        log(line)
    host, port = given.get("--host", "0.0.0.0"), int(given.get("--port", "8080"))
    stub = Stub(host, port, model.pages(), model.chat)
    if stub.server is None:
        die(f"[server] bind({host}:{port}) failed", 1)
    stub.run(f"[server] listening on http://{host}:{port}")
