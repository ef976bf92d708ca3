"""Which device computes. Nothing of the GPU level is imported to find out."""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch

from engine.models.decoder_config import DecoderConfig
from engine.types import EngineError
from engine.weights.checkpoint import Checkpoint

Device = Literal["auto", "cpu", "cuda"]
DEVICES = ("auto", "cpu", "cuda")

CUDA_LEVEL = "cuda-bf16"
# architectures that the GPU level knows
CUDA_ARCHITECTURES = ("llama",)
# what its attention works on: powers of two
HEAD_WIDTHS = (16, 32, 64, 128, 256)
# whoever names another level means one of the CPU's
LEVELS_FOR_CUDA = ("auto", "bf16")


def choose_device(wanted: str, level: str, checkpoint: Checkpoint) -> Literal["cpu", "cuda"]:
    """`wanted` "auto" takes the GPU if there is one that can do this, "cuda" insists on it.

    Raises ValueError for an unknown name, ModelFileError for a damaged file, EngineError where
    "cuda" cannot be.
    """
    if wanted not in DEVICES:
        raise ValueError(f"unknown device {wanted!r}; there are {', '.join(DEVICES)}")
    if wanted == "cpu":
        return "cpu"
    obstacle = _obstacle(level, checkpoint)
    if obstacle is None:
        return "cuda"
    if wanted == "cuda":
        raise EngineError(f"{obstacle} Use the device cpu, or auto.")
    return "cpu"


def _obstacle(level: str, checkpoint: Checkpoint) -> str | None:
    """Why the GPU level cannot serve this, as a sentence; None if it can."""
    if not torch.cuda.is_available():
        return "This machine has no CUDA device, or PyTorch is built without CUDA."
    if importlib.util.find_spec("triton") is None:
        return "The GPU level needs the package triton, which comes with PyTorch's CUDA builds."
    if torch.cuda.get_device_capability()[0] < 8:
        return f"{torch.cuda.get_device_name()} is older than bfloat16 (compute capability 8.0)."
    if level not in LEVELS_FOR_CUDA:
        return f"The level {level} is one of the CPU."
    if checkpoint.architecture not in CUDA_ARCHITECTURES:
        return f"The GPU level does not know the architecture {checkpoint.architecture!r} yet."
    config = DecoderConfig.read(checkpoint)
    if not config.is_plain:
        return "The GPU level does not know models with biases yet."
    head_width = config.head_width
    if head_width not in HEAD_WIDTHS:
        return f"The GPU level does not know heads of {head_width} numbers."
    return None
