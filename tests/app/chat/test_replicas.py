"""Several web replicas: a turn belongs to none of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx

from app.node.kinds.scripted import Script
from tests.app.serving import Heard, Member, Web, first, heard, scripted_node, serving, text_of
from tests.waiting import until

ANSWER = "One two three four five six seven eight nine ten. " * 8
ROOMY = {"sign_in_tries_per_minute": 1000, "shutdown_grace_seconds": 0.2}


@asynccontextmanager
async def same_member(web: Web, member: Member) -> AsyncGenerator[httpx.AsyncClient]:
    """The member's browser, speaking to another replica."""
    async with httpx.AsyncClient(
        base_url=web.url, headers={"Origin": web.url}, cookies=member.client.cookies, timeout=30
    ) as client:
        yield client


async def test_a_turn_goes_on_when_its_replica_stops(valkey_url: str, tmp_path: Path):
    generation = uuid4().hex
    script = Script(text=ANSWER, tokens_per_second=100)
    async with (
        serving(valkey_url, tmp_path, **ROOMY) as other,
        scripted_node(valkey_url, script),
    ):
        before: list[Heard] = []
        async with serving(valkey_url, tmp_path, **ROOMY) as web:
            eva = await web.member()
            async with eva.ask(generation=generation) as events:
                async for one in events:
                    before.append(one)
                    if one.name == "delta" and len(text_of(before)) > 50:
                        break
        position = [one.id for one in before if one.id][-1]
        assert position
        path = f"/api/turns/{generation}/events"
        async with (
            same_member(other, eva) as client,
            client.stream("GET", path, headers={"Last-Event-ID": position}) as response,
        ):
            after = [one async for one in heard(response)]
    assert after[-1].name == "done"
    assert text_of(before) + text_of(after) == ANSWER


async def test_an_open_stream_does_not_hold_up_a_stopping_replica(valkey_url: str, tmp_path: Path):
    async with scripted_node(valkey_url, Script(stall_at=5)):
        generation = uuid4().hex
        async with serving(valkey_url, tmp_path, **ROOMY) as web:
            eva = await web.member()
            asking = asyncio.create_task(_listen(eva, generation))
            line = web.parts.line

            async def busy() -> bool:
                return not (await line.pools())[0].idle_nodes

            await until(busy)
            async with asyncio.timeout(8):
                web.stop()
                await asking


async def _listen(member: Member, generation: str) -> None:
    async with member.ask(generation=generation) as events:
        # ends without a last event and without an error: the page goes on elsewhere
        async for one in events:
            assert one.name not in ("done", "failed")


async def test_an_api_answer_is_ended_by_its_stopping_replica(valkey_url: str, tmp_path: Path):
    async with (
        serving(valkey_url, tmp_path, **ROOMY) as other,
        scripted_node(valkey_url, Script(stall_at=5)),
    ):

        async def idle() -> bool:
            return bool((await other.parts.line.pools())[0].idle_nodes)

        async with serving(valkey_url, tmp_path, **ROOMY) as web:
            eva = await web.member()
            api = await web.client(Authorization=f"Bearer {await eva.key()}")
            body = {
                "model": "scripted",
                "stream": True,
                "messages": [{"role": "user", "content": "?"}],
            }
            async with api.stream("POST", "/v1/chat/completions", json=body) as response:
                lines: list[str] = []
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        lines.append(line)
                        web.stop()
                assert '"server_stopping"' in lines[-2]
                assert lines[-1] == "data: [DONE]"
                await until(idle)


async def test_a_whole_api_answer_is_refused_by_its_stopping_replica(
    valkey_url: str, tmp_path: Path
):
    async with (
        serving(valkey_url, tmp_path, **ROOMY) as other,
        scripted_node(valkey_url, Script(stall_at=5)),
    ):

        async def idle() -> bool:
            return bool((await other.parts.line.pools())[0].idle_nodes)

        async def busy() -> bool:
            return not await idle()

        async with serving(valkey_url, tmp_path, **ROOMY) as web:
            eva = await web.member()
            api = await web.client(Authorization=f"Bearer {await eva.key()}")
            body = {"model": "scripted", "messages": [{"role": "user", "content": "?"}]}
            asking = asyncio.create_task(api.post("/v1/chat/completions", json=body))
            await until(busy)
            web.stop()
            answer = await asking
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "server_stopping"
        assert answer.headers["Retry-After"]
        await until(idle)


async def test_any_replica_writes_the_end_and_all_show_it(valkey_url: str, tmp_path: Path):
    async with (
        serving(valkey_url, tmp_path, **ROOMY) as web,
        serving(valkey_url, tmp_path, **ROOMY) as other,
        scripted_node(valkey_url, Script(text="Because.")),
    ):
        eva = await web.member()
        async with same_member(other, eva) as client:
            asked = {"id": uuid4().hex, "question": "Why?"}
            async with client.stream("POST", "/api/chat", json=asked) as response:
                await first(heard(response), "done")
            conversation = response.headers["x-conversation-id"]

        async def ended() -> bool:
            shown = (await eva.client.get(f"/api/conversations/{conversation}")).json()
            return [turn["answer"] for turn in shown["turns"]] == ["Because."]

        await until(ended)
