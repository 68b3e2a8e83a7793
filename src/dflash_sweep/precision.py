"""A GGUF model file in another precision: re-encoded once with the `gguf` package, kept in the cache folder.

Imports `errors`, `gguf_meta` and `gguf`. Small quantised models are compute bound on a CPU; the same weights as F16 or
F32 are bound by memory, as decoding on a GPU is. The values stay those of the given file: nothing is won back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash_sweep import gguf_meta
from dflash_sweep.errors import ConfigError, EngineMissing

PRECISIONS = ("q8_0", "f16", "f32")
ENCODER_FORMAT = 1
"""Part of a kept file's name: raised whenever the encoding changes."""

_BYTES_PER_WEIGHT = {"q8_0": 34 / 32, "f16": 2.0, "f32": 4.0}
_FREE_MARGIN_BYTES = 64 << 20


def reencoded(path: str | Path, precision: str) -> Path:
    """The same model with its matrices as `precision` (q8_0, f16 or f32); made on the first call, then kept.

    Vectors (norms, biases) stay F32; a matrix whose rows do not divide into Q8_0's blocks of 32 becomes F16. Safe when
    several processes ask at once. Raises ConfigError for another precision, EngineMissing for an unreadable file, a
    folder that cannot be written, or a disk without the room.
    """
    if precision not in PRECISIONS:
        raise ConfigError(
            f"target_precision={precision!r} is not allowed: it takes as_shipped, {', '.join(PRECISIONS)}"
        )
    source = Path(path)
    digest = gguf_meta.file_sha256(source)
    folder = gguf_meta.cache_dir() / "precision"
    target = folder / f"{source.stem}-{digest[:12]}-{precision}-v{ENCODER_FORMAT}.gguf"
    if target.is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f"{target.name}.lock"):
            if not target.is_file():
                _check_room(source, precision, folder)
                partial = target.with_suffix(f".{os.getpid()}.partial")
                try:
                    _encode(source, partial, precision)
                    partial.replace(target)
                finally:
                    partial.unlink(missing_ok=True)
    except OSError as error:
        raise EngineMissing(f"target_precision={precision}: {folder} cannot be written: {error.strerror}") from None
    return target


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; the lock ends with the process that holds it."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _check_room(source: Path, precision: str, folder: Path) -> None:
    needed = int(gguf_meta.details(source)["parameters"] * _BYTES_PER_WEIGHT[precision]) + source.stat().st_size
    free = shutil.disk_usage(folder).free
    if free < needed + _FREE_MARGIN_BYTES:
        raise EngineMissing(
            f"target_precision={precision}: {folder} has {free >> 20} MiB free, about {needed >> 20} MiB are needed"
        )


def _encode(source: Path, target: Path, precision: str) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize, quantize

    wanted = GGMLQuantizationType[precision.upper()]
    file_type = {
        "q8_0": LlamaFileType.MOSTLY_Q8_0, "f16": LlamaFileType.MOSTLY_F16, "f32": LlamaFileType.ALL_F32,
    }[precision]  # fmt: skip
    reader = GGUFReader(str(source))
    architecture = reader.get_field("general.architecture")
    if architecture is None:
        raise EngineMissing(f"model file {source} does not name its architecture")
    writer = GGUFWriter(str(target), architecture.contents())
    _copy_fields(reader, writer, int(file_type))
    for tensor in reader.tensors:
        writer.add_tensor_info(*_tensor_info(tensor, wanted))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:  # one at a time: a model can be larger than memory
        kind = _kind(tensor, wanted)
        data = (
            tensor.data if kind == tensor.tensor_type else quantize(dequantize(tensor.data, tensor.tensor_type), kind)
        )
        writer.write_tensor_data(data)
    writer.close()


def _kind(tensor: Any, wanted: Any) -> Any:
    """Type of one tensor in the new file."""
    from gguf import GGMLQuantizationType as Kind

    if len(tensor.shape) < 2 or tensor.tensor_type in (Kind.I8, Kind.I16, Kind.I32, Kind.I64, Kind.F64):
        return tensor.tensor_type
    if wanted is Kind.Q8_0 and int(tensor.shape[0]) % 32:
        return Kind.F16
    return wanted


def _tensor_info(tensor: Any, wanted: Any) -> tuple[Any, ...]:
    """Arguments of GGUFWriter.add_tensor_info: (name, shape, dtype, bytes, raw type) of the new tensor."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES
    from gguf import GGMLQuantizationType as Kind
    from gguf.quants import quant_shape_to_byte_shape

    kind = _kind(tensor, wanted)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    block, size = GGML_QUANT_SIZES[kind]
    n_bytes = int(np.prod(shape)) // block * size
    if kind in (Kind.F32, Kind.F16):
        return tensor.name, shape, np.dtype(np.float32 if kind is Kind.F32 else np.float16), n_bytes
    if kind in (Kind.I8, Kind.I16, Kind.I32, Kind.I64, Kind.F64):
        return tensor.name, shape, tensor.data.dtype, n_bytes
    return tensor.name, quant_shape_to_byte_shape(shape, kind), np.dtype(np.uint8), n_bytes, kind


def _copy_fields(reader: Any, writer: Any, file_type: int) -> None:
    """All metadata as it is, but the file type; the tokenizer's arrays included."""
    from gguf import GGUFValueType

    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name == "general.file_type":
            writer.add_uint32(name, file_type)
        elif field.types[0] is GGUFValueType.ARRAY:
            writer.add_key_value(name, field.contents(), GGUFValueType.ARRAY, sub_type=field.types[-1])
        else:
            writer.add_key_value(name, field.contents(), field.types[0])
