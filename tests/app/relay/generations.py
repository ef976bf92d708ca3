"""Generations as the line would make them, put into the store directly."""

from __future__ import annotations

from app.store.client import Store
from app.store.keys import generation_hash

POOL = "demo"


async def put_generation(
    store: Store,
    generation: str = "g1",
    *,
    pool: str = POOL,
    fence: int = 7,
    state: str = "assigned",
    seat: str = "u:1",
) -> str:
    """Write the generation's hash; a new fence on an old one is what a fail-over does."""
    fields: dict[str, str | int] = {
        "state": state, "ticket": "t1", "seat": seat, "hold": 1, "payload": "{}", "fence": fence,
        "node": "n1", "queued_at": 1_000, "assigned_at": 2_000,
    }  # fmt: skip
    flat = [part for pair in fields.items() for part in pair]
    await store.command("HSET", generation_hash(pool, generation), *flat)
    return generation


def delta(text: str, *, channel: str = "text", n: int = 1) -> dict[str, object]:
    """The data of a `delta` entry."""
    return {"text": text, "channel": channel, "n": n, "ids": [1] * n, "t_ms": 1.0,
            "steps": [[1.0, n]]}  # fmt: skip


DONE: dict[str, object] = {"finish_reason": "stop", "stop_reason": None}
