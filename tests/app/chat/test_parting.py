"""Revoked keys and deleted accounts: what they asked ends, and nothing of it stays."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from app.accounts.models import Conversation, Turn, User
from app.chat.sql import session_of
from app.node.kinds.scripted import Script
from app.store import keys
from app.store.rewriting import rewrite_log
from tests.app.serving import PASSWORD, Member, Web, first, scripted_node, serving
from tests.app.store.servers import OwnServer
from tests.waiting import until

SECRET = "the combination of the safe is 4711"


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """A store with an append-only file."""
    with tempfile.TemporaryDirectory(prefix="bv-") as folder:
        own = OwnServer(Path(folder), keeps=True)
        own.start()
        yield own
        own.process.terminate()
        own.process.wait()


def files_of(server: OwnServer) -> bytes:
    """The append-only file as it lies on the disk."""
    folder = Path(server.url.removeprefix("unix://")).parent / "appendonlydir"
    found = b""
    for file in folder.iterdir():
        try:
            found += file.read_bytes()
        except FileNotFoundError:
            continue  # the store has just thrown it away
    return found


def tables_in(folder: Path) -> bytes:
    """SQLite's files as they lie on the disk."""
    return b"".join(file.read_bytes() for file in folder.rglob("baton.db*"))


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "Why?"}]} | more


async def new_key(member: Member) -> dict[str, Any]:
    answer = await member.client.post("/api/keys", json={"name": "k", "kind": "secret"})
    assert answer.status_code == 201
    return answer.json()


async def test_a_revoked_key_ends_what_it_asked_and_nothing_else(web: Web, valkey_url: str):
    eva = await web.member()
    gone, kept = await new_key(eva), await new_key(eva)
    async with scripted_node(valkey_url, Script(stall_at=5)):
        calls: list[asyncio.Task[Any]] = []
        for key in (gone, gone, kept):
            client = await web.client(Authorization=f"Bearer {key['secret']}")
            calls.append(asyncio.create_task(client.post("/v1/chat/completions", json=asked())))
            count = len(calls)

            async def are_in_line(count: int = count) -> bool:
                async with session_of(web.parts.database) as session:
                    turns = (await session.scalars(select(Turn))).all()
                places = await web.parts.line.places(
                    "scripted", [turn.generation for turn in turns], watched=False
                )
                return len(places) == count

            await until(are_in_line)
        assert (await eva.client.delete(f"/api/keys/{gone['id']}")).status_code == 204
        running, waiting = await calls[0], await calls[1]
        assert running.json()["choices"][0]["stop_reason"] == "revoked"
        error = waiting.json()["error"]
        assert error["code"] == "revoked"
        assert "revoked" in error["message"]
        assert not calls[2].done()
        calls[2].cancel()
        await asyncio.gather(calls[2], return_exceptions=True)


async def test_an_account_is_deleted_with_its_password_only(web: Web, valkey_url: str):
    eva = await web.member()
    refused = await eva.client.request("DELETE", "/api/me", json={"password": "wrong" * 3})
    assert refused.status_code == 401
    assert (await eva.client.get("/api/me")).status_code == 200
    deleted = await eva.client.request("DELETE", "/api/me", json={"password": PASSWORD})
    assert deleted.status_code == 204
    assert (await eva.client.get("/api/me")).status_code == 401
    again = await eva.client.post("/api/sign-in", json={"name": "Eva", "password": PASSWORD})
    assert again.status_code == 401


async def test_nothing_of_a_deleted_account_stays(server: OwnServer, tmp_path: Path):
    async with serving(server.url, tmp_path) as web:
        eva = await web.member()
        async with scripted_node(server.url, Script(text=f"{SECRET}. " * 3, tokens_per_second=900)):
            generation = uuid4().hex
            await eva.answer("What is it?", generation=generation)
        async with scripted_node(server.url, Script(text=f"{SECRET}. " * 30, stall_at=40)) as kind:
            running = uuid4().hex
            async with eva.ask(generation=running) as hers:
                await first(hers, "delta")
                assert SECRET.split()[0].encode() in files_of(server)
                assert b"prompt_ids" in files_of(server)
                assert b"What is it?" in tables_in(tmp_path)
                answer = await eva.client.request("DELETE", "/api/me", json={"password": PASSWORD})
                assert answer.status_code == 204
            assert b"What is it?" not in tables_in(tmp_path)
            store = web.parts.store
            for one in (generation, running):
                stream = keys.generation_stream("scripted", one)
                assert not await store.command("EXISTS", stream)
                place = keys.generation_hash("scripted", one)
                assert not await store.command("HEXISTS", place, "payload")

            def is_clean() -> bool:
                found = files_of(server)
                return b"combination" not in found and b"prompt_ids" not in found

            await until(is_clean, what="a clean append-only file")
            # the node is free for others
            assert kind is not None
            ben = await web.member("Ben")
            async with ben.ask() as his:
                await first(his, "delta")
        async with session_of(web.parts.database) as session:
            assert [user.name for user in (await session.scalars(select(User))).all()] == ["Ben"]
            turns = (await session.scalars(select(Turn))).all()
            assert not {generation, running} & {turn.generation for turn in turns}
            assert len((await session.scalars(select(Conversation))).all()) == 1


async def test_a_store_without_an_append_only_file_is_given_none(web: Web):
    assert not await rewrite_log(web.parts.store)
    config = await web.parts.store.command("INFO", "persistence")
    assert config["aof_rewrite_scheduled"] == config["aof_rewrite_in_progress"] == 0
