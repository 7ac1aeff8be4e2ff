"""Evidence of reservations outside NeuronUltraServers: ids on nodes, and copies in workloads. No I/O.

It follows the objects as the whole index does. Nearly always every id is known, and plans have nothing to restore.
`restoration` uses the evidence when a NeuronUltraServer was deleted by force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from controller.observe.model import PublishedNode, UltraServer, Workload
from neuron_dra.core.ultraserver import Phase, UnreadAllocation


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

    def put_published(self, node: str, before: PublishedNode | None, now: PublishedNode | None) -> None:
        """Follow a change of what a node publishes."""
        _move(self._shown, node, _bound(before), _bound(now))
        self._judge(_bound(before) | _bound(now))

    def put_workload(self, key: str, before: Workload | None, now: Workload | None) -> None:
        """Follow a change of a workload's copies."""
        _move(self._copied, key, _copies(before), _copies(now))
        self._judge(_copies(before) | _copies(now))

    def put_ultraserver(self, name: str, before: UltraServer | None, now: UltraServer | None) -> None:
        """Follow a change of an UltraServer's reservations."""
        self.unread.pop(name, None)
        if now is not None and now.unread:
            self.unread[name] = now.unread
        self._known.subtract(_ids(before))
        self._known.update(_ids(now))
        changed = {*_ids(before), *_ids(now)}
        for each in changed:
            if not self._known[each]:
                del self._known[each]
        self._judge(changed)

    def _judge(self, ids: set[str]) -> None:
        """Find out which of these ids no object has."""
        for each in ids:
            unknown = each not in self._known
            for where, found in ((self._shown, self.unknown), (self._copied, self.lost)):
                if unknown and each in where:
                    found.add(each)
                else:
                    found.discard(each)


def _bound(published: PublishedNode | None) -> set[str]:
    """Return the allocationId of a Bound tag, as a set; empty without one."""
    tag = published.tag if published else None
    return {tag.allocation_id} if tag is not None and tag.phase is Phase.BOUND else set()


def _copies(workload: Workload | None) -> set[str]:
    """Return the allocationIds in a workload's `status.groups`."""
    return {str(each["allocationId"]) for each in workload.groups} if workload else set()


def _ids(ultraserver: UltraServer | None) -> list[str]:
    """Return the allocationIds of an UltraServer's entries, unreadable ones included."""
    if ultraserver is None:
        return []
    entries = (one.entry for one in ultraserver.unread if isinstance(one.entry, Mapping))
    return [
        *(each.allocation.allocation_id for each in ultraserver.reservations),
        *(str(entry["allocationId"]) for entry in entries if entry.get("allocationId")),
    ]


def _move(found: dict[str, set[str]], value: str, before: set[str], now: set[str]) -> None:
    """Move a value from the ids of `before` to those of `now`."""
    for each in before - now:
        found[each].discard(value)
        if not found[each]:
            del found[each]
    for each in now - before:
        found.setdefault(each, set()).add(value)
