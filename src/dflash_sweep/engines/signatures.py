"""What a server's death looks like: patterns over log lines and exit codes. Imports `errors` and `engines.logtext`.

A signature is data; `first_failure` is the only judge. Text decides before the exit code, because the same code stands
for different deaths and some servers end with 0 after a fatal error.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_sweep.engines.logtext import texts
from dflash_sweep.errors import FailureKind

LINE_CHARS = 300
"""Length to which the showing line is cut in a message."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A line that shows a failure. `meaning`: what it means in words; `unless`: a text that makes the line harmless."""

    kind: FailureKind
    pattern: re.Pattern[str]
    meaning: str
    unless: re.Pattern[str] | None = None


def signature(kind: FailureKind, pattern: str, meaning: str, unless: str | None = None) -> Signature:
    """A signature from plain regular expressions."""
    return Signature(kind, re.compile(pattern), meaning, re.compile(unless) if unless else None)


@dataclass(frozen=True, slots=True)
class Phases:
    """How a log shows where a run was: `ready` = it listens, `prefill` = it reads a prompt, `decode` = tokens flow."""

    ready: re.Pattern[str]
    prefill: re.Pattern[str] | None = None
    decode: re.Pattern[str] | None = None


def _phase(phases: Phases, before: Sequence[str]) -> str:
    """At load, in prefill, or in decode: from the lines before the failing one, the latest mark wins."""
    for line in reversed(before):
        if phases.decode is not None and phases.decode.search(line):
            return "in decode"
        if phases.prefill is not None and phases.prefill.search(line):
            return "in prefill"
        if phases.ready.search(line):
            return "while serving"
    return "at load"


def _shows(entry: Signature, line: str) -> bool:
    return entry.pattern.search(line) is not None and (entry.unless is None or entry.unless.search(line) is None)


def first_failure(
    signatures: Iterable[Signature], log: str, exit_code: int | None, phases: Phases | None = None
) -> tuple[FailureKind, str] | None:
    """The failure that log and exit code show, with the line that shows it; None if they show none.

    Signatures are tried in order, so the telling ones stand before the vague ones; of one signature the first line
    counts. Out of memory gets the phase it happened in. `exit_code` None = still running; 0 alone shows nothing.
    """
    entries = tuple(signatures)
    lines = list(texts(log))
    any_of_them = re.compile("|".join(f"(?:{entry.pattern.pattern})" for entry in entries))
    suspects = [(index, line) for index, line in enumerate(lines) if any_of_them.search(line)]
    for entry in entries:
        for index, line in suspects:
            if _shows(entry, line):
                where = ""
                if entry.kind is FailureKind.OUT_OF_MEMORY and phases is not None:
                    where = f" {_phase(phases, lines[:index])}"
                return entry.kind, f"{entry.meaning}{where}: {line.strip()[:LINE_CHARS]}"
    return by_exit_code(exit_code, lines[-1] if lines else "")


def by_exit_code(exit_code: int | None, last_line: str) -> tuple[FailureKind, str] | None:
    """What an exit code alone says. Negative = ended by a signal; 128 + n is a shell's way to say the same."""
    if exit_code is None or exit_code == 0:
        return None
    said = f"; last line: {last_line.strip()[:LINE_CHARS]}" if last_line else "; it printed nothing"
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code < 0 or exit_code > 128:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        note = " (often the kernel's out-of-memory killer: look into the kernel's log)" if number == 9 else ""
        return FailureKind.CRASHED, f"the server was ended by {name}{note}{said}"
    return FailureKind.CRASHED, f"the server ended with exit code {exit_code}{said}"


def advise(found: tuple[FailureKind, str] | None, kind: FailureKind, advice: str) -> tuple[FailureKind, str] | None:
    """The failure with a sentence of advice added where it is of `kind`."""
    return found if found is None or found[0] is not kind else (found[0], f"{found[1]} — {advice}")


_K = FailureKind

LLAMA_FAMILY: tuple[Signature, ...] = (
    signature(_K.INVALID_CONFIG, r"error: invalid argument: ", "the server does not know a flag"),
    signature(_K.INVALID_CONFIG, r"the argument has been removed", "the server has dropped a flag"),
    signature(
        _K.INVALID_CONFIG, r"error while handling (?:argument|environment variable) ", "the server refused a value"
    ),
    signature(_K.INVALID_CONFIG, r"error: unknown value for |Unsupported cache type: ", "the server refused a value"),
    signature(_K.HEALTH_TIMEOUT, r"couldn't bind HTTP server socket", "the port was taken"),
    signature(
        _K.OUT_OF_MEMORY,
        r"(?:cudaMalloc|hipMalloc) failed: out of memory|CUDA error: out of memory|ErrorOutOfDeviceMemory"
        r"|failed to allocate (?:buffer for|compute)|unable to allocate .* buffer|failed to allocate \S+ buffer",
        "out of memory",
    ),
    signature(
        _K.LAUNCH_FAILED,
        r"is not a valid DFlash drafter|unknown model architecture: 'dflash|missing tensor 'hidden_norm"
        r"|DFlash model requires 'target_layers'|dflash\.block_size must be|vocab_match=0",
        "the draft model does not fit this build or target",
    ),
    signature(
        _K.LAUNCH_FAILED,
        r"DFlash requires ctx_tgt|target layer \d+ input not extracted|layer input tensor is null|n_embd_(?:tgt|dft)",
        "draft and target do not fit together",
    ),
    signature(
        _K.LAUNCH_FAILED,
        r"wrong number of tensors; expected|failed to load draft model",
        "the draft model could not be loaded",
    ),
    signature(
        _K.INVALID_CONFIG,
        r"quantized V cache requires flash_attn|does not divide n_embd_head|SPLIT_MODE_TENSOR requires",
        "the server refused this combination of settings",
    ),
    signature(_K.CRASHED, r"GGML_ASSERT\(.*\) failed", "the server's own check failed"),
    signature(_K.CRASHED, r"CUDA error: |an illegal memory access", "the GPU reported an error"),
    signature(
        _K.DRAFT_INACTIVE,
        r"failed to initialize speculative decoding context|speculative decoding not supported by this context"
        r"|failed to measure draft model memory",
        "the server runs without speculation",
    ),
    signature(
        _K.LAUNCH_FAILED,
        r"exiting due to model loading error|error loading model|failed to load model|Failed to init server",
        "the model could not be loaded",
    ),
)
"""Signatures of llama-server and its forks, most telling first (texts as in llama.cpp's common and server sources)."""

LLAMA_PHASES = Phases(
    ready=re.compile(r"listening on "),
    prefill=re.compile(r"new prompt,|prompt processing"),
    decode=re.compile(r"prompt done|n_decoded|prompt processing done|eval time|decode cycle|dflash cycle|spec cycle"),
)
