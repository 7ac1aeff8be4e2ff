"""Every metric of the controller, in one list."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.model import Snapshot

PREFIX = "neuron_ultraserver"
STATES = ("Pending", "Allocating", "Allocated", "PartiallyAllocated", "Failed", "Deallocating")


class Metrics:
    """The metrics, each set through a method named after what happened."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self._leader = Gauge(f"{PREFIX}_leader", "1 while this replica is the leader", registry=r)
        self._workloads = Gauge(f"{PREFIX}_workloads", "Workloads by state", ["state"], registry=r)
        self._servers = Gauge(f"{PREFIX}_ultraservers", "UltraServers, Ready or Degraded", ["state"], registry=r)
        self._nodes = Gauge(
            f"{PREFIX}_nodes", "Nodes of UltraServers: free, reserved, or neither", ["state"], registry=r
        )
        self._writes = Counter(f"{PREFIX}_writes", "Writes, by action and result", ["action", "result"], registry=r)
        self._answers = Counter(
            f"{PREFIX}_grpc_answers", "Answers of the gRPC service, by method and code", ["method", "code"], registry=r
        )
        self._plans = Histogram(
            f"{PREFIX}_plan_seconds",
            "Time to make one plan",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
            registry=r,
        )
        self._allocations = Histogram(
            f"{PREFIX}_time_to_allocated_seconds",
            "From a workload's creation to its first state Allocated",
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200),
            registry=r,
        )

    def leading(self, leads: bool) -> None:
        """This replica is the leader, or is not."""
        self._leader.set(1 if leads else 0)

    def planned(self, seconds: float, snapshot: Snapshot) -> None:
        """A plan was made of this snapshot."""
        self._plans.observe(seconds)
        states = Tally(str(each.status.get("state") or "Pending") for each in snapshot.workloads)
        for state in STATES:
            self._workloads.labels(state).set(states[state])
        servers = Tally(str(each.status.get("state")) for each in snapshot.ultraservers)
        for state in ("Ready", "Degraded"):
            self._servers.labels(state).set(servers[state])
        total = sum(int(each.status.get("nodeCount") or 0) for each in snapshot.ultraservers)
        free = sum(int(each.status.get("freeNodeCount") or 0) for each in snapshot.ultraservers)
        reserved = sum(len(r.allocation.nodes) for each in snapshot.ultraservers for r in each.reservations)
        for name, number in (("free", free), ("reserved", reserved), ("other", max(0, total - free - reserved))):
            self._nodes.labels(name).set(number)

    def wrote(self, action: str, result: str) -> None:
        """A write was made, or refused."""
        self._writes.labels(action, result).inc()

    def answered(self, method: str, code: str) -> None:
        """The gRPC service answered a call."""
        self._answers.labels(method, code).inc()

    def allocated(self, seconds: float) -> None:
        """A workload became Allocated for the first time, so long after its creation."""
        self._allocations.observe(seconds)
