"""Finds claims that were prepared on this node and are not in its checkpoint, by the rules of core/evidence.

A claim whose earlier result cannot be restored is *adopted*: it keeps its devices until it is unprepared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from neuron_dra.core import evidence
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.dra_driver import NEURON, Driver
from neuron_dra.core.evidence import Listing, ShownClaim
from neuron_dra.core.members import Cores
from neuron_dra.errors import ClaimError, NotFound
from neuron_dra.node.prepare import pod_resources, specs
from neuron_dra.node.prepare.specs import Spec
from neuron_dra.node.prepare.store import Decide

log = logging.getLogger(__name__)


class ClaimSource(Protocol):
    """The API server's claims, as ClaimReader reads them."""

    async def fetch(self, ref: ClaimRef) -> Claim:
        """Read a claim. Raises ClaimError, ApiError."""

    async def named(self, namespace: str, name: str) -> Claim:
        """Read the claim that has this name now. Raises ClaimError, ApiError."""

    def allocated(self) -> AsyncIterator[Claim]:
        """Yield the reserved claims that have devices of this node. Raises ApiError."""


class KubeletList:
    """The kubelet's list of pods, through its pod-resources API."""

    def __init__(self, socket: Path, kubelet_version: Callable[[], str], timeout_s: float) -> None:
        self._socket = socket
        self._kubelet_version = kubelet_version
        self._timeout_s = timeout_s

    async def __call__(self) -> Listing | None:
        """Return the list; an empty one, which shows nothing, without a socket; None if the kubelet does not answer."""
        if not await asyncio.to_thread(self._socket.is_socket):
            return Listing()
        try:
            pods = await pod_resources.listed(self._socket, self._timeout_s)
        except ConnectionError as err:
            log.warning("the kubelet does not list its pods", extra={"error": str(err)})
            return None
        return evidence.listing(pods, self._kubelet_version())


