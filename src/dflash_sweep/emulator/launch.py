"""Command line and environment of the emulated server, read as the fork's llama-server reads them. Imports `setting`,
`devices`, `dials`, `faults`, `noise`, `errors`.

Unknown arguments end the process with the fork's own words. `LLAMA_ARG_*` variables stand in for missing flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_sweep.emulator import devices, dials, faults
from dflash_sweep.emulator.faults import Faults
from dflash_sweep.emulator.noise import NoiseSetting
from dflash_sweep.emulator.setting import DRAFT_PATHS, KV_BITS, Setting, from_knobs
from dflash_sweep.errors import ConfigError


class ArgumentError(ConfigError):
    """The message is what the server prints before it ends with exit code 1."""


# destination, kind, spellings, environment variable
_FLAGS: tuple[tuple[str, str, tuple[str, ...], str | None], ...] = (
    ("speculative_mode", "str", ("--speculative-mode",), "LLAMA_ARG_SPECULATIVE_MODE"),
    ("model", "str", ("-m", "--model"), "LLAMA_ARG_MODEL"),
    ("model_draft", "str", ("-md", "--model-draft"), "LLAMA_ARG_MODEL_DRAFT"),
    ("alias", "str", ("-a", "--alias"), "LLAMA_ARG_ALIAS"),
    ("budget", "int", ("--ddtree-budget",), "LLAMA_ARG_DDTREE_BUDGET"),
    ("proposal_temp", "float", ("--ddtree-temp",), "LLAMA_ARG_DDTREE_TEMP"),
    ("top_k", "int", ("--ddtree-top-k",), "LLAMA_ARG_DDTREE_TOP_K"),
    ("no_chain_seed", "switch", ("--ddtree-no-chain-seed",), None),
    ("draft_gpu_layers", "layers", ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
     "LLAMA_ARG_N_GPU_LAYERS_DRAFT"),
    ("gpu_layers", "layers", ("-ngl", "--gpu-layers", "--n-gpu-layers"), "LLAMA_ARG_N_GPU_LAYERS"),
    ("cache_type_k", "type", ("-ctk", "--cache-type-k"), "LLAMA_ARG_CACHE_TYPE_K"),
    ("cache_type_v", "type", ("-ctv", "--cache-type-v"), "LLAMA_ARG_CACHE_TYPE_V"),
    ("cache_type_k_draft", "type", ("-ctkd", "--cache-type-k-draft"), "LLAMA_ARG_CACHE_TYPE_K_DRAFT"),
    ("cache_type_v_draft", "type", ("-ctvd", "--cache-type-v-draft"), "LLAMA_ARG_CACHE_TYPE_V_DRAFT"),
    ("ctx_size_draft", "int", ("-cd", "--ctx-size-draft"), "LLAMA_ARG_CTX_SIZE_DRAFT"),
    ("draft_max", "int", ("--draft", "--draft-n", "--draft-max"), "LLAMA_ARG_DRAFT_MAX"),
    ("draft_min", "int", ("--draft-min", "--draft-n-min"), "LLAMA_ARG_DRAFT_MIN"),
    ("draft_p_min", "float", ("--draft-p-min",), "LLAMA_ARG_DRAFT_P_MIN"),
    ("n_ctx", "int", ("-c", "--ctx-size"), "LLAMA_ARG_CTX_SIZE"),
    ("n_batch", "int", ("-b", "--batch-size"), "LLAMA_ARG_BATCH"),
    ("n_ubatch", "int", ("-ub", "--ubatch-size"), "LLAMA_ARG_UBATCH"),
    ("flash_attn", "onoff", ("-fa", "--flash-attn"), "LLAMA_ARG_FLASH_ATTN"),
    ("parallel", "int", ("-np", "--parallel"), "LLAMA_ARG_N_PARALLEL"),
    ("fit", "onoff", ("-fit", "--fit"), "LLAMA_ARG_FIT"),
    ("host", "str", ("--host",), "LLAMA_ARG_HOST"),
    ("port", "int", ("--port",), "LLAMA_ARG_PORT"),
    ("log_verbosity", "int", ("-lv", "--verbosity", "--log-verbosity"), "LLAMA_LOG_VERBOSITY"),
    ("log_file", "str", ("--log-file",), "LLAMA_LOG_FILE"),
    ("log_colors", "onoff", ("--log-colors",), "LLAMA_LOG_COLORS"),
    ("log_prefix", "switch", ("--log-prefix",), "LLAMA_LOG_PREFIX"),
    ("log_timestamps", "switch", ("--log-timestamps",), "LLAMA_LOG_TIMESTAMPS"),
    ("metrics", "switch", ("--metrics",), "LLAMA_ARG_ENDPOINT_METRICS"),
    ("slots", "switch", ("--slots",), "LLAMA_ARG_ENDPOINT_SLOTS"),
    ("no_slots", "switch", ("--no-slots",), None),
    ("props", "switch", ("--props",), "LLAMA_ARG_ENDPOINT_PROPS"),
    ("jinja", "switch", ("--jinja",), "LLAMA_ARG_JINJA"),
    ("no_webui", "switch", ("--no-webui",), "LLAMA_ARG_NO_WEBUI"),
    ("cache_ram", "int", ("-cram", "--cache-ram"), "LLAMA_ARG_CACHE_RAM"),
    ("cache_reuse", "int", ("--cache-reuse",), "LLAMA_ARG_CACHE_REUSE"),
    ("no_warmup", "switch", ("--no-warmup",), None),
    ("threads", "int", ("-t", "--threads"), "LLAMA_ARG_THREADS"),
    ("threads_batch", "int", ("-tb", "--threads-batch"), None),
    ("seed", "int", ("-s", "--seed"), None),
    ("n_predict", "int", ("-n", "--predict", "--n-predict"), "LLAMA_ARG_N_PREDICT"),
    ("temperature", "float", ("--temp",), None),
    ("timeout", "int", ("-to", "--timeout"), "LLAMA_ARG_TIMEOUT"),
    ("api_key", "str", ("--api-key",), "LLAMA_API_KEY"),
    ("reasoning_format", "str", ("--reasoning-format",), "LLAMA_ARG_THINK"),
    ("reasoning_budget", "int", ("--reasoning-budget",), "LLAMA_ARG_THINK_BUDGET"),
    ("chat_template_kwargs", "str", ("--chat-template-kwargs",), "LLAMA_CHAT_TEMPLATE_KWARGS"),
    ("no_mmap", "switch", ("--no-mmap",), "LLAMA_ARG_NO_MMAP"),
    ("mlock", "switch", ("--mlock",), "LLAMA_ARG_MLOCK"),
    # the emulator's own
    ("emulator_card", "str", ("--emulator-card",), None),
    ("emulator_clock", "str", ("--emulator-clock",), None),
    ("emulator_workload", "str", ("--emulator-workload",), None),
    ("emulator_seed", "int", ("--emulator-seed",), None),
    ("emulator_launch_seed", "int", ("--emulator-launch-seed",), None),
    ("emulator_noise", "float", ("--emulator-noise",), None),
    ("emulator_drift", "float", ("--emulator-drift",), None),
    ("emulator_slowdown", "float", ("--emulator-slowdown",), None),
    ("emulator_throttle_after", "float", ("--emulator-throttle-after",), None),
    ("emulator_draft_path", "str", ("--emulator-draft-path",), None),
    ("emulator_fault", "str", ("--emulator-fault",), None),
)  # fmt: skip

FLAG_NAMES = frozenset(name for _, _, names, _ in _FLAGS for name in names)
VARIABLES = frozenset(
    f"LLAMA_DDTREE_{name}"
    for name in (
        "TARGET_FEAT_CTX",
        "PROPOSAL_TEMP",
        "VERIFIER",
        "EXACT_VALIDATION",
        "TRUST_BATCHED",
        "UNSAFE_TRUST_BATCHED",
        "FAST_BATCHED",
        "FAST_ROLLBACK",
        "SNAPSHOT_FALLBACK",
        "ROLLBACK_GRAPH",
        "CAPTURE_DIRECT",
        "NO_GRAMMAR_VERIFY",
        "BATCHED_SHORTCIRCUIT",
        "PROFILE",
        "DUMP_DRAFT_TOP",
    )
)

_TRUE = ("on", "enabled", "true", "1")
_FALSE = ("off", "disabled", "false", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a server process needs to know. `clock`: virtual or real; `seed`: of texts and proposals."""

    setting: Setting
    device: str
    host: str
    port: int
    clock: str
    workload: str
    seed: int
    noise: NoiseSetting
    faults: Faults
    model: str
    alias: str | None
    metrics: bool
    slots: bool
    cache_ram: bool
    dump_draft_top: bool
    log_file: str | None
    api_key: str | None


