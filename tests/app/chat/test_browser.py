"""The page's routes, through real ports, with a scripted node."""

from __future__ import annotations

from uuid import uuid4

from app.node.kinds.scripted import Script
from tests.app.serving import Web, first, names_of, scripted_node, text_of


async def test_a_question_is_answered_and_events_come_in_order(web: Web, valkey_url: str):
    eva = await web.member()
    async with scripted_node(valkey_url, Script(text="Because it is so.", tokens_per_second=200)):
        events = await eva.answer("Why?")
    names = names_of(events)
    assert text_of(events) == "Because it is so."
    assert names[0] == "state"
    assert names[-1] == "done"
    assert names.count("done") + names.count("failed") == 1
    assert "rate" not in names[: names.index("delta")]
    assert "rate" in names
    phases = [one.data["phase"] for one in events if one.name == "state"]
    assert phases[-1] == "answering"
    done = events[-1].data
    assert done["finish_reason"] == "stop"
    assert done["usage"]["completion_tokens"] == sum(
        one.data["n"] for one in events if one.name == "delta"
    )
    assert done["tps"]["peak"] >= done["tps"]["average"]


async def test_waiting_shows_the_rank_of_each_user(web: Web, valkey_url: str):
    eva, ben, cai = [await web.member(name) for name in ("Eva", "Ben", "Cai")]
    async with scripted_node(valkey_url, Script(stall_at=5)):
        generation = uuid4().hex
        async with eva.ask(generation=generation) as hers:
            await first(hers, "delta")
            async with ben.ask() as his, cai.ask() as third:
                state = (await first(his, "state", rank=1)).data
                assert (state["phase"], state["node"]) == ("waiting", None)
                await first(third, "state", rank=2, waiting=2)
                stopped = await eva.client.post(f"/api/turns/{generation}/stop")
                assert stopped.status_code == 204
                done = (await first(hers, "done")).data
                assert (done["finish_reason"], done["stop_reason"]) == ("cancelled", "stopped")
                left = await eva.client.post("/api/line/leave")
                assert left.status_code == 204
                await first(his, "delta")
                await first(third, "state", rank=1, waiting=1)
