"""A blocking iterator in a thread: order, errors, bounds, and nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest

from app.node.kinds.feed import Feed
from tests.waiting import until


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def test_everything_arrives_in_order(thread: ThreadPoolExecutor):
    feed = Feed(thread, lambda: iter(range(5000)), threading.Event(), most_waiting=7)
    async with aclosing(feed.read()) as items:
        assert [item async for item in items] == list(range(5000))


async def test_an_error_comes_after_the_items_before_it(thread: ThreadPoolExecutor):
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("lost")

    seen: list[int] = []

    async def read() -> None:
        async with aclosing(Feed(thread, broken, threading.Event()).read()) as items:
            async for item in items:
                seen.append(item)

    with pytest.raises(KeyError, match="lost"):
        await read()
    assert seen == [1, 2]


async def test_the_thread_runs_ahead_by_no_more_than_the_bound(thread: ThreadPoolExecutor):
    made = itertools.count()
    counted = [0]

    def count() -> Iterator[int]:
        for number in made:
            counted[0] = number
            yield number

    stop = threading.Event()
    async with aclosing(Feed(thread, count, stop, most_waiting=10).read()) as items:
        async for _ in items:
            await until(lambda: counted[0] >= 10, what="runs ahead")
            break
    # 10 wait, one was read, and one is in the thread's hand
    assert counted[0] <= 12
    assert stop.is_set()


async def test_closing_waits_until_the_iterator_is_closed_on_its_thread(thread: ThreadPoolExecutor):
    closed_on: list[str] = []

    def endless() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed_on.append(threading.current_thread().name)

    async with aclosing(Feed(thread, endless, threading.Event()).read()) as items:
        async for _ in items:
            break
    assert closed_on
    assert closed_on[0] != threading.main_thread().name


async def test_a_cancelled_reader_waits_too_and_stays_cancelled(thread: ThreadPoolExecutor):
    stop, ended = threading.Event(), threading.Event()

    def slow_to_stop() -> Iterator[int]:
        yield 1
        stop.wait(10)
        ended.set()

    reading = asyncio.Event()

    async def read() -> None:
        async with aclosing(Feed(thread, slow_to_stop, stop).read()) as items:
            async for _ in items:
                reading.set()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
