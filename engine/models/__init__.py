"""Architectures the engine knows: one file each, and one line in MODELS.

A newcomer copies `llama.py`, changes the config, the names and the block, and adds its line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from engine.cache import KvCache
from engine.kernels import KERNELS
from engine.models.llama import Llama
from engine.types import ModelFileError
from engine.weights.gguf import GgufFile
from engine.weights.rows import UNPACK_4BIT


class Model(Protocol):
    """What the engine's loop needs of an architecture."""

    @property
    def context_tokens(self) -> int: ...

    @property
    def decode_bytes(self) -> int: ...

    @property
    def prefill_bytes(self) -> int: ...

    def new_cache(self) -> KvCache: ...

    def prefill(self, token_ids: Sequence[int], cache: KvCache) -> Tensor: ...

    def decode(self, token_ids: Sequence[int], cache: KvCache) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class Loader(Protocol):
    def __call__(self, file: GgufFile, level: str, context_tokens: int | None) -> Model: ...


# general.architecture of a GGUF file -> its class
MODELS: Mapping[str, Loader] = {
    "llama": Llama,
}


def load_model(file: GgufFile, level: str, context_tokens: int | None = None) -> Model:
    """Raises ModelFileError for an unknown architecture, ValueError for an unknown level."""
    architecture = str(file.metadata.get("general.architecture", "none"))
    loader = MODELS.get(architecture)
    if loader is None:
        raise ModelFileError(
            f"The model's architecture is {architecture!r}. "
            f"This engine knows: {', '.join(sorted(MODELS))}. Choose another model."
        )
    if level not in KERNELS:
        raise ValueError(f"unknown level {level!r}; there are {', '.join(KERNELS)}")
    return loader(file, level, context_tokens)


def best_level(file: GgufFile) -> str:
    """The smallest level that keeps the file's values: `int4` where they are 4-bit already.

    Rounding anything else to 4 bits costs quality that nobody has checked, so it gets `int8`.
    """
    layers = [
        t.quant_type.name for t in file.tensors.values() if len(t.shape) == 2 and "blk." in t.name
    ]
    return "int4" if all(kind in UNPACK_4BIT for kind in layers) else "int8"
