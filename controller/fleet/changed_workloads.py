"""Which workloads have changed, for decisions that are kept until something changes that they depend on. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.observe.model import UltraServer, Workload


@dataclass(slots=True)
class ChangedWorkloads:
    """What has changed since the last `take`, by UID: workloads, and those whose stored reservations changed.

    A workload that is None is gone.
    """

    workloads: dict[str, Workload | None] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)

    def note_workload(self, before: Workload | None, now: Workload | None) -> None:
        """Note that a workload is replaced by another one, or by itself with other values."""
        if before is not None:
            self.workloads[before.uid] = None
        if now is not None:
            self.workloads[now.uid] = now

    def note_holders(self, before: UltraServer | None, now: UltraServer | None) -> None:
        """Note the workloads with reservations in a NeuronUltraServer that is replaced by another version."""
        for one in (before, now):
            if one is not None:
                self.holders |= {each.allocation.workload_uid for each in one.reservations}

    def take(self) -> ChangedWorkloads:
        """Return the changes, and forget them."""
        taken = ChangedWorkloads(self.workloads, self.holders)
        self.workloads, self.holders = {}, set()
        return taken
