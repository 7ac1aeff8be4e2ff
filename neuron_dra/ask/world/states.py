"""The state of a node: a letter for pictures and lists, and a few words. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from neuron_dra.ask.render import words
from neuron_dra.ask.world.fleet import NodeView


class Kind(Enum):
    """The kinds of states, by their letters."""

    NOT_READY = "N"
    SILENT = "S"
    UNKNOWN = "?"
    RESERVED = "R"
    CORDONED = "C"
    HELD = "H"
    UNHEALTHY = "!"
    FREE = "F"


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node's state: its kind, and `text` for people, with names where there are any."""

    kind: Kind
    text: str


def of(node: NodeView, missing: Collection[str]) -> NodeState:
    """Return a node's state, the first that applies; `missing` kinds were not read."""
    if not node.ready:
        return NodeState(Kind.NOT_READY, "not Ready")
    if not node.devices:
        is_unknown = "ResourceSlice" in missing
        return NodeState(Kind.UNKNOWN, "unknown") if is_unknown else NodeState(Kind.SILENT, "publishes nothing")
    if node.tag is not None:
        return NodeState(Kind.RESERVED, f"{node.tag.workload} {node.tag.phase.value}")
    if not node.schedulable:
        return NodeState(Kind.CORDONED, "cordoned")
    users = sorted({str(holder) for device in node.devices for holder in device.holders})
    if users:
        return NodeState(Kind.HELD, words.listed(users, 2))
    if node.faulty == len(node.devices):
        return NodeState(Kind.UNHEALTHY, f"unhealthy: {node.devices[0].faults}")
    if "ResourceClaim" in missing:
        return NodeState(Kind.UNKNOWN, "unknown")
    if node.faulty:
        return NodeState(Kind.UNHEALTHY, f"free, but for {node.faulty} unhealthy")
    return NodeState(Kind.FREE, "free")
