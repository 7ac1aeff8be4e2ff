"""Rebuilding a damaged checkpoint: from its last good copy, from our CDI files, then from the API server."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from neuron_dra.core import backoff
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim, PreparedDevice
from neuron_dra.core.members import Cores
from neuron_dra.errors import ApiError, ClaimError, NotFound
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.specs import Spec
from neuron_dra.node.prepare.store import Decide
from neuron_dra.node.timing import DEFAULT_TIMING, PrepareTiming

log = logging.getLogger(__name__)


class ClaimSource(Protocol):
    """The API server's claims, as ClaimReader reads them."""

    async def fetch(self, ref: ClaimRef) -> Claim:
        """Read a claim. Raises ClaimError, ApiError."""

    def allocated(self) -> AsyncIterator[Claim]:
        """Yield the reserved claims that have devices of this node. Raises ApiError."""


class Recovery:
    """Rebuilds a damaged checkpoint so that it holds every claim that may be in use on this node.

    A claim whose earlier result cannot be restored is *adopted*: it keeps its devices until it is unprepared. `ready`
    returns once enough is known about the node to decide on claims.
    """

    def __init__(
        self,
        prepared: PreparedClaims,
        claims: ClaimSource,
        decide: Decide,
        adopt: Callable[[Claim], PreparedClaim],
        ready: Callable[[], Awaitable[object]],
        metrics: PluginMetrics,
        timing: PrepareTiming = DEFAULT_TIMING.prepare,
    ) -> None:
        self._timing = timing
        self._prepared = prepared
        self._store = prepared.store
        self._claims = claims
        self._decide = decide
        self._adopt = adopt
        self._ready = ready
        self._metrics = metrics
        self.began = False  # in this process, at least once

    async def run(self) -> None:
        """Rebuild whenever the checkpoint is damaged, until cancelled."""
        while True:
            seen = self._prepared.changed.count
            if self._prepared.damaged is not None:
                self.began = True
                self._metrics.checkpoint_damaged(True)
                await self._ready()
                await self.rebuild()
                self._metrics.checkpoint_damaged(False)
            await self._prepared.changed.after(seen)

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
            except (ApiError, ClaimError, OSError) as err:
                log.warning("cannot rebuild the checkpoint yet", extra={"error": str(err)})
                await asyncio.sleep(next(waits))

    async def _collect(self) -> dict[str, PreparedClaim]:
        copy = await asyncio.to_thread(self._store.last_good)
        specs = await asyncio.to_thread(self._store.specs)
        claims = dict(copy.claims) if copy is not None and copy.boot_id == self._store.boot_id else {}
        claims |= self._prepared.claims  # of this process: the file may have become older under it
        allocated = {claim.ref.uid: claim async for claim in self._claims.allocated()}
        for uid in [uid for uid in claims if uid not in specs and uid not in allocated]:
            # Unprepared after the copy was made: its CDI file is gone, and it is not allocated.
            del claims[uid]
        for uid, spec in specs.items():
            if uid not in claims and spec is not None:
                claims[uid] = await self._prepared_again(spec, allocated.get(uid), list(claims.values()))
        for uid, claim in allocated.items():
            if uid not in claims:
                claims[uid] = self._adopt(claim)
                log_adopted(claims[uid])
        return claims

    async def _prepared_again(self, spec: Spec, listed: Claim | None, others: list[PreparedClaim]) -> PreparedClaim:
        """Decide again on a claim that, according to its CDI file, was prepared.

        A claim that is rejected now, or gone from the API, may still have a running container, so it is adopted.
        """
        try:
            return self._decide(await self._claims.fetch(spec.ref), others)
        except (ClaimError, NotFound) as err:
            log.warning(
                "adopted a claim whose earlier result cannot be restored; its devices stay held until it is unprepared",
                extra={"claim": str(spec.ref), "uid": spec.ref.uid, "error": str(err)},
            )
            held = tuple(AllocatedDevice("", "", device) for device in spec.devices)
            return self._adopt(listed or Claim(spec.ref, held))


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
