"""Places a pod: the parts of kube-scheduler for claims, taints and node affinity.

Pure. Nodes are tried in the order given. The first one with the most preferred alternatives wins. The caller knows what
each node lacks of CPU and memory. Ports, spreading and preemption are not modelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from neuron_dra.core.wire import Wire
from neuron_dra.simulate import allocator, model, nodes
from neuron_dra.simulate.failures import Failure, FailureKind
from neuron_dra.simulate.model import ClaimDemand, DeviceId, NodeTraits
from neuron_dra.simulate.pools import PoolInventory
from neuron_dra.simulate.selectors import Selectors

MAX_CONSUMERS: Final = 256  # pods that may share one claim; resource.k8s.io/v1 ResourceClaimReservedForMaxSize
CANNOT_ALLOCATE: Final = "cannot allocate all claims"


@dataclass(frozen=True, slots=True)
class Placement:
    """The pod's node, and by claim name the status.allocation of each claim that had none."""

    node: str
    allocations: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """Why the pod stays Pending.

    - `message`: kube-scheduler's; `reasons`: those of each node.
    - `error`: the claims or classes must change, for example because a selector fails.
    - `undecided`: the search takes so long, on a node at least, that Kubernetes' scheduler may decide otherwise; or the
      simulator does not support what a claim needs.
    """

    message: str
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: bool = False
    undecided: bool = False


_UNDECIDED: Final = (FailureKind.UNSUPPORTED, FailureKind.TIMED_OUT, FailureKind.GAVE_UP)


def schedule(
    pod: Wire,
    claims: Sequence[Wire],
    cluster_nodes: Iterable[Wire],
    slices: Iterable[Wire] | PoolInventory,
    classes: Iterable[Wire],
    in_use: Set[DeviceId],
    memo: Selectors | None = None,
    lacking: Mapping[str, Sequence[str]] | None = None,
) -> Placement | Unschedulable:
    """Return where the pod runs, or why nowhere. `claims` are the pod's, in its order; others hold `in_use`.

    `lacking` has, by node, the resources such as CPU of which the node has too little left.
    """
    inventory = slices if isinstance(slices, PoolInventory) else PoolInventory(slices)
    known_classes = {wire["metadata"]["name"]: model.device_class(wire) for wire in classes}
    demands = [model.claim(wire) for wire in claims]
    memo = memo or Selectors()
    best: tuple[int, Placement] | None = None
    short: Counter[str] = Counter()
    reasons: dict[str, tuple[str, ...]] = {}
    undecided = False
    candidates = [model.node(wire) for wire in cluster_nodes]
    for node in candidates:
        objections = _objections(pod, node, (lacking or {}).get(node.name, ()), demands)
        if objections:
            short.update(objections)
            reasons[node.name] = objections
            continue
        missing = [claim for claim in demands if claim.allocation is None]
        outcome = allocator.allocate(node, missing, inventory, known_classes, in_use, memo)
        if isinstance(outcome, Failure):
            undecided = undecided or outcome.kind in _UNDECIDED
            if outcome.kind in (FailureKind.POD_ERROR, FailureKind.UNSUPPORTED, FailureKind.TIMED_OUT):
                return Unschedulable(outcome.reasons[0], {node.name: outcome.reasons}, error=True, undecided=undecided)
            short[_short(outcome)] += 1
            reasons[node.name] = outcome.reasons
            continue
        if best is None or outcome.alternatives < best[0]:
            names = (claim.name for claim in missing)
            best = (outcome.alternatives, Placement(node.name, dict(zip(names, outcome.allocations, strict=True))))
    if best is not None:
        return best[1]
    return Unschedulable(message(len(candidates), short), reasons, undecided=undecided)


def _objections(pod: Wire, node: NodeTraits, lacking: Sequence[str], demands: Sequence[ClaimDemand]) -> tuple[str, ...]:
    """Return why the node is not searched for devices: the words of the first filter that rejects it."""
    if objection := nodes.objection(pod, node):
        return (objection,)
    if lacking:
        return tuple(f"Insufficient {resource}" for resource in lacking)
    if objection := _unreachable(demands, node):
        return (objection,)
    return ()


def message(total: int, short: Mapping[str, int]) -> str:
    """Return kube-scheduler's message, such as "0/2 nodes are available: 2 cannot allocate all claims." """
    if not total:
        return "no nodes available to schedule pods"
    parts = sorted(f"{number} {reason}" for reason, number in short.items())
    return f"0/{total} nodes are available: {', '.join(parts)}."


def _short(failure: Failure) -> str:
    if failure.kind is FailureKind.NO_SOLUTION:
        return CANNOT_ALLOCATE
    return failure.reasons[0]


def _unreachable(claims: Sequence[ClaimDemand], node: NodeTraits) -> str:
    """Return why claims that are already allocated exclude the node, or ""."""
    for claim in claims:
        if claim.allocation is None:
            continue
        selector = claim.allocation.get("nodeSelector")
        if selector is not None and not nodes.matches(selector, node):
            return "resourceclaim not available on the node"
        if claim.reserved_for >= MAX_CONSUMERS:
            return f"resourceclaim {claim} is in use by {MAX_CONSUMERS} pods, the most that may share one"
    return ""
