"""Gated units (Shazeer 2020, arXiv:2002.05202): SwiGLU, silu(gate) * up, and Gemma's GEGLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2F], the gate's half first -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def geglu(gate_up: Tensor) -> Tensor:
    """The same with the tanh form of GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
