"""Small GGUF files for tests, written by the `gguf` package: an independent view of the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[np.ndarray, gguf.GGMLQuantizationType]],
    *,
    architecture: str = "llama",
) -> Path:
    """Tensors are float32, (out, in), and stored in the type that stands beside them."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, (values, kind) in tensors.items():
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def tiny_vocabulary(
    *,
    pre: str = "gpt-2",
    merges: Sequence[str] = ("t h",),
    control: Sequence[str] = (),
    user_defined: Sequence[str] = (),
) -> dict[str, Any]:
    """Tokenizer metadata: the 256 bytes (ids 0..255), what the merges make, then the others."""
    tokens = [*_byte_letters(), *(merge.replace(" ", "") for merge in merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *control, *user_defined],
        "tokenizer.ggml.token_type": [1] * len(tokens)
        + [3] * len(control)
        + [4] * len(user_defined),
        "tokenizer.ggml.merges": list(merges),
    }


def _byte_letters() -> list[str]:
    """The letter of each byte, in the order of the bytes, as GPT-2 defined them."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters: list[str] = []
    moved = 0x100
    for byte in range(256):
        if byte in kept:
            letters.append(chr(byte))
        else:
            letters.append(chr(moved))
            moved += 1
    return letters
