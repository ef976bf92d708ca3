from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.card import card_from_bytes, card_from_gguf, card_to_bytes
from engine.types import ModelCard, ModelFileError, SamplingDefaults
from tests.tiny_gguf import tiny_vocabulary

END = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>", "<other>"]


class TinyFile:
    def __init__(self, **more: Any) -> None:
        self.metadata: dict[str, object] = {
            **tiny_vocabulary(control=END),
            "general.architecture": "llama",
            "llama.context_length": 100,
            "tokenizer.ggml.eos_token_id": 261,
            **more,
        }


def tiny_card(**more: Any) -> ModelCard:
    return card_from_gguf(TinyFile(**more), name="tiny", numerics="label")


def test_the_demo_model_s_card(smollm2_card: ModelCard) -> None:
    assert smollm2_card.architecture == "llama"
    assert smollm2_card.context_tokens == 8192
    assert smollm2_card.stop_token_ids == (0, 2)
    assert (smollm2_card.bos_token, smollm2_card.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2_card.add_bos is False
    assert smollm2_card.defaults == SamplingDefaults(0.2, 0.9, 0)
    assert smollm2_card.chat_template is not None


def test_every_end_of_turn_token_ends_an_answer_and_so_does_the_file_s_own() -> None:
    assert tiny_card().stop_token_ids == (257, 258, 259, 260, 261)
    assert tiny_card(**{"tokenizer.ggml.eos_token_id": 5}).stop_token_ids == (5, 257, 258, 259, 260)


@pytest.mark.parametrize(
    ("more", "defaults"),
    [
        ({}, SamplingDefaults(0.7, 0.95, 0)),
        ({"general.name": "SmolLM2 360M"}, SamplingDefaults(0.2, 0.9, 0)),
        (
            {"general.sampling.temp": 1.0, "general.sampling.top_k": 64},
            SamplingDefaults(1.0, 0.95, 64),
        ),
        ({"general.sampling.temp": float("nan")}, SamplingDefaults(0.7, 0.95, 0)),
        ({"general.sampling.temp": "hot"}, SamplingDefaults(0.7, 0.95, 0)),
    ],
)
def test_defaults_come_from_the_file_then_from_its_name(
    more: dict[str, Any], defaults: SamplingDefaults
) -> None:
    assert tiny_card(**more).defaults == defaults


@pytest.mark.parametrize(
    ("more", "add_bos"),
    [
        ({}, False),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
        ({"tokenizer.ggml.add_bos_token": True}, True),
    ],
)
def test_a_beginning_token_is_added_where_the_file_says_so(
    more: dict[str, Any], add_bos: bool
) -> None:
    assert tiny_card(**more).add_bos is add_bos


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"general.architecture": None}, "architecture"),
        ({"llama.context_length": None}, "context"),
        ({"llama.context_length": 0}, "context"),
        ({"tokenizer.ggml.tokens": None}, "tokens"),
    ],
)
def test_a_file_that_cannot_be_served_says_why(more: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelFileError, match=what):
        tiny_card(**more)


def test_ids_outside_the_vocabulary_are_no_tokens() -> None:
    card = tiny_card(**{"tokenizer.ggml.bos_token_id": 10**6})
    assert card.bos_token is None


def test_bytes_bring_the_same_card_back(smollm2_card: ModelCard) -> None:
    data = card_to_bytes(smollm2_card)
    assert card_from_bytes(data) == smollm2_card
    assert card_to_bytes(card_from_bytes(data)) == data
    assert len(data) < 1_000_000


def packed(document: object) -> bytes:
    return b"BCARD\x01" + zlib.compress(json.dumps(document).encode())


def fields(**changes: object) -> dict[str, object]:
    data = card_to_bytes(tiny_card())
    return json.loads(zlib.decompress(data[6:])) | changes


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BCARD\x02" + card_to_bytes(tiny_card())[6:],
        b"BCARD\x01 no zlib",
        card_to_bytes(tiny_card())[:-5],
        packed("a text"),
        packed({}),
        packed(fields(surprise=1)),
        packed(fields(name=5)),
        packed(fields(context_tokens="many")),
        packed(fields(add_bos=1)),
        packed(fields(special_tokens={"<s>": -1})),
        packed(fields(stop_token_ids=[True])),
        packed(fields(stop_token_ids=None)),
        packed(fields(defaults={"temperature": 1})),
        b"BCARD\x01" + zlib.compress(b"[" * 100_000),
        b"BCARD\x01" + zlib.compress(b" " * (200 * 1024 * 1024), 1),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_bytes_that_are_no_card_are_refused(data: bytes) -> None:
    with pytest.raises(ModelFileError, match="model card"):
        card_from_bytes(data)


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_flipped_byte_gives_a_card_or_a_refusal(position: int, bits: int) -> None:
    data = bytearray(card_to_bytes(tiny_card()))
    data[position % len(data)] ^= bits
    with pytest.raises(ModelFileError):
        card_from_bytes(bytes(data))
