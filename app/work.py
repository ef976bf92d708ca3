"""What the web side asks a node for, as it lies in Redis between the two.

The line carries these bytes without looking inside. Only `chat` writes them and only `node` reads
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from engine.types import Grammar, SamplingParams


@dataclass(frozen=True, slots=True)
class Work:
    """One turn's work for a node."""

    model: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
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
        )


def _sampling(data: Mapping[str, Any]) -> SamplingParams:
    """JSON knows neither tuples nor classes."""
    fields = dict(data)
    fields["logit_bias"] = tuple((int(i), float(bias)) for i, bias in fields["logit_bias"])
    fields["stop_token_ids"] = tuple(fields["stop_token_ids"])
    if fields["grammar"] is not None:
        fields["grammar"] = Grammar(**fields["grammar"])
    return SamplingParams(**fields)
