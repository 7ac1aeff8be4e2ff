"""Kueue's Workload, as far as a reservation depends on it. Pure.

Anyone who may create Workloads can write one that refers to a reservation. So a Workload counts for a reservation only
if it has the name that follows from the reservation's UID, and the pods that the controller writes.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core import names
from neuron_dra.core.ownership import ObjectIdentity, controller_of
from neuron_dra.core.wire import Wire
from neuron_dra.planner.decisions.objects import MANAGED, owner_of
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import GROUP, WORKLOAD_KIND, Workload

RESOURCE: Final = f"{GROUP}/ultraserver-node"
"""The resource of which a ClusterQueue has quota: one for each node."""
IN_USE: Final = "kueue.x-k8s.io/resource-in-use"
"""The finalizer that keeps a Workload, and so its quota, until the nodes are free."""
OWNER_LABEL: Final = f"{GROUP}/workload-uid"
"""It names the workload after that was deleted with orphaned dependents: the quota must still be given back."""
POD_SET: Final = "nodes"
_PREFIX: Final = "ultraservers-"
NO_PLACE: Final = "NeuronNodesUnavailable"
"""Our reason of the conditions Evicted and Requeued. Kueue leaves a Requeued=False with an unknown reason alone."""
REQUEUED_BY_KUEUE: Final = ("Preempted", "NodeFailures")
"""Reasons of Evicted after which a Workload queues again at once."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of Kueue's Workload; `since` is the time of its last transition."""

    true: bool
    reason: str
    message: str
    since: datetime.datetime


NONE: Final = Condition(False, "", "", decode.EPOCH)


