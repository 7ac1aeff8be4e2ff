"""Whether an adopted or doubtful claim is still in use on this node, decided from the kubelet's list of pods.

The kubelet may never unprepare a claim that another driver prepared, or that was rebuilt after a checkpoint was lost.
Its containers may outlive every other trace of it, so the evidence is the kubelet's pod-resources API. That API has
names without UIDs, omits ordinary init containers, and lists no claims if it has no information. A missing claim is
therefore evidence only if the list has other claims, and only if the claim's pod is not listed without claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import names
from neuron_dra.core.claims import PreparedClaim

FIRST_MINOR: Final = 34  # the first minor version of the kubelet that lists claims


@dataclass(frozen=True, slots=True)
class ListedClaim:
    """A claim of a listed pod, with its devices as (driver, pool, device). `container` is the first that has it.

    `uid` is that of a claim whose CDI devices this driver named; otherwise it is empty.
    """

    namespace: str
    name: str
    devices: frozenset[tuple[str, str, str]]
    container: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod in the kubelet's list, with the claims of its containers.

    `plugin_resources` are the resources of which a device plugin gave a device to it, such as aws.amazon.com/neuron.
    """

    namespace: str
    name: str
    claims: tuple[ListedClaim, ...] = ()
    plugin_resources: frozenset[str] = frozenset()


def is_doubtful(claim: PreparedClaim) -> bool:
    """Return True if the kubelet may never unprepare `claim`: it is adopted or doubtful (see PreparedClaim)."""
    return claim.adopted or claim.doubtful


def is_absent(claim: PreparedClaim, listed: Iterable[ListedPod], driver_name: str = names.DRIVER) -> bool:
    """Return True if `listed`, the kubelet's whole list, is evidence that no container has `claim`.

    It is none if the list has no claim at all, if a container has a claim of this name with one of its devices, or if
    the claim's pod (or, for an unknown pod, any pod of the namespace) is listed without claims. A claim whose name is
    not known may be any that has one of its devices.
    """
    pods = list(listed)
    if not any(pod.claims for pod in pods):
        return False  # this kubelet may not list claims at all
    claim_devices = {(driver_name, device.pool, device.device) for device in claim.devices}
    for pod in pods:
        for listed_claim in pod.claims:
            listed_name = (listed_claim.namespace, listed_claim.name)
            may_be_same = not claim.ref.name or listed_name == (claim.ref.namespace, claim.ref.name)
            if may_be_same and _has_one_of(listed_claim, claim_devices):
                return False
        silent = claim.ref.namespace in ("", pod.namespace) and not pod.claims
        if silent and (not claim.pod or pod.name == claim.pod):
            return False
    return True


def _has_one_of(claim: ListedClaim, devices: Collection[tuple[str, str, str]]) -> bool:
    """Return whether a listed claim has a device of `devices`, whose pool is empty if only its CDI file is known."""
    return any(
        (driver, pool, device) in devices or (driver, "", device) in devices for driver, pool, device in claim.devices
    )
