"""The controller's view of the cluster: frozen values that `decode` makes from each object once."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from neuron_dra.core import tenants
from neuron_dra.core.ownership import ObjectIdentity
from neuron_dra.core.qualification import Target
from neuron_dra.core.signals import LINK_INTERSERVER
from neuron_dra.core.ultraserver import WORKLOAD_KIND as WORKLOAD_KIND
from neuron_dra.core.ultraserver import Allocation, Tag, UnreadAllocation
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.results import GroupResult

GROUP = "neuron.aws.com"
VERSION: Final = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = f"{GROUP}/ultraserver-release"
"""Finalizer of a workload while it has reservations."""
RESERVED = f"{GROUP}/ultraserver-reserved"
"""Finalizer of a NeuronUltraServer while it has reservations, including unreadable ones."""

LIMIT_ANNOTATION = f"{GROUP}/max-reserved-nodes"
"""Annotation of a Namespace: how many nodes it may reserve. An admission policy restricts who may write it."""

JOBS_LABEL = f"{GROUP}/reserve-for-jobs"
"""Label of a Namespace whose jobs may reserve UltraServers. An admission policy restricts who may write it."""
JOBS_ALLOWED = "true"
JOBS_QUEUED = "queue"
"""The value of a Namespace in which every new reservation needs a queue."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a workload whose reservation Kueue admits: the LocalQueue."""

MADE_FOR = f"{GROUP}/made-for"
"""Annotation of a workload that the controller has made for a job: the job's kind, name and UID."""

ENDS_SOON = "EndsSoon"
"""Condition of a workload on nodes of a capacity block whose end is known."""

IN_USE = "InUse"
SPEC_INCOMPLETE = "SpecIncomplete"
"""Condition of a workload with spec.ttlSecondsUnused: claims of it are allocated on its nodes."""
EXPIRED = "Expired"
"""Its reason once the nodes were unused for too long."""

SLOT_SIZES = (1, 2, 4)
"""The sizes of a slot in nodes: the values of topologySize, and of the modes that a node publishes."""

NODES_AT_MOST = 64
"""The limit of nodes in one UltraServer, from the CRD. A node with a higher number counts as unknown."""

Pods = tuple[tuple[str, str], ...]
"""Name and UID of each pod."""

NODE_NAMES_SHOWN = 8
"""The number of names that a message lists before the count of the rest."""


