"""The API server's objects as the fleet's observer sees them: without lag and faults."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuron_dra.core.ownership import ObjectIdentity
from neuron_dra.core.qualification import NAMESPACE as TESTS
from neuron_dra.core.ultraserver import Allocation, Tag, read_allocations, tag_on
from neuron_dra.core.wire import Wire
from neuron_dra.planner.observed.model import GROUP, WORKLOAD_KIND


@dataclass(frozen=True, slots=True)
class Held:
    """An allocation, and the object in whose status it is."""

    ultraserver: str
    allocation: Allocation


class View:
    """The objects by kind, each by namespace/name. The dictionaries are the caches' own, and change."""

    def __init__(self, items: Mapping[str, Mapping[str, Wire]]) -> None:
        self._items = items
        self._read: dict[str, tuple[Wire, tuple[Held, ...]]] = {}  # by name: an object, and what is in its status

    def all(self, plural: str) -> list[Wire]:
        """Every object of a kind, by name."""
        return [item for _, item in sorted(self._items[plural].items())]

    def find(self, plural: str, name: str, namespace: str = "") -> Wire | None:
        """One object, or None."""
        return self._items[plural].get(f"{namespace}/{name}")

    def held(self) -> list[Held]:
        """Every allocation of every NeuronUltraServer."""
        return [held for item in self.all("neuronultraservers") for held in self._held_in(item)]

    def _held_in(self, item: Wire) -> tuple[Held, ...]:
        """The allocations of one NeuronUltraServer, read once for each version: a change is another dictionary."""
        name = str(item["metadata"]["name"])
        read = self._read.get(name)
        if read is not None and read[0] is item:
            return read[1]
        found = tuple(Held(name, allocation) for allocation in read_allocations(item).allocations)
        self._read[name] = item, found
        return found

    def holders(self) -> dict[str, Held]:
        """The allocation of each node, without those of replaced instances."""
        uids = {str(item["metadata"]["name"]): str(item["metadata"]["uid"]) for item in self.all("nodes")}
        return {
            node: held
            for held in self.held()
            for node in held.allocation.nodes
            if held.allocation.is_for(node, uids.get(node, ""))
        }

    def of(self, workload_uid: str) -> list[Held]:
        """The allocations of one workload, by index."""
        mine = [held for held in self.held() if held.allocation.holder == workload_uid]
        return sorted(mine, key=lambda held: (held.allocation.ultraserver_index, held.allocation.allocation_id))

    def workloads(self) -> dict[str, Wire]:
        """The workloads by UID."""
        return {str(item["metadata"]["uid"]): item for item in self.all("neuronultraserverworkloads")}

    def tags(self) -> dict[str, Tag | None]:
        """The tag of each node that publishes devices."""
        return {
            str(item["spec"]["nodeName"]): tag_on(item["spec"].get("devices") or ())
            for item in self.all("resourceslices")
            if item["spec"].get("devices")
        }

    def claim_uids(self) -> set[str]:
        """The UIDs of all claims."""
        return {str(item["metadata"]["uid"]) for item in self.all("resourceclaims")}

    def uses(self) -> dict[str, list[Wire]]:
        """The claims that are allocated on each node."""
        found: dict[str, list[Wire]] = {}
        for claim in self.all("resourceclaims"):
            allocation = (claim.get("status") or {}).get("allocation") or {}
            for pool in {str(r["pool"]) for r in (allocation.get("devices") or {}).get("results") or ()}:
                found.setdefault(pool, []).append(claim)
        return found


def is_test(held: Held) -> bool:
    """True if this is the reservation of a test, which ends for whoever may take its nodes."""
    return held.allocation.workload_namespace == TESTS


def condition(item: Wire, kind: str) -> Wire:
    """A condition of an object; empty if there is none."""
    found = [c for c in (item.get("status") or {}).get("conditions") or () if c.get("type") == kind]
    return found[0] if found else {}


def state(workload: Wire) -> str:
    """A workload's state; None before its first status."""
    return str((workload.get("status") or {}).get("state"))


def workload_uid(claim: Wire) -> str | None:
    """The workload that a claim's configuration names."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for entry in (allocation.get("devices") or {}).get("config") or ():
        uid = ((entry.get("opaque") or {}).get("parameters") or {}).get("workloadUid")
        if uid:
            return str(uid)
    return None


def parsed(text: Any) -> datetime.datetime:
    """A time as objects have it."""
    return datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))


def place(item: Wire) -> tuple[str, str]:
    """An object's namespace and name."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def template_name(workload: Wire) -> str:
    """The template that a workload requests."""
    wanted = workload["spec"].get("resourceClaimTemplate") or {}
    return str(wanted.get("name") or workload["metadata"]["name"])


def identity_of(workload: Wire) -> ObjectIdentity:
    """The identity of a workload, for joins with what it controls."""
    meta = workload["metadata"]
    return ObjectIdentity(GROUP, WORKLOAD_KIND, str(meta["namespace"]), str(meta["name"]), str(meta["uid"]))


def mode_of(template: Wire) -> int | None:
    """The number of nodes that a workload's template is for."""
    entries = template["spec"]["spec"]["devices"].get("config") or ()
    modes = [((entry.get("opaque") or {}).get("parameters") or {}).get("ultraserverMode") for entry in entries]
    return next((int(mode) for mode in modes if mode), None)


def of_template(view: View, meta: Wire, name: str) -> list[Wire]:
    """The workloads of a namespace that request this template name."""
    return [
        each
        for each in view.workloads().values()
        if each["metadata"]["namespace"] == meta["namespace"] and template_name(each) == name
    ]


def astray(view: View, pod: Wire, uid: str) -> bool:
    """True if the pod's claim was made from a foreign template with the name of the workload's."""
    for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        claim = view.find("resourceclaims", each["resourceClaimName"], pod["metadata"]["namespace"])
        entries = (claim or {}).get("spec", {}).get("devices", {}).get("config") or ()
        uids = {((entry.get("opaque") or {}).get("parameters") or {}).get("workloadUid") for entry in entries}
        if claim is not None and uid not in uids:
            return True
    return False


def has_lost_claim(view: View, pod: Wire) -> bool:
    """True if a user deleted the pod's claim: the pod cannot start again until it is deleted.

    Kubernetes creates another claim, which is not allocated, because the pod already has a node.
    """
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    namespace = pod["metadata"]["namespace"]
    for each in made:
        claim = view.find("resourceclaims", each["resourceClaimName"], namespace)
        if claim is None:
            return True
        if pod["spec"].get("nodeName") and not is_reserved_for(claim, pod):
            return True
    return False


def group_of(pod: Wire) -> str:
    """The PodGroup of a pod; empty if it has none."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def groups_in(claim: Wire) -> list[str]:
    """The PodGroups that a claim is reserved for."""
    entries = (claim.get("status") or {}).get("reservedFor") or ()
    return [str(each["name"]) for each in entries if each.get("resource") == "podgroups"]


def is_reserved_for(claim: Wire, pod: Wire) -> bool:
    """True if a claim is reserved for a pod, or for its group."""
    entries = (claim.get("status") or {}).get("reservedFor") or ()
    return any(each.get("uid") == pod["metadata"]["uid"] for each in entries) or group_of(pod) in groups_in(claim)
