"""The cache shares prefixes, claims only what was computed, grows, and forgets in memory too."""

from __future__ import annotations

import pytest
import torch

from engine import memory
from engine.cache import GROW_POSITIONS, KvCache
from engine.types import OutOfMemoryError


def cache_of(*token_ids: int, context_tokens: int = 4096) -> KvCache:
    cache = KvCache(2, 1, 4, context_tokens, torch.float32)
    fill(cache, *token_ids)
    return cache


def fill(cache: KvCache, *token_ids: int) -> None:
    """Each position's keys are its token id, its values the negative."""
    start = cache.length
    cache.reserve(start + len(token_ids))
    for slots in cache.views(start, start + len(token_ids))[0]:
        slots[:, 0] = torch.tensor(token_ids).view(-1, 1, 1).float()
        slots[:, 1] = -slots[:, 0]
    cache.claim(token_ids)


def keys(cache: KvCache) -> list[float]:
    return cache.views(0, cache.length)[1][1][0, :, 0].tolist()


@pytest.mark.parametrize(
    ("prompt", "kept"),
    [
        ([1, 2, 3], 2),  # the same prompt: its last token runs again
        ([1, 2, 3, 4], 3),
        ([1, 2], 1),
        ([1, 9, 3, 4], 1),
        ([9, 2, 3], 0),
        ([1], 0),
    ],
)
def test_the_common_prefix_is_kept_but_never_the_whole_prompt(prompt: list[int], kept: int):
    cache = cache_of(1, 2, 3)
    assert cache.keep_prefix(prompt) == kept
    assert cache.tokens == tuple(prompt[:kept])
    assert keys(cache) == prompt[:kept]


def test_growing_keeps_what_is_there_and_clears_the_old_memory():
    cache = cache_of(*range(1, GROW_POSITIONS + 1))
    old = cache.views(0, GROW_POSITIONS)[1][0]
    assert cache.capacity == GROW_POSITIONS
    fill(cache, 7000)
    assert cache.capacity == 2 * GROW_POSITIONS
    assert keys(cache) == [*range(1, GROW_POSITIONS + 1), 7000]
    assert not old.any()


def test_the_cache_stops_growing_at_the_context():
    cache = cache_of(1, context_tokens=GROW_POSITIONS + 8)
    cache.reserve(GROW_POSITIONS + 1)
    assert cache.capacity == GROW_POSITIONS + 8
    assert cache.size_bytes == 2 * 2 * 4 * 4 * (GROW_POSITIONS + 8)


def test_wiping_leaves_no_trace_in_memory():
    cache = cache_of(1, 2, 3)
    everything = cache.views(0, cache.capacity)
    cache.wipe()
    assert cache.tokens == ()
    assert not any(view.any() for group in everything for view in group)


def test_no_memory_is_a_named_error_and_changes_nothing():
    cache = cache_of(1, 2, 3, context_tokens=1 << 60)
    with pytest.raises(OutOfMemoryError, match="shorter context"):
        cache.reserve(1 << 48)
    assert keys(cache) == [1, 2, 3]


def test_other_errors_keep_their_name():
    with pytest.raises(RuntimeError, match="shapes"), memory.memory_for("a test"):
        raise RuntimeError("shapes do not match")
    with pytest.raises(OutOfMemoryError), memory.memory_for("a test"):
        raise MemoryError