@dataclass(frozen=True, slots=True)
class PublishedNode:
    """What one node's ResourceSlices publish about its UltraServer, and its tag. None if the driver has no value."""

    name: str
    node_uid: str
    instance_type: str
    kind: str  # resourceType: neuron_node, or neuron_device where each device is published
    ultraserver_id: str | None
    node_id: int | None
    sizes: tuple[int, ...]
    vertical: bool | None = None
    horizontal: bool | None = None
    unhealthy: tuple[str, ...] = ()  # faults of its devices (core/health.py), published until recovery is confirmed
    capacity_block: str | None = None
    server_id_2: str | None = None
    server_id_4: str | None = None
    reservation_id: str | None = None
    node_id_2: int | None = None
    layers: tuple[str | None, str | None, str | None] = (None, None, None)
    tag: Tag | None = None
    complete: bool = True  # all slices of the pool's newest generation exist and agree on the tag

    @property
    def device_faults(self) -> tuple[str, ...]:
        """The faults of its devices, without those of links to other nodes."""
        return tuple(reason for reason in self.unhealthy if reason != LINK_INTERSERVER)

    @property
    def has_link_fault(self) -> bool:
        """A device reports its links to other nodes as unhealthy."""
        return LINK_INTERSERVER in self.unhealthy

    @property
    def hardware_id(self) -> str | None:
        """The UltraServer's identity as the hardware reports it."""
        return self.reservation_id or self.server_id_4


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A Node object. `labels` are those about UltraServers only.

    `reported` is what agents say is wrong with the node: types of conditions, and texts. It stays for a while after the
    last of them says so (`recovering`; see `agents`). `reported_since`: when they began to say so without a pause,
    if this controller saw it begin.
    """

    name: str
    uid: str
    provider_id: str
    ready: bool
    schedulable: bool
    capacity_block: str | None
    ready_changed: datetime.datetime = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)  # when `ready` last changed
    out_of_service: bool = False  # a taint declares that the machine is off
    taints: tuple[str, ...] = ()  # keys that keep new pods away, without those of dead or cordoned nodes
    labels: Mapping[str, str] = field(default_factory=dict)
    internal_ip: str = ""
    reported: tuple[tuple[str, str], ...] = ()
    recovering: bool = False
    reported_since: datetime.datetime | None = None
    block_end: datetime.datetime | None = None  # of its capacity block, if an annotation says so
    block_problem: str = ""  # why the annotation cannot be read

    @property
    def unhealthy(self) -> bool:
        """True if an agent reports a fault of the node now."""
        return bool(self.reported) and not self.recovering

    @property
    def report(self) -> str:
        """The name of a node with a report, and the report, for messages."""
        if self.reported:
            return f"{self.name} ({'; '.join(text for _, text in self.reported)})"
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class Consumer:
    """An entry of a claim's reservedFor that is no pod, such as a PodGroup."""

    group: str  # of the API
    resource: str
    name: str

    @property
    def is_pod_group(self) -> bool:
        """Return True for a PodGroup of Kubernetes."""
        return (self.group, self.resource) == ("scheduling.k8s.io", "podgroups")


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A ResourceClaim with allocated Neuron devices. `pods` are name and UID of the pods in its reservedFor.

    `others` are its other consumers; then only the pods say which of them use the claim. Its configuration names the
    workload; templates of AWS's operator have no UID. `reserved_class`: it was allocated after the tag.
    """

    namespace: str
    name: str
    nodes: tuple[str, ...]
    workload_uid: str | None
    pods: Pods = ()
    reserved_class: bool = False
    workload_id: str | None = None
    others: tuple[Consumer, ...] = ()
    uid: str = ""

    @property
    def ref(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    def is_of(self, holder: Allocation | Tag) -> bool:
        """Return True if namespace, name and UID of the claim's workload are those of the reservation or tag."""
        return (self.namespace, self.workload_id, self.workload_uid or holder.workload_uid) == (
            holder.workload_namespace,
            holder.workload_name,
            holder.workload_uid,
        )

    def holder(self, reader: str) -> str:
        """Return the pod that uses the claim, else the claim, for a message in the namespace `reader`."""
        if self.pods:
            return tenants.shown("pod", self.namespace, self.pods[0][0], reader=reader)
        return tenants.shown("claim", self.namespace, self.name, reader=reader)


@dataclass(frozen=True, slots=True)
class Reservation:
    """An allocation, and the name of the NeuronUltraServer that has it in its status."""

    ultraserver: str
    allocation: Allocation

    def changed(self, **changes: Any) -> Reservation:
        """Return a copy with these fields of the allocation changed."""
        return replace(self, allocation=replace(self.allocation, **changes))


