from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import pytest

from app.errors import StoreUnavailableError, TooManyReadersError
from app.line.board import MOST_READERS, Board
from app.line.line import Line
from app.line.types import Place
from app.store import keys
from app.store.bell import Bell
from app.store.client import Store
from tests.app.line.hall import POOL, Hall, limits
from tests.waiting import until


class CountingLine(Line):
    """Counts the looks at places, and fails some of them."""

    calls = 0
    failing = False
    looked_up: Sequence[str] = ()

    async def places(
        self, pool: str, generations: Sequence[str], *, watched: bool
    ) -> dict[str, Place]:
        self.calls += 1
        self.looked_up = generations
        if self.failing:
            raise StoreUnavailableError
        return await super().places(pool, generations, watched=watched)


@pytest.fixture
def line(hall: Hall) -> CountingLine:
    return CountingLine(hall.store, hall.settings)


@pytest.fixture
async def board(line: CountingLine, bell: Bell) -> AsyncIterator[Board]:
    async with Board(line, bell) as opened:
        yield opened


async def test_a_watcher_hears_of_each_change_of_its_place(
    hall: Hall, line: CountingLine, board: Board
) -> None:
    node = await hall.node()
    await hall.ask("holder", generation="h", hold=False)
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    wake = asyncio.Event()
    async with board.watch(POOL, "b1", wake) as watched:

        async def rank_is(rank: int | None) -> Place:
            async with asyncio.timeout(5):
                while watched.place is None or watched.place.rank != rank:
                    await wake.wait()
                    wake.clear()
            return watched.place

        await rank_is(2)
        await hall.line.leave("ann")
        await rank_is(1)
        await node.take()
        await hall.write_end("h")
        await node.finish()
        assert (await rank_is(None)).state == "assigned"
        wake.clear()
        # a round that finds nothing new wakes nobody
        calls = line.calls
        await hall.store.command("PUBLISH", keys.line_bell(POOL), "")
        await until(lambda: line.calls > calls)
        assert not wake.is_set()


async def test_watching_keeps_the_seat(hall: Hall, board: Board) -> None:
    await hall.node()
    await hall.ask("holder")
    await hall.ask("ann", generation="a1")
    seen = f"{keys.pool_prefix(POOL)}seen"
    place = await hall.place("a1")
    before = float(await hall.store.command("ZSCORE", seen, place.ticket))

    async def is_renewed() -> bool:
        return float(await hall.store.command("ZSCORE", seen, place.ticket)) > before

    async with board.watch(POOL, "a1", asyncio.Event()):
        await until(is_renewed)


async def test_a_watched_answer_outlasts_the_shortest_grace(store: Store, bell: Bell) -> None:
    hall = Hall(store, limits(reconnect_grace_seconds=1))
    node = await hall.node()
    await hall.ask_at_node("ann", "a1", node)
    until_ms = await hall.now_ms() + 3000
    async with Board(hall.line, bell) as board, board.watch(POOL, "a1", asyncio.Event()):
        while await hall.now_ms() < until_ms:
            assert (await node.beat()).cancel is None
            await asyncio.sleep(0.05)


async def test_one_question_may_have_many_watchers(hall: Hall, board: Board) -> None:
    await hall.node()
    await hall.ask("ann", generation="a1")
    one, two = asyncio.Event(), asyncio.Event()
    async with board.watch(POOL, "a1", one) as first:
        async with board.watch(POOL, "a1", two) as second:
            await asyncio.wait_for(asyncio.gather(one.wait(), two.wait()), 5)
            assert second.place == first.place
        one.clear()
        await hall.line.cancel(POOL, "a1", "stopped")
        await asyncio.wait_for(one.wait(), 5)
        assert first.place is not None
        assert first.place.state == "ended"


async def test_a_pool_can_be_watched_again_after_its_last_watcher_left(
    hall: Hall, board: Board
) -> None:
    await hall.node()
    await hall.ask("ann", generation="a1")
    for _ in range(3):
        wake = asyncio.Event()
        async with board.watch(POOL, "a1", wake) as watched:
            await asyncio.wait_for(wake.wait(), 5)
            assert watched.place is not None


