"""A `llama-server` made of the PyPI wheel `xllamacpp`: parses its flags, starts the real server, waits for SIGTERM.

Imports nothing of ours. The wheel holds llama.cpp's own C++ server (same routes, JSON and log lines); this module only
fills its public parameters. Exit codes and the form of the error texts follow llama-server: 0 after SIGTERM or SIGINT,
1 for a bad flag or a model that does not load. Variables of the environment (LLAMA_ARG_*) are not read: a server's
settings are its command line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = "dflash-llama-server"
INSTALL_HINT = "pip install 'dflash-sweep[cpu]'"
LOG_FLUSH_S = 0.1
"""The server writes its log from a thread of its own: what it has said before a signal is written by then."""

HELP_COLUMN = 40
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SPEC_TYPES = (
    "none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark",
    "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
)  # fmt: skip


class UsageError(Exception):
    """A flag that llama-server would refuse; the text is what it prints."""


Convert = Callable[[str, Any], Any]
"""(word, the xllamacpp module) → the value of a parameter."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One option. `path`: attribute path(s) below CommonParams, "" = accepted and without effect here.

    `convert` None = a switch that sets `value`.
    """

    names: tuple[str, ...]
    path: str
    help: str
    convert: Convert | None = None
    value: Any = True
    metavar: str = "N"


def _int(word: str, module: Any) -> int:
    try:
        return int(word)
    except ValueError:
        raise UsageError("stoi") from None


def _float(word: str, module: Any) -> float:
    try:
        return float(word)
    except ValueError:
        raise UsageError("stof") from None


def _text(word: str, module: Any) -> str:
    return word


def _words(word: str, module: Any) -> list[str]:
    return [part for part in word.split(",") if part]


def _floats(word: str, module: Any) -> list[float]:
    return [_float(part, module) for part in word.split(",")]


def _kv_type(word: str, module: Any) -> Any:
    if word not in KV_TYPES:
        raise UsageError(f"Unsupported cache type: {word}")
    return getattr(module.ggml_type, f"GGML_TYPE_{word.upper()}")


def _flash_attn(word: str, module: Any) -> Any:
    names = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO", "1": "ENABLED", "0": "DISABLED", "-1": "AUTO"}
    if word not in names:
        raise UsageError(f"error: unknown value for --flash-attn: '{word}'")
    return getattr(module.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{names[word]}")


def _spec_types(word: str, module: Any) -> list[Any]:
    types = []
    for part in word.split(","):
        if part not in SPEC_TYPES:
            raise UsageError(f"unknown speculative type: {part}")
        name = part.upper().replace("-", "_")
        types.append(getattr(module.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name}"))
    return types


def _template_file(word: str, module: Any) -> str:
    try:
        return Path(word).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"error: failed to open file '{word}': {error.strerror}") from None


def _colours(word: str, module: Any) -> bool:
    if word not in ("on", "off", "auto"):
        raise UsageError(f"unknown value for --log-colors: '{word}'")
    return word == "on"


_KV_HELP = f"allowed values: {', '.join(KV_TYPES)} (default: f16)"


def _flag(
    names: str, path: str, help: str, convert: Convert | None = None, metavar: str = "N", value: Any = True
) -> Flag:
    return Flag(tuple(names.split()), path, help, convert, value, metavar)


def _ngram_flags(kind: str) -> tuple[Flag, ...]:
    path, stem = f"speculative.ngram_{kind.replace('-', '_')}", f"--spec-ngram-{kind}"
    return (
        _flag(f"{stem}-size-n", f"{path}.size_n", f"{kind}: length of the n-gram looked up (default: 12)", _int),
        _flag(f"{stem}-size-m", f"{path}.size_m", f"{kind}: length of the m-gram drafted (default: 48)", _int),
        _flag(f"{stem}-min-hits", f"{path}.min_hits", f"{kind}: least number of hits (default: 1)", _int),
    )


_SERVER_FLAGS = (
    _flag("-m --model", "model.path", "model to load", _text, "FNAME"),
    _flag("-a --alias", "model_alias", "model name in the API", lambda word, _: set(word.split(",")), "STRING"),
    _flag("--host", "hostnames", "addresses to listen on, by comma (default: 127.0.0.1)", _words, "HOST"),
    _flag("--port", "port", "port to listen on (default: 8080)", _int, "PORT"),
    _flag("-c --ctx-size", "n_ctx", "size of the context (default: 0 = from the model)", _int),
    _flag("-n --predict --n-predict", "n_predict", "tokens to predict (default: -1 = no limit)", _int),
    _flag("-np --parallel", "n_parallel", "server slots (default: 1)", _int),
    _flag("-b --batch-size", "n_batch", "logical maximum batch size (default: 2048)", _int),
    _flag("-ub --ubatch-size", "n_ubatch", "physical maximum batch size (default: 512)", _int),
    _flag("-t --threads", "cpuparams.n_threads", "threads during generation (default: -1 = auto)", _int),
    _flag("-tb --threads-batch", "cpuparams_batch.n_threads", "threads for prompts (default: as --threads)", _int),
    _flag("--poll", "cpuparams.poll", "polling level while waiting for work, 0 to 100 (default: 50)", _int),
    _flag("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", "layers kept in GPU memory (default: auto)", _int),
    _flag("-ctk --cache-type-k", "cache_type_k", f"KV cache type of K; {_KV_HELP}", _kv_type, "TYPE"),
    _flag("-ctv --cache-type-v", "cache_type_v", f"KV cache type of V; {_KV_HELP}", _kv_type, "TYPE"),
    _flag("-fa --flash-attn", "flash_attn_type", "flash attention (default: auto)", _flash_attn, "[on|off|auto]"),
    _flag(
        "-s --seed", "sampling.seed", "sampler's seed (default: random)", lambda w, m: _int(w, m) & 0xFFFFFFFF, "SEED"
    ),
    _flag("-cram --cache-ram", "cache_ram_mib", "prompt cache in MiB (default: 8192, 0 = off)", _int),
    _flag("--cache-reuse", "n_cache_reuse", "smallest chunk reused from the cache by shifting (default: 0)", _int),
    _flag("--no-cache-prompt", "cache_prompt", "no prompt caching", value=False),
    _flag("--swa-full", "swa_full", "full-size cache for sliding windows"),
    _flag("--no-warmup", "warmup", "no empty run before serving", value=False),
    _flag("--metrics", "endpoint_metrics", "enable /metrics"),
    _flag("--slots", "endpoint_slots", "expose /slots (default: enabled)"),
    _flag("--no-slots", "endpoint_slots", "do not expose /slots", value=False),
    _flag("--no-ui --no-webui", "ui", "no web page", value=False),
    _flag("--jinja", "use_jinja", "jinja engine for chat templates (default: enabled)"),
    _flag("--chat-template", "chat_template", "chat template", _text, "JINJA_TEMPLATE"),
    _flag("--chat-template-file", "chat_template", "file with a chat template", _template_file, "FNAME"),
    _flag("-lv --verbosity --log-verbosity", "verbosity", "1 error, 2 warning, 3 info, 4 debug (default: 3)", _int),
    _flag("--log-colors", "use_color", "coloured log (default here: off)", _colours, "[on|off|auto]"),
    _flag("--log-prefix --log-timestamps --offline", "", "accepted: always so here"),
)

_SPEC_FLAGS = (
    _flag("--spec-type", "speculative.types", "types, by comma (default: none)", _spec_types, ",".join(SPEC_TYPES)),
    _flag("-md --model-draft --spec-draft-model", "speculative.draft.mparams.path", "draft model", _text, "FNAME"),
    _flag("--spec-draft-n-max", "speculative.draft.n_max", "tokens to draft per step (default: 3)", _int),
    _flag("--spec-draft-n-min", "speculative.draft.n_min", "fewest draft tokens to use (default: 0)", _int),
    _flag("--spec-draft-p-min --draft-p-min", "speculative.draft.p_min", "least probability (default: 0)", _float, "P"),
    _flag("--spec-draft-p-split --draft-p-split", "speculative.draft.p_split", "split probability", _float, "P"),
    _flag(
        "-td --threads-draft --spec-draft-threads", "speculative.draft.cpuparams.n_threads",
        "draft's threads (default: as --threads)", _int,
    ),
    _flag(
        "-tbd --threads-batch-draft --spec-draft-threads-batch", "speculative.draft.cpuparams_batch.n_threads",
        "draft's threads for prompts (default: as --threads-draft)", _int,
    ),
    _flag(
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", "speculative.draft.n_gpu_layers",
        "draft's layers kept in GPU memory (default: auto)", _int,
    ),
    _flag(
        "-ctkd --cache-type-k-draft --spec-draft-type-k", "speculative.draft.cache_type_k",
        f"draft's KV cache type of K; {_KV_HELP}", _kv_type, "TYPE",
    ),
    _flag(
        "-ctvd --cache-type-v-draft --spec-draft-type-v", "speculative.draft.cache_type_v",
        f"draft's KV cache type of V; {_KV_HELP}", _kv_type, "TYPE",
    ),
    _flag("--spec-ngram-mod-n-match", "speculative.ngram_mod.n_match", "mod: lookup length (default: 24)", _int),
    _flag("--spec-ngram-mod-n-min", "speculative.ngram_mod.n_min", "mod: fewest tokens drafted (default: 48)", _int),
    _flag("--spec-ngram-mod-n-max", "speculative.ngram_mod.n_max", "mod: most tokens drafted (default: 64)", _int),
    *_ngram_flags("simple"),
    *_ngram_flags("map-k"),
    *_ngram_flags("map-k4v"),
    _flag("--spec-synth-len", "speculative.synth_len", "acceptance by dice: the text is invalid", _float, "L"),
    _flag("--spec-synth-rates", "speculative.synth_rates", "the same, per position", _floats, "P0,P1,..."),
)  # fmt: skip

FLAGS: tuple[Flag, ...] = _SERVER_FLAGS + _SPEC_FLAGS
"""Every flag the launcher knows: all that the adapter emits, spelt as llama-server spells them."""

BY_NAME: dict[str, Flag] = {name: flag for flag in FLAGS for name in flag.names}


def usage(flags: Sequence[Flag] = FLAGS) -> str:
    """The options as text in llama-server's layout: what they mean begins in column 40, or on the next line."""
    lines = []
    for flag in flags:
        names = ", ".join(flag.names) + ("" if flag.convert is None else f" {flag.metavar}")
        gap = " " if len(names) < HELP_COLUMN else "\n" + " " * HELP_COLUMN
        lines.append(f"{names:<{HELP_COLUMN - 1}}{gap}{flag.help}")
    return "\n".join(lines)


