"""Alembic's entry: runs the migrations on the connection that `Database.migrate` holds."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from app.accounts.models import Base

connection: Connection = context.config.attributes["connection"]
# the caller's transaction covers everything, so a failed migration leaves no half of it behind
context.configure(connection=connection, target_metadata=Base.metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
