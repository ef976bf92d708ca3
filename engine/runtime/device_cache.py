"""The cache of one text on a device: whole from the start, because captured graphs hold addresses."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.cache import KvCache
from engine.memory import memory_for


class DeviceCache(KvCache):
    """Room for `context_tokens` positions, never less or more."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_width: int,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Raises OutOfMemoryError."""
        super().__init__(layers, kv_heads, head_width, context_tokens, dtype)
        shape = (layers, 2, kv_heads, context_tokens, head_width)
        with memory_for(f"a cache of {context_tokens} positions"):
            self._data = torch.zeros(shape, dtype=dtype, device=device)
        # what else holds something of the text: wiped together with it
        self.traces: list[Tensor] = []

    def wipe(self) -> None:
        """Also the traces, and only after what still runs on the device is done with them."""
        super().wipe()
        if self._data.is_cuda:
            torch.cuda.synchronize(self._data.device)
        for trace in self.traces:
            trace.zero_()

    def layer(self, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values of layer n, [K, S, E] each, the whole room."""
        return self._data[n, 0], self._data[n, 1]
