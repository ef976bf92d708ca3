"""How often somebody may do something: moving windows in the store, shared by all replicas.

Without the store each process counts for itself: guessing passwords stays slow, and nobody is
locked out by an outage.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import cast
from uuid import uuid4

from app.errors import StoreUnavailableError, TooManyRequestsError
from app.store.client import Store
from app.store.scripts import load_script

_WINDOW = load_script("app.accounts", "window")
_WINDOW_SECONDS = 60.0
# an address behind one of these prefixes is taken for one household
_IPV6_PREFIX_BITS = 64
_MOST_LOCAL = 10_000


@dataclass(frozen=True, slots=True)
class Budget:
    """`most` uses a minute. Different budgets never share a count."""

    name: str
    most: int


@dataclass(frozen=True, slots=True)
class Use:
    """One counted use."""

    key: str
    id: str


class Limits:
    """Counts uses of budgets."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._local = LocalWindows()

    async def spend(self, budget: Budget, who: str) -> Use:
        """Count one use by `who`; raises TooManyRequestsError when the minute is used up."""
        key = f"baton:{{l:{budget.name}:{who}}}"
        use = Use(key, uuid4().hex)
        args = (budget.most, int(_WINDOW_SECONDS * 1000), use.id)
        try:
            wait_seconds = cast(int, await self._store.run(_WINDOW, [key], args)) / 1000
        except StoreUnavailableError:
            wait_seconds = self._local.spend(key, budget.most, time.monotonic())
        if wait_seconds > 0:
            seconds = math.ceil(wait_seconds)
            raise TooManyRequestsError(
                f"That was too often. Try again in {seconds} seconds.", retry_after_seconds=seconds
            )
        return use

    async def give_back(self, use: Use) -> None:
        """The use does not count after all."""
        try:
            await self._store.command("ZREM", use.key, use.id)
        except StoreUnavailableError:
            self._local.give_back(use.key)


class LocalWindows:
    """The same moving windows in this process's memory, for a bounded number of callers."""

    def __init__(self) -> None:
        self._uses: OrderedDict[str, deque[float]] = OrderedDict()

    def spend(self, key: str, most: int, now_seconds: float) -> float:
        """0 when the use counts, else the seconds until one more would."""
        uses = self._uses.setdefault(key, deque())
        self._uses.move_to_end(key)
        while len(self._uses) > _MOST_LOCAL:
            self._uses.popitem(last=False)
        while uses and uses[0] <= now_seconds - _WINDOW_SECONDS:
            uses.popleft()
        if len(uses) >= most:
            return uses[0] + _WINDOW_SECONDS - now_seconds
        uses.append(now_seconds)
        return 0.0

    def give_back(self, key: str) -> None:
        """The latest use does not count."""
        if self._uses.get(key):
            self._uses[key].pop()


def address_prefix(address: str) -> str:
    """What counts as one address: IPv4 whole, IPv6 by its /64 (one line usually owns as much)."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # a unix socket or a test client: all of them are one
        return "local"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        shift = 128 - _IPV6_PREFIX_BITS
        return f"{IPv6Address(int(parsed) >> shift << shift)}/{_IPV6_PREFIX_BITS}"
    return str(parsed)