@dataclass(frozen=True, slots=True)
class ReadClaims:
    """When the claims on a node were read, and what the node published when the plan asked for it."""

    published: PublishedNode | None
    at: datetime.datetime

    def counts(
        self, published: PublishedNode | None, now: datetime.datetime, most_age: datetime.timedelta | None
    ) -> bool:
        """Return True if nothing that the node publishes has changed since, and the read is not too old."""
        return self.published is published and (most_age is None or now <= self.at + most_age)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A pod whose claim is allocated on a node that must reject it, unless the pod started before."""

    namespace: str
    name: str
    uid: str
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class Starting:
    """A workload with Bound slots: its nodes without pods (`idle`) and, if it has several groups, one of its pods."""

    namespace: str
    name: str
    uid: str
    template: str
    count: int
    idle: tuple[str, ...]
    pod: str | None


@dataclass(frozen=True, slots=True)
class Meeting:
    """A workload with reserved nodes: its annotation `rendezvous`, and name and UID of the pod with rank 0.

    `node_ready`: that pod's Node is Ready. After a reboot the pod has another address.
    """

    namespace: str
    name: str
    uid: str
    mode: str
    pod: tuple[str, str] | None
    node_ready: bool = True


@dataclass(frozen=True, slots=True)
class UltraServer:
    """A stored NeuronUltraServer. `unread` are the entries that cannot be read, or not yet."""

    name: str
    uid: str
    version: str
    generation: int
    spec: Wire
    status: Wire
    reservations: tuple[Reservation, ...]
    unread: tuple[UnreadAllocation, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    results: tuple[GroupResult, ...] = ()  # of tests; `status` is without them

    @property
    def reserved(self) -> bool:
        """Return True if it has reservations, readable or not."""
        return bool(self.reservations or self.unread)


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """What a workload's status keeps about its queue: `status.queue`.

    - `name`: the LocalQueue for which nodes may be reserved; empty without one.
    - `returned`: how often in a row its quota was given back, because no nodes were free.
    - `returned_at`: when Kueue's Workload was last given back, as that object says.
    """

    name: str = ""
    returned: int = 0
    returned_at: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a queue allows a workload.

    - `groups`: groups with a lower index may be reserved.
    - `revoked`: what it has must be released.
    - `reason`, `message`: why it may not have more.
    """

    groups: int
    revoked: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A stored NeuronUltraServerWorkload. `groups` are the readable entries of `status.groups`."""

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
    rendezvous: str = ""  # the annotation, valid or not
    problem: str = ""  # why the object cannot be read
    priority_class: str = ""  # spec.priorityClassName
    made_for: str = ""  # the annotation MADE_FOR, empty if a person made it
    ttl_unused_s: int = 0  # spec.ttlSecondsUnused, 0 for no limit
    queue: str = ""  # the label QUEUE_LABEL
    queue_record: QueueRecord = QueueRecord()
    expected: datetime.timedelta = datetime.timedelta()  # spec.expectedDuration, 0 without one
    qualified_within: datetime.timedelta = datetime.timedelta()  # spec.qualification.maxAge, 0 without one
    target: Target | None = None  # what it tests; None for all but tests

    @property
    def expired(self) -> bool:
        """True if its nodes were unused for too long: they are released, and not reserved again."""
        return bool(self.ttl_unused_s) and condition(self.status, IN_USE).get("reason") == EXPIRED

    @property
    def restarting(self) -> Wire | None:
        """The cause of the current restart by RestartAll, as `since`, `reason` and `message`; None without one."""
        restart = self.status.get("restarting")
        if isinstance(restart, Mapping) and restart.get("reason"):
            return restart
        return None

    @property
    def state(self) -> str:
        """The stored state."""
        return str(self.status.get("state") or "Pending")

    @property
    def runs(self) -> bool:
        """True if it is Allocated and not being deleted: problems then are of its condition Degraded."""
        return self.state == "Allocated" and not self.deleting

    @property
    def ref(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def identity(self) -> ObjectIdentity:
        """What the owner of its dependents is compared with."""
        return ObjectIdentity(GROUP, WORKLOAD_KIND, self.namespace, self.name, self.uid)


@dataclass(frozen=True, slots=True)
class Template:
    """A ResourceClaimTemplate.

    `owner` is the object that controls it, None without one. `workload_id`, `workload_uid` and `size` (topologySize)
    come from the configuration in it. `kind` is the resourceType that it requests.
    """

    namespace: str
    name: str
    uid: str
    owner: ObjectIdentity | None
    deleting: bool
    workload_id: str | None = None
    workload_uid: str | None = None
    reserved_class: bool = False  # it requests reserved devices
    size: int | None = None
    kind: str = ""

    def is_of(self, workload: Workload) -> bool:
        """Return True if the workload controls it, or AWS's operator created it for the workload."""
        if self.owner is not None:
            return self.owner == workload.identity
        named = (self.namespace, self.workload_id) == (workload.namespace, workload.name)
        return named and self.workload_uid in (None, workload.uid)

    @property
    def is_a_workloads(self) -> bool:
        """True if a NeuronUltraServerWorkload controls it, or did so."""
        return self.owner is not None and (self.owner.group, self.owner.kind) == (GROUP, WORKLOAD_KIND)

    def is_official(self, workload: Workload) -> bool:
        """Return True if it names the workload as AWS's operator does; its claims match no node that is tagged here."""
        return self.workload_id == workload.name and self.workload_uid is None


