"""An index of the fleet that follows changes of objects, so that a plan costs only what changed. No I/O.

A plan that reads each of 20,000 nodes takes a second. Here a changed object marks its UltraServers as stale; only these
are grouped again, and compared with what is stored. Everything derived is a function of the objects: an index that
followed every change equals one that is built from the same objects at once (`FleetIndex.of`). A property test verifies
that.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields

from neuron_dra.core.ownership import ObjectIdentity
from neuron_dra.core.ultraserver import object_name
from neuron_dra.planner.fleet import outage, placement, refused_pods
from neuron_dra.planner.fleet.changed_objects import ChangedObjects
from neuron_dra.planner.fleet.evidence import Evidence
from neuron_dra.planner.fleet.places import Places
from neuron_dra.planner.fleet.reserved import (
    Reserved,
    Totals,
    nodes_in,
    put,
    take,
)
from neuron_dra.planner.fleet.sharing import Sharing
from neuron_dra.planner.fleet.slot_index import SlotIndex
from neuron_dra.planner.observed.discovery import Group, group_of
from neuron_dra.planner.observed.model import (
    NOTHING_KNOWN,
    ClaimUse,
    ClusterNode,
    FleetSnapshot,
    Known,
    PublishedNode,
    Reservation,
    Template,
    UltraServer,
    Workload,
)
from neuron_dra.planner.observed.results import Source


class FleetIndex:
    """The objects by name, and what follows from them for each UltraServer.

    The `put_*` methods take an object's new value, or None when it is gone. Derived values are up to date after
    `refresh`; `groups` are those of `discovery`. Not thread-safe.
    """

    def __init__(self) -> None:
        self.node_by_name: dict[str, ClusterNode] = {}
        self.reported: dict[str, ClusterNode] = {}
        """The Nodes of which agents report faults, or did a while ago."""
        self.block_ends: Counter[datetime.datetime] = Counter()
        """When capacity blocks end, with the number of their Nodes."""
        self.published_by_name: dict[str, PublishedNode] = {}
        self.ultraserver_by_name: dict[str, UltraServer] = {}
        self.workload_by_key: dict[str, Workload] = {}
        self.workload_by_uid: dict[str, Workload] = {}
        self.tests: dict[str, Workload] = {}
        """The workloads of tests of UltraServers, by UID."""
        self.results_of: dict[Source, dict[str, None]] = {}
        """The NeuronUltraServers that have results of a qualification, by its name and UID."""
        self.template_by_key: dict[tuple[str, str], Template] = {}
        self.workload_class = True
        """True if the DeviceClass of reserved devices exists."""
        self.evidence = Evidence()
        self.namespaces: dict[str, str] | None = None
        """The limit in each Namespace's annotation, empty without one; None if Namespaces cannot be read."""
        self._reserved = Reserved()
        self.group_by_name: dict[str, Group] = {}
        self.broken: dict[str, Exception] = {}
        """The UltraServers that could not be derived from their objects, and why; none of their nodes is free."""
        self._changed: dict[str, int] = {}  # UltraServer: the version in which it changed, in that order
        self._changed_nodes: dict[str, int] = {}  # the same of Nodes
        self._unstored: set[str] = set()
        self._claims: dict[str, ClaimUse] = {}
        self._uses: dict[str, tuple[ClaimUse, ...]] = {}  # by node, sorted
        self._templates_of: dict[ObjectIdentity, dict[tuple[str, str], Template]] = {}  # by controller
        self._membership: dict[str, str] = {}  # node -> the UltraServer that it publishes
        self._members: dict[str, set[str]] = {}
        self._depending: Sharing[str, str] = Sharing()  # UltraServers by the nodes on which they depend
        self.slot_index = SlotIndex()
        self._stale: set[str] = set()
        self._followed: list[ChangedObjects] = []
        self.version = 0
        """A number that changes whenever objects may have changed."""
        self._counts: dict[str, outage.Count] = {}  # by UltraServer
        self._refused: dict[str, tuple[refused_pods.RefusedUse, ...]] = {}  # by UltraServer
        self.countable = 0
        """The number of nodes of UltraServers, without those that a user has given up."""
        self.away: Counter[str] = Counter()
        """The nodes of UltraServers that are not Ready, that agents report, or that have lost their tags."""

    @classmethod
    def of(cls, snapshot: FleetSnapshot) -> FleetIndex:
        """Return the index of these objects."""
        index = cls()
        for node in snapshot.nodes:
            index.put_node(node.name, node)
        for published in snapshot.published:
            index.put_published(published.name, published)
        for number, use in enumerate(snapshot.claims):
            index.put_claim(str(number), use)
        for ultraserver in snapshot.ultraservers:
            index.put_ultraserver(ultraserver.name, ultraserver)
        for workload in snapshot.workloads:
            index.put_workload(workload.uid, workload)
        for template in snapshot.templates:
            index.put_template((template.namespace, template.name), template)
        index.workload_class = snapshot.workload_class
        index.namespaces = None if snapshot.namespaces is None else dict(snapshot.namespaces)
        index.refresh()
        return index

    def snapshot(self, known: Known = NOTHING_KNOWN) -> FleetSnapshot:
        """Return the objects, without what is derived, and what else is known; `of` builds an equal index from them."""
        return FleetSnapshot(
            published=tuple(self.published),
            nodes=tuple(self.nodes),
            claims=tuple(self.claims),
            ultraservers=tuple(self.ultraservers),
            workloads=tuple(self.workloads),
            templates=tuple(self.templates),
            namespaces=None if self.namespaces is None else dict(self.namespaces),
            workload_class=self.workload_class,
            **{field.name: getattr(known, field.name) for field in fields(Known)},
        )

    # The objects, as in a Snapshot

    @property
    def published(self) -> Collection[PublishedNode]:
        """What each node publishes."""
        return self.published_by_name.values()

    @property
    def nodes(self) -> Collection[ClusterNode]:
        """Every Node."""
        return self.node_by_name.values()

    @property
    def claims(self) -> Collection[ClaimUse]:
        """Every claim with allocated Neuron devices."""
        return self._claims.values()

    @property
    def ultraservers(self) -> Collection[UltraServer]:
        """Every NeuronUltraServer."""
        return self.ultraserver_by_name.values()

    @property
    def workloads(self) -> Collection[Workload]:
        """Every NeuronUltraServerWorkload."""
        return self.workload_by_key.values()

    @property
    def templates(self) -> Collection[Template]:
        """Every ResourceClaimTemplate."""
        return self.template_by_key.values()

    # What is derived

    @property
    def groups(self) -> Collection[Group]:
        """Every UltraServer, in no order."""
        return self.group_by_name.values()

    @property
    def totals(self) -> Totals:
        """Sums over the stored status of all NeuronUltraServers."""
        return self._reserved.totals

    @property
    def in_use(self) -> Collection[str]:
        """Names of the nodes with an allocated claim."""
        return self._uses.keys()

    @property
    def holders(self) -> Collection[str]:
        """UIDs of the workloads that have a reservation."""
        return self._reserved.holders

    def uses(self, node: str) -> tuple[ClaimUse, ...]:
        """Return the claims that are allocated on a node, by namespace and name; none for an unknown node."""
        return self._uses.get(node, ())

    def uses_of(self, nodes: Iterable[str]) -> list[ClaimUse]:
        """Return the claims that are allocated on these nodes, each once."""
        return list(dict.fromkeys(use for node in nodes for use in self.uses(node)))

    def reserved(self, node: str) -> int:
        """Return how many stored reservations a node is in, unreadable ones included."""
        return self._reserved.entries(node)

    def is_taken(self, node: str, more: int = 0) -> bool:
        """Return True if a claim uses the node, or a reservation has it. `more` is added to the stored reservations."""
        return node in self._uses or self._reserved.entries(node) + more > 0

    def held(self, workload_uid: str) -> list[Reservation]:
        """Return the stored reservations of a workload."""
        return self._reserved.held(workload_uid)

    def nodes_of_namespace(self, namespace: str) -> int:
        """Return how many nodes the workloads of a namespace have; of two reservations for one index, one counts."""
        return self._reserved.nodes_of_namespace(namespace)

    def templates_of(self, owner: ObjectIdentity) -> list[Template]:
        """Return the templates that an object controls, by name."""
        return sorted(self._templates_of.get(owner, {}).values(), key=lambda template: template.name)

    def places(self, instance_type: str, size: int) -> Places:
        """Return the free slots of `size` nodes in UltraServers that have an object.

        A slot is free if no node of it is reserved or used by a claim.
        """
        return self.slot_index.free(instance_type, size)

    def free_numbers(self) -> Mapping[tuple[str, int], int]:
        """Return the number of free slots by instance type and size."""
        return self.slot_index.free_numbers()

    def capacity(self, instance_type: str, size: int, kind: str | None = None) -> int:
        """Return the number of slots, free or not, of one resourceType; without `kind`, of the more frequent one."""
        return self.slot_index.capacity(instance_type, size, kind)

    def tally(self, instance_type: str, free: Mapping[str, int]) -> placement.Tally:
        """Return the counts of a type; `free` are the numbers of free nodes of UltraServers that a plan changes."""
        return self.slot_index.census.tally(instance_type, free)

    def members(self, instance_type: str) -> int:
        """Return the number of nodes of all UltraServers of a type, healthy or not."""
        return self.slot_index.census.members(instance_type)

    @property
    def unstored(self) -> list[Group]:
        """The UltraServers without an object."""
        return [self.group_by_name[ultraserver_name] for ultraserver_name in sorted(self._unstored)]

    def changed_since(self, version: int) -> set[str]:
        """Return the names of the UltraServers that have changed after a version of the index."""
        return _after(self._changed, version)

    def nodes_changed_since(self, version: int) -> set[str]:
        """Return the names of the Nodes that have changed after a version, themselves or in what they publish."""
        return _after(self._changed_nodes, version)

    def groups_of(self, node: str) -> list[Group]:
        """Return the UltraServers that a node is in; nearly always one."""
        ultraserver_names = {*self._depending.of(node), self._membership.get(node, "")}
        groups_or_none = (self.group_by_name.get(ultraserver_name) for ultraserver_name in sorted(ultraserver_names))
        return [group for group in groups_or_none if group is not None and node in group.node_names]

    def refused(self) -> Iterator[refused_pods.RefusedUse]:
        """Yield the claims that their nodes must reject unless their pods started before."""
        for ultraserver_name in sorted(self._refused):
            yield from self._refused[ultraserver_name]

    # Changes

    def put_node(self, name: str, node: ClusterNode | None) -> None:
        """Follow a change of a Node; None: it was deleted."""
        self._count_end(self.node_by_name.get(name), -1)
        self._count_end(node, 1)
        put(self.node_by_name, name, node)
        put(self.reported, name, node if node is not None and node.reported else None)
        self._facts_changed(name)

    def put_published(self, name: str, published: PublishedNode | None) -> None:
        """Follow a change of what a node publishes; None: it publishes nothing."""
        self.evidence.put_published(name, self.published_by_name.get(name), published)
        put(self.published_by_name, name, published)
        self._facts_changed(name)

    def put_claim(self, key: str, use: ClaimUse | None) -> None:
        """Follow a change of a claim; None: it has no Neuron devices."""
        before = self._claims.get(key)
        put(self._claims, key, use)
        for changed_objects in self._followed:
            changed_objects.note_users(before, use)
        for node_name in {*(before.nodes if before else ()), *(use.nodes if use else ())}:
            uses = list(self._uses.get(node_name, ()))
            if before is not None and node_name in before.nodes:
                uses.remove(before)
            if use is not None and node_name in use.nodes:
                uses.append(use)
            put(self._uses, node_name, tuple(sorted(uses, key=lambda use: (use.namespace, use.name))) or None)
            self._mark(node_name)

    def put_ultraserver(self, name: str, ultraserver: UltraServer | None) -> None:
        """Follow a change of a NeuronUltraServer; None: it was deleted."""
        before = self.ultraserver_by_name.get(name)
        self.evidence.put_ultraserver(name, before, ultraserver)
        put(self.ultraserver_by_name, name, ultraserver)
        sources_before, sources_after = _qualifications(before), _qualifications(ultraserver)
        for source in sources_before.keys() - sources_after.keys():
            take(self.results_of, source, name)
        for source in sources_after:
            self.results_of.setdefault(source, {})[name] = None
        for node in self._reserved.put(name, before, ultraserver):
            self._mark(node)
        for changed_objects in self._followed:
            changed_objects.note_holders(before, ultraserver)
        self._stale.add(name)

    def put_namespace(self, name: str, limit: str | None) -> None:
        """Follow a change of a Namespace and its limit, empty without one; None: the Namespace was deleted."""
        if self.namespaces is None:
            self.namespaces = {}
        put(self.namespaces, name, limit)
        for changed_objects in self._followed:
            changed_objects.namespaces.add(name)

    def put_workload(self, key: str, workload: Workload | None) -> None:
        """Follow a change of a NeuronUltraServerWorkload; None: it was deleted."""
        before = self.workload_by_key.get(key)
        self.evidence.put_workload(key, before, workload)
        put(self.workload_by_key, key, workload)
        if before is not None:
            self.workload_by_uid.pop(before.uid, None)
            self.tests.pop(before.uid, None)
        if workload is not None:
            self.workload_by_uid[workload.uid] = workload
            put(self.tests, workload.uid, workload if workload.target is not None else None)
        for changed_objects in self._followed:
            changed_objects.note_workload(before, workload)

    def follow(self) -> ChangedObjects:
        """Return what gets all changes from now on; all that there is has changed at first."""
        changed_objects = ChangedObjects(
            holders={*self.holders}, templates={*self.template_by_key}, namespaces={*(self.namespaces or ())}
        )
        for workload in self.workloads:
            changed_objects.note_workload(None, workload)
        self._followed.append(changed_objects)
        return changed_objects

    def put_template(self, key: tuple[str, str], template: Template | None) -> None:
        """Follow a change of a ResourceClaimTemplate; None: it was deleted."""
        before = self.template_by_key.get(key)
        if before is not None and before.owner is not None:
            take(self._templates_of, before.owner, key)
        put(self.template_by_key, key, template)
        for changed_objects in self._followed:
            changed_objects.templates.add(key)
        if template is not None and template.owner is not None:
            self._templates_of.setdefault(template.owner, {})[key] = template

    def refresh(self) -> None:
        """Derive again what depends on changed objects.

        Call it after changes and before reading groups, slots or counts. It costs time for the changed UltraServers
        only.
        """
        self.version += 1
        for ultraserver_name in self._stale:
            self.broken.pop(ultraserver_name, None)
            try:
                self._refresh(ultraserver_name)
            except Exception as err:  # an error about one UltraServer must not end the plans for all others
                self.broken[ultraserver_name] = err
                put(self.group_by_name, ultraserver_name, None)
                self.slot_index.put(ultraserver_name, None, frozenset(), stored=False)
            exists = ultraserver_name in self.group_by_name or ultraserver_name in self.ultraserver_by_name
            _note(self._changed, ultraserver_name, self.version if exists else None)
            unstored = ultraserver_name in self.group_by_name and ultraserver_name not in self.ultraserver_by_name
            (self._unstored.add if unstored else self._unstored.discard)(ultraserver_name)
        self._stale = set()

    def _refresh(self, ultraserver_name: str) -> None:
        """Derive again what depends on one UltraServer and its nodes."""
        members = [self.published_by_name[node_name] for node_name in sorted(self._members.get(ultraserver_name, ()))]
        stored = self.ultraserver_by_name.get(ultraserver_name)
        group = group_of(ultraserver_name, members, stored, self.node_by_name, self._membership)
        known_group = self.group_by_name.get(ultraserver_name)
        if group == known_group:
            group = known_group  # what others keep of it stays the same object, so that none is in memory twice
        put(self.group_by_name, ultraserver_name, group)
        reserved = {*nodes_in(stored)} if stored else set()
        topology = {str(entry.get("nodeName")) for entry in (stored.spec.get("topology") or () if stored else ())}
        self._depending.put(ultraserver_name, {published.name for published in members} | topology | reserved)
        taken = frozenset(node for node in (group.node_names if group else ()) if self.is_taken(node))
        self.slot_index.put(ultraserver_name, group, taken, stored=stored is not None)
        self._count(ultraserver_name, group, stored)
        reservations = stored.reservations if stored is not None else ()
        unread = {node for unread_entry in (stored.unread if stored is not None else ()) for node in unread_entry.nodes}
        named = self._depending.by(ultraserver_name) - unread
        refused = refused_pods.refused(named, reservations, self._uses, self.published_by_name)
        put(self._refused, ultraserver_name, refused or None)

    def _count(self, ultraserver_name: str, group: Group | None, stored: UltraServer | None) -> None:
        """Replace the count of an UltraServer's unavailable nodes."""
        before, after = self._counts.get(ultraserver_name, outage.Count()), outage.Count()
        if group is not None:
            reservations = stored.reservations if stored is not None else ()
            after = outage.count(group.node_names, reservations, self.node_by_name, self.published_by_name)
        self.countable += after.total - before.total
        self.away.subtract(before.away)
        self.away.update(after.away)
        for node in before.away:
            if not self.away[node]:
                del self.away[node]
        put(self._counts, ultraserver_name, after if after.total else None)

    def _count_end(self, node: ClusterNode | None, number: int) -> None:
        """Follow the end of a Node's capacity block."""
        if node is None or node.block_end is None:
            return
        self.block_ends[node.block_end] += number
        if not self.block_ends[node.block_end]:
            del self.block_ends[node.block_end]

    def _facts_changed(self, node_name: str) -> None:
        """Follow a change of a Node or its slices: find its UltraServer, and mark what is stale."""
        node, published = self.node_by_name.get(node_name), self.published_by_name.get(node_name)
        belongs = ""
        if node is not None and published is not None and published.node_uid in ("", node.uid):
            belongs = object_name(published.ultraserver_id) if published.ultraserver_id else ""
        before = self._membership.get(node_name, "")
        if belongs != before:
            if before:
                self._members[before].discard(node_name)
                if not self._members[before]:
                    del self._members[before]
                self._stale.add(before)
            if belongs:
                self._members.setdefault(belongs, set()).add(node_name)
            put(self._membership, node_name, belongs or None)
        self._mark(node_name)
        exists = node is not None or published is not None
        _note(self._changed_nodes, node_name, self.version + 1 if exists else None)

    def _mark(self, node: str) -> None:
        """Mark the UltraServers that depend on a node as stale."""
        belongs = self._membership.get(node)
        if belongs is not None:
            self._stale.add(belongs)
        self._stale |= self._depending.of(node)


def _qualifications(ultraserver: UltraServer | None) -> dict[Source, None]:
    """Return the qualifications of which an UltraServer has results."""
    return dict.fromkeys(result.source for result in ultraserver.results) if ultraserver is not None else {}


def _note(changed: dict[str, int], name: str, version: int | None) -> None:
    """Put a change at the end; with None, forget the object, which does not exist."""
    changed.pop(name, None)
    if version is not None:
        changed[name] = version


def _after(changed: dict[str, int], version: int) -> set[str]:
    """Return the names with a later version."""
    changed_names: set[str] = set()
    for changed_name, changed_in in reversed(changed.items()):
        if changed_in <= version:
            break
        changed_names.add(changed_name)
    return changed_names
