"""What a model's text is made of: thoughts, calls of tools, and the answer itself.

The text comes in pieces that may end anywhere, also inside a tag; whatever may still become one is
held back. So the parts, joined, are the same however the text was cut. Free of torch.

    reasoning  from `<think>` to `</think>`. A template may open it in the prompt already, which
               `opens_reasoning` reads from the prompt's end; elsewhere only an answer's very
               beginning opens it.
    calls      in the format of the model's family (`engine/tool_calls.py`). A call is told when it is
               complete, so no half name is ever seen; one that cannot be read is text, as written.

White space around thoughts and calls belongs to the format and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.tool_calls import MARKS, Call, CallFormat, Schemas

THINK, THINK_END = "<think>", "</think>"
# Control tokens that are spelled out in an answer, because its parts are told by them.
SPELLED_MARKS = MARKS | {THINK, THINK_END}


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


Part = Text | Reasoning | Call


def opens_reasoning(prompt_end: str) -> bool:
    """Whether what the model writes behind this prompt begins inside its thoughts."""
    return prompt_end.rstrip().endswith(THINK)


class AnswerParser:
    """Takes an answer piece by piece and gives its parts in order."""

    def __init__(
        self,
        calls: CallFormat | None,
        schemas: Schemas,
        *,
        reasoning: bool,
        thinks: bool = True,
    ) -> None:
        """`calls`: None where no tools were offered. `reasoning`: the prompt opened the thoughts.
        `thinks`: whether the model has thoughts at all."""
        self._calls, self._schemas = calls, schemas
        self._state = self._reasoning if reasoning else self._beginning if thinks else self._text
        if not thinks and calls is not None and calls.bare:
            self._state = self._beginning
        self._thinks = thinks
        self._buffer = ""
        self._over = False
        # white space at the end of what was told so far
        self._space = ""
        self._told_text = False

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is a thought, as far as can be told."""
        return self._state == self._reasoning

    def push(self, text: str) -> list[Part]:
        """The parts that `text` completes."""
        self._buffer += text
        return list(self._run())

    def finish(self) -> list[Part]:
        """What was held back, once no more text comes."""
        self._over = True
        return list(self._run())

    def _run(self) -> Iterator[Part]:
        """Let each state take from the buffer until one wants more text."""
        while True:
            state, length = self._state, len(self._buffer)
            yield from state()
            if self._state == state and len(self._buffer) == length:
                return

    def _beginning(self) -> Iterator[Part]:
        """Nothing was written yet but white space."""
        start = self._buffer.lstrip()
        if self._thinks and start.startswith(THINK):
            self._buffer, self._state = start[len(THINK) :], self._reasoning
        elif self._calls is not None and self._calls.bare and start.startswith("{"):
            self._state = self._bare
        elif self._over or not (start == "" or (self._thinks and THINK.startswith(start))):
            self._state = self._text
        yield from ()

    def _reasoning(self) -> Iterator[Part]:
        before, tag = self._until(THINK_END)
        told = self._visible(before, first=not self._told_text)
        if told:
            self._told_text = True
            yield Reasoning(told)
        if tag:
            self._space, self._told_text, self._state = "", False, self._after_reasoning
        elif self._over:
            self._space = ""

    def _after_reasoning(self) -> Iterator[Part]:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            bare = self._calls is not None and self._calls.bare and self._buffer.startswith("{")
            self._state = self._bare if bare else self._text
        yield from ()

    def _text(self) -> Iterator[Part]:
        calls = self._calls
        before, tag = self._until(calls.begin if calls and not calls.bare else "")
        told = self._visible(before, first=False)
        if told:
            yield Text(told)
        if tag:
            self._space, self._state = "", self._call
        elif self._over and self._space:
            yield Text(self._space)
            self._space = ""

    def _call(self) -> Iterator[Part]:
        assert self._calls is not None, "entered by its tag only"
        inside, tag = self._until(self._calls.end, whole=True)
        if not tag and not self._over:
            return
        made = self._calls.read(inside, self._schemas)
        self._state = self._after_call
        if made:
            yield from made
        else:
            yield Text(self._calls.begin + inside + tag)
            self._state = self._text

    def _after_call(self) -> Iterator[Part]:
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._state = self._text
        yield from ()

    def _bare(self) -> Iterator[Part]:
        """The whole answer may be a call; only its end can tell."""
        assert self._calls is not None, "entered with a format only"
        if not self._over or not self._buffer:
            return
        inside, self._buffer = self._buffer, ""
        made = self._calls.read(inside, self._schemas)
        yield from made or [Text(inside)]

    def _until(self, tag: str, *, whole: bool = False) -> tuple[str, str]:
        """Take the buffer up to the tag, and the tag. Without one in sight take what cannot be a
        part of it, or nothing if the `whole` is wanted at once."""
        found = self._buffer.find(tag) if tag else -1
        if found >= 0:
            before, self._buffer = self._buffer[:found], self._buffer[found + len(tag) :]
            return before, tag
        if whole and not self._over:
            return "", ""
        held = 0 if self._over else _held(self._buffer, tag)
        end = len(self._buffer) - held
        before, self._buffer = self._buffer[:end], self._buffer[end:]
        return before, ""

    def _visible(self, text: str, *, first: bool) -> str:
        """`text` behind the space held so far; its own space at the end is held in turn."""
        text = self._space + text
        if first:
            text = text.lstrip()
        told = text.rstrip()
        self._space = text[len(told) :]
        return told


def _held(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    longest = min(len(tag) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if tag.startswith(text[-n:])), 0)
