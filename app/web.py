"""The web process: uvicorn around `app.main.create_app`, and the socket that it listens on."""

from __future__ import annotations

import errno
import logging
import math
import resource
import signal
import socket
import sys
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import AppError
from app.ops import logs
from app.process import EXIT_CONFIGURATION, die_with_parent
from app.settings import Settings

log = logging.getLogger(__name__)

# A reader whose cable was pulled is noticed after this; by default TCP takes more than 3 minutes.
PULLED_CABLE_MS = 15_000
# What may lie unread in the kernel for one connection. With the default a reader that never reads
# swallows 4 MB of an answer before anybody notices.
SEND_BUFFER_BYTES = 64 * 1024
BACKLOG = 2048
# Streams notice a stop within half a second, go on for their grace and say farewell within another
# second; only then may the server cut what is left.
FAREWELL_MARGIN_SECONDS = 3


class PortError(Exception):
    """The address cannot be listened on; `str(error)` says what to do."""


def listening_socket(host: str, port: int) -> socket.socket:
    """Bind and listen. Accepted connections inherit the options. Raises PortError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise PortError(
            f"There is no address {host!r} on this machine. Choose another with --host or BATON_HOST."
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PULLED_CABLE_MS)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortError(_why_not(host, port, error)) from None
    return listener


def _why_not(host: str, port: int, error: OSError) -> str:
    change = "Choose another port with --port or BATON_PORT (0: any free one)."
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is taken by another program. {change}"
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has. {change}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"This machine has no address {host}. Choose another with --host or BATON_HOST."
    return f"Port {port} on {host} cannot be opened ({error.strerror}). {change}"


def url_of(listener: socket.socket, settings: Settings) -> str:
    """The address that people type."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def stop_seconds(settings: Settings) -> int:
    """How long the server waits for its requests to end by themselves after SIGTERM."""
    return math.ceil(settings.shutdown_grace_seconds) + FAREWELL_MARGIN_SECONDS


def run_web(settings: Settings, listener_fd: int | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code.

    `listener_fd`: a listening socket that the supervisor holds, so that a restarted web process
    keeps its port and whoever connects meanwhile is served afterwards.
    """
    die_with_parent()
    logs.configure(settings)
    raise_file_limit()
    try:
        if listener_fd is None:
            listener = listening_socket(settings.host, settings.port)
        else:
            listener = socket.socket(fileno=listener_fd)
    except PortError as error:
        return _refuse(error)
    # the framework takes a second to import; a taken port is said before
    from app.main import create_app

    app = _StartFault(create_app(settings))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            loop="uvloop",
            http="httptools",
            lifespan="on",
            timeout_graceful_shutdown=stop_seconds(settings),
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies,
            access_log=False,
            log_config=None,
            server_header=False,
        )
    )
    # Until the server runs, and once it has shut down and raises the signal again.
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, _leave)
    with listener:
        try:
            server.run(sockets=[listener])
        except SystemExit:
            if app.fault is None:
                raise
    return 0 if app.fault is None else _refuse(app.fault)


def raise_file_limit() -> int:
    """Take as many open files as the system lets this process have; how many that is.

    Every stream that waits is one, and many systems begin with 1,024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        # macOS names a limit that it does not grant
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most


def _leave(signal_number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _refuse(error: Exception) -> int:
    print(f"baton web: {error}", file=sys.stderr, flush=True)  # noqa: T201 for the terminal
    return EXIT_CONFIGURATION


class _StartFault:
    """Keeps the fault that a start-up ended with, when it is one of ours: a sentence, no traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.fault: AppError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_without_traceback(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                message = {**message, "message": ""}
            await send(message)

        try:
            await self._app(scope, receive, send_without_traceback)
        except AppError as error:
            self.fault = error
        except Exception:
            log.exception("the web process could not start")
            raise
