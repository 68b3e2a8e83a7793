"""vLLM (`method: dflash`). Imports the shared readers of `engines`.

Facts of the released wheels 0.19.1 to 0.33.0: 0.20.0 is the first with DFlash, 0.25.1 the first with a decode clock per
request, 0.30.0 the first with acceptance per request. The dialect names which of these the build has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash_sweep.engines import models, probing, prometheus, timings
from dflash_sweep.engines.base import EngineFacts, LaunchRequest
from dflash_sweep.engines.checks import added_environment, build_name, has_flag, knob_problems, option_values
from dflash_sweep.engines.logtext import number, overlapping, texts
from dflash_sweep.engines.rendering import render
from dflash_sweep.engines.signatures import Phases, advise, first_failure, signature
from dflash_sweep.engines.vllm_knobs import COMMON, CONFIG, KNOBS, OPTIONS, VARIABLES
from dflash_sweep.errors import ConfigError, EngineMissing, FailureKind
from dflash_sweep.records import (
    EngineBuild,
    EngineSettings,
    Exchange,
    Knobs,
    LaunchSpec,
    Measurement,
    ModelFile,
    TurnCounters,
)  # fmt: skip

HOW = "Install it (pip install 'vllm>=0.30' in an environment of its own) and set engine.binary to its vllm script"
PROBE_TIMEOUT_S = 180.0
"""Importing vLLM takes tens of seconds on a cold disk."""

DIALECTS = {
    "counters": "0.20.0 to 0.24: counters around one request at a time",
    "request-clock": "0.25.1 to 0.29: a decode clock per request, acceptance from counters",
    "request-acceptance": "from 0.30.0: decode clock and acceptance per request",
}
FLOOR, QUANTISED_DRAFT = (0, 20, 0), (0, 28, 0)
_K = FailureKind
_SIGNATURES = (
    signature(_K.INVALID_CONFIG, r"error: unrecognized arguments|error: argument |validation errors? for "
              r"|`num_speculative_tokens` was not provided", "vLLM refused the settings"),
    signature(_K.INVALID_CONFIG, r"relaunch with VLLM_USE_V2_MODEL_RUNNER=1", "this draft needs the V2 model runner"),
    signature(_K.INVALID_CONFIG, r"does not have non-causal support|non-causal attention not supported",
              "this attention back end cannot run a DFlash draft (try flash_attn or flex_attention)"),
    signature(_K.LAUNCH_FAILED, r"DFlash drafter expects \d+ concatenated", "draft and target do not fit together"),
    signature(_K.HEALTH_TIMEOUT, r"address already in use", "the port was taken"),
    signature(
        _K.OUT_OF_MEMORY,
        r"No available memory for the cache blocks|To serve at least one request with the models?'?s? max seq len"
        r"|is less than desired GPU memory utilization|not enough GPU memory|CUDA out of memory|OutOfMemoryError",
        "out of memory",
    ),
    signature(_K.CRASHED, r"illegal memory access|Xid 31|device-side assert", "the GPU reported an error"),
    signature(_K.CRASHED, r"EngineCore encountered a|EngineDeadError", "the engine process died"),
    signature(_K.LAUNCH_FAILED, r"EngineCore failed to start|Engine core initialization failed",
              "the engine did not start"),
)  # fmt: skip
_PHASES = Phases(
    ready=re.compile(r"Starting vLLM server on|Application startup complete"),
    prefill=re.compile(r"\"POST /v1/"),
    decode=re.compile(r"Avg generation throughput: (?!0\.0 )|SpecDecoding metrics:"),
)
_ROOT_CAUSE = re.compile(r"^(?:\([^)]*\)\s*)?(?:ERROR [^\]]*\]\s*)?((?:\w+\.)*\w*(?:Error|Exception)): .+")


class VllmEngine:
    """Adapter of `vllm serve`."""

    name = "vllm"
    facts = EngineFacts(
        measurement=Measurement.MEASURED,
        first_token_from_prefill=True,
        needs_draft_model=True,
        metrics_path="/metrics",
        note=(
            "No stage times. The decode clock is the request's own from 0.25.1 on, before that a counter around one "
            "request at a time. Accepted drafts are counted before a stop cuts the answer. All knobs need a new server."
        ),
    )
    knobs = KNOBS
    options = OPTIONS

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Version and switches. Raises EngineMissing: not there, or older than DFlash."""
        binary = probing.find_binary(settings, ("vllm",), HOW)
        said = probing.ask([binary, "--version"], PROBE_TIMEOUT_S)
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?\S*)\s*$", said.text.strip())
        if said.code != 0 or found is None:
            raise EngineMissing(f"{binary} --version failed ({probing.reason(said)}). {HOW}")
        version = found[1]
        if release(version) < FLOOR:
            raise EngineMissing(f"vLLM {version} has no DFlash: 0.20.0 is the first, 0.30.0 is recommended. {HOW}")
        help_ = probing.ask([binary, "serve", "--help=all"], PROBE_TIMEOUT_S)
        if help_.code != 0:
            help_ = probing.ask([binary, "serve", "--help"], PROBE_TIMEOUT_S)
        return EngineBuild(
            engine=self.name,
            version=version,
            binary=binary,
            binary_sha256=probing.binary_sha256(binary),
            dialect=dialect_of(version),
            flags=probing.argparse_help(help_.text).with_values() if help_.code == 0 else frozenset(),
        )

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """The models that are on this machine. Raises EngineMissing: no target named, or the pair does not fit."""
        return models.hub_files(*_names(settings), self.name)

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """What keeps a point from being launched, or makes the server change it."""
        problems = knob_problems(self.knobs, build, knobs)
        target, draft = _names(settings)
        if target is None:
            problems.append("engine.options.model is not set: vllm needs a model directory or a name such as org/model")
        speculative = any(knobs.get(name) is not None for name in _speculative_names())
        draft = str(knobs["draft_model"]) if knobs.get("draft_model") is not None else draft
        if speculative and draft is None:
            problems.append("engine.options.draft_model is not set: speculation needs a DFlash draft")
        if speculative and knobs.get("draft_max") is None:
            problems.append("draft_max is not given: vLLM derives no num_speculative_tokens from a DFlash draft")
        problems += _depth_problems(draft, knobs) + _version_problems(build, knobs, speculative)
        problems += _batch_problems(knobs)
        return tuple(problems)

    def effective_point(self, knobs: Knobs) -> Knobs:
        """All knobs act by themselves; nothing is dead."""
        return dict(knobs)

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """Command line; speculation is one JSON word. A run without it names no draft."""
        settings, build = request.settings, request.build
        options = option_values(self.name, self.options, settings.options)
        target, draft = _names(settings)
        if target is None:
            raise ConfigError("engine.options.model is not set")
        argv = [build.binary, "serve", target, "--host", request.host, "--port", str(request.port)]
        argv += ["--max-model-len", str(settings.n_ctx)]
        if has_flag(build, "--enable-per-request-metrics") and release(build.version) >= (0, 25, 1):
            argv.append("--enable-per-request-metrics")
        if has_flag(build, "--per-request-spec-decode-metrics") and release(build.version) >= (0, 30, 0):
            argv += ["--per-request-spec-decode-metrics", "summary"]
        argv += ["--enable-prompt-tokens-details"] if has_flag(build, "--enable-prompt-tokens-details") else []
        knobs = {name: value for name, value in request.knobs.items() if request.speculative or name in COMMON}
        words, _ = render(self.knobs, {name: value for name, value in knobs.items() if not _in_config(name)})
        argv += words
        if request.speculative:
            argv += ["--speculative-config", _speculative_config(draft, knobs)]
        given = {name: value for name, value in options.items() if name not in ("model", "draft_model")}
        option_words, _ = render(self.options, given)
        env = added_environment(build_name(build), settings.env, VARIABLES)
        return LaunchSpec(argv=(*argv, *option_words, *settings.extra_args), env=env)

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """The model's name, which vLLM requires."""
        options = settings.options
        return {"model": options.get("served_model_name") or _names(settings)[0]}

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """What the log shows beside the echo of the arguments, which proves nothing."""
        shown: Knobs = {}
        for line in texts(log):
            if found := _RUNNING.search(line):
                shown["max_num_seqs"] = int(found[1])
            if _DRAFT_LIVE.search(line):
                shown["speculative"] = True
            if found := _BACKEND.search(line):
                shown.setdefault("attention_backend", found[1].upper())
        return {name: _as_asked(value, knobs.get(name)) for name, value in shown.items()}

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        """One record per exchange from its own `metrics`, else from the counters around it."""
        crowded = overlapping(exchanges)
        return tuple(turn_counters(exchange, index not in crowded) for index, exchange in enumerate(exchanges))

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        """The failure that log and exit code show; for a failed start the first error above vLLM's own summary."""
        found = first_failure(_SIGNATURES, log, exit_code, _PHASES)
        if found is not None and found[0] in (_K.LAUNCH_FAILED, _K.CRASHED):
            cause = next((match[0] for line in texts(log) if (match := _ROOT_CAUSE.match(line.strip()))), None)
            if cause is not None:
                return found[0], f"{found[1]} — first error: {cause[:300]}"
        return advise(found, _K.OUT_OF_MEMORY, "lower n_ctx or max_num_seqs, or raise gpu_memory_utilization")

    def memory_mib(self, log: str) -> dict[str, float]:
        """Weights and KV cache, MiB."""
        found: dict[str, float] = {}
        for line in texts(log):
            for name, pattern in _MEMORY.items():
                match = pattern.search(line)
                value = number(match[1]) if match else None
                if value is not None:
                    found[name] = round(found.get(name, 0.0) + value * 1024.0, 1)
        return found


