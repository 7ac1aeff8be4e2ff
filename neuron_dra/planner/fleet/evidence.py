"""Evidence of reservations outside NeuronUltraServers: ids on nodes, and copies in workloads. No I/O.

It follows the objects as the whole index does. Nearly always every id is known, and plans have nothing to restore.
`restoration` uses the evidence when a NeuronUltraServer was deleted by force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from neuron_dra.core.ultraserver import Phase, UnreadAllocation
from neuron_dra.planner.observed.model import PublishedNode, UltraServer, Workload


class Evidence:
    """Which allocationIds are known, and where the others are.

    - `unread`: by UltraServer, the entries that cannot be read, or not yet.
    - `unknown`: ids that nodes show as Bound and that no object has.
    - `lost`: ids in workloads' copies that no object has.

    The `put_*` methods take the old and the new value of an object; None means that it does not exist.
    """

    def __init__(self) -> None:
        self.unread: dict[str, tuple[UnreadAllocation, ...]] = {}
        self.unknown: set[str] = set()
        self.lost: set[str] = set()
        self._known: Counter[str] = Counter()
        self._shown: dict[str, set[str]] = {}  # id -> nodes
        self._copied: dict[str, set[str]] = {}  # id -> keys of workloads

    def nodes_of(self, allocation_id: str) -> list[str]:
        """Return the nodes that show an allocationId as Bound."""
        return sorted(self._shown.get(allocation_id, ()))

    def workloads_of(self, allocation_id: str) -> list[str]:
        """Return the keys of the workloads that have a copy of a reservation."""
        return sorted(self._copied.get(allocation_id, ()))

    def put_published(self, node: str, before: PublishedNode | None, after: PublishedNode | None) -> None:
        """Follow a change of what a node publishes."""
        _move(self._shown, node, _bound(before), _bound(after))
        self._judge(_bound(before) | _bound(after))

    def put_workload(self, key: str, before: Workload | None, after: Workload | None) -> None:
        """Follow a change of a workload's copies."""
        _move(self._copied, key, _copies(before), _copies(after))
        self._judge(_copies(before) | _copies(after))

    def put_ultraserver(self, name: str, before: UltraServer | None, after: UltraServer | None) -> None:
        """Follow a change of an UltraServer's reservations."""
        self.unread.pop(name, None)
        if after is not None and after.unread:
            self.unread[name] = after.unread
        self._known.subtract(_ids(before))
        self._known.update(_ids(after))
        changed = {*_ids(before), *_ids(after)}
        for allocation_id in changed:
            if not self._known[allocation_id]:
                del self._known[allocation_id]
        self._judge(changed)

    def _judge(self, ids: set[str]) -> None:
        """Find out which of these ids no object has."""
        for allocation_id in ids:
            unknown = allocation_id not in self._known
            for sources_by_id, ids_without_object in ((self._shown, self.unknown), (self._copied, self.lost)):
                if unknown and allocation_id in sources_by_id:
                    ids_without_object.add(allocation_id)
                else:
                    ids_without_object.discard(allocation_id)


def _bound(published: PublishedNode | None) -> set[str]:
    """Return the allocationId of a Bound tag, as a set; empty without one."""
    tag = published.tag if published else None
    return {tag.allocation_id} if tag is not None and tag.phase is Phase.BOUND else set()


def _copies(workload: Workload | None) -> set[str]:
    """Return the allocationIds in a workload's `status.groups`."""
    return {str(record["allocationId"]) for record in workload.groups} if workload else set()


def _ids(ultraserver: UltraServer | None) -> list[str]:
    """Return the allocationIds of an UltraServer's entries, unreadable ones included."""
    if ultraserver is None:
        return []
    entries = (unread_entry.entry for unread_entry in ultraserver.unread if isinstance(unread_entry.entry, Mapping))
    return [
        *(reservation.allocation.allocation_id for reservation in ultraserver.reservations),
        *(str(entry["allocationId"]) for entry in entries if entry.get("allocationId")),
    ]


def _move(sources_by_id: dict[str, set[str]], source: str, before: set[str], after: set[str]) -> None:
    """Move a node, or a workload, from the ids of `before` to those of `after`."""
    for allocation_id in before - after:
        sources_by_id[allocation_id].discard(source)
        if not sources_by_id[allocation_id]:
            del sources_by_id[allocation_id]
    for allocation_id in after - before:
        sources_by_id.setdefault(allocation_id, set()).add(source)
