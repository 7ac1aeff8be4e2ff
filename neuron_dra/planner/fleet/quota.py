"""How many nodes a namespace may reserve, and how many it has. Pure.

While a slot is replaced, one of its two reservations counts. A lower limit releases nothing, and a workload may always
reserve another slot for one that it gives back. Nodes that are given back count until the write of that was answered:
the one that takes others might be faster.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.placement import Shortage
from neuron_dra.planner.observed.model import LIMIT_ANNOTATION, Workload

_NUMBER = re.compile(r"\d{1,6}", re.ASCII)


class Quota:
    """The limits of namespaces, in one plan.

    `default` is the limit, in nodes, of a namespace without the annotation; None is no limit. If Namespaces cannot be
    read (an older ClusterRole), the default applies to all.
    """

    def __init__(self, index: FleetIndex, default: int | None, holdings: Holdings) -> None:
        self._index = index
        self._default = default
        self._holdings = holdings

    def refusal(self, workload: Workload, indices: Collection[int], reservations: Held) -> Shortage | None:
        """Return why the slots of these indices may not be reserved, or None if they may.

        `reservations`: what the workload has now.

        The reason is NamespaceLimit, or NamespaceUnknown until the Namespace is in the cache. A malformed annotation
        allows no reservation: a typo must not lift a limit.
        """
        if workload.target is not None:
            return None  # tests have a limit of their own, in groups
        namespace = workload.namespace
        limit_text, limit = self._limit_text(namespace), self._default
        if limit_text is None:
            return Shortage(Reason.NAMESPACE_UNKNOWN, f"the controller has not seen the Namespace {namespace} yet")
        if limit_text == "none":
            return None
        if limit_text:
            if not _NUMBER.fullmatch(limit_text):
                text = f"the annotation {LIMIT_ANNOTATION} of namespace {namespace} is {limit_text[:40]!r}"
                return Shortage(
                    Reason.NAMESPACE_LIMIT, f'{text}: write a whole number, such as "8", or "none" for no limit'
                )
            limit = int(limit_text)
        if limit is None:
            return None
        sizes = self._holdings.sizes(workload.uid, reservations)
        sizes_before = self._holdings.sizes(workload.uid, self._holdings.of(workload.uid))
        reserved_nodes = self._holdings.nodes_of_namespace(namespace) + sum(sizes.values()) - sum(sizes_before.values())
        new_nodes = sum(max(0, workload.size - sizes.get(index, 0)) for index in indices)
        if not new_nodes or reserved_nodes + new_nodes <= limit:
            return None
        where = f"annotation {LIMIT_ANNOTATION}" if limit_text else "the default of this cluster"
        return Shortage(
            Reason.NAMESPACE_LIMIT,
            f"namespace {namespace} has reserved {reserved_nodes} of the {limit} nodes that it may reserve ({where}), "
            f"and this needs {new_nodes} more: lower serverCount, delete another workload, or have the limit raised",
        )

    def _limit_text(self, namespace: str) -> str | None:
        """Return the limit in a Namespace's annotation, empty without one; None if the Namespace is not known."""
        return "" if self._index.namespaces is None else self._index.namespaces.get(namespace)
