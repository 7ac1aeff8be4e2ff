"""A snapshot prepared for simulation: where a pod would run, and what its claims would get. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from neuron_dra.ask.read.node_views import (
    DeviceFields,
    KubeNodeView,
    NodeTypeView,
    SliceSpecView,
    SliceView,
    TaintRuleSpec,
    TaintRuleView,
)
from neuron_dra.ask.read.pod_views import PodOwners, PodPlace, PodRank
from neuron_dra.ask.read.snapshot import Key, Snapshot, key_of
from neuron_dra.ask.read.views import EventSubject, UltraServerView
from neuron_dra.ask.world import demand, relevance, server, users
from neuron_dra.ask.world.alike import Alike, Likeness
from neuron_dra.ask.world.demand import PodClaim
from neuron_dra.ask.world.resources import NodeRoom
from neuron_dra.core import catalogue, ultraserver
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.wire import Wire
from neuron_dra.simulate import allocator, model, nodes, scheduler
from neuron_dra.simulate.model import DeviceId
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.scheduler import Placement, Unschedulable
from neuron_dra.simulate.selectors import Selectors
from neuron_dra.simulate.semantics import Semantics

DecodedNodes = dict[int, tuple[Wire, model.NodeTraits]]
"""Nodes by identity, each beside its object, which keeps that identity from being used again."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device: a claim, the pods that use it (empty: none does), and the PodGroups that it is for."""

    claim: Wire
    pods: tuple[str, ...]
    groups: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace of claim and pods."""
        return str(self.claim["metadata"].get("namespace") or "")

    @property
    def key(self) -> str:
        """A text that is different for each claim."""
        return f"{self.namespace}/{self.claim['metadata']['name']}"

    def __str__(self) -> str:
        if self.groups:
            return f"PodGroup {self.namespace}/{self.groups[0]}"
        if not self.pods:
            return f"claim {self.key}"
        more = f" and {len(self.pods) - 1} more pods" if len(self.pods) > 1 else ""
        return f"{self.namespace}/{self.pods[0]}{more}"


T = TypeVar("T")


class Derived(cached_property[T]):
    """A value that is derived from the objects of some kinds, once; a change of other kinds leaves it as it is."""

    def __init__(self, function: Callable[[Any], T], kinds: Set[str]) -> None:
        super().__init__(function)
        self.kinds = kinds


def derived(*kinds: str) -> Callable[[Callable[[Any], T]], Derived[T]]:
    """Declare the kinds that a value of a World is derived from."""
    return lambda function: Derived(function, frozenset(kinds))


class World:
    """Everything that is derived from a snapshot, computed once.

    With `proposes` False, causes are found and no changes are tried. `rules` are those of the scheduler; by default
    those of the API server's version, without the cost of its search.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        proposes: bool = True,
        rules: Semantics | None = None,
        memo: Selectors | None = None,
        decoded: DecodedNodes | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.proposes = proposes
        self.rules = rules or server.rules(snapshot)
        self.memo = memo or Selectors()
        self._decoded: DecodedNodes = {} if decoded is None else decoded
        self.free_views: dict[tuple[int, ...], Sequence[Any] | None] = {}
        """Views of free devices, by the identities of facts, which the inventory keeps."""

    def after(self, replaced: Iterable[Wire] = (), removed: Iterable[Key] = ()) -> World:
        """Return the world after a change, with everything that is the same in both."""
        new_objects, removed_keys = tuple(replaced), tuple(removed)
        _ = self.alike, self.room  # each world after this one counts on from these
        changed = self.snapshot.changed(new_objects, removed_keys)
        return self.following(changed, {*removed_keys, *map(key_of, new_objects)})

    def following(self, changed: Snapshot, keys: Set[Key]) -> World:
        """Return the world of a snapshot in which the objects with these keys are others, and no others.

        What was derived here already, and is the same there, is taken over.
        """
        next_world = World(changed, proposes=self.proposes, rules=self.rules, memo=self.memo, decoded=self._decoded)
        kinds = {key[0] for key in keys}
        own_values, next_values = vars(self), vars(next_world)
        for name, descriptor in vars(World).items():
            if isinstance(descriptor, Derived) and name in own_values and descriptor.kinds.isdisjoint(kinds):
                next_values[name] = own_values[name]
        # Pods, claims and slices are what changes most: these are counted on from here.
        if "room" in own_values and "DeviceClass" not in kinds:
            next_world.room = self.room.after(self.snapshot, changed, keys)
        claims = {key for key in keys if key[0] == "ResourceClaim"}
        if "in_use" in own_values:
            next_world.in_use = self.in_use - self._held(claims) | next_world._held(claims)
        if "holders" in own_values and "holders" not in next_values:
            next_holders = self._holders_after(changed, claims | self._claims_of_groups(changed, keys))
            next_values |= {} if next_holders is None else {"holders": next_holders, "_is_crowded": False}
        if "inventory" in own_values and "DeviceTaintRule" not in kinds:
            slice_keys = [key for key in keys if key[0] == "ResourceSlice"]
            next_values["inventory"] = self._inventory_after(changed, slice_keys)
        if "alike" in own_values and next_values.get("likeness") is self.likeness:
            next_world.alike = self.alike.after(next_world.in_use)
        return next_world

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget what was decoded of these objects, which no world after this one has."""
        for key in keys:
            self._decoded.pop(id(self.snapshot.objects.get(key)), None)

    def _holders_after(self, changed: Snapshot, claims: Set[Key]) -> Mapping[DeviceId, Holder] | None:
        """Return who holds each device after these claims have changed; None if a device has several claims."""
        holder_by_device = dict(self.holders)
        if self._is_crowded:
            return None
        for claim in (self.snapshot.objects.get(key) for key in claims):
            for device in allocator.devices_in_use([claim]) if claim is not None else ():
                holder_by_device.pop(device, None)
        for claim in (changed.objects.get(key) for key in claims):
            if claim is not None:
                devices = allocator.devices_in_use([claim])
            else:
                devices = frozenset()
            if not holder_by_device.keys().isdisjoint(devices):
                return None
            if claim is not None and devices:
                holder_by_device.update(dict.fromkeys(devices, Holder(claim, *users.holders(changed, claim))))
        return holder_by_device

    def _claims_of_groups(self, changed: Snapshot, keys: Iterable[Key]) -> set[Key]:
        """Return the claims that are for PodGroups of these pods: the pods of the group are its holders."""
        group_keys = set()
        for key in keys:
            if key[0] != "Pod":
                continue
            for pod in (self.snapshot.objects.get(key), changed.objects.get(key)):
                group = users.group_of(pod) if pod else ""
                if pod and group:
                    group_keys.add((pod["metadata"].get("namespace") or "", group))
        if not group_keys:
            return set()
        claim_keys = set()
        for claim in changed.all("ResourceClaim"):
            namespace = claim["metadata"].get("namespace") or ""
            if any((namespace, group) in group_keys for group in users.groups(claim)):
                claim_keys.add(key_of(claim))
        return claim_keys

    def _inventory_after(self, changed: Snapshot, slices: Sequence[Key]) -> PoolInventory:
        """Return the published devices after these slices have changed."""
        if not slices:
            return self.inventory
        before, after = self.snapshot.objects, changed.objects
        old = [before[key] for key in slices if key in before]
        new = [after[key] for key in slices if key in after]
        return self.inventory.after(old, tainted(new, changed))

    def _held(self, claims: Iterable[Key]) -> frozenset[DeviceId]:
        """Return the devices that these claims hold, as far as they exist."""
        claim_objects = (self.snapshot.objects.get(key) for key in claims)
        return allocator.devices_in_use([claim for claim in claim_objects if claim is not None])

    @derived("ResourceSlice", "DeviceTaintRule")
    def inventory(self) -> PoolInventory:
        """The published devices, with the taints of DeviceTaintRules."""
        return PoolInventory(tainted(self.snapshot.all("ResourceSlice"), self.snapshot), self.rules)

    @derived("ResourceSlice", "DeviceTaintRule", "Node")
    def likeness(self) -> Likeness:
        """Which nodes publish equal devices."""
        return Likeness(self.inventory)

    @cached_property
    def in_use(self) -> frozenset[DeviceId]:
        """The devices that claims hold."""
        return frozenset(self.holders)

    @cached_property
    def alike(self) -> Alike:
        """Which nodes have equal devices in equal use."""
        return Alike(self.likeness, self.in_use)

    @derived("Node")
    def nodes(self) -> Mapping[str, Wire]:
        """The Nodes by name."""
        return {node["metadata"]["name"]: node for node in self.snapshot.all("Node")}

    def type_of(self, node: str) -> InstanceType | None:
        """Return the instance type of a node, by its name; None if the node or its type is unknown."""
        return catalogue.lookup(self._types.get(node, ""))

    @derived("Node")
    def _types(self) -> Mapping[str, str]:
        return {name: NodeTypeView.of(node).instance_type for name, node in self.nodes.items()}  # asked for each device

    def node(self, name: str) -> KubeNodeView:
        """Return a Node; one without fields if it does not exist."""
        return KubeNodeView.of(self.nodes.get(name))

    def decoded(self, node: Wire) -> model.NodeTraits:
        """Return a Node of the snapshot, or of the one before a change, decoded once."""
        node_and_traits = self._decoded.get(id(node))
        if node_and_traits is None:
            node_and_traits = self._decoded[id(node)] = node, model.node(node)
        _, traits = node_and_traits
        return traits

    @derived("DeviceClass")
    def classes(self) -> Mapping[str, model.DeviceClass]:
        """The DeviceClasses by name."""
        class_by_name = {}
        for raw_class in self.snapshot.all("DeviceClass"):
            class_by_name[raw_class["metadata"]["name"]] = model.device_class(raw_class)
        return class_by_name

    @derived("ResourceClaim", "Pod")
    def holders(self) -> Mapping[DeviceId, Holder]:
        """Who holds each device that is in use."""
        holder_by_device = {}
        for claim in self.snapshot.all("ResourceClaim"):
            devices = allocator.devices_of(claim)
            if devices:
                holder = Holder(claim, *users.holders(self.snapshot, claim))
                holder_by_device.update(dict.fromkeys(devices, holder))
        return holder_by_device

    @derived("ResourceClaim", "Pod")
    def _is_crowded(self) -> bool:
        """True if several claims have the same device, of which `holders` shows one."""
        claimed_count = sum(len(allocator.devices_in_use([claim])) for claim in self.snapshot.all("ResourceClaim"))
        return claimed_count > len(self.holders)

    @cached_property
    def room(self) -> NodeRoom:
        """What the nodes have left of CPU, memory and other resources."""
        return NodeRoom(self.snapshot, self.placed_pods)

    @derived("ResourceSlice")
    def tags(self) -> Mapping[str, ultraserver.Tag]:
        """The reservation of each node that publishes one."""
        tag_by_node = {}
        tag_by_identity: dict[int, ultraserver.Tag | None] = {}  # of the list of devices, which equal nodes share
        for spec in self._published:
            devices = spec.published
            if id(devices) not in tag_by_identity:
                tag_by_identity[id(devices)] = ultraserver.tag_on(devices)
            tag = tag_by_identity[id(devices)]
            if tag is not None and spec.node_name:
                tag_by_node[spec.node_name] = tag
        return tag_by_node

    @derived("NeuronUltraServer")
    def spares(self) -> Set[str]:
        """The names of the nodes that the controller keeps for groups that must move."""
        spare_names: set[str] = set()
        for raw_server in self.snapshot.all("NeuronUltraServer"):
            server = UltraServerView.of(raw_server)
            if server.is_spare:
                spare_names.update(server.nodes)
        return spare_names

    @derived("ResourceSlice")
    def _published(self) -> Sequence[SliceSpecView]:
        return [SliceSpecView.of(raw_slice["spec"]) for raw_slice in self.snapshot.all("ResourceSlice")]

    @derived("ResourceSlice")
    def ultraservers(self) -> Mapping[str, Sequence[str]]:
        """The names of the nodes that publish each UltraServer's id."""
        names_by_id: dict[str, list[str]] = defaultdict(list)
        for spec in self._published:
            name = spec.text("ultraserverId")
            if name and spec.node_name:
                names_by_id[name].append(spec.node_name)
        return {name: list(dict.fromkeys(nodes)) for name, nodes in names_by_id.items()}

    @derived("ResourceSlice", "DeviceTaintRule", "Node")
    def untagged_likeness(self) -> Likeness:
        """Which nodes publish equal devices, reservations aside."""
        return Likeness(self.untagged)

    @derived("ResourceSlice", "DeviceTaintRule")
    def untagged(self) -> PoolInventory:
        """The devices of reserved nodes as if they were not reserved, and those that no single node owns."""
        slices: list[Wire] = []
        for name in ("", *self.tags):
            slices += self.slices_of(name)
        return PoolInventory((_untagged(raw_slice) for raw_slice in tainted(slices, self.snapshot)), self.rules)

    def slices_of(self, node: str) -> Sequence[Wire]:
        """Return the slices that name this node."""
        return self._slices.get(node, ())

    @derived("ResourceSlice")
    def _slices(self) -> Mapping[str, list[Wire]]:
        slices_by_node: dict[str, list[Wire]] = defaultdict(list)
        for raw_slice, spec in zip(self.snapshot.all("ResourceSlice"), self._published, strict=True):
            slices_by_node[spec.node_name].append(raw_slice)
        return slices_by_node

    def specs_of(self, node: str) -> list[SliceSpecView]:
        """Return what this driver publishes on a node: its slices."""
        return [spec for spec in self._specs.get(node, ()) if spec.is_ours]

    def all_specs_of(self, node: str) -> Sequence[SliceSpecView]:
        """Return what all drivers publish on a node: their slices."""
        return self._specs.get(node, ())

    @derived("ResourceSlice")
    def _specs(self) -> Mapping[str, list[SliceSpecView]]:
        specs_by_node: dict[str, list[SliceSpecView]] = defaultdict(list)
        for spec in self._published:
            specs_by_node[spec.node_name].append(spec)
        return specs_by_node

    @derived("Pod")
    def placed_pods(self) -> Sequence[tuple[Wire, PodPlace]]:
        """All pods, each with the few fields by which pods are found."""
        return [(pod, PodPlace.of(pod)) for pod in self.snapshot.all("Pod")]

    @derived("Pod")
    def driver_pods(self) -> Mapping[str, list[Wire]]:
        """The pods of the driver's DaemonSet, by the node that they are on."""
        pods_by_node: dict[str, list[Wire]] = defaultdict(list)
        for pod in self.snapshot.all("Pod"):
            if _is_driver(PodOwners.of(pod)):
                pods_by_node[pod["spec"]["nodeName"]].append(pod)
        return pods_by_node

    @derived("Pod")
    def least_priority(self) -> int:
        """The least priority of all pods; that of a pod without one, which is 0, if there are none."""
        return min((PodRank.of(pod).spec.priority for pod in self.snapshot.all("Pod")), default=0)

    @derived("Event")
    def events(self) -> Mapping[tuple[str, str, str], list[Wire]]:
        """The Events by kind, namespace and name of the object that they are about."""
        events_by_object: dict[tuple[str, str, str], list[Wire]] = defaultdict(list)
        for event in self.snapshot.all("Event"):
            about = EventSubject.of(event).involved_object
            events_by_object[about.kind, about.namespace, about.name].append(event)
        return events_by_object

    def claims_of(self, pod: Wire) -> list[PodClaim]:
        """Return the claims of a pod."""
        return demand.claims_of(self.snapshot, pod)

    def place(self, pod: Wire) -> Placement | Unschedulable:
        """Return where the pod would run, as far as devices, taints, node affinity and resources decide it."""
        return self._scheduled(pod, self._representatives(pod), {})

    def attempt(self, pod: Wire) -> Placement | Unschedulable:
        """Return what `place` returns, with a message that counts every node, as kube-scheduler's does."""
        lacking = {name: sorted(self.room.lacking(pod, node)) for name, node in self.nodes.items()}
        in_order = [node for _, node in sorted(self.nodes.items())]
        return self._scheduled(pod, in_order, lacking)

    def _scheduled(
        self, pod: Wire, candidates: Sequence[Wire], lacking: Mapping[str, Sequence[str]]
    ) -> Placement | Unschedulable:
        claims = [pod_claim.claim for pod_claim in self.claims_of(pod)]
        if any(claim is None for claim in claims):
            return Unschedulable("a claim of the pod does not exist", error=True)
        return scheduler.schedule(
            pod,
            [claim for claim in claims if claim is not None],
            candidates,
            self.inventory,
            self.snapshot.all("DeviceClass"),
            self.in_use,
            self.memo,
            lacking,
        )

    def _representatives(self, pod: Wire) -> list[Wire]:
        """Return the nodes with room for the pod: of those that are equal to it and to its claims, the first one."""
        node_by_key: dict[object, Wire] = {}
        allocated = any(pod_claim.seen.is_allocated for pod_claim in self.claims_of(pod))
        claims = []
        for pod_claim in self.claims_of(pod):
            if pod_claim.claim is not None:
                claims.append(model.claim(pod_claim.claim))
        read = relevance.names(claims, self.classes)
        for name, wire in self.nodes.items():
            node = self.decoded(wire)
            key = None if allocated else self.alike.key(node, read)
            key = name if key is None else (key, nodes.objection(pod, node))
            if key not in node_by_key and not self.room.lacking(pod, wire):
                node_by_key[key] = wire
        return list(node_by_key.values())


