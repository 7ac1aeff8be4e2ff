"""Reports prepared claims whose object is gone. They stay prepared: a container may still run."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from neuron_dra.api import claims as wire
from neuron_dra.errors import ApiError, ClaimError, NotFound
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import RESOURCE_CLAIMS
from neuron_dra.node.metrics import Metrics
from neuron_dra.node.prepare.prepared_claims import PreparedClaims

log = logging.getLogger(__name__)

PERIOD_S: Final = 3600.0


async def report(prepared: PreparedClaims, client: KubeClient, metrics: Metrics) -> None:
    """Log and count such claims every hour, until cancelled."""
    while True:
        await asyncio.sleep(PERIOD_S)
        gone = 0
        for claim in list(prepared.claims.values()):
            try:
                raw = await client.get(RESOURCE_CLAIMS, claim.ref.namespace, claim.ref.name)
                missing = wire.decode_claim(raw).metadata.uid != claim.ref.uid
            except NotFound:
                missing = True
            except (ApiError, ClaimError):  # no reply, or not a claim
                continue
            if missing:
                gone += 1
                log.warning(
                    "the object of a prepared claim is gone; waiting for the kubelet to unprepare it",
                    extra={"claim": str(claim.ref), "uid": claim.ref.uid},
                )
        metrics.orphans(gone)
