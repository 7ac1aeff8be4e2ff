"""Reads claims from the API server: one by name, or all that hold a device of this node."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator

from neuron_dra.api import claims as wire
from neuron_dra.core import user_text
from neuron_dra.core.claims import Claim, ClaimRef
from neuron_dra.core.dra_driver import NEURON
from neuron_dra.errors import ClaimError, NotFound, Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import RESOURCE_CLAIMS, is_path_segment
from neuron_dra.node.timing import DEFAULT_TIMING, PrepareTiming

log = logging.getLogger(__name__)


class ClaimReader:
    """Reads the claims that one driver of a node needs."""

    driver = NEURON

    def __init__(self, client: KubeClient, node_name: str, timing: PrepareTiming = DEFAULT_TIMING.prepare) -> None:
        self._timing = timing
        self._client = client
        self._node_name = node_name

    async def fetch(self, ref: ClaimRef) -> Claim:
        """Read and decode a claim, without a cache. Raises ClaimError, ApiError."""
        return await self._decoded(await self._read(ref), ref)

    async def named(self, namespace: str, name: str) -> Claim:
        """Read and decode the claim that has this name now. Raises ClaimError, ApiError."""
        ref = ClaimRef(namespace, name, "")
        claim = await self._read(ref)
        return await self._decoded(claim, dataclasses.replace(ref, uid=claim.metadata.uid))

    async def _decoded(self, claim: wire.ResourceClaim, ref: ClaimRef) -> Claim:
        """Return a claim in core's form. Raises ClaimError."""
        if wire.must_load(claim):  # this imports modules, which would block the event loop
            return await asyncio.to_thread(wire.to_core, claim, ref)
        return wire.to_core(claim, ref)

    async def allocation(self, ref: ClaimRef) -> Claim:
        """Read which devices a claim has; its configuration is left out. Raises ClaimError, ApiError."""
        return wire.allocation(await self._read(ref), ref, self.driver.name)

    async def _read(self, ref: ClaimRef) -> wire.ResourceClaim:
        _refuse_impossible_name(ref)
        try:
            raw = await self._client.get(RESOURCE_CLAIMS, ref.namespace, ref.name, timeout_s=self._timing.get_s)
        except NotFound as err:
            raise NotFound(f"claim {ref} (UID {ref.uid}) does not exist", status=404) from err
        try:
            return wire.decode_claim(raw)
        except ClaimError as err:  # perhaps a proxy's reply; the next may be the API server's
            raise Unavailable(str(err)) from err

    async def find(self, ref: ClaimRef) -> wire.ResourceClaim | None:
        """Return the claim as the API server has it, or None if it is gone or another one has its name.

        Raises ApiError, ClaimError if that is not certain.
        """
        _refuse_impossible_name(ref)
        try:
            stored_claim = wire.decode_claim(await self._client.get(RESOURCE_CLAIMS, ref.namespace, ref.name))
        except NotFound:
            return None
        meta = stored_claim.metadata
        if (meta.namespace, meta.name) != (ref.namespace, ref.name) or not meta.uid:
            raise Unavailable(f"the API server returned an object that is not claim {ref}")
        return stored_claim if meta.uid == ref.uid else None

    async def allocated(self, *, reserved: bool = True) -> AsyncIterator[Claim]:
        """Yield every claim in the cluster that holds a device of this node; configuration is left out.

        With `reserved`, only those that are reserved for a pod; others keep their allocation until the next pod.
        """
        async for page in self._client.list(RESOURCE_CLAIMS):
            decoded = page.decoded(wire.ResourceClaim)
            for damaged in decoded.damaged:
                if not damaged.paths:
                    log.warning("a claim cannot be decoded", extra={"claim": damaged.key, "error": damaged.why})
            for stored_claim in decoded.objects:
                devices = wire.allocated_devices(stored_claim, self.driver.name)
                node_devices = tuple(device for device in devices if device.pool == self._node_name)
                if node_devices and (stored_claim.status.reserved_for or not reserved):
                    meta = stored_claim.metadata
                    ref = ClaimRef(meta.namespace, meta.name, meta.uid)
                    yield Claim(ref, node_devices, pod=wire.first_pod(stored_claim))


def _refuse_impossible_name(ref: ClaimRef) -> None:
    """Raise ClaimError for a claim that the API server cannot have: names are also read from files and lists."""
    for part in (ref.namespace, ref.name):
        if not part or not is_path_segment(part):
            raise ClaimError(
                f"claim {user_text.printable(str(ref))}: no claim has a namespace and a name like this, so nothing can "
                "be read about it"
            )
