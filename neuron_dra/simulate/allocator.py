"""Structured allocation on one node: which devices would the claims of a pod get?

Pure: values in, `status.allocation` or a failure out. Not modelled, and said so when met: shared counters, consumable
capacity, derived attributes, list-typed attributes in constraints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from neuron_dra.simulate import reasons, requests, result, search
from neuron_dra.simulate.failures import AllocationError, Failure, FailureKind
from neuron_dra.simulate.model import Claim, DeviceClass, DeviceId, Node, Wire
from neuron_dra.simulate.pools import Inventory
from neuron_dra.simulate.selectors import Selectors


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation per claim, in the order of the claims; `alternatives` counts how far down firstAvailable lists."""

    allocations: tuple[result.Allocation, ...]
    alternatives: int


def allocate(
    node: Node,
    claims: Sequence[Claim],
    inventory: Inventory,
    classes: Mapping[str, DeviceClass],
    in_use: Set[DeviceId],
    memo: Selectors | None = None,
) -> Allocated | Failure:
    """Allocate all claims on the node, or none. `in_use` are the devices that other claims hold."""
    pools = inventory.pools(node)
    matcher = requests.Matcher(node, memo or Selectors())
    try:
        needs = [requests.needs(claim, classes, pools, matcher) for claim in claims]
        found = search.Search(needs, pools, in_use, matcher).run()
    except AllocationError as err:
        return Failure(err.kind, (str(err),))
    if found is None:
        broken = [
            f"resource pool {pool.driver}/{pool.name} is invalid: {pool.invalid}" for pool in pools if pool.invalid
        ]
        if broken:
            return Failure(FailureKind.NODE_ERROR, tuple(broken))
        return Failure(FailureKind.NO_SOLUTION, reasons.explain(needs, pools, in_use, matcher))
    chosen = [_chosen(alternatives, picks) for alternatives, picks in zip(needs, found, strict=True)]
    allocations = tuple(
        result.allocation(claim, picks, taken, node) for claim, picks, taken in zip(claims, found, chosen, strict=True)
    )
    depth = sum(need.request.alternatives.index(need.alternative) for taken in chosen for need in taken)
    return Allocated(allocations, depth)


def _chosen(needs: Sequence[Sequence[requests.Need]], picks: Sequence[search.Pick]) -> list[requests.Need]:
    """The alternative taken for each request: every one has at least one device."""
    by_request = {pick.need.request.name: pick.need for pick in picks}
    return [by_request[alternatives[0].request.name] for alternatives in needs]


def devices_in_use(claims: Iterable[Wire]) -> frozenset[DeviceId]:
    """What the allocated claims hold; admin access holds nothing."""
    return frozenset(
        DeviceId(entry["driver"], entry["pool"], entry["device"])
        for claim in claims
        for entry in ((((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ())
        if not entry.get("adminAccess")
    )
