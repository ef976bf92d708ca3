"""The agent on a real line: every assignment ends with exactly one last entry."""

from __future__ import annotations

import time

from app.node.kinds import scripted_model
from app.node.kinds.scripted import Script, ScriptedKind
from app.store.client import Store
from tests.app.node.desk import POOL, Place, text_of, tokens_of, work
from tests.waiting import until

FAST = Script(tokens_per_second=5000, prefill_ms_per_token=0)
SLOW = Script(tokens_per_second=50, tokens_per_step=1, prefill_ms_per_token=0, answer_tokens=10_000)


async def test_an_answer_arrives_whole_and_ends_with_its_figures(store: Store):
    place = Place.on(store)
    async with place.node(FAST):
        entries = await place.ended(await place.ask(work(max_tokens=300)))

    expected = list(scripted_model.answer_ids((1, 2, 3), None, 600))[:300]
    assert tokens_of(entries) == expected
    assert text_of(entries) == scripted_model.tokenizer().decode(expected)
    assert [entry.kind for entry in entries].count("done") == 1
    done = entries[-1].data
    assert done["finish_reason"] == "length"
    assert done["stop_reason"] is None
    assert done["usage"]["completion_tokens"] == 300
    assert done["timing"]["queue_ms"] >= 0
    assert done["timing"]["total_ms"] > 0
    assert done["tps"]["peak"] >= done["tps"]["average"] > 0
    assert done["accepted"]["max"] <= FAST.tokens_per_step


async def test_the_first_token_travels_alone_and_steps_keep_their_times(store: Store):
    place = Place.on(store)
    async with place.node(FAST):
        entries = await place.ended(await place.ask(work(max_tokens=300)))
    deltas = [entry.data for entry in entries if entry.kind == "delta"]
    assert len(deltas[0]["steps"]) == 1
    assert 1 < len(deltas) < 200
    times = [t_ms for delta in deltas for t_ms, _ in delta["steps"]]
    assert times == sorted(times)
    assert sum(n for delta in deltas for _, n in delta["steps"]) == 300


async def test_tokens_do_not_wait_for_the_next_ones(store: Store):
    place = Place.on(store, frame_ms=200)
    # five tokens within one frame, then silence
    script = Script(tokens_per_second=5000, tokens_per_step=1, prefill_ms_per_token=0, stall_at=5)
    async with place.node(script):
        generation = await place.ask(work(max_tokens=1000))

        async def all_there() -> bool:
            return len(tokens_of(await place.entries(generation))) == 5

        await until(all_there, what="five tokens")
        assert not any(entry.is_last for entry in await place.entries(generation))


async def test_two_questions_are_answered_one_after_the_other(store: Store):
    place = Place.on(store)
    async with place.node(FAST):
        first = await place.ask(work((1,)), seat="u:1")
        second = await place.ask(work((2,)), seat="u:2")
        assert tokens_of(await place.ended(first)) != tokens_of(await place.ended(second))


async def test_cancel_reaches_the_engine_at_once(store: Store):
    place = Place.on(store, heartbeat_seconds=60, node_stop_seconds=80, node_dead_seconds=100)
    async with place.node(Script(stall_at=3, prefill_ms_per_token=0)):
        generation = await place.ask(work(max_tokens=1000))
        await place.writing(generation)
        asked_s = time.monotonic()
        await place.line.cancel("main", generation, "stopped")
        entries = await place.ended(generation)
        # only the doorbell can bring it: the next report is a minute away
        assert time.monotonic() - asked_s < 30
    assert entries[-1].data["finish_reason"] == "cancelled"
    assert entries[-1].data["stop_reason"] == "stopped"
    assert len(tokens_of(entries)) == 3


async def test_the_end_of_a_slice_counts_as_length(store: Store):
    place = Place.on(store)
    async with place.node(SLOW):
        generation = await place.ask(work(max_tokens=1000))
        await place.writing(generation)
        await place.line.cancel("main", generation, "slice_ended")
        entries = await place.ended(generation)
    assert entries[-1].data["finish_reason"] == "length"
    assert entries[-1].data["stop_reason"] == "slice_ended"


