"""Where the embedded store listens: recorded in its folder, so that other processes find it."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from app.store.access import NodeUser

# A living server on the same machine answers within this, however busy it is.
ANSWER_SECONDS = 2.0
RECORD = "store.json"
PASSWORD = "password"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens: what `store.json` holds."""

    socket: str
    # (host, port) for nodes elsewhere
    listen: tuple[str, int] | None

    def as_json(self) -> str:
        return json.dumps({"socket": self.socket, "listen": self.listen})

    def url(self, folder: Path) -> str:
        """For processes of this machine."""
        if self.listen is None:
            return f"unix://{quote(self.socket)}"
        return f"unix://{quote(self.socket)}?password={read_password(folder)}"

    def join_url(self, user: NodeUser) -> str:
        """For nodes on other machines. Raises ValueError without a TCP port."""
        if self.listen is None:
            raise ValueError("this store has no port")
        host, port = self.listen
        if host in ("0.0.0.0", "::", "*"):  # every address: name one that others can reach
            host = socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"redis://{user.name}:{user.password}@{shown}:{port}"


def living(folder: Path) -> Address | None:
    """Where the server of this store folder answers; None when none does."""
    address = recorded(folder)
    try:
        return address if address and answers(address.url(folder)) else None
    except OSError:  # the password's file is not (or not yet) there
        return None


def recorded(folder: Path) -> Address | None:
    """What `store.json` says; None when there is none, or not a sound one."""
    try:
        found = json.loads((folder / RECORD).read_text("utf-8"))
        listen = found["listen"]
        return Address(str(found["socket"]), (listen[0], int(listen[1])) if listen else None)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def answers(url: str) -> bool:
    """Whether a server at `url` is ready: one that still reads its file is not."""
    client = Redis.from_url(  # pyright: ignore[reportUnknownMemberType] redis-py is partly untyped
        url, socket_timeout=ANSWER_SECONDS, retry=Retry(NoBackoff(), 0)
    )
    try:
        client.ping()  # pyright: ignore[reportUnknownMemberType] as above
    except RedisError:
        return False
    finally:
        client.close()
    return True


def read_password(folder: Path) -> str:
    """Raises OSError where none was made."""
    return (folder / PASSWORD).read_text("utf-8").strip()
