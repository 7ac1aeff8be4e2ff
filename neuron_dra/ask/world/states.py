"""The state of a node: a letter for pictures and lists, and a few words. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from neuron_dra.ask.render import words
from neuron_dra.ask.world import fleet, tested
from neuron_dra.ask.world.fleet import NodeView


class StateKind(Enum):
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

    kind: StateKind
    text: str


def of(node: NodeView, missing: Collection[str]) -> NodeState:
    """Return a node's state, the first that applies; `missing` kinds were not read."""
    if not node.ready:
        return NodeState(StateKind.NOT_READY, "not Ready")
    if not node.devices:
        is_unknown = "ResourceSlice" in missing
        if is_unknown:
            return NodeState(StateKind.UNKNOWN, "unknown")
        return NodeState(StateKind.SILENT, "publishes nothing")
    if node.tag is not None and tested.is_test(node.tag):
        return NodeState(StateKind.RESERVED, tested.IN_A_TEST)
    if node.tag is not None:
        return NodeState(StateKind.RESERVED, f"{node.tag.workload} {node.tag.phase.value}")
    if not node.schedulable:
        return NodeState(StateKind.CORDONED, "cordoned")
    holder_names = {str(holder) for device in node.devices for holder in device.holders}
    if holder_names:
        holders_text = words.listed(sorted(holder_names, key=words.natural), 2)
        if node.faulty:  # a fault is what a reader looks for, whoever holds the devices
            return NodeState(StateKind.UNHEALTHY, f"{holders_text}; {node.faulty} unhealthy")
        return NodeState(StateKind.HELD, holders_text)
    if node.faulty == len(node.devices):
        return NodeState(StateKind.UNHEALTHY, f"unhealthy: {node.devices[0].faults}")
    if "ResourceClaim" in missing:
        return NodeState(StateKind.UNKNOWN, "unknown")
    missing_count = len(fleet.missing(node)) if "ResourceSlice" not in missing else 0
    if missing_count:
        return NodeState(StateKind.UNHEALTHY, f"free, but for {missing_count} missing")
    if node.faulty:
        return NodeState(StateKind.UNHEALTHY, f"free, but for {node.faulty} unhealthy")
    return NodeState(StateKind.FREE, "spare" if node.spare else "free")
