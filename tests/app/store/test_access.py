"""What a node of another machine may do in the store, tried against a real one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from app.line import operations
from app.relay import writer
from app.store import access, keys
from app.store.client import Store
from app.store.embedded import EmbeddedStore
from tests.app.node.desk import POOL, Place, tokens_of, work
from tests.app.node.processes import process
from tests.app.store.test_embedded import free_port, mode
from tests.waiting import until

MINE, OTHERS = keys.pool_prefix(POOL), keys.pool_prefix("other")
NODE_SCRIPTS = (
    operations.REGISTER, operations.HEARTBEAT, operations.TAKE, operations.FINISHED,
    operations.DEPART, operations.DRAIN, writer.APPEND, writer.END,
)  # fmt: skip
SENT = {"ping", "client|setinfo", "client|setname", "eval", "evalsha", "blpop", "sadd", "xrange"}


@pytest.fixture
def embedded(short_folder: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore.start(short_folder, listen=f"127.0.0.1:{free_port()}")
    yield store
    store.stop()


@pytest.fixture
def join_url(embedded: EmbeddedStore) -> str:
    url = embedded.join_url(POOL)
    assert url
    return url


def test_a_node_may_run_what_its_scripts_call_and_nothing_more() -> None:
    called = {
        name.lower()
        for script in NODE_SCRIPTS
        for name in re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", script.text)
    }
    assert set(access.COMMANDS) == called | SENT


@pytest.mark.parametrize(
    "command",
    [
        ("HGET", OTHERS + "n:n1", "info"),
        ("XRANGE", OTHERS + "s:g1", "-", "+"),
        ("SET", OTHERS + "limits", "{}"),
        ("BLPOP", OTHERS + "inbox:n1", "0.01"),
        ("PUBLISH", OTHERS + "bell", ""),
        ("EVAL", "return 1", "1", OTHERS),
        ("EVAL", f"return redis.call('GET', '{OTHERS}card')", "1", MINE),
        ("HGET", keys.seat_claim("u:1"), "pool"),
        ("DEL", keys.POOLS),
        ("SMEMBERS", keys.POOLS),
        ("SUBSCRIBE", MINE + "bell"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("FLUSHALL",),
        ("CONFIG", "GET", "requirepass"),
        ("ACL", "LIST"),
        ("SCRIPT", "FLUSH"),
        ("CLIENT", "LIST"),
    ],
)
def test_nothing_outside_its_pool_is_within_its_reach(
    join_url: str, command: tuple[str, ...]
) -> None:
    with Redis.from_url(join_url) as client, pytest.raises(ResponseError) as told:
        client.execute_command(*command)
    # within a script it is that script's error
    assert isinstance(told.value, NoPermissionError) or "ACL failure" in str(told.value)


async def test_a_node_answers_and_leaves_with_its_own_user(
    embedded: EmbeddedStore, join_url: str
) -> None:
    async with Store.connect(embedded.url) as store:
        place = Place.on(store)
        async with process(join_url, "far", "--slots", "2", "--tokens-per-second", "5000") as node:
            await until(place.has_nodes, within_seconds=30, what="registered")
            entries = await place.ended(await place.ask(work()), within_seconds=30)
            assert (entries[-1].kind, len(tokens_of(entries))) == ("done", 50)
            node.send_signal(signal.SIGTERM)
            assert await node.wait() == 0
        assert await place.line.nodes(POOL) == []


async def test_a_node_of_another_line_is_told_so_in_one_sentence(join_url: str) -> None:
    async with process(join_url, "far", pool="other") as node:
        said = await node.stderr.read() if node.stderr else b""
        assert await node.wait() == 2
    assert b"does not let this node into the line of other" in said
    assert b"Traceback" not in said


def test_a_user_that_is_revoked_is_cut_off_now_and_after_a_restart(
    embedded: EmbeddedStore, short_folder: Path
) -> None:
    folder = short_folder / "store"
    user = access.invite(folder, embedded.url, POOL)
    assert mode(folder / "nodes" / f"{user.name}.json") == 0o600
    url = embedded.join_url(POOL)
    assert url
    with Redis.from_url(url) as client:
        client.ping()
        assert access.revoke(folder, embedded.url, user.name)
        with pytest.raises(AuthenticationError):
            Redis.from_url(url).ping()
    assert access.users(folder) == []
    assert not access.revoke(folder, embedded.url, user.name)
    assert not access.revoke(folder, embedded.url, "../password")


@pytest.mark.parametrize("pool", ["", "a b", "x" * 201, "a*", "a\n+@all"])
def test_a_pool_that_would_break_out_of_its_rules_is_refused(pool: str) -> None:
    with pytest.raises(ValueError, match="letters"):
        access.new_user(pool)
