"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from app.accounts.models import UtcDateTime

revision = "0001"
down_revision = None


def upgrade() -> None:
    people()
    keys()
    turns()


def people() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("name_key", sa.String(160), nullable=False, unique=True),
        sa.Column("password_hash", sa.String(256), nullable=False),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "sign_ins",
        sa.Column("token_hash", sa.String(64), primary_key=True),
        _owner("users.id", "user_id", nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_sign_ins_user_id", "sign_ins", ["user_id"])
    op.create_index("ix_sign_ins_expires_at", "sign_ins", ["expires_at"])
    op.create_table(
        "first_start",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("token_hash", sa.String(64), nullable=False),
    )


def keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), primary_key=True),
        _owner("users.id", "user_id", nullable=False),
        sa.Column("name", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("prefix", sa.String(24), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime()),
        sa.Column("revoked_at", UtcDateTime()),
    )
    op.create_index("ix_api_keys_user_created", "api_keys", ["user_id", "created_at"])
    op.create_table(
        "key_origins",
        sa.Column(
            "key_id",
            sa.String(32),
            sa.ForeignKey("api_keys.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("origin", sa.String(300), primary_key=True),
    )
    op.create_index("ix_key_origins_origin", "key_origins", ["origin"])


def turns() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.String(32), primary_key=True),
        _owner("users.id", "user_id", nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_conversations_user_updated", "conversations", ["user_id", "updated_at"])
    op.create_table(
        "turns",
        sa.Column("generation", sa.String(64), primary_key=True),
        _owner("conversations.id", "conversation_id", nullable=True),
        _owner("users.id", "user_id", nullable=True),
        sa.Column("seat", sa.String(80), nullable=False),
        sa.Column("source", sa.String(8), nullable=False),
        sa.Column("pool", sa.String(200), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("reasoning", sa.Text(), nullable=False),
        sa.Column("status", sa.String(8), nullable=False),
        sa.Column("finish_reason", sa.String(32)),
        sa.Column("stop_reason", sa.String(64)),
        sa.Column("error_code", sa.String(64)),
        sa.Column("error_message", sa.Text()),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("figures", sa.JSON()),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime()),
    )
    op.create_index("ix_turns_conversation_created", "turns", ["conversation_id", "created_at"])
    op.create_index("ix_turns_user_created", "turns", ["user_id", "created_at"])
    op.create_index("ix_turns_status_created", "turns", ["status", "created_at"])


def _owner(target: str, name: str, *, nullable: bool) -> sa.Column[str]:
    """A reference whose rows go with what they point at."""
    return sa.Column(
        name, sa.String(32), sa.ForeignKey(target, ondelete="CASCADE"), nullable=nullable
    )
