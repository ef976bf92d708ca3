"""Every key in Redis: name, type, content, lifetime. No key text stands anywhere else in Python.

All keys of a pool share the hash tag `{p:<pool>}`, so that they lie in one slot of a cluster. The
scripts get that prefix as KEYS[1] and build the rest as in this table:

    key (after the prefix)  type    content                                        lifetime
    w:<lane>                zset    waiting tickets; score: sequence number; lanes with the ticket
                                    r (returned), priority, browser, api
    t:<ticket>              hash    seat, tier, lane, seq, state waiting |         10 min after its end
                                    granted | ended, hold, grace (ms), opened_at,
                                    hidden (1: its page is not in front), program
                                    (1: an API call waits), calls (to the turn, in
                                    vain), session (of a program that keeps the
                                    lease), address, borrowed (1: a race),
                                    claimed_at, node, fence, granted_at,
                                    generation (running),
                                    slice_until, extended (times while others
                                    waited), ending (why the lease will end
                                    after this answer), reason (why it ended)
    j:<ticket>              list    generations of this ticket not yet assigned    with the ticket
    seat                    hash    seat -> live ticket                            with the ticket
    seen                    zset    ticket waiting or with a running answer        with that state
                                    -> "must be watched before" (ms)
    from:<address>          set     waiting tickets of one address (a digest)      with that state
    claim                   zset    waiting ticket whose turn came while nobody    with that state
                                    was there -> when that call is over (ms)
    leases                  zset    granted ticket, not ending or draining         with the lease
                                    -> slice end (ms)
    draining                zset    ticket whose lease ends after the running      with the lease
                                    answer, for its node goes -> when that answer
                                    goes on elsewhere (ms)
    ending                  zset    ticket whose lease ends after the running      with the lease
                                    answer -> when that is called off (ms; inf:
                                    it has been)
    rest                    zset    ticket whose lease rests -> idle limit (ms)    with that state
    borrowed                zset    ticket of a race with a node -> since when (ms) with the lease
    pass                    hash    tier -> virtual time; "now" (stride scheduler) for ever
    n:<node>                hash    one slot of a node (<node>, <node>/2, ..):     until it leaves
                                    boot, info (JSON), state idle | leased | stop
                                    (must first say that nothing runs) | drained
                                    (free, but out of service), ticket,
                                    generation, fence (of the last assignment),
                                    taken (last fence fetched), done (last fence
                                    finished), stop_since
    nodes                   zset    node -> heartbeat deadline (ms)                with the node
    idle                    zset    node -> idle since (ms), later slots last      with the state
    drained                 set     nodes (slots) that get no new lease            with the node
    drains                  set     names of nodes that an operator took out of    until taken back
                                    service, present or not
    owes                    zset    node that has to fetch its question, or to     until it does
                                    stop it -> when it is given up on (ms)
    alive                   zset    node with a fetched question -> a moment (ms)  with that question
                                    at or before its last sign of life in it
    rescue                  zset    generation with tokens that waits for another  with that wait
                                    node -> when it is given up (ms)
    inbox:<node>            list    doorbell of the node: "job", "cancel"          60 s
    g:<generation>          hash    state queued | assigned | ended, ticket,       stream_keep_seconds
                                    seat, hold, session, payload,                  after its end
                                    fence (0: nobody may append), node,
                                    queued_at, assigned_at, cancel,
                                    ended_at, tries (nodes that fetched it
                                    and did not give it back),
                                    length (entries in the stream when assigned),
                                    begun (1: tokens are written), numerics (label
                                    of all nodes that wrote; '': they differ);
                                    the relay's: writer, written (entries), bytes,
                                    wrote_at
    s:<generation>          stream  its events: fields k (kind) and d (JSON)       as g:; 7 days
                                                                                   after an append
    ended                   stream  ended generations that SQL has not taken yet   until taken
    turns                   list    durations of the last 20 leases (ms)           for ever, bounded
    limits                  string  the line's durations (JSON, ms), as the web    for ever
                                    process that acted last was set; they rule,
                                    whoever runs a script
    card                    string  the model card that the nodes published        until replaced
    seq, fence              string  counters                                       for ever
    tick, hold              string  last run of a script; when the last outage (or for ever
                                    a clock set back) was noticed (ms)
    clock, frozen           string  offset of the clock (ms), and the time at      -
                                    which it stands still (µs); tests only
    bell                    channel the line changed
    bell:<generation>       channel the generation's stream or state changed

Keys outside the pools:

    baton:pools             set     names of all pools that ever had a node
    baton:{s:<seat>}        hash    pool: which the seat chose last (counts only while a ticket of
                                    the seat stands there); join:<generation>: until when (ms) a
                                    join with unknown outcome may be on its way; expires by itself
"""

from __future__ import annotations

POOLS = "baton:pools"


def pool_prefix(pool: str) -> str:
    """What every key of `pool` begins with."""
    return f"baton:{{p:{pool}}}:"


def seat_claim(seat: str) -> str:
    return f"baton:{{s:{seat}}}"


def seats(pool: str) -> str:
    return f"{pool_prefix(pool)}seat"


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


def line_limits(pool: str) -> str:
    return f"{pool_prefix(pool)}limits"


def line_bell(pool: str) -> str:
    return f"{pool_prefix(pool)}bell"


def generation_bell(pool: str, generation: str) -> str:
    return f"{pool_prefix(pool)}bell:{generation}"
