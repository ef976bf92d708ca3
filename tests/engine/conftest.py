"""The demo model, for tests that need a real file."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.card import card_from_gguf
from engine.demo_model import demo_model_path
from engine.tokenizer import Tokenizer
from engine.types import ModelCard, ModelFileError
from engine.weights.gguf_checkpoint import GgufCheckpoint


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, verified. A machine without it fails, so that nothing is missed."""
    try:
        return demo_model_path()
    except ModelFileError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> GgufCheckpoint:
    return GgufCheckpoint.open(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: GgufCheckpoint) -> Tokenizer:
    return Tokenizer.from_gguf_metadata(smollm2.file.metadata)


@pytest.fixture(scope="session")
def smollm2_card(smollm2: GgufCheckpoint) -> ModelCard:
    return card_from_gguf(smollm2.file, name="smollm2-135m-instruct", numerics="test")
