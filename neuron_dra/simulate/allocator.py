"""Structured allocation on one node: the devices that the claims of a pod get.

Pure: values in, `status.allocation` or a failure out. Consumable capacity and derived attributes are reported as
unsupported when a claim or device needs them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from neuron_dra.core.wire import Wire
from neuron_dra.simulate import model, permutations, reasons, requests, result, search
from neuron_dra.simulate.failures import AllocationError, Failure, FailureKind
from neuron_dra.simulate.model import ClaimDemand, DeviceClass, DeviceId, NodeTraits
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.selectors import Selectors


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation per claim, in the order of the claims.

    `alternatives` is the sum of the positions taken in firstAvailable lists; 0 is the most preferred. `steps` are those
    of Kubernetes' search: exact for 1.34 and 1.35, an estimate for later versions.
    """

    allocations: tuple[result.Allocation, ...]
    alternatives: int
    steps: int = 0


def allocate(
    node: NodeTraits,
    claims: Sequence[ClaimDemand],
    inventory: PoolInventory,
    classes: Mapping[str, DeviceClass],
    in_use: Set[DeviceId],
    memo: Selectors | None = None,
) -> Allocated | Failure:
    """Return the allocations of all claims on the node, or why there are none. Other claims hold `in_use`.

    The inventory has the semantics of the Kubernetes version.
    """
    rules = inventory.semantics
    pools = inventory.pools(node)
    matcher = requests.Matcher(node, memo or Selectors())
    steps = 0
    try:
        needs = [requests.needs(claim, classes, pools, matcher, rules) for claim in claims]
        if rules.permutations:
            _check_constraints(claims)
            tried = pools if rules.loose_pools else tuple(pool for pool in pools if pool.usable)
            searched: search.Search = permutations.PermutationSearch(needs, tried, in_use, matcher)
        else:
            searched = search.Search(needs, pools, in_use, matcher)
        picks_by_claim = searched.run()
        steps = searched.steps
    except AllocationError as err:
        # Of a request for All beside an unusable pool. Later schedulers fail the pod as well, and before 1.38 that is a
        # known fault (kubernetes#141898), which `why` and `doctor` name.
        fatal = (rules.permutations or rules.loose_pools) and err.kind is FailureKind.NODE_ERROR
        return Failure(FailureKind.POD_ERROR if fatal else err.kind, (str(err),))
    if picks_by_claim is None:
        invalid = [pool for pool in pools if pool.invalid]
        if invalid and not (rules.loose_pools and rules.permutations):  # that search fails when it gets to such a pool
            texts = [f"resource pool {pool.driver}/{pool.name} is invalid: {pool.invalid}" for pool in invalid]
            return Failure(FailureKind.NODE_ERROR, tuple(texts))
        return Failure(FailureKind.NO_SOLUTION, reasons.explain(needs, pools, in_use, matcher), steps)
    chosen = [_chosen(alternatives, picks) for alternatives, picks in zip(needs, picks_by_claim, strict=True)]
    allocations = tuple(
        result.allocation(claim, picks, taken, node)
        for claim, picks, taken in zip(claims, picks_by_claim, chosen, strict=True)
    )
    depth = sum(need.request.alternatives.index(need.alternative) for taken in chosen for need in taken)
    return Allocated(allocations, depth, steps)


def _check_constraints(claims: Sequence[ClaimDemand]) -> None:
    """Raise AllocationError for a constraint that Kubernetes 1.34 and 1.35 do not have."""
    for claim in claims:
        for index, constraint in enumerate(claim.constraints):
            if constraint.kind != "matchAttribute":
                message = f"claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)"
                raise AllocationError(FailureKind.POD_ERROR, message)


def _chosen(needs: Sequence[Sequence[requests.Need]], picks: Sequence[search.Pick]) -> list[requests.Need]:
    """Return the alternative taken for each request. Each has a pick, because each request has a device."""
    by_request = {pick.need.request.name: pick.need for pick in picks}
    return [by_request[alternatives[0].request.name] for alternatives in needs]


def devices_in_use(claims: Iterable[Wire]) -> frozenset[DeviceId]:
    """Return the devices that allocated claims hold. Devices with admin access are not held."""
    return frozenset(itertools.chain.from_iterable(map(devices_of, claims)))


def devices_of(claim: Wire) -> list[DeviceId]:
    """Return the devices that a claim holds, in the order of its results."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [model.device_id(_NAMED(entry)) for entry in results if not entry.get("adminAccess")]


_NAMED: Final = operator.itemgetter("driver", "pool", "device")
