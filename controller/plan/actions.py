"""What a plan is made of: one action is one write. Pure values; `apply` performs them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.observe.model import Starting, Suspect


@dataclass(frozen=True, slots=True)
class Action:
    """One write. `owners` are the UIDs of the workloads it is for: after a failure the rest of theirs waits."""

    owners: frozenset[str] = field(default_factory=frozenset, kw_only=True)


@dataclass(frozen=True, slots=True)
class CreateUltraServer(Action):
    """Make a NeuronUltraServer object."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UpdateTopology(Action):
    """Write spec.topology of a NeuronUltraServer, guarded by its resourceVersion."""

    name: str
    version: str
    topology: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DeleteUltraServer(Action):
    """Delete a NeuronUltraServer that has no node and no reservation."""

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

    `finalizers`, if any, are written before it: no reservation is ever without the one that keeps its object.
    """

    name: str
    version: str
    before: Mapping[str, Any]
    status: Mapping[str, Any]
    finalizers: tuple[str, ...] | None = None

    @property
    def handed_over(self) -> frozenset[str]:
        """The nodes that it opens for a workload's pods, or frees where pods of one could be."""
        before, after = _entries(self.before), _entries(self.status)
        opened = [each for name, each in after.items() if _phase(each) == "Bound" != _phase(before.get(name))]
        freed = [each for name, each in before.items() if _phase(each) == "Draining" and name not in after]
        return frozenset(str(node) for each in (*opened, *freed) for node in each.get("allocatedNodes") or [])


def _entries(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(entry.get("allocationId")): entry for entry in status.get("allocations") or []}


def _phase(entry: Mapping[str, Any] | None) -> str:
    return str(entry.get("phase")) if entry is not None else ""


@dataclass(frozen=True, slots=True)
class LabelNode(Action):
    """Set labels of a Node, if it is still the one with this UID; None removes a label."""

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
    """Make a workload's ResourceClaimTemplate."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteTemplate(Action):
    """Delete a ResourceClaimTemplate of ours."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Evict(Action):
    """Evict a pod that holds a claim on a node that is released; budgets are honoured."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class WriteWorkloadStatus(Action):
    """Write a workload's status, and tell it in an Event when its reason changed."""

    namespace: str
    name: str
    uid: str
    version: str
    before: Mapping[str, Any]
    status: Mapping[str, Any]
    warning: bool
    says_why: bool = False  # it says why nothing else is written, so it is written all the same


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a workload in this plan."""

    state: str
    reason: str
    message: str
    degraded: tuple[str, str] | None = None
    restarting: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What a workload's status keeps for later plans, beside the verdict: `outage` is a condition's value and text."""

    restarts: int = 0
    restarted_at: tuple[str, ...] = ()
    outage: tuple[bool, str] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes in their order, what becomes of each workload (by UID), and when to plan again at the latest.

    `suspects` are pods that their nodes may refuse for ever: whether they do is seen of the pods themselves.
    `starting` are workloads whose pods are to be looked at: whether they can be scheduled.
    `settled` and `settled_nodes` are the names of UltraServers and Nodes that were looked at and need no write.
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
        """The nodes that change hands, see WriteUltraServerStatus."""
        found = (each.handed_over for each in self.actions if isinstance(each, WriteUltraServerStatus))
        return frozenset(node for nodes in found for node in nodes)
