"""Visitors' tokens: signed, short-lived, renewable; and the secret that signs them."""

from __future__ import annotations

import stat
import sys
from asyncio import create_subprocess_exec, gather, subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embed.secret import NAME, SECRET_BYTES, load_secret
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


def test_the_secret_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path):
    folder = tmp_path / "new" / "data"
    first = load_secret(folder)
    assert len(first) == SECRET_BYTES
    assert load_secret(folder) == first
    assert stat.S_IMODE((folder / NAME).stat().st_mode) == 0o600
    assert [file.name for file in folder.iterdir()] == [NAME]


def test_a_damaged_secret_is_refused(tmp_path: Path):
    (tmp_path / NAME).write_bytes(b"short")
    with pytest.raises(ValueError, match="damaged"):
        load_secret(tmp_path)


async def test_processes_that_start_at_once_agree_on_one_secret(tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; from app.embed.secret import load_secret; "
        "print(load_secret(Path(sys.argv[1])).hex())"
    )
    started = [
        await create_subprocess_exec(
            sys.executable, "-c", program, str(tmp_path), stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    outputs = await gather(*(process.communicate() for process in started))
    assert len({output for output, _ in outputs}) == 1
    assert outputs[0][0].strip() == load_secret(tmp_path).hex().encode()