@dataclass(frozen=True, slots=True)
class Namespace:
    """A Namespace, its LIMIT_ANNOTATION and its JOBS_LABEL; empty without one."""

    name: str
    limit: str
    jobs: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """The time in which workloads of one namespace hold back those of others: from `began` to `last`, so far."""

    began: datetime.datetime
    last: datetime.datetime


@dataclass(frozen=True, slots=True)
class Known:
    """What a plan depends on besides the objects that are watched and the time: replies, and what was read for it."""

    blocked_evictions: Mapping[str, str] = field(default_factory=dict)  # pod UID: why its eviction was rejected
    unwritable: Mapping[str, str] = field(default_factory=dict)  # NeuronUltraServer: why its status cannot be written
    rejected: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # workload UID: reason and text of a rejection
    outdated: str = ""  # why custom resources cannot be written: the CRDs are not of this release
    unkept: tuple[str, ...] = ()  # fields of workloads' specs that their CRD drops
    without_services: bool = False  # Services cannot be written, so no address of rank 0 is published
    unschedulable: Mapping[str, str] = field(default_factory=dict)  # workload UID: why its pods cannot be scheduled
    turns: Mapping[tuple[str, str], Turn] = field(default_factory=dict)  # by instance type and namespace
    priorities: Mapping[str, int] = field(default_factory=dict)  # PriorityClass: value, of those that exist
    shared_by: Mapping[str, Pods] = field(default_factory=dict)  # claim that is no pod's: the pods that use it
    admissions: Mapping[str, Admission] = field(default_factory=dict)  # workload UID: what its queue allows
    room: Mapping[str, str] = field(default_factory=dict)  # workload UID: what would make room for it, as a message
    assumed: tuple[Reservation, ...] = ()  # reservations that may be stored: their write is not answered yet
    read_claims: Mapping[str, ReadClaims] | None = None  # by node; None: all claims were read for this plan
    unread_claims: Mapping[str, str] = field(default_factory=dict)  # namespace: why claims on its nodes cannot be read


NOTHING_KNOWN: Final = Known()


@dataclass(frozen=True, slots=True)
class FleetSnapshot(Known):
    """Everything a plan depends on, besides the time. The order of the tuples does not matter."""

    published: tuple[PublishedNode, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    claims: tuple[ClaimUse, ...] = ()
    ultraservers: tuple[UltraServer, ...] = ()
    workloads: tuple[Workload, ...] = ()
    templates: tuple[Template, ...] = ()
    workload_class: bool = True  # the DeviceClass workload.neuron.aws.com exists
    namespaces: Mapping[str, str] | None = None  # name: LIMIT_ANNOTATION, empty without; None if unreadable


def condition(status: Wire, kind: str) -> Wire:
    """Return the condition of this type from an object's status; empty if it has none."""
    return next((entry for entry in status.get("conditions") or [] if entry.get("type") == kind), {})


UNSCHEDULED: Final = "spec.nodeName=,status.phase=Pending"
"""The field selector of pods that are not scheduled yet."""


def scheduling_refusal(pod: Wire) -> Wire:
    """Return the condition PodScheduled of a pod that the scheduler cannot place; empty for any other pod.

    A pod with a node, or one that is being deleted, does not count, nor one with scheduling gates, which waits for its
    controller.
    """
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    scheduled = condition(pod.get("status") or {}, "PodScheduled")
    waits = (scheduled.get("status"), scheduled.get("reason")) == ("False", "Unschedulable")
    if waits and not (spec.get("nodeName") or meta.get("deletionTimestamp")):
        return scheduled
    return {}


def shortened(names: Sequence[str], number: int | None = None) -> str:
    """Return names for a message: all of a few, else the first and a count.

    `number` is how many there are, if `names` are only the first NODE_NAMES_SHOWN of them.
    """
    more = (len(names) if number is None else number) - NODE_NAMES_SHOWN
    if more <= 0:
        return ", ".join(names)
    return ", ".join(names[:NODE_NAMES_SHOWN]) + f" and {more} more"