class Rediscovery:
    """Finds the claims. `adopt` converts an allocated claim to an adopted one.

    `is_offered` returns whether this node publishes a device of that name.
    """

    def __init__(
        self,
        node_name: str,
        claims: ClaimSource,
        decide: Decide,
        adopt: Callable[[Claim], PreparedClaim],
        kubelet: Callable[[], Awaitable[Listing | None]],
        is_offered: Callable[[str], bool],
        driver: Driver = NEURON,
    ) -> None:
        self._driver = driver
        self._node_name = node_name
        self.claims = claims
        self.kubelet = kubelet
        self._decide = decide
        self._adopt = adopt
        self._is_offered = is_offered

    async def allocated(self) -> dict[str, Claim]:
        """List the cluster's claims; return those with devices of this node, by UID. Raises ApiError, ClaimError."""
        return {claim.ref.uid: claim async for claim in self.claims.allocated()}

    async def of_file(self, spec: Spec, allocated: Claim | None, other_claims: list[PreparedClaim]) -> PreparedClaim:
        """Decide again on a claim that has only our CDI file. Raises ApiError.

        A claim that is rejected now, or gone from the API, may still have a running container, so it is adopted.
        """
        try:
            return self._decide(await self.claims.fetch(spec.ref), other_claims)
        except (ClaimError, NotFound) as err:
            shown_devices = tuple(
                AllocatedDevice("", "", shown.name, shown.admin_access, shown.share_id) for shown in spec.devices
            )
            return self._adopted(allocated or Claim(spec.ref, shown_devices), err)

    def of_foreign_files(
        self, device_ids: Mapping[str, tuple[int, ...]], allocated: Mapping[str, Claim]
    ) -> dict[str, PreparedClaim]:
        """Return the claims of other drivers' CDI files, adopted; `device_ids` are the devices in the files, by UID."""
        adopted = {}
        for uid, ids in device_ids.items():
            if uid in allocated:
                adopted[uid] = self._adopt(allocated[uid])
            elif ids:
                adopted[uid] = specs.adopted_foreign(uid, ids)
        return adopted

    async def of_list(self, listing: Listing, known_claims: Mapping[str, PreparedClaim]) -> dict[str, PreparedClaim]:
        """Return the claims that the kubelet lists with devices of this node, except known ones. Raises ApiError."""
        known_names = {(claim.ref.namespace, claim.ref.name) for claim in known_claims.values()}
        restored: dict[str, PreparedClaim] = {}
        for shown in evidence.shown_claims(listing, self._node_name, self._driver.name):
            if shown.uid in known_claims or (not shown.uid and (shown.namespace, shown.name) in known_names):
                continue
            claim = await self._of_shown(shown, [*known_claims.values(), *restored.values()])
            if claim is not None and claim.ref.uid not in known_claims:
                restored[claim.ref.uid] = claim
        return restored

    async def _of_shown(self, shown: ShownClaim, other_claims: list[PreparedClaim]) -> PreparedClaim | None:
        """Decide again on a claim that the kubelet lists; adopt it if that fails."""
        devices = tuple(AllocatedDevice("", self._node_name, device) for device in shown.devices)
        claim = Claim(ClaimRef(shown.namespace, shown.name, shown.uid), devices)
        try:
            stored_claim = await self.claims.named(shown.namespace, shown.name)
            if shown.uid not in ("", stored_claim.ref.uid):
                raise ClaimError(f"the kubelet lists UID {shown.uid}, the API server has {stored_claim.ref.uid}")
            claim = Claim(stored_claim.ref, devices, pod=stored_claim.pod)
            allocated_here = sorted({d.device for d in stored_claim.devices if d.pool == self._node_name})
            if allocated_here != list(shown.devices):
                raise ClaimError(f"the kubelet lists {list(shown.devices)}, the API server has {allocated_here}")
            claim = stored_claim
            return self._decide(stored_claim, other_claims)
        except (ClaimError, NotFound) as err:
            if claim.ref.uid:
                return self._adopted(claim, err)
            log.error(
                "the kubelet lists a claim with devices of this node, and nothing shows its UID, so its devices cannot "
                "be held; delete its pod",
                extra={"claim": str(claim.ref), "devices": ",".join(shown.devices), "error": str(err)},
            )
            return None

    def of_allocations(
        self, allocated: Iterable[Claim], listing: Listing, *, others_ran: bool
    ) -> dict[str, PreparedClaim]:
        """Return those of the claims without another trace that hold their devices, adopted."""
        adopted = {}
        for claim in allocated:
            if evidence.must_adopt(
                claim, listing, is_offered=self._is_offered, others_ran=others_ran, driver=self._driver.name
            ):
                adopted[claim.ref.uid] = self._adopt(claim)
        return adopted

    def _adopted(self, claim: Claim, err: Exception) -> PreparedClaim:
        log.warning(
            "adopted a claim whose earlier result cannot be restored; its devices stay held until it is unprepared",
            extra={"claim": str(claim.ref), "uid": claim.ref.uid, "error": str(err)},
        )
        return self._adopt(claim)


def adopted(
    claim: Claim,
    device_ids: Callable[[str], tuple[int, ...]],
    cores: Callable[[str], Cores | None] = lambda name: None,
) -> PreparedClaim:
    """Return `claim` as an adopted claim: it holds its devices, and has no CDI devices.

    `device_ids` and `cores` return what is behind the name of a device.
    """
    devices = tuple(
        PreparedDevice(
            request=device.base_request,
            pool=device.pool,
            device=device.device,
            device_ids=device_ids(device.device),
            cdi_ids=(),
            edits={},
            admin_access=device.admin_access,
            share_id=device.share_id,
            cores=cores(device.device),
        )
        for device in claim.devices
    )
    return PreparedClaim(claim.ref, devices, pod=claim.pod, adopted=True)


def log_adopted(claim: PreparedClaim) -> None:
    """Log that a claim was adopted."""
    log.warning(
        "adopted a claim that was prepared by another driver, or before the checkpoint was lost; "
        "its devices stay held until it is unprepared or orphaned",
        extra={"claim": str(claim.ref), "uid": claim.ref.uid},
    )
