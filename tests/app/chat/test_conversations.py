"""Titles, and what of a conversation goes into the next prompt."""

from __future__ import annotations

import pytest

from app.chat.conversations import TITLE_CHARACTERS, title_from


@pytest.mark.parametrize(
    ("question", "title"),
    [
        ("Why is the sky blue?", "Why is the sky blue?"),
        ("  two\n\nlines\t here ", "two lines here"),
        ("word " * 30, "word " * 11 + "word…"),
        ("字" * 100, "字" * TITLE_CHARACTERS + "…"),
        ("a\0b", "a\ufffdb"),
        ("x" * 50 + " " + "y" * 50, "x" * 50 + "…"),
    ],
)
def test_a_title_is_the_questions_first_words(question: str, title: str):
    assert title_from(question) == title
