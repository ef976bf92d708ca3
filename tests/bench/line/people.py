"""Many accounts with sign-ins and open questions, written straight into the product's database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from app.accounts.caller import user_seat
from app.accounts.db import Database, insert_or_ignore
from app.accounts.models import Base, SignIn, Turn, User, now
from app.accounts.secrets import digest, new_token

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is signed in; `generation` is an open question of theirs."""

    seat: str
    cookie: str
    generation: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie}


async def make_people(folder: Path, count: int, pool: str) -> list[Person]:
    """People of the product whose data lie in `folder`, with a question in SQL each."""
    made: list[Person] = []
    users: list[dict[str, Any]] = []
    sign_ins: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for _ in range(count):
        user, token, generation = uuid4().hex, new_token(), uuid4().hex
        seat = user_seat(user)
        made.append(Person(seat, f"baton_session={token}", generation))
        # nobody signs in with such a hash
        users.append({"id": user, "name": user, "name_key": user, "password_hash": "-"})
        ends = now() + timedelta(days=1)
        sign_ins.append({"token_hash": digest(token), "user_id": user, "expires_at": ends})
        turns.append({
            "generation": generation, "user_id": user, "seat": seat, "source": "chat",
            "pool": pool, "question": "go",
        })  # fmt: skip
    async with Database.open(f"sqlite+aiosqlite:///{folder / 'baton.db'}") as database:
        await _insert(database, User, users)
        await _insert(database, SignIn, sign_ins)
        await _insert(database, Turn, turns)
    return made


async def _insert(database: Database, model: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _BATCH):
        async with database.session() as session:
            await insert_or_ignore(session, model, rows[start : start + _BATCH])
