"""All of a pool's keys at one moment, and what must be true of them: the line's invariants.

I1  at most one lease per slot of a node; lease, ticket, generation and node name each other
I2  no node is given work while it runs something else (test_property.py looks at the nodes)
I3  fences strictly grow, also over a lost memory and a clock set back
I4  each ticket is in exactly one of: one lane, one lease, ended; ended never changes
I5  one live ticket per seat
I6  first come, first served within a lane, but for those who are not there when it is their turn
I7  a rank never grows while its ticket stays in its lane
I8  the indices hold exactly the tickets that their table in app/store/keys.py says
I9  whatever lives has a deadline, and it is kept
I10 nobody waits beside a free node, and everything ends when everybody has gone
I12 an outage of the store costs nobody the place
(I11, that old fences change nothing, is a test of its own in test_nodes.py.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import orjson

from app.store import keys
from app.store.client import Store

_TAKE = """
local p = KEYS[1]
local out = {hashes = {}, lists = {}, zsets = {}, sets = {}, streams = {}, strings = {}}
local function pairs_of(flat)
  local t = {}
  for i = 1, #flat, 2 do t[flat[i]] = flat[i + 1] end
  return t
end
for _, key in ipairs(redis.call('KEYS', p .. '*')) do
  local kind, name = redis.call('TYPE', key).ok, string.sub(key, #p + 1)
  if kind == 'hash' then out.hashes[name] = pairs_of(redis.call('HGETALL', key))
  elseif kind == 'list' then out.lists[name] = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then out.zsets[name] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then out.sets[name] = redis.call('SMEMBERS', key)
  elseif kind == 'string' then out.strings[name] = redis.call('GET', key)
  else
    local entries = {}
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      entries[#entries + 1] = entry[2][2]
    end
    out.streams[name] = entries
  end
end
return cjson.encode(out)
"""


@dataclass(frozen=True, slots=True)
class Picture:
    hashes: dict[str, dict[str, str]]
    lists: dict[str, list[str]]
    # zset -> member -> score, in order
    zsets: dict[str, dict[str, float]]
    sets: dict[str, set[str]]
    # stream -> the first field of each entry: kind of event, or generation
    streams: dict[str, list[str]]
    strings: dict[str, str]

    @classmethod
    async def take(cls, store: Store, pool: str) -> Picture:
        raw: dict[str, Any] = orjson.loads(
            await store.command("EVAL", _TAKE, 1, keys.pool_prefix(pool))
        )
        zsets = {
            name: dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
            for name, flat in _dict(raw["zsets"]).items()
        }
        return cls(
            hashes=_dict(raw["hashes"]),
            lists=_dict(raw["lists"]),
            zsets=zsets,
            sets={name: set(members) for name, members in _dict(raw["sets"]).items()},
            streams=_dict(raw["streams"]),
            strings=_dict(raw["strings"]),
        )

    def all(self, letter: str) -> dict[str, dict[str, str]]:
        """The hashes of one sort: "t" tickets, "g" generations, "n" nodes."""
        return {n[2:]: h for n, h in self.hashes.items() if n.startswith(letter + ":")}

    def zset(self, name: str) -> dict[str, float]:
        return self.zsets.get(name, {})

    def lanes(self) -> dict[str, list[str]]:
        return {name[2:]: list(z) for name, z in self.zsets.items() if name.startswith("w:")}

    def live(self) -> set[str]:
        return {name for name, t in self.all("t").items() if t["state"] != "ended"}

    def now_ms(self) -> float:
        """The time of the last script that lets time take effect: deadlines are exact to it."""
        return float(self.strings.get("tick", "0"))

    def held_since_ms(self) -> float:
        return float(self.strings.get("hold", "-inf"))


def _dict(value: Any) -> dict[str, Any]:
    """cjson writes an empty table as {} or []."""
    return value or {}


# the indices of tickets
INDICES = ("seen", "claim", "leases", "ending", "draining", "rest", "borrowed")


def check_tickets(picture: Picture) -> None:
    """I4, I5, I8: each ticket stands in exactly one place, one live ticket per seat."""
    lanes = picture.lanes()
    seats = picture.hashes.get("seat", {})
    assert len(set(seats.values())) == len(seats)
    tickets = picture.all("t")
    assert set(seats.values()) == picture.live()
    for name, t in tickets.items():
        places = [lane for lane, members in lanes.items() if name in members]
        indices = {i for i in INDICES if name in picture.zset(i)}
        if t["state"] == "waiting":
            assert places == [t["lane"]], (name, t, places)
            assert indices - {"claim"} == {"seen"}, (name, indices)
            if "claim" in indices:
                assert t["calls"] in ("1", "2")
            assert picture.lists.get(f"j:{name}"), f"{name} waits for nothing"
        elif t["state"] == "granted":
            assert places == []
            assert len(indices & {"leases", "ending", "draining"}) == 1, (name, indices)
            assert "claim" not in indices
            assert ("borrowed" in indices) == (t.get("borrowed") == "1")
            at_rest = t["generation"] == ""
            assert ("rest" in indices) == at_rest
            assert not (at_rest and "seen" in indices)
            assert ("leases" not in indices) == (t["ending"] != "")
            assert "draining" not in indices or t["ending"] == "drained"
        else:
            assert places == []
            assert indices == set()
            assert f"j:{name}" not in picture.lists
    known = {m for members in lanes.values() for m in members}
    known |= {m for i in INDICES for m in picture.zset(i)}
    assert known <= set(tickets)


def check_addresses(picture: Picture) -> None:
    """I8: under each address exactly its waiting tickets."""
    found: dict[str, set[str]] = {}
    for name, t in picture.all("t").items():
        if t["state"] == "waiting" and t["address"]:
            found.setdefault(f"from:{t['address']}", set()).add(name)
    kept = {key: set(names) for key, names in picture.sets.items() if key.startswith("from:")}
    assert found == kept


def check_leases(picture: Picture) -> None:
    """I1: at most one lease per slot; slot, ticket and generation name each other."""
    tickets, generations = picture.all("t"), picture.all("g")
    assert picture.sets.get("drained", set()) <= set(picture.all("n"))
    leased: list[str] = []
    for name, n in picture.all("n").items():
        assert name in picture.zset("nodes")
        assert (name in picture.zset("idle")) == (n["state"] == "idle")
        is_drained = name in picture.sets.get("drained", set())
        assert not is_drained if n["state"] == "idle" else is_drained or n["state"] != "drained"
        if n["state"] != "leased":
            assert (n["ticket"], n["generation"]) == ("", "")
            assert name not in picture.zset("owes")
            continue
        t = tickets[n["ticket"]]
        assert (n["ticket"] in picture.zset("draining")) <= is_drained
        assert not is_drained or t["ending"] != "", f"{name} is out, but its lease goes on"
        leased.append(n["ticket"])
        assert (t["state"], t["node"], t["generation"]) == ("granted", name, n["generation"])
        if n["generation"]:
            g = generations[n["generation"]]
            assert (g["node"], g["fence"], g["ticket"]) == (name, n["fence"], n["ticket"])
            assert g["state"] in ("assigned", "ended")
        else:
            assert name not in picture.zset("owes")
        is_fetched = n["generation"] != "" and n.get("taken") == n["fence"]
        assert (name in picture.zset("alive")) == is_fetched
    assert set(picture.zset("alive")) <= set(picture.all("n"))
    assert len(leased) == len(set(leased))
    assert {name for name, t in tickets.items() if t["state"] == "granted"} == set(leased)


def check_generations(picture: Picture) -> None:
    """Promise 5: queued ones stand in their ticket's list, ended ones have exactly one last event."""
    tickets = picture.all("t")
    ended = picture.streams.get("ended", [])
    for name, g in picture.all("g").items():
        lasts = [k for k in picture.streams.get(f"s:{name}", []) if k in ("done", "failed")]
        if g["state"] == "ended":
            assert len(lasts) == 1
            assert ended.count(name) == 1
            assert "cancel" not in g
        else:
            assert not lasts
            assert name not in ended
        is_moving = g["state"] == "queued" and g.get("begun") == "1"
        assert (name in picture.zset("rescue")) == is_moving
        listed = [key for key, jobs in picture.lists.items() if name in jobs]
        if g["state"] == "queued":
            assert listed == [f"j:{g['ticket']}"]
            assert picture.lists[listed[0]].count(name) == 1
            assert (g["fence"], g["node"]) == ("0", "")
        else:
            assert listed == []
        if g["state"] == "assigned":
            assert tickets[g["ticket"]]["generation"] == name


def check_deadlines(picture: Picture, limits_ms: dict[str, int]) -> None:
    """I9: whatever lives has a deadline, not too far away and not long past."""
    now, held = picture.now_ms(), picture.held_since_ms()
    people_are_held = now < held + limits_ms["grace"]
    nodes_are_held = now < held + 2 * limits_ms["dead"]
    for index, most, is_held in (
        ("seen", limits_ms["grace"], people_are_held),
        ("rest", limits_ms["idle"], people_are_held),
        ("nodes", limits_ms["dead"], nodes_are_held),
        ("owes", limits_ms["stop"], nodes_are_held),
        ("draining", limits_ms["cap"], nodes_are_held),
        ("rescue", limits_ms["rescue"], now < held + limits_ms["rescue"]),
        ("claim", limits_ms["claim"], now < held + limits_ms["claim"]),
    ):
        for name, deadline in picture.zset(index).items():
            assert deadline <= now + most, (index, name)
            assert is_held or deadline > now, (index, name, now - deadline)
    for name, at in picture.zset("leases").items():
        assert at <= now + limits_ms["slice"], name
    for name, alive_at in picture.zset("alive").items():
        is_held = now < held + limits_ms["stuck"]
        assert is_held or alive_at > now - limits_ms["stuck"], f"{name} stands still"
    for name, t in picture.all("t").items():
        if t["state"] == "granted" and t["generation"] == "":
            assert name in picture.zset("rest")
        elif t["state"] == "granted" and name not in picture.zset("seen"):
            # dismissed: it has been called off, and its node is given up on in time
            assert picture.zset("ending")[name] == math.inf
            assert t["node"] in picture.zset("owes")


def check_flow(picture: Picture, limits_ms: dict[str, int]) -> None:
    """I10: nobody waits beside a free node; over-long leases end for those who wait, no more."""
    waiting = sum(map(len, picture.lanes().values()))
    if waiting:
        assert not picture.zset("idle")
    if picture.now_ms() < picture.held_since_ms() + limits_ms["grace"]:
        return
    # what races had is on its way back (right after an outage the node given back may be silent)
    borrowed = [picture.all("t")[name]["ending"] for name in picture.zset("borrowed")]
    assert "" not in borrowed or len(borrowed) - borrowed.count("") >= waiting
    ending = picture.zset("ending")
    finite = [at for at in ending.values() if at != math.inf]
    assert not finite or len(ending) <= waiting
    over = [at for at in picture.zset("leases").values() if at <= picture.now_ms()]
    assert not over or len(ending) >= waiting


def check_step(before: Picture, after: Picture, away: set[str]) -> None:
    """I3, I4, I6, I7: what may not happen between two pictures. `away`: seats whose people may not
    be looking, and may be passed over."""
    old_tickets, tickets = before.all("t"), after.all("t")
    for name, t in old_tickets.items():
        if t["state"] == "ended" and name in tickets:
            assert tickets[name] == t
    old_generations = before.all("g")
    old_fences = {g["fence"] for g in old_generations.values()} | {"0"}
    highest = max(map(int, old_fences))
    for name, g in after.all("g").items():
        if g["fence"] not in old_fences:
            assert int(g["fence"]) > highest
        if old_generations.get(name, {}).get("state") == "ended":
            assert g["state"] == "ended"
    lanes = after.lanes()
    for lane, members in before.lanes().items():
        still = [m for m in members if m in lanes.get(lane, [])]
        for rank, name in enumerate(members):
            if name in still:
                assert lanes[lane].index(name) <= rank, f"{name} fell back"
            elif tickets.get(name, {}).get("state") == "granted":
                passed = set(still) & set(members[:rank])
                assert lane != "r" or not passed, f"{name} overtook"
                assert {tickets[one]["seat"] for one in passed} <= away, f"{name} overtook"
