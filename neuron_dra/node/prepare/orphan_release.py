"""Releases orphaned claims, which the kubelet never unprepares, and so frees their devices.

Candidates are claims that another driver prepared, and claims prepared before the checkpoint was lost or another driver
ran here. A claim is released when the kubelet has not listed it for five minutes and the API server no longer has it.
The kubelet is queried first, which puts no load on the API server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from neuron_dra.api import claims as wire
from neuron_dra.core import in_use, versions
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.dra_driver import NEURON, Driver
from neuron_dra.errors import ApiError, ClaimError
from neuron_dra.node.prepare import pod_resources
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.timing import OrphanTiming

log = logging.getLogger(__name__)


class OrphanRelease:
    """Releases the claims of `prepared` that are orphaned."""

    def __init__(
        self,
        prepared: PreparedClaims,
        claims: ClaimReader,
        node_name: str,
        socket: Path,
        kubelet_version: Callable[[], str],
        timing: OrphanTiming,
        driver: Driver = NEURON,
    ) -> None:
        self._driver = driver
        self._timing = timing
        self._prepared = prepared
        self._claims = claims
        self._node_name = node_name
        self._socket = socket
        self._kubelet_version = kubelet_version
        self._absent_since: dict[str, float] = {}
        self._ask_at: dict[str, float] = {}
        self._waits_s: dict[str, float] = {}
        self._logged = ""

    async def run(self) -> None:
        """Check every `look_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._timing.look_s)
            try:
                await self.look()
            except (OSError, TimeoutError) as err:
                log.warning("cannot forget orphaned claims yet", extra={"error": str(err)})

    async def look(self) -> None:
        """Check once, and release claims that are certainly orphaned. Raises OSError, TimeoutError."""
        doubtful_claims = {uid: claim for uid, claim in self._prepared.claims.items() if in_use.is_doubtful(claim)}
        absent_claims = await self._absent(doubtful_claims) if doubtful_claims else {}
        now = asyncio.get_running_loop().time()
        self._absent_since = {uid: self._absent_since.get(uid, now) for uid in absent_claims}
        for times_by_uid in (self._ask_at, self._waits_s):
            for uid in [uid for uid in times_by_uid if uid not in absent_claims]:
                del times_by_uid[uid]
        due_uids = [
            uid
            for uid, since in self._absent_since.items()
            if now >= since + self._timing.absent_s and now >= self._ask_at.get(uid, 0.0)
        ]
        gone_claims = [absent_claims[uid] for uid in due_uids if await self._is_gone(absent_claims[uid], now)]
        if gone_claims:
            # Ask the kubelet again, after the API server's reply.
            still_absent = await self._absent({claim.ref.uid: claim for claim in gone_claims})
            for claim in await self._prepared.forget(list(still_absent.values())):
                log.warning(
                    "forgot an orphaned claim, which neither the kubelet nor the API server has; its devices are free",
                    extra={"claim": str(claim.ref), "uid": claim.ref.uid},
                )

    async def _absent(self, claims: dict[str, PreparedClaim]) -> dict[str, PreparedClaim]:
        """Return those of `claims` that the kubelet does not list."""
        kubelet = versions.parse(self._kubelet_version())
        if kubelet is None or kubelet < (1, in_use.FIRST_MINOR):
            self._log_once("kubelets before 1.34 do not list claims", len(claims))
            return {}
        try:
            pods = await pod_resources.listed(self._socket, self._timing.list_s)
        except ConnectionError as err:
            self._log_once(f"the kubelet's pod-resources API is unavailable ({self._socket}): {err}", len(claims))
            return {}
        self._logged = ""
        return {uid: claim for uid, claim in claims.items() if in_use.is_absent(claim, pods, self._driver.name)}

    async def _is_gone(self, claim: PreparedClaim, now: float) -> bool:
        uid = claim.ref.uid
        try:
            stored = await self._claims.find(claim.ref)
            allocated = wire.allocated_devices(stored, self._driver.name) if stored is not None else ()
            exists = any(device.pool == self._node_name for device in allocated)
        except (ApiError, ClaimError) as err:
            log.info("cannot look up a claim yet", extra={"claim": str(claim.ref), "error": str(err)})
            return False
        if exists:
            first_s, longest_s = self._timing.ask_again_s
            self._waits_s[uid] = min(2 * self._waits_s.get(uid, first_s / 2), longest_s)
            self._ask_at[uid] = now + self._waits_s[uid]
        return not exists

    def _log_once(self, why: str, count: int) -> None:
        if why != self._logged:
            self._logged = why
            log.warning(
                "orphaned claims cannot be found; they hold their devices until a reboot",
                extra={"claims": count, "why": why},
            )
