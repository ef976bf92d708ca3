"""The same Llama with its decode step in C++; prefill stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.cache import KvCache
from engine.kernels.cpu.native.library import Sizes
from engine.layers.norm import rms_norm_rows
from engine.machine import core_count
from engine.models.decoder_config import DecoderConfig
from engine.models.llama import EMBEDDING, MATRICES, Llama, head_name
from engine.runtime.native import OUTSIDE, SLOTS, NativeStep
from engine.weights.checkpoint import Checkpoint
from engine.weights.rows import GROUP, Rows

# Stored types whose codes and scales the step keeps, so that its logits need no second look.
KEPT_TYPES = ("Q4_0", "Q4_1", "Q8_0")
MOST_THREADS = 8


class NativeLlama(Llama):
    """Use for level `native` only. Raises NativeUnavailableError where it cannot be built."""

    def _pack(self, checkpoint: Checkpoint) -> None:
        head = self._tables.head_rows
        self._exact_head = head.types <= set(KEPT_TYPES)
        tied = head_name(checkpoint) == EMBEDDING
        self._step = NativeStep(
            _sizes(self.config, head.shape[0], self.context_tokens),
            self._turns[0],
            min(MOST_THREADS, core_count()),
        )
        # out of the packed head in a tenth of the time, where it is the embedding too
        self._embed = self._step.embed if self._exact_head and tied else self._tables.embed
        self._step.set_norm(OUTSIDE, 0, self._final_norm)
        self._step.set_matrix(OUTSIDE, 0, head)
        for n, v in enumerate(self._vectors):
            for which, norm in enumerate((v.attention_norm, v.ffn_norm)):
                self._step.set_norm(n, which, norm)
            for name, rows in _matrices(checkpoint, self.config, n).items():
                self._step.set_matrix(n, SLOTS[name], rows)

    @property
    def decode_bytes(self) -> int:
        return self._step.size_bytes

    @property
    def prefill_bytes(self) -> int:
        return self._prefill.size_bytes

    @property
    def pass_rows(self) -> int:
        return self._step.pass_rows

    def decode(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        return self._step.decode(self._embed(token_ids), cache, token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._step.logits(hidden)
        if not self._exact_head:
            normed = rms_norm_rows(hidden, self._final_norm, self.config.norm_eps)
            self._tables.rescore(logits, normed)
        return logits

    def use_threads(self, count: int) -> None:
        self._step.threads = count

    def close(self) -> None:
        self._step.close()


def fits(config: DecoderConfig) -> bool:
    """Whether the step knows all of it, and every matrix has whole groups of weights in its rows."""
    return config.is_plain and all(columns % GROUP == 0 for _, columns in config.shapes.values())


def _sizes(c: DecoderConfig, vocabulary: int, context: int) -> Sizes:
    return Sizes(
        c.layers,
        c.width,
        c.heads,
        c.kv_heads,
        c.head_width,
        c.ffn_width,
        vocabulary,
        context,
        c.norm_eps,
    )


def _matrices(checkpoint: Checkpoint, config: DecoderConfig, n: int) -> dict[str, Rows]:
    """The slots' rows: gate and up apart, because a block of each is needed at once."""
    shapes = config.shapes
    half = (config.ffn_width, config.width)
    gate, up = MATRICES["gate_up"]
    parts = {
        "qkv": (MATRICES["qkv"], shapes["qkv"]),
        "out": (MATRICES["out"], shapes["out"]),
        "gate": ((gate,), half),
        "up": ((up,), half),
        "down": (MATRICES["down"], shapes["down"]),
    }
    return {
        name: Rows(checkpoint, [part.format(n=n) for part in names], shape)
        for name, (names, shape) in parts.items()
    }
