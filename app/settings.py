"""Every tunable number and switch, read once from `BATON_*` variables; refuses to start when wrong.

`docs/configuration.md` lists them all with their units; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Seconds = Annotated[float, Field(gt=0, le=86_400 * 366)]

_STORE_SCHEMES = ("redis", "rediss", "unix")


class Settings(BaseSettings):
    """One object for the whole process; frozen."""

    model_config = SettingsConfigDict(env_prefix="BATON_", frozen=True, extra="ignore")

    # -- where things are -------------------------------------------------------------------------
    data_folder: Path = Field(default=Path("data"), description="database, embedded store")
    redis_url: str | None = Field(
        default=None, description="Redis or Valkey; unset: the embedded Valkey"
    )
    database_url: str | None = Field(
        default=None, description="SQL database; unset: SQLite in the data folder"
    )
    host: str = Field(default="127.0.0.1", description="address the web process listens on")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port the web process listens on; 0: any free"
    )
    public_url: str | None = Field(
        default=None, description="address people reach this site by, if behind a proxy"
    )
    trusted_proxies: str = Field(
        default="127.0.0.1", description="proxies whose X-Forwarded-* headers count"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level logged"
    )
    log_json: bool = Field(default=False, description="log one JSON object a line")

    # -- the line ---------------------------------------------------------------------------------
    slice_seconds: Seconds = Field(
        default=300, description="a lease's time once somebody waits and no node is free"
    )
    slice_extensions: int = Field(
        default=0, ge=0, le=100, description="how often a holder may extend while others wait"
    )
    idle_limit_seconds: Seconds = Field(
        default=60, description="a lease without a running answer ends after this"
    )
    reconnect_grace_seconds: Seconds = Field(
        default=120, description="a place is kept this long after its last watcher left"
    )
    answer_cap_seconds: Seconds = Field(
        default=30, description="an answer may finish this long after its slice ended"
    )
    claim_seconds: Seconds = Field(
        default=30, description="who is away when the turn comes may claim it this long"
    )
    max_waiting: int = Field(
        default=200, ge=1, le=1_000_000, description="most tickets waiting in one pool"
    )
    max_waiting_per_address: int | None = Field(
        default=None,
        ge=1,
        description="most of them from one address (IPv6: one /64); unset: a quarter, at least 10",
    )
    max_questions_per_seat: int = Field(
        default=8, ge=1, le=100, description="most unanswered questions of one seat"
    )
    heartbeat_seconds: Seconds = Field(default=1, description="how often a node reports")
    node_stop_seconds: Seconds = Field(
        default=3, description="a node that cannot reach the store stops itself after this"
    )
    node_dead_seconds: Seconds = Field(
        default=5, description="a silent node is declared dead after this"
    )
    stuck_seconds: Seconds = Field(
        default=30, description="a node whose answer stands still this long loses it to another"
    )
    rescue_seconds: Seconds = Field(
        default=60, description="an answer whose node failed waits this long for another node"
    )

    # -- streams ----------------------------------------------------------------------------------
    frame_ms: float = Field(
        default=16,
        ge=0,
        le=1000,
        description="tokens after the first travel in frames of at most this",
    )
    stream_keep_seconds: Seconds = Field(
        default=600, description="an ended answer can be resumed this long"
    )
    send_timeout_seconds: Seconds = Field(
        default=30, description="a reader that takes nothing for this long is dropped"
    )
    shutdown_grace_seconds: Seconds = Field(
        default=5, description="open streams may go on this long after SIGTERM"
    )

    # -- requests ---------------------------------------------------------------------------------
    max_body_bytes: int = Field(default=1_000_000, ge=1024, description="largest request body")
    max_messages: int = Field(default=500, ge=1, description="most messages in one request")
    default_max_tokens: int = Field(
        default=1024, ge=1, description="tokens of an answer when the request names none"
    )
    requests_per_minute: int = Field(
        default=120, ge=1, description="most API or chat requests of one account a minute"
    )

    # -- accounts ---------------------------------------------------------------------------------
    sign_up: Literal["open", "closed"] = Field(
        default="open", description="whether strangers may create accounts"
    )
    session_days: int = Field(default=30, ge=1, le=366, description="how long a sign-in lasts")
    secure_cookies: bool | None = Field(
        default=None, description="Secure cookies; unset: when public_url or the request is https"
    )
    sign_in_tries_per_minute: int = Field(
        default=10, ge=1, description="most sign-in tries of one address a minute"
    )
    embed_visitors_per_site: int = Field(
        default=20,
        ge=1,
        description="most visitors of one account's sites (publishable keys) in line at once",
    )

    @field_validator("redis_url")
    @classmethod
    def _is_store_url(cls, value: str | None) -> str | None:
        """The value is not repeated: it may hold a password."""
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            # reading it checks it
            parts.port  # noqa: B018
        except ValueError:
            parts = None
        if parts is None or parts.scheme not in _STORE_SCHEMES or not (parts.netloc + parts.path):
            raise ValueError(
                "it must be redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH/OF/SOCKET"
            )
        return value

    @field_validator("reconnect_grace_seconds")
    @classmethod
    def _outlasts_a_hiccup(cls, value: float) -> float:
        if value < 1:
            raise ValueError(
                "it must be at least 1 second: whoever watches says so every fifth of this time, and "
                "a busy moment of the web process must cost nobody a place"
            )
        return value

    @model_validator(mode="after")
    def _a_node_stops_before_it_is_dead(self) -> Self:
        if not self.heartbeat_seconds < self.node_stop_seconds < self.node_dead_seconds:
            raise ValueError(
                "BATON_HEARTBEAT_SECONDS must be less than BATON_NODE_STOP_SECONDS, and that less "
                "than BATON_NODE_DEAD_SECONDS: a node that is cut off has to stop before the line "
                f"gives its work to another (now {self.heartbeat_seconds:g}, "
                f"{self.node_stop_seconds:g} and {self.node_dead_seconds:g})"
            )
        return self

    def most_waiting_per_address(self) -> int:
        return self.max_waiting_per_address or max(10, self.max_waiting // 4)

    def database(self) -> str:
        """The SQLAlchemy URL in force."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_folder.resolve() / 'baton.db'}"

    def cookies_are_secure(self, scheme: str) -> bool:
        """`scheme`: how the request came, as far as this process or its proxy tells."""
        if self.secure_cookies is not None:
            return self.secure_cookies
        return scheme in ("https", "wss") or (self.public_url or "").startswith("https://")
