"""Which kind of checkpoint a path is."""

from __future__ import annotations

from pathlib import Path

from engine.card import card_from_gguf
from engine.types import ModelCard, ModelFileError
from engine.weights.checkpoint import Checkpoint
from engine.weights.device_shards import open_folder
from engine.weights.gguf_checkpoint import GgufCheckpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A folder with safetensors, or a GGUF file. Raises ModelFileError."""
    path = Path(path)
    return open_folder(path) if path.is_dir() else GgufCheckpoint.open(path)


def read_card(checkpoint: Checkpoint, *, name: str, numerics: str) -> ModelCard:
    """Raises ModelFileError where the checkpoint lacks what serving it needs."""
    if isinstance(checkpoint, GgufCheckpoint):
        return card_from_gguf(checkpoint.file, name=name, numerics=numerics)
    raise ModelFileError(
        f"The tokenizer of {checkpoint.path} cannot be read: only those in GGUF files can. "
        "Choose a GGUF file."
    )
