"""Llama on one CUDA device: prefill in torch, decode as one graph per step.

Weights and cache are bfloat16, the residual stream, all vectors and all sums of decode float32.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from engine.cache import KvCache
from engine.runtime.cuda_graph import CudaGraph
from engine.runtime.decode_step import DecodeStep
from engine.runtime.device_cache import DeviceCache
from engine.runtime.llama_weights import LlamaWeights, read_weights
from engine.runtime.prefill import prefill
from engine.types import SamplingParams
from engine.weights.checkpoint import Checkpoint

DTYPE = torch.bfloat16


class CudaLlama:
    """A `Model` that also writes by itself (`engine.models.Writer`). One cache at a time."""

    pass_rows = 1
    prefill_bytes = 0  # prefill reads the weights of decode

    def __init__(self, weights: LlamaWeights) -> None:
        self.weights = weights
        self.context_tokens = weights.context_tokens
        self.decode_bytes = weights.decode_bytes

    @classmethod
    def load(cls, checkpoint: Checkpoint, context_tokens: int | None = None) -> CudaLlama:
        """Raises ModelFileError, OutOfMemoryError."""
        return cls(read_weights(checkpoint, torch.device("cuda"), DTYPE, context_tokens))

    def new_cache(self) -> DeviceCache:
        """A cache with the graph that works on it; the one before must not be used any more."""
        c = self.weights.config
        cache = DeviceCache(
            c.layers, c.kv_heads, c.head_width, self.context_tokens, DTYPE, self.weights.device
        )
        with torch.inference_mode():
            pdl = torch.cuda.get_device_capability()[0] >= 9
            self._step = DecodeStep(self.weights, cache, pdl=pdl)
            self._graph = CudaGraph(self._step)
            cache.traces = self._step.traces
            cache.wipe()
        return cache

    def prefill(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        """One chunk behind what the cache holds. Returns [1, D] float32 for `write` or `logits`."""
        assert isinstance(cache, DeviceCache)
        ids = torch.tensor(token_ids, device=self.weights.device)
        hidden = prefill(self.weights, ids, cache)
        cache.claim(token_ids)
        return hidden.unsqueeze(0)

    def decode(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        """Tokens that others chose, through the kernels of `write`. Returns [T, D]."""
        rows: list[Tensor] = []
        for token_id in token_ids:
            self._step.enqueue_given(token_id, cache.length)
            cache.claim((token_id,))
            rows.append(self._step.hidden.clone())
        return torch.stack(rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32, on the host."""
        rows: list[Tensor] = []
        for row in hidden:
            self._step.hidden.copy_(row)
            self._step.enqueue_head()
            rows.append(self._step.logits.cpu())
        return torch.stack(rows)

    def use_threads(self, count: int) -> None:
        """The host only follows; torch's threads are set by who loads the model."""

    def close(self) -> None:
        """Nothing is held that the interpreter does not free by itself."""

    def write(
        self, hidden: Tensor, cache: KvCache, sampling: SamplingParams, most: int
    ) -> Generator[int, None, None]:
        """Up to `most` tokens behind `hidden`, each as soon as the host sees it.

        Step times are therefore the host's, at most one look (about 0.1 ms) behind the device.
        A token counts as in the cache once the next one is asked for. Raises ModelFileError when
        logits are not numbers, EngineError when the device does not answer.
        """
        with torch.inference_mode():
            self._step.hidden.copy_(hidden.view(-1))
            self._step.enqueue_head()
            tokens = self._graph.tokens(sampling, cache.length, most)
        while True:
            with torch.inference_mode():
                token = next(tokens, None)
            if token is None:
                return
            yield token
            cache.claim((token,))
