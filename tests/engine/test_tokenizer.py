from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tokenizer import Tokenizer
from engine.types import ModelCard, ModelFileError
from tests.engine import references
from tests.tiny_gguf import tiny_vocabulary

REPLACEMENT = "\ufffd"
PEPPER = "\U0001f336"
CONTROL = ["<|im_start|>", "<|im_end|>"]


def counting(first: int, last: int) -> str:
    return ", ".join(map(str, range(first, last + 1))) + ","


def tiny(**vocabulary: Any) -> Tokenizer:
    return Tokenizer.from_gguf_metadata(tiny_vocabulary(**vocabulary))


def pushes(tokenizer: Tokenizer, ids: list[int], prompt_ids: tuple[int, ...] = ()) -> list[str]:
    """What each id shows, and the flush last."""
    decoder = tokenizer.decoder(prompt_ids)
    return [*(decoder.push([index]) for index in ids), decoder.flush()]


@pytest.mark.parametrize(("first", "last"), [(1, 10), (1, 16), (1, 20), (1, 100), (1, 200)])
def test_counting_gives_the_reference_ids(
    smollm2_tokenizer: Tokenizer, first: int, last: int
) -> None:
    ids = smollm2_tokenizer.encode(counting(first, last))
    assert tuple(ids) == references.counting(first, last)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("def fibonacci(n):\n", [1604, 3987, 46477, 24, 94, 727, 198]),
        ("Hello world 🌶"[:12], [19556, 905, 216]),
        (
            "A<|im_end|>\n<|im_start|>system\nB",
            [
                49,
                44,
                108,
                306,
                79,
                486,
                108,
                46,
                198,
                44,
                108,
                306,
                79,
                3738,
                108,
                46,
                9690,
                198,
                50,
            ],
        ),
        ("", []),
    ],
)
def test_ordinary_text_gives_the_reference_ids(
    smollm2_tokenizer: Tokenizer, text: str, ids: list[int]
) -> None:
    assert smollm2_tokenizer.encode(text) == ids


@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFFF, exclude_categories=["Cs", "Cn"]))
)
@settings(deadline=None)
def test_ordinary_text_comes_back_and_holds_no_control_token(
    smollm2_tokenizer: Tokenizer, text: str
) -> None:
    ids = smollm2_tokenizer.encode(text)
    assert smollm2_tokenizer.decode(ids) == text
    assert not set(ids) & set(smollm2_tokenizer.special_tokens.values())


def test_half_of_a_surrogate_pair_becomes_a_replacement(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode("a\ud83dz")) == f"a{REPLACEMENT}z"


def test_the_size_is_that_of_the_file_and_control_tokens_are_known(
    smollm2_tokenizer: Tokenizer,
) -> None:
    assert smollm2_tokenizer.vocab_size == 49152
    assert smollm2_tokenizer.special_tokens["<|im_end|>"] == 2
    assert len(smollm2_tokenizer.special_tokens) == 17


def test_the_card_carries_the_same_tokenizer(
    smollm2_tokenizer: Tokenizer, smollm2_card: ModelCard
) -> None:
    copy = Tokenizer.from_card(smollm2_card)
    text = "Tabs\t\tand  spaces, 123 naïve 🌶 <|im_end|>\n\n"
    assert copy.encode(text) == smollm2_tokenizer.encode(text)
    assert copy.vocab_size == smollm2_tokenizer.vocab_size
    assert copy.to_json() == smollm2_tokenizer.to_json()


# --- decoding


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ([10813, 230, 131, 17], ["", "", PEPPER, "!", ""]),
        ([10813, 230, 49], ["", "", REPLACEMENT + "A", ""]),
        ([10813, 230], ["", "", REPLACEMENT]),
        ([230] * 1000, [REPLACEMENT] * 1000 + [""]),
        ([24211] * 1000, [REPLACEMENT] * 1000 + [""]),
        ([1, 504, 2], ["", "The", "", ""]),
        ([10**6, 504], ["", "The", ""]),
    ],
    ids=["character", "torn", "torn-end", "lone-byte", "real-replacement", "control", "padding"],
)
def test_characters_appear_as_soon_as_they_are_complete(
    smollm2_tokenizer: Tokenizer, ids: list[int], shown: list[str]
) -> None:
    assert pushes(smollm2_tokenizer, ids) == shown


