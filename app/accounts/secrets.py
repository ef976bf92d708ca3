"""Passwords and tokens: how they are made, stored and compared.

Passwords are slow to check on purpose (argon2id) and are checked in threads, a few at a time.
Tokens are 256 random bits, so one SHA-256 is enough to store them safely.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from app.accounts.models import KeyKind

# Each check holds 64 MiB for its time, so more at once would buy an attacker memory, not speed.
_AT_ONCE = 4
_PREFIXES: dict[KeyKind, str] = {"secret": "sk-baton-", "publishable": "pk-baton-"}
_SHOWN_CHARACTERS = 5


@dataclass(frozen=True, slots=True)
class NewKey:
    """A fresh API key: the whole text (shown once), what a list may show, and what is stored."""

    text: str
    prefix: str
    digest: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Outcome of a password check; `new_hash` is set when the stored one uses old parameters."""

    right: bool
    new_hash: str | None = None


class Passwords:
    """Hashes and checks passwords off the event loop."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._free = asyncio.Semaphore(_AT_ONCE)
        # what an unknown name is checked against, so that it costs as much as a known one
        self._nobody = self._hasher.hash(secrets.token_urlsafe(32))

    async def hash(self, password: str) -> str:
        async with self._free:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def check(self, stored: str | None, password: str) -> Checked:
        """Compare with a stored hash; None (no such user) takes as long and is never right."""
        async with self._free:
            return await asyncio.to_thread(self._check, stored, password)

    def _check(self, stored: str | None, password: str) -> Checked:
        try:
            self._hasher.verify(stored or self._nobody, password)
        except (VerificationError, InvalidHashError):
            return Checked(right=False)
        if stored is None:
            return Checked(right=False)
        renew = self._hasher.check_needs_rehash(stored)
        return Checked(right=True, new_hash=self._hasher.hash(password) if renew else None)


def new_token() -> str:
    """256 random bits as 43 URL-safe characters."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """What is stored in place of a token: its SHA-256 in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Equality in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def new_key(kind: KeyKind) -> NewKey:
    text = _PREFIXES[kind] + new_token()
    return NewKey(text, text[: len(_PREFIXES[kind]) + _SHOWN_CHARACTERS], digest(text))


def looks_like_key(text: str) -> bool:
    """Whether `text` could be one of our keys at all: cheap, before the database is asked."""
    return len(text) == len("sk-baton-") + 43 and text.startswith(tuple(_PREFIXES.values()))
