"""A network namespace whose one cable a test may pull: no FIN, no reset, just silence.

Needs root and `ip`; where either is missing, `island` skips the test and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Island:
    """What runs behind `prefix` sees this machine at `host` only."""

    name: str
    cable: str
    host: str

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def pull_cable(self) -> None:
        _ip("link", "set", self.cable, "down")

    def plug_in(self) -> None:
        _ip("link", "set", self.cable, "up")


@contextmanager
def island() -> Iterator[Island]:
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` command here to make a network namespace with")
    number = os.getpid()
    net = f"10.213.{number % 250}"
    made = Island(f"bt{number}", f"btc{number}", f"{net}.1")
    try:
        _ip("netns", "add", made.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine lets nobody make a network namespace: {error.stderr.decode()}")
    try:
        _ip("link", "add", made.cable, "type", "veth", "peer", "name", "far", "netns", made.name)
        _ip("addr", "add", f"{made.host}/24", "dev", made.cable)
        _ip("link", "set", made.cable, "up")
        for words in (("addr", "add", f"{net}.2/24", "dev", "far"), ("link", "set", "far", "up")):
            _ip("-n", made.name, *words)
        yield made
    finally:
        # a namespace goes when its last process has, and the cable only then: so it goes first
        subprocess.run(["ip", "link", "del", made.cable], check=False, capture_output=True)
        _ip("netns", "del", made.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
