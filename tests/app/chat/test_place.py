"""A place belongs to the seat, not to its connection: reloads, devices and replicas move nobody."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from app.node.kinds.scripted import Script
from tests.app.serving import PASSWORD, Member, Web, first, scripted_node, serving


@dataclass(frozen=True, slots=True)
class Line:
    """Eva has the node; Ben, Cai and Dan wait, in this order."""

    eva: Member
    ben: Member
    cai: Member
    dan: Member
    # Cai's question
    generation: str


@asynccontextmanager
async def three_waiting(web: Web, store_url: str) -> AsyncGenerator[Line]:
    generation = uuid4().hex
    async with scripted_node(store_url, Script(stall_at=5)), AsyncExitStack() as stack:
        members = [await web.member(name) for name in ("Eva", "Ben", "Cai", "Dan")]
        for rank, member in enumerate(members):
            asking = member.ask(generation=generation if rank == 2 else None)
            events = await stack.enter_async_context(asking)
            if rank == 0:
                await first(events, "delta")
            else:
                await first(events, "state", rank=rank)
        yield Line(*members, generation=generation)


async def rank_seen(member: Member, generation: str) -> tuple[int | None, int]:
    """(rank, how many wait), as somebody sees who comes (back) to a question."""
    async with member.watch(generation) as events:
        state = (await first(events, "state")).data
    return state["rank"], state["waiting"]


async def device_of(member: Member, web: Web) -> Member:
    """The same account on another device."""
    client = await web.client(Origin=web.url)
    name = (await member.client.get("/api/me")).json()["name"]
    answer = await client.post("/api/sign-in", json={"name": name, "password": PASSWORD})
    assert answer.status_code == 200
    return Member(web, client)


async def test_reloads_keep_the_place_and_move_it_neither_way(web: Web, valkey_url: str):
    async with three_waiting(web, valkey_url) as line:
        for _ in range(20):
            assert await rank_seen(line.cai, line.generation) == (2, 3)


async def test_another_device_sees_the_same_place_and_makes_no_second(web: Web, valkey_url: str):
    async with three_waiting(web, valkey_url) as line:
        phone = await device_of(line.cai, web)
        seat = (await phone.client.get("/api/line")).json()["seat"]
        assert (seat["state"], seat["generation"]) == ("waiting", line.generation)
        assert await rank_seen(phone, line.generation) == (2, 3)
        # one more question from there stands behind the seat's first, in the same place
        async with phone.ask() as events:
            state = (await first(events, "state", behind_own=1)).data
            assert (state["rank"], state["waiting"]) == (2, 3)
        assert await rank_seen(line.cai, line.generation) == (2, 3)


async def test_another_replica_shows_the_same_place(web: Web, valkey_url: str):
    folder = web.parts.settings.data_folder
    async with (
        serving(valkey_url, folder) as other,
        three_waiting(web, valkey_url) as line,
    ):
        elsewhere = await device_of(line.cai, other)
        for _ in range(3):
            assert await rank_seen(elsewhere, line.generation) == (2, 3)
        await line.ben.client.post("/api/line/leave")
        assert await rank_seen(elsewhere, line.generation) == (1, 2)
        assert await rank_seen(line.cai, line.generation) == (1, 2)


async def test_who_left_and_asks_again_stands_last(web: Web, valkey_url: str):
    async with three_waiting(web, valkey_url) as line:
        await line.cai.client.post("/api/line/leave")
        async with line.cai.ask() as events:
            await first(events, "state", rank=3, waiting=3)
