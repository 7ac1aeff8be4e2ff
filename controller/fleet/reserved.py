"""The stored reservations of all NeuronUltraServers, by workload, node and namespace. No I/O.

`FleetIndex` has one of these. Every sum is updated with each change, so reading it costs the same for any number of
nodes.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from controller.observe.model import Reservation, UltraServer
from neuron_dra.core.ultraserver import Allocation


@dataclass(slots=True)
class Totals:
    """Sums over the stored status of all NeuronUltraServers, for metrics.

    - `states`: objects by `status.state`.
    - `nodes`, `free`, `reserved`: numbers of nodes.
    """

    states: Counter[str]
    nodes: int = 0
    free: int = 0
    reserved: int = 0

    def count(self, ultraserver: UltraServer, sign: int) -> None:
        """Add an UltraServer; with `sign` -1, subtract it."""
        status = ultraserver.status
        self.states[str(status.get("state"))] += sign
        self.nodes += sign * _number(status, "nodeCount")
        self.free += sign * _number(status, "freeNodeCount")
        self.reserved += sign * sum(len(each.allocation.nodes) for each in ultraserver.reservations)


def _number(status: Mapping[str, Any], name: str) -> int:
    """Return a whole number of a status, 0 without one."""
    value = status.get(name)
    return value if isinstance(value, int) else 0


class Reserved:
    """The stored reservations; `put` replaces those of one NeuronUltraServer.

    Unreadable entries count for their nodes (`entries`), but for no workload and no namespace.
    """

    def __init__(self) -> None:
        self.totals = Totals(Counter())
        self._held: dict[str, dict[str, tuple[Reservation, ...]]] = {}  # by workload UID, by UltraServer
        self._entries: Counter[str] = Counter()  # reservations by node
        self._slots: dict[str, dict[int, list[int]]] = {}  # workload UID, index: sizes of its reservations
        self._nodes_of: Counter[str] = Counter()  # by namespace of the workloads

    @property
    def holders(self) -> Collection[str]:
        """The holders of all reservations (`Allocation.holder`)."""
        return self._held.keys()

    def held(self, workload_uid: str) -> list[Reservation]:
        """Return the stored reservations of a workload, in no order."""
        return [each for found in self._held.get(workload_uid, {}).values() for each in found]

    def entries(self, node: str) -> int:
        """Return how many stored reservations a node is in, unreadable ones included."""
        return self._entries[node]

    def nodes_of_namespace(self, namespace: str) -> int:
        """Return how many nodes the workloads of a namespace have; of two reservations for one index, one counts."""
        return self._nodes_of[namespace]

    def put(self, name: str, before: UltraServer | None, after: UltraServer | None) -> set[str]:
        """Follow a change of a NeuronUltraServer; return its reserved nodes, before and after."""
        if before is not None:
            for uid in {each.allocation.holder for each in before.reservations}:
                take(self._held, uid, name)
            self._count(before, -1)
        if after is not None:
            for each in after.reservations:
                held = self._held.setdefault(each.allocation.holder, {})
                held[name] = (*held.get(name, ()), each)
            self._count(after, 1)
        return {node for one in (before, after) if one is not None for node in nodes_in(one)}

    def _count(self, ultraserver: UltraServer, sign: int) -> None:
        """Add the reservations of an UltraServer to all sums; with `sign` -1, subtract them."""
        self.totals.count(ultraserver, sign)
        for each in ultraserver.reservations:
            self._count_slot(each.allocation, sign)
        for node in nodes_in(ultraserver):
            self._entries[node] += sign
            if not self._entries[node]:
                del self._entries[node]

    def _count_slot(self, allocation: Allocation, sign: int) -> None:
        """Count a reservation's nodes for its namespace, once with others for the same index of its workload.

        A tag alone charges no namespace: a node may show that of any workload.
        """
        if allocation.only_shown:
            return
        slots = self._slots.setdefault(allocation.workload_uid, {})
        found = slots.setdefault(allocation.ultraserver_index, [])
        before = max(found, default=0)
        if sign > 0:
            bisect.insort(found, allocation.node_count)
        else:
            found.remove(allocation.node_count)
        self._nodes_of[allocation.workload_namespace] += max(found, default=0) - before
        if not found:
            take(self._slots, allocation.workload_uid, allocation.ultraserver_index)
        if not self._nodes_of[allocation.workload_namespace]:
            del self._nodes_of[allocation.workload_namespace]


def nodes_in(ultraserver: UltraServer) -> list[str]:
    """Return the nodes of each entry of an UltraServer, unreadable ones included."""
    found = [node for each in ultraserver.reservations for node in each.allocation.nodes]
    return found + [node for each in ultraserver.unread for node in each.nodes]


def take(found: dict[Any, dict[Any, Any]], first: Any, second: Any) -> None:
    """Remove an entry from a dict of dicts, and an inner dict that becomes empty."""
    del found[first][second]
    if not found[first]:
        del found[first]


def put(found: dict[Any, Any], key: Any, value: Any) -> None:
    """Set a value, or remove the key if the value is None."""
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value
