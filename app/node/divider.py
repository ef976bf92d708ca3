"""One answer's text divided into thoughts, text and calls of tools, step by step.

A step's parts stay together: its text and its tokens reach the stream in one frame, so that
whoever continues the answer can rebuild the parser from what the stream shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import orjson

from app.work import Parsing
from engine.parsers import AnswerParser, Part, Reasoning, Text
from engine.tool_calls import FORMATS
from engine.types import Piece, Step


class Divider:
    """Takes the steps of one answer in order, then its end."""

    def __init__(self, parsing: Parsing, written: str) -> None:
        """`written`: what other nodes wrote of the answer, tags included."""
        self._parser = AnswerParser(
            FORMATS[parsing.calls] if parsing.calls else None,
            parsing.schemas,
            reasoning=parsing.opened,
            thinks=parsing.thinks,
        )
        self._parser.push(written)

    def divide(self, step: Step) -> Step:
        """The step with its text divided. All its tokens count for the channel of its first part; a
        tag belongs to the thoughts that it begins or ends."""
        was_reasoning = self._parser.is_reasoning
        pieces = _pieces(self._parser.push(step.text))
        if pieces:
            (channel, text), *tail = pieces
        else:
            thinks = was_reasoning or self._parser.is_reasoning
            channel, text, tail = "reasoning" if thinks else "text", "", []
        return replace(step, text=text, channel=channel, tail=tuple(tail), spelled=step.text)

    def finish(self, text: str) -> list[Piece]:
        """What `text` and the end set free."""
        return _pieces([*self._parser.push(text), *self._parser.finish()])


def _pieces(parts: Iterable[Part]) -> list[Piece]:
    """Neighbours of one channel are one piece."""
    joined: list[Piece] = []
    for channel, text in map(_piece, parts):
        if joined and joined[-1][0] == channel:
            joined[-1] = (channel, joined[-1][1] + text)
        else:
            joined.append((channel, text))
    return joined


def _piece(part: Part) -> Piece:
    match part:
        case Text(text):
            return "text", text
        case Reasoning(text):
            return "reasoning", text
        case _:
            call = {"name": part.name, "arguments": part.arguments}
            return "tool_call", orjson.dumps(call).decode() + "\n"