def _is_driver(pod: PodOwners) -> bool:
    """Return True for a pod of the driver's DaemonSet that has a node."""
    named = []
    for key in ("app", "app.kubernetes.io/name", "name"):
        named.append(str(pod.metadata.labels.get(key, "")))
    is_named_for_driver = any("neuron-dra" in name for name in named)
    return is_named_for_driver and bool(pod.spec.node_name) and pod.is_of("DaemonSet")


def tainted(slices: Sequence[Wire], snapshot: Snapshot) -> list[Wire]:
    """Return the slices with the taints that DeviceTaintRules add."""
    rules = snapshot.all("DeviceTaintRule")
    if not rules:
        return list(slices)
    return [_with_rules(raw_slice, rules) for raw_slice in slices]


def _untagged(raw_slice: Wire) -> Wire:
    devices: list[Wire] = []
    for device in SliceView.of(raw_slice).spec.published:
        attributes = DeviceFields.of(device).attributes
        kept = {}
        for name, value in attributes.items():
            if name not in ultraserver.TAG_ATTRIBUTES:
                kept[name] = value
        devices.append({**device, "attributes": kept})
    return {**raw_slice, "spec": {**raw_slice["spec"], "devices": devices}}


def _with_rules(raw_slice: Wire, rules: Sequence[Wire]) -> Wire:
    spec = SliceView.of(raw_slice).spec
    taints_and_rules = [(rule["spec"].get("taint"), TaintRuleView.of(rule).spec) for rule in rules]
    devices: list[Wire] = []
    for device in spec.published:
        added = []
        for taint, rule in taints_and_rules:
            if taint and covers(rule, spec, device["name"]):
                added.append(taint)
        if added:
            devices.append({**device, "taints": [*DeviceFields.of(device).taints, *added]})
        else:
            devices.append(device)
    return {**raw_slice, "spec": {**raw_slice["spec"], "devices": devices}}


def covers(rule: TaintRuleSpec, spec: SliceSpecView, device: str) -> bool:
    """Return True if a DeviceTaintRule selects a device of a slice.

    An empty selector selects all devices; without one, a rule selects none.
    """
    selector = rule.device_selector
    if selector is None:
        return False
    if selector.driver not in ("", spec.driver) or selector.pool not in ("", spec.pool.name):
        return False
    return selector.device in ("", device)
