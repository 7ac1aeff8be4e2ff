"""Carries out plans on plain objects until nothing changes, as the API server and the plugins of nodes would. Pure.

Time stands still. Evictions are not carried out: a group that waits for its pods to end keeps its nodes. Nor are labels
of Nodes, nor a status of a NeuronUltraServer whose reservations do not change: no plan depends on them.
"""

from __future__ import annotations

import datetime
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from neuron_dra.core import capacity_block, names, node_conditions
from neuron_dra.core.node_conditions import FaultCondition
from neuron_dra.core.ultraserver import (
    NAMESPACE,
    WORKLOAD_KIND,
    next_tag,
    object_name,
    read_allocations,
    tag_on,
    tagged,
)
from neuron_dra.core.wire import Obj, Wire
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    Kept,
    LabelNode,
    SetFinalizers,
    SetUltraServerFinalizers,
    UpdateTopology,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode, discovery, slices
from neuron_dra.planner.observed.model import NOTHING_KNOWN, FleetSnapshot, Reservation
from neuron_dra.planner.plan import room
from neuron_dra.planner.plan.planning import DEFAULT_LIMITS, Limits, plan_of

PLANS_AT_MOST: Final = 200
"""A fleet settles in about ten plans. That it never does is an error of the planner."""
LOOKS_AT_MOST: Final = 4
"""The waiting workloads for which room is looked for: a look costs more than a plan."""
ULTRASERVER: Final = "NeuronUltraServer"
TEMPLATE: Final = "ResourceClaimTemplate"

Key = tuple[str, str, str]
"""Kind, namespace (empty for cluster-scoped kinds) and name."""