async def test_an_engine_fault_ends_the_turn_with_its_sentence_and_the_node_serves_on(store: Store):
    place = Place.on(store)
    async with place.node(Script(fail_at=10, tokens_per_second=5000)):
        entries = await place.ended(await place.ask(work()))
        assert entries[-1].kind == "failed"
        assert entries[-1].data["code"] == "engine_error"
        assert "fails at token 10" in entries[-1].data["message"]
        assert len(tokens_of(entries)) == 10
        again = await place.ended(await place.ask(work(max_tokens=5), seat="u:2"))
    assert again[-1].kind == "done"


async def test_a_prompt_too_long_says_so(store: Store):
    place = Place.on(store)
    async with place.node(Script(context_tokens=4)):
        entries = await place.ended(await place.ask(work((1, 2, 3, 4))))
    assert entries[-1].data["code"] == "prompt_too_long"
    assert entries[-1].data["retry"] is False


async def test_work_that_cannot_be_read_fails_and_the_node_serves_on(store: Store):
    place = Place.on(store)
    async with place.node(FAST):
        no_ids, no_tokens = work(()).to_bytes(), work(max_tokens=0).to_bytes()
        for raw in (b"not json", b"{}", b"[1]", b'{"model":1}', no_ids, no_tokens):
            entries = await place.ended(await place.ask(raw))
            assert entries[-1].kind == "failed"
        assert (await place.ended(await place.ask(work())))[-1].kind == "done"


async def test_a_stopped_node_may_finish_within_the_grace(store: Store):
    place = Place.on(store, shutdown_grace_seconds=60)
    async with place.node(Script(tokens_per_second=200)) as agent:
        generation = await place.ask(work(max_tokens=60))
        await place.writing(generation)
        agent.stop()
        entries = await place.ended(generation)
    assert entries[-1].kind == "done"


async def test_a_question_without_a_token_moves_to_another_node(store: Store):
    place = Place.on(store, shutdown_grace_seconds=0.01)
    async with place.node(Script(stall_at=0), "stuck") as agent:
        generation = await place.ask(work())
        await until(lambda: place.entries(generation), what="reading begins")
        async with place.node(FAST, "fresh"):
            agent.stop()
            entries = await place.ended(generation)
    assert entries[-1].kind == "done"
    assert tokens_of(entries) == list(scripted_model.answer_ids((1, 2, 3), None, 600))[:50]


async def test_what_a_seat_left_is_forgotten_before_the_next_and_after_its_lease(store: Store):
    place = Place.on(store, heartbeat_seconds=0.05)
    prompt = range(1, 40)
    async with place.node(FAST):
        cached: list[int] = []
        for seat in ("u:1", "u:1", "u:2"):
            if seat == "u:2":
                await place.line.leave("u:1")
            entries = await place.ended(await place.ask(work(prompt), seat=seat, hold=True))
            cached.append(entries[-1].data["usage"]["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] > 0
    assert cached[2] == 0


async def test_the_kind_forgets_a_seat_soon_after_its_lease(store: Store):
    place = Place.on(store, heartbeat_seconds=0.05)
    kind = ScriptedKind(FAST)
    async with place.node(kind):
        await place.ended(await place.ask(work(), hold=True))
        assert kind.keeps_something
        await place.line.leave("u:1")
        await until(lambda: not kind.keeps_something, what="forgotten")


async def test_a_node_that_is_told_to_stop_says_so_while_its_answer_may_finish(store: Store):
    place = Place.on(store, shutdown_grace_seconds=30)
    async with place.node(SLOW) as agent:
        generation = await place.ask(work(max_tokens=10_000), hold=True)
        await place.writing(generation)
        agent.stop()

        async def is_drained() -> bool:
            places = await place.line.places(POOL, [generation], watched=True)
            return places[generation].drained

        await until(is_drained, what="its holder hears of it")
        # the first stop alone would let the answer run on
        assert not any(entry.is_last for entry in await place.entries(generation))
