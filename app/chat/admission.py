"""How many of an account's visitors are in line: of all its publishable keys together.

A visitor of an embedding page has a seat of its own, and so has a publishable key on `/v1`. Without
one count for the account, every further key would bring it further places.
"""

from __future__ import annotations

from app.accounts.caller import Caller
from app.errors import TooManyRequestsError
from app.parts import Parts
from app.store.scripts import load_script

_ADMIT = load_script("app.chat", "admit")
# between a visitor's admission and its question in line
_SETTLE_MS = 10_000


class SiteFullError(TooManyRequestsError):
    code = "site_full"
    message = "Many visitors of this site are in line already. Try again in a minute."


async def admit(parts: Parts, caller: Caller) -> None:
    """Count the visitor among those of its account in line; raises SiteFullError.

    Nothing has to be given back: when an account is full, those no longer in line make room.
    """
    key = f"baton:{{v:{caller.user_id}}}"
    args = (caller.seat, parts.settings.embed_visitors_per_site, _SETTLE_MS)
    old: list[bytes] = await parts.store.run(_ADMIT, [key], args)
    gone = [seat for seat in old if seat and await _is_gone(parts, seat.decode())]
    if gone:
        await parts.store.command("ZREM", key, *gone)
        old = await parts.store.run(_ADMIT, [key], args)
    if old:
        raise SiteFullError(retry_after_seconds=60)


async def _is_gone(parts: Parts, seat: str) -> bool:
    return (await parts.line.seat(seat)).state == "none"
