"""One node process from its options to its end."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import structlog

from app.line.nodes import NodeDesk, PoolForbiddenError
from app.line.types import NodeInfo
from app.node.agent import LAST_SECONDS, Agent
from app.node.hardware import describe_hardware
from app.node.heart import NameTakenError
from app.node.kinds import NODE_KINDS, KindOptions
from app.node.kinds.base import NodeKind
from app.ops import logs
from app.process import EXIT_CONFIGURATION, EXIT_NAME_TAKEN, die_with_parent, exit_within
from app.relay.writer import RelayWriter
from app.settings import Settings
from app.store.client import Store
from app.store.embedded import find_embedded
from engine.card import card_to_bytes
from engine.types import EngineError, ModelCard

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What `baton node` was asked to be."""

    kind: str = "local"
    # None: named after the model
    pool: str | None = None
    # public name, one of a kind in its pool; None: the host's, with an id of its own at each start
    name: str | None = None
    # how many it serves at once, where the kind can
    slots: int = 1
    kinds: KindOptions = field(default_factory=KindOptions)


class NoStoreError(Exception):
    """`str(error)` says what to do."""


def run_node(options: NodeOptions, settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Faults of the set-up are one sentence."""
    die_with_parent()
    logs.configure(settings)
    try:
        asyncio.run(_serve(options, settings))
    except (EngineError, NoStoreError) as error:
        return _refuse(error)
    except ExceptionGroup as group:
        if taken := group.subgroup(NameTakenError):
            return _refuse(_first(taken), EXIT_NAME_TAKEN)
        if forbidden := group.subgroup(PoolForbiddenError):
            return _refuse(_first(forbidden))
        raise
    return 0


def _first(group: ExceptionGroup[Any]) -> Exception:
    """The first fault in it, however deep: a slot's tasks are a group in the node's."""
    inner: Any = group
    while isinstance(inner, ExceptionGroup):
        inner = cast(Any, inner).exceptions[0]
    return inner


def _refuse(error: Exception, code: int = EXIT_CONFIGURATION) -> int:
    print(f"baton node: {error}", file=sys.stderr, flush=True)  # noqa: T201 for the terminal
    return code


async def _serve(options: NodeOptions, settings: Settings) -> None:
    url = settings.redis_url or find_embedded(settings.data_folder)
    if url is None:
        raise NoStoreError(
            f"There is no store in {settings.data_folder}. Start `baton serve` on this machine first, "
            "or name a Redis or Valkey with --redis-url."
        )
    slots = [NODE_KINDS[options.kind](options.kinds) for _ in range(options.slots)]
    card = await _open(slots)
    if card is None:
        return
    pool = options.pool or pool_name(card.name)
    info = _info(options, card)
    log.info(
        "node",
        node=info.id, pool=pool, kind=info.kind, model=card.name, hardware=info.hardware,
        context_tokens=card.context_tokens, numerics=card.numerics, slots=options.slots,
    )  # fmt: skip
    async with Store.connect(url) as store:
        desk, writer = NodeDesk(store, pool, settings), RelayWriter(store, pool)
        agents = [
            Agent(desk, writer, kind, _slot(info, number), settings, card_to_bytes(card))
            for number, kind in enumerate(slots, 1)
        ]

        def stop() -> None:
            for agent in agents:
                agent.stop()
            exit_within(settings.shutdown_grace_seconds + 3 * LAST_SECONDS, 1)

        _on_signals(stop)
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run(), name="agent")
    for kind in slots:
        await kind.close()


def _slot(info: NodeInfo, number: int) -> NodeInfo:
    """Each slot stands in the line by itself: with a lease, fences and an inbox of its own."""
    return info if number == 1 else replace(info, id=f"{info.id}/{number}")


async def _open(slots: Sequence[NodeKind]) -> ModelCard | None:
    """Load; None when told to stop meanwhile. Raises EngineError."""
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        # loading cannot be interrupted, and nobody knows of this node yet
        exit_within(0.5, 0)

    _on_signals(stop)
    cards = [await kind.open() for kind in slots]
    return None if stopped.is_set() else cards[0]


def _on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop)


def _info(options: NodeOptions, card: ModelCard) -> NodeInfo:
    name = options.name or socket.gethostname().partition(".")[0] or "node"
    # With a given name a restarted node takes its own place again at once. Without one it cannot
    # know whether its neighbour has the same, so it comes as a new one.
    own = "" if options.name else f"-{secrets.token_hex(3)}"
    return NodeInfo(
        id=_slug(name) + own,
        boot=secrets.token_hex(8),
        name=name,
        hardware=describe_hardware(),
        kind=options.kind,
        numerics=card.numerics,
    )


def pool_name(model: str) -> str:
    """The line of a model is called as the model is, so that a request may name it as everybody
    does; what cannot stand in a key or an address becomes a dash."""
    return re.sub(r"[^\w.:-]+", "-", model, flags=re.ASCII).strip("-")[:200] or "model"


def _slug(name: str) -> str:
    """Letters, digits, dots and dashes only: ids stand in keys and in addresses."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:64] or "node"
