"""Is a claim of which nobody else knows any more still in use on this node? Decided on what the kubelet lists.

A claim that we hold for a driver before us, or since a checkpoint was lost, may be one that the kubelet will never
unprepare. Its pods' containers outlive everything else that tells of it, so what is asked is the kubelet's pod-
resources API. That API gives names without UIDs, leaves ordinary init containers out, and is silent where it does not
know. So its silence counts only in an answer that speaks of other claims, and not for a claim whose pod is listed
without any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import names
from neuron_dra.core.claims import PreparedClaim

FIRST_MINOR: Final = 34  # of the kubelets that list claims; before it, the list is empty


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A claim that a listed container has, with its devices as (driver, pool, device)."""

    namespace: str
    name: str
    devices: frozenset[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod that the kubelet lists."""

    namespace: str
    name: str
    claims: tuple[ListedClaim, ...] = ()


def is_doubtful(claim: PreparedClaim) -> bool:
    """Tell whether the kubelet may never unprepare `claim`, for all we know."""
    return claim.adopted or claim.doubtful


def is_absent(claim: PreparedClaim, listed: Iterable[ListedPod]) -> bool:
    """Tell whether `listed`, the kubelet's whole answer, is evidence that no container has `claim`."""
    pods = list(listed)
    if not any(pod.claims for pod in pods):
        return False  # it may be one that never lists any
    wanted = {(names.DRIVER, device.pool, device.device) for device in claim.devices}
    for pod in pods:
        for other in pod.claims:
            if (other.namespace, other.name) == (claim.ref.namespace, claim.ref.name) and other.devices & wanted:
                return False
        silent = pod.namespace == claim.ref.namespace and not pod.claims
        if silent and (not claim.pod or pod.name == claim.pod):
            return False
    return True
