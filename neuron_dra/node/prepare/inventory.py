"""Adopts the claims that another driver prepared on this node: once, before the first publish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from neuron_dra.core.claims import Claim, PreparedClaim
from neuron_dra.errors import CheckpointDamaged
from neuron_dra.node.prepare import recovery
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.recovery import Recovery


class Inventory:
    """Finds the claims to adopt. `adopt` converts an allocated claim to an adopted one."""

    def __init__(
        self,
        prepared: PreparedClaims,
        recovery: Recovery,
        claims: ClaimReader,
        adopt: Callable[[Claim], PreparedClaim],
    ) -> None:
        self._prepared = prepared
        self._recovery = recovery
        self._claims = claims
        self._adopt = adopt

    async def take(self, *, others_published: bool) -> None:
        """Adopt other drivers' claims if one published slices or left CDI files. Raises ApiError, OSError."""
        if others_published and (self._recovery.began or self._prepared.damaged is not None):
            await self._recovery.finished()  # the rebuild adopts them too; until then their slices stay
            return
        if self._prepared.damaged is not None:
            return
        try:
            needed = others_published or await asyncio.to_thread(self._prepared.store.needs_inventory)
        except CheckpointDamaged as err:
            self._prepared.found_damaged(err)
            return
        if needed:
            held = {claim.ref.uid: self._adopt(claim) async for claim in self._claims.allocated()}
            for claim in await self._prepared.adopt(held):
                recovery.log_adopted(claim)