class Rehearsal:
    """The objects of a cluster, which `settle` brings to where the controller would leave them.

    - `changed`: the objects that were written, by key; None for those that were deleted.
    """

    def __init__(
        self,
        items: Iterable[Wire],
        now: datetime.datetime,
        limits: Limits = DEFAULT_LIMITS,
        *,
        fault_conditions: Sequence[FaultCondition] = node_conditions.DEFAULT,
        block_annotation: str = capacity_block.ANNOTATION,
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        """`priorities` are the values of the PriorityClasses that exist, by name."""
        self.changed: dict[Key, Wire | None] = {}
        self._now = now
        self._limits = limits
        self._known = replace(NOTHING_KNOWN, priorities=priorities or {})
        self._stored = {_key(item): item for item in items}
        self._slices_by_node: dict[str, list[Key]] = defaultdict(list)
        self._server_by_node: dict[str, str] = {}
        for key, item in self._stored.items():
            if key[0] == "ResourceSlice" and item["spec"].get("driver") == names.DRIVER:
                self._slices_by_node[str(item["spec"].get("nodeName") or "")].append(key)
            elif key[0] == ULTRASERVER:
                self._note_members(item)
        self._versions = itertools.count(1)
        snapshot = decode.snapshot(self._stored.values(), fault_conditions, block_annotation)
        self._index = FleetIndex.of(self._with_ultraservers(snapshot))
        self._looked: set[str] = set()  # the UIDs of workloads for which room was looked for

    def _with_ultraservers(self, snapshot: FleetSnapshot) -> FleetSnapshot:
        """Create the missing NeuronUltraServers as the first plan would, but before an imagined fleet is indexed."""
        stored_names = {ultraserver.name for ultraserver in snapshot.ultraservers}
        published_nodes = []
        for published in snapshot.published:
            if published.ultraserver_id and object_name(published.ultraserver_id) not in stored_names:
                published_nodes.append(published)
        try:
            groups = discovery.discover(replace(snapshot, published=tuple(published_nodes), ultraservers=()))
        except Exception:  # the index limits an error to its UltraServer, and the first plan creates the others
            return snapshot
        created = [decode.ultraserver(self._create(objects.ultraserver(group))) for group in groups]
        return replace(snapshot, ultraservers=(*snapshot.ultraservers, *created))

    def settle(self) -> None:
        """Plan, write and tag until a plan has nothing to write."""
        untagged = {node_name for node_name in self._slices_by_node if self._may_change_tag(node_name)}
        # What this rehearsal created needs no write before something is reserved in it, and no Node needs one.
        open_names = self._index.group_by_name.keys() | self._index.ultraserver_by_name.keys()
        created_names = {name for kind, _, name in self.changed if kind == ULTRASERVER}
        kept = Kept(self._index.version, open=frozenset(open_names - created_names))
        for _ in range(PLANS_AT_MOST):
            plan = plan_of(self._index, self._now, self._limits, self._known, kept)
            self._known = replace(self._known, turns=plan.turns)
            writes = [action for action in plan.actions if _matters(action)]
            # Nothing stays open: a write that is carried out changes its object, and the others are never made.
            kept = replace(plan.kept, open=frozenset(), open_nodes=frozenset())
            for action in writes:
                untagged |= self._write(action)
            has_tagged = self._tag(untagged)
            self._index.refresh()
            untagged = set()
            if not writes and not has_tagged and not self._look_for_room(plan.waiting.split):
                return
        raise RuntimeError(f"{PLANS_AT_MOST} plans did not settle the fleet")

    def _look_for_room(self, scattered_uids: Iterable[str]) -> bool:
        """Find what would make room for workloads whose place is scattered; return True if a message must say it."""
        has_found = False
        for uid in itertools.islice(scattered_uids, LOOKS_AT_MOST):
            if uid in self._looked:
                continue
            self._looked.add(uid)
            workload = self._index.workload_by_uid[uid]
            advice = room.advice(self._index, workload, self._now, self._known, self._limits.spares)
            if advice is not None:
                messages = {**self._known.room, uid: advice.message(workload.namespace)}
                self._known = replace(self._known, room=messages)
                has_found = True
        return has_found

    def workload(self, namespace: str, name: str) -> Wire:
        """Return a workload as it is stored now."""
        return self._stored[WORKLOAD_KIND, namespace, name]

    def reservations(self, workload_uid: str) -> list[Reservation]:
        """Return what a workload has reserved, by its ultraserverIndex."""
        held = self._index.held(workload_uid)
        return sorted(held, key=lambda reservation: reservation.allocation.ultraserver_index)

    def _write(self, action: Action) -> set[str]:
        """Store what the API server would store; return the nodes whose plugins see it."""
        match action:
            case CreateUltraServer(body=body):
                self._put_ultraserver(self._create(body))  # without reservations it changes no tag
            case UpdateTopology(name=name, topology=topology):
                server = self._stored[ULTRASERVER, NAMESPACE, name]
                meta = {**server["metadata"], "generation": int(server["metadata"].get("generation") or 0) + 1}
                spec = {**server["spec"], "topology": [dict(entry) for entry in topology]}
                return self._put_ultraserver(self._put({**server, "metadata": meta, "spec": spec}))
            case WriteUltraServerStatus(name=name, status=status, finalizers=finalizers):
                server = self._stored[ULTRASERVER, NAMESPACE, name]
                tests = _kept(server, "qualifications")
                meta = server["metadata"] if finalizers is None else {**server["metadata"], "finalizers": [*finalizers]}
                return self._put_ultraserver(self._put({**server, "metadata": meta, "status": {**status, **tests}}))
            case SetUltraServerFinalizers(name=name, finalizers=finalizers):
                server = self._stored[ULTRASERVER, NAMESPACE, name]
                if not finalizers and server["metadata"].get("deletionTimestamp"):
                    return self._delete_ultraserver(name)
                meta = {**server["metadata"], "finalizers": [*finalizers]}
                return self._put_ultraserver(self._put({**server, "metadata": meta}))
            case DeleteUltraServer(name=name):
                return self._delete_ultraserver(name)
            case CreateTemplate(body=body):
                meta = body["metadata"]
                template = self._put({**body, "metadata": {**meta, "uid": f"simulated-{meta['name']}"}})
                self._index.put_template((meta["namespace"], meta["name"]), decode.template(template))
            case DeleteTemplate(namespace=namespace, name=name):
                self._delete((TEMPLATE, namespace, name))
                self._index.put_template((namespace, name), None)
            case SetFinalizers(namespace=namespace, name=name, finalizers=finalizers):
                workload = self.workload(namespace, name)
                if not finalizers and workload["metadata"].get("deletionTimestamp"):
                    self._delete((WORKLOAD_KIND, namespace, name))
                    self._index.put_workload(str(workload["metadata"].get("uid", "")), None)
                else:
                    meta = {**workload["metadata"], "finalizers": [*finalizers]}
                    self._put_workload({**workload, "metadata": meta})
            case WriteWorkloadStatus(namespace=namespace, name=name, status=status):
                workload = self.workload(namespace, name)
                self._put_workload({**workload, "status": {**status, **_kept(workload, "queue")}})
            case _:
                raise TypeError(f"cannot rehearse {type(action).__name__}")
        return set()

    def _create(self, body: Wire) -> Obj:
        """Store a new NeuronUltraServer."""
        uid = f"simulated-{body['metadata']['name']}"
        created = self._put({**body, "metadata": {**body["metadata"], "uid": uid, "generation": 1}})
        self._note_members(created)
        return created

    def _put(self, item: Wire) -> Obj:
        """Store an object in its next version."""
        stored = {**item, "metadata": {**item["metadata"], "resourceVersion": f"simulated-{next(self._versions)}"}}
        self._stored[_key(stored)] = self.changed[_key(stored)] = stored
        return stored

    def _delete(self, key: Key) -> None:
        del self._stored[key]
        self.changed[key] = None

    def _put_workload(self, item: Obj) -> None:
        workload = decode.workload(self._put(item))
        self._index.put_workload(workload.uid, workload)

    def _put_ultraserver(self, server: Wire) -> set[str]:
        """Let the planner and the plugins see a NeuronUltraServer; return the nodes of these plugins."""
        ultraserver = decode.ultraserver(server)
        self._index.put_ultraserver(ultraserver.name, ultraserver)
        return self._note_members(server)

    def _delete_ultraserver(self, name: str) -> set[str]:
        self._delete((ULTRASERVER, NAMESPACE, name))
        self._index.put_ultraserver(name, None)
        return {node for node, server in self._server_by_node.items() if server == name}

    def _note_members(self, server: Wire) -> set[str]:
        """Note which NeuronUltraServer the plugins of its nodes read; return the nodes."""
        topology = (server.get("spec") or {}).get("topology") or ()
        members = {str(entry.get("nodeName")) for entry in topology}
        self._server_by_node |= dict.fromkeys(members, server["metadata"]["name"])
        return members

    def _may_change_tag(self, node_name: str) -> bool:
        """Return False for a node without a tag whose NeuronUltraServer has no reservations."""
        published = self._index.published_by_name.get(node_name)
        if published is None or published.tag is not None or not published.complete:
            return True
        server = self._stored.get((ULTRASERVER, NAMESPACE, self._server_by_node.get(node_name, "")), {})
        return bool((server.get("status") or {}).get("allocations"))

    def _tag(self, node_names: Iterable[str]) -> bool:
        """Tag the slices of these nodes as their plugins do; return True if a tag changed."""
        tagged_nodes = set()
        for node_name in sorted(node_names):
            server = self._stored.get((ULTRASERVER, NAMESPACE, self._server_by_node.get(node_name, "")))
            is_occupied = bool(self._index.uses(node_name))
            for key in self._slices_by_node.get(node_name, ()):
                before = self._stored[key]
                after = tagged_slice(before, server, occupied=is_occupied)
                if after is not before:
                    self._put(after)
                    tagged_nodes.add(node_name)
        for node_name in tagged_nodes:
            parts = [slices.published_slice(self._stored[key]) for key in self._slices_by_node[node_name]]
            for published in slices.published_nodes([part for part in parts if part is not None]):
                self._index.put_published(node_name, published)
        return bool(tagged_nodes)


def tagged_slice(item: Wire, ultraserver: Wire | None, *, occupied: bool = False) -> Wire:
    """Return a node's slice with the tag that its plugin sets after it has read the NeuronUltraServer.

    It is the same object if the tag does not change.
    `occupied`: a claim of the node is allocated.
    """
    spec = item["spec"]
    devices: Sequence[Mapping[str, Any]] = spec.get("devices") or []
    current = tag_on(devices)
    owners = item["metadata"].get("ownerReferences") or [{}]
    reading = read_allocations(ultraserver or {})
    reading = reading.without_predecessors_of(spec["nodeName"], str(owners[0].get("uid", "")))
    tag = next_tag(current, reading, spec["nodeName"], occupied=occupied)
    if tag == current:
        return item
    return {**item, "spec": {**spec, "devices": [tagged(device, tag) for device in devices]}}


def submitted(workload: Wire, now: datetime.datetime) -> Obj:
    """Return a workload of a manifest as the API server would store it at `now`, with the CRD's defaults."""
    meta, spec = workload["metadata"], workload.get("spec") or {}
    uid = meta.get("uid") or f"simulated-{meta.get('namespace')}-{meta['name']}"
    created = {"uid": uid, "creationTimestamp": objects.time(now), "generation": 1, "resourceVersion": "0"}
    return {**workload, "metadata": {**meta, **created}, "spec": {"topologySize": 1, "serverCount": 1, **spec}}


def _matters(action: Action) -> bool:
    """Return True if later plans depend on a write."""
    match action:
        case Evict() | LabelNode():
            return False
        case WriteUltraServerStatus(before=before, status=status, finalizers=finalizers):
            return finalizers is not None or (before.get("allocations") or []) != (status.get("allocations") or [])
    return True


def _kept(item: Wire, name: str) -> dict[str, Any]:
    """Return a part of a status that has another writer than the plan: a plan's status does not contain it."""
    status = item.get("status") or {}
    return {name: status[name]} if name in status else {}


def _key(item: Wire) -> Key:
    return str(item["kind"]), item["metadata"].get("namespace") or "", item["metadata"]["name"]
