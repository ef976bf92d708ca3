"""The line's atomic operations: one Lua file each, in `scripts/`, behind the shared preludes."""

from __future__ import annotations

import orjson

from app.settings import Settings
from app.store.scripts import load_script

_PRELUDES = (
    ("app.store", "generation"),
    ("app.line", "_tickets"),
    ("app.line", "_rescue"),
    ("app.line", "_turns"),
    ("app.line", "_drain"),
    ("app.line", "_pump"),
)
# Where the web side acts: its limits become the pool's.
_RULING = (_PRELUDES[0], ("app.line", "_rule"), *_PRELUDES[1:])
_PLACES = (*_PRELUDES, ("app.line", "_places"))

SUBMIT = load_script("app.line", "submit", preludes=(*_RULING, ("app.line", "_places")))
BORROW = load_script("app.line", "borrow", preludes=(*_RULING, ("app.line", "_places")))
PLACES = load_script("app.line", "places", preludes=_PLACES)
LANES = load_script("app.line", "lanes", preludes=_PLACES)
CANCEL = load_script("app.line", "cancel", preludes=_PRELUDES)
PRESENCE = load_script("app.line", "presence", preludes=_PRELUDES)
LEAVE = load_script("app.line", "leave", preludes=_PRELUDES)
EXTEND = load_script("app.line", "extend", preludes=_PRELUDES)
END_SESSION = load_script("app.line", "end_session", preludes=_PRELUDES)
SEAT = load_script("app.line", "seat", preludes=_PRELUDES)
VIEW = load_script("app.line", "view", preludes=_PRELUDES)
PUMP = load_script("app.line", "pump", preludes=_RULING)
CLAIM = load_script("app.line", "claim")
REGISTER = load_script("app.line", "register", preludes=_PRELUDES)
HEARTBEAT = load_script("app.line", "heartbeat", preludes=_PRELUDES)
TAKE = load_script("app.line", "take", preludes=_PRELUDES)
FINISHED = load_script("app.line", "finished", preludes=_PRELUDES)
DEPART = load_script("app.line", "depart", preludes=_PRELUDES)
DRAIN = load_script("app.line", "drain", preludes=_PRELUDES)
NODES = load_script("app.line", "nodes", preludes=_PRELUDES)

# A node that was told to stop and does not, for this many times the dead time, is given up on.
_STOP_FACTOR = 2


def limits_of(settings: Settings) -> bytes:
    """ARGV[1] of every operation: durations in whole milliseconds, as JSON.

    Those of the web side rule: `submit` and `pump` write them into the pool, and every operation
    reads them there. A node's own count only in a pool that no web process has served yet.
    """
    seconds = {
        "slice": settings.slice_seconds,
        "idle": settings.idle_limit_seconds,
        "grace": settings.reconnect_grace_seconds,
        "cap": settings.answer_cap_seconds,
        "dead": settings.node_dead_seconds,
        "stop": _STOP_FACTOR * settings.node_dead_seconds,
        "rescue": settings.rescue_seconds,
        "stuck": settings.stuck_seconds,
        "claim": settings.claim_seconds,
    }
    return orjson.dumps({name: round(1000 * value) for name, value in seconds.items()})
