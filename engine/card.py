"""The model card: made from a GGUF file on the node, sent as bytes, read on the web side.

Bytes are `BCARD` + one version byte + zlib of a JSON object with the fields of `ModelCard`.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Protocol, cast

from engine.types import ModelCard, ModelFileError, SamplingDefaults
from engine.vocabulary import adds_bos_unless_said, vocabulary_from_gguf

_HEAD = b"BCARD\x01"
# a vocabulary of 262,144 tokens makes 16 MB of JSON and 4 MB compressed
_MAX_BYTES = 32 * 1024 * 1024
_MAX_JSON_BYTES = 128 * 1024 * 1024
_MAX_CONTEXT_TOKENS = 1 << 30

# Tokens that end a turn or a text in the common chat formats. A checkpoint names one end token
# only, and its chat template may use another.
END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "</s>",
)

# What the authors recommend where the file does not say it: part of the name -> settings.
_DEFAULTS = {"smollm2": SamplingDefaults(temperature=0.2, top_p=0.9)}
_OTHERWISE = SamplingDefaults(temperature=0.7, top_p=0.95)


class HasMetadata(Protocol):
    """A `GgufFile`, or anything else with a GGUF file's metadata."""

    @property
    def metadata(self) -> Mapping[str, object]: ...


def card_from_gguf(file: HasMetadata, *, name: str, numerics: str) -> ModelCard:
    """Raises ModelFileError where the file lacks what serving it needs."""
    metadata = file.metadata
    architecture = _text(metadata, "general.architecture")
    if architecture is None:
        raise ModelFileError(
            f"The file of model {name!r} does not say its architecture. Convert it again."
        )
    context = metadata.get(f"{architecture}.context_length")
    if not isinstance(context, int) or not 0 < context <= _MAX_CONTEXT_TOKENS:
        raise ModelFileError(
            f"The file of model {name!r} does not say how long its context is. Convert it again."
        )
    vocabulary = vocabulary_from_gguf(metadata)
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", adds_bos_unless_said(metadata))
    return ModelCard(
        name=name,
        architecture=architecture,
        context_tokens=context,
        tokenizer_json=vocabulary.tokenizer_json,
        special_tokens=vocabulary.special_tokens,
        chat_template=_text(metadata, "tokenizer.chat_template") or None,
        bos_token=_token(metadata, "tokenizer.ggml.bos_token_id"),
        eos_token=_token(metadata, "tokenizer.ggml.eos_token_id"),
        add_bos=add_bos is True,
        stop_token_ids=_stop_token_ids(metadata, vocabulary.special_tokens),
        defaults=_defaults(metadata, name),
        numerics=numerics,
    )


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) else None


def _token_id(metadata: Mapping[str, object], key: str) -> int | None:
    value = metadata.get(key)
    tokens = cast("list[str]", metadata["tokenizer.ggml.tokens"])
    return value if isinstance(value, int) and 0 <= value < len(tokens) else None


def _token(metadata: Mapping[str, object], key: str) -> str | None:
    index = _token_id(metadata, key)
    return None if index is None else cast("list[str]", metadata["tokenizer.ggml.tokens"])[index]


def _stop_token_ids(
    metadata: Mapping[str, object], special_tokens: Mapping[str, int]
) -> tuple[int, ...]:
    named = (
        _token_id(metadata, f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot", "eom")
    )
    known = (special_tokens.get(text) for text in END_TOKENS)
    return tuple(sorted({index for index in (*named, *known) if index is not None}))


def _defaults(metadata: Mapping[str, object], name: str) -> SamplingDefaults:
    names = " ".join(
        (name, str(metadata.get("general.basename")), str(metadata.get("general.name")))
    )
    base = next((found for part, found in _DEFAULTS.items() if part in names.lower()), _OTHERWISE)

    def said(key: str, otherwise: float) -> Any:
        value = metadata.get(f"general.sampling.{key}")
        return value if _is_number(value) else otherwise

    return SamplingDefaults(
        temperature=said("temp", base.temperature),
        top_p=min(1.0, said("top_p", base.top_p)),
        top_k=int(said("top_k", base.top_k)),
    )


def card_to_bytes(card: ModelCard) -> bytes:
    """The card as a node publishes it; equal cards give equal bytes."""
    document = asdict(card) | {"special_tokens": dict(card.special_tokens)}
    text = json.dumps(document, ensure_ascii=False, sort_keys=True)
    return _HEAD + zlib.compress(text.encode("utf-8", "replace"), 6)


def card_from_bytes(data: bytes) -> ModelCard:
    """Raises ModelFileError for bytes that are no card, too large, or of another version."""
    if not data.startswith(_HEAD):
        raise _unreadable("it is of another version of Baton, or no card at all")
    if len(data) > _MAX_BYTES:
        raise _unreadable("it is too large")
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(data[len(_HEAD) :], _MAX_JSON_BYTES)
        if not inflate.eof:
            raise _unreadable("it is cut short or too large")
        document = json.loads(text)
    except (zlib.error, ValueError, RecursionError):
        raise _unreadable("it is damaged") from None
    return _checked(document)


def _unreadable(why: str) -> ModelFileError:
    return ModelFileError(
        f"The model card of a node cannot be read: {why}. Run the same version of Baton everywhere."
    )


def _checked(document: Any) -> ModelCard:
    if not isinstance(document, dict):
        raise _unreadable("it is no object")
    found = cast("dict[str, Any]", document)
    if set(found) != {field.name for field in fields(ModelCard)}:
        raise _unreadable("its fields are not the ones expected")
    special, stops, defaults = found["special_tokens"], found["stop_token_ids"], found["defaults"]
    right = (
        all(isinstance(found[key], str) for key in _TEXTS)
        and all(found[key] is None or isinstance(found[key], str) for key in _OPTIONAL_TEXTS)
        and _is_count(found["context_tokens"])
        and isinstance(found["add_bos"], bool)
        and isinstance(special, dict)
        and all(map(_is_count, cast("dict[str, Any]", special).values()))
        and isinstance(stops, list)
        and all(map(_is_count, cast("list[Any]", stops)))
        and isinstance(defaults, dict)
        and set(cast("dict[str, Any]", defaults)) == {"temperature", "top_p", "top_k"}
        and all(map(_is_number, cast("dict[str, Any]", defaults).values()))
    )
    if not right:
        raise _unreadable("one of its fields is of the wrong kind")
    found["stop_token_ids"] = tuple(stops)
    found["defaults"] = SamplingDefaults(**defaults)
    return ModelCard(**found)


_TEXTS = ("name", "architecture", "tokenizer_json", "numerics")
_OPTIONAL_TEXTS = ("chat_template", "bos_token", "eos_token")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0
