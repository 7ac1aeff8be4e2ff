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

from neuron_dra.core.ultraserver import Allocation
from neuron_dra.planner.observed.model import Reservation, UltraServer


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
        self.reserved += sign * sum(len(reservation.allocation.nodes) for reservation in ultraserver.reservations)


def _number(status: Mapping[str, Any], field: str) -> int:
    """Return a whole number of a status, 0 without one."""
    number = status.get(field)
    return number if isinstance(number, int) else 0


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
        return [
            reservation for reservations in self._held.get(workload_uid, {}).values() for reservation in reservations
        ]

    def entries(self, node: str) -> int:
        """Return how many stored reservations a node is in, unreadable ones included."""
        return self._entries[node]

    def nodes_of_namespace(self, namespace: str) -> int:
        """Return how many nodes the workloads of a namespace have; of two reservations for one index, one counts."""
        return self._nodes_of[namespace]

    def put(self, ultraserver_name: str, before: UltraServer | None, after: UltraServer | None) -> set[str]:
        """Follow a change of a NeuronUltraServer; return its reserved nodes, before and after."""
        if before is not None:
            for uid in {reservation.allocation.holder for reservation in before.reservations}:
                take(self._held, uid, ultraserver_name)
            self._count(before, -1)
        if after is not None:
            for reservation in after.reservations:
                by_ultraserver = self._held.setdefault(reservation.allocation.holder, {})
                by_ultraserver[ultraserver_name] = (*by_ultraserver.get(ultraserver_name, ()), reservation)
            self._count(after, 1)
        return {node for ultraserver in (before, after) if ultraserver is not None for node in nodes_in(ultraserver)}

    def _count(self, ultraserver: UltraServer, sign: int) -> None:
        """Add the reservations of an UltraServer to all sums; with `sign` -1, subtract them."""
        self.totals.count(ultraserver, sign)
        for reservation in ultraserver.reservations:
            self._count_slot(reservation.allocation, sign)
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
        slot_sizes = slots.setdefault(allocation.ultraserver_index, [])
        before = max(slot_sizes, default=0)
        if sign > 0:
            bisect.insort(slot_sizes, allocation.node_count)
        else:
            slot_sizes.remove(allocation.node_count)
        self._nodes_of[allocation.workload_namespace] += max(slot_sizes, default=0) - before
        if not slot_sizes:
            take(self._slots, allocation.workload_uid, allocation.ultraserver_index)
        if not self._nodes_of[allocation.workload_namespace]:
            del self._nodes_of[allocation.workload_namespace]


def nodes_in(ultraserver: UltraServer) -> list[str]:
    """Return the nodes of each entry of an UltraServer, unreadable ones included."""
    node_names = [node for reservation in ultraserver.reservations for node in reservation.allocation.nodes]
    return node_names + [node for unread_entry in ultraserver.unread for node in unread_entry.nodes]


def take(mapping: dict[Any, dict[Any, Any]], first: Any, second: Any) -> None:
    """Remove an entry from a dict of dicts, and an inner dict that becomes empty."""
    del mapping[first][second]
    if not mapping[first]:
        del mapping[first]


def put(mapping: dict[Any, Any], key: Any, value: Any) -> None:
    """Set a value, or remove the key if the value is None."""
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value
