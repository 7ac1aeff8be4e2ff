"""The actions of a plan, each of them one write. Pure values; `controller.apply` performs them.

An action has everything that its request needs, so performing it takes no decision. `version` is the resourceVersion
that the plan has seen: if the object has changed since, the API server rejects the write, and the next plan decides
again. Deletions and evictions are guarded by the UID instead.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.planner.decisions.fair_share import FairShare
from neuron_dra.planner.decisions.reasons import WAITS_FOR_NODES, Reason
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.observed.model import (
    EXPIRED,
    IN_USE,
    ClaimUse,
    Meeting,
    Pods,
    Reservation,
    Starting,
    Suspect,
    Turn,
    Workload,
    condition,
)


@dataclass(frozen=True, slots=True)
class Action:
    """One write to the API server.

    `owners` are the UIDs of the workloads that the write is for. If it fails, their later writes wait for the next
    plan; writes of other workloads continue. Empty: it concerns no workload.
    """

    owners: frozenset[str] = field(default_factory=frozenset, kw_only=True)


@dataclass(frozen=True, slots=True)
class CreateUltraServer(Action):
    """Create the NeuronUltraServer `body`."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UpdateTopology(Action):
    """Write spec.topology of a NeuronUltraServer, guarded by its resourceVersion.

    `topology` has one entry for each node.
    """

    name: str
    version: str
    topology: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DeleteUltraServer(Action):
    """Delete a NeuronUltraServer without nodes and reservations.

    Guarded by UID and resourceVersion: a reservation that was made since then prevents it.
    """

    name: str
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class SetUltraServerFinalizers(Action):
    """Write all finalizers of a NeuronUltraServer, guarded by its resourceVersion."""

    name: str
    version: str
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteUltraServerStatus(Action):
    """Write the status of a NeuronUltraServer, reservations included, guarded by its resourceVersion.

    - `before`, `status`: the stored status and the whole new one.
    - `finalizers`: written first unless None, so that no reservation is in an object without our finalizer.
    - `added`: the reservations that are not stored yet.
    """

    name: str
    version: str
    before: Mapping[str, Any]
    status: Mapping[str, Any]
    finalizers: tuple[str, ...] | None = None
    added: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelNode(Action):
    """Set labels of a Node; None removes a label. The UID prevents labels on a recreated Node of the same name."""

    name: str
    uid: str
    labels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class SetFinalizers(Action):
    """Write all finalizers of a workload, guarded by its resourceVersion."""

    namespace: str
    name: str
    version: str
    finalizers: tuple[str, ...]

    @classmethod
    def of(cls, workload: Workload, finalizers: tuple[str, ...]) -> SetFinalizers:
        """Return the write of a workload's finalizers."""
        owners = frozenset({workload.uid})
        return cls(workload.namespace, workload.name, workload.version, finalizers, owners=owners)


