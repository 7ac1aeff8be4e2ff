"""Reports prepared claims whose object is gone. They stay prepared: a container may still run."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from neuron_dra.errors import ApiError, ClaimError
from neuron_dra.node.metrics import Metrics
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.prepared_claims import PreparedClaims

log = logging.getLogger(__name__)

PERIOD_S: Final = 3600.0


async def report(prepared: PreparedClaims, claims: ClaimReader, metrics: Metrics) -> None:
    """Log and count such claims every hour, until cancelled."""
    while True:
        await asyncio.sleep(PERIOD_S)
        gone = 0
        for claim in list(prepared.claims.values()):
            try:
                missing = await claims.find(claim.ref) is None
            except (ApiError, ClaimError):  # no reply, or not one of the API server
                continue
            if missing:
                gone += 1
                log.warning(
                    "the object of a prepared claim is gone; waiting for the kubelet to unprepare it",
                    extra={"claim": str(claim.ref), "uid": claim.ref.uid},
                )
        metrics.orphans(gone)
