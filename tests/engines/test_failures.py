"""Deaths of servers by what they print: one line each, phases of out-of-memory, exit codes, harmless lines."""

from __future__ import annotations

import pytest

from dflash_sweep.engines import get
from dflash_sweep.engines.signatures import by_exit_code, first_failure, signature
from dflash_sweep.errors import FailureKind

K = FailureKind

CASES: tuple[tuple[str, str, int | None, FailureKind], ...] = (
    ("beellama", "error: invalid argument: --spec-dflash-cross-ctx", 1, K.INVALID_CONFIG),
    ("beellama", 'error while handling argument "--spec-type": unknown speculative type: dflash', 1, K.INVALID_CONFIG),
    ("beellama", "error: the argument has been removed. use --spec-draft-n-max", 1, K.INVALID_CONFIG),
    ("beellama", 'error while handling environment variable "LLAMA_ARG_FIT": x', 1, K.INVALID_CONFIG),
    ("beellama", "using config file: /etc/llama.cpp/config.ini", None, K.INVALID_CONFIG),
    ("beellama", "0.1 E allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory", 1, K.OUT_OF_MEMORY),
    ("beellama", "E llama_init: failed to allocate buffer for kv cache", 1, K.OUT_OF_MEMORY),
    ("beellama", "E failed to allocate compute pp buffers", 1, K.OUT_OF_MEMORY),
    ("beellama", "CUDA error: out of memory\n  current device: 0", -6, K.OUT_OF_MEMORY),
    ("beellama", "E load: draft model 'x.gguf' is not a valid DFlash drafter: missing", 1, K.LAUNCH_FAILED),
    ("beellama", "error loading model: unknown model architecture: 'dflash-draft'", 1, K.LAUNCH_FAILED),
    ("beellama", "missing tensor 'hidden_norm.weight'", 1, K.LAUNCH_FAILED),
    ("beellama", "wrong number of tensors; expected 58, got 60", 1, K.LAUNCH_FAILED),
    ("beellama", "E failed to load draft model, 'd.gguf'", 1, K.LAUNCH_FAILED),
    ("beellama", "GGML_ASSERT(n_tokens > 0) failed", -6, K.CRASHED),
    ("beellama", "W failed to initialize speculative decoding context: no", None, K.DRAFT_INACTIVE),
    ("beellama", "W dflash: fail-closed after 8 consecutive invalid reduced-logits drafts", None, K.DRAFT_INACTIVE),
    ("beellama", "E quantized V cache requires flash_attn to be enabled", 1, K.INVALID_CONFIG),
    ("beellama", "W cannot enable kvarn4: head size; falling back to the normal KV cache", None, K.SETTING_NOT_APPLIED),
    ("lucebox", "[server] unknown option: --budget", 2, K.INVALID_CONFIG),
    ("lucebox", "server.py: error: unrecognized arguments: --x", 2, K.INVALID_CONFIG),
    ("lucebox", "KV pair (K=tq3_0, V=q5_1) not supported by fattn-cuda", -6, K.INVALID_CONFIG),
    ("lucebox", "cudaMalloc failed: out of memory\ndraft load: cannot allocate", 1, K.OUT_OF_MEMORY),
    ("lucebox", "draft load: bad magic\n[server] backend creation failed", 1, K.LAUNCH_FAILED),
    ("lucebox", "prefill compute @4096 failed (OOM)", None, K.OUT_OF_MEMORY),
    ("lucebox", "warning: feature mirror init failed, spec decode will use AR fallback", None, K.DRAFT_INACTIVE),
    ("lucebox", "[backend] spec-decode produced zero tokens after 0.100 s decode; retrying with AR decode", None,
     K.DRAFT_INACTIVE),
    ("lucebox", "[degenerate-decode] token 7 repeated 64 times", None, K.DEGENERATE_OUTPUT),
    ("lucebox", "CUDA error: an illegal memory access was encountered", -6, K.CRASHED),
    ("lucebox", "spec-decode: verify_tree failed", None, K.REQUEST_FAILED),
    ("lucebox", "[server] chat DONE chatcmpl_0 ok=false in=1 out=0 error=prefill_failed", None, K.REQUEST_FAILED),
    ("vllm", "vllm: error: unrecognized arguments: --x", 2, K.INVALID_CONFIG),
    ("vllm", "ValidationError: 1 validation error for SpeculativeConfig", 1, K.INVALID_CONFIG),
    ("vllm", "AssertionError: X does not have non-causal support, which is required for DFlash", 1, K.INVALID_CONFIG),
    ("vllm", "ValueError: To serve at least one request with the model's max seq len (9)", 1, K.OUT_OF_MEMORY),
    ("vllm", "ValueError: To serve at least one request with the models's max seq len (9)", 1, K.OUT_OF_MEMORY),
    ("vllm", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1, K.OUT_OF_MEMORY),
    ("vllm", "ValueError: No available memory for the cache blocks.", 1, K.OUT_OF_MEMORY),
    ("vllm", "DFlash drafter expects 10240 concatenated aux hidden features but received 8192", 1, K.LAUNCH_FAILED),
    ("vllm", "KeyError: 'x'\nRuntimeError: Engine core initialization failed.", 1, K.LAUNCH_FAILED),
    ("vllm", "EngineCore encountered a fatal error.", 0, K.CRASHED),
    ("sglang", "launch_server.py: error: unrecognized arguments: --x", 2, K.INVALID_CONFIG),
    ("sglang", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", 1, K.OUT_OF_MEMORY),
    ("sglang", "Decode out of memory. Try to lower your batch size.", -9, K.OUT_OF_MEMORY),
    ("sglang", "Received sigquit from a child process. It usually means the child failed.", -9, K.LAUNCH_FAILED),
    ("sglang", "SIGQUIT received. signum=3. One child failed.", 137, K.CRASHED),
    ("sglang", "DFLASH requires the target model to expose a vocab-parallel `lm_head`", 1, K.LAUNCH_FAILED),
    ("sglang", "DFLASH speculative decoding does not support grammar-constrained decoding", None, K.REQUEST_FAILED),
)  # fmt: skip


@pytest.mark.parametrize(("engine", "log", "code", "kind"), CASES, ids=[f"{c[0]}-{c[1][:40]}" for c in CASES])
def test_one_line_tells_the_failure(engine: str, log: str, code: int | None, kind: FailureKind) -> None:
    noise = "loading tensors\n\x1b[33mW some warning\x1b[0m\r\n"
    found = get(engine).classify(noise + log + "\nlast words\n", code)
    assert found is not None
    assert found[0] is kind, found
    assert log.splitlines()[0].strip()[:30] in found[1] or log.splitlines()[-1].strip()[:30] in found[1]


HARMLESS: tuple[tuple[str, str], ...] = (
    ("beellama", "E llama_init_from_model: failed to initialize the context: dflash requires ctx_other (normal)"),
    ("beellama", "0.4 I adaptive-dm: disabling speculative depth (best_score=1.0 baseline=2.0)"),
    ("lucebox", "spec-decode: rollback_to failed; falling back to restore+replay"),
    ("lucebox", "[ar-decode] tokens=10 time=0.2 s speed=50 tok/s"),
    ("vllm", "WARNING draft attention (FLEX) does not support full CUDA graphs; running the draft eagerly."),
    ("sglang", "WARNING DFLASH draft greedy head kept eager (reason=x)"),
)  # fmt: skip


@pytest.mark.parametrize(("engine", "line"), HARMLESS)
def test_lines_of_a_good_run_are_no_failure(engine: str, line: str) -> None:
    assert get(engine).classify(line + "\n", None) is None


@pytest.mark.parametrize(
    ("engine", "before", "where"),
    [
        ("beellama", "", "at load"),
        ("beellama", "main: server is listening on http://x\n", "while serving"),
        ("beellama", "main: server is listening on http://x\nslot update_slots: new prompt, n_ctx = 8\n", "in prefill"),
        ("beellama", "listening on http://x\nnew prompt,\nslot print_timing: n_decoded = 40\n", "in decode"),
        ("lucebox", "[server] listening on http://x\n[server] chat START a\n", "in prefill"),
        ("lucebox", "[server] listening on http://x\n[server] chat START a\n[step 3] committed=9\n", "in decode"),
        ("vllm", "Starting vLLM server on http://x\nAvg generation throughput: 12.0 tokens/s\n", "in decode"),
        ("sglang", "The server is fired up\nPrefill batch. #new-seq: 1\n", "in prefill"),
        ("sglang", "The server is fired up\nPrefill batch.\nDecode batch. #running-req: 1\n", "in decode"),
    ],
)
def test_out_of_memory_says_when(engine: str, before: str, where: str) -> None:
    found = get(engine).classify(before + "CUDA error: out of memory. CUDA out of memory.\n", -6)
    assert found is not None
    assert found[0] is K.OUT_OF_MEMORY
    assert where in found[1]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_first_error_above_a_summary_is_shown(engine: str) -> None:
    summary = {
        "vllm": "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "sglang": "Received sigquit from a child process. It usually means the child failed.",
    }[engine]
    log = f"Traceback (most recent call last):\n  File x\nKeyError: 'layers.5'\nmore\n{summary}\n"
    found = get(engine).classify(log, 1)
    assert found is not None
    assert "KeyError: 'layers.5'" in found[1]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "SIGKILL"),
        (137, "SIGKILL"),
        (-11, "SIGSEGV"),
        (139, "SIGSEGV"),
        (-6, "SIGABRT"),
        (3, "exit code 3"),
        (200, "72"),
    ],
)
def test_exit_codes_in_words(code: int, said: str) -> None:
    found = by_exit_code(code, "last words")
    assert found is not None
    assert found[0] is K.CRASHED
    assert said in found[1]
    assert "last words" in found[1]


def test_code_nothing_or_zero_alone_shows_no_failure() -> None:
    assert by_exit_code(None, "x") is None
    assert by_exit_code(0, "x") is None


def test_earlier_signatures_win_over_earlier_lines() -> None:
    telling, vague = (
        signature(K.OUT_OF_MEMORY, "memory", "no room"),
        signature(K.LAUNCH_FAILED, "failed", "did not start"),
    )
    found = first_failure((telling, vague), "load failed\nout of memory\n", 1)
    assert found == (K.OUT_OF_MEMORY, "no room: out of memory")


def test_an_exception_to_a_signature() -> None:
    entry = signature(K.LAUNCH_FAILED, "failed", "did not start", unless="normal")
    assert first_failure((entry,), "it failed (normal)\n", None) is None