@dataclass(frozen=True, slots=True)
class CreateTemplate(Action):
    """Create the ResourceClaimTemplate `body`, from which the pods of a workload get their claims."""

    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteTemplate(Action):
    """Delete a workload's ResourceClaimTemplate, guarded by its UID; existing claims stay."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Evict(Action):
    """Evict a pod with a claim on a node that is being released.

    It uses the Eviction API, which honors PodDisruptionBudgets: a rejected eviction is tried again.
    """

    namespace: str
    name: str
    uid: str


def takes_back(stored: Mapping[str, Any], state: str) -> bool:
    """Return True if a state says less than a stored status: the workload waits, or is not Allocated any more."""
    return state == State.PENDING or stored.get("state") == State.ALLOCATED != state


@dataclass(frozen=True, slots=True)
class WriteWorkloadStatus(Action):
    """Write a workload's status, and post an Event if its reason changed.

    - `before`, `status`: the stored status and the whole new one.
    - `warning`: the Event is a Warning.
    - `explains_stop`: it says why the controller has stopped, so it is written although other actions are not.
    - `told`: the pods that get an Event, because the condition EndsSoon becomes True.
    """

    namespace: str
    name: str
    uid: str
    version: str
    before: Mapping[str, Any]
    status: Mapping[str, Any]
    warning: bool
    explains_stop: bool = False
    told: Pods = ()

    @property
    def takes_back(self) -> bool:
        """True if the workload waits from now on, or is not Allocated any more."""
        return takes_back(self.before, str(self.status.get("state")))

    @property
    def expires(self) -> frozenset[str]:
        """The nodes of the workload if this write says that it has expired: from then on they are released."""
        if condition(self.before, IN_USE).get("reason") == EXPIRED:
            return frozenset()
        if condition(self.status, IN_USE).get("reason") != EXPIRED:
            return frozenset()
        groups = self.before.get("groups") or []
        return frozenset(str(node) for group in groups for node in group.get("nodes") or [])

    @classmethod
    def of(
        cls,
        workload: Workload,
        status: Mapping[str, Any],
        *,
        warning: bool,
        explains_stop: bool = False,
        owners: frozenset[str] = frozenset(),
    ) -> WriteWorkloadStatus:
        """Return the write of a workload's status."""
        meta = (workload.namespace, workload.name, workload.uid, workload.version, workload.status)
        return cls(*meta, status, warning=warning, explains_stop=explains_stop, owners=owners)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a plan for a workload, as its status shows it.

    - `state`: one of `State`, or the stored one.
    - `reason`, `message`: of the condition Ready.
    - `degraded`: reason and message of the condition Degraded; None if it is False.
    - `restarting`: `status.restarting` while RestartAll releases the workload: since, reason and message.
    """

    state: str
    reason: str
    message: str
    degraded: tuple[str, str] | None = None
    restarting: Mapping[str, str] | None = None

    @property
    def is_healthy(self) -> bool:
        """True if the workload has all that it requests, without faults."""
        return self.state == State.ALLOCATED and self.degraded is None

    @property
    def waits_for_nodes(self) -> bool:
        """True if the workload waits for nodes that tests may have."""
        degraded = self.degraded[0] if self.degraded is not None else ""
        return self.state != State.DEALLOCATING and not WAITS_FOR_NODES.isdisjoint((self.reason, degraded))


WAITING_AT_MOST: Final = 64
"""The waiting workloads, the first in the queue, that something is done for besides their plan."""


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """Groups that a waiting workload would take if a test of them had passed: type, least size, and how recently."""

    instance_type: str
    size: int
    within: datetime.timedelta


@dataclass(frozen=True, slots=True)
class WaitingWorkloads:
    """Workloads that wait, with their verdicts by UID, in the order of the queue. What follows from it costs no more.

    There are at most WAITING_AT_MOST of each, and as many of each namespace as of the others: its first ones.

    - `for_nodes`: those that wait for nodes, or whose nodes are chosen and not stored; no tests.
    - `split`: those whose place is scattered over the fleet.
    - `wanted`: what those would take that wait for a test.
    """

    for_nodes: dict[str, Verdict] = field(default_factory=dict)
    split: dict[str, Verdict] = field(default_factory=dict)
    wanted: dict[WantedGroup, None] = field(default_factory=dict)
    _shares: dict[str, FairShare[Any]] = field(default_factory=dict, repr=False, compare=False)

    def _keep(self, name: str, key: Any, namespace: str, value: Any) -> None:
        """Put a value into one of the dictionaries, if it is the namespace's turn."""
        chosen: dict[Any, Any] = getattr(self, name)
        if key in chosen:
            return
        share = self._shares.setdefault(name, FairShare(WAITING_AT_MOST))
        is_admitted, replaced = share.admits(key, namespace)
        for other in replaced:
            del chosen[other]
        if is_admitted:
            chosen[key] = value

    def note(self, workload: Workload, verdict: Verdict, *, is_being_placed: bool) -> None:
        """Note the verdict about the next workload in the queue."""
        if verdict.reason == Reason.CAPACITY_SPLIT:
            self._keep("split", workload.uid, workload.namespace, verdict)
        if workload.target is not None or workload.deleting:
            return
        if is_being_placed or verdict.waits_for_nodes:
            self._keep("for_nodes", workload.uid, workload.namespace, verdict)
        within = workload.qualified_within
        if verdict.reason == Reason.NOT_QUALIFIED and within:
            group = WantedGroup(workload.instance_type, workload.size, within)
            self._keep("wanted", group, workload.namespace, None)


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision about a workload that changes no reservation.

    - `reads`: everything that it depends on besides the time; the decision holds while that is the same.
    - `since`: when it was made; `rechecks`: the times at which it may be another one.
    - `actions`: the write of its status, if that has not been made.
    - `starving`, `starting`, `meeting`: as in Step.
    """

    reads: tuple[object, ...]
    since: datetime.datetime
    rechecks: tuple[datetime.datetime, ...]
    verdict: Verdict
    actions: tuple[Action, ...] = ()
    starving: bool = False
    starting: Starting | None = None
    meeting: Meeting | None = None

    def holds(self, reads: tuple[object, ...] | None, now: datetime.datetime) -> bool:
        """Return True if nothing that it depends on has changed since; never if the clock was set back."""
        return self.reads == reads and self.since <= now and all(now < moment for moment in self.rechecks)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a plan leaves to the next one, so that the cost of that follows what has changed meanwhile.

    - `version`: that of the index which was planned.
    - `decided`: by workload UID, the decisions that hold until something they depend on changes.
    - `open`, `open_nodes`: names of UltraServers and Nodes that needed a write. The others need none until they change.
    - `spares`: the UltraServers with spares.
    """

    version: int = -1
    decided: Mapping[str, Decided] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    open_nodes: frozenset[str] = frozenset()
    spares: frozenset[str] = frozenset()


