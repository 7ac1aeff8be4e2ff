"""The state of a plan in progress: its input, its limits and its decisions so far. Pure, no I/O.

The functions of this package receive the context and add their decisions to it: reservations to `holdings`, writes to
the lists of actions, times to `recheck`. Workloads are planned one after the other, so each sees the decisions for
those before it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.observe.model import ClaimUse, ClusterNode, Known, Template, Turn, Workload
from controller.plan import objects, outage, restoration
from controller.plan.actions import Action, WriteWorkloadStatus
from controller.plan.fleet_index import FleetIndex
from controller.plan.free_slots import FreeSlots
from controller.plan.holdings import Holdings
from controller.plan.quota import Quota
from neuron_dra.core.ultraserver import Phase


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a plan: waits, and numbers of nodes or restarts. Each is a flag of the controller.

    - `tag_timeout`: a node that has not tagged after this time loses its Pending reservation.
    - `starvation_threshold`: a workload that has waited for this time holds back others of its type.
    - `starvation_limit`: it does so for at most this time.
    - `node_failure_grace`: a node may be gone or not Ready for this time before a strategy acts.
    - `fault_grace`: the same for all other faults.
    - `outage_nodes`, `outage_percent`: nothing is evicted if at least this number of nodes, and more than this
      percentage, are unavailable.
    - `restart_limit`: restarts in a row, for RestartAll.
    - `max_reserved_nodes`: by a namespace without the annotation; None is no limit.
    """

    tag_timeout: datetime.timedelta = datetime.timedelta(seconds=60)
    starvation_threshold: datetime.timedelta = datetime.timedelta(minutes=10)
    starvation_limit: datetime.timedelta = datetime.timedelta(minutes=30)
    node_failure_grace: datetime.timedelta = datetime.timedelta(minutes=5)
    fault_grace: datetime.timedelta = datetime.timedelta(minutes=1)
    outage_nodes: int = 3  # nothing is evicted if at least this number and more than this percentage are unavailable
    outage_percent: int = 55
    restart_limit: int = 3  # restarts in a row, for RestartAll
    max_reserved_nodes: int | None = None  # by a namespace without the annotation; None is no limit


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class PlanningContext:
    """The state of one call of `planning.plan`.

    Actions are collected in four lists and written in this order: `before` (finalizers and templates), reservations,
    `after`, `statuses`, `last`.
    """

    index: FleetIndex
    known: Known
    now: datetime.datetime
    limits: Limits
    holdings: Holdings
    free_slots: FreeSlots
    quota: Quota
    before: list[Action] = field(default_factory=list)  # finalizers and templates, written before reservations
    after: list[Action] = field(default_factory=list)
    statuses: list[Action] = field(default_factory=list)
    last: list[Action] = field(default_factory=list)
    starving: dict[str, Workload] = field(default_factory=dict)  # by instance type
    turns: dict[tuple[str, str], Turn] = field(default_factory=dict)  # by instance type and namespace, see `queue`
    recheck: list[datetime.datetime] = field(default_factory=list)
    shared: list[ClaimUse] = field(default_factory=list)  # claims whose pods have to be read, see `claim_pods`
    outage: outage.Outage | None = None
    withdrawn: set[str] = field(default_factory=set)  # UIDs of workloads whose restart is withdrawn
    errors: dict[str, Exception] = field(default_factory=dict)  # by namespace/name or name of the object
    unrestored: restoration.Failures = field(default_factory=restoration.Failures)
    contested: Mapping[tuple[str, str], Workload] = field(default_factory=dict)
    """Which workload gets each template name that several request."""

    @classmethod
    def of(cls, index: FleetIndex, now: datetime.datetime, limits: Limits, known: Known) -> PlanningContext:
        """Return a context without decisions, except that lost reservations are restored.

        `now` is the time of the plan; every duration is measured against it.
        """
        holdings = Holdings(index)
        quota = Quota(index, limits.max_reserved_nodes, holdings)
        unrestored = restoration.restore(index, holdings, quota, now)
        found = outage.judge(index.countable, index.away, at_least=limits.outage_nodes, percent=limits.outage_percent)
        free_slots = FreeSlots(index, holdings, known.unwritable)
        contested = template_names(index.workloads, index.template_by_key, holdings)
        return cls(
            index,
            known,
            now,
            limits,
            holdings,
            free_slots,
            quota,
            outage=found,
            errors=dict(unrestored.ultraservers),
            unrestored=unrestored,
            turns=dict(known.turns),
            contested=contested,
        )

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """Every Node by name."""
        return self.index.node_by_name

    @property
    def templates(self) -> Mapping[tuple[str, str], Template]:
        """Every ResourceClaimTemplate by namespace and name."""
        return self.index.template_by_key

    def explain(self, workload: Workload, reason: str, text: str) -> None:
        """Plan the write of one condition, if it changes. The rest of the stored status stays, with its copies."""
        kind = ("Degraded", True) if workload.runs else ("Ready", False)
        status = objects.with_condition(workload, *kind, reason, text, self.now)
        if status is not None and workload.version:  # what was never read has no version, and cannot be written
            meta = (workload.namespace, workload.name, workload.uid, workload.version)
            self.statuses.append(WriteWorkloadStatus(*meta, workload.status, status, warning=True))

    def look_again(self, moment: datetime.datetime) -> None:
        """Plan again at that time, if it is in the future."""
        if moment > self.now:
            self.recheck.append(moment)


def template_names(
    workloads: Iterable[Workload], templates: Mapping[tuple[str, str], Template], holdings: Holdings
) -> dict[tuple[str, str], Workload]:
    """Return which workload gets each template name that several request, by namespace and name.

    It is the one whose template exists, else one with Bound nodes, else the oldest. A name that one workload requests
    is not in the result.
    """
    asking: dict[tuple[str, str], list[Workload]] = {}
    for each in workloads:
        asking.setdefault((each.namespace, each.template_name), []).append(each)

    def claim(workload: Workload) -> tuple[bool, bool, bool, datetime.datetime, str]:
        """Return the sort key: the workload with the best claim to its template's name is the smallest."""
        template = templates.get((workload.namespace, workload.template_name))
        bound = any(one.allocation.phase is Phase.BOUND for one in holdings.of(workload.uid))
        has_it = template is not None and template.is_of(workload)
        return not has_it, not bound, workload.deleting, workload.created, workload.ref

    return {name: min(found, key=claim) for name, found in asking.items() if len(found) > 1}


def join_texts(*texts: str) -> str:
    """Return the texts that are not empty, joined with semicolons."""
    return "; ".join(text for text in texts if text)
