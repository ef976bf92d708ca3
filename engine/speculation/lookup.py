"""Guesses from the text itself: what followed the last time that the same tokens stood here.

Prompt lookup (Saxena 2023) that also learns from the answer: for each of a few lengths a table from
the last n tokens to the place behind them. A token costs one entry a table, O(1); a guess looks the
longest length up first and takes the latest place. Good where an answer repeats: edited text, code,
quotations, lists, names.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.types import SamplingParams

# A match of more tokens is more often right; 1 is hardly ever.
LENGTHS = (8, 5, 3, 2)


class Lookup:
    """Index over one text, the prompt included."""

    def __init__(self) -> None:
        self._text: list[int] = []
        # by length: tokens -> position of the token that followed them last
        self._places: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in LENGTHS}
        self._found: tuple[int, int] | None = None  # length and place

    def begin(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        """A prompt that goes on from the text so far costs only what is new in it."""
        known = len(self._text)
        if known > len(prompt_ids) or self._text != list(prompt_ids[:known]):
            self.forget()
            known = 0
        self._append(prompt_ids[known:])

    def extend(self, token_ids: Sequence[int], hidden: Tensor | None = None) -> None:
        self._append(token_ids)

    def kind(self) -> str | None:
        """`lookup` and the length of the match."""
        for n in LENGTHS:
            place = self._places[n].get(tuple(self._text[-n:]))
            if place is not None:
                self._found = n, place
                return f"lookup {n}"
        return None

    def propose(self, most: int) -> Sequence[int]:
        """What stands at the place that `kind` found; a text that runs into its own end goes round."""
        assert self._found is not None, "kind() comes first and must have found something"
        place = self._found[1]
        run = len(self._text) - place
        return [self._text[place + i % run] for i in range(most)]

    def forget(self) -> None:
        self._text.clear()
        for places in self._places.values():
            places.clear()
        self._found = None

    def close(self) -> None:
        """Nothing is held but the text."""
        self.forget()

    def _append(self, token_ids: Sequence[int]) -> None:
        text = self._text
        for token_id in token_ids:
            end = len(text)
            # only now: the newest place of what stands at the end must not be the end itself
            for n, places in self._places.items():
                if n <= end:
                    places[tuple(text[end - n :])] = end
            text.append(token_id)
