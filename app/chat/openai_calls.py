"""Calls of tools in OpenAI's shape."""

from __future__ import annotations

from typing import Any

import orjson


class Calls:
    """The calls of one answer. A call comes whole, so a stream tells each in one chunk."""

    def __init__(self, generation: str) -> None:
        self._generation = generation
        self.made: list[dict[str, Any]] = []

    def read(self, lines: str) -> list[dict[str, Any]]:
        """The calls of a piece (`engine.types.Piece`) as a stream tells them, with their index."""
        told: list[dict[str, Any]] = []
        # not `splitlines`: JSON takes other ends of lines as they are
        for line in filter(None, lines.split("\n")):
            index = len(self.made)
            call = {
                "id": f"call_{self._generation}_{index}",
                "type": "function",
                "function": orjson.loads(line),
            }
            self.made.append(call)
            told.append({"index": index, **call})
        return told
