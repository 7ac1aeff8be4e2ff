"""Groups published nodes into UltraServers, with their links and problems. Pure.

Membership comes from hardware and EC2 (`ultraserverId`), never from our own tags. A node is identified by the UID of
its Node object: another instance with the same name is another node.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.observe.decode import LABEL_PREFIX
from controller.observe.model import (
    ClusterNode,
    PublishedNode,
    Snapshot,
    UltraServer,
    shortened,
)
from neuron_dra.core.ultraserver import Phase, object_name


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of an UltraServer: reason and message of its condition Degraded."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Group:
    """An UltraServer. `usable` are the nodes that a slot may take, by nodeId, reserved or not."""

    name: str
    ultraserver_id: str
    instance_type: str
    topology: tuple[Mapping[str, Any], ...]
    usable: Mapping[int, PublishedNode]
    sizes: tuple[int, ...]
    problems: tuple[Problem, ...]
    cordoned: tuple[str, ...] = ()

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of all its nodes, including those without slices."""
        return tuple(entry["nodeName"] for entry in self.topology)

    def free_nodes(self, *taken: Container[str]) -> int:
        """Return the number of usable nodes that are in none of these sets of names."""
        return sum(all(node.name not in names for names in taken) for node in self.usable.values())


def discover(snapshot: Snapshot) -> tuple[Group, ...]:
    """Return every UltraServer, by name. A stored one without nodes has an empty topology.

    A node whose slices are missing, as after each kubelet restart, stays a member while its Node object is the same.
    """
    nodes = {node.name: node for node in snapshot.nodes}
    members: dict[str, list[PublishedNode]] = {}
    for published in sorted(snapshot.published, key=lambda each: each.name):
        node = nodes.get(published.name)
        if published.ultraserver_id and node is not None and published.node_uid in ("", node.uid):
            members.setdefault(object_name(published.ultraserver_id), []).append(published)
    shown = {published.name for group in members.values() for published in group}
    stored = {each.name: each for each in snapshot.ultraservers}
    groups = (
        group_of(name, members.get(name, []), stored.get(name), nodes, shown) for name in sorted({*members, *stored})
    )
    return tuple(group for group in groups if group is not None)


def group_of(
    name: str,
    members: list[PublishedNode],
    stored: UltraServer | None,
    nodes: Mapping[str, ClusterNode],
    shown: Container[str],
) -> Group | None:
    """Return one UltraServer; None if it has no object and no node.

    `members` are the nodes that publish its id, by name; `shown` the names of all nodes that publish an id.
    """
    if members:
        return _group(name, str(members[-1].ultraserver_id), members, stored, nodes, shown)
    if stored is not None:
        return _group(name, str(stored.status.get("ultraserverId") or name), members, stored, nodes, shown)
    return None


def _group(
    name: str,
    ultraserver_id: str,
    members: list[PublishedNode],
    stored: UltraServer | None,
    nodes: Mapping[str, ClusterNode],
    shown: Container[str],
) -> Group:
    """Return an UltraServer from its nodes, its object, or both."""
    known = {str(entry.get("nodeName")): entry for entry in (stored.spec.get("topology") or [] if stored else [])}
    instance_type = str(stored.spec.get("instanceType")) if stored else members[0].instance_type
    other_types = [each.name for each in members if each.instance_type != instance_type]
    present = [each for each in members if each.instance_type == instance_type]
    numbered = {each.name: _number(each, known, nodes) for each in present}
    away = [
        entry
        for node_name, entry in known.items()
        if node_name not in shown and node_name in nodes and nodes[node_name].uid == entry.get("nodeUid")
    ]
    entries = [_entry(each, number, nodes) for each in present if (number := numbered[each.name]) is not None]
    topology = tuple(sorted([*entries, *away], key=lambda entry: (entry["nodeId"], entry["nodeName"])))
    twice = {entry["nodeId"] for entry in topology if sum(each["nodeId"] == entry["nodeId"] for each in topology) > 1}
    deleting = stored is not None and stored.deleting  # it accepts no finalizer
    usable = {
        each.node_id: each
        for each in present
        if each.node_id is not None and not (deleting or each.node_id in twice) and _is_usable(each, nodes[each.name])
    }
    sizes = tuple(sorted({size for each in present for size in each.sizes}))
    cordoned = tuple(entry["nodeName"] for entry in topology if not nodes[entry["nodeName"]].schedulable)
    problems = (
        *_identity(present, nodes),
        *_if(other_types, "MixedInstanceTypes", f"nodes of other types than {instance_type}: {shortened(other_types)}"),
        *_if(
            sorted(twice),
            "DuplicateNodeId",
            f"several nodes publish the same number of this UltraServer: {', '.join(map(str, sorted(twice)))}",
        ),
        *_missing(topology, sizes, stored),
        *_if(
            sorted(entry["nodeName"] for entry in topology if not nodes[entry["nodeName"]].ready),
            "NodeNotReady",
            "nodes that are not Ready: {}",
        ),
        *_if(cordoned, "NodeCordoned", "cordoned nodes, which cannot be reserved: {}"),
        *_if([entry["nodeName"] for entry in away], "SliceMissing", "nodes that publish no ResourceSlice: {}"),
        *_if(
            [each.name for each in present if numbered[each.name] is None or not each.sizes],
            "TopologyUnknown",
            "nodes whose Neuron driver does not know their place yet (it reports busy): {}",
        ),
        *_if(
            [each.name for each in present if each.device_faults],
            "DeviceUnhealthy",
            "nodes with unhealthy or missing devices, which cannot be reserved: {}",
        ),
        *_links(present),
        *_quarantined(stored, nodes),
    )
    return Group(name, ultraserver_id, instance_type, topology, usable, sizes, problems, cordoned)


