"""API keys of an account: listed, made (shown once), revoked."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select, update

from app.accounts.db import Database
from app.accounts.models import ApiKey, KeyKind, KeyOrigin, now
from app.accounts.secrets import new_key
from app.accounts.texts import clean_label, clean_origin
from app.errors import AppError, InvalidRequestError, NotFoundError

MOST_KEYS = 50
MOST_ORIGINS = 20


class TooManyKeysError(AppError):
    code = "too_many_keys"
    status = 409
    kind = "invalid_request_error"
    message = f"An account has at most {MOST_KEYS} keys. Revoke one you no longer use."


class ApiKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, user_id: str) -> Sequence[ApiKey]:
        """The account's live keys, newest first."""
        query = (
            select(ApiKey)
            .where(ApiKey.user_id == user_id, ApiKey.revoked_at.is_(None))
            .order_by(ApiKey.created_at.desc(), ApiKey.id)
        )
        async with self._database.session() as session:
            return (await session.scalars(query)).all()

    async def create(
        self, user_id: str, name: str, kind: KeyKind, origins: Sequence[str]
    ) -> tuple[ApiKey, str]:
        """The stored key and its text, which cannot be had again.

        Raises InvalidRequestError, TooManyKeysError.
        """
        cleaned = _origins(kind, origins)
        made = new_key(kind)
        key = ApiKey(
            user_id=user_id,
            name=clean_label(name),
            kind=kind,
            prefix=made.prefix,
            secret_hash=made.digest,
            origins=[KeyOrigin(origin=origin) for origin in cleaned],
        )
        count = select(func.count()).where(ApiKey.user_id == user_id, ApiKey.revoked_at.is_(None))
        async with self._database.session() as session:
            session.add(key)
            # insert first: on SQLite the write lock then makes the count exact
            await session.flush()
            if (await session.scalar(count) or 0) > MOST_KEYS:
                raise TooManyKeysError
        return key, made.text

    async def revoke(self, user_id: str, key_id: str) -> None:
        """At once and for good. Raises NotFoundError unless it is a live key of this account."""
        mine = update(ApiKey).where(
            ApiKey.id == key_id, ApiKey.user_id == user_id, ApiKey.revoked_at.is_(None)
        )
        async with self._database.session() as session:
            gone = await session.execute(mine.values(revoked_at=now()).returning(ApiKey.id))
            if not gone.all():
                raise NotFoundError("You have no such key.")


def _origins(kind: KeyKind, origins: Sequence[str]) -> list[str]:
    """Cleaned, in the order given, each once; raises InvalidRequestError."""
    cleaned = list(dict.fromkeys(clean_origin(origin) for origin in origins[: MOST_ORIGINS + 1]))
    if kind == "secret" and cleaned:
        raise InvalidRequestError(
            "A secret key works from servers and has no origins. Choose a publishable key for a "
            "web page.",
            param="origins",
        )
    if kind == "publishable" and not cleaned:
        raise InvalidRequestError(
            "A publishable key needs at least one origin, for example https://example.org.",
            param="origins",
        )
    if len(cleaned) > MOST_ORIGINS:
        raise InvalidRequestError(f"A key has at most {MOST_ORIGINS} origins.", param="origins")
    return cleaned
