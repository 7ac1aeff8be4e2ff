"""The limits of a plan. Each is a flag of the controller."""

from __future__ import annotations

import datetime
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a plan: waits, and numbers of nodes or restarts.

    - `tag_timeout`: a node that has not tagged after this time loses its Pending reservation.
    - `starvation_threshold`: a workload that has waited for this time holds back others of its type.
    - `starvation_limit`: it does so for at most this time.
    - `node_failure_grace`: a node may be gone or not Ready for this time before a strategy acts.
    - `fault_grace`: the same for all other faults. Both are longer than the time in which a silent watch is noticed,
      150 s: nodes that are well again must not be left because nobody has seen it.
    - `outage_nodes`, `outage_percent`: nothing is evicted if at least this number of nodes, and more than this
      percentage, are unavailable.
    - `block_lead`: EC2 may take instances back this long before their capacity block ends.
    - `block_notice`: a workload is told this long before that.
    - `restart_limit`: restarts in a row, for RestartAll.
    - `max_reserved_nodes`: by a namespace without the annotation; None is no limit.
    - `max_waiting_workloads`: those of one namespace that the controller looks for nodes for.
    - `spares`: how many groups of four nodes are kept for groups that must move, by instance type.
    """

    tag_timeout: datetime.timedelta = datetime.timedelta(seconds=60)
    starvation_threshold: datetime.timedelta = datetime.timedelta(minutes=10)
    starvation_limit: datetime.timedelta = datetime.timedelta(minutes=30)
    node_failure_grace: datetime.timedelta = datetime.timedelta(minutes=5)
    fault_grace: datetime.timedelta = datetime.timedelta(minutes=3)
    outage_nodes: int = 3
    outage_percent: int = 55
    block_lead: datetime.timedelta = datetime.timedelta(minutes=60)
    block_notice: datetime.timedelta = datetime.timedelta(minutes=30)
    restart_limit: int = 3
    max_reserved_nodes: int | None = None
    max_waiting_workloads: int = 1000
    spares: tuple[tuple[str, int], ...] = ()

    @property
    def told_before_end(self) -> datetime.timedelta:
        """How long before the end of a capacity block workloads get the condition EndsSoon, and their pods an Event."""
        return self.block_lead + self.block_notice


DEFAULT_LIMITS = Limits()
