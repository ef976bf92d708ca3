"""Settings of a checkpoint's config.json, checked; every spelling that is in use is read here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from engine.types import ModelFileError
from engine.weights.checkpoint import Checkpoint

_LARGEST = 2**31


class Fields:
    """A mapping of the config with a name for messages. Every method raises ModelFileError."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self._where = where

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Fields:
        return cls(checkpoint.config, f"The model in {checkpoint.path}")

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; `default` also for null."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key)
        if not math.isfinite(value) or not 0 < value < _LARGEST:
            raise self.wrong(key)
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.number(key, default)
        if value != int(value):
            raise self.wrong(key)
        return int(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key)
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty where the key is absent or null."""
        value = self._value(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key)
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """One integer or a list of them (as eos_token_id is); empty where absent or null."""
        value = self._value(key, [])
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.wrong(key)
        return tuple(items)

    def inner(self, key: str) -> Fields | None:
        """A mapping within; None where it is absent, null or empty."""
        value = self._value(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key)
        return Fields(value, f"{self._where}, in {key},") if value else None

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def wrong(self, key: str) -> ModelFileError:
        value = self.values.get(key)
        said = "does not say" if value is None else f"says {str(value)[:80]!r} for"
        return ModelFileError(
            f"{self._where} {said} {key}, so it cannot be computed. "
            "Download or convert the model again, or choose another."
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions of one kind of layer."""

    base: float
    # default, linear, llama3, yarn, ...: `rope_type`, in old files `type`
    kind: str
    # further settings of that kind: factor, original_max_position_embeddings, ...
    fields: Fields


def plain_rope(base: float) -> Rope:
    """Positions that are not stretched."""
    return Rope(base, "default", Fields({}, "The model"))


def read_rope(config: Fields, layer_type: str | None = None) -> Rope:
    """From `rope_theta` and `rope_scaling`, or transformers 5's `rope_parameters`.

    `layer_type` ("full_attention", "sliding_attention") where a model has one of each; in the old
    spelling sliding layers have `rope_local_base_freq` and no scaling. Raises ModelFileError.
    """
    parameters = config.inner("rope_parameters")
    if parameters is not None and layer_type is not None and parameters.has(layer_type):
        parameters = parameters.inner(layer_type)
    if parameters is not None:
        base = parameters.number("rope_theta", config.number("rope_theta", 10000.0))
    elif layer_type == "sliding_attention":
        return Rope(config.number("rope_local_base_freq", 10000.0), "default", config)
    else:
        base = config.number("rope_theta", 10000.0)
        parameters = config.inner("rope_scaling")
    if parameters is None:
        return Rope(base, "default", config)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    return Rope(base, kind, parameters)
