"""Healthy nodes and groups, and free slots, from the real state of the fleet."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_dra.core.ultraserver import object_name
from tests.support.fleet.nodes import FleetNode
from tests.support.fleet.view import Held, View, condition


def is_well(view: View, held: Held, node: FleetNode) -> bool:
    """True if the node is the reserved one, shows its tag, has the links that the slot needs, and no agent's report."""
    found = view.find("nodes", node.name)
    if found is None or not node.alive or not held.allocation.is_for(node.name, found["metadata"]["uid"]):
        return False
    if node.reported or (not node.tags_its_devices and view.tags().get(node.name) is None):
        return False
    return offers(node, held.allocation.node_count) and condition(found, "Ready").get("status") == "True"


def slot_is_well(view: View, held: Held, nodes: Mapping[str, FleetNode]) -> bool:
    """True if all nodes of the group are healthy."""
    return all(is_well(view, held, nodes[name]) for name in held.allocation.nodes)


def shut(held: Held, nodes: Mapping[str, FleetNode]) -> list[str]:
    """The nodes of a group that are cordoned, or tainted alone: a taint of all of them sets the group aside."""
    of_all = set.intersection(*(nodes[name].taints for name in held.allocation.nodes))
    return [name for name in held.allocation.nodes if nodes[name].cordoned or nodes[name].taints - of_all]


def free_slots(view: View, nodes: Mapping[str, FleetNode], instance_type: str, size: int) -> int:
    """Return the number of free slots of this size; nodes without a reservation or claim are free."""
    uses = view.uses()
    held = {name for each in view.held() for name in each.allocation.nodes}
    going = {
        str(item["metadata"]["name"])
        for item in view.all("neuronultraservers")
        if "deletionTimestamp" in item["metadata"]
    }
    free = {
        (node.block, node.node_id)
        for node in nodes.values()
        if node.instance_type == instance_type
        and node.healthy
        and not node.reported
        and object_name(node.block) not in going
        and node.name not in held
        and node.name not in uses
        and offers(node, size)
    }
    blocks = {block for block, _ in free}
    return sum(
        all((block, number) in free for number in range(first, first + size))
        for block in blocks
        for first in range(0, 4, size)
    )


def offers(node: FleetNode, size: int) -> bool:
    """True if the node has the links that a group of this size needs."""
    modes = {4: {1}, 2: {2, 3}, 1: {4}}.get(size, set())  # what is left of a group that was lost has other sizes
    return bool(modes & set(node.modes)) and (size != 2 or 3 in node.modes)
