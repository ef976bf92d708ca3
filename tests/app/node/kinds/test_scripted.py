"""The script is played as written."""

from __future__ import annotations

import threading
from contextlib import aclosing
from dataclasses import replace

import pytest

from app.node.kinds import scripted_model
from app.node.kinds.scripted import Script, ScriptedKind
from engine.types import EngineError, Event, Finished, Step
from tests.app.node.desk import work


async def play(
    script: Script, max_tokens: int = 10_000, prompt: tuple[int, ...] = (1,)
) -> list[Event]:
    kind = ScriptedKind(script)
    async with aclosing(kind.generate(work(prompt, max_tokens), threading.Event())) as events:
        return [event async for event in events]


def steps_of(events: list[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def last_of(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


async def test_the_average_is_the_rate_asked_for():
    events = await play(Script(tokens_per_second=400, answer_tokens=300))
    # scheduled by absolute time: only the last step's lateness remains, whatever the load was
    assert last_of(events).speed.average == pytest.approx(400, rel=0.1)


async def test_a_text_is_played_to_its_end_and_then_stops():
    events = await play(Script(text="Grüße, 世界 🙂", tokens_per_second=1e6))
    text = "".join(event.text for event in events if isinstance(event, Step | Finished))
    assert text == "Grüße, 世界 🙂"
    assert last_of(events).finish_reason == "stop"
    assert steps_of(events)[-1].token_ids[-1] == scripted_model.end_token()


async def test_a_character_in_several_tokens_waits_until_it_is_whole():
    events = await play(Script(text="世🙂", tokens_per_step=1, tokens_per_second=1e6))
    assert "" in [step.text for step in steps_of(events)]
    assert "\ufffd" not in "".join(step.text for step in steps_of(events))


async def test_step_sizes_vary_within_the_bound_and_repeat_with_the_seed():
    def sizes(events: list[Event]) -> list[int]:
        return [len(step.token_ids) for step in steps_of(events)]

    script = Script(tokens_per_second=1e6, tokens_per_step=5, answer_tokens=200)
    first = sizes(await play(script))
    assert set(first) == {1, 2, 3, 4, 5}
    assert sizes(await play(script)) == first
    assert sizes(await play(replace(script, seed=1))) != first


async def test_it_fails_instead_of_the_token_named():
    seen: list[Event] = []
    kind = ScriptedKind(Script(fail_at=7, tokens_per_second=1e6))

    async def read() -> None:
        async with aclosing(kind.generate(work(), threading.Event())) as events:
            async for event in events:
                seen.append(event)

    with pytest.raises(EngineError, match="token 7"):
        await read()
    assert sum(len(step.token_ids) for step in steps_of(seen)) == 7


async def test_answers_differ_by_prompt():
    one = await play(Script(tokens_per_second=1e6), prompt=(1,))
    two = await play(Script(tokens_per_second=1e6), prompt=(2,))
    assert [step.token_ids for step in steps_of(one)] != [step.token_ids for step in steps_of(two)]


def test_the_tokenizer_spells_any_text():
    tokenizer = scripted_model.tokenizer()
    text = "".join(chr(code) for code in range(1, 0x500)) + "世界🙂\r\n\t"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert scripted_model.end_token() not in tokenizer.encode("<|im_end|>")


async def test_step_sizes_do_not_change_what_is_continued():
    script = Script(text="Grüße, 世界 🙂! " * 6, tokens_per_second=1e6, tokens_per_step=3)
    whole = await play(script)
    steps = steps_of(whole)
    text = "".join(event.text for event in whole if isinstance(event, Step | Finished))
    for cut in range(len(steps) + 1):
        shown = "".join(step.text for step in steps[:cut])
        made = tuple(token for step in steps[:cut] for token in step.token_ids)
        kind = ScriptedKind(replace(script, seed=cut))
        again = replace(work((1,), 10_000), resume_ids=made)
        async with aclosing(kind.generate(again, threading.Event())) as events:
            rest = [event async for event in events]
        assert shown + "".join(e.text for e in rest if isinstance(e, Step | Finished)) == text
