"""A process that poses as the `vllm` script of one version: version, help, refusals, metrics object and counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from fakes.servers.stub import Stub, as_json, die, log, text_chunks

CONFIG_KEYS = {
    "method", "model", "num_speculative_tokens", "attention_backend", "kv_cache_dtype", "draft_tensor_parallel_size",
    "draft_sample_method", "rejection_sample_method",
}  # fmt: skip
VALUES = (
    "--host", "--port", "--max-model-len", "--speculative-config", "--attention-backend", "--kv-cache-dtype",
    "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization", "--block-size", "--served-model-name",
    "--tensor-parallel-size", "--seed", "--tool-call-parser", "--reasoning-parser",
)  # fmt: skip
SWITCHES = (
    "--enforce-eager", "--async-scheduling", "--no-enable-prefix-caching", "--enable-prompt-tokens-details",
    "--language-model-only",
)  # fmt: skip
TOKENS, STEPS, DEPTH, HISTOGRAM = 25, 9, 7, [3, 2, 2, 1, 1, 0, 0, 0]
ACCEPTED = sum(index * value for index, value in enumerate(HISTOGRAM))
"""3·0 + 2·1 + 2·2 + 1·3 + 1·4 = 13 accepted of 9 · 7 drafted."""


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def switches(version: str) -> tuple[str, ...]:
    return SWITCHES + (("--enable-per-request-metrics",) if release(version) >= (0, 25, 1) else ())


def values(version: str) -> tuple[str, ...]:
    return VALUES + (("--per-request-spec-decode-metrics",) if release(version) >= (0, 30, 0) else ())


def parse(version: str, argv: list[str]) -> dict[str, str]:
    given, words = {"model": ""}, list(argv)
    while words:
        word = words.pop(0)
        if word in switches(version):
            given[word] = ""
        elif word in values(version) and words:
            given[word] = words.pop(0)
        elif not word.startswith("-") and not given["model"]:
            given["model"] = word
        else:
            die(f"usage: vllm serve [model_tag] [options]\nvllm: error: unrecognized arguments: {word}", 2)
    return given


def speculation(given: dict[str, str]) -> dict[str, Any] | None:
    if "--speculative-config" not in given:
        return None
    config: dict[str, Any] = json.loads(given["--speculative-config"])
    for key in config:
        if key not in CONFIG_KEYS:
            log("(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for S")
            die(f"(APIServer pid=7) {key}\n  Unexpected keyword argument", 1)
    if "num_speculative_tokens" not in config:
        die("(APIServer pid=7) ValueError: `num_speculative_tokens` was not provided", 1)
    return config


class Model:
    def __init__(self, version: str, given: dict[str, str]) -> None:
        self.version, self.given, self.config, self.requests = version, given, speculation(given), 0

    def chat(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.requests += 1
        identifier = f"chatcmpl-{self.requests}"
        yield from text_chunks(identifier, TOKENS)
        usage = {"prompt_tokens": 30, "completion_tokens": TOKENS, "prompt_tokens_details": {"cached_tokens": 10}}
        last: dict[str, Any] = {"id": identifier, "choices": [], "usage": usage}
        if "--enable-per-request-metrics" in self.given:
            last["metrics"] = {"time_to_first_token_ms": 80.0, "generation_time_ms": 300.0, "tokens_per_second": 65.8}
            if self.config and "--per-request-spec-decode-metrics" in self.given:
                last["metrics"]["speculative_decoding"] = {
                    "num_spec_steps": STEPS, "num_draft_tokens": STEPS * DEPTH, "num_accepted_draft_tokens": ACCEPTED,
                    "acceptance_histogram": HISTOGRAM, "mean_acceptance_length": 1 + ACCEPTED / STEPS,
                }  # fmt: skip
        if self.config:
            log("(APIServer pid=7) INFO 01-02 03:04:05 [m] SpecDecoding metrics: Mean acceptance length: 2.44")
        yield last

    def metrics(self) -> tuple[int, str, str]:
        n, labels = self.requests, '{engine="0",model_name="m"}'
        rows = {
            "generation_tokens_total": n * TOKENS, "request_decode_time_seconds_sum": n * 0.3,
            "request_decode_time_seconds_count": n, "request_prefill_time_seconds_sum": n * 0.08,
            "request_prefill_time_seconds_count": n,
        }  # fmt: skip
        lines = [f"vllm:{name}{labels} {value}" for name, value in rows.items()]
        if self.config:
            counts = {"num_drafts": STEPS, "num_draft_tokens": STEPS * DEPTH, "num_accepted_tokens": ACCEPTED}
            lines += [f"vllm:spec_decode_{name}_total{labels} {n * value}" for name, value in counts.items()]
            for position in range(DEPTH):
                reached = sum(HISTOGRAM[position + 1 :])
                own = labels[:-1] + f',position="{position}"}}'
                lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{own} {n * reached}")
        return 200, "text/plain", "# HELP x\n" + "\n".join(lines) + "\n"

    def pages(self) -> dict[str, Any]:
        return {
            "/health": lambda: (200, "text/plain", ""),
            "/version": lambda: as_json({"version": self.version}),
            "/v1/models": lambda: as_json({"data": [{"id": "m", "owned_by": "vllm"}]}),
            "/metrics": self.metrics,
        }


def main(arguments: list[str], argv: list[str]) -> NoReturn:
    version = arguments[0]
    if argv == ["--version"]:
        die(f"INFO 01-02 03:04:05 [importing.py:17] Triton is installed.\n{version}", 0, out=True)
    if argv[:1] != ["serve"]:
        die("usage: vllm {serve,bench}\nvllm: error: argument subparser: invalid choice", 2)
    if argv[1:] in (["--help"], ["--help=all"]):
        rows = [f"  {flag} VALUE   sets it" for flag in values(version)] + [f"  {flag}" for flag in switches(version)]
        die("usage: vllm serve [model_tag] [options]\n\noptions:\n" + "\n".join(rows), 0, out=True)
    given = parse(version, argv[1:])
    model = Model(version, given)
    log("(EngineCore pid=8) INFO [gpu_model_runner.py:1] Model loading took 2.5 GiB memory and 1.25 seconds")
    log("(EngineCore pid=8) INFO [gpu_worker.py:1] Available KV cache memory: 4.00 GiB")
    if model.config:
        log("(EngineCore pid=8) INFO Loaded DFlash mask embedding from the draft")
        depth = int(model.config["num_speculative_tokens"])
        room = int(given.get("--max-num-batched-tokens", "8192")) // (depth + 1)
        if room < int(given.get("--max-num-seqs", "1")):
            log(f"WARNING draft pass needs {depth + 1} query tokens. Overriding max_num_active_seqs to {room}")
    stub = Stub(given["--host"], int(given["--port"]), model.pages(), model.chat)
    if stub.server is None:
        die("(APIServer pid=7) OSError: [Errno 98] Address already in use".lower(), 1)
    log("(APIServer pid=7) INFO:     Application startup complete.")
    stub.run(f"(APIServer pid=7) INFO Starting vLLM server on http://{given['--host']}:{given['--port']}")
