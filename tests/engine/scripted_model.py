"""A model without weights: it writes a fixed script, whatever the prompt says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.cache import KvCache


class ScriptedModel:
    """Its hidden state [1] is the number of tokens written so far. The script starts over."""

    decode_bytes = 0
    prefill_bytes = 0

    def __init__(
        self, script: Sequence[int], vocabulary: int, prompt_tokens: int, context_tokens: int = 8192
    ) -> None:
        self.context_tokens = context_tokens
        self.pass_rows = 1
        self.script = tuple(script)
        self._vocabulary = vocabulary
        self._prompt_tokens = prompt_tokens
        # called with the cache's length before every pass; may raise
        self.before_pass: Callable[[int], None] = lambda _length: None
        self.passes: list[int] = []
        self.closed = False

    def new_cache(self) -> KvCache:
        return KvCache(1, 1, 2, self.context_tokens, torch.float32)

    def prefill(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        return self._run(token_ids, cache)[-1:]

    def decode(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        return self._run(token_ids, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        rows = torch.zeros(len(hidden), self._vocabulary)
        for row, written in zip(rows, hidden, strict=True):
            row[self.script[int(written) % len(self.script)]] = 1.0
        return rows

    def use_threads(self, count: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def _run(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        self.before_pass(cache.length)
        self.passes.append(len(token_ids))
        cache.reserve(cache.length + len(token_ids))
        cache.claim(token_ids)
        written = cache.length - self._prompt_tokens
        return torch.arange(written + 1 - len(token_ids), written + 1).view(-1, 1)
