"""Adopts the claims that another driver prepared on this node, from a list of all claims of the cluster.

Where something shows that another driver was here, the list comes before the first publish. A node where nothing does
lists once too, but some time after its first publish: a thousand new nodes must not list all claims at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path

from neuron_dra.core import backoff, names
from neuron_dra.core.claims import Claim, PreparedClaim
from neuron_dra.errors import ApiError, CheckpointDamaged, ClaimError
from neuron_dra.node.prepare import pod_resources, recovery
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.recovery import Recovery
from neuron_dra.node.timing import DEFAULT_TIMING, PrepareTiming

log = logging.getLogger(__name__)


class Inventory:
    """Finds the claims to adopt. `adopt` converts an allocated claim to an adopted one.

    `pod_resources` is the kubelet's socket. `published` must be set after the first publish.
    """

    def __init__(
        self,
        prepared: PreparedClaims,
        recovery: Recovery,
        claims: ClaimReader,
        adopt: Callable[[Claim], PreparedClaim],
        pod_resources: Path,
        timing: PrepareTiming = DEFAULT_TIMING.prepare,
    ) -> None:
        self._prepared = prepared
        self._recovery = recovery
        self._claims = claims
        self._adopt = adopt
        self._pod_resources = pod_resources
        self._timing = timing
        self._postponed = False
        self.published = asyncio.Event()

    async def take(self, *, others_published: bool) -> None:
        """Adopt other drivers' claims if one published slices or left traces. Raises ApiError, ClaimError, OSError."""
        if others_published and (self._recovery.began or self._prepared.damaged is not None):
            await self._recovery.finished()  # the rebuild adopts them too; until then their slices stay
            return
        if self._prepared.damaged is not None:
            return
        try:
            needed = others_published or await asyncio.to_thread(self._prepared.store.needs_inventory)
            self._postponed = needed and not others_published and not await self._has_traces()
        except CheckpointDamaged as err:
            self._prepared.found_damaged(err)
            return
        if needed and not self._postponed:
            await self._list()

    async def run(self) -> None:
        """List once after the first publish if that was postponed; retry until it succeeds."""
        await self.published.wait()
        if not self._postponed:
            return
        await asyncio.sleep(random.uniform(0.0, self._timing.inventory_spread_s))
        waits = backoff.delays(*self._timing.rebuild_retry_s, random.random)
        while True:
            try:
                await self._list()
            except (ApiError, ClaimError, OSError) as err:
                log.warning("cannot list the claims of other drivers yet", extra={"error": str(err)})
                await asyncio.sleep(next(waits))
            else:
                return

    async def _list(self) -> None:
        held = {claim.ref.uid: self._adopt(claim) async for claim in self._claims.allocated()}
        for claim in await self._prepared.adopt(held):
            recovery.log_adopted(claim)

    async def _has_traces(self) -> bool:
        """Return whether something shows that others prepared claims here. Raises CheckpointDamaged, OSError."""
        if await asyncio.to_thread(self._prepared.store.has_traces):
            return True
        if not await asyncio.to_thread(self._pod_resources.is_socket):
            return False
        try:
            pods = await pod_resources.listed(self._pod_resources)
        except ConnectionError:
            return False  # as kubelets before 1.34, which list no claims
        ours = {(claim.ref.namespace, claim.ref.name) for claim in self._prepared.claims.values()}
        for pod in pods:
            for claim in pod.claims:
                is_of_driver = any(driver == names.DRIVER for driver, _, _ in claim.devices)
                if is_of_driver and (claim.namespace, claim.name) not in ours:
                    return True
        return False
