"""Guesses from the text: the latest place of the longest match, learnt as the text grows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.lookup import LENGTHS, Lookup
from engine.types import SamplingParams


def following(text: list[int], split: int = 0) -> Lookup:
    """A lookup that was told `text`, the first `split` tokens of it as prompt."""
    lookup = Lookup()
    lookup.begin(text[:split], SamplingParams())
    for token in text[split:]:
        lookup.extend([token])
    return lookup


def guess(lookup: Lookup, most: int) -> list[int] | None:
    return list(lookup.propose(most)) if lookup.kind() else None


def test_what_followed_the_same_tokens_is_guessed():
    lookup = following([1, 2, 3, 4, 5, 9, 1, 2, 3])
    assert lookup.kind() == "lookup 3"
    assert lookup.propose(2) == [4, 5]


def test_the_latest_place_wins_and_the_longer_match_before_it():
    assert guess(following([1, 2, 7, 1, 2, 8, 1, 2]), 1) == [8]
    assert guess(following([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2]), 1) == [7]


def test_without_a_repetition_nothing_is_guessed():
    assert following([1, 2, 3, 4]).kind() is None
    assert following([]).kind() is None
    assert following([1, 2, 3, 2]).kind() is None


def test_a_text_that_repeats_itself_goes_round():
    assert guess(following([1, 2, 3, 1, 2, 3, 1, 2]), 7) == [3, 1, 2, 3, 1, 2, 3]


def test_a_prompt_that_goes_on_from_the_text_keeps_it_and_another_does_not():
    lookup = following([1, 2, 3, 4, 5])
    lookup.begin([1, 2, 3, 4, 5, 6, 1, 2], SamplingParams())
    assert guess(lookup, 3) == [3, 4, 5]
    lookup.begin([9, 8, 7, 1, 2], SamplingParams())
    assert lookup.kind() is None


def test_after_forgetting_nothing_of_the_text_is_there():
    lookup = following([1, 2, 3, 1, 2])
    assert lookup.kind()
    lookup.forget()
    lookup.begin([1, 2], SamplingParams())
    assert lookup.kind() is None
    assert not any(lookup._places.values()) or lookup._text == [1, 2]


def naive(text: list[int], most: int) -> list[int] | None:
    for n in LENGTHS:
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                run = text[end:]
                return [run[i % len(run)] for i in range(most)]
    return None


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 40), st.integers(1, 7))
def test_it_equals_a_search_through_the_whole_text(text: list[int], split: int, most: int):
    assert guess(following(text, split), most) == naive(text, most)
