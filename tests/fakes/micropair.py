"""A random target (qwen3, 4 layers of width 64) and a random DFlash draft for it, with a byte tokenizer: 1 MB in all.

Written with `gguf` in a fraction of a second; any part can be made wrong on purpose. Real servers load and draft with
them; the text is noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FF = 64, 4, 2, 1, 32, 128
BLOCK_SIZE = 8
TARGET_LAYERS = (1, 2, 3)

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}<|start|>assistant\n"
)

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class MicroPair:
    target: Path
    draft: Path


def byte_tokens() -> list[str]:
    """One token a byte, in the printable spelling of byte-level BPE, then one merge's result and three specials."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = [byte for byte in range(256) if byte not in plain]
    spelling = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(shifted)}
    return [*(spelling[byte] for byte in range(256)), "th", "<|start|>", "<|end|>", "<|mask|>"]


def _add_tokenizer(writer: GGUFWriter, tokens: list[str]) -> None:
    start, end, mask = (tokens.index(name) for name in ("<|start|>", "<|end|>", "<|mask|>"))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(start)
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_uint32("tokenizer.ggml.mask_token_id", mask)
    writer.add_chat_template(TEMPLATE)


class _Weights:
    """Random matrices of a given spread, one stream of numbers a file."""

    def __init__(self, seed: int, width: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.width = width

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> Matrix:
        numbers: Matrix = (self._rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)
        return numbers

    def block(self, index: int) -> dict[str, Matrix]:
        width, heads, kv = self.width, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        ones, head_ones = np.ones(width, np.float32), np.ones(HEAD_DIM, np.float32)
        named = {
            "attn_norm": ones,
            "attn_q": self.matrix(heads, width, 2.0),
            "attn_k": self.matrix(kv, width, 2.0),
            "attn_v": self.matrix(kv, width, 2.0),
            "attn_output": self.matrix(width, heads, 2.0),
            "attn_q_norm": head_ones,
            "attn_k_norm": head_ones,
            "ffn_norm": ones,
            "ffn_gate": self.matrix(FF, width, 2.0),
            "ffn_up": self.matrix(FF, width, 2.0),
            "ffn_down": self.matrix(width, FF, 2.0),
        }
        return {f"blk.{index}.{name}.weight": weight for name, weight in named.items()}


def _add_sizes(writer: GGUFWriter, layers: int, width: int) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(0)


def _finish(writer: GGUFWriter, tensors: dict[str, Matrix]) -> None:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_target(path: Path, *, seed: int = 1, extra_tokens: int = 0, architecture: str = "qwen3") -> Path:
    """A target. `extra_tokens`: a longer vocabulary, which no draft of the pair shares."""
    tokens = [*byte_tokens(), *(f"<|extra{i}|>" for i in range(extra_tokens))]
    weights = _Weights(seed, WIDTH)
    writer = GGUFWriter(str(path), architecture)
    writer.add_name("micro target")
    _add_sizes(writer, LAYERS, WIDTH)
    _add_tokenizer(writer, tokens)
    tensors = {
        "token_embd.weight": weights.matrix(len(tokens), WIDTH, 8.0),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": weights.matrix(len(tokens), WIDTH, 4.0),
    }
    for index in range(LAYERS):
        tensors |= weights.block(index)
    _finish(writer, tensors)
    return path


def write_draft(
    path: Path,
    *,
    seed: int = 2,
    width: int = WIDTH,
    target_layers: tuple[int, ...] = TARGET_LAYERS,
    block_size: int | None = BLOCK_SIZE,
    extra_tokens: int = 0,
) -> Path:
    """A DFlash draft of one layer that reads the inputs of `target_layers`. `block_size` None leaves the key out."""
    weights = _Weights(seed, width)
    writer = GGUFWriter(str(path), "dflash")
    writer.add_name("micro draft")
    _add_sizes(writer, 1, width)
    if block_size is not None:
        writer.add_uint32("dflash.block_size", block_size)
    writer.add_array("dflash.target_layers", list(target_layers))
    _add_tokenizer(writer, [*byte_tokens(), *(f"<|extra{i}|>" for i in range(extra_tokens))])
    ones = np.ones(width, np.float32)
    tensors = {
        "fc.weight": weights.matrix(width, width * len(target_layers)),
        "enc.output_norm.weight": ones,
        "output_norm.weight": ones,
        **weights.block(0),
    }
    _finish(writer, tensors)
    return path


def write_pair(folder: Path) -> MicroPair:
    """A pair that fits together."""
    folder.mkdir(parents=True, exist_ok=True)
    return MicroPair(target=write_target(folder / "target.gguf"), draft=write_draft(folder / "draft.gguf"))
