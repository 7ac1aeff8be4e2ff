"""Reports prepared claims whose object is gone. They stay prepared: a container may still run."""

from __future__ import annotations

import asyncio
import logging
import random

from neuron_dra.errors import ApiError, ClaimError
from neuron_dra.node.metrics import ORPHANS, PluginMetrics
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.timing import DEFAULT_TIMING, OrphanTiming

log = logging.getLogger(__name__)


async def report(
    prepared: PreparedClaims, claims: ClaimReader, metrics: PluginMetrics, timing: OrphanTiming = DEFAULT_TIMING.orphans
) -> None:
    """Log and count such claims; look soon after the start, then every hour. Unprepared ones no longer count."""
    now = asyncio.get_running_loop().time
    orphan_uids: set[str] = set()
    changes_seen, look_at = prepared.changed.count, now() + random.uniform(*timing.report_first_s)
    while True:
        await prepared.changed.after(changes_seen, look_at - now())
        changes_seen = prepared.changed.count
        if now() >= look_at:
            orphan_uids = await _without_object(prepared, claims, orphan_uids)
            look_at = now() + timing.report_s
        orphan_uids &= prepared.claims.keys()
        metrics.set(ORPHANS, len(orphan_uids))


async def _without_object(prepared: PreparedClaims, claims: ClaimReader, uids_before: set[str]) -> set[str]:
    """Return the UIDs of the prepared claims whose object is gone; without a certain answer, as in `uids_before`."""
    orphan_uids = set(uids_before)
    for claim in list(prepared.claims.values()):
        try:
            is_missing = await claims.find(claim.ref) is None
        except (ApiError, ClaimError):  # no reply, or not one of the API server
            continue
        if is_missing:
            orphan_uids.add(claim.ref.uid)
            log.warning(
                "the object of a prepared claim is gone; waiting for the kubelet to unprepare it",
                extra={"claim": str(claim.ref), "uid": claim.ref.uid},
            )
        else:
            orphan_uids.discard(claim.ref.uid)
    return orphan_uids
