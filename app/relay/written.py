"""What other nodes wrote of an answer, for the node that goes on with it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.relay.types import Entry


@dataclass(frozen=True, slots=True)
class Written:
    """The beginning of an answer.

    A stream without its last entry shows exactly the text that its tokens set free: what they hold
    back (half a character, a possible stop text) is written together with the last entry.
    """

    # entries in the stream
    length: int = 0
    # the answer's tokens so far
    ids: tuple[int, ...] = ()
    # as the model wrote it, tags of thoughts and calls included
    spelled: str = ""
    # of the tokens, those of thoughts
    reasoning_tokens: int = 0
    # every node that wrote some of them had read the whole prompt, nothing of it from before
    was_cold: bool = True

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Written:
        """From the entries of a stream that has not ended. Raises KeyError for foreign data."""
        ids: list[int] = []
        spelled: list[str] = []
        thoughts = 0
        length, cached, was_cold = 0, 0, True
        for entry in entries:
            length += 1
            if entry.kind == "reading":
                cached = entry.data["cached"]
            elif entry.kind == "delta":
                ids += entry.data["ids"]
                spelled.append(entry.data.get("spelled", entry.data["text"]))
                thoughts += entry.data["n"] if entry.data["channel"] == "reasoning" else 0
                was_cold = was_cold and cached == 0
        return cls(length, tuple(ids), "".join(spelled), thoughts, was_cold)
