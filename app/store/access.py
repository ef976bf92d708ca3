"""What a node of another machine may do in the store: a user of its own, limited to its pool.

The embedded server gets its users from files in `<data folder>/store/nodes` (mode 0600), one per user,
at its start, and a new one at once. With a store of your own, `setuser` is the command to run there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from redis import Redis

from app.store import keys

# What the agent and the relay's writer send, and what the scripts they run call; a test compares
# them. Connecting (AUTH, HELLO) needs no permission.
COMMANDS = (
    "ping", "client|setinfo", "client|setname",
    "eval", "evalsha", "time", "publish", "blpop",
    "get", "set", "mget", "incr", "del", "expire", "pexpire",
    "hget", "hset", "hmget", "hdel", "hsetnx", "hincrby",
    "llen", "lpop", "lpush", "lrange", "lrem", "ltrim", "rpush",
    "sadd", "srem", "scard", "sismember",
    "xadd", "xlen", "xrange", "xrevrange",
    "zadd", "zcard", "zpopmin", "zrange", "zrangebyscore", "zrem", "zrevrangebyscore", "zscore",
)  # fmt: skip

_FOLDER = "nodes"


@dataclass(frozen=True, slots=True)
class NodeUser:
    """Who a node is to the store."""

    name: str
    pool: str
    password: str

    def rules(self) -> list[str]:
        """The words behind ACL SETUSER <name>: everything else is refused.

        Outside its pool the user may only add a name to the list of pools, which it cannot read.
        (Such a rule of its own, in brackets, needs Redis 7 or Valkey.)
        """
        pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", keys.pool_prefix(self.pool)) + "*"
        digest = hashlib.sha256(self.password.encode()).hexdigest()
        return [
            "reset", "on", f"#{digest}", f"~{pattern}", f"&{pattern}",
            "-@all", *(f"+{command}" for command in COMMANDS),
            f"(%W~{keys.POOLS} +sadd)",
        ]  # fmt: skip

    def setuser(self) -> str:
        """The whole command, for the operator of another store."""
        return f"ACL SETUSER {self.name} " + " ".join(f"'{word}'" for word in self.rules())


def new_user(pool: str) -> NodeUser:
    """Raises ValueError for a name that no pool can have here."""
    if not re.fullmatch(r"[\w.:-]{1,200}", pool):
        raise ValueError("A line's name has letters, digits, dots, colons, dashes and underscores.")
    return NodeUser(f"node-{secrets.token_hex(4)}", pool, secrets.token_urlsafe(32))


def users(store_folder: Path) -> list[NodeUser]:
    """All users of this embedded store, by name."""
    files = sorted((store_folder / _FOLDER).glob("node-*.json"))
    return [NodeUser(**json.loads(file.read_text("utf-8"))) for file in files]


def invite(store_folder: Path, url: str, pool: str) -> NodeUser:
    """Make a new user, known to the running server at `url` from now on, and at its next start.

    Raises ValueError for an impossible pool, and redis-py's errors; then there is no such user.
    """
    user = new_user(pool)
    with Redis.from_url(url) as client:  # pyright: ignore[reportUnknownMemberType] redis-py is partly untyped
        client.execute_command("ACL", "SETUSER", user.name, *user.rules())  # pyright: ignore[reportUnknownMemberType] as above
    folder = store_folder / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{user.name}.json"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(user), file)
    return user


def user_for(store_folder: Path, url: str, pool: str) -> NodeUser:
    """A user of that pool: the first there is, else a new one. Raises as `invite` does."""
    known = next((user for user in users(store_folder) if user.pool == pool), None)
    return known or invite(store_folder, url, pool)


def revoke(store_folder: Path, url: str, name: str) -> bool:
    """Forget a user and cut its connections; False when there is none. Raises redis-py's errors."""
    path = store_folder / _FOLDER / f"{name}.json"
    if not re.fullmatch(r"node-[0-9a-f]+", name) or not path.exists():
        return False
    with Redis.from_url(url) as client:  # pyright: ignore[reportUnknownMemberType] redis-py is partly untyped
        client.execute_command("ACL", "DELUSER", name)  # pyright: ignore[reportUnknownMemberType] as above
    path.unlink()
    return True
