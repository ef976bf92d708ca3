"""RMS norm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, D] float32, weight [D] float32 -> [T, D] float32; the weight is multiplied last."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)
