"""An answer divided into its parts: the same however its steps are cut, and wherever it moves."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.node.divider import Divider
from app.work import Parsing
from engine.types import Piece, Step
from tests.app.thinking import CALLS, TEXT, THOUGHTS, WITH_CALLS

PARSING = Parsing(thinks=True, opened=True, calls="qwen")


def told(step: Step) -> list[Piece]:
    return [(step.channel, step.text), *step.tail]


def by_channel(pieces: list[Piece]) -> dict[str, str]:
    joined = {"text": "", "reasoning": "", "tool_call": ""}
    for channel, text in pieces:
        joined[channel] += text
    return joined


def divided(divider: Divider, steps: list[str]) -> list[Piece]:
    made = [divider.divide(Step((1,), text, 1.0)) for text in steps]
    assert [step.spelled for step in made] == steps
    return [piece for step in made for piece in told(step)]


WHOLE = by_channel([*divided(divider := Divider(PARSING, ""), [WITH_CALLS]), *divider.finish("")])


def test_the_parts_are_thoughts_text_and_calls():
    assert (WHOLE["reasoning"], WHOLE["text"]) == (THOUGHTS, TEXT)
    assert WHOLE["tool_call"].count("\n") == len(CALLS)


CUT = st.integers(1, len(WITH_CALLS) - 1)


@given(st.sets(CUT), CUT)
def test_an_answer_that_moves_has_the_same_parts(cuts: set[int], moves_at: int):
    ends = sorted({0, *cuts, moves_at, len(WITH_CALLS)})
    steps = [WITH_CALLS[a:b] for a, b in pairwise(ends)]
    moves_after = ends.index(moves_at)
    pieces = divided(Divider(PARSING, ""), steps[:moves_after])
    second = Divider(PARSING, WITH_CALLS[:moves_at])
    pieces += divided(second, steps[moves_after:])
    assert by_channel([*pieces, *second.finish("")]) == WHOLE


def test_tags_count_for_the_thoughts_that_they_end():
    divider = Divider(PARSING, "")
    channels = [
        divider.divide(Step((1,), text, 1.0)).channel for text in ("a", "</thi", "nk>", "b")
    ]
    assert channels == ["reasoning", "reasoning", "reasoning", "text"]


def test_what_was_held_back_comes_at_the_end():
    divider = Divider(PARSING, "")
    assert divided(divider, ["so</thin"]) == [("reasoning", "so")]
    assert divider.finish("g") == [("reasoning", "</thing")]
