"""A SentencePiece-like vocabulary (`tokenizer.ggml.model` = "llama": Gemma, Llama 2, Mistral) as a
`tokenizers` document.

Such a file has a score for each token and no merges: of all neighbours whose concatenation is a
token, those with the highest score are joined first (Sennrich et al. 2016, arXiv:1508.07909, as
SentencePiece does it). Here every way to cut a token in two becomes a merge, in the order of the
scores. Spaces are written as U+2581; characters without a token become one token for each byte.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from engine.types import ModelFileError

SPACE = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
# a longer token would only make the merges many: there are as many as it has characters
_LONGEST_TOKEN = 512


def merges_by_score(scores: Mapping[str, float], known: Container[str]) -> list[list[str]]:
    """Pairs of `known` tokens that make a token of `scores`, the highest score first."""
    merges: list[list[str]] = []
    for text in sorted(scores, key=lambda token: -scores[token]):
        if len(text) > _LONGEST_TOKEN:
            raise ModelFileError(
                f"The model file has a token of {len(text)} characters; it is damaged. "
                "Download it again."
            )
        for end in range(1, len(text)):
            left, right = text[:end], text[end:]
            if left in known and right in known:
                merges.append([left, right])
    return merges


def check_bytes(ids: Mapping[str, int]) -> None:
    """Raises ModelFileError unless each of the 256 bytes has its token."""
    if any(f"<0x{byte:02X}>" not in ids for byte in range(256)):
        raise ModelFileError(
            "The model file's tokenizer lacks tokens for single bytes, so some texts could not be "
            "written in it. Choose another file of this model."
        )


def document(
    ids: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    added: Sequence[dict[str, Any]],
    *,
    space_prefix: bool,
) -> dict[str, Any]:
    """With `space_prefix` a text begins as if a space stood in front of it."""
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prefix = [{"type": "Prepend", "prepend": SPACE}] if space_prefix else []
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "ByteFallback"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": dict(ids),
            "merges": [list(merge) for merge in merges],
        },
    }


def token_bytes(text: str) -> bytes:
    """What an ordinary token shows."""
    byte = BYTE_TOKEN.fullmatch(text)
    if byte:
        return bytes([int(byte[1], 16)])
    return text.replace(SPACE, " ").encode("utf-8", "replace")
