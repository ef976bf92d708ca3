"""Paces that do not look at the clock, so that a test can say what happens."""

from __future__ import annotations

from random import Random

from engine.speculation.pace import Pace


class Bold(Pace):
    """As far as it may, whatever it costs."""

    def depth(self, kind: str, most: int) -> int:
        return most


class Fickle(Pace):
    """Any depth, none included."""

    def __init__(self) -> None:
        super().__init__()
        self._random = Random(5)

    def depth(self, kind: str, most: int) -> int:
        return self._random.randint(0, most)
