"""Rebuilding a damaged checkpoint: from memory and its last whole slot, then from what else proves a preparation."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from neuron_dra.core import backoff
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.evidence import Listing
from neuron_dra.errors import ApiError, CheckpointOfLaterRelease, ClaimError
from neuron_dra.node.metrics import DAMAGED, PluginMetrics
from neuron_dra.node.prepare import rediscovery
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.rediscovery import Rediscovery
from neuron_dra.node.timing import DEFAULT_TIMING, PrepareTiming

log = logging.getLogger(__name__)

LIST_RETRIES: Final = 3  # with 2 s for each answer, less than the kubelet waits for a call


class Recovery:
    """Rebuilds a damaged checkpoint so that it holds every claim that was prepared on this node.

    `ready` returns once enough is known about the node to decide on claims.
    """

    def __init__(
        self,
        prepared: PreparedClaims,
        finds: Rediscovery,
        ready: Callable[[], Awaitable[object]],
        metrics: PluginMetrics,
        timing: PrepareTiming = DEFAULT_TIMING.prepare,
    ) -> None:
        self._timing = timing
        self._prepared = prepared
        self._store = prepared.store
        self._rediscovery = finds
        self._ready = ready
        self._metrics = metrics
        self.began = False  # in this process, at least once

    async def run(self) -> None:
        """Rebuild whenever the checkpoint is damaged, until cancelled."""
        while True:
            changes_seen = self._prepared.changed.count
            if self._prepared.damaged is not None:
                self.began = True
                self._metrics.set(DAMAGED, True)
                await self._ready()
                await self.rebuild()
                self._metrics.set(DAMAGED, False)
            await self._prepared.changed.after(changes_seen)

    async def finished(self) -> None:
        """Return once the checkpoint is not damaged."""
        while self._prepared.damaged is not None:
            await self._prepared.changed.after(self._prepared.changed.count)

    async def rebuild(self) -> None:
        """Rebuild the checkpoint; retry until that succeeds."""
        waits = backoff.delays(*self._timing.rebuild_retry_s, random.random)
        while self._prepared.damaged is not None:
            try:
                claims = await self._collect()
                await self._prepared.rebuilt(claims)
                log.info("rebuilt the checkpoint", extra={"claims": len(claims)})
            except CheckpointOfLaterRelease as err:
                self._prepared.rebuild_waits = (
                    f"{self._store.folder} has the checkpoint of a later release: {err}. Install that release again, "
                    "or remove checkpoint.0, checkpoint.1 and boot.json once no pod of this node uses a device"
                )
                await asyncio.sleep(next(waits))
            except (ApiError, ClaimError, OSError) as err:
                log.warning("cannot rebuild the checkpoint yet", extra={"error": str(err)})
                await asyncio.sleep(next(waits))

    async def _list(self) -> Listing:
        """Return the kubelet's list, an empty one if the kubelet does not answer.

        The kubelet is asked several times, because its list may be the only trace of a claim. The attempts are limited,
        because nothing is prepared or unprepared until they end.
        """
        for wait_s in itertools.islice(backoff.delays(*self._timing.rebuild_retry_s, random.random), LIST_RETRIES):
            listing = await self._rediscovery.kubelet()
            if listing is not None:
                return listing
            await asyncio.sleep(wait_s)
        return await self._rediscovery.kubelet() or Listing()

    async def _collect(self) -> dict[str, PreparedClaim]:
        last_good = await asyncio.to_thread(self._store.last_good)
        specs = await asyncio.to_thread(self._store.specs)
        foreign_device_ids = await asyncio.to_thread(self._store.foreign_files)
        others_ran = bool(foreign_device_ids) or await asyncio.to_thread(self._store.is_foreign)
        claims = dict(last_good.claims) if last_good is not None and last_good.boot_id == self._store.boot_id else {}
        remembered = self._prepared.claims
        # The file may have been replaced by an older one under this process, so its memory counts too. A remembered
        # claim stays even without a CDI file, because the folder may have been emptied. After a rebuild every claim is
        # doubtful, and is released if neither the kubelet nor the API server has it.
        claims |= remembered
        listing = await self._list()
        allocated = await self._rediscovery.allocated()
        for uid in claims.keys() - specs.keys() - allocated.keys() - remembered.keys():
            # The claim was unprepared after the slot was written: its CDI file is gone, and it is not allocated.
            del claims[uid]
        for uid, spec in specs.items():
            if uid not in claims and spec is not None:
                claims[uid] = await self._rediscovery.of_file(spec, allocated.get(uid), list(claims.values()))
        adopted_claims = self._rediscovery.of_foreign_files(foreign_device_ids, allocated)
        claims = {**adopted_claims, **claims}
        claims |= await self._rediscovery.of_list(listing, claims)
        unknown_claims = [claim for uid, claim in allocated.items() if uid not in claims]
        adopted_claims |= self._rediscovery.of_allocations(unknown_claims, listing, others_ran=others_ran)
        for uid, claim in adopted_claims.items():
            if claims.setdefault(uid, claim) is claim:
                rediscovery.log_adopted(claim)
        return claims
