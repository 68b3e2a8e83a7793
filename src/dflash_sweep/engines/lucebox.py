"""Lucebox (LuceBox hub), a native DFlash/DDTree server. Imports the readers and tables of `engines`.

Four generations with different switches: G0 a Python server that drives a test binary, G1 and G2 `dflash_server`, G3
`luce_server`. The generation is read from the file name and the usage text, never from documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_sweep.engines import probing
from dflash_sweep.engines.base import EngineFacts, LaunchRequest
from dflash_sweep.engines.checks import added_environment, build_name, has_flag, knob_problems, option_values
from dflash_sweep.engines.logtext import clean_lines, number, texts
from dflash_sweep.engines.lucebox_knobs import (
    AUTO_TQ3_ABOVE,
    COMMON,
    KNOBS,
    NOT_RENDERED,
    OPTIONS,
    TQ3_PARTNERS,
    VARIABLES,
)  # fmt: skip
from dflash_sweep.engines.lucebox_logs import segments, turn_counters
from dflash_sweep.engines.models import gguf_files
from dflash_sweep.engines.rendering import render
from dflash_sweep.engines.signatures import Phases, first_failure, signature
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

HOW = (
    "Build it from github.com/Luce-Org/lucebox (CMake, source directory server, target dflash_server or luce_server) "
    "and set engine.binary to the executable"
)
DIALECTS = {
    "G0": "until May 2026: Python server.py driving test_dflash; tree, stage times of every request",
    "G1": "May 2026: first dflash_server; --ddtree is accepted, but a chain is drafted",
    "G2": "June 2026: dflash_server with the tree for qwen35 and laguna targets",
    "G3": "August 2026: luce_server; SpecLA, candidate pruning, variables named LUCE_…",
}
_K = FailureKind
_SIGNATURES = (
    signature(_K.INVALID_CONFIG, r"\[server\] unknown option: ", "the server does not know a flag"),
    signature(_K.INVALID_CONFIG, r"unrecognized arguments: ", "the server does not know a flag"),
    signature(_K.INVALID_CONFIG, r"--prefill-compression requires --prefill-drafter", "a flag needs another one"),
    signature(_K.INVALID_CONFIG, r"KV pair \(K=.*\) not supported", "there is no kernel for this pair of cache types"),
    signature(_K.INVALID_CONFIG, r"\[dflash\] Unknown KV [KV] type", "the server does not know a cache type"),
    signature(_K.HEALTH_TIMEOUT, r"\[server\] bind\(.*\) failed|invalid host address", "the server could not listen"),
    signature(_K.OUT_OF_MEMORY, r"out of memory|\(OOM\)|all-cleared", "out of memory"),
    signature(_K.LAUNCH_FAILED, r"(?:target|draft) load: |\[backend_factory\] .* init failed|target cuda init failed"
              r"|backend creation failed|tokenizer load failed", "a model could not be loaded"),
    signature(_K.DRAFT_INACTIVE, r"feature mirror init failed, spec decode will use AR|\[dflash-feature\] .* failed",
              "the server decodes plainly"),
    signature(_K.DRAFT_INACTIVE, r"spec-decode produced zero tokens .* retrying with AR",
              "the server fell back to plain decoding"),
    signature(_K.DEGENERATE_OUTPUT, r"\[degenerate-decode\]", "the answer repeats itself"),
    signature(_K.CRASHED, r"CUDA error: |illegal memory access", "the GPU reported an error"),
    signature(_K.CRASHED, r"dflash daemon has exited unexpectedly", "the decoding process died"),
    signature(_K.REQUEST_FAILED, r"spec-decode: .* failed(?!; falling back)", "a speculative step failed"),
    signature(_K.REQUEST_FAILED, r"chat DONE \S+ ok=false", "a request failed behind HTTP 200 with an empty answer"),
)  # fmt: skip
_PHASES = Phases(
    ready=re.compile(r"\[server\] listening on"),
    prefill=re.compile(r"chat START|chat CACHE|prefill "),
    decode=re.compile(r"\[(?:spec|ar)-decode\]|spec-decode:|-spec\]|\[step "),
)
_GENERATION_NAMES = {"G0": "Python server", "G1": "dflash_server", "G2": "dflash_server", "G3": "luce_server"}


class LuceboxEngine:
    """Adapter of Lucebox's servers."""

    name = "lucebox"
    facts = EngineFacts(
        measurement=Measurement.MEASURED,
        first_token_from_prefill=False,
        stages=(
            "step_ms", "draft_ms", "topk_ms", "build_ms", "snapshot_ms", "verify_ms", "accept_ms", "rollback_ms",
            "ingest_ms", "replay_ms", "other_ms",
        ),
        lossless=False,
        needs_draft_model=True,
        note=(
            "The first token is emitted by a decode step, so every output token counts as decoded. Stages come "
            "from G0 and from laguna targets only; qwen35 targets of G1 and G2 print none. Restored state is half "
            "precision: long greedy texts may differ from plain decoding. One request at a time; all knobs need a new "
            "server."
        ),
    )  # fmt: skip
    knobs = KNOBS
    options = OPTIONS

    def probe(self, settings: EngineSettings) -> EngineBuild:
        """Generation of the binary by its usage text. Raises EngineMissing."""
        binary = probing.find_binary(settings, ("luce_server", "dflash_server"), HOW)
        if binary.endswith(".py"):
            options = option_values(self.name, self.options, settings.options)
            answer = probing.ask([str(options["python"]), binary, "--help"])
        else:
            answer = probing.ask([binary])
        flags = probing.usage_flags(answer.text)
        if not flags:
            raise EngineMissing(f"{binary} printed no usage text ({probing.reason(answer)}). {HOW}")
        generation = generation_of(binary, flags)
        if generation is None:
            raise EngineMissing(f"{binary} is not a Lucebox server: its usage text names no --ddtree. {HOW}")
        sha256 = probing.binary_sha256(binary)
        return EngineBuild(
            engine=self.name,
            version=f"{_GENERATION_NAMES[generation]} {sha256[:12]}",
            binary=binary,
            binary_sha256=sha256,
            dialect=generation,
            flags=flags,
        )

    def models(self, settings: EngineSettings) -> tuple[ModelFile, ...]:
        """Target and draft by their own metadata. Raises EngineMissing: a file is missing or the two do not fit."""
        return gguf_files(self.name, settings)

    def check(self, settings: EngineSettings, build: EngineBuild, knobs: Knobs) -> tuple[str, ...]:
        """What keeps a point from being launched on this build, or from meaning anything there."""
        problems = knob_problems(self.knobs, build, knobs, _spellings(build))
        generation, where = build.dialect, build_name(build)
        if generation == "G1" and knobs.get("ddtree"):
            problems.append(
                f"ddtree=True: --ddtree of {where} sizes buffers only and always drafts a chain; use G2 or later"
            )
        if knobs.get("ddtree") and knobs.get("rollback_mode") == "replay":
            problems.append("ddtree=True with rollback_mode=replay: --no-fast-rollback silently switches the tree off")
        if knobs.get("specla") and knobs.get("rollback_mode") == "replay":
            problems.append(f"specla=True with rollback_mode=replay: {where} refuses --specla with --no-fast-rollback")
        if generation in ("G0", "G1") and settings.n_ctx > AUTO_TQ3_ABOVE:
            for name in ("cache_type_k", "cache_type_v"):
                if knobs.get(name) is None:
                    problems.append(
                        f"{name} is not given: {where} takes tq3_0 by itself above {AUTO_TQ3_ABOVE} tokens of context"
                    )
        if generation in ("G0", "G1") and knobs.get("rollback_threshold") is not None:
            problems.append(f"rollback_threshold: {where} does not read DFLASH_FAST_ROLLBACK_THRESHOLD (since G2)")
        key, value = knobs.get("cache_type_k"), knobs.get("cache_type_v")
        if key == "tq3_0" and value is not None and value not in TQ3_PARTNERS:
            problems.append(
                f"cache_type_k=tq3_0 with cache_type_v={value}: no kernel; V takes {', '.join(TQ3_PARTNERS)}"
            )
        if settings.draft_model is None and any(knobs.get(name) for name in ("ddtree", "budget", "specla")):
            problems.append("engine.draft_model is not set: without --draft lucebox decodes plainly")
        return tuple(problems)

    def effective_point(self, knobs: Knobs) -> Knobs:
        """Knobs that cannot act are None: no tree → budget, tau; tree → rollback, threshold; no SpecLA → top_k."""
        point = dict(knobs)
        tree, specla = bool(point.get("ddtree")), bool(point.get("specla"))
        dead: list[str] = []
        if not (tree or specla):
            dead += ["budget", "ddtree_tau"]
        else:
            dead.append("rollback_threshold")
            if point.get("rollback_mode") == "fast":
                dead.append("rollback_mode")
        if not specla:
            dead.append("top_k")
        if point.get("rollback_mode") == "replay":
            dead.append("rollback_threshold")
        return {name: None if name in dead else value for name, value in point.items()}

    def launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        """Command line and environment. Without speculation there is no draft at all."""
        settings, build = request.settings, request.build
        if settings.model is None:
            raise ConfigError("engine.model is not set")
        if request.n_parallel != 1:
            raise ConfigError(
                f"replay.concurrency={request.n_parallel}: lucebox serves one request at a time; allowed: 1"
            )
        if request.speculative and settings.draft_model is None:
            raise ConfigError("engine.draft_model is not set: lucebox cannot speculate without it")
        options = option_values(self.name, self.options, settings.options)
        knobs: Knobs = {"fa_window": 0} | {
            k: v for k, v in self.effective_point(request.knobs).items() if v is not None
        }
        if not request.speculative:
            knobs = {name: value for name, value in knobs.items() if name in COMMON}
        if options["prefill_compression"] == "off":
            knobs.pop("prefill_keep_ratio", None)
        head = _head_g0(request, options, knobs) if build.dialect == "G0" else _head(request)
        words, env = _words(knobs, build)
        given = {name: value for name, value in options.items() if name not in NOT_RENDERED and value != "off"}
        option_words, _ = render(self.options, given)
        env |= _diagnostics(build, options, request.speculative)
        env |= added_environment(build_name(build), settings.env, VARIABLES)
        return LaunchSpec(
            argv=(*head, *words, *option_words, *settings.extra_args),
            env={_variable(name, build): value for name, value in env.items()},
        )

    def request_fields(self, settings: EngineSettings, knobs: Knobs, bucket: str) -> dict[str, Any]:
        """Penalties are named as off: a model card's defaults would switch a request to plain decoding."""
        return {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}

    def applied(
        self, knobs: Knobs, speculative: bool, props: Mapping[str, Any], slots: Sequence[Any], log: str
    ) -> Knobs:
        """What the banner, /props and, for the tree, the requests themselves show."""
        shown = _from_banner(log) | _from_props(props)
        if speculative and (mode := _mode_of(log)) is not None:
            shown["ddtree"] = mode
        # `family default` is no type: the server does not say which one it took.
        return {name: value for name, value in shown.items() if not (isinstance(value, str) and "default" in value)}

    def parse_trial(self, exchanges: Sequence[Exchange], log: bytes) -> tuple[TurnCounters, ...]:
        """One record per exchange, joined with the log by response id."""
        return turn_counters(exchanges, log)

    def classify(self, log: str, exit_code: int | None) -> tuple[FailureKind, str] | None:
        """The failure that log and exit code show."""
        return first_failure(_SIGNATURES, log, exit_code, _PHASES)

    def memory_mib(self, log: str) -> dict[str, float]:
        """Buffers as far as a build prints them; most print none."""
        found: dict[str, float] = {}
        for line in texts(log):
            match = _MEMORY.search(line)
            value = number(match[2]) if match else None
            if match and value is not None:
                name = match[1].lower()
                found[name] = round(found.get(name, 0.0) + value, 2)
        return found


