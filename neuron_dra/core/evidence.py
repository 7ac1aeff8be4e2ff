"""What proves that a claim was prepared on this node, if neither the checkpoint nor this process knows the claim.

`docs/architecture-node.md` has the rules as a table. An allocation alone proves nothing: the kubelet may not have
prepared the claim yet. If its pod is then deleted, the kubelet never unprepares the claim, and it would hold its
devices until a reboot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from neuron_dra.core import names, versions
from neuron_dra.core.claims import Claim
from neuron_dra.core.in_use import ListedClaim, ListedPod


@dataclass(frozen=True, slots=True)
class Listing:
    """The kubelet's list of pods. If `is_trusted`, a pod that it shows without a claim has no prepared claim."""

    pods: tuple[ListedPod, ...] = ()
    is_trusted: bool = False


@dataclass(frozen=True, slots=True)
class ShownClaim:
    """A claim that the kubelet lists with devices of this node; `uid` is empty if the list does not show it."""

    namespace: str
    name: str
    uid: str
    devices: tuple[str, ...]


def listing(pods: Iterable[ListedPod], kubelet_version: str) -> Listing:
    """Return the kubelet's answer as evidence.

    Before 1.36 an administrator can turn the list of claims off. A claim in the list shows that it is on.
    """
    pods = tuple(pods)
    version = versions.parse(kubelet_version)
    always_lists = version is not None and version >= versions.FIRST_THAT_ALWAYS_LISTS_CLAIMS
    return Listing(pods, always_lists or any(pod.claims for pod in pods))


def shown_claims(listing: Listing, node_name: str, driver: str = names.DRIVER) -> tuple[ShownClaim, ...]:
    """Return the claims that the kubelet lists with devices of this node: it has prepared them."""
    devices_by_claim: dict[tuple[str, str, str], set[str]] = {}
    for pod in listing.pods:
        for claim in pod.claims:
            devices = set(_devices_here(claim, node_name, driver))
            if devices:
                devices_by_claim.setdefault((claim.namespace, claim.name, claim.uid), set()).update(devices)
    shown = []
    for (namespace, name, uid), devices in sorted(devices_by_claim.items()):
        shown.append(ShownClaim(namespace, name, uid, tuple(sorted(devices))))
    return tuple(shown)


def must_adopt(
    claim: Claim,
    listing: Listing,
    *,
    is_offered: Callable[[str], bool],
    others_ran: bool,
    driver: str = names.DRIVER,
) -> bool:
    """Return whether an allocated claim, of which there is no other trace, holds its devices.

    `is_offered` returns whether this node publishes a device of that name. `others_ran` is whether another driver left
    slices, CDI files or a checkpoint, and so may have prepared the claim.
    """
    for device in claim.devices:
        # The scheduler does not know which devices are behind a name that is not published.
        if not device.admin_access and not is_offered(device.device):
            return True
    return others_ran and not _is_shown_unprepared(claim, listing, driver)


def _is_shown_unprepared(claim: Claim, listing: Listing, driver: str) -> bool:
    """Return whether the list has the claim without devices, or the claim's pod without the claim."""
    if not listing.is_trusted:
        return False
    pools = {device.pool for device in claim.devices}
    is_listed = False
    for pod in listing.pods:
        for shown in pod.claims:
            if (shown.namespace, shown.name) == (claim.ref.namespace, claim.ref.name):
                is_listed = True
                if any(list(_devices_here(shown, pool, driver)) for pool in pools):
                    return False
        if (pod.namespace, pod.name) == (claim.ref.namespace, claim.pod):
            is_listed = True
    return is_listed


def _devices_here(claim: ListedClaim, pool_name: str, driver_name: str) -> Iterator[str]:
    for driver, pool, device in claim.devices:
        if (driver, pool) == (driver_name, pool_name):
            yield device
