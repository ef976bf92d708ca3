"""How a model's weights are divided among devices: which part of which tensor each of them has.

Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053): products whose outcome is split among
heads, feed-forward columns or words are cut by rows, the products behind them by columns. Every
expert is cut, so at batch 1 all devices read the same number of bytes whatever is chosen. Small
matrices and norms stand on every device, the embedding on the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.types import ModelFileError
from engine.weights.block_fp8 import SCALE_SUFFIX
from engine.weights.safetensors import StoredTensor

_BY_ROWS = re.compile(
    r"(self_attn\.(q_proj|q_b_proj|kv_b_proj|k_proj|v_proj)"
    r"|mlp\.(experts\.\d+\.|shared_experts\.)?(gate_proj|up_proj)|lm_head)\.(weight|bias)$"
)
_BY_COLUMNS = re.compile(
    r"(self_attn\.o_proj|mlp\.(experts\.\d+\.|shared_experts\.)?down_proj)\.weight$"
)
_FIRST_ONLY = re.compile(r"^model\.embed_tokens\.weight$")
_OF_HEADS = ("q_proj", "q_b_proj", "kv_b_proj", "o_proj")
_OF_KEY_HEADS = ("k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class Part:
    """What one device holds of a tensor."""

    name: str
    # None: all of it
    axis: int | None
    begin: int
    end: int

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        if self.axis is None:
            return whole
        return (*whole[: self.axis], self.end - self.begin, *whole[self.axis + 1 :])


class Layout:
    """The division of one checkpoint among `devices`."""

    def __init__(
        self, tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], devices: int
    ) -> None:
        self._tensors = tensors
        self._config = config
        self._devices = devices
        quantised: Any = config.get("quantization_config") or {}
        self._block = tuple(quantised.get("weight_block_size") or (1, 1))
        self._left_out = re.compile(
            rf"^model\.layers\.{config.get('num_hidden_layers')}\."
            r"(embed_tokens|shared_head\.head)\.weight$"
        )

    def names(self) -> list[str]:
        """In a fixed order. Left out are the copies of embedding and head that DeepSeek's files
        carry for the layer that drafts."""
        return sorted(name for name in self._tensors if not self._left_out.search(name))

    def axis(self, name: str) -> int | None:
        """Along which a tensor is cut; None for one that is whole."""
        weight = name.removesuffix(SCALE_SUFFIX)
        rows, columns = _BY_ROWS.search(weight), _BY_COLUMNS.search(weight)
        axis = 0 if rows else 1 if columns else None
        if axis is None or self._devices == 1 or weight not in self._tensors:
            return None
        return axis if self._divides(weight, axis) else None

    def parts(self, device: int) -> list[Part]:
        """What device 0..n - 1 holds, in the order of its file."""
        made: list[Part] = []
        for name in self.names():
            if device and _FIRST_ONLY.search(name):
                continue
            axis = self.axis(name)
            if axis is None:
                made.append(Part(name, None, 0, 0))
                continue
            size = self._tensors[name].shape[axis] // self._devices
            made.append(Part(name, axis, device * size, (device + 1) * size))
        return made

    def _divides(self, weight: str, axis: int) -> bool:
        """Whether the cuts fall between heads and between blocks of scales."""
        shape = self._tensors[weight].shape
        if len(shape) <= axis or shape[axis] % self._devices:
            return False
        scales = self._tensors.get(weight + SCALE_SUFFIX)
        if scales is not None and scales.shape[axis] * self._block[axis] != shape[axis]:
            return False
        if scales is not None and scales.shape[axis] % self._devices:
            return False
        heads = self._heads(weight.split(".")[-2])
        return heads is None or heads % self._devices == 0

    def _heads(self, projection: str) -> int | None:
        heads = self._config.get("num_attention_heads")
        if projection in _OF_KEY_HEADS:
            heads = self._config.get("num_key_value_heads", heads)
        elif projection not in _OF_HEADS:
            return None
        if not isinstance(heads, int) or heads < 1:
            raise ModelFileError("The config does not say num_attention_heads; download it again.")
        return heads
