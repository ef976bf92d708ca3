"""SentencePiece-like vocabularies: Gemma's real one against llama.cpp, and tiny ones of each kind.

`gemma_tokens.json` holds pairs of a text and its ids, written once with llama.cpp (llama-cpp-python
0.3.36, without the beginning token and without control tokens).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import sentencepiece
from engine.card import card_from_gguf
from engine.chat_template import plain_prompt_ids
from engine.folder_card import card_from_folder
from engine.tokenizer import Tokenizer
from engine.types import ModelCard, ModelFileError
from engine.vocabulary import adds_bos_unless_said
from engine.weights.gguf_checkpoint import GgufCheckpoint

PAIRS: list[tuple[str, list[int]]] = json.loads(
    Path(__file__).with_name("gemma_tokens.json").read_text()
)
BYTE_0 = 3
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")


def tiny_metadata(words: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """<unk>, <s> and </s>, the 256 bytes (ids from BYTE_0), then words with their scores."""
    words = words or {"\u2581": -9.0, "a": -8.0, "b": -7.0, "ab": -1.0, "\u2581a": -2.0}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            *("<unk>", "<s>", "</s>"),
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *words,
        ],
        "tokenizer.ggml.scores": [0.0] * 259 + list(words.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def tiny(words: dict[str, float] | None = None, **changes: Any) -> Tokenizer:
    return Tokenizer.from_gguf_metadata(tiny_metadata(words, **changes))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([index]) for index in tokenizer.encode(text)]


@pytest.fixture(scope="module")
def gemma_card(gemma: GgufCheckpoint) -> ModelCard:
    return card_from_gguf(gemma.file, name="gemma", numerics="test")


def test_gemma_s_ids_are_those_of_llama_cpp(gemma_tokenizer: Tokenizer):
    wrong = [text for text, ids in PAIRS if gemma_tokenizer.encode(text) != ids]
    assert not wrong
    assert len(PAIRS) > 100


def test_gemma_s_card_carries_the_tokenizer_and_its_beginning(
    gemma_card: ModelCard, gemma_tokenizer: Tokenizer
):
    copy = Tokenizer.from_card(gemma_card)
    assert copy.encode(PAIRS[-1][0]) == gemma_tokenizer.encode(PAIRS[-1][0])
    assert copy.vocab_size == 262144
    ids = plain_prompt_ids(copy, gemma_card, "The capital of France is")
    assert ids == [2, 818, 5279, 529, 7001, 563]
    assert {1, 106} <= set(gemma_card.stop_token_ids)


def test_a_folder_with_the_same_vocabulary_gives_the_same_ids(gemma_card: ModelCard):
    document = json.loads(gemma_card.tokenizer_json)
    document["added_tokens"] += [
        {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for text, index in gemma_card.special_tokens.items()
    ]  # fmt: skip
    card = card_from_folder(
        {"tokenizer.json": document} | {name: {} for name in SETTINGS},
        None,
        name="gemma",
        numerics="test",
        context_tokens=64,
    )
    tokenizer = Tokenizer.from_card(card)
    assert card.special_tokens == gemma_card.special_tokens
    assert all(tokenizer.encode(text) == ids for text, ids in PAIRS)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581")))
@settings(deadline=None)
def test_any_text_comes_back_and_appears_without_torn_characters(
    gemma_tokenizer: Tokenizer, text: str
):
    ids = gemma_tokenizer.encode(text)
    decoder = gemma_tokenizer.decoder()
    shown = [decoder.push([index]) for index in ids]
    assert "".join(shown) + decoder.flush() == text
    assert ("\ufffd" in "".join(shown)) == ("\ufffd" in text)
    assert not set(ids) & set(gemma_tokenizer.special_tokens.values())


def test_a_character_without_a_token_becomes_its_bytes_and_waits_for_the_last():
    tokenizer = tiny(add_space_prefix=False)
    ids = tokenizer.encode("aé")
    assert ids[1:] == [BYTE_0 + 0xC3, BYTE_0 + 0xA9]
    decoder = tokenizer.decoder()
    assert [decoder.push([index]) for index in ids] == ["a", "", "é"]


def test_the_pair_with_the_highest_score_is_joined_first():
    words = {"a": -9.0, "b": -8.0, "c": -7.0, "ab": -2.0, "bc": -1.0}
    assert pieces(tiny(words, add_space_prefix=False), "abc") == ["a", "bc"]
    assert pieces(tiny(words | {"bc": -3.0}, add_space_prefix=False), "abc") == ["ab", "c"]


def test_a_space_is_put_in_front_unless_the_file_says_otherwise():
    assert pieces(tiny(), "ab a") == [" ", "ab", " a"]
    assert pieces(tiny(add_space_prefix=False), "ab a") == ["ab", " a"]
    assert tiny().encode("") == []


def test_no_text_spells_a_control_token_or_a_byte():
    words = dict.fromkeys("</s>0x41", -9.0) | {"</": -1.0, "s>": -2.0}
    tokenizer = tiny(words, add_space_prefix=False)
    assert pieces(tokenizer, "</s>") == ["</", "s>"]
    assert pieces(tokenizer, "<0x41>") == list("<0x41>")
    assert tokenizer.encode_with_specials("</s>4", "") == [2, *tokenizer.encode("4")]


def test_html_is_text_and_other_markup_is_for_the_template():
    words = {"a": -1.0, "<table>": 0.0, "<think>": 0.0}
    metadata = tiny_metadata(words, add_space_prefix=False)
    metadata["tokenizer.ggml.token_type"][-2:] = [4, 4]
    tokenizer = Tokenizer.from_gguf_metadata(metadata)
    assert len(tokenizer.encode("<table>")) == 1
    assert len(tokenizer.encode("<think>")) > 1
    assert "<think>" in tokenizer.special_tokens


def test_such_a_file_wants_a_beginning_token_unless_it_says_otherwise():
    assert adds_bos_unless_said(tiny_metadata())


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"scores": None}, "scores"),
        ({"scores": [0.0]}, "fewer scores"),
        ({"token_type": [1]}, "fewer token types"),
        ({"tokens": [f"x{n}" for n in range(264)]}, "single bytes"),
    ],
)
def test_a_damaged_vocabulary_says_why(changes: dict[str, Any], what: str):
    with pytest.raises(ModelFileError, match=what):
        tiny(**changes)


def test_a_token_of_absurd_length_is_refused():
    with pytest.raises(ModelFileError, match="damaged"):
        sentencepiece.merges_by_score({"x" * 600: 0.0}, {})
