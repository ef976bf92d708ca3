"""A llama's decode step as one call into C++, on its own packed weights.

Weights stay what they are in the file: Q4_0 and Q4_1 keep codes, scales and minima, Q8_0 codes and
scales. Everything else becomes Q8_0, rounded once more. Activations are 16-bit integers in groups
of 32 (activations.h), so results are about as fine as float32 sums over the file's own values.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from engine.cache import KvCache
from engine.kernels import NATIVE
from engine.kernels.cpu.native.library import Library, Place, Sizes, library
from engine.types import OutOfMemoryError
from engine.weights.rows import GROUP, Rows

FOUR, EIGHT = 4, 8
# Slot of llama.h; the head stands outside of all layers.
SLOTS = {"qkv": 0, "out": 1, "gate": 2, "up": 3, "down": 4}
OUTSIDE = -1
# As `pack` in product.h numbers them.
FILE_TYPES = {"Q4_0": 0, "Q4_1": 1, "Q8_0": 2}
# With others the step computes the same, but torch's packed products are faster.
FAST_INSTRUCTIONS = ("avx512-vnni", "avx2")
BYTES_PER_GROUP = {FOUR: 20, EIGHT: 34}


class NativeStep:
    """Packed weights in C++ and the threads that work on them. `close` frees both."""

    def __init__(self, sizes: Sizes, rotations: Tensor, threads: int) -> None:
        """rotations [positions, 1, E / 2] complex64. Raises NativeUnavailableError."""
        self.threads = threads
        self.size_bytes = 0
        self._library: Library = library()
        self.pass_rows = self._library.most_rows
        self._vocabulary, self._width = sizes.vocabulary, sizes.width
        self._rotations = rotations.contiguous()
        self._handle: int | None = self._library.open(byref(sizes))
        if self._handle is None:
            raise _no_memory()
        self._close = weakref.finalize(self, self._library.close, self._handle)

    def close(self) -> None:
        """Stop the threads and free the weights; nothing may be called after it."""
        self._close()
        self._handle = None

    @property
    def _model(self) -> int:
        if self._handle is None:
            raise RuntimeError("The model is closed. Load it again.")
        return self._handle

    def set_norm(self, layer: int, which: int, weight: Tensor) -> None:
        """weight [D] float32; `which` 0 stands before attention, 1 before the products behind it."""
        at = self._library.norm(self._model, layer, which)
        ctypes.memmove(at, weight.contiguous().data_ptr(), weight.nbytes)

    def set_matrix(self, layer: int, slot: int, rows: Rows) -> None:
        """Pack one matrix [N, K]. Raises OutOfMemoryError."""
        n, k = rows.shape
        parts = list(rows.blocks())
        kind = EIGHT if any(file_type == "Q8_0" for file_type, _ in parts) else FOUR
        if self._library.matrix(self._model, layer, slot, kind, n, k):
            raise _no_memory()
        first = 0
        for file_type, raw in parts:
            self._library.pack(
                self._model,
                layer,
                slot,
                FILE_TYPES[file_type],
                raw.ctypes.data,
                first,
                len(raw),
            )
            first += len(raw)
        self.size_bytes += -(-n // 16) * 16 * (k // GROUP) * BYTES_PER_GROUP[kind]

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """[T] -> [T, D] float32 from the packed head, where that is the embedding too.

        Raises IndexError for a token that the table does not have.
        """
        if not 0 <= min(token_ids) <= max(token_ids) < self._vocabulary:
            raise IndexError(f"a token of {token_ids} is not in the table of {self._vocabulary}")
        hidden = torch.empty(len(token_ids), self._width)
        for row, token_id in zip(hidden, token_ids, strict=True):
            self._library.unpack(self._model, OUTSIDE, 0, token_id, row.data_ptr())
        return hidden

    def decode(self, hidden: Tensor, cache: KvCache, token_ids: Sequence[int]) -> Tensor:
        """hidden [T, D] float32, changed in place; each row comes out as if alone. Returns it.

        Raises IndexError beyond the context, OutOfMemoryError.
        """
        start, end = cache.length, cache.length + len(token_ids)
        if end > len(self._rotations):
            raise IndexError(f"position {end - 1} is beyond the context of {len(self._rotations)}")
        cache.reserve(end)
        for first in range(0, len(token_ids), self.pass_rows):
            rows, position = hidden[first : first + self.pass_rows], start + first
            place = Place(
                cache.address,
                self._rotations[position].data_ptr(),
                cache.capacity,
                position,
                len(rows),
            )
            if self._library.decode(self._model, rows.data_ptr(), byref(place), self.threads):
                raise _no_memory()
        cache.claim(token_ids)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [T, D] float32 before the final norm -> [T, V] float32."""
        logits = torch.empty(len(hidden), self._vocabulary)
        hidden = hidden.contiguous()
        for first in range(0, len(hidden), self.pass_rows):
            rows, to = hidden[first : first + self.pass_rows], logits[first:]
            if self._library.score(
                self._model, rows.data_ptr(), len(rows), to.data_ptr(), self.threads
            ):
                raise _no_memory()
        return logits


def native_instructions() -> str:
    """What the byte products run on. Raises NativeUnavailableError."""
    return library().instructions


def native_label() -> str:
    """The level's name in full: equal ones run the same machine code."""
    built = library()
    return f"{NATIVE} {built.instructions} {built.key[:8]}"


def _no_memory() -> OutOfMemoryError:
    return OutOfMemoryError(
        "The machine has no memory or no threads left for the native level. "
        "Choose a smaller model or another level."
    )
