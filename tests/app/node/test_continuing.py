"""Answers that go on at another node: no gap, no duplicate, and an honest word about it."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from app.line.types import Assignment
from app.node.answer import Answer
from app.node.kinds import scripted_model
from app.node.kinds.scripted import Script, ScriptedKind
from app.relay.reader import RelayReader
from app.relay.types import Entry
from app.relay.writer import RelayWriter
from app.settings import Settings
from app.store.client import Store
from app.store.keys import pool_prefix
from app.work import Parsing, Work
from engine.types import Event, ModelCard, SamplingParams
from tests.app import thinking
from tests.app.node.desk import POOL, Place, text_of, tokens_of, work
from tests.app.relay import generations as relay
from tests.app.relay.generations import delta, put_generation
from tests.waiting import until

FAST = Script(tokens_per_second=5000, prefill_ms_per_token=0)
SLOW = Script(tokens_per_second=50, tokens_per_step=1, prefill_ms_per_token=0, answer_tokens=10_000)
EXPECTED = list(scripted_model.answer_ids((1, 2, 3), None, 600))
# a character of four bytes in the middle of what is cut
AWKWARD = "🙂世界, naïve 🌶! " * 8
# what a restart does whose append-only file is a moment behind
LOSE_THE_LAST_ENTRY = """
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
redis.call('XDEL', KEYS[2], last[1])
return redis.call('HINCRBY', KEYS[1], 'written', -1)
"""


class Other(ScriptedKind):
    """The same texts, from other arithmetic as far as its label says."""

    async def open(self) -> ModelCard:
        return replace(await super().open(), numerics="another")


def exactness(entries: Sequence[Entry]) -> list[bool]:
    return [entry.data["exact"] for entry in entries if "exact" in entry.data]


async def handed_over(
    place: Place,
    job: Work,
    first: Script = SLOW,
    second: ScriptedKind | Script = FAST,
    *,
    tokens: int = 3,
) -> list[Entry]:
    """All entries of an answer whose first node is shut down after some tokens."""
    async with place.node(first, "n1") as agent:
        generation = await place.ask(job)

        async def far_enough() -> bool:
            return len(tokens_of(await place.entries(generation))) >= tokens

        await until(far_enough, what="tokens")
        async with place.node(second, "n2"):
            agent.stop()
            return await place.ended(generation)


@pytest.fixture
def place(store: Store) -> Place:
    return Place.on(store, shutdown_grace_seconds=0.01, heartbeat_seconds=0.05)


async def test_a_node_that_is_shut_down_hands_its_answer_over(place: Place):
    entries = await handed_over(place, work(max_tokens=100))
    assert tokens_of(entries) == EXPECTED[:100]
    assert text_of(entries) == scripted_model.tokenizer().decode(EXPECTED[:100])
    done = entries[-1].data
    assert done["usage"]["completion_tokens"] == 100
    assert 3 <= done["usage"]["resumed_tokens"] < 100
    # the figures are the second node's own
    assert done["tps"]["average"] > 1000
    assert exactness(entries) == [True]


@pytest.mark.parametrize("tokens", range(1, 12, 2))
async def test_half_a_character_at_the_cut_comes_exactly_once(place: Place, tokens: int):
    slow = Script(text=AWKWARD, tokens_per_step=1, prefill_ms_per_token=0, stall_at=tokens)
    fast = Script(text=AWKWARD, tokens_per_second=5000, prefill_ms_per_token=0)
    entries = await handed_over(place, work(max_tokens=1000), slow, fast, tokens=tokens)
    assert text_of(entries) == AWKWARD
    assert entries[-1].data["finish_reason"] == "stop"
    assert entries[-1].data["usage"]["resumed_tokens"] == tokens


@pytest.mark.parametrize("tokens", range(2, 12, 3))
async def test_a_stop_text_over_the_cut_is_never_shown(place: Place, tokens: int):
    text = "one two three four five six seven"
    slow = Script(text=text, tokens_per_step=1, prefill_ms_per_token=0, stall_at=tokens)
    fast = Script(text=text, tokens_per_second=5000, prefill_ms_per_token=0)
    job = work(max_tokens=1000, stop=("three four five",))
    cut = len([*scripted_model.answer_ids((1,), "one two three four five", 0)]) - 2
    entries = await handed_over(place, job, slow, fast, tokens=min(tokens, cut))
    assert text_of(entries) == "one two "
    assert entries[-1].data["finish_reason"] == "stop"


async def test_text_held_back_at_the_end_comes_with_the_last_entry(place: Place, store: Store):
    """Or a node that dies between the two would leave more text than its tokens spell."""
    async with place.node(Script(text="to be continued ...", tokens_per_second=5000)):
        entries = await place.ended(await place.ask(work(stop=("... END",), max_tokens=1000)))
    assert text_of(entries) == "to be continued ..."
    held, last = entries[-2:]
    assert (held.kind, held.data["n"], held.data["ids"]) == ("delta", 0, [])
    assert held.data["text"] == "..."
    assert last.kind == "done"


async def test_other_numerics_may_differ(place: Place):
    entries = await handed_over(place, work(max_tokens=100), SLOW, Other(FAST))
    assert tokens_of(entries) == EXPECTED[:100]
    assert exactness(entries) == [False]


async def test_a_prompt_that_was_partly_known_may_differ(place: Place):
    prompt = tuple(range(1, 40))
    async with place.node(SLOW, "n1") as agent:
        await place.ended(await place.ask(work(prompt, max_tokens=2), hold=True))
        generation = await place.ask(work(prompt, max_tokens=30), hold=True)
        await place.writing(generation)
        assert (await place.entries(generation))[0].data["cached"] > 0
        async with place.node(FAST, "n2"):
            agent.stop()
            entries = await place.ended(generation)
    assert len(tokens_of(entries)) == 30
    assert exactness(entries) == [False]


class Recovers(ScriptedKind):
    """Stands still the first time only."""

    async def generate(self, work: Work, cancel: threading.Event) -> AsyncGenerator[Event, None]:
        async with aclosing(super().generate(work, cancel)) as events:
            async for event in events:
                yield event
        self.script = FAST


async def test_the_same_node_too_begins_again_with_an_empty_cache(store: Store):
    place = Place.on(store, heartbeat_seconds=0.05, stuck_seconds=0.5)
    async with place.node(Recovers(replace(FAST, stall_at=5))):
        generation = await place.ask(work(tuple(range(1, 40)), max_tokens=50), hold=True)
        entries = await place.ended(generation, within_seconds=30)
    assert {entry.data["cached"] for entry in entries if entry.kind == "reading"} == {0}
    assert exactness(entries) == [True]
    assert len(tokens_of(entries)) == 50


async def test_progress_counts_the_tokens_that_are_read_again(place: Place):
    entries = await handed_over(place, work(max_tokens=100), tokens=5)
    resumed = entries[-1].data["usage"]["resumed_tokens"]
    last = [entry.data for entry in entries if entry.kind == "reading"][-1]
    assert last["done"] == last["total"] == 3 + resumed


async def test_an_answer_may_move_twice(place: Place):
    async with place.node(SLOW, "n1") as first:
        generation = await place.ask(work(max_tokens=100))
        await place.writing(generation)
        async with place.node(SLOW, "n2") as second:
            first.stop()

            async def moved() -> bool:
                entries = await place.entries(generation)
                return bool(exactness(entries)) and entries[-1].kind == "delta"

            await until(moved, what="the second one writes")
            async with place.node(FAST, "n3"):
                second.stop()
                entries = await place.ended(generation)
    assert tokens_of(entries) == EXPECTED[:100]
    assert exactness(entries) == [True, True]


async def test_a_node_that_stands_still_loses_its_answer_and_serves_on(store: Store):
    place = Place.on(store, heartbeat_seconds=0.05, stuck_seconds=0.5)
    stuck = ScriptedKind(Script(stall_at=5, prefill_ms_per_token=0, tokens_per_step=1))
    async with place.node(stuck, "n1"):
        generation = await place.ask(work(max_tokens=50))
        await place.writing(generation)
        async with place.node(FAST, "n2"):
            entries = await place.ended(generation, within_seconds=30)
            assert tokens_of(entries) == EXPECTED[:50]

            async def both_are_free() -> bool:
                return (await place.line.pools())[0].idle_nodes == 2

            await until(both_are_free, what="the first one has stopped")


async def test_a_store_that_lost_its_last_entries_costs_no_token(place: Place, store: Store):
    """The node notices that its stream is shorter than what was confirmed, and begins again there."""
    async with place.node(SLOW):
        generation = await place.ask(work(max_tokens=60))
        await place.writing(generation)
        hash_and_stream = [f"{pool_prefix(POOL)}{letter}:{generation}" for letter in "gs"]
        await store.command("EVAL", LOSE_THE_LAST_ENTRY, 2, *hash_and_stream)
        entries = await place.ended(generation, within_seconds=30)
    assert tokens_of(entries) == EXPECTED[:60]
    assert exactness(entries) in ([True], [])  # nothing to continue if that was the first token


async def test_tokens_that_cannot_be_read_end_it(place: Place, store: Store):
    async with place.node(SLOW, "n1") as agent:
        generation = await place.ask(work(max_tokens=100))
        await place.writing(generation)
        # something in the stream that no node wrote
        await store.command(
            "XADD", f"{pool_prefix(POOL)}s:{generation}", "*", "k", "delta", "d", "{}"
        )
        async with place.node(FAST, "n2"):
            agent.stop()
            entries = await place.ended(generation)
    assert (entries[-1].kind, entries[-1].data["code"]) == ("failed", "engine_error")


async def test_a_stream_that_is_not_what_the_line_counted_is_not_continued(store: Store):
    await put_generation(store)
    writer = RelayWriter(store, relay.POOL)
    await writer.append("g1", 7, [("delta", delta("half a", n=2))])
    kind, payload = ScriptedKind(FAST), work().to_bytes()
    await Answer(Assignment("g1", 7, payload, "u:1", 0.0, 2), kind, writer, Settings()).run()
    entries = await RelayReader(store).read(relay.POOL, "g1")
    assert [entry.kind for entry in entries] == ["delta", "failed"]
    assert "could not read what is written" in entries[-1].data["message"]


def test_what_is_continued_never_travels_with_the_question():
    job = Work("m", (1,), 5, SamplingParams(), resume_ids=(7, 8))
    assert Work.from_bytes(job.to_bytes()) == replace(job, resume_ids=())


@pytest.mark.parametrize("tokens", range(2, 110, 9))
async def test_thoughts_and_calls_over_the_cut_are_whole(place: Place, tokens: int):
    """The next node rebuilds the parser from what the stream shows."""
    job = replace(work(max_tokens=1000), parsing=Parsing(thinks=True, opened=True, calls="qwen"))
    slow = replace(thinking.SLOW, stall_at=tokens, tokens_per_second=5000)
    whole = by_channel(await handed_over(place, job, slow, thinking.FAST, tokens=tokens))
    assert whole["reasoning"] == thinking.THOUGHTS
    assert whole["text"] == thinking.TEXT
    assert whole["tool_call"].count("\n") == len(thinking.CALLS)


def by_channel(entries: Sequence[Entry]) -> dict[str, str]:
    joined = {"text": "", "reasoning": "", "tool_call": ""}
    for entry in entries:
        if entry.kind == "delta":
            data = entry.data
            for channel, text in ((data["channel"], data["text"]), *data.get("tail", ())):
                joined[channel] += text
    return joined
