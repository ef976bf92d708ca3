"""Which kind of checkpoint a path is."""

from __future__ import annotations

from pathlib import Path

from engine.card import card_from_gguf
from engine.folder_card import card_from_folder
from engine.types import ModelCard
from engine.weights.checkpoint import Checkpoint
from engine.weights.device_shards import open_folder
from engine.weights.fields import Fields
from engine.weights.folder import read_json
from engine.weights.gguf_checkpoint import GgufCheckpoint


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A folder with safetensors, or a GGUF file. Raises ModelFileError."""
    path = Path(path)
    return open_folder(path) if path.is_dir() else GgufCheckpoint.open(path)


def read_card(checkpoint: Checkpoint, *, name: str, numerics: str) -> ModelCard:
    """Raises ModelFileError where the checkpoint lacks what serving it needs."""
    if isinstance(checkpoint, GgufCheckpoint):
        return card_from_gguf(checkpoint.file, name=name, numerics=numerics)
    folder = checkpoint.path
    optional = ("tokenizer_config.json", "generation_config.json")
    files = {
        part: read_json(folder / part) if (folder / part).is_file() else {} for part in optional
    }
    files |= {part: read_json(folder / part) for part in ("config.json", "tokenizer.json")}
    template = folder / "chat_template.jinja"
    return card_from_folder(
        files,
        template.read_text("utf-8", "replace") if template.is_file() else None,
        name=name,
        numerics=numerics,
        context_tokens=Fields.of(checkpoint).count("max_position_embeddings"),
    )
