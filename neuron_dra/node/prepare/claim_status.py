"""Writes what was prepared into the status of claims, for people and programs that read claims.

Nothing depends on it: a prepare does not wait for the write, and a write that fails is repeated. It needs Kubernetes
1.36, which lets a driver write its own entries only; before, the right to write them was that to write all of a claim's
status.
"""

from __future__ import annotations

import datetime
import logging
import random
import time
from collections.abc import Iterator
from typing import Final

from neuron_dra.api import claims as wire
from neuron_dra.core import backoff, claim_status, versions
from neuron_dra.core.claims import PreparedClaim
from neuron_dra.core.wire import Obj
from neuron_dra.errors import ApiError, ClaimError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from neuron_dra.kube import objects
from neuron_dra.kube.client import KubeClient, decode_object
from neuron_dra.kube.requests import RESOURCE_CLAIMS
from neuron_dra.node import version
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.timing import PluginTiming

log = logging.getLogger(__name__)

CONFLICTS: Final = 5  # attempts at once, each with the claim as it is by then


class ClaimStatus:
    """Keeps the status of the prepared claims; `run` ends only where the API server is too old for it."""

    def __init__(self, client: KubeClient, prepared: PreparedClaims, timing: PluginTiming) -> None:
        self._timing = timing
        self._client = client
        self._prepared = prepared
        self._done: dict[str, str] = {}  # by UID: when the claim was prepared whose status has what it should
        self._reported: dict[str, str] = {}  # by UID: the last error in the log

    async def run(self) -> None:
        """Write the status of each prepared claim once, until cancelled."""
        server_version = (await version.server(self._client, self._timing.version_retry_s)).version
        release = versions.parse(server_version)
        if release is None or release < versions.FIRST_WITH_CLAIM_STATUS:
            log.warning("the status of claims is not written before Kubernetes 1.36", extra={"server": server_version})
            return
        waits = self._delays()
        again, until = True, 0.0
        while True:
            seen = self._prepared.changed.count
            if await self._write_all(again=again):
                waits, again = self._delays(), True
                await self._prepared.changed.after(seen)
                continue
            now = time.monotonic()
            if again:
                until = now + next(waits)
            again = not await self._prepared.changed.after(seen, max(0.0, until - now))

    def _delays(self) -> Iterator[float]:
        return backoff.delays(*self._timing.prepare.status_retry_s, random.random)

    async def _write_all(self, *, again: bool) -> bool:
        """Write what is missing; return False if a write failed and may succeed later.

        Claims whose write has failed are left out unless `again`: they delay no other claim.
        """
        current = self._prepared.claims
        self._done = {uid: at for uid, at in self._done.items() if uid in current}
        self._reported = {uid: text for uid, text in self._reported.items() if uid in current}
        is_complete = True
        for uid, claim in current.items():
            if claim.adopted or self._done.get(uid) == claim.prepared_at:
                continue
            if uid in self._reported and not again:
                is_complete = False
                continue
            try:
                await self._write(claim)
            except (ApiError, ClaimError) as err:
                self._report(claim, err)
                if not isinstance(err, Invalid):  # the same write would be invalid again
                    is_complete = False
                    continue
            else:
                self._reported.pop(uid, None)
            self._done[uid] = claim.prepared_at
        return is_complete

    async def _write(self, claim: PreparedClaim) -> None:
        """Write the entries of one claim, if it still exists. Raises ApiError."""
        ref = claim.ref
        for attempt in range(CONFLICTS):
            try:
                raw = await self._client.request("GET", RESOURCE_CLAIMS.path(ref.namespace, ref.name))
                body = _with_status(claim, raw)
                if body is not None:
                    path = RESOURCE_CLAIMS.path(ref.namespace, ref.name, "status")
                    await self._client.request("PUT", path, body=body)
            except NotFound:
                return
            except Conflict:
                if attempt == CONFLICTS - 1:
                    raise
            else:
                return

    def _report(self, claim: PreparedClaim, err: Exception) -> None:
        """Log an error, once for each claim and text."""
        text = str(err)
        if self._reported.get(claim.ref.uid) != text:
            self._reported[claim.ref.uid] = text
            hint = "; the driver's ClusterRole may lack draDriver.claimStatus" if isinstance(err, Forbidden) else ""
            facts = {"claim": str(claim.ref), "uid": claim.ref.uid, "error": text + hint}
            log.warning("the status of a claim cannot be written", extra=facts)


def _with_status(claim: PreparedClaim, raw: bytes) -> Obj | None:
    """Return the claim that the API server has, with what its status should have; None if there is nothing to write.

    Raises ClaimError, Unavailable if it is no claim, and Invalid if a write would change values that cannot be decoded.
    """
    readable = objects.readable(raw)
    stored_claim, ref = wire.decode_claim(readable), claim.ref
    meta = stored_claim.metadata
    if (meta.namespace, meta.name) != (ref.namespace, ref.name) or not meta.uid:
        raise Unavailable(f"the API server returned an object that is not claim {ref}")
    if meta.uid != ref.uid or stored_claim.status.allocation is None:
        return None
    if readable is not raw:
        raise Invalid(f"claim {ref} has opaque values that cannot be decoded, so its status cannot be written")
    body = decode_object(raw)
    status_devices = body["status"].get("devices") or []
    if not isinstance(status_devices, list) or not all(isinstance(entry, dict) for entry in status_devices):
        raise Unavailable(f"the API server returned an object that is not claim {ref}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    changed_devices = claim_status.changed(claim, wire.allocated_devices(stored_claim), status_devices, now)
    return None if changed_devices is None else {**body, "status": {**body["status"], "devices": changed_devices}}
