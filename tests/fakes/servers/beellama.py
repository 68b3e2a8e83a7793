"""A process that poses as BeeLlama's llama-server of one dialect: flags, refusals, log lines, timings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from fakes.servers.llama_family import Option, check_model, help_text, parse
from fakes.servers.stub import Stub, as_json, die, log, prometheus, text_chunks

_PLAIN_KV = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_TURBO = ("turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq")
_KVARN = ("kvarn2", "kvarn3", "kvarn4", "kvarn5", "kvarn6", "kvarn8")
KV = {
    "A1": _PLAIN_KV + _TURBO,
    "A2": (*_PLAIN_KV, "q6_0", *_TURBO),
    "B1": (*_PLAIN_KV, "q6_0", "q6_1", "q3_0", "q2_0", *_KVARN),
    "B2": (*_PLAIN_KV, "q6_0", "q6_1", "q3_0", "q2_0", *_KVARN),
}
VERSION = {
    "A1": "version: 9311 (47ad9b430)\nbuilt with cc for x86_64-linux-gnu",
    "A2": "version: 9799 (1f00ab2c3)\nbuilt with cc for x86_64-linux-gnu",
    "B1": "version: 10814 (9b9277f73)\nbuilt with cc for x86_64-linux-gnu",
    "B2": "version: 0.6.0-dev (build 11201, commit 036927a)\nbuilt with cc for x86_64-linux-gnu",
}
STEPS, ACCEPTED, DRAFTED, TOKENS, DECODE_MS = 9, 15, 63, 25, 400.0
"""Each answer: 25 tokens, the first from prefill, 24 = 9 steps + 15 accepted drafts, 9 × 7 proposed."""


def options(dialect: str) -> tuple[Option, ...]:
    old = dialect.startswith("A")
    draft_kv = KV[dialect] if old else tuple(kind for kind in KV[dialect] if dialect == "B2" or kind not in _KVARN)
    found = [
        Option("-m,    --model", "FNAME", env="LLAMA_ARG_MODEL"),
        Option("--host", "HOST"),
        Option("--port", "PORT"),
        Option("-c,    --ctx-size", "N", env="LLAMA_ARG_CTX_SIZE"),
        Option("-np,   --parallel", "N"),
        Option("-b,    --batch-size", "N"),
        Option("-ub,   --ubatch-size", "N"),
        Option("-fit,  --fit", "[on|off]"),
        Option("-cram, --cache-ram", "N"),
        Option("-fa,   --flash-attn", "[on|off|auto]", allowed=("on", "off", "auto")),
        Option("-ctk,  --cache-type-k", "TYPE", allowed=KV[dialect], env="LLAMA_ARG_CACHE_TYPE_K"),
        Option("-ctv,  --cache-type-v", "TYPE", allowed=KV[dialect]),
        Option("-ngl,  --gpu-layers, --n-gpu-layers", "N"),
        Option("-sm,   --split-mode", "{none,layer,row,tensor}"),
        Option("-ts,   --tensor-split", "N0,N1,N2,..."),
        Option("--log-colors", "[on|off|auto]"),
        Option("--log-prefix"),
        Option("--log-timestamps"),
        Option("-lv,   --verbosity, --log-verbosity", "N"),
        Option("--metrics"),
        Option("--offline"),
        Option("--reasoning-loop-guard", "[off|force-close|stop]"),
        Option("--chat-template-file", "JINJA"),
        Option("-md,   --model-draft, --spec-draft-model", "FNAME"),
        Option("--spec-draft-ngl", "N"),
        Option("--spec-draft-device", "DEV"),
        Option("--spec-draft-n-max", "N"),
        Option("--spec-draft-n-min", "N"),
        Option("--spec-draft-p-min", "P"),
        Option("--spec-draft-type-k", "TYPE", allowed=draft_kv),
        Option("--spec-draft-type-v", "TYPE", allowed=draft_kv),
        Option("--spec-dm-profit-min", "P"),
        Option("--spec-dm-profit-raise-margin", "P"),
        Option("--spec-dm-profit-lower-margin", "P"),
        Option("--spec-dm-profit-ewma-alpha", "P"),
        Option("--spec-dm-profit-min-samples", "N"),
        Option("--spec-dm-profit-baseline-interval", "N"),
    ]
    if old:
        types = "none,ngram-cache,ngram-simple,suffix,copyspec,recycle,dflash"
        found += [
            Option("--spec-type", types, allowed=tuple(types.split(","))),
            Option("--spec-dm-controller", "[profit|fringe]", allowed=("profit", "fringe")),
            Option("--spec-dm-adaptive"),
            Option("--no-spec-dm-adaptive"),
            Option("--spec-dflash-cross-ctx", "N"),
            Option("--spec-branch-budget", "N"),
            Option("--spec-draft-top-k", "N"),
            Option("--spec-draft-p-split", "P"),
            Option("--spec-draft-temp", "T"),
            Option("-cd,   --spec-draft-ctx-size", "N"),
        ]
        found += [Option("--tree-budget", "N"), Option("--draft-topk", "N")] if dialect == "A1" else []
    else:
        types = "none,draft-simple,draft-eagle3,draft-mtp,draft-dflash,ngram-simple"
        found += [
            Option("--spec-type", types, allowed=tuple(types.split(","))),
            Option("--spec-dm-controller", "[profit|off]", allowed=("profit", "off")),
            Option("--kv-tail-tokens", "N"),
            Option("--draft, --draft-n, --draft-max", "N", removed=True),
            Option("--spec-draft-ctx-size", "N", removed=True),
        ]
        found += [Option("--spec-draft-ubatch-size", "N")] if dialect == "B2" else []
    return tuple(found)


class Model:
    """What the server counts over its life."""

    def __init__(self, dialect: str, given: dict[str, str]) -> None:
        self.dialect, self.given, self.requests = dialect, given, 0
        self.speculative = "--spec-draft-model" in given

    def start_lines(self) -> list[str]:
        kinds = self.given.get("--cache-type-k", "f16"), self.given.get("--cache-type-v", "f16")
        lines = [
            "0.00.100.000 I load_tensors:        CUDA0 model buffer size =   900.00 MiB",
            "0.00.200.000 I llama_kv_cache:      CUDA0 KV buffer size =   180.00 MiB",
            f"0.00.200.100 I llama_kv_cache: size =  180.00 MiB (  8192 cells,  30 layers,  1/1 seqs), "
            f"K ({kinds[0]}):   90.00 MiB, V ({kinds[1]}):   90.00 MiB",
            "0.00.300.000 I llama_context:      CUDA0 compute buffer size =   120.50 MiB",
        ]
        depth = int(self.given.get("--spec-draft-n-max", "16" if self.dialect.startswith("A") else "15"))
        if self.speculative and self.dialect.startswith("A"):
            cross = self.given.get("--spec-dflash-cross-ctx", "512")
            contract = f"dflash: contract ok: block_size=16 mask_token=7 target_layer_ids=1,2 cross_ctx={cross}"
            lines.append(f"0.00.400.000 I {contract}")
        elif self.speculative:
            lines.append("0.00.400.000 I spec common_specu: adding speculative implementation 'draft-dflash'")
            minimum, p_min = self.given.get("--spec-draft-n-min", "0"), float(self.given.get("--spec-draft-p-min", "0"))
            lines.append(f"0.00.400.100 I spec common_specu: - n_max={depth}, n_min={minimum}, p_min={p_min:.2f}")
            if depth > 15:
                lines.append(
                    f"0.00.400.200 W spec common_specu: requested draft size (n_max={depth}, n_min={minimum}) exceeds "
                    "the trained block size 16 -- clamping to 15"
                )
        return lines

    def timings(self) -> dict[str, Any]:
        found = {
            "cache_n": 10, "prompt_n": 20, "prompt_ms": 100.0, "predicted_n": TOKENS, "predicted_ms": DECODE_MS,
            "predicted_per_second": 62.5,
        }  # fmt: skip
        return found | ({"draft_n": DRAFTED, "draft_n_accepted": ACCEPTED} if self.speculative else {})

    def chat(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.requests += 1
        identifier = f"chatcmpl-{self.requests}"
        for line in self.request_lines():
            log(line)
        yield from text_chunks(identifier, TOKENS)
        usage = {"prompt_tokens": 30, "completion_tokens": TOKENS, "total_tokens": 55}
        yield {"id": identifier, "choices": [], "usage": usage, "timings": self.timings()}

    def request_lines(self) -> list[str]:
        task = self.requests * 40
        stamp = f"0.{self.requests:02d}.500.000 I slot print_timing: id  0 | task {task} | "
        rows = [
            "prompt eval time =     100.00 ms /    20 tokens (    5.00 ms per token,   200.00 tokens per second)",
            f"       eval time =     {DECODE_MS:.2f} ms /    {TOKENS} tokens (   16.00 ms per token, 62.50 t/s)",
            "      total time =     500.00 ms /    45 tokens",
        ]
        rate = "draft acceptance rate" if self.dialect == "A1" else "draft acceptance"
        if self.speculative:
            rows.append(f"{rate} = 0.23810 (   {ACCEPTED} accepted /    {DRAFTED} generated)")
        block = [stamp, *rows] if self.dialect == "A1" else [stamp + row for row in rows]
        return block + (self.statistics_lines() if self.speculative else [])

    def statistics_lines(self) -> list[str]:
        n = self.requests
        name = "dflash" if self.dialect.startswith("A") else "draft-dflash"
        return [
            f"spec common_specu: statistics {name:>16}: #calls(b,g,a) = {n:>4} {n * STEPS:>6} {n * STEPS:>6}, "
            f"#gen drafts = {n * STEPS:>6}, #acc drafts = {n * 5:>5}, #gen tokens = {n * DRAFTED:>6}, "
            f"#acc tokens = {n * ACCEPTED:>5}, dur(b,g,a) = 0.005, {n * 90.0:.3f}, 0.009 ms"
        ]

    def pages(self) -> dict[str, Any]:
        slots = [{"id": 0, "speculative": self.speculative, "params": {}}]
        return {
            "/health": lambda: as_json({"status": "ok"}),
            "/props": lambda: as_json({"build_info": "b1-x", "default_generation_settings": {"n_ctx": 8192}}),
            "/slots": lambda: as_json(slots),
            "/v1/models": lambda: as_json({"data": [{"id": "model", "owned_by": "llamacpp"}]}),
            "/metrics": self.metrics,
        }

    def metrics(self) -> tuple[int, str, str]:
        counters = {"llamacpp:tokens_predicted_total": float(self.requests * TOKENS)}
        if self.speculative and self.dialect == "B2":
            counters["llamacpp:spec_decode_num_drafts_total"] = float(self.requests * STEPS)
        return prometheus(counters)


def main(arguments: list[str], argv: list[str]) -> NoReturn:
    dialect = arguments[0]
    if argv == ["--version"]:
        die(VERSION[dialect], 0)
    known = options(dialect)
    if argv == ["--help"]:
        die(help_text(known), 0, out=True)
    given = parse(known, argv)
    check_model(given)
    model = Model(dialect, given)
    for line in model.start_lines():
        log(line)
    host, port = given.get("--host", "127.0.0.1"), int(given.get("--port", "8080"))
    stub = Stub(host, port, model.pages(), model.chat)
    if stub.server is None:
        log(f"srv         start: couldn't bind HTTP server socket, hostname: {host}, port: {port}")
        die("srv  main: exiting due to HTTP server error", 1)
    log("main: model loaded")
    stub.run(f"main: server is listening on http://{host}:{port}")
