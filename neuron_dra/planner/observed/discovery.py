"""Groups published nodes into UltraServers, with their links and problems. Pure.

Membership comes from hardware and EC2 (`ultraserverId`), never from our own tags. A node is identified by the UID of
its Node object: another instance with the same name is another node.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuron_dra.core.ultraserver import Phase, object_name
from neuron_dra.planner.observed import results
from neuron_dra.planner.observed.decode import LABELS
from neuron_dra.planner.observed.model import (
    ClusterNode,
    FleetSnapshot,
    PublishedNode,
    UltraServer,
    shortened,
)


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
    ends: Mapping[str, datetime.datetime] = field(default_factory=dict)  # of capacity blocks, by the node's name
    results: tuple[results.GroupResult, ...] = ()  # of tests on the nodes that it has now

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of all its nodes, including those without slices."""
        return tuple(entry["nodeName"] for entry in self.topology)

    def free_nodes(self, *taken: Container[str]) -> int:
        """Return the number of usable nodes that are in none of these sets of names."""
        return sum(all(node.name not in taken_names for taken_names in taken) for node in self.usable.values())


def discover(snapshot: FleetSnapshot) -> tuple[Group, ...]:
    """Return every UltraServer, by name. A stored one without nodes has an empty topology.

    A node whose slices are missing, as after each kubelet restart, stays a member while its Node object is the same.
    """
    nodes = {node.name: node for node in snapshot.nodes}
    members: dict[str, list[PublishedNode]] = {}
    for published in sorted(snapshot.published, key=lambda published: published.name):
        node = nodes.get(published.name)
        if published.ultraserver_id and node is not None and published.node_uid in ("", node.uid):
            members.setdefault(object_name(published.ultraserver_id), []).append(published)
    shown = {published.name for group in members.values() for published in group}
    stored = {ultraserver.name: ultraserver for ultraserver in snapshot.ultraservers}
    groups = (
        group_of(ultraserver_name, members.get(ultraserver_name, []), stored.get(ultraserver_name), nodes, shown)
        for ultraserver_name in sorted({*members, *stored})
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
    if stored:
        instance_type = str(stored.spec.get("instanceType"))
    else:
        instance_type = members[0].instance_type
    present = [member for member in members if member.instance_type == instance_type]
    stored_entries = _stored_entries(stored)
    entries = _entries(present, stored_entries, nodes)
    away = _away(stored_entries, nodes, shown)
    topology = tuple(sorted([*entries, *away], key=lambda entry: (entry["nodeId"], entry["nodeName"])))
    twice = _numbers_used_twice(topology)
    facts = _Discovered(members, present, nodes, stored, instance_type, topology, away, twice)
    return Group(
        name=name,
        ultraserver_id=ultraserver_id,
        instance_type=instance_type,
        topology=topology,
        usable=facts.usable(),
        sizes=facts.sizes(),
        problems=tuple(facts.problems()),
        cordoned=facts.cordoned(),
        ends=facts.ends(),
        results=facts.results(),
    )


def _stored_entries(stored: UltraServer | None) -> dict[str, Mapping[str, Any]]:
    """Return the entries of the stored object's spec.topology, by the name of the node."""
    if stored is None:
        return {}
    entries = {}
    for entry in stored.spec.get("topology") or []:
        entries[str(entry.get("nodeName"))] = entry
    return entries


def _entries(
    present: Sequence[PublishedNode], stored_entries: Mapping[str, Mapping[str, Any]], nodes: Mapping[str, ClusterNode]
) -> list[Mapping[str, Any]]:
    """Return the entries of the nodes that publish slices and whose number is known."""
    entries: list[Mapping[str, Any]] = []
    for published in present:
        number = _number(published, stored_entries, nodes)
        if number is not None:
            entries.append(_entry(published, number, nodes))
    return entries


def _away(
    stored_entries: Mapping[str, Mapping[str, Any]], nodes: Mapping[str, ClusterNode], shown: Container[str]
) -> list[Mapping[str, Any]]:
    """Return the stored entries of nodes that publish nothing, and whose Node object is still the same."""
    away = []
    for node_name, entry in stored_entries.items():
        node = nodes.get(node_name)
        if node_name not in shown and node is not None and node.uid == entry.get("nodeUid"):
            away.append(entry)
    return away


def _numbers_used_twice(topology: Sequence[Mapping[str, Any]]) -> set[int]:
    uses = Counter(entry["nodeId"] for entry in topology)
    return {number for number, times in uses.items() if times > 1}


@dataclass(frozen=True, slots=True)
class _Discovered:
    """What is known of an UltraServer before it is judged.

    - `members` publish its id; `present` are those of `instance_type`.
    - `topology` has the entries of `present`, and of `away`: nodes that publish nothing at the moment.
    - `twice` are numbers that several nodes publish.
    """

    members: Sequence[PublishedNode]
    present: Sequence[PublishedNode]
    nodes: Mapping[str, ClusterNode]
    stored: UltraServer | None
    instance_type: str
    topology: tuple[Mapping[str, Any], ...]
    away: Sequence[Mapping[str, Any]]
    twice: Collection[int]

    def usable(self) -> dict[int, PublishedNode]:
        """Return the nodes that a slot may take, by number."""
        if self.stored is not None and self.stored.deleting:
            return {}  # an object that is being deleted accepts no finalizer, so nothing can be reserved in it
        usable: dict[int, PublishedNode] = {}
        for published in self.present:
            number = published.node_id
            if number is not None and number not in self.twice and _is_usable(published, self.nodes[published.name]):
                usable[number] = published
        return usable

    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of groups that any of its nodes supports, the smallest first."""
        return tuple(sorted({size for published in self.present for size in published.sizes}))

    def cordoned(self) -> tuple[str, ...]:
        """Return the names of its cordoned nodes."""
        node_names = (entry["nodeName"] for entry in self.topology)
        return tuple(node_name for node_name in node_names if not self.nodes[node_name].schedulable)

    def ends(self) -> dict[str, datetime.datetime]:
        """Return when the capacity blocks of its nodes end, where that is known."""
        ends = {}
        for entry in self.topology:
            end = self.nodes[entry["nodeName"]].block_end
            if end is not None:
                ends[str(entry["nodeName"])] = end
        return ends

    def results(self) -> tuple[results.GroupResult, ...]:
        """Return what tests found of the nodes that it has now."""
        if self.stored is None or not self.stored.results:
            return ()
        uids = {str(entry["nodeName"]): str(entry.get("nodeUid")) for entry in self.topology}
        return tuple(result for result in self.stored.results if result.is_of(uids))

    def problems(self) -> Iterator[Problem]:
        """Yield all problems, in the order in which `status.conditions` shows them."""
        yield from _identity(self.present, self.nodes)
        yield from self._foreign_types()
        yield from self._numbers()
        yield from _missing(self.topology, self.sizes(), self.stored)
        yield from self._node_states()
        yield from self._unknown_places()
        yield from self._device_faults()
        yield from _links(self.present)
        yield from _quarantined(self.stored, self.nodes)
        yield from self._unreadable_ends()
        yield from self._unqualified()

    def _unqualified(self) -> Iterable[Problem]:
        failed = [result for result in self.results() if result.unqualified]
        texts = [f"{shortened(result.nodes)} ({result.qualification}: {result.message})" for result in failed]
        text = "nodes on which tests failed twice, which cannot be reserved until one passes: {}"
        return _if(texts, "Unqualified", text)

    def _unreadable_ends(self) -> Iterable[Problem]:
        members = (self.nodes[entry["nodeName"]] for entry in self.topology)
        wrong = [node for node in members if node.block_problem]
        text = ""
        if wrong:
            text = f"the end of the capacity block cannot be read ({wrong[0].block_problem}), on: {{}}"
        return _if([node.name for node in wrong], "InvalidBlockEnd", text)

    def _foreign_types(self) -> Iterable[Problem]:
        foreign_nodes = []
        for published in self.members:
            if published.instance_type != self.instance_type:
                foreign_nodes.append(published.name)
        return _if(foreign_nodes, "MixedInstanceTypes", f"nodes of other types than {self.instance_type}: {{}}")

    def _numbers(self) -> Iterable[Problem]:
        if not self.twice:
            return ()
        numbers = ", ".join(map(str, sorted(self.twice)))
        return (Problem("DuplicateNodeId", f"several nodes publish the same number of this UltraServer: {numbers}"),)

    def _node_states(self) -> Iterator[Problem]:
        node_names = [entry["nodeName"] for entry in self.topology]
        not_ready = sorted(node_name for node_name in node_names if not self.nodes[node_name].ready)
        yield from _if(not_ready, "NodeNotReady", "nodes that are not Ready: {}")
        reported = [self.nodes[node_name].report for node_name in node_names if self.nodes[node_name].reported]
        yield from _if(reported, "NodeUnhealthy", "nodes that agents report as unhealthy, which cannot be reserved: {}")
        yield from _if(self.cordoned(), "NodeCordoned", "cordoned nodes, which cannot be reserved: {}")
        silent = [entry["nodeName"] for entry in self.away]
        yield from _if(silent, "SliceMissing", "nodes that publish no ResourceSlice: {}")

    def _unknown_places(self) -> Iterable[Problem]:
        numbered = {entry["nodeName"] for entry in self.topology}
        unknown = []
        for published in self.present:
            if published.name not in numbered or not published.sizes:
                unknown.append(published.name)
        text = "nodes whose Neuron driver does not know their place yet (it reports busy): {}"
        return _if(unknown, "TopologyUnknown", text)

    def _device_faults(self) -> Iterable[Problem]:
        faulty = [published.name for published in self.present if published.device_faults]
        text = "nodes with unhealthy or missing devices, which cannot be reserved: {}"
        return _if(faulty, "DeviceUnhealthy", text)


def _is_usable(published: PublishedNode, node: ClusterNode) -> bool:
    """Return True if the node's own state allows a slot to take it."""
    publishes_well = published.complete and published.kind and not published.device_faults
    is_open = node.ready and node.schedulable and not node.out_of_service
    return bool(publishes_well and is_open and not node.reported)


def _if(affected: Sequence[Any], reason: str, message: str) -> tuple[Problem, ...]:
    """Return a problem that lists what was found, in the place of `{}`; none if nothing was found."""
    if not affected:
        return ()
    listed = shortened([str(part) for part in affected])
    return (Problem(reason, message.replace("{}", listed)),)


def _number(
    published: PublishedNode, stored_entries: Mapping[str, Mapping[str, Any]], nodes: Mapping[str, ClusterNode]
) -> int | None:
    """Return the node's number; while its driver is busy, the stored one."""
    entry = stored_entries.get(published.name, {})
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


def _link(field_name: str, up: bool | None) -> dict[str, str]:
    """Return the field of a link status; none while it is unknown."""
    if up is None:
        return {}
    return {field_name: "up" if up else "down"}


def _identity(present: Sequence[PublishedNode], nodes: Mapping[str, ClusterNode]) -> Iterator[Problem]:
    """Yield where capacity block, Node label and hardware disagree."""
    by_hardware: dict[str, list[str]] = {}
    for published in present:
        if published.hardware_id:
            by_hardware.setdefault(published.hardware_id, []).append(published.name)
    if len(by_hardware) > 1:
        parts = []
        for hardware, node_names in sorted(by_hardware.items()):
            parts.append(f"{hardware} on {shortened(node_names)}")
        block = next((published.capacity_block for published in present if published.capacity_block), None)
        yield Problem(
            "IdentityMismatch",
            f"capacity block {block} has nodes of several UltraServers: server id {'; '.join(parts)}",
        )
    for member in present:
        labelled_block, published_block = nodes[member.name].capacity_block, member.capacity_block
        if labelled_block and published_block and labelled_block != published_block:
            yield Problem(
                "IdentityMismatch",
                f"node {member.name} has the label of capacity block {labelled_block}, and its driver publishes "
                f"{published_block}",
            )


def _missing(
    topology: tuple[Mapping[str, Any], ...], sizes: tuple[int, ...], stored: UltraServer | None
) -> tuple[Problem, ...]:
    """Return the problem that an UltraServer has fewer nodes than its topology needs, or has lost reserved ones."""
    expected = max(sizes, default=0)
    present = {str(entry["nodeName"]) for entry in topology}
    reservations = stored.reservations if stored else ()
    reserved: set[str] = set()
    for reservation in reservations:
        reserved.update(reservation.allocation.nodes)
    gone_nodes = sorted(reserved - present)
    is_short = len(topology) < expected
    if not is_short and not gone_nodes:
        return ()
    text = "reserved nodes are gone"
    if is_short:
        text = f"{len(topology)} of {expected} nodes exist"
    if gone_nodes:
        text += f"; gone: {shortened(gone_nodes)}"
    return (Problem("NodeMissing", text),)


def _links(present: Sequence[PublishedNode]) -> tuple[Problem, ...]:
    """Return links that are down. Only a group of four has both kinds of link; a pair has one of them."""
    unhealthy = [published.name for published in present if published.has_link_fault]
    problems = _if(unhealthy, "LinkDown", "devices report unhealthy links to other nodes, on: {}")
    if len(present) < 4:
        return problems
    for kind, text in (("vertical", "inside the rack"), ("horizontal", "between the racks")):
        down = [published.name for published in present if getattr(published, kind) is False]
        problems += _if(down, "LinkDown", f"links {text} are down, on: {{}}")
    return problems


def _quarantined(stored: UltraServer | None, nodes: Mapping[str, ClusterNode]) -> tuple[Problem, ...]:
    """Return the nodes that stay closed because a node of their slot is dead and may still run pods."""
    reservations = stored.reservations if stored else ()
    texts = []
    for reservation in reservations:
        allocation = reservation.allocation
        dead = []
        for node_name in allocation.nodes:
            if node_name in nodes and _may_still_run_pods(nodes[node_name]):
                dead.append(node_name)
        if allocation.phase is Phase.DRAINING and dead:
            texts.append(
                f"{shortened(allocation.nodes)} stay closed after {allocation.workload_namespace}/"
                f"{allocation.workload_name} until {shortened(dead)} is Ready again; to give it up, delete its "
                "Node or add the taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            )
    if texts:
        return (Problem("Quarantined", "; ".join(texts)),)
    return ()


def _may_still_run_pods(node: ClusterNode) -> bool:
    """Return True for a NotReady node without the out-of-service taint."""
    return not node.ready and not node.out_of_service


def labels(published: PublishedNode) -> dict[str, str]:
    """Return the labels of a node in an UltraServer, as the Neuron device plugin sets them.

    Trn3 hardware has no id for a pair; its id is the partition's followed by the number of the pair.
    """
    number, hardware = published.node_id, published.hardware_id
    texts_by_label: dict[str, str | None] = {
        "mode": "_".join(map(str, published.sizes)) or None,
        "server-id-2": published.server_id_2,
        "node-id-2": None if published.node_id_2 is None else str(published.node_id_2),
        "server-id-4": hardware,
        "node-id-4": None if number is None else str(number),
    }
    if published.reservation_id and number is not None and 2 in published.sizes:
        texts_by_label["server-id-2"] = f"{published.reservation_id}-{number // 2}"
        texts_by_label["node-id-2"] = str(number % 2)
    node_labels = {}
    for name, text in texts_by_label.items():
        if text is not None:
            node_labels[LABELS[name]] = text
    return node_labels
