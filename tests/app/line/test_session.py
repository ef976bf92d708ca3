"""A program keeps its node between requests of one session."""

from __future__ import annotations

import pytest

from app.line.types import CancelReason, SeatView
from tests.app.line.hall import POOL, FakeNode, Hall, job


async def call(hall: Hall, generation: str, *, session: str = "", seat: str = "bot") -> None:
    asked = job(generation, hold=False, session=session)
    await hall.line.submit(POOL, seat, asked, tier="api")
    hall.watched |= {generation}


async def answer(hall: Hall, node: FakeNode) -> None:
    await node.take()
    assert node.running is not None
    await hall.write_end(node.running[0])
    await node.finish()


async def seat(hall: Hall) -> SeatView:
    return await hall.line.seat("bot")


@pytest.fixture
async def node(hall: Hall) -> FakeNode:
    return await hall.node()


async def test_the_lease_outlives_the_answer_and_takes_the_next_request_at_once(
    hall: Hall, node: FakeNode
) -> None:
    await call(hall, "c1", session="run")
    await call(hall, "other", seat="ann")
    await answer(hall, node)
    assert (await seat(hall)).state == "holding"
    await call(hall, "c2", session="run")
    assert (await hall.place("c2")).state == "assigned"
    assert (await hall.place("other")).rank == 1


async def test_without_a_session_the_node_goes_on_at_once(hall: Hall, node: FakeNode) -> None:
    await call(hall, "c1")
    await call(hall, "other", seat="ann")
    await answer(hall, node)
    assert (await hall.place("other")).state == "assigned"


async def test_a_kept_node_goes_back_at_the_idle_limit(hall: Hall, node: FakeNode) -> None:
    await call(hall, "c1", session="run")
    await call(hall, "other", seat="ann")
    await answer(hall, node)
    await hall.pass_time(58)
    assert (await seat(hall)).state == "holding"
    await hall.pass_time(4)
    assert (await seat(hall)).state == "none"
    assert (await hall.place("other")).state == "assigned"


async def test_the_slice_ends_a_session_too(hall: Hall, node: FakeNode) -> None:
    await call(hall, "other", seat="ann", session="hers")
    await answer(hall, node)
    await call(hall, "c1", session="run")
    for number in range(7):
        await hall.pass_time(45)
        if (await hall.line.seat("ann")).state != "holding":
            break
        await call(hall, f"more{number}", seat="ann", session="hers")
        await answer(hall, node)
    assert (await hall.place("c1")).state == "assigned"


async def test_ending_the_session_gives_a_resting_node_back(hall: Hall, node: FakeNode) -> None:
    await call(hall, "c1", session="run")
    await answer(hall, node)
    await hall.line.end_session("bot", "another")
    assert (await seat(hall)).state == "holding"
    await hall.line.end_session("bot", "run")
    assert (await seat(hall)).state == "none"
    await hall.line.end_session("bot", "run")
    await hall.line.end_session("nobody", "run")


async def test_ending_it_during_an_answer_lets_the_answer_finish(
    hall: Hall, node: FakeNode
) -> None:
    await call(hall, "c1", session="run")
    await node.take()
    await hall.line.end_session("bot", "run")
    assert (await hall.place("c1")).state == "assigned"
    await hall.write_end("c1")
    await node.finish()
    assert (await seat(hall)).state == "none"


async def test_the_last_request_of_a_session_may_say_so(hall: Hall, node: FakeNode) -> None:
    await call(hall, "c1", session="run")
    await answer(hall, node)
    await call(hall, "c2", session="end")
    assert (await hall.place("c2")).state == "assigned"
    await answer(hall, node)
    assert (await seat(hall)).state == "none"


@pytest.mark.parametrize("reason", ["gone", "revoked"])
async def test_hanging_up_ends_the_session_and_so_does_revoking_its_key(
    hall: Hall, node: FakeNode, reason: CancelReason
) -> None:
    await call(hall, "c1", session="run")
    await node.take()
    await hall.line.cancel(POOL, "c1", reason)
    await hall.write_end("c1")
    await node.finish()
    assert (await seat(hall)).state == "none"
    # stopping an answer is not leaving
    await call(hall, "c2", session="run")
    await node.take()
    await hall.line.cancel(POOL, "c2", "stopped")
    await hall.write_end("c2")
    await node.finish()
    assert (await seat(hall)).state == "holding"


async def test_a_page_of_the_account_keeps_the_node_whatever_its_programs_do(
    hall: Hall, node: FakeNode
) -> None:
    await call(hall, "c1", session="run")
    await hall.ask("bot", generation="page")
    await answer(hall, node)
    await answer(hall, node)
    await hall.line.end_session("bot", "run")
    assert (await seat(hall)).state == "holding"


async def test_a_session_goes_on_at_the_node_after_a_failed_one(hall: Hall, node: FakeNode) -> None:
    await call(hall, "c1", session="run")
    await node.take()
    await hall.crash()
    second = await hall.node("n2")
    await answer(hall, second)
    assert (await seat(hall)).state == "holding"
