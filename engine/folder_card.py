"""The model card of a Hugging Face folder: from tokenizer.json and the settings beside it.

BPE only: byte-level, as Qwen, Llama 3, SmolLM2, DeepSeek and GLM have it, or SentencePiece-like with
byte tokens, as Gemma and Llama 2. Free of torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from engine.card import END_TOKENS
from engine.types import ModelCard, ModelFileError, SamplingDefaults
from engine.vocabulary import looks_like_markup


def card_from_folder(
    files: Mapping[str, dict[str, Any]],
    template: str | None,
    *,
    name: str,
    numerics: str,
    context_tokens: int,
) -> ModelCard:
    """`files`: the folder's JSON by name, `{}` for one that is not there. Raises ModelFileError."""
    document, special = _divided(files["tokenizer.json"], name)
    config, generation = files["config.json"], files["generation_config.json"]
    settings = files["tokenizer_config.json"]
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    named = ends if isinstance(ends, list) else [ends]
    known = [special.get(text) for text in END_TOKENS]
    stops = {index for index in (*named, *known) if type(index) is int and index >= 0}
    written = settings.get("chat_template")
    return ModelCard(
        name=name,
        architecture=str(config.get("model_type")),
        context_tokens=context_tokens,
        tokenizer_json=json.dumps(document, ensure_ascii=False),
        special_tokens=special,
        chat_template=template or (written if isinstance(written, str) else None),
        bos_token=_text(settings.get("bos_token")),
        eos_token=_text(settings.get("eos_token")),
        add_bos=settings.get("add_bos_token") is True,
        stop_token_ids=tuple(sorted(stops)),
        defaults=_defaults(generation),
        numerics=numerics,
    )


def _divided(document: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The document without its control tokens, and these."""
    try:
        bpe = document["model"]
        byte_level = '"ByteLevel"' in json.dumps(document["pre_tokenizer"])
        if bpe["type"] != "BPE" or not (byte_level or bpe.get("byte_fallback") is True):
            raise ModelFileError(
                f"The tokenizer of model {name!r} is neither byte-level BPE nor SentencePiece-like, and "
                "only those are supported. Choose a model with such a tokenizer, for example SmolLM2, "
                "Qwen, Llama or Gemma."
            )
        added = document["added_tokens"]
        special = {
            token["content"]: token["id"]
            for token in added
            if token["special"] or looks_like_markup(token["content"])
        }
        rest = [token for token in added if token["content"] not in special]
    except (KeyError, TypeError):
        raise ModelFileError(
            f"tokenizer.json of model {name!r} is damaged or missing. Download it again."
        ) from None
    return document | {"added_tokens": rest, "post_processor": None}, special


def _text(token: Any) -> str | None:
    """A token's text, which stands there as itself or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _defaults(generation: Mapping[str, Any]) -> SamplingDefaults:
    def said(key: str, otherwise: float) -> float:
        value = generation.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return otherwise
        return value if math.isfinite(value) and value >= 0 else otherwise

    return SamplingDefaults(
        temperature=said("temperature", 0.7),
        top_p=min(1.0, said("top_p", 0.95)),
        top_k=int(said("top_k", 0)),
    )
