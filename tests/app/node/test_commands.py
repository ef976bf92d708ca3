"""`baton node list | drain | undrain`, against nodes in a real store."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from app.store.client import Store
from tests.app.line.hall import POOL, Hall, limits
from tests.app.node.processes import ROOT


async def baton_node(url: str, *arguments: str) -> tuple[int, str]:
    """Exit code, and all that it said."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli", "node", *arguments,
        cwd=ROOT,
        env={**os.environ, "BATON_REDIS_URL": url},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await child.communicate()
    assert child.returncode is not None
    return child.returncode, said.decode()


@pytest.fixture
def hall(store: Store) -> Hall:
    """Its nodes need not report while a command starts."""
    return Hall(store, limits(node_dead_seconds=3600))


async def test_a_node_is_drained_shown_and_taken_back(hall: Hall, valkey_url: str):
    await hall.slots("big", 2)
    code, said = await baton_node(valkey_url, "drain", "big")
    assert (code, "gets nothing new" in said) == (0, True)
    _, said = await baton_node(valkey_url, "list")
    assert said.split("\t") == [POOL, "big", "drained", "0 of 2 busy", "scripted", "H200\n"]
    await baton_node(valkey_url, "undrain", "big")
    assert (await hall.ask("ann")).state == "assigned"


async def test_an_unknown_node_is_refused_with_the_names_there_are(hall: Hall, valkey_url: str):
    await hall.node("n1")
    code, said = await baton_node(valkey_url, "drain", "n2")
    assert (code, said) == (2, "baton: There is no node 'n2' now. There are: n1.\n")


async def test_a_name_in_several_lines_needs_its_line(hall: Hall, valkey_url: str):
    await hall.node("n1")
    await hall.node("n1", pool="other")
    code, said = await baton_node(valkey_url, "drain", "n1")
    assert code == 2
    assert "--pool" in said
    assert (await baton_node(valkey_url, "drain", "n1", "--pool", "other"))[0] == 0
    assert not (await hall.line.nodes(POOL))[0].drained
    assert (await hall.line.nodes("other"))[0].drained


async def test_a_node_that_is_away_can_be_taken_back(hall: Hall, valkey_url: str):
    node = await hall.node("n1")
    await hall.line.drain(POOL, "n1")
    await node.desk.leave("n1", node.boot)
    code, said = await baton_node(valkey_url, "undrain", "n1", "--pool", POOL)
    assert (code, said) == (0, "n1 is not here; it serves once it comes.\n")
    await node.come()
    assert (await hall.ask("ann")).state == "assigned"


async def test_a_line_that_never_was_is_no_line_of_an_absent_node(hall: Hall, valkey_url: str):
    await hall.node("n1")
    code, said = await baton_node(valkey_url, "undrain", "n1", "--pool", "typo")
    assert (code, said) == (2, "baton: There is no line 'typo'.\n")


async def test_without_a_store_it_is_one_sentence():
    code, said = await baton_node("redis://127.0.0.1:1", "list")
    assert code == 2
    assert said.startswith("baton: The store cannot be reached")
    assert said.count("\n") == 1


async def test_for_another_store_the_command_that_makes_its_user_is_printed(
    hall: Hall, valkey_url: str
):
    code, said = await baton_node(valkey_url, "invite", "--pool", POOL)
    assert code == 0
    words = shlex.split(next(line for line in said.splitlines() if "ACL SETUSER" in line))
    assert await hall.store.command(*words) in (b"OK", "OK", True)
    joins = re.search(r"BATON_REDIS_URL='redis://([^:]+):([^@]+)@", said)
    assert joins
    known = await hall.store.command("ACL", "GETUSER", joins[1])
    assert hashlib.sha256(joins[2].encode()).hexdigest() in str(known)
    await hall.store.command("ACL", "DELUSER", joins[1])


async def test_a_store_that_is_not_open_has_nobody_to_invite(tmp_path: Path):
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli", "node", "invite", "--pool", "m",
        "--data-folder", str(tmp_path),
        cwd=ROOT, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, said = await done.communicate()
    assert done.returncode == 2
    assert b"--listen" in said