_MEMORY = re.compile(
    r"\b(KV|target|draft|compute)\b[^=\n]{0,60}?(?:buffer|cache|weights)[^=\d\n]{0,30}[=:]?\s*([\d.]+)\s*MiB"
)


def generation_of(binary: str, flags: frozenset[str]) -> str | None:
    """G0 to G3 from the file's name and the switches of its usage text; None = not a Lucebox server."""
    if binary.endswith(".py"):
        return "G0" if "--verify-mode" in flags or "--budget" in flags else None
    if "--ddtree" not in flags:
        return None
    if "--specla" in flags or "--ddtree-tau" in flags or Path(binary).name.startswith("luce_"):
        return "G3"
    return "G2" if "--fast-rollback" in flags else "G1"


def _spellings(build: EngineBuild) -> dict[str, str]:
    """G0 spells some switches its own way."""
    if build.dialect != "G0":
        return {}
    return {"ddtree": "--verify-mode", "budget": "--budget", "rollback_mode": "--verify-mode"}


def _head(request: LaunchRequest) -> list[str]:
    """Program, target (must come first) and what is always said."""
    settings = request.settings
    argv = [request.build.binary, str(settings.model), "--host", _ipv4(request.host), "--port", str(request.port)]
    argv += ["--max-ctx", str(settings.n_ctx)]
    return [*argv, "--draft", str(settings.draft_model)] if request.speculative else argv