@pytest.mark.parametrize("prompt", [(19556, 905, 15107), (15107,), (19556, 905, 10813)])
def test_an_answer_completes_the_character_in_which_the_prompt_ends(
    smollm2_tokenizer: Tokenizer, prompt: tuple[int, ...]
) -> None:
    assert pushes(smollm2_tokenizer, [230, 131, 17], prompt) == ["", PEPPER, "!", ""]


def test_three_bytes_of_the_prompt_may_wait_for_the_fourth() -> None:
    first, second, third, fourth = PEPPER.encode()
    assert pushes(tiny(), [fourth], (65, first, second, third)) == [PEPPER, ""]


def test_a_whole_prompt_leaves_nothing_behind(smollm2_tokenizer: Tokenizer) -> None:
    assert pushes(smollm2_tokenizer, [504], (19556, 905, 10813, 230, 131)) == ["The", ""]


@given(
    ids=st.lists(st.integers(0, 255), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_any_bytes_show_the_same_however_they_are_cut(ids: list[int], cuts: list[int]) -> None:
    tokenizer = tiny()
    decoder = tokenizer.decoder()
    edges = [0, *sorted(cuts), len(ids)]
    shown = [decoder.push(ids[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    assert "".join(shown) + decoder.flush() == bytes(ids).decode("utf-8", "replace")


# --- vocabularies


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["1234"]),
        ("default", ["1234"]),
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
    ],
)
def test_the_rule_for_words_decides_about_digits(pre: str, pieces: list[str]) -> None:
    tokenizer = tiny(pre=pre, merges=["1 2", "12 3", "123 4"])
    assert [tokenizer.decode([index]) for index in tokenizer.encode("1234")] == pieces


@pytest.mark.parametrize(
    ("pre", "joined"), [("llama-bpe", True), ("qwen2", True), ("gpt-2", False)]
)
def test_the_rule_for_words_decides_about_line_ends_behind_signs(pre: str, joined: bool) -> None:
    tokenizer = tiny(pre=pre, merges=["! Ċ"])
    assert (len(tokenizer.encode("!\n")) == 1) == joined


def test_qwen_composes_accents() -> None:
    assert tiny(pre="qwen2").encode("e\u0301") == list("é".encode())
    assert tiny(pre="gpt-2").encode("e\u0301") == list("e\u0301".encode())


def test_llama3_takes_a_known_word_whole() -> None:
    # "the" cannot be reached by merges, but it stands in the vocabulary
    vocabulary = tiny_vocabulary(pre="llama-bpe")
    vocabulary["tokenizer.ggml.tokens"].append("the")
    vocabulary["tokenizer.ggml.token_type"].append(1)
    assert Tokenizer.from_gguf_metadata(vocabulary).encode("the") == [257]
    vocabulary["tokenizer.ggml.pre"] = "gpt-2"
    assert Tokenizer.from_gguf_metadata(vocabulary).encode("the") == [256, ord("e")]


def test_markup_is_for_the_template_only_but_is_shown() -> None:
    tokenizer = tiny(control=CONTROL, user_defined=["<think>"])
    think = tokenizer.special_tokens["<think>"]
    assert think not in tokenizer.encode("a <think> b")
    assert tokenizer.encode_with_specials("a<think>b", "") == [97, think, 98]
    assert tokenizer.decode([97, think, 98]) == "a<think>b"


def test_other_added_tokens_are_taken_whole_from_ordinary_text() -> None:
    tokenizer = tiny(user_defined=["  é  "])
    assert tokenizer.encode("a  é  b") == [97, 257, 98]
    assert tokenizer.decode([97, 257, 98]) == "a  é  b"


def test_no_merge_leads_to_a_control_token() -> None:
    tokenizer = tiny(merges=["t h"], control=["he"])
    metadata = tiny_vocabulary(merges=["t h"], control=["he"])
    metadata["tokenizer.ggml.merges"].append("h e")
    tokenizer = Tokenizer.from_gguf_metadata(metadata)
    assert tokenizer.encode("he") == list(b"he")


def test_of_two_control_tokens_the_longer_one_is_found() -> None:
    tokenizer = tiny(control=["<|a|>", "<|a|>b"])
    assert tokenizer.encode_with_specials("<|a|>b<|a|>c", "") == [258, 257, ord("c")]


def test_many_control_tokens_cost_no_more_than_one() -> None:
    """Patterns that try each of Gemma's 6,249 at every `<u` would take seconds here."""
    unused = [f"<unused{number}>" for number in range(6000)]
    tokenizer = tiny(control=unused)
    assert tokenizer.special_pattern.pattern.count("unused") == 1
    assert tokenizer.encode_with_specials("<unused17><unused5999><unused6000>", "")[:2] == [
        tokenizer.special_tokens["<unused17>"],
        tokenizer.special_tokens["<unused5999>"],
    ]


def test_control_tokens_that_nest_without_end_are_refused() -> None:
    with pytest.raises(ModelFileError, match="control tokens"):
        tiny(control=["<" * length for length in range(2, 3000)])


@given(
    st.lists(st.text("<a|>b", min_size=2, max_size=5), unique=True, max_size=8), st.text("<a|>b")
)
def test_control_tokens_are_found_as_if_each_were_tried_the_longest_first(
    texts: list[str], text: str
) -> None:
    tokenizer = tiny(control=texts)
    longest_first = sorted(texts, key=len, reverse=True)
    plain = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    assert tokenizer.special_pattern.findall(text) == plain.findall(text)


def test_the_mark_breaks_a_control_token_and_disappears() -> None:
    tokenizer = tiny(control=CONTROL)
    assert tokenizer.encode_with_specials("<|im_end|><#|im_end|>", "#") == [
        258,
        *b"<|im_end|>",
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tokenizer.ggml.model": "bert"}, "only byte-level BPE"),
        ({"tokenizer.ggml.model": None}, "only byte-level BPE"),
        ({"tokenizer.ggml.pre": "new-rule"}, "'new-rule'"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": "t h"}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.token_type": [1]}, "fewer token types"),
        ({"tokenizer.ggml.merges": ["t x", "tx y"]}, "merges"),
        ({"tokenizer.ggml.merges": ["th"]}, "merges"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_says_why(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelFileError, match=what):
        Tokenizer.from_gguf_metadata(tiny_vocabulary() | changes)


@pytest.mark.parametrize("document", ["", "{}", "[1]", '{"version": "1.0"}'])
def test_a_broken_document_says_what_to_do(document: str) -> None:
    with pytest.raises(ModelFileError, match="Download the model file again"):
        Tokenizer(document, {})


def test_a_prompt_is_encoded_in_one_batch(
    smollm2_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a batch lets the web process answer others while a long prompt is encoded."""
    tokenizer = smollm2_tokenizer
    bpe, batches = tokenizer._bpe, list[int]()

    class OnlyBatches:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            batches.append(len(texts))
            return bpe.encode_batch_fast(texts, **options)

    plain = [bpe.encode(text, add_special_tokens=False).ids for text in ("a", "b", "c")]
    (special, number), *_ = tokenizer.special_tokens.items()
    monkeypatch.setattr(tokenizer, "_bpe", OnlyBatches())
    ids = tokenizer.encode_with_specials(f"a{special}b{special}c", "")
    assert ids == [*plain[0], number, *plain[1], number, *plain[2]]
    assert batches == [3]


def test_tags_of_thoughts_are_spelled_though_they_are_control_tokens(
    smollm2_tokenizer: Tokenizer,
) -> None:
    tags = {"<think>": 60_000, "</think>": 60_001}
    special = smollm2_tokenizer.special_tokens | tags
    tokenizer = Tokenizer(smollm2_tokenizer.to_json(), special)
    ids = [60_000, *tokenizer.encode("Hm."), 60_001, special["<|im_end|>"]]
    assert tokenizer.decode(ids) == "<think>Hm.</think>"
    # a grammar still takes them for what they are
    assert not tokenizer.token_bytes[60_000]
