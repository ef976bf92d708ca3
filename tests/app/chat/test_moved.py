"""A node process is killed in the middle of an answer; its reader notices one line and a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.app.node.processes import process
from tests.app.serving import Heard, Member, Web, text_of
from tests.waiting import until

QUESTION = "Why do lines form?"


def node_of(events: Sequence[Heard]) -> str:
    return next(one.data["node"]["name"] for one in reversed(events) if one.data.get("node"))


async def nodes_are_idle(web: Web, count: int) -> bool:
    pools = await web.parts.line.pools()
    return bool(pools) and pools[0].idle_nodes == count


async def hear_while_killing(
    member: Member, nodes: dict[str, asyncio.subprocess.Process], *, after: int, **body: Any
) -> list[Heard]:
    """All events of one answer whose node is killed outright after so many letters."""
    events: list[Heard] = []
    killed = False
    async with asyncio.timeout(120), member.ask(QUESTION, **body) as answer:
        async for one in answer:
            events.append(one)
            if not killed and len(text_of(events)) >= after:
                nodes[node_of(events)].kill()
                killed = True
    assert killed
    return events


def moves_of(events: Sequence[Heard]) -> list[dict[str, Any]]:
    """The different values of `moved`, in order."""
    moves = [one.data["moved"] for one in events if one.name == "state" and one.data["moved"]]
    return [move for n, move in enumerate(moves) if n == 0 or move != moves[n - 1]]


def check(events: Sequence[Heard], whole: Sequence[Heard]) -> None:
    assert [one.name for one in events if one.name in ("done", "failed")] == ["done"]
    assert events[-1].name == "done"
    assert text_of(events).encode() == text_of(whole).encode()
    done, undisturbed = events[-1].data, whole[-1].data
    for name in ("prompt_tokens", "completion_tokens"):
        assert done["usage"][name] == undisturbed["usage"][name]
    (moved,) = moves_of(events)
    assert moved["exact"] is True
    assert done["usage"]["resumed_tokens"] == moved["from"] > 0
    pieces = [one.data for one in events if one.name == "delta"]
    assert sum(piece["n"] for piece in pieces) == done["usage"]["completion_tokens"]
    times = [piece["t_ms"] for piece in pieces]
    assert times == sorted(times)
    phases = [one.data["phase"] for one in events if one.name == "state"]
    assert "lost" in phases or "reading" in phases[phases.index("answering") :]


async def test_an_answer_outlives_its_node(web: Web, valkey_url: str):
    options = ("--tokens-per-second", "150", "--answer-tokens", "400")
    eva = await web.member()
    async with (
        process(valkey_url, "one", *options, pool="scripted") as one,
        process(valkey_url, "two", *options, pool="scripted") as two,
    ):
        await until(lambda: nodes_are_idle(web, 2), within_seconds=60, what="both nodes")
        events = await hear_while_killing(eva, {"one": one, "two": two}, after=200)
        whole = await eva.answer(QUESTION)
    check(events, whole)

    # and so it is kept
    conversations = (await eva.client.get("/api/conversations")).json()["conversations"]

    notes: list[dict[str, Any]] = []

    async def kept() -> list[str]:
        texts: list[str] = []
        notes.clear()
        for conversation in conversations:
            shown = (await eva.client.get(f"/api/conversations/{conversation['id']}")).json()
            ended = [turn for turn in shown["turns"] if turn["status"] == "done"]
            texts += [turn["answer"] for turn in ended]
            notes.extend(turn["figures"]["moved"] for turn in ended if "moved" in turn["figures"])
        return texts if len(texts) == 2 else []

    assert set(await until(kept, what="both are in SQL")) == {text_of(whole)}
    # with the note under the one that moved
    assert notes == moves_of(events)


async def test_a_real_answer_outlives_its_node(web: Web, valkey_url: str):
    options = ("--threads", "1")
    eva = await web.member()
    # warm enough that a wrong position would show, and long enough to be cut
    settings = {"temperature": 0.8, "seed": 4, "max_tokens": 120}
    async with (
        process(valkey_url, "one", *options, kind="local", pool="real") as one,
        process(valkey_url, "two", *options, kind="local", pool="real") as two,
    ):
        await until(lambda: nodes_are_idle(web, 2), within_seconds=120, what="both nodes")
        nodes = {"one": one, "two": two}
        events = await hear_while_killing(eva, nodes, after=60, settings=settings)
        await eva.client.post("/api/line/leave")
        # of another seat the node remembers nothing, so it too reads from the start
        ada = await web.member("Ada")
        whole = await ada.answer(QUESTION, settings=settings)
    assert whole[-1].data["usage"]["cached_tokens"] == 0
    check(events, whole)
