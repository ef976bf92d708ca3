from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stopping import StopText

ANSWER = " 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,"


def run(stops: list[str], chunks: list[str]) -> tuple[list[str], bool]:
    """The shown pieces, the flush last, and whether a stop text came."""
    filtering = StopText(stops)
    shown = [filtering.push(chunk)[0] for chunk in chunks]
    return [*shown, filtering.flush()], filtering.stopped


def cuttings(text: str) -> list[list[str]]:
    """Cut at every position into two, one letter at a time, and whole."""
    pairs = [[text[:at], text[at:]] for at in range(len(text) + 1)]
    return [*pairs, list(text), [text]]


def defined(stops: list[str], text: str) -> tuple[str, bool]:
    """The rule itself, without a stream: the first stop text to complete, the longest of several."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@pytest.mark.parametrize(
    ("stops", "answer", "shown", "stopped"),
    [
        pytest.param(["19, 2"], ANSWER, " 17, 18, ", True, id="across-tokens"),
        pytest.param(["20, 3"], ANSWER[:14], ANSWER[:14], False, id="held-tail-comes-out"),
        pytest.param([","], ANSWER, " 17", True, id="one-letter"),
        pytest.param([ANSWER[1:] + " 27"], ANSWER, ANSWER, False, id="never-completed"),
        pytest.param(["18", "17, 18, 1"], ANSWER, " 17, ", True, id="first-to-complete"),
        pytest.param(["b", "ab"], "xab", "x", True, id="longest-of-two-at-one-end"),
        pytest.param(["ab", "b"], "xab", "x", True, id="the-same-in-other-order"),
        pytest.param(["aab"], "aaab!", "a", True, id="overlaps-itself"),
        pytest.param([], "text", "text", False, id="no-stops"),
        pytest.param([""], "text", "text", False, id="empty-stop-is-none"),
    ],
)
def test_the_first_stop_text_to_complete_ends_the_answer_however_it_is_cut(
    stops: list[str], answer: str, shown: str, stopped: bool
) -> None:
    for chunks in cuttings(answer):
        pieces, found = run(stops, chunks)
        assert ("".join(pieces), found) == (shown, stopped)


def test_no_piece_shows_a_beginning_of_the_stop_text_that_came() -> None:
    pieces, _ = run(["19, 2"], list(ANSWER))
    assert not any("9" in piece for piece in pieces)


def test_only_what_may_still_become_a_stop_text_waits() -> None:
    filtering = StopText(["abcd"])
    assert filtering.push("xxab") == ("xx", False)
    assert filtering.push("e") == ("abe", False)


def test_after_the_stop_everything_is_swallowed() -> None:
    filtering = StopText(["."])
    assert filtering.push("Yes. No") == ("Yes", True)
    assert filtering.push(" more") == ("", True)
    assert filtering.flush() == ""


@given(
    stops=st.lists(st.text("ab", max_size=4), max_size=3),
    chunks=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_a_stream_shows_what_the_rule_shows_of_the_whole(
    stops: list[str], chunks: list[str]
) -> None:
    pieces, stopped = run(stops, chunks)
    assert ("".join(pieces), stopped) == defined(stops, "".join(chunks))


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5),
    chunks=st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_what_waits_is_always_the_longest_possible_beginning(
    stops: list[str], chunks: list[str]
) -> None:
    filtering = StopText(stops)
    shown = "".join(filtering.push(chunk)[0] for chunk in chunks)
    if not filtering.stopped:
        text = "".join(chunks)
        waiting = max(n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))
        assert shown == text[: len(text) - waiting]
        assert shown + filtering.flush() == text


def test_hundreds_of_stop_texts_are_looked_for_at_once() -> None:
    stops = [f"stop {n:03}" for n in range(256)]
    for stop in (stops[0], stops[-1]):
        pieces, found = run(stops, list(f"stop 99, stop, {stop} and more"))
        assert ("".join(pieces), found) == ("stop 99, stop, ", True)
