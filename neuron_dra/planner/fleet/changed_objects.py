"""Which objects have changed, for decisions that are kept until something changes that they depend on. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from neuron_dra.planner.observed.model import ClaimUse, UltraServer, Workload


@dataclass(slots=True)
class ChangedObjects:
    """What has changed since the last `take`.

    - `workloads`: by UID; one that is None is gone.
    - `holders`: UIDs of the workloads whose stored reservations changed.
    - `users`: namespace and name of the workloads whose claims changed.
    - `templates`: namespace and name; `namespaces`: names.
    """

    workloads: dict[str, Workload | None] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)
    users: set[tuple[str, str]] = field(default_factory=set)
    templates: set[tuple[str, str]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)

    def note_workload(self, before: Workload | None, after: Workload | None) -> None:
        """Note that a workload is replaced by another one, or by itself with other values."""
        if before is not None:
            self.workloads[before.uid] = None
        if after is not None:
            self.workloads[after.uid] = after

    def note_holders(self, before: UltraServer | None, after: UltraServer | None) -> None:
        """Note the workloads with reservations in a NeuronUltraServer that is replaced by another version."""
        for ultraserver in (before, after):
            if ultraserver is not None:
                self.holders |= {reservation.allocation.holder for reservation in ultraserver.reservations}

    def note_users(self, before: ClaimUse | None, after: ClaimUse | None) -> None:
        """Note the workloads of a claim that is replaced by another version."""
        for use in (before, after):
            if use is not None and use.workload_id is not None:
                self.users.add((use.namespace, use.workload_id))

    def take(self) -> ChangedObjects:
        """Return the changes, and forget them."""
        taken = ChangedObjects(self.workloads, self.holders, self.users, self.templates, self.namespaces)
        self.workloads, self.holders, self.users = {}, set(), set()
        self.templates, self.namespaces = set(), set()
        return taken