NOTHING_KEPT: Final = Kept()
"""Before the first plan: everything is looked at."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a workload's status keeps for later plans.

    - `restarts`: the number of restarts so far.
    - `restarted_at`: start times of the restarts in a row, RFC 3339, oldest first.
    - `outage`: value and message of the condition Outage; None if the workload has none.
    - `in_use`: value, reason and message of the condition InUse; None if the workload has none.
    - `ends_soon`: those of the condition EndsSoon; None if no end of a capacity block is known.
    - `unkept`: fields of its spec that the API server drops, for the condition SpecIncomplete.
    """

    restarts: int = 0
    restarted_at: tuple[str, ...] = ()
    outage: tuple[bool, str] | None = None
    in_use: tuple[bool, str, str] | None = None
    ends_soon: tuple[bool, str, str] | None = None
    unkept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesToRead:
    """Nodes of a namespace's workload that may change hands only after a read of the claims on them.

    `most_age`: how old that read may be; None if it only has to follow what the nodes publish.
    """

    namespace: str
    nodes: tuple[str, ...]
    most_age: datetime.timedelta | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of planning.

    - `actions`: the writes, in the order in which they must be made.
    - `verdicts`: by workload UID; `waiting`: the first of those that wait.
    - `suspects`: pods that their nodes may reject permanently; the pods themselves show whether they do.
    - `starting`: workloads whose pods are checked: can they be scheduled?
    - `shared`: claims that are reserved for something that is no pod; which pods use them must be read.
    - `to_read`: nodes that change hands, or do so once their claims were read.
    - `meetings`: the pod with rank 0 of each workload, which its Service follows.
    - `recheck`: when to plan again at the latest, even if nothing changes.
    - `errors`: of objects that could not be planned, by namespace/name or name.
    - `beyond_limit`: the UIDs of workloads that `waiting_limit` keeps from being decided.
    - `turns`: by instance type and namespace, which namespaces hold others back, for the next plan (`turns`).
    - `kept`: what it leaves to the next plan of the same index.
    """

    actions: tuple[Action, ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    waiting: WaitingWorkloads = field(default_factory=WaitingWorkloads)
    suspects: tuple[Suspect, ...] = ()
    starting: tuple[Starting, ...] = ()
    shared: tuple[ClaimUse, ...] = ()
    to_read: tuple[NodesToRead, ...] = ()
    meetings: tuple[Meeting, ...] = ()
    recheck: datetime.datetime | None = None
    kept: Kept = NOTHING_KEPT
    errors: Mapping[str, Exception] = field(default_factory=dict)
    turns: Mapping[tuple[str, str], Turn] = field(default_factory=dict)
    beyond_limit: frozenset[str] = frozenset()