_MEMORY = {
    "kv": re.compile(r"Available KV cache memory: ([\d.]+) GiB"),
    "model": re.compile(r"Model loading took ([\d.]+) GiB"),
}
_RUNNING = re.compile(r"Overriding max_num_active_seqs\D*(\d+)")
_DRAFT_LIVE = re.compile(r"Loaded DFlash mask embedding|DFlash speculator|SpecDecoding metrics:")
_BACKEND = re.compile(r"Using (\w+) (?:attention )?backend\b")


def release(version: str) -> tuple[int, ...]:
    """(major, minor, patch) of a version text; anything after the numbers is left out."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def dialect_of(version: str) -> str:
    """What a build tells per request: acceptance and clock, the clock alone, or nothing (counters only)."""
    if release(version) >= (0, 30, 0):
        return "request-acceptance"
    return "request-clock" if release(version) >= (0, 25, 1) else "counters"


def _names(settings: EngineSettings) -> tuple[str | None, str | None]:
    """(target, draft): directories or names; options win over the file settings, which must be files."""
    pair = (settings.options.get("model"), settings.options.get("draft_model"))
    target, draft = (None if name is None else str(name) for name in pair)
    return target or settings.model, draft or settings.draft_model


def _in_config(name: str) -> bool:
    return name in CONFIG


def _speculative_names() -> tuple[str, ...]:
    return tuple(knob.name for knob in KNOBS if knob.name not in COMMON)


def _speculative_config(draft: str | None, knobs: Knobs) -> str:
    """The JSON of --speculative-config. Raises ConfigError: no draft or no depth."""
    values: dict[str, Any] = {"method": "dflash", "model": draft}
    for name, key in CONFIG.items():
        if knobs.get(name) is not None:
            values[key] = knobs[name]
    for key, setting in (("model", "engine.options.draft_model"), ("num_speculative_tokens", "draft_max")):
        if values.get(key) is None:
            raise ConfigError(f"{setting} is not set: vLLM cannot speculate without it")
    return json.dumps(values, separators=(",", ":"))


def _depth_problems(draft: str | None, knobs: Knobs) -> list[str]:
    depth, block = knobs.get("draft_max"), models.block_size(draft)
    if isinstance(depth, int) and block is not None and depth > block - 1:
        return [f"draft_max={depth}: the draft's block of {block} holds {block - 1} drafts beside the anchor"]
    return []


def _version_problems(build: EngineBuild, knobs: Knobs, speculative: bool) -> list[str]:
    problems = []
    old = release(build.version) < QUANTISED_DRAFT
    if old and knobs.get("draft_cache_type") is not None:
        problems.append(f"draft_cache_type: {build_name(build)} has no kv_cache_dtype for the draft (since 0.28.0)")
    kind = knobs.get("kv_cache_dtype")
    if old and speculative and kind not in (None, "auto"):
        problems.append(
            f"kv_cache_dtype={kind}: {build_name(build)} cannot run DFlash on a quantised cache (since 0.28.0)"
        )
    return problems


def _batch_problems(knobs: Knobs) -> list[str]:
    """One verify pass needs depth + 1 query tokens per sequence: too small a batch shrinks the running set."""
    depth, sequences, tokens = (knobs.get(name) for name in ("draft_max", "max_num_seqs", "max_num_batched_tokens"))
    if isinstance(depth, int) and isinstance(sequences, int) and isinstance(tokens, int):
        room = tokens // (depth + 1)
        if room < sequences:
            return [
                f"max_num_batched_tokens={tokens}: room for {room} sequences of draft_max + 1 tokens, "
                f"max_num_seqs={sequences} would be lowered"
            ]
    return []


def _as_asked(shown: Any, asked: Any) -> Any:
    """Back ends are named in several spellings; letters and digits decide."""
    if isinstance(shown, str) and isinstance(asked, str):
        plain = [re.sub(r"[^a-z0-9]", "", text.lower()) for text in (shown, asked)]
        return asked if plain[0] in (plain[1], plain[1].replace("attn", "attention")) else shown
    return shown


# ---------------------------------------------------------------- counters


def turn_counters(exchange: Exchange, alone: bool) -> TurnCounters:
    """One turn. `alone`: no other request ran beside it, so counters around it are its own."""
    draft = timings.from_usage(exchange)
    own = (exchange.extra or {}).get("metrics")
    own = own if isinstance(own, Mapping) else {}
    change = prometheus.change(exchange.metrics_before, exchange.metrics_after) if alone else None
    _set_clock(draft, exchange, own, change)
    if change is not None and change.went_back("vllm:generation_tokens"):
        draft.flag("server_restarted")
    spec = own.get("speculative_decoding")
    steps, histogram = _from_request(draft, spec) if isinstance(spec, Mapping) else _from_counters(draft, change)
    timings.plausible(draft, steps)
    _check_histogram(draft, steps, histogram)
    return draft.counters(
        verify_steps=steps,
        steps_source=None if steps is None else "printed",
        acceptance_kind="unknown" if draft.draft_tokens is None else "chain",
        acceptance_histogram=histogram if "histogram_disagrees" not in draft.flags else None,
    )


def _set_clock(
    draft: timings.Draft, exchange: Exchange, own: Mapping[str, Any], change: prometheus.Change | None
) -> None:
    """Decode time: the request's own clock, else the histogram's sum around one request, else the client's clock."""
    tokens = None if draft.output_tokens is None else draft.output_tokens - 1
    draft.prompt_ms = timings.finite(own.get("time_to_first_token_ms"))
    draft.server_tps_raw = timings.finite(own.get("tokens_per_second"))
    timings.set_decode(draft, tokens, timings.finite(own.get("generation_time_ms")), "json")
    if draft.timing_source is None and change is not None:
        if change.count("vllm:request_decode_time_seconds_count") == 1:
            seconds = change.of("vllm:request_decode_time_seconds_sum")
            timings.set_decode(draft, tokens, None if seconds is None else seconds * 1000.0, "metrics")
        if draft.prompt_ms is None and change.count("vllm:request_prefill_time_seconds_count") == 1:
            seconds = change.of("vllm:request_prefill_time_seconds_sum")
            draft.prompt_ms = None if seconds is None else seconds * 1000.0
    if draft.timing_source is None and "too_few_tokens" not in draft.flags:
        timings.from_client_clock(draft, exchange)


