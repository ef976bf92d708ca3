"""Where the kernels run in tests: on a CUDA device, else in Triton's interpreter on the CPU.

Import this before anything that imports triton: the interpreter is chosen at that moment.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
# programmatic dependent launch, the risky part, is on wherever it can be
PDL = HAS_GPU and torch.cuda.get_device_capability()[0] >= 9

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (it comes with PyTorch's CUDA builds)",
)
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="this machine has no CUDA device")