def _head_g0(request: LaunchRequest, options: Knobs, knobs: Knobs) -> list[str]:
    settings = request.settings
    argv = [str(options["python"]), request.build.binary, "--target", str(settings.model)]
    argv += ["--host", _ipv4(request.host), "--port", str(request.port), "--max-ctx", str(settings.n_ctx)]
    if options["daemon_binary"] is not None:
        argv += ["--bin", str(options["daemon_binary"])]
    if request.speculative:
        mode = "ddtree" if knobs.get("ddtree") else str(knobs.get("rollback_mode") or "fast")
        argv += ["--draft", str(settings.draft_model), "--verify-mode", mode]
    # Without this the relay drops the lines that hold the stage times.
    return [*argv, "--verbose-daemon"]


def _ipv4(host: str) -> str:
    """The server takes no host names."""
    return "127.0.0.1" if host == "localhost" else host


def _words(knobs: Knobs, build: EngineBuild) -> tuple[list[str], dict[str, str]]:
    """Knobs as words and variables, in the spelling of the generation."""
    plain = {name: value for name, value in knobs.items() if name != "rollback_mode"}
    old = build.dialect == "G0"
    if old:
        plain = {name: value for name, value in plain.items() if name not in ("ddtree", "budget")}
    rendered, env = render(KNOBS, plain)
    words = list(rendered)
    if old and knobs.get("budget") is not None:
        words += ["--budget", str(knobs["budget"])]
    mode = knobs.get("rollback_mode")
    if not old and mode is not None and has_flag(build, "--fast-rollback"):
        words.append("--fast-rollback" if mode == "fast" else "--no-fast-rollback")
    if "DFLASH_FAST_ROLLBACK_THRESHOLD" in env:
        env["DFLASH_SINGLE_CHAIN_CHECKPOINT_F32"] = "1"
    return words, env


