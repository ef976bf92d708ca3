"""Accounts: made, found, changed, removed."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.accounts.db import Database
from app.accounts.first_start import forget_token, use_token
from app.accounts.models import SignIn, User
from app.accounts.secrets import Passwords
from app.accounts.texts import clean_name, clean_password, name_key
from app.errors import AppError, NotFoundError


class NameTakenError(AppError):
    code = "name_taken"
    status = 409
    kind = "invalid_request_error"
    message = "This name is taken. Choose another one."


class LastAdminError(AppError):
    code = "last_admin"
    status = 409
    kind = "invalid_request_error"
    message = "This is the only administrator. Make another one first."


class People:
    """Everything about accounts that needs no HTTP; the command line uses it too."""

    def __init__(self, database: Database, passwords: Passwords) -> None:
        self._database = database
        self._passwords = passwords

    async def create(
        self,
        name: str,
        password: str,
        *,
        is_admin: bool = False,
        admin_token: str | None = None,
    ) -> User:
        """A new account; `admin_token` is used up by it and makes it an administrator's.

        Raises InvalidRequestError, NameTakenError, ForbiddenError (token wrong or used up).
        """
        name, password = clean_name(name), clean_password(password)
        hashed = await self._passwords.hash(password)
        user = User(name=name, name_key=name_key(name), password_hash=hashed, is_admin=is_admin)
        try:
            async with self._database.session() as session:
                if admin_token is not None:
                    await use_token(session, admin_token)
                    user.is_admin = True
                elif is_admin:
                    await forget_token(session)
                session.add(user)
        except IntegrityError as error:
            raise NameTakenError from error
        return user

    async def all(self) -> Sequence[User]:
        async with self._database.session() as session:
            return (await session.scalars(select(User).order_by(User.created_at))).all()

    async def named(self, name: str) -> User:
        """Raises NotFoundError."""
        async with self._database.session() as session:
            return await _named(session, name)

    async def set_password(self, name: str, password: str) -> None:
        """Also ends all its sign-ins; its API keys go on working. Raises NotFoundError."""
        hashed = await self._passwords.hash(clean_password(password))
        async with self._database.session() as session:
            user = await _named(session, name)
            user.password_hash = hashed
            await session.execute(delete(SignIn).where(SignIn.user_id == user.id))

    async def make_admin(self, name: str) -> None:
        """Raises NotFoundError."""
        async with self._database.session() as session:
            user = await _named(session, name)
            await session.execute(update(User).where(User.id == user.id).values(is_admin=True))
            await forget_token(session)

    async def delete(self, name: str) -> None:
        """Remove the account and all its rows, from the files too. Raises NotFoundError, LastAdminError."""
        async with self._database.session() as session:
            user = await _named(session, name)
            admins = select(func.count()).select_from(User).where(User.is_admin)
            others = await session.scalar(select(exists().where(User.id != user.id)))
            if user.is_admin and await session.scalar(admins) == 1 and others:
                raise LastAdminError
            await session.execute(delete(User).where(User.id == user.id))
        await self._database.forget_deleted()


async def _named(session: AsyncSession, name: str) -> User:
    user = await session.scalar(select(User).where(User.name_key == name_key(name)))
    if user is None:
        raise NotFoundError(f"There is no account named {name!r}.")
    return user
