"""Rows of a pass kept apart, so that each comes out to the bit as if it were alone.

The libraries order the sums of a matrix product by its shape, so a row's result may depend on how
many others there are. Decode must not (drafts share its pass); a chunk of prefill may.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# Passes of up to this many rows keep them apart; longer ones are prefill.
APART_ROWS = 8


def each_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of x [T, K], row by row where a pass is short."""
    if not 1 < len(x) <= APART_ROWS:
        return function(x)
    return torch.cat([function(x[t : t + 1]) for t in range(len(x))])


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K] W^T for weight [N, K] of the same type -> [T, N]."""
    return each_row(lambda rows: F.linear(rows, weight), x)
