"""A process that poses as a python with SGLang of one version: import, help, refusals, details and counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from fakes.servers.stub import Stub, as_json, die, log, text_chunks

VALUES = (
    "--model-path", "--host", "--port", "--context-length", "--speculative-algorithm", "--speculative-num-draft-tokens",
    "--speculative-draft-model-path", "--speculative-draft-attention-backend", "--speculative-draft-model-quantization",
    "--kv-cache-dtype", "--attention-backend", "--max-running-requests", "--mem-fraction-static", "--page-size",
    "--cuda-graph-max-bs", "--chunked-prefill-size", "--served-model-name", "--tp-size", "--decode-log-interval",
    "--random-seed", "--tool-call-parser", "--reasoning-parser",
)  # fmt: skip
SWITCHES = ("--enable-metrics", "--enable-cache-report", "--disable-radix-cache")
TOKENS, STEPS, HISTOGRAM = 25, 9, [3, 2, 2, 1, 1, 0, 0, 0]
ACCEPTED = sum(index * value for index, value in enumerate(HISTOGRAM))


def newer(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:3]) >= (0, 5, 19)


def values(version: str) -> tuple[str, ...]:
    window = "--speculative-draft-window-size" if newer(version) else "--speculative-dflash-draft-window-size"
    return (*VALUES, window, *(("--speculative-draft-kv-cache-dtype",) if newer(version) else ()))


def switches(version: str) -> tuple[str, ...]:
    return SWITCHES + (("--speculative-use-block-verification",) if newer(version) else ())


def parse(version: str, argv: list[str]) -> dict[str, str]:
    given, words = {}, list(argv)
    while words:
        word = words.pop(0)
        if word in switches(version):
            given[word] = ""
        elif word in values(version) and words:
            given[word] = words.pop(0)
        else:
            die(f"usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: {word}", 2)
    return given


class Model:
    def __init__(self, version: str, given: dict[str, str]) -> None:
        self.version, self.given, self.requests = version, given, 0
        self.speculative = given.get("--speculative-algorithm") == "DFLASH"
        self.block = int(given.get("--speculative-num-draft-tokens", "8"))

    def chat(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.requests += 1
        identifier = f"{self.requests:032x}"
        yield from text_chunks(identifier, TOKENS)
        if self.speculative and newer(self.version) and request.get("return_spec_tokens_details"):
            details = {
                "spec_verify_ct": STEPS, "spec_num_correct_drafts": ACCEPTED,
                "spec_num_proposed_drafts": STEPS * (self.block - 1), "spec_correct_drafts_histogram": HISTOGRAM,
                "spec_accept_length": TOKENS / STEPS,
            }  # fmt: skip
            yield {"id": identifier, "choices": [], "sglext": {"spec_tokens_details": details}}
        log("[2026-01-02 03:04:05] Decode batch, #running-req: 1, #token: 60, accept len: 2.44, gen throughput: 80.0")
        usage = {"prompt_tokens": 30, "completion_tokens": TOKENS, "prompt_tokens_details": {"cached_tokens": 10}}
        yield {"id": identifier, "choices": [], "usage": usage}

    def metrics(self) -> tuple[int, str, str]:
        labels, n = '{model_name="m"}', self.requests
        lines = [f"sglang:generation_tokens_total{labels} {n * TOKENS}"]
        lines += [f"sglang:spec_verify_calls_total{labels} {n * STEPS}"] if self.speculative else []
        return 200, "text/plain", "\n".join(lines) + "\n"

    def pages(self) -> dict[str, Any]:
        return {
            "/health": lambda: (200, "text/plain", ""),
            "/server_info": lambda: as_json({"version": self.version, "internal_states": [{}]}),
            "/v1/models": lambda: as_json({"data": [{"id": "m", "owned_by": "sglang"}]}),
            "/metrics": self.metrics,
        }


def main(arguments: list[str], argv: list[str]) -> NoReturn:
    version = arguments[0]
    if argv[:1] == ["-c"]:
        if version == "none":
            die("ModuleNotFoundError: No module named 'sglang'", 1)
        die(version, 0, out=True)
    if argv[:2] != ["-m", "sglang.launch_server"]:
        die(f"unexpected words {argv}", 2)
    if argv[2:] == ["--help"]:
        rows = [f"  {flag} {flag[2:].upper()}" for flag in values(version)] + [
            f"  {flag}" for flag in switches(version)
        ]
        die("usage: launch_server.py [-h]\n\noptions:\n" + "\n".join(rows), 0, out=True)
    given = parse(version, argv[2:])
    model = Model(version, given)
    log("[2026-01-02 03:04:05] Load weight end. type=Model, avail mem=10.00 GB, mem usage=2.50 GB.")
    log("[2026-01-02 03:04:05] KV Cache is allocated. #tokens: 8192, K size: 1.00 GB, V size: 1.00 GB")
    if model.speculative:
        backend = given.get("--speculative-draft-attention-backend", "flashinfer")
        window = given.get("--speculative-draft-window-size", "None")
        if backend == "trtllm_mha":
            draft = "DFLASH draft worker"
            log(f"{draft} does not support attention_backend 'trtllm_mha'. Falling back to 'flashinfer'")
            backend = "flashinfer"
        log(
            f"Initialized DFLASH draft runner. attention_backend={backend}, model=DFlashDraftModel, "
            f"block_size={model.block}, draft_window_size={window}, compact_cache=False"
        )
    stub = Stub(given["--host"], int(given["--port"]), model.pages(), model.chat)
    if stub.server is None:
        die("ERROR: [Errno 98] error while attempting to bind: address already in use", 1)
    stub.run("[2026-01-02 03:04:05] The server is fired up and ready to roll!")
