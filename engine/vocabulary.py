"""From the vocabulary in a GGUF file's metadata to a `tokenizers` document and control tokens.

Byte-level BPE (`tokenizer.ggml.model` = "gpt2") and SentencePiece-like vocabularies ("llama", see
`sentencepiece.py`). A byte-level vocabulary does not say how text is cut into words before merging;
`tokenizer.ggml.pre` names that rule, and a wrong one gives fluent but wrong prompts, so an unknown
name is an error.

Control tokens stay out of the document: however a user's text is written, encoding it with the
document cannot produce one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from engine import sentencepiece
from engine.types import ModelFileError

# ggml's token types, as they stand in `tokenizer.ggml.token_type`
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


def _bytes_as_letters(*, use_regex: bool) -> dict[str, Any]:
    """Every byte becomes one printable letter; with `use_regex` also GPT-2's word rule."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _words(regex: str) -> list[dict[str, Any]]:
    split = {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
    }
    return [split, _bytes_as_letters(use_regex=False)]


_GPT2 = [_bytes_as_letters(use_regex=True)]
_SINGLE_DIGITS = [{"type": "Digits", "individual_digits": True}, *_GPT2]

_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "qwen2": _words(_QWEN2_WORDS),
    "llama-bpe": _words(_LLAMA3_WORDS),
    "llama3": _words(_LLAMA3_WORDS),
    "llama-v3": _words(_LLAMA3_WORDS),
}
_HTML = re.compile(
    "</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|sub|sup|code|a"
    "|html|body|img|span|bbox|ul|li|div|iframe|footer)>|<s>"
)
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3"})


@dataclass(frozen=True, slots=True)
class Vocabulary:
    # a `tokenizers` JSON document
    tokenizer_json: str
    # text -> id of the tokens that only a template may write; those that are also in the
    # document's vocabulary (such as <think>) are shown when the model writes them
    special_tokens: dict[str, int]


def vocabulary_from_gguf(metadata: Mapping[str, object]) -> Vocabulary:
    """Raises ModelFileError where the vocabulary is missing, inconsistent or of another kind."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "llama":
        document, special = _sentencepiece(metadata)
    elif kind == "gpt2":
        document, special = _byte_level(metadata)
    else:
        raise ModelFileError(
            f"The model file's tokenizer is of the kind {kind!r}; only byte-level BPE ('gpt2') and "
            "SentencePiece-like BPE ('llama') are supported. Choose a model with such a tokenizer, "
            "for example SmolLM2, Qwen, Llama or Gemma."
        )
    return Vocabulary(json.dumps(document, ensure_ascii=False), special)


def _byte_level(metadata: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, int]]:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise ModelFileError(
            f"The model file cuts text into words by the rule {pre!r}, which is not known here. "
            f"Known rules: {', '.join(_PRE_TOKENIZERS)}."
        )
    merges = _list(metadata, "tokenizer.ggml.merges", str)
    ids, special, added = _divided(metadata)
    return _document(ids, _known_merges(merges, ids, special), added, pre), special


def _sentencepiece(metadata: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, int]]:
    ids, special, added = _divided(metadata)
    scores = _list(metadata, "tokenizer.ggml.scores", float)
    types = _list(metadata, "tokenizer.ggml.token_type", int)
    tokens = _list(metadata, "tokenizer.ggml.tokens", str)
    if len(scores) != len(tokens):
        raise ModelFileError("The model file lists fewer scores than tokens; it is damaged.")
    sentencepiece.check_bytes(ids)
    normal = {
        text: score
        for text, score, token_type in zip(tokens, scores, types, strict=True)
        if token_type == _NORMAL
    }
    document = sentencepiece.document(
        ids,
        sentencepiece.merges_by_score(normal, normal),
        _added_tokens(added),
        space_prefix=metadata.get("tokenizer.ggml.add_space_prefix", True) is not False,
    )
    return document, special


def _divided(
    metadata: Mapping[str, object],
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Ids of the tokens that text can hold, of control tokens, and of the first those taken whole."""
    tokens = _list(metadata, "tokenizer.ggml.tokens", str)
    types = _list(metadata, "tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise ModelFileError("The model file lists fewer token types than tokens; it is damaged.")

    ids: dict[str, int] = {}
    special: dict[str, int] = {}
    added: dict[str, int] = {}
    for index, (text, token_type) in enumerate(zip(tokens, types, strict=True)):
        if token_type in (_UNKNOWN, _CONTROL):
            special[text] = index
            continue
        ids[text] = index
        if token_type == _USER_DEFINED:
            (special if looks_like_markup(text) else added)[text] = index
    special.pop("", None)
    added.pop("", None)
    return ids, special, added


def adds_bos_unless_said(metadata: Mapping[str, object]) -> bool:
    """What a file without `tokenizer.ggml.add_bos_token` means: Llama 3 and SentencePiece-like
    vocabularies want one, others do not."""
    is_llama = metadata.get("tokenizer.ggml.model") == "llama"
    return is_llama or metadata.get("tokenizer.ggml.pre") in _LLAMA3


def _list(metadata: Mapping[str, object], key: str, item: type) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or type(cast(Any, value)[0]) is not item:
        raise ModelFileError(
            f"The model file has no usable list {key!r}, so text cannot become tokens. "
            "Choose a file with its tokenizer inside, or convert it again."
        )
    return cast("list[Any]", value)


def looks_like_markup(text: str) -> bool:
    """<think>, <tool_call>, [INST]: structure, which a user must not be able to forge.

    Gemma has tokens for HTML's elements, and those are text like any other; </s> ends a text in
    too many models for that.
    """
    if _HTML.fullmatch(text):
        return False
    fenced = (text[:1], text[-1:]) in (("<", ">"), ("[", "]"))
    return fenced and len(text) > 2 and not any(letter.isspace() for letter in text)


def _known_merges(merges: list[str], ids: dict[str, int], special: dict[str, int]) -> list[str]:
    """The merges between ordinary tokens; those that would build a control token are left out."""
    kept: list[str] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        parts = (left, right, left + right)
        if all(part in ids for part in parts):
            kept.append(merge)
        elif not any(part in special for part in parts):
            raise ModelFileError(
                f"The model file merges {merge[:80]!r}, which is not in its vocabulary; it is damaged. "
                "Download it again."
            )
    return kept


def _added_tokens(added: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": False,
        }
        for text, index in added.items()
    ]


def _document(
    ids: dict[str, int], merges: list[str], added: dict[str, int], pre: str
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(added),
        # Qwen's own tokenizer composes accents before it looks words up
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": _bytes_as_letters(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # Llama 3 takes a word that is in the vocabulary as it is
            "ignore_merges": pre in _LLAMA3,
            "vocab": ids,
            "merges": merges,
        },
    }
