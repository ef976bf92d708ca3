"""Everything at once, at random: people under load while web, nodes and store are killed and frozen.

30 seconds here; `make soak` runs ten minutes (SOAK_SECONDS), each time with another seed, and the
store loses its data now and then.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from pathlib import Path

import pytest

from tests.app.store.servers import OwnServer
from tests.faults.people import Person, visit_api
from tests.faults.site import Site, site
from tests.faults.trouble import Trouble
from tests.history import events as e

pytestmark = pytest.mark.slow

SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "0"))
SECONDS = SOAK_SECONDS or 30.0
SEED = int(os.environ.get("SOAK_SEED") or "0") or (secrets.randbelow(10**9) if SOAK_SECONDS else 1)
PEOPLE = 5
PROGRAMS = 2


async def browse(site: Site, name: str, over: asyncio.Event) -> None:
    """A person who asks on and on; every third time the page is closed in the middle."""
    chance = random.Random(f"{SEED} {name}")
    async with Person(site, name, chance) as person:
        while not over.is_set():
            hang_up_after = chance.randint(1, 60) if chance.random() < 0.3 else None
            tokens = chance.choice((5, 60, 300))
            await person.ask(f"{name}?", hang_up_after=hang_up_after, max_tokens=tokens)
            await asyncio.sleep(chance.uniform(0, 2))
        await person.leave()


async def call(site: Site, name: str, over: asyncio.Event) -> None:
    """A program that calls on and on, streaming or not, and sometimes hangs up."""
    chance = random.Random(f"{SEED} {name}")
    async with Person(site, name, chance) as owner:
        key = await owner.key()
        while not over.is_set():
            await visit_api(site, key, chance)
            await asyncio.sleep(chance.uniform(0, 2))


@pytest.mark.timeout(SECONDS + 400)
async def test_no_promise_is_broken_whatever_is_killed_or_frozen(
    recorder: OwnServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with site(tmp_path, recorder) as running:
        trouble = Trouble(running, SEED, loses_data=SOAK_SECONDS > 0)
        over = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(PEOPLE):
                    group.create_task(browse(running, f"person-{number}", over))
                for number in range(PROGRAMS):
                    group.create_task(call(running, f"program-{number}", over))
                await trouble.run(SECONDS)
                over.set()
            await running.all_over()
            history = running.check()
        finally:
            # shown when it fails
            print(f"seed {SEED}", *trouble.diary, sep="\n")  # noqa: T201 for the report
    answered = [r for r in history.readings if r.heard and r.heard[-1].name == "done"]
    moves = sum(isinstance(event, e.TakenBack) for _, event in history.events)
    if SOAK_SECONDS:
        with capsys.disabled():
            print(  # noqa: T201 what ten minutes were spent on
                f"\nseed {SEED}: {len(trouble.diary)} faults, {len(history.events):,} events, "
                f"{len(history.readings)} readings, {len(answered)} answered, "
                f"{moves} taken from a node; no promise broken"
            )
    # a run in which nobody was served would prove nothing
    assert answered
