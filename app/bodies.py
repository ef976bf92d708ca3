"""Request bodies whose refusal stays cheap.

pydantic gathers every fault of a body: a megabyte of wrong list items, or of unknown fields, would
hold the event loop for about a second. So lists stop at their first fault, and an object with more
fields than any body has is refused before its fields are looked at.
"""

from __future__ import annotations

from typing import Annotated, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_FIELDS = 100
# beyond every list a caller may send; the exact limits are checked where they can be explained
MOST_ITEMS = 10_000

T = TypeVar("T")
Bounded = Annotated[list[T], Field(max_length=MOST_ITEMS, fail_fast=True)]


class StrictBody(BaseModel):
    """A JSON object with known fields only."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, value: object) -> object:
        fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        if len(fields) > MOST_FIELDS:
            raise ValueError("there are too many fields")
        return cast(object, value)
