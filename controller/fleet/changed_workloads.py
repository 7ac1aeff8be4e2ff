"""Which workloads have changed, for decisions that are kept until something changes that they depend on. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.observe.model import Workload


@dataclass(slots=True)
class ChangedWorkloads:
    """What has changed since the last `take`, by UID: workloads, and those whose stored reservations changed.

    A workload that is None is gone.
    """

    workloads: dict[str, Workload | None] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)

    def note(self, before: Workload | None, now: Workload | None) -> None:
        """Note that a workload is replaced by another one, or by itself with other values."""
        if before is not None:
            self.workloads[before.uid] = None
        if now is not None:
            self.workloads[now.uid] = now

    def take(self) -> ChangedWorkloads:
        """Return the changes, and begin anew."""
        taken = ChangedWorkloads(self.workloads, self.holders)
        self.workloads, self.holders = {}, set()
        return taken
