"""Choosing tokens on the device: the buffers of `engine/kernels/cuda/choice.py` and its launches."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from engine.kernels.cuda.choice import decide, survey
from engine.sampling import log_min_p
from engine.types import SamplingParams

SURVEY_BLOCK = 1024
DECIDE_TILE, DECIDE_WARPS = 8192, 32
# what stands in `seen` where no token does
UNSEEN, BROKEN = -2, -1


def launch_options(*, pdl: bool) -> dict[str, Any]:
    """Keywords of every launch; Triton's interpreter knows nothing of dependent launches."""
    return {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}


class Choice:
    """Sampling parameters, position and chosen tokens, all in memory that a captured graph reads."""

    def __init__(self, embedding: Tensor, positions: int, *, pdl: bool) -> None:
        """embedding [V, D]; `positions`: how many tokens prompt and answer have at most."""
        self._embedding = embedding
        self._options = launch_options(pdl=pdl)
        vocabulary, device = len(embedding), embedding.device
        self._blocks = -(-vocabulary // SURVEY_BLOCK)

        def of_type(dtype: torch.dtype, count: int) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        # temperature, top_p, ln(min_p); top_k, seed (low, high), next position, this step's position
        self.reals = of_type(torch.float64, 3)
        self.ints = of_type(torch.int64, 5)
        self.scores = of_type(torch.float64, vocabulary)
        self._survey = (
            self.scores,
            of_type(torch.float32, self._blocks),
            of_type(torch.int32, self._blocks),
            of_type(torch.float64, self._blocks),
            of_type(torch.int32, self._blocks),
            of_type(torch.float64, self._blocks),
        )
        # token by position; the host reads it while the device writes
        self.seen = torch.full((positions,), UNSEEN, dtype=torch.int32)
        if device.type == "cuda":
            self.seen = self.seen.pin_memory()

    def arm(self, sampling: SamplingParams, position: int) -> None:
        """The next `enqueue` chooses the token at `position` by these parameters.

        Nothing enqueued earlier may still run: it would write into `seen`.
        """
        self.seen.fill_(UNSEEN)
        seed = sampling.seed
        ints = (sampling.top_k, seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, position, position)
        self.ints.copy_(torch.tensor(ints))
        reals = (sampling.temperature, sampling.top_p, log_min_p(sampling.min_p))
        self.reals.copy_(torch.tensor(reals, dtype=torch.float64))

    def place(self, position: int) -> None:
        """The layers work at `position`; nothing is chosen there."""
        self.ints[4] = position

    def enqueue(self, logits: Tensor, hidden: Tensor) -> None:
        """logits [V] float32 -> the token, told to the host; its embedding into hidden [D]."""
        vocabulary, width = self._embedding.shape
        survey[(self._blocks,)](
            logits,
            self.ints,
            self.reals,
            *self._survey,
            V=vocabulary,
            BLOCK=SURVEY_BLOCK,
            enable_fp_fusion=False,
            **self._options,
        )
        decide[(1,)](
            logits,
            self.ints,
            self.reals,
            *self._survey,
            self._embedding,
            hidden,
            self.seen,
            V=vocabulary,
            B=self._blocks,
            BLOCKS=triton.next_power_of_2(self._blocks),
            TILE=DECIDE_TILE,
            D=width,
            WIDTH=triton.next_power_of_2(width),
            num_warps=DECIDE_WARPS,
            enable_fp_fusion=False,
            **self._options,
        )
