from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.relay.types import Entry, EntryKind
from app.relay.writer import RelayWriter
from app.relay.written import Written
from app.store.client import Store
from tests.app.relay.generations import POOL, put_generation


def reading(cached: int = 0) -> tuple[EntryKind, dict[str, object]]:
    return "reading", {"done": 3, "total": 3, "cached": cached, "t_ms": 1.0}


def delta(*ids: int) -> tuple[EntryKind, dict[str, object]]:
    return "delta", {"text": "x", "channel": "text", "n": len(ids), "ids": list(ids), "t_ms": 1.0}


def of(*entries: tuple[EntryKind, dict[str, object]]) -> Written:
    return Written.of(Entry(f"{n}-0", kind, data) for n, (kind, data) in enumerate(entries, 1))


def test_the_tokens_of_all_nodes_come_in_order():
    found = of(reading(), delta(1, 2), delta(3), reading(), delta(4))
    assert found == Written(5, (1, 2, 3, 4), "xxx")


def test_the_text_is_the_one_that_the_model_wrote():
    kind, data = delta(1, 2)
    thoughts = data | {"channel": "reasoning", "spelled": "<think>x"}
    found = of((kind, thoughts), delta(3))
    assert (found.spelled, found.reasoning_tokens) == ("<think>xx", 2)


def test_an_empty_stream_is_nothing():
    assert of() == Written(0, (), was_cold=True)


@pytest.mark.parametrize(
    ("entries", "cold"),
    [
        ([reading(7), delta(1)], False),
        ([reading(7), reading(), delta(1)], True),
        ([reading(), delta(1), reading(7)], True),
        ([reading(), delta(1), reading(7), delta(2)], False),
    ],
)
def test_only_those_who_wrote_count_as_warm(
    entries: Sequence[tuple[EntryKind, dict[str, object]]], cold: bool
):
    assert of(*entries).was_cold is cold


async def test_a_long_stream_is_read_to_its_end(store: Store):
    await put_generation(store)
    writer = RelayWriter(store, POOL)
    await writer.append("g1", 7, [reading(), *(delta(n) for n in range(1200))])
    assert await writer.written("g1") == Written(1201, tuple(range(1200)), "x" * 1200)
