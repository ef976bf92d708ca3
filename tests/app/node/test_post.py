"""A node serves exactly the highest fence that it has seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.line.types import Assignment
from app.node.post import Post

fences = st.integers(1, 2**52)


def assignment(fence: int) -> Assignment:
    return Assignment("g", fence, b"", "u:1", 0.0)


@given(st.lists(fences | st.none()), fences)
def test_an_assignment_counts_only_with_the_highest_fence(seen: list[int | None], fence: int):
    post = Post()
    for one in seen:
        post.see_fence(one)
    highest = max((one for one in seen if one is not None), default=0)
    assert post.accepts(assignment(fence)) == (fence >= highest)
    assert post.highest_fence == max(highest, fence)


def test_a_lease_that_ended_is_to_be_forgotten_and_the_same_seat_is_not():
    post = Post()
    post.see_seat(None)
    assert not post.must_forget
    post.kept_seat = "u:1"
    post.see_seat("u:1")
    assert not post.must_forget
    post.see_seat(None)
    assert post.must_forget
    assert post.news.is_set()
