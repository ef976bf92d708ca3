"""Cookie sessions: begun with a password, known by a random token, ended on the server."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select, update

from app.accounts.db import Database
from app.accounts.models import SignIn, User, now
from app.accounts.secrets import Passwords, digest, new_token
from app.accounts.texts import PASSWORD_CHARACTERS, clean_name, clean_password, name_key
from app.errors import AppError, InvalidRequestError


class WrongPasswordError(AppError):
    """The same for an unknown name and a wrong password."""

    code = "wrong_password"
    status = 401
    kind = "authentication_error"
    message = "Name or password is wrong."


class SignIns:
    def __init__(self, database: Database, passwords: Passwords, session_days: int) -> None:
        self._database = database
        self._passwords = passwords
        self._lasts = timedelta(days=session_days)

    async def check(self, name: str, password: str) -> User:
        """The account whose name and password these are; raises WrongPasswordError."""
        user = await self._named(name)
        try:
            password = clean_password(password)
        except InvalidRequestError:
            # cannot be anybody's, but must take as long as one that could
            user, password = None, password[: PASSWORD_CHARACTERS[1]]
        stored = user.password_hash if user else None
        checked = await self._passwords.check(stored, password)
        if user is None or not checked.right:
            raise WrongPasswordError
        if checked.new_hash:
            renew = update(User).where(User.id == user.id, User.password_hash == stored)
            async with self._database.session() as session:
                await session.execute(renew.values(password_hash=checked.new_hash))
        return user

    async def _named(self, name: str) -> User | None:
        try:
            key = name_key(clean_name(name))
        except InvalidRequestError:
            # nobody's, and maybe nothing that a database takes (a NUL)
            return None
        async with self._database.session() as session:
            return await session.scalar(select(User).where(User.name_key == key))

    async def begin(self, user_id: str, earlier_token: str | None) -> str:
        """A new session's token; the session the browser had before ends, expired ones go."""
        token, moment = new_token(), now()
        async with self._database.session() as session:
            session.add(
                SignIn(token_hash=digest(token), user_id=user_id, expires_at=moment + self._lasts)
            )
            await session.execute(
                delete(SignIn).where(SignIn.user_id == user_id, SignIn.expires_at <= moment)
            )
        if earlier_token:
            await self.end(earlier_token)
        return token

    async def end(self, token: str) -> None:
        async with self._database.session() as session:
            await session.execute(delete(SignIn).where(SignIn.token_hash == digest(token)))
