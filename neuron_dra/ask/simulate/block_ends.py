"""When the capacity blocks of nodes end, for workloads that say how long they run (`spec.expectedDuration`). Pure.

The controller's settings are not known here: the default annotation, and its default of 60 minutes before the end.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.core import capacity_block, durations
from neuron_dra.core.wire import Wire

LEAD: Final = datetime.timedelta(minutes=60)


@dataclass(frozen=True, slots=True)
class NeededTime:
    """Until when a workload needs its nodes if it starts now; None if it does not say so."""

    until: datetime.datetime | None
    duration: str = ""

    @classmethod
    def by(cls, spec: Wire, now: datetime.datetime) -> NeededTime:
        """Return what a workload's spec says; a duration that the API server rejects counts as none."""
        text = str(spec.get("expectedDuration") or "")
        try:
            return cls(now + durations.parse(text), text) if text else cls(None)
        except ValueError:
            return cls(None)

    def ends_before(self, names: Iterable[str], snapshot: Snapshot, now: datetime.datetime) -> bool:
        """Return True if EC2 takes one of these nodes back before the workload ends, or may do so now."""
        until = max(now, self.until or now)
        ends = (_end(name, snapshot) for name in names)
        return any(end is not None and end - LEAD < until for end in ends)


def _end(name: str, snapshot: Snapshot) -> datetime.datetime | None:
    """Return when a node's capacity block ends, by its annotation."""
    node = snapshot.get("Node", name)
    if node is None:
        return None
    text = (node["metadata"].get("annotations") or {}).get(capacity_block.ANNOTATION)
    try:
        return capacity_block.end(str(text)) if text else None
    except ValueError:
        return None
