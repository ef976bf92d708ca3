"""Architectures the engine knows: one file each, and one line in MODELS.

A dense newcomer says in what it differs from a llama, as `qwen3.py` does; any other copies
`llama.py` and changes the config, the names and the block. Both add their line.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from engine.cache import Cache
from engine.kernels import LEVELS, NATIVE
from engine.kernels.cpu.native.build import NativeUnavailableError
from engine.models.decoder_config import DecoderConfig
from engine.models.deepseek_v2 import DeepseekV2
from engine.models.deepseek_v3 import DeepseekV3
from engine.models.deepseek_v32 import DeepseekV32
from engine.models.gemma3_text import Gemma3Text
from engine.models.glm4_moe_lite import Glm4MoeLite
from engine.models.glm_moe_dsa import GlmMoeDsa
from engine.models.llama import Llama
from engine.models.llama_native import NativeLlama, fits
from engine.models.qwen2 import Qwen2
from engine.models.qwen3 import Qwen3
from engine.models.qwen3_moe import Qwen3Moe
from engine.runtime.native import FAST_INSTRUCTIONS, native_instructions
from engine.types import ModelFileError, SamplingParams
from engine.weights.checkpoint import Checkpoint
from engine.weights.fp8 import FP8
from engine.weights.rows import UNPACK_4BIT

log = logging.getLogger(__name__)


class Model(Protocol):
    """What the engine's loop needs of an architecture."""

    @property
    def context_tokens(self) -> int: ...

    @property
    def decode_bytes(self) -> int: ...

    @property
    def prefill_bytes(self) -> int: ...

    @property
    def pass_rows(self) -> int:
        """Most rows that `decode` and `logits` take together with results as if each were alone,
        to the bit, and in clearly less time; 1 where drafts would not pay."""
        ...

    def new_cache(self) -> Cache: ...

    # `cache` is one that `new_cache` of the same model made; its kind is the model's own affair

    def prefill(self, token_ids: Sequence[int], cache: Any) -> Tensor:
        """Run one chunk behind what the cache holds. Returns the last row's state [1, D]."""
        ...

    def decode(self, token_ids: Sequence[int], cache: Any) -> Tensor:
        """Run tokens behind what the cache holds, each as if alone. Returns their states [T, D]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, D] as `prefill` and `decode` return it -> [T, V] float32 on the host."""
        ...

    def use_threads(self, count: int) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Writer(Protocol):
    """A model that chooses its tokens itself, by steps 5 to 10 of the rule in `engine/sampling.py`.

    It is asked only where steps 1 to 4 change nothing and no logprobs are wanted; all other answers
    go through `decode` and `logits`.

    For devices on which a host in between would cost more than the step.
    """

    def write(
        self, hidden: Tensor, cache: Any, sampling: SamplingParams, most: int
    ) -> Generator[int, None, None]:
        """Up to `most` tokens behind `hidden`, without an end of its own.

        Each token but the last is claimed in the cache when the next one is asked for.
        """
        ...


class Loader(Protocol):
    def __call__(self, checkpoint: Checkpoint, level: str, context_tokens: int | None) -> Model: ...


# model_type of a checkpoint -> its class
MODELS: Mapping[str, Loader] = {
    "deepseek_v2": DeepseekV2,
    "deepseek_v3": DeepseekV3,
    "deepseek_v32": DeepseekV32,
    "glm4_moe_lite": Glm4MoeLite,
    "glm_moe_dsa": GlmMoeDsa,
    "gemma3_text": Gemma3Text,
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Moe,
}
# The same for the level `native`, as far as there is a step in C++.
NATIVE_MODELS: Mapping[str, Loader] = {
    "llama": NativeLlama,
}


def load_model(checkpoint: Checkpoint, level: str, context_tokens: int | None = None) -> Model:
    """Raises ModelFileError for an unknown architecture, ValueError for an unknown level."""
    architecture = checkpoint.architecture
    if architecture not in MODELS:
        raise ModelFileError(
            f"The architecture of the model in {checkpoint.path} is {architecture!r}. "
            f"This engine knows: {', '.join(sorted(MODELS))}. Choose another model."
        )
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; there are {', '.join(LEVELS)}")
    if level != NATIVE:
        return MODELS[architecture](checkpoint, level, context_tokens)
    if not _native_fits(checkpoint):
        raise NativeUnavailableError(
            "The native level does not know models of this architecture or these sizes. "
            "Choose another level."
        )
    return NATIVE_MODELS[architecture](checkpoint, level, context_tokens)


def best_level(checkpoint: Checkpoint) -> str:
    """`native` where it can run as fast as it is meant to; else the smallest that keeps the values.

    That is `int4` where the file's are 4-bit already, `fp8` where they are block FP8. Rounding anything else to 4 bits costs
    quality that nobody has checked, so it gets `int8`.
    """
    if _native_fits(checkpoint):
        try:
            if native_instructions() in FAST_INSTRUCTIONS:
                return NATIVE
        except NativeUnavailableError as error:
            log.warning("The native level is not available: %s", error)
    layers = [
        checkpoint.stored_as(name)
        for name in checkpoint.names()
        if ".layers." in name and len(checkpoint.shape(name)) == 2
    ]
    if any(kind == FP8 for kind in layers):
        return "fp8"
    return "int4" if all(kind in UNPACK_4BIT for kind in layers) else "int8"


def _native_fits(checkpoint: Checkpoint) -> bool:
    return checkpoint.architecture in NATIVE_MODELS and fits(DecoderConfig.read(checkpoint))