def _diagnostics(build: EngineBuild, options: Knobs, speculative: bool) -> dict[str, str]:
    """The rollback line tells chain from tree: without it a tree that never ran would look like one."""
    env = {}
    if speculative and build.dialect in ("G2", "G3"):
        env["DFLASH_SINGLE_CHAIN_ROLLBACK_DIAG"] = "1"
    if options["sampled_verify"]:
        env["DFLASH_SAMPLED_VERIFY"] = "1"
    if options["stage_profile"]:
        env["DFLASH_PROF"] = "step"
    return env


def _variable(name: str, build: EngineBuild) -> str:
    """G3 renamed the prefix of every variable."""
    return re.sub(r"^DFLASH(?:27B)?_", "LUCE_", name) if build.dialect == "G3" else name


# ---------------------------------------------------------------- what the server shows

_BANNER = re.compile(r"\[server\]\s*│\s+(\w+)\s*=\s*(.*)$")
_BANNER_NAMES = {
    "fa_window": "fa_window", "ddtree_budget": "budget", "chunk": "chunk", "cache_type_k": "cache_type_k",
    "cache_type_v": "cache_type_v", "prefix_cache": "prefix_cache_slots",
}  # fmt: skip
_SWA = re.compile(r"\[draft\]\s+SWA layers: \d+/\d+ \(window=(\d+)\)")


def _from_banner(log: str) -> Knobs:
    """The settings banner; `rollback_mode` and the draft's window too. Echoes what was parsed, not what acts."""
    shown: Knobs = {}
    for line in texts(log):
        if swa := _SWA.search(line):
            shown["draft_swa"] = int(swa[1])
        match = _BANNER.search(line) if "│" in line else None
        if match is None:
            continue
        key, value = match[1], match[2].strip()
        if key == "fast_rollback":
            shown["rollback_mode"] = "fast" if value.upper() in ("ON", "TRUE", "1") else "replay"
        elif key in _BANNER_NAMES:
            word = value.split()[0] if value else ""
            shown[_BANNER_NAMES[key]] = int(word) if word.isdigit() else value
    return shown


def _from_props(props: Mapping[str, Any]) -> Knobs:
    runtime, speculative = props.get("runtime"), props.get("speculative")
    shown: Knobs = {}
    if isinstance(runtime, Mapping):
        for key, name in (("kv_cache_k", "cache_type_k"), ("kv_cache_v", "cache_type_v"), ("fa_window", "fa_window")):
            if isinstance(runtime.get(key), str | int):
                shown[name] = runtime[key]
    if isinstance(speculative, Mapping) and isinstance(speculative.get("ddtree_budget"), int):
        shown["budget"] = speculative["ddtree_budget"]
    return shown


def _mode_of(log: str) -> bool | None:
    """True = some request drafted a tree, False = those that tell drafted chains, or all decoded plainly.

    None = nothing tells: a request that speculated without the diagnostic line may have been either.
    """
    modes = {segment.mode for segment in segments(list(clean_lines(log)))}
    if modes & {"tree", "chain", "tree+chain"}:
        return bool(modes & {"tree", "tree+chain"})
    return False if modes and modes <= {"ar", None} and "ar" in modes else None
