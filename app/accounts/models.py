"""What outlives a flush of Redis: people, keys, conversations, turns. One table per class.

Ids are uuid4 hex strings. Times are UTC and timezone-aware on both sides. A person's rows go with
the person, a conversation's turns go with the conversation (`ON DELETE CASCADE`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal
from uuid import uuid4

from sqlalchemy import JSON, DateTime, Dialect, ForeignKey, Index, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.types import TypeDecorator

KeyKind = Literal["secret", "publishable"]
TurnSource = Literal["chat", "race", "api", "embed"]
TurnStatus = Literal["open", "done", "failed"]


def now() -> datetime:
    return datetime.now(UTC)


def new_id() -> str:
    return uuid4().hex


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware moment. SQLite keeps no zone, so what it gives back is marked as UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a time zone must not reach the database")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class Base(DeclarativeBase):
    type_annotation_map = {datetime: UtcDateTime, dict[str, Any]: JSON(none_as_null=True)}


class User(Base):
    __tablename__ = "users"

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    # as typed, NFKC; shown to people
    name: Mapped[str] = mapped_column(String(80))
    # casefolded name: what must be unique and what sign-in looks for
    name_key: Mapped[str] = mapped_column(String(160), unique=True)
    password_hash: Mapped[str] = mapped_column(String(256))
    is_admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=now)


class SignIn(Base):
    """One cookie session. The cookie holds the token, the row only its SHA-256."""

    __tablename__ = "sign_ins"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class ApiKey(Base):
    """An API key. The key itself is shown once and never stored."""

    __tablename__ = "api_keys"
    __table_args__ = (Index("ix_api_keys_user_created", "user_id", "created_at"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(80))
    kind: Mapped[str] = mapped_column(String(16))
    # the first characters, so that a person can tell keys apart
    prefix: Mapped[str] = mapped_column(String(24))
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    origins: Mapped[list[KeyOrigin]] = relationship(
        lazy="selectin", cascade="all, delete-orphan", passive_deletes=True
    )


class KeyOrigin(Base):
    """A site that a publishable key may be used from, as a browser spells its Origin."""

    __tablename__ = "key_origins"

    key_id: Mapped[str] = mapped_column(
        ForeignKey("api_keys.id", ondelete="CASCADE"), primary_key=True
    )
    origin: Mapped[str] = mapped_column(String(300), primary_key=True, index=True)


class FirstStart(Base):
    """The hash of the token that lets the first administrator sign up; at most one row."""

    __tablename__ = "first_start"

    id: Mapped[int] = mapped_column(primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64))


class SharedSecret(Base):
    """Random bytes that every replica needs and nobody else may know."""

    __tablename__ = "shared_secrets"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[bytes]


class Conversation(Base):
    __tablename__ = "conversations"
    __table_args__ = (Index("ix_conversations_user_updated", "user_id", "updated_at"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    title: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(default=now)
    updated_at: Mapped[datetime] = mapped_column(default=now)


class Turn(Base):
    """One question and its answer, keyed by the generation that answers it."""

    __tablename__ = "turns"
    __table_args__ = (
        Index("ix_turns_conversation_created", "conversation_id", "created_at"),
        Index("ix_turns_user_created", "user_id", "created_at"),
        Index("ix_turns_status_created", "status", "created_at"),
    )

    generation: Mapped[str] = mapped_column(String(64), primary_key=True)
    conversation_id: Mapped[str | None] = mapped_column(
        ForeignKey("conversations.id", ondelete="CASCADE")
    )
    # whose it is; of a visitor: the owner of the key
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    seat: Mapped[str] = mapped_column(String(80))
    # the API key that asked, if one did
    key_id: Mapped[str | None] = mapped_column(String(32))
    source: Mapped[str] = mapped_column(String(8))
    pool: Mapped[str] = mapped_column(String(200))
    question: Mapped[str] = mapped_column(Text, default="")
    answer: Mapped[str] = mapped_column(Text, default="")
    reasoning: Mapped[str] = mapped_column(Text, default="")
    status: Mapped[str] = mapped_column(String(8), default="open")
    finish_reason: Mapped[str | None] = mapped_column(String(32))
    stop_reason: Mapped[str | None] = mapped_column(String(64))
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)
    # the request's settings, as the person chose them
    params: Mapped[dict[str, Any]] = mapped_column(default=dict)
    # {usage, timing, tps, accepted} once ended
    figures: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(default=now)
    ended_at: Mapped[datetime | None]