async def test_all_watchers_of_a_pool_are_served_by_one_call(
    hall: Hall, line: CountingLine, bell: Bell
) -> None:
    await hall.node()
    names = [f"x{number}" for number in range(40)]
    for name in names:
        await hall.ask(name, generation=name)
    wakes = [asyncio.Event() for _ in names]
    async with Board(line, bell) as board, asyncio.timeout(10):
        watches = [board.watch(POOL, name, wake) for name, wake in zip(names, wakes, strict=True)]
        for watch in watches:
            await watch.__aenter__()
        await asyncio.gather(*(wake.wait() for wake in wakes))
        assert line.calls <= 2
        for watch in watches:
            await watch.__aexit__(None, None, None)


async def test_an_outage_is_waited_out(hall: Hall, line: CountingLine, bell: Bell) -> None:
    await hall.node()
    await hall.ask("ann", generation="a1")
    line.failing = True
    wake = asyncio.Event()
    async with Board(line, bell) as board, board.watch(POOL, "a1", wake) as watched:
        await until(lambda: line.calls >= 1)
        assert watched.place is None
        await asyncio.wait_for(wake.wait(), 5)
        assert watched.is_away
        wake.clear()
        line.failing = False
        await asyncio.wait_for(wake.wait(), 5)
        assert not watched.is_away
        assert watched.place is not None


async def test_a_crowd_reads_its_ranks_off_the_lanes(
    hall: Hall, line: CountingLine, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.line.board._CROWD", 3)
    node = await hall.node()
    await hall.ask("holder", generation="h", tier="api", hold=False)
    names = [f"x{number}" for number in range(8)]
    for name in names:
        await hall.ask(name, generation=name, tier="api" if name > "x5" else "browser")
    async with AsyncExitStack() as stack:
        watches = {
            name: await stack.enter_async_context(board.watch(POOL, name, asyncio.Event()))
            for name in names
        }

        async def ranks_are(*ranks: int | None) -> None:
            def shown() -> list[int | None]:
                return [watch.place.rank if watch.place else 0 for watch in watches.values()]

            await until(lambda: shown() == list(ranks), what=f"{ranks}")

        await ranks_are(1, 2, 3, 4, 5, 6, 1, 2)
        await hall.line.leave("x2")
        await ranks_are(1, 2, None, 3, 4, 5, 1, 2)
        # only the one who left the lane was looked up
        assert line.looked_up == ["x2"]
        await node.take()
        await node.finish()
        await ranks_are(None, 1, None, 2, 3, 4, 1, 2)
        exact = await hall.line.places(POOL, names, watched=False)
        for name, watch in watches.items():
            assert watch.place is not None
            place = exact[name]
            assert (watch.place.state, watch.place.rank, watch.place.waiting) == (
                place.state, place.rank, place.waiting,
            )  # fmt: skip


async def test_far_back_in_a_long_line_not_every_step_wakes(hall: Hall, board: Board) -> None:
    await hall.node()
    await hall.ask("holder")
    for number in range(60):
        await hall.ask(f"s{number}", generation=f"x{number}")
    near, far = asyncio.Event(), asyncio.Event()
    async with board.watch(POOL, "x10", near), board.watch(POOL, "x59", far) as last:
        await asyncio.wait_for(asyncio.gather(near.wait(), far.wait()), 5)
        near.clear()
        far.clear()
        await hall.line.leave("s0")  # 60 -> 59 of 60 -> 59: within one step of 5 %
        await asyncio.wait_for(near.wait(), 5)
        assert not far.is_set()
        assert last.place is not None
        assert last.place.rank == 59  # it is known all the same


async def test_one_question_has_a_bounded_number_of_readers(hall: Hall, board: Board) -> None:
    await hall.node()
    await hall.ask("ann", generation="a1")
    async with AsyncExitStack() as stack:
        for _ in range(MOST_READERS - 1):
            await stack.enter_async_context(board.watch(POOL, "a1", asyncio.Event()))
        async with board.watch(POOL, "a1", asyncio.Event()):
            with pytest.raises(TooManyReadersError):
                await stack.enter_async_context(board.watch(POOL, "a1", asyncio.Event()))
        # whoever leaves makes room
        await stack.enter_async_context(board.watch(POOL, "a1", asyncio.Event()))
