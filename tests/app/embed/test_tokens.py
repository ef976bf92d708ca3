"""Visitors' tokens: signed, short-lived, renewable; and the secret that signs them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounts.db import Database
from app.embed.secret import SECRET_BYTES, load_secret
from app.embed.tokens import (
    LASTS_SECONDS,
    RENEWABLE_SECONDS,
    Tokens,
    VisitorTokenError,
    new_visitor,
)

TOKENS = Tokens(b"s" * 32)
CLAIMS = new_visitor("ab" * 16)


def test_a_token_names_its_visitor_and_key_until_it_is_over():
    token = TOKENS.make(CLAIMS, 1000.0)
    assert TOKENS.read(token, 1000.0 + LASTS_SECONDS - 1) == CLAIMS
    with pytest.raises(VisitorTokenError):
        TOKENS.read(token, 1000.0 + LASTS_SECONDS)


def test_a_token_that_is_over_can_be_renewed_for_an_hour():
    token = TOKENS.make(CLAIMS, 1000.0)
    over = 1000.0 + LASTS_SECONDS
    assert TOKENS.read(token, over + RENEWABLE_SECONDS - 1, to_renew=True) == CLAIMS
    with pytest.raises(VisitorTokenError):
        TOKENS.read(token, over + RENEWABLE_SECONDS, to_renew=True)


def test_a_token_lives_ten_minutes_at_most():
    assert LASTS_SECONDS <= 600


@given(st.integers(0, 10**6), st.characters(codec="ascii"))
def test_no_changed_token_is_taken(position: int, letter: str):
    token = TOKENS.make(CLAIMS, 1000.0)
    at = position % len(token)
    changed = token[:at] + letter + token[at + 1 :]
    if changed != token:
        with pytest.raises(VisitorTokenError):
            TOKENS.read(changed, 1000.0)


@given(st.text(max_size=300))
def test_nonsense_is_no_token(text: str):
    with pytest.raises(VisitorTokenError):
        TOKENS.read(text, 1000.0)


def test_a_token_of_another_secret_is_not_taken():
    with pytest.raises(VisitorTokenError):
        Tokens(b"t" * 32).read(TOKENS.make(CLAIMS, 1000.0), 1000.0)


async def test_processes_that_start_at_once_agree_on_one_secret(tmp_path: Path):
    url = f"sqlite+aiosqlite:///{tmp_path}/baton.db"
    async with AsyncExitStack() as stack:
        databases = [await stack.enter_async_context(Database.open(url)) for _ in range(4)]
        await databases[0].migrate()
        made = await asyncio.gather(*(load_secret(database) for database in databases))
        again = await load_secret(databases[0])
    assert set(made) == {again}
    assert len(again) == SECRET_BYTES
