"""Decides whether this node prepares a claim for EFA interfaces."""

from __future__ import annotations

import asyncio
import datetime

from neuron_dra.api import claims as wire
from neuron_dra.core import efa
from neuron_dra.core.claims import Claim, ClaimRef, PreparedClaim
from neuron_dra.core.dra_driver import EFA
from neuron_dra.errors import ClaimError
from neuron_dra.node.efa.hardware import EfaHardware
from neuron_dra.node.efa.managers import OtherManagers
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.settings import PluginSettings


class EfaClaimReader(ClaimReader):
    """Reads the claims that hold EFA interfaces of this node."""

    driver = EFA

    async def _decoded(self, claim: wire.ResourceClaim, ref: ClaimRef) -> Claim:
        return wire.efa_to_core(claim, ref)


class EfaAdmission:
    """Decides on claims from the interfaces as they are at that moment."""

    def __init__(
        self,
        settings: PluginSettings,
        claims: EfaClaimReader,
        hardware: EfaHardware,
        managers: OtherManagers,
        deadline_s: float,
    ) -> None:
        """`deadline_s` is how long a claim waits for the first reading."""
        self._deadline_s = deadline_s
        self._settings = settings
        self._claims = claims
        self._hardware = hardware
        self._managers = managers

    async def fetch(self, ref: ClaimRef) -> Claim:
        """Read a claim. Raises ClaimError, also where another program manages the interfaces, and ApiError."""
        claim = await self._claims.fetch(ref)
        try:
            async with asyncio.timeout(self._deadline_s):
                await asyncio.gather(self._managers.looked.wait(), self._hardware.known.wait())
        except TimeoutError as err:
            raise ClaimError(f"claim {ref}: the node's EFA interfaces are still being read") from err
        if why := self._managers.why():
            raise ClaimError(f"claim {ref}: {why}")
        return claim

    async def allocation(self, ref: ClaimRef) -> Claim:
        """Read which interfaces a prepared claim has now. Raises ClaimError, ApiError."""
        return await self._claims.allocation(ref)

    def decide(self, claim: Claim, other_claims: list[PreparedClaim]) -> PreparedClaim:
        """Return the claim's interfaces, given the other prepared claims. Called in a thread. Raises ClaimError."""
        try:
            reading = self._hardware.read_now({device.device for device in claim.devices})
        except OSError as err:
            raise ClaimError(f"claim {claim.ref}: the EFA interfaces of the node cannot be read: {err}") from err
        if why := self._managers.why_now(reading):
            raise ClaimError(f"claim {claim.ref}: {why}")
        return efa.decide(
            claim,
            node_name=self._settings.node_name,
            reading=reading,
            watch=self._hardware.watch,
            effect=self._settings.unhealthy_device_effect,
            held=other_claims,
            device_files=self._hardware.device_files,
            prepared_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
