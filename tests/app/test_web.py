"""The listening socket: refusals in one sentence, and options that every connection inherits."""

from __future__ import annotations

import resource
import socket
import sys

import pytest

from app.chat.sse import FAREWELL_SECONDS
from app.settings import Settings
from app.web import (
    PULLED_CABLE_MS,
    SEND_BUFFER_BYTES,
    PortError,
    listening_socket,
    raise_file_limit,
    stop_seconds,
    url_of,
)


def test_a_taken_port_is_named_and_how_to_change_it():
    with listening_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortError, match=rf"{port}.*--port.*BATON_PORT"):
            listening_socket("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host: str):
    with pytest.raises(PortError, match="--host"):
        listening_socket(host, 0)


def test_accepted_connections_notice_readers_that_are_gone():
    with (
        listening_socket("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        accepted, _ = listener.accept()
        with accepted:
            # Linux reports twice what was set: it counts its own bookkeeping
            held = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert held <= 2 * SEND_BUFFER_BYTES
            if sys.platform == "linux":
                wait_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert wait_ms == PULLED_CABLE_MS


def test_the_address_shown_is_one_that_can_be_opened():
    with listening_socket("0.0.0.0", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, Settings.model_validate({})) == f"http://127.0.0.1:{port}"
        public = Settings.model_validate({"public_url": "https://chat.example.org/"})
        assert url_of(listener, public) == "https://chat.example.org"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_an_ipv6_address_stands_in_brackets():
    with listening_socket("::1", 0) as listener:
        assert url_of(listener, Settings.model_validate({})).startswith("http://[::1]:")


@pytest.mark.parametrize("grace_seconds", [0.2, 5, 5.5])
def test_the_server_waits_for_its_streams_farewell(grace_seconds: float):
    chosen = Settings.model_validate({"shutdown_grace_seconds": grace_seconds})
    # they look every half second whether it stops
    assert stop_seconds(chosen) > grace_seconds + 0.5 + FAREWELL_SECONDS


def test_as_many_connections_as_the_system_grants():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        assert raise_file_limit() > 256
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
