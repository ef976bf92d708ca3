"""Which API key asked a question, so that revoking it ends what it asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("turns", sa.Column("key_id", sa.String(32), nullable=True))
