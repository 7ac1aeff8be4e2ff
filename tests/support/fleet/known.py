"""Actions of the fleet that the invariants take into account."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from neuron_dra.core.wire import Wire

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
STRANGERS: Final = "strangers"
"""The namespace of forgeries: the controller has made nothing there."""
WITHOUT_SPEC_FIELDS: Final = "one without some fields of specs"
"""A CRD of ours that keeps all that the controller writes."""


@dataclass(frozen=True, slots=True)
class Known:
    """Actions of the fleet that the invariants take into account."""

    budgets: bool = False  # a budget may forbid evictions
    taken_templates: frozenset[str] = frozenset()  # namespace/name of templates of others
    jobs_of: Mapping[str, str] = field(default_factory=dict)  # job name: UID of its workload
    closed: frozenset[str] = frozenset()
    """Nodes with a container whose claim was deleted by force, until it ends; and those that took a claim over that was
    on an earlier instance of their name, until they are rebooted: nothing shows that it does not run."""
    unwritable: frozenset[str] = frozenset()  # NeuronUltraServers whose status a policy rejects
    actors: frozenset[str] = frozenset()  # who takes part
    refused: frozenset[str] = frozenset()  # kind/namespace/name of objects whose status a policy refuses
    crd: str = "ours"  # or which other CRD is installed: then the controller must only do no harm
    crd_since: datetime.datetime = EPOCH  # when it was installed
    limits: frozenset[str] = frozenset()  # namespaces with a limit of nodes
    unlimited: frozenset[str] = frozenset()  # namespaces whose limit was taken away
    queue_required: frozenset[str] = frozenset()  # namespaces, by their label
    now: datetime.datetime = EPOCH

    def refuses(self, item: Wire) -> bool:
        """A policy rejects the status of this object."""
        meta = item["metadata"]
        return f"{item['kind']}/{meta['namespace']}/{meta['name']}" in self.refused
