"""What the controller keeps of the cluster: frozen values, decoded once when they arrive (`decode`)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neuron_dra.core.health import LINK_INTERSERVER
from neuron_dra.core.ultraserver import Allocation, Tag, Unread

Wire = Mapping[str, Any]

GROUP = "neuron.aws.com"
API_VERSION = f"{GROUP}/v1beta1"
FINALIZER = f"{GROUP}/ultraserver-release"
"""Held on a workload while anything is reserved for it."""
RESERVED = f"{GROUP}/ultraserver-reserved"
"""Held on a NeuronUltraServer while anything is reserved in it, also what this release cannot read."""

LIMIT_ANNOTATION = f"{GROUP}/max-reserved-nodes"
"""On a Namespace: how many nodes it may reserve; an admission policy says who may write it."""

SLOT_SIZES = (1, 2, 4)
"""How many nodes of one UltraServer can work together: topologySize, and the modes that a node publishes."""

NODES_AT_MOST = 64
"""In one UltraServer, as the custom resource says; a node that says another number is not known."""

NODE_NAMES_SHOWN = 8
"""How many names a message lists before it says how many more there are."""


@dataclass(frozen=True, slots=True)
class PublishedNode:
    """One node's ResourceSlices: the facts about its UltraServer, and its tag. None is "the driver does not know"."""

    name: str
    node_uid: str
    instance_type: str
    kind: str  # resourceType: neuron_node, or neuron_device where each device is published
    ultraserver_id: str | None
    node_id: int | None
    sizes: tuple[int, ...]
    vertical: bool | None = None
    horizontal: bool | None = None
    sick: tuple[str, ...] = ()  # what is wrong with its devices (core/health.py); a node is slow to take it back
    capacity_block: str | None = None
    server_id_2: str | None = None
    server_id_4: str | None = None
    reservation_id: str | None = None
    node_id_2: int | None = None
    layers: tuple[str | None, str | None, str | None] = (None, None, None)
    tag: Tag | None = None
    complete: bool = True  # all slices of the pool's newest generation are there, and agree on the tag

    @property
    def sick_devices(self) -> tuple[str, ...]:
        """What is wrong with its devices, their links to other nodes aside."""
        return tuple(reason for reason in self.sick if reason != LINK_INTERSERVER)

    @property
    def sick_links(self) -> bool:
        """A device reports its links to other nodes as unhealthy."""
        return LINK_INTERSERVER in self.sick

    @property
    def hardware_id(self) -> str | None:
        """What the hardware says of the UltraServer's identity."""
        return self.reservation_id or self.server_id_4


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A Node object. `labels` are those about UltraServers only."""

    name: str
    uid: str
    provider_id: str
    ready: bool
    schedulable: bool
    capacity_block: str | None
    ready_changed: datetime.datetime = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)  # when `ready` last changed
    out_of_service: bool = False  # somebody has said, by a taint, that the machine is off
    taints: tuple[str, ...] = ()  # keys that keep new pods away, those of a dead or cordoned node aside
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A ResourceClaim that is allocated on devices of ours. `pods` are the (name, uid) it is reserved for.

    `workload_id` and `workload_uid` are what its configuration for our driver names; templates of AWS's operator leave
    the UID out. `reserved_class`: it got them by the DeviceClass of reserved devices, so a tag was there before it.
    """

    namespace: str
    name: str
    nodes: tuple[str, ...]
    workload_uid: str | None
    pods: tuple[tuple[str, str], ...] = ()
    reserved_class: bool = False
    workload_id: str | None = None

    def is_of(self, holder: Allocation) -> bool:
        """The claim is one of the workload that holds this reservation: by namespace, name and UID together."""
        return (self.namespace, self.workload_id, self.workload_uid or holder.workload_uid) == (
            holder.workload_namespace,
            holder.workload_name,
            holder.workload_uid,
        )

    @property
    def holder(self) -> str:
        """The pod that a person should look at, else the claim."""
        return f"pod {self.namespace}/{self.pods[0][0]}" if self.pods else f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Reservation:
    """An allocation, and the NeuronUltraServer in whose status it is."""

    ultraserver: str
    allocation: Allocation

    def changed(self, **changes: Any) -> Reservation:
        """Return the same reservation with other values in its allocation."""
        return replace(self, allocation=replace(self.allocation, **changes))


