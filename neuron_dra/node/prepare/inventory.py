"""Looks, before the first publish on a node, for claims that were prepared here and are not in the checkpoint.

The kubelet's list shows them without a request to the API server. The claims of the cluster are listed only where
another driver left traces: a thousand new nodes must not list all claims.
"""

from __future__ import annotations

import asyncio
import logging

from neuron_dra.core.evidence import Listing
from neuron_dra.errors import CheckpointDamaged
from neuron_dra.node.prepare import rediscovery
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.recovery import Recovery
from neuron_dra.node.prepare.rediscovery import Rediscovery

log = logging.getLogger(__name__)


class Inventory:
    """Finds the claims, once for a node; again when another driver left traces."""

    def __init__(self, prepared: PreparedClaims, recovery: Recovery, finds: Rediscovery) -> None:
        self._prepared = prepared
        self._recovery = recovery
        self._rediscovery = finds

    async def take(self, *, others_published: bool) -> bool:
        """Add the claims that were prepared here; `others_published` if another driver published slices.

        Returns False if the kubelet did not answer, so that this must be tried again. Raises ApiError, ClaimError,
        OSError.
        """
        if self._prepared.damaged is not None:
            if not others_published:
                return True  # the rebuild finds the same claims
            await self._recovery.finished()
        store = self._prepared.store
        try:
            is_needed = await asyncio.to_thread(store.needs_inventory)
            foreign_device_ids = await asyncio.to_thread(store.foreign_files)
        except CheckpointDamaged as err:
            self._prepared.found_damaged(err)
            return True
        if not (is_needed or others_published):
            return True
        others_ran = others_published or bool(foreign_device_ids)
        listing = await self._rediscovery.kubelet()
        if listing is None and not others_ran:
            return False
        await self._add(listing or Listing(), foreign_device_ids, others_ran=others_ran, is_of_this_boot=is_needed)
        return True

    async def _add(
        self,
        listing: Listing,
        foreign_device_ids: dict[str, tuple[int, ...]],
        *,
        others_ran: bool,
        is_of_this_boot: bool,
    ) -> None:
        """Commit the claims. The kubelet keeps its list over a reboot, so only a list `is_of_this_boot` counts."""
        allocated = await self._rediscovery.allocated() if others_ran else {}
        claims = self._rediscovery.of_foreign_files(foreign_device_ids, allocated)
        if is_of_this_boot:
            claims |= await self._rediscovery.of_list(listing, {**claims, **self._prepared.claims})
        unknown_claims = [claim for uid, claim in allocated.items() if uid not in claims]
        claims |= self._rediscovery.of_allocations(unknown_claims, listing, others_ran=others_ran)
        for claim in await self._prepared.adopt(claims, others_ran=others_ran):
            if claim.adopted:
                rediscovery.log_adopted(claim)
            else:
                log.info(
                    "prepared a claim again that the kubelet lists and the checkpoint does not have",
                    extra={"claim": str(claim.ref), "uid": claim.ref.uid},
                )