def version_text(module: Any) -> str:
    """What `--version` prints: the package's version, which is also llama.cpp's build (…11549 = b11549)."""
    info = getattr(module, "BUILD_INFO", {})
    tail = str(module.__version__).rsplit(".", 1)[-1]
    return (
        f"version: xllamacpp {module.__version__} (build {tail})\n"
        f"built with {info.get('compiler', 'unknown compiler')} for {info.get('build_target', 'unknown target')}"
    )


def set_path(params: Any, path: str, value: Any) -> None:
    """Set a nested attribute; the sub-objects are views, so every step must exist."""
    *parents, last = path.split(".")
    for name in parents:
        params = getattr(params, name)
    setattr(params, last, value)


def _value(flag: Flag, word: str, rest: Sequence[str], module: Any) -> Any:
    if flag.convert is None:
        return flag.value
    try:
        if not rest:
            raise UsageError("expected value for argument")
        return flag.convert(rest[0], module)
    except UsageError as error:
        raise UsageError(
            f'error while handling argument "{word}": {error}\n\nusage:\n{usage([flag])}\n\n'
            "to show complete usage, run with -h"
        ) from None


def parse(argv: Sequence[str], params: Any, module: Any) -> None:
    """Fill CommonParams from a command line. Raises UsageError with llama-server's wording.

    Thread counts that are not given follow the given ones in llama-server's order: prompts as generation, draft as
    target, draft's prompts as draft.
    """
    position = 0
    while position < len(argv):
        word = argv[position]
        flag = BY_NAME.get(word)
        if flag is None:
            raise UsageError(f"error: invalid argument: {word}")
        value = _value(flag, word, argv[position + 1 :], module)
        if flag.path:
            set_path(params, flag.path, value)
        position += 1 if flag.convert is None else 2
    draft = params.speculative.draft
    for follower, leader in (
        (params.cpuparams_batch, params.cpuparams),
        (draft.cpuparams, params.cpuparams),
        (draft.cpuparams_batch, draft.cpuparams),
    ):
        if follower.n_threads < 1:
            follower.n_threads = leader.n_threads