def _value(destination: str, kind: str, name: str, text: str) -> Any:
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "layers":
            return {"auto": 999, "all": 999}.get(text) or int(text)
    except ValueError:
        raise ArgumentError(f'error while handling argument "{name}": sto{kind[0]}') from None
    if kind == "type" and text not in KV_BITS:
        raise ArgumentError(f"Unsupported cache type: {text}")
    if kind == "onoff":
        if text in _TRUE or text in _FALSE or text == "auto":
            return text if text == "auto" else ("on" if text in _TRUE else "off")
        raise ArgumentError(f"error while handling argument \"{name}\": unknown value for {name}: '{text}'")
    return text


def _read_flags(argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for destination, kind, names, variable in _FLAGS:
        if variable and variable in env:
            text = env[variable]
            values[destination] = (text in _TRUE) if kind == "switch" else _value(destination, kind, names[-1], text)
    by_name = {name: entry for entry in _FLAGS for name in entry[2]}
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word not in by_name:
            raise ArgumentError(f"error: invalid argument: {word}")
        destination, kind, _, _ = by_name[word]
        if kind == "switch":
            values[destination] = True
            continue
        if position >= len(argv):
            raise ArgumentError(f'error while handling argument "{word}": expected value for argument')
        values[destination] = _value(destination, kind, word, argv[position])
        position += 1
    return values


def _is_one(env: Mapping[str, str], name: str) -> bool:
    """The fork looks at the first character only."""
    return env.get(f"LLAMA_DDTREE_{name}", "")[:1] == "1"


def _verifier(env: Mapping[str, str]) -> str:
    named = env.get("LLAMA_DDTREE_VERIFIER")
    exact = named in ("exact", "chain") or (named not in ("paper", "tree") and _is_one(env, "EXACT_VALIDATION"))
    if exact:
        return "fast_batched" if _is_one(env, "FAST_BATCHED") else "exact"
    trusts = _is_one(env, "TRUST_BATCHED") or _is_one(env, "UNSAFE_TRUST_BATCHED")
    return "trusted" if trusts else "paper"


def _positive(env: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(env.get(f"LLAMA_DDTREE_{name}", ""))
    except ValueError:
        return None
    return value if value > 0 else None


def _tree_values(values: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    rollback = env.get("LLAMA_DDTREE_FAST_ROLLBACK")
    window = _positive(env, "TARGET_FEAT_CTX")
    return {
        "target_feat_ctx": int(window) if window and window >= 1 else 128,
        "proposal_temp": _positive(env, "PROPOSAL_TEMP") or values.get("proposal_temp", 1.0),
        "budget": values.get("budget"),
        "top_k": values.get("top_k"),
        "chain_seed": not values.get("no_chain_seed", False),
        "verifier": _verifier(env),
        "fast_rollback": None if rollback is None else rollback[:1] == "1",
        "grammar_verify": not _is_one(env, "NO_GRAMMAR_VERIFY"),
        "batched_shortcircuit": _is_one(env, "BATCHED_SHORTCIRCUIT"),
        "snapshot_fallback": env.get("LLAMA_DDTREE_SNAPSHOT_FALLBACK", "1")[:1] != "0",
        "rollback_graph": env.get("LLAMA_DDTREE_ROLLBACK_GRAPH", "1")[:1] != "0",
        "capture_direct": _is_one(env, "CAPTURE_DIRECT"),
        "profile": "LLAMA_DDTREE_PROFILE" in env,
    }


def _check(values: Mapping[str, Any]) -> bool:
    """The fork's own argument checks, in its words. Returns whether ddtree mode is on."""
    mode = values.get("speculative_mode", "chain")
    if mode not in ("chain", "ddtree"):
        raise ArgumentError("--speculative-mode must be 'chain' or 'ddtree'")
    if values.get("budget", 1) < 1:
        raise ArgumentError("--ddtree-budget must be >= 1")
    if values.get("top_k", 0) < 0:
        raise ArgumentError("--ddtree-top-k must be >= 0")
    if mode == "ddtree" and not values.get("model_draft"):
        raise ArgumentError("error: --speculative-mode ddtree requires -md/--model-draft")
    if mode == "ddtree" and values.get("parallel", 4) != 1:
        raise ArgumentError("DDTree mode supports only --parallel 1 in Phase 5")
    return bool(mode == "ddtree")


def read(argv: Sequence[str], env: Mapping[str, str]) -> Launch:
    """The launch that argv (without the program) and environment describe. Raises ArgumentError in the fork's words."""
    values = _read_flags(argv, env)
    speculative = _check(values)
    try:
        fault = faults.parse(values.get("emulator_fault"), "launch")
        tree = _tree_values(values, env)
        if fault.has("ignored_setting"):
            tree.pop(fault.text("ignored_setting"), None)
            values.pop(fault.text("ignored_setting"), None)
        names = ("draft_gpu_layers", "gpu_layers", "cache_type_k", "cache_type_v", "n_ctx", "n_batch", "n_ubatch",
                 "flash_attn")  # fmt: skip
        given = {name: values.get(name) for name in names}
        path = _choice(values, "emulator_draft_path", DRAFT_PATHS)
        setting = from_knobs({**tree, **given}, speculative=speculative, draft_path=path)
        workload = _choice(values, "emulator_workload", ("auto", *dials.names()))
        device = devices.load(values.get("emulator_card", "rtx4090")).key
    except ArgumentError:
        raise
    except ConfigError as error:
        raise ArgumentError(f"error: {error}") from error
    return Launch(
        setting=setting,
        device=device,
        host=values.get("host", "127.0.0.1"),
        port=values.get("port", 8080),
        clock=_choice(values, "emulator_clock", ("virtual", "real")),
        workload=workload,
        seed=values.get("emulator_seed", 0),
        noise=NoiseSetting(
            scale=values.get("emulator_noise", 1.0),
            seed=values.get("emulator_seed", 0),
            launch_seed=values.get("emulator_launch_seed", 0),
            drift_per_hour=values.get("emulator_drift", 0.0),
            slowdown=values.get("emulator_slowdown", 0.0),
            throttle_after_s=values.get("emulator_throttle_after"),
        ),
        faults=fault,
        model=values.get("model", "emulated.gguf"),
        alias=values.get("alias"),
        metrics=values.get("metrics", False),
        slots=values.get("slots", True) and not values.get("no_slots", False),
        cache_ram=values.get("cache_ram", 8192) != 0,
        dump_draft_top="LLAMA_DDTREE_DUMP_DRAFT_TOP" in env,
        log_file=values.get("log_file"),
        api_key=values.get("api_key"),
    )


def _choice(values: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str:
    value = str(values.get(name, allowed[0]))
    if value not in allowed:
        raise ArgumentError(f"error: --{name.replace('_', '-')} must be one of {', '.join(allowed)}, not {value!r}")
    return value
