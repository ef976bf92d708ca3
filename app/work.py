"""What the web side asks a node for, as it lies in Redis between the two.

The line carries these bytes without looking inside. Only `chat` writes them and only `node` reads
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from engine.tool_calls import FORMATS
from engine.types import Grammar, SamplingParams


@dataclass(frozen=True, slots=True)
class Parsing:
    """How the node divides the model's text; the fields are those of `engine.parsers.AnswerParser`."""

    # whether the model has thoughts, and whether the prompt opened them already
    thinks: bool
    opened: bool
    # a name of `engine.tool_calls.FORMATS`; None where no tools were offered
    calls: str | None = None
    # tool -> argument -> its JSON schema
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


@dataclass(frozen=True, slots=True)
class Work:
    """One turn's work for a node."""

    model: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    # None: all of it is text
    parsing: Parsing | None = None
    # what other nodes wrote of the answer, to go on from (see `GenerateRequest`). Does not travel:
    # a node reads it from the answer's stream.
    resume_ids: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        fields = asdict(self)
        del fields["resume_ids"]
        return orjson.dumps(fields)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Work:
        """Raises ValueError (or its child JSONDecodeError), KeyError or TypeError on foreign bytes."""
        data = orjson.loads(raw)
        return cls(
            model=data["model"],
            prompt_ids=tuple(data["prompt_ids"]),
            max_tokens=data["max_tokens"],
            sampling=_sampling(data["sampling"]),
            stop=tuple(data["stop"]),
            parsing=_parsing(data["parsing"]),
        )


def _parsing(data: Mapping[str, Any] | None) -> Parsing | None:
    if data is None:
        return None
    parsing = Parsing(**data)
    if parsing.calls is not None and parsing.calls not in FORMATS:
        raise ValueError(f"there is no format of calls {parsing.calls!r}")
    return parsing


def _sampling(data: Mapping[str, Any]) -> SamplingParams:
    """JSON knows neither tuples nor classes."""
    fields = dict(data)
    fields["logit_bias"] = tuple((int(i), float(bias)) for i, bias in fields["logit_bias"])
    fields["stop_token_ids"] = tuple(fields["stop_token_ids"])
    if fields["grammar"] is not None:
        fields["grammar"] = Grammar(**fields["grammar"])
    return SamplingParams(**fields)