def _say(text: str, stream: Any = None) -> None:
    print(text, file=stream or sys.stderr, flush=True)


def serve(params: Any, module: Any) -> int:
    """Load the model, serve until SIGTERM or SIGINT, end with exit code 0. Returns 1 if the model does not load.

    The process ends at once, a request in flight included: the server's own destructor waits for such a request while
    it holds the interpreter, so no timer of ours could limit that wait. Nothing it would clean up outlives a process.
    """
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # before the server's threads exist: they inherit it

    def end() -> None:
        signal.sigwait(stop)
        time.sleep(LOG_FLUSH_S)
        os._exit(0)

    threading.Thread(target=end, name="stop", daemon=True).start()
    try:
        server = module.Server(params)
    except RuntimeError as error:
        _say(f"error: {error}")
        return 1
    _say(f"{PROGRAM}: server is listening on {server.listening_address}")
    threading.Event().wait()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Console script. Prints help or version, or serves; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if any(word in ("-h", "--help", "--usage") for word in words):
        _say(f"usage: {PROGRAM} -m model.gguf [options]\n\n{usage()}", sys.stdout)
        return 0
    try:
        import xllamacpp as module
    except ImportError as error:
        _say(f"error: the package xllamacpp is not usable here ({error}); install it with: {INSTALL_HINT}")
        return 1
    if "--version" in words:
        _say(version_text(module))
        return 0
    params = module.CommonParams()
    params.port = 8080
    try:
        parse(words, params, module)
    except UsageError as error:
        _say(str(error))
        return 1
    if not params.model.path:
        _say("error: --model is required")
        return 1
    return serve(params, module)


if __name__ == "__main__":
    raise SystemExit(main())
