"""Every key in Redis: name, type, content, lifetime. No key text stands anywhere else in Python.

All keys of a pool share the hash tag `{p:<pool>}`, so that they lie in one slot of a cluster. The
scripts get that prefix as KEYS[1] and build the rest as in this table:

    key (after the prefix)  type    content                                        lifetime
    w:<lane>                zset    waiting tickets; score: sequence number        with the ticket
    t:<ticket>              hash    seat, tier, lane, seq, state, node, fence,     10 min after its end
                                    granted_at, slice_until, idle_until, reason
    j:<ticket>              list    generations of this ticket not yet assigned    with the ticket
    seat                    hash    seat -> live ticket                            with the ticket
    seen                    zset    ticket -> "must be watched before" (ms)        with the ticket
    n:<node>                hash    boot, info (JSON), state idle | leased | stop, until it leaves
                                    ticket, fence, generation, reported
    nodes                   zset    node -> heartbeat deadline (ms)                with the node
    idle                    zset    node -> idle since (ms)                        with the state
    inbox:<node>            list    doorbell of the node: "job", "cancel"          60 s
    g:<generation>          hash    state queued | assigned | ended, ticket, seat, stream_keep_seconds
                                    hold, payload, fence, node, queued_at,         after its end
                                    assigned_at, cancel, ended_at
    s:<generation>          stream  its events: fields k (kind) and d (JSON)       as g:
    ended                   stream  ended generations that SQL has not taken yet   until taken
    turns                   list    durations of the last 20 leases (ms)           for ever, bounded
    card                    string  the model card that the nodes published        until replaced
    seq, fence, tick, hold  string  counters; last run of a script; reaper's hold  for ever
    bell                    channel the line changed
    bell:<generation>       channel the generation's stream or state changed

Keys outside the pools:

    baton:pools             set     names of all pools that ever had a node
    baton:{s:<seat>}        string  pool of the seat's live ticket; expires by itself
"""

from __future__ import annotations

POOLS = "baton:pools"


def pool_prefix(pool: str) -> str:
    """What every key of `pool` begins with."""
    return f"baton:{{p:{pool}}}:"


def seat_claim(seat: str) -> str:
    return f"baton:{{s:{seat}}}"


def generation_hash(pool: str, generation: str) -> str:
    return f"{pool_prefix(pool)}g:{generation}"


def generation_stream(pool: str, generation: str) -> str:
    return f"{pool_prefix(pool)}s:{generation}"


def ended_stream(pool: str) -> str:
    return f"{pool_prefix(pool)}ended"


def inbox(pool: str, node: str) -> str:
    return f"{pool_prefix(pool)}inbox:{node}"


def model_card(pool: str) -> str:
    return f"{pool_prefix(pool)}card"


def line_bell(pool: str) -> str:
    return f"{pool_prefix(pool)}bell"


def generation_bell(pool: str, generation: str) -> str:
    return f"{pool_prefix(pool)}bell:{generation}"