@dataclass(frozen=True, slots=True)
class Suspect:
    """A pod whose claim is allocated on a node that must refuse it, if the pod has not started before."""

    namespace: str
    name: str
    uid: str
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Starting:
    """A workload with groups that are open: its nodes that nothing uses, and with several groups one of its pods."""

    namespace: str
    name: str
    uid: str
    template: str
    count: int
    idle: tuple[str, ...]
    pod: str | None


@dataclass(frozen=True, slots=True)
class UltraServer:
    """A NeuronUltraServer object as it is stored. `unread` are the reservations that cannot be read, or not yet."""

    name: str
    uid: str
    version: str
    generation: int
    spec: Wire
    status: Wire
    reservations: tuple[Reservation, ...]
    unread: tuple[Unread, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def reserved(self) -> bool:
        """Something is reserved in it, as far as is written there."""
        return bool(self.reservations or self.unread)


@dataclass(frozen=True, slots=True)
class Workload:
    """A NeuronUltraServerWorkload as it is stored. `groups` is what can be read of `status.groups`."""

    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    created: datetime.datetime
    deleting: bool
    finalizers: tuple[str, ...]
    instance_type: str
    size: int
    count: int
    strategy: str
    logical_neuron_core: int
    template_name: str
    status: Wire
    groups: tuple[Wire, ...] = ()
    moves_on_cordon: bool = False

    @property
    def restarting(self) -> Wire | None:
        """What made RestartAll release everything, while that lasts: `since`, `reason` and `message`."""
        found = self.status.get("restarting")
        return found if isinstance(found, Mapping) and found.get("reason") else None

    @property
    def state(self) -> str:
        """The stored state."""
        return str(self.status.get("state") or "Pending")

    @property
    def ref(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Template:
    """A ResourceClaimTemplate of anybody.

    `owner_uid` is of the NeuronUltraServerWorkload that controls it; empty where something else does, or nothing.
    `controlled`: something does. `workload_id` and `workload_uid` are what its claims name, and `size` is the
    topologySize that it was made for, if it says so.
    """

    namespace: str
    name: str
    uid: str
    owner_uid: str
    deleting: bool
    controlled: bool = True
    workload_id: str | None = None
    workload_uid: str | None = None
    reserved_class: bool = False  # it asks for reserved devices
    size: int | None = None

    def is_of(self, workload: Workload) -> bool:
        """It is the workload's own: it controls it, or AWS's operator made it for it."""
        if self.namespace != workload.namespace:
            return False
        if self.owner_uid or self.controlled:
            return self.owner_uid == workload.uid
        return self.workload_id == workload.name and self.workload_uid in (None, workload.uid)

    def is_official(self, workload: Workload) -> bool:
        """Its claims name the workload as those of AWS's operator do; no node of ours is offered to them."""
        return self.workload_id == workload.name and self.workload_uid is None

    kind: str = ""  # what a template of ours asks for: neuron_node or neuron_device


@dataclass(frozen=True, slots=True)
class Namespace:
    """A Namespace: what its LIMIT_ANNOTATION says, empty if it has none."""

    name: str
    limit: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a plan depends on, besides the time. The order of the tuples means nothing."""

    published: tuple[PublishedNode, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    claims: tuple[ClaimUse, ...] = ()
    ultraservers: tuple[UltraServer, ...] = ()
    workloads: tuple[Workload, ...] = ()
    templates: tuple[Template, ...] = ()
    workload_class: bool = True  # the DeviceClass workload.neuron.aws.com exists
    blocked_evictions: Mapping[str, str] = field(default_factory=dict)  # pod UID: why the API server said no
    unwritable: Mapping[str, str] = field(default_factory=dict)  # NeuronUltraServer: why its status cannot be written
    outdated: str = ""  # why the custom resources cannot be written: their definitions are not of this release
    unschedulable: Mapping[str, str] = field(default_factory=dict)  # workload UID: why its pods cannot be placed
    namespaces: Mapping[str, str] | None = None  # name: its LIMIT_ANNOTATION, empty without; None if none were read


def condition(status: Wire, kind: str) -> Wire:
    """Return the condition of this type from an object's status; empty if it has none."""
    return next((each for each in status.get("conditions") or [] if each.get("type") == kind), {})


def shortened(names: list[str] | tuple[str, ...]) -> str:
    """Return names for a message: all of a few, else the first and a count."""
    if len(names) <= NODE_NAMES_SHOWN:
        return ", ".join(names)
    return ", ".join(names[:NODE_NAMES_SHOWN]) + f" and {len(names) - NODE_NAMES_SHOWN} more"