@dataclass(frozen=True, slots=True)
class KueueWorkload:
    """A Workload of Kueue that a NeuronUltraServerWorkload controls.

    - `owner`: that workload, which may be gone.
    - `count`: its pods; 0 if they are not those that the controller writes.
    - `instance_type`: of the pods' node selector.
    - `reclaimable`: pods whose quota is given back already.
    - `unsupported`: a feature of Kueue that its admission uses and reservations do not have; empty without one.
    """

    namespace: str
    name: str
    uid: str
    version: str
    owner: ObjectIdentity
    queue: str = ""
    count: int = 0
    instance_type: str = ""
    priority_class: str = ""
    priority: int | None = None
    active: bool = True
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    has_admission: bool = False
    reclaimable: int = 0
    unsupported: str = ""

    def condition(self, kind: str) -> Condition:
        """Return a condition; NONE, which is False without a reason, if there is none."""
        return self.conditions.get(kind, NONE)

    @property
    def ref(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """Kueue counts no quota for it any more, for ever."""
        return self.condition("Finished").true

    @property
    def has_quota(self) -> bool:
        """It has quota, whether it is admitted, evicted, or neither."""
        return self.condition("QuotaReserved").true and not self.finished

    @property
    def evicted(self) -> bool:
        """Its quota is to be given back, as soon as the nodes are free."""
        return self.condition("Evicted").true

    @property
    def admitted(self) -> bool:
        """Nodes may be reserved for it."""
        usable = self.active and not self.deleting and not self.evicted
        return usable and self.has_quota and self.condition("Admitted").true

    @property
    def granted(self) -> int:
        """The number of nodes for which it has quota."""
        return max(0, self.count - self.reclaimable) if self.has_quota else 0


def name_for(workload: Workload | ObjectIdentity) -> str:
    """Return the name of a workload's Workload of Kueue. It has the UID, so that no other object has it by chance."""
    return f"{_PREFIX}{workload.name}{_suffix(workload.uid)}"


def _suffix(uid: str) -> str:
    return f"-{uid[:8]}"


def project(item: Wire) -> KueueWorkload | None:
    """Return an object as a Workload of a reservation; None for those of others."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    owner = _owner(item)
    if owner is None:
        return None
    pods = _pods(spec)
    return KueueWorkload(
        namespace=str(meta.get("namespace", "")),
        name=meta["name"],
        uid=str(meta.get("uid", "")),
        version=str(meta.get("resourceVersion", "")),
        owner=owner,
        queue=str(spec.get("queueName") or ""),
        count=int(pods.get("count", 1)) if pods else 0,
        instance_type=_instance_type(pods),
        priority_class=str((spec.get("priorityClassRef") or {}).get("name") or ""),
        priority=spec.get("priority"),
        active=spec.get("active") is not False,
        deleting=bool(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers") or ()),
        conditions={str(condition.get("type")): _condition(condition) for condition in status.get("conditions") or []},
        has_admission=bool(status.get("admission")),
        reclaimable=sum(int(reclaimable.get("count") or 0) for reclaimable in status.get("reclaimablePods") or []),
        unsupported=_unsupported(spec, status, int(pods.get("count", 1)) if pods else 0),
    )


def _owner(item: Wire) -> ObjectIdentity | None:
    """Return the workload that controls an object, or did so before it was deleted; None if none does."""
    owner = controller_of(item)
    if owner is not None:
        return owner if (owner.group, owner.kind) == (GROUP, WORKLOAD_KIND) else None
    meta = item["metadata"]
    uid = str((meta.get("labels") or {}).get(OWNER_LABEL) or "")
    name = str(meta["name"]).removeprefix(_PREFIX).removesuffix(_suffix(uid))
    orphan = ObjectIdentity(GROUP, WORKLOAD_KIND, str(meta.get("namespace") or ""), name, uid)
    return orphan if uid and meta["name"] == name_for(orphan) else None


def _condition(condition: Wire) -> Condition:
    return Condition(
        condition.get("status") == "True",
        str(condition.get("reason") or ""),
        str(condition.get("message") or ""),
        decode.time(condition.get("lastTransitionTime")),
    )


def _pods(spec: Wire) -> Wire:
    """Return the one pod set, empty if its pods request anything but one node each."""
    sets = spec.get("podSets") or []
    if len(sets) != 1 or sets[0].get("name") != POD_SET:
        return {}
    containers = ((sets[0].get("template") or {}).get("spec") or {}).get("containers") or []
    requests = [(container.get("resources") or {}).get("requests") for container in containers]
    only: Wire = sets[0]
    return only if requests == [{RESOURCE: "1"}] else {}


def _instance_type(pods: Wire) -> str:
    selector = ((pods.get("template") or {}).get("spec") or {}).get("nodeSelector") or {}
    return str(selector.get(names.INSTANCE_TYPE_LABEL) or "")


def _unsupported(spec: Wire, status: Wire, count: int) -> str:
    """Return which feature of Kueue the Workload uses that a reservation does not have."""
    assignments = (status.get("admission") or {}).get("podSetAssignments") or []
    if any(pods.get("topologyAssignment") or pods.get("delayedTopologyRequest") for pods in assignments):
        return "a ResourceFlavor with a topology: Kueue would choose the nodes, which the controller does"
    if any(assignment.get("count", count) < count for assignment in assignments):
        return "partial admission: a reservation has all of its groups, or none"
    if status.get("clusterName") or status.get("nominatedClusterNames"):
        return "MultiKueue: the nodes of another cluster cannot be reserved here"
    return ""


def pod_set(workload: Workload) -> dict[str, Any]:
    """Return the pod set of a workload: one pod, which is never made, for each node."""
    one_node = {RESOURCE: "1"}
    container = {"name": "node", "image": "none", "resources": {"requests": one_node, "limits": one_node}}
    selector = {names.INSTANCE_TYPE_LABEL: workload.instance_type}
    pod = {"restartPolicy": "Never", "nodeSelector": selector, "containers": [container]}
    return {"name": POD_SET, "count": workload.size * workload.count, "template": {"spec": pod}}


def spec_for(workload: Workload, priorities: Mapping[str, int]) -> dict[str, Any]:
    """Return what the controller writes into a Workload's spec. `priority` goes with its class, and never alone."""
    spec: dict[str, Any] = {"queueName": workload.queue, "podSets": [pod_set(workload)]}
    if workload.priority_class in priorities:
        reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": workload.priority_class}
        spec |= {"priorityClassRef": reference, "priority": priorities[workload.priority_class]}
    return spec


def body_for(workload: Workload, priorities: Mapping[str, int]) -> dict[str, Any]:
    """Return the Workload to create. The finalizer is there from the beginning: it keeps the quota of nodes."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name_for(workload),
            "namespace": workload.namespace,
            "labels": {**MANAGED, OWNER_LABEL: workload.uid},
            "finalizers": [IN_USE],
            "ownerReferences": [owner_of(workload)],
        },
        "spec": spec_for(workload, priorities),
    }
