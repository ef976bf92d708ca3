"""What a request to `/v1` asks of the choice of tokens beyond temperature, top_p, top_k and seed.

Which numbers are taken, and what they become for the engine (`engine.types.SamplingParams`).
"""

from __future__ import annotations

from typing import Any, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from app.bodies import Bounded, StrictBody
from app.errors import InvalidRequestError
from engine.grammar import ANY_OBJECT, MAX_CHARACTERS
from engine.types import Grammar, SamplingParams

MAX_BIASES = 1024
MAX_STOP_TOKENS = 64
MAX_TOKEN_ID = 10_000_000
MAX_TOP_LOGPROBS = 20


class SchemaIn(BaseModel):
    """OpenAI's `json_schema`. Answers are held to the schema whether it is `strict` or not."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(default="", max_length=200)
    schema_: dict[str, Any] = Field(alias="schema")


class FormatIn(StrictBody):
    type: str = Field(max_length=100)
    json_schema: SchemaIn | None = None


class ChoiceIn(BaseModel):
    """Fields of a body; each has a default that asks for nothing."""

    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=10)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[int, float] | None = None
    stop_token_ids: Bounded[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(default=None, ge=0, le=10_000_000)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: FormatIn | None = None
    regex: str | None = Field(default=None, min_length=1, max_length=MAX_CHARACTERS["regex"])
    grammar: str | None = Field(default=None, min_length=1, max_length=MAX_CHARACTERS["lark"])

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _few_biases(cls, biases: object) -> object:
        # looked at before its items are: each wrong one would make a fault of its own
        if not isinstance(biases, dict):
            return biases
        found = cast("dict[object, object]", biases)
        if len(found) > MAX_BIASES:
            raise ValueError(f"at most {MAX_BIASES} tokens are taken")
        for key, bias in found.items():
            if not _is_id(key):
                raise ValueError(f"{str(key)[:40]!r} is not a token id")
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise ValueError("a bias is a number from -100 to 100")
            # also where it is not a number, which Python's JSON knows
            if not abs(bias) <= 100:
                raise ValueError("a bias is a number from -100 to 100")
        return {int(cast("str", key)): bias for key, bias in found.items()}

    @field_validator("stop_token_ids")
    @classmethod
    def _few_stop_tokens(cls, ids: list[int] | None) -> list[int] | None:
        if ids and len(ids) > MAX_STOP_TOKENS:
            raise ValueError(f"at most {MAX_STOP_TOKENS} token ids are taken")
        if ids and not 0 <= min(ids) <= max(ids) <= MAX_TOKEN_ID:
            raise ValueError("there are numbers that are no token ids")
        return ids

    def for_choice(self) -> SamplingParams:
        """Raises InvalidRequestError for fields that do not go together or name an unknown format."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError(
                "`top_logprobs` needs `logprobs`: true.", param="top_logprobs"
            )
        return SamplingParams(
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=tuple((self.logit_bias or {}).items()),
            stop_token_ids=tuple(dict.fromkeys(self.stop_token_ids or ())),
            ignore_eos=bool(self.ignore_eos),
            min_tokens=self.min_tokens or 0,
            grammar=self._grammar(),
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    def _grammar(self) -> Grammar | None:
        found = {
            "response_format": _format(self.response_format) if self.response_format else None,
            "regex": Grammar("regex", self.regex) if self.regex else None,
            "grammar": Grammar("lark", self.grammar) if self.grammar else None,
        }
        asked = [(name, grammar) for name, grammar in found.items() if grammar is not None]
        if len(asked) > 1:
            raise InvalidRequestError(
                f"An answer follows one form, not `{asked[0][0]}` and `{asked[1][0]}` at once.",
                param=asked[1][0],
            )
        return asked[0][1] if asked else None


def _is_id(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 9


def _format(asked: FormatIn) -> Grammar | None:
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return ANY_OBJECT
    if asked.type != "json_schema":
        raise InvalidRequestError(
            f"`response_format` of type {asked.type!r} is not known; there are text, json_object and "
            "json_schema.",
            param="response_format",
        )
    if asked.json_schema is None:
        raise InvalidRequestError(
            "`response_format` names no schema; it belongs in `json_schema.schema`.",
            param="response_format",
        )
    return Grammar("json_schema", orjson.dumps(asked.json_schema.schema_).decode())