def _from_request(draft: timings.Draft, spec: Mapping[str, Any]) -> tuple[int | None, dict[int, int] | None]:
    steps = timings.count(spec.get("num_spec_steps"))
    draft.draft_tokens = timings.count(spec.get("num_draft_tokens"))
    draft.accepted_draft_tokens = timings.count(spec.get("num_accepted_draft_tokens"))
    printed = spec.get("acceptance_histogram")
    counts = [timings.count(value) for value in printed] if isinstance(printed, list) else []
    known = {index: value for index, value in enumerate(counts) if value is not None}
    return steps, known if known and len(known) == len(counts) else None


def _from_counters(draft: timings.Draft, change: prometheus.Change | None) -> tuple[int | None, dict[int, int] | None]:
    if change is None:
        return None, None
    steps = change.count("vllm:spec_decode_num_drafts")
    draft.draft_tokens = change.count("vllm:spec_decode_num_draft_tokens")
    draft.accepted_draft_tokens = change.count("vllm:spec_decode_num_accepted_tokens")
    reached = change.by_position("vllm:spec_decode_num_accepted_tokens_per_pos")
    return steps, prometheus.histogram(steps, reached)


def _check_histogram(draft: timings.Draft, steps: int | None, histogram: dict[int, int] | None) -> None:
    """Σ h = steps and Σ j·h[j] = accepted, or the histogram is dropped."""
    if histogram is None:
        return
    weighted = sum(index * value for index, value in histogram.items())
    if sum(histogram.values()) != steps or weighted != draft.accepted_draft_tokens:
        draft.flag("histogram_disagrees")