def _is_usable(published: PublishedNode, node: ClusterNode) -> bool:
    """Return True if the node's own state allows a slot to take it."""
    publishes_well = published.complete and published.kind and not published.device_faults
    return bool(publishes_well and node.ready and node.schedulable and not node.out_of_service)


def _if(found: Sequence[Any], reason: str, message: str) -> tuple[Problem, ...]:
    """Return a problem that lists what was found, in the place of `{}`; none if nothing was found."""
    return (Problem(reason, message.replace("{}", shortened([str(each) for each in found]))),) if found else ()


def _number(
    published: PublishedNode, known: Mapping[str, Mapping[str, Any]], nodes: Mapping[str, ClusterNode]
) -> int | None:
    """Return the node's number; while its driver is busy, the stored one."""
    entry = known.get(published.name, {})
    if published.node_id is None and entry.get("nodeUid") == nodes[published.name].uid:
        return int(entry["nodeId"])
    return published.node_id


def _entry(published: PublishedNode, number: int, nodes: Mapping[str, ClusterNode]) -> dict[str, Any]:
    """Return the entry of a node in spec.topology."""
    node = nodes[published.name]
    return {
        "nodeName": published.name,
        "nodeId": number,
        **_link("linkStatusHorizontal", published.horizontal),
        **_link("linkStatusVertical", published.vertical),
        "nodeUid": node.uid,
        **({"providerID": node.provider_id} if node.provider_id else {}),
    }


def _link(name: str, up: bool | None) -> dict[str, str]:
    """Return the field of a link status; none while it is unknown."""
    return {} if up is None else {name: "up" if up else "down"}


def _identity(present: list[PublishedNode], nodes: Mapping[str, ClusterNode]) -> tuple[Problem, ...]:
    """Return where capacity block, Node label and hardware disagree."""
    by_hardware: dict[str, list[str]] = {}
    for each in present:
        if each.hardware_id:
            by_hardware.setdefault(each.hardware_id, []).append(each.name)
    problems = []
    if len(by_hardware) > 1:
        parts = "; ".join(f"{hardware} on {shortened(found)}" for hardware, found in sorted(by_hardware.items()))
        block = next((each.capacity_block for each in present if each.capacity_block), None)
        problems.append(
            Problem("IdentityMismatch", f"capacity block {block} has nodes of several UltraServers: server id {parts}")
        )
    problems += [
        Problem(
            "IdentityMismatch",
            f"node {each.name} has the label of capacity block {nodes[each.name].capacity_block}, and its driver "
            f"publishes {each.capacity_block}",
        )
        for each in present
        if nodes[each.name].capacity_block
        and each.capacity_block
        and nodes[each.name].capacity_block != each.capacity_block
    ]
    return tuple(problems)


def _missing(
    topology: tuple[Mapping[str, Any], ...], sizes: tuple[int, ...], stored: UltraServer | None
) -> tuple[Problem, ...]:
    """Return the problem that an UltraServer has fewer nodes than its topology needs, or has lost reserved ones."""
    expected = max(sizes, default=0)
    present = {str(entry["nodeName"]) for entry in topology}
    reserved = {name for each in (stored.reservations if stored else ()) for name in each.allocation.nodes}
    gone = sorted(reserved - present)
    if len(topology) >= expected and not gone:
        return ()
    text = f"{len(topology)} of {expected} nodes exist" if len(topology) < expected else "reserved nodes are gone"
    return (Problem("NodeMissing", text + (f"; gone: {shortened(gone)}" if gone else "")),)


def _links(present: list[PublishedNode]) -> tuple[Problem, ...]:
    """Return links that are down. Only a group of four has both kinds of link; a pair has one of them."""
    unhealthy = [each.name for each in present if each.has_link_fault]
    found = _if(unhealthy, "LinkDown", "devices report unhealthy links to other nodes, on: {}")
    if len(present) < 4:
        return found
    for kind, text in (("vertical", "inside the rack"), ("horizontal", "between the racks")):
        down = [each.name for each in present if getattr(each, kind) is False]
        found += _if(down, "LinkDown", f"links {text} are down, on: {{}}")
    return found


def _quarantined(stored: UltraServer | None, nodes: Mapping[str, ClusterNode]) -> tuple[Problem, ...]:
    """Return the nodes that stay closed because a node of their slot is dead and may still run pods."""
    found = []
    for each in stored.reservations if stored else ():
        names = each.allocation.nodes
        dead = [name for name in names if name in nodes and not nodes[name].ready and not nodes[name].out_of_service]
        if each.allocation.phase is Phase.DRAINING and dead:
            found.append(
                f"{shortened(names)} stay closed after {each.allocation.workload_namespace}/"
                f"{each.allocation.workload_name} until {shortened(dead)} is Ready again; to give it up, delete its "
                "Node or add the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            )
    return (Problem("Quarantined", "; ".join(found)),) if found else ()


def labels(published: PublishedNode) -> dict[str, str]:
    """Return the labels of a node in an UltraServer, as the Neuron device plugin sets them.

    Trn3 hardware has no id for a pair; its id is the partition's followed by the number of the pair.
    """
    number, hardware = published.node_id, published.hardware_id
    found: dict[str, str | None] = {
        "mode": "_".join(map(str, published.sizes)) or None,
        "server-id-2": published.server_id_2,
        "node-id-2": None if published.node_id_2 is None else str(published.node_id_2),
        "server-id-4": hardware,
        "node-id-4": None if number is None else str(number),
    }
    if published.reservation_id and number is not None and 2 in published.sizes:
        found["server-id-2"] = f"{published.reservation_id}-{number // 2}"
        found["node-id-2"] = str(number % 2)
    return {LABEL_PREFIX + name: value for name, value in found.items() if value is not None}
