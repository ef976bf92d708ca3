"""What a node can be made of, by name. A new kind is one file here and one line in `NODE_KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.node.kinds.base import NodeKind
from app.node.kinds.local import LocalKind, LocalModel
from app.node.kinds.scripted import Script, ScriptedKind


@dataclass(frozen=True, slots=True)
class KindOptions:
    """The options of all kinds together; each kind takes its own."""

    local: LocalModel = field(default_factory=LocalModel)
    script: Script = field(default_factory=Script)


def _local(options: KindOptions) -> NodeKind:
    return LocalKind(options.local)


def _scripted(options: KindOptions) -> NodeKind:
    return ScriptedKind(options.script)


# Those that can serve several at once. Each slot is an instance of its own; what they share (a model, a
# connection), the kind shares among its instances.
BATCHING_KINDS = frozenset({"scripted"})

NODE_KINDS: Mapping[str, Callable[[KindOptions], NodeKind]] = {
    "local": _local,
    "scripted": _scripted,
}
