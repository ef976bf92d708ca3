"""From a store's append-only file to events: the one place that knows the keys (app/store/keys.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import orjson

from tests.history import events as e
from tests.history.aof import Step

_KEY = re.compile(r"baton:\{p:([^}]*)\}:(.*)", re.DOTALL)


def chronicle(lives: Iterable[Iterable[Step]]) -> Iterator[tuple[str, e.Event]]:
    """What happened, as (pool, event). Between two lives the store lost its memory."""
    pools: set[str] = set()
    for life, steps in enumerate(lives):
        if life:
            yield from [(pool, e.Forgot()) for pool in sorted(pools)]
        for step in steps:
            for pool, event in _tell(step, pools):
                pools.add(pool)
                yield pool, event


def _tell(step: Step, pools: set[str]) -> Iterator[tuple[str, e.Event]]:
    fences = _writers(step)
    pumped: dict[str, int] = {}
    for command in step:
        word, *words = (part.decode("utf-8", "surrogateescape") for part in command)
        if word.upper() in ("FLUSHALL", "FLUSHDB"):
            yield from [(pool, e.Forgot()) for pool in sorted(pools)]
        found = _KEY.fullmatch(words[0]) if words else None
        if found is None:
            continue
        pool, key = found.groups()
        if (word, key) == ("SET", "tick"):
            pumped[pool] = int(words[1])
            yield pool, e.Now(pumped[pool])
        else:
            for event in _events(word.upper(), key, words[1:], fences):
                yield pool, event
    for pool, at_ms in pumped.items():
        yield pool, e.Pumped(at_ms, len(step))


def _writers(step: Step) -> dict[str, int]:
    """Generation -> fence of the node that appends to it in this step."""
    fences: dict[str, int] = {}
    for command in step:
        if command[0] == b"HSET" and b"writer" in command[2::2]:
            writer = command[command.index(b"writer") + 1].decode()
            fences[command[1].decode().partition("}:g:")[2]] = int(writer.rpartition(":")[2])
    return fences


def _events(word: str, key: str, words: list[str], fences: dict[str, int]) -> Iterator[e.Event]:
    sort, _, name = key.partition(":")
    if word == "HSET" and sort in _HASHES:
        yield from _HASHES[sort](name, dict(zip(words[::2], words[1::2], strict=True)))
    elif word == "XADD" and sort == "s":
        yield e.Written(name, words[2], orjson.loads(words[4]), fences.get(name))
    elif word == "ZADD" and key in ("nodes", "seen"):
        kind = e.NodeReported if key == "nodes" else e.Kept
        yield kind(words[-1], int(float(words[-2])))
    elif word == "ZADD" and key == "claim":
        yield e.Called(words[-1])
    elif word == "ZREM" and key in ("seen", "claim"):
        over = e.Unkept if key == "seen" else e.CallOver
        yield from (over(ticket) for ticket in words)
    elif word in ("DEL", "UNLINK") and sort == "n":
        yield e.NodeGone(name)
    elif word == "SET" and key == "hold":
        yield e.Outage(int(words[0]))
    elif word == "SET" and key == "limits":
        limits: dict[str, int] = orjson.loads(words[0])
        yield e.Limits(limits["grace"], limits["dead"])


def _node(node: str, fields: dict[str, str]) -> Iterator[e.Event]:
    if "boot" in fields:
        yield e.NodeCame(node, fields["boot"])
    match fields.get("state"):
        case "idle":
            yield e.NodeFreed(node)
        case "stop":
            yield e.NodeHeldBack(node)
        case "drained":
            yield e.NodeDrained(node)
        case _:
            pass  # "leased" is told by the ticket


def _ticket(ticket: str, fields: dict[str, str]) -> Iterator[e.Event]:
    if "opened_at" in fields:
        yield e.Opened(ticket, fields["seat"], fields["tier"], int(float(fields["grace"])))
    if "hidden" in fields:
        yield e.Hidden(ticket, fields["hidden"] == "1")
    if fields.get("borrowed") == "1":
        yield e.Borrowed(ticket)
    if "ending" in fields:
        yield e.Ending(ticket, fields["ending"] != "")
    match fields.get("state"):
        case "waiting":
            yield e.Stood(ticket, fields["lane"], int(fields["seq"]))
        case "granted":
            yield e.LeaseBegan(ticket, fields["node"])
        case "ended":
            yield e.Closed(ticket, fields["reason"])
        case _:
            pass


def _generation(generation: str, fields: dict[str, str]) -> Iterator[e.Event]:
    match fields.get("state"):
        case "queued" if "payload" in fields:
            payload = fields["payload"].encode("utf-8", "surrogateescape")
            yield e.Asked(generation, fields["ticket"], payload)
        case "queued":
            yield e.TakenBack(generation)
        case "assigned":
            yield e.Given(generation, fields["node"], int(fields["fence"]), int(fields["length"]))
        case "ended":
            yield e.Ended(generation)
        case _ if "ticket" in fields:
            yield e.Asked(generation, fields["ticket"])
        case _:
            pass


_HASHES: dict[str, Callable[[str, dict[str, str]], Iterator[e.Event]]] = {
    "n": _node,
    "t": _ticket,
    "g": _generation,
}
