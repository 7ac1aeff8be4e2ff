"""The actions of a plan, each of them one write. Pure values; `controller.apply` performs them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.observe.model import Starting, Suspect


@dataclass(frozen=True, slots=True)
class Action:
    """One write. `owners` are the UIDs of its workloads: if it fails, their later writes wait for the next plan."""

    owners: frozenset[str] = field(default_factory=frozenset, kw_only=True)


@dataclass(frozen=True, slots=True)
class CreateUltraServer(Action):
    """Create a NeuronUltraServer."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UpdateTopology(Action):
    """Write spec.topology of a NeuronUltraServer, guarded by its resourceVersion."""

    name: str
    version: str
    topology: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DeleteUltraServer(Action):
    """Delete a NeuronUltraServer without nodes and reservations."""

    name: str
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class SetUltraServerFinalizers(Action):
    """Write the finalizers of a NeuronUltraServer, guarded by its resourceVersion."""

    name: str
    version: str
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteUltraServerStatus(Action):
    """Write the status of a NeuronUltraServer, reservations included, guarded by its resourceVersion.

    `finalizers`, if any, are written first, so that no reservation is in an object without our finalizer.
    """

    name: str
    version: str
    before: Mapping[str, Any]
    status: Mapping[str, Any]
    finalizers: tuple[str, ...] | None = None

    @property
    def handed_over(self) -> frozenset[str]:
        """The nodes that it opens for a workload's pods, and those that it frees after Draining."""
        before, after = _entries(self.before), _entries(self.status)
        opened = [each for name, each in after.items() if _phase(each) == "Bound" != _phase(before.get(name))]
        freed = [each for name, each in before.items() if _phase(each) == "Draining" and name not in after]
        return frozenset(str(node) for each in (*opened, *freed) for node in each.get("allocatedNodes") or [])


def _entries(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the allocations of a stored status, by allocationId."""
    return {str(entry.get("allocationId")): entry for entry in status.get("allocations") or []}


def _phase(entry: Mapping[str, Any] | None) -> str:
    """Return the phase of an allocation, empty without one."""
    return str(entry.get("phase")) if entry is not None else ""


@dataclass(frozen=True, slots=True)
class LabelNode(Action):
    """Set labels of the Node with this UID; None removes a label."""

    name: str
    uid: str
    labels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class SetFinalizers(Action):
    """Write a workload's finalizers, guarded by its resourceVersion."""

    namespace: str
    name: str
    version: str
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CreateTemplate(Action):
    """Create a workload's ResourceClaimTemplate."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteTemplate(Action):
    """Delete a workload's ResourceClaimTemplate."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Evict(Action):
    """Evict a pod with a claim on a node that is being released, within its disruption budget."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class WriteWorkloadStatus(Action):
    """Write a workload's status, and post an Event if its reason changed."""

    namespace: str
    name: str
    uid: str
    version: str
    before: Mapping[str, Any]
    status: Mapping[str, Any]
    warning: bool
    explains_stop: bool = False  # it explains why the controller stopped, so it is written although others are not


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a plan for a workload, as its status shows it: `degraded` is a reason and a message."""

    state: str
    reason: str
    message: str
    degraded: tuple[str, str] | None = None
    restarting: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What a workload's status keeps for later plans; `outage` is value and message of the condition Outage."""

    restarts: int = 0
    restarted_at: tuple[str, ...] = ()
    outage: tuple[bool, str] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes in their order, the verdict on each workload (by UID), and when to plan again at the latest (`recheck`).

    `suspects` are pods that their nodes may reject permanently; the pods themselves show whether they do. `starting`
    are workloads whose pods are checked: can they be scheduled? `settled` and `settled_nodes` are the names of
    UltraServers and Nodes that need no write.
    """

    actions: tuple[Action, ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    suspects: tuple[Suspect, ...] = ()
    starting: tuple[Starting, ...] = ()
    recheck: datetime.datetime | None = None
    settled: frozenset[str] = frozenset()
    settled_nodes: frozenset[str] = frozenset()

    @property
    def handed_over(self) -> frozenset[str]:
        """The nodes that the plan opens or frees, see WriteUltraServerStatus."""
        found = (each.handed_over for each in self.actions if isinstance(each, WriteUltraServerStatus))
        return frozenset(node for nodes in found for node in nodes)
