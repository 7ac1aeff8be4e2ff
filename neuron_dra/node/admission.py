"""Decides whether this node prepares a claim, and with which devices."""

from __future__ import annotations

import datetime

from neuron_dra import __version__
from neuron_dra.core import decision, health, notice
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.core.metadata import MetadataSource
from neuron_dra.errors import ClaimError, DriverNotReady
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.own_node import OwnNode
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.publish.coexistence import DevicePluginWatch
from neuron_dra.node.ultraserver.reservation_gate import ReservationGate
from neuron_dra.settings import PluginSettings


class NodeAdmission:
    """Decides on claims from the current hardware and reservation."""

    def __init__(
        self,
        settings: PluginSettings,
        claims: ClaimReader,
        hardware: Hardware,
        node: OwnNode,
        device_plugin: DevicePluginWatch,
        gate: ReservationGate,
    ) -> None:
        self._settings = settings
        self._claims = claims
        self._hardware = hardware
        self._node = node
        self._device_plugin = device_plugin
        self._gate = gate

    async def fetch(self, ref: ClaimRef) -> Claim:
        """Wait for the hardware, read a claim, and wait for the reservation.

        Raises ClaimError, ApiError, DriverNotReady while the kernel driver is not loaded completely.
        """
        await self._hardware.wait()
        if why := self._hardware.why_unknown:
            raise DriverNotReady(f"claim {ref}: {why}") if self._hardware.is_away else ClaimError(f"claim {ref}: {why}")
        claim = await self._claims.fetch(ref)
        await self._device_plugin.looked.wait()
        if (why := self._why_device_plugin()) and not all(device.admin_access for device in claim.devices):
            raise ClaimError(f"claim {ref}: {why}")
        await self._gate.wait(claim)
        return claim

    async def allocation(self, ref: ClaimRef) -> Claim:
        """Read which devices a prepared claim has now. Raises ClaimError, ApiError."""
        return await self._claims.allocation(ref)

    def decide(self, claim: Claim, other_claims: list[PreparedClaim]) -> PreparedClaim:
        """Return the claim's devices, given the other prepared claims. Called in a thread. Raises ClaimError."""
        return decision.decide(
            claim,
            node_name=self._settings.node_name,
            node=self._hardware.node,
            held=other_claims,
            device_files=self._hardware.device_files,
            reservation=self._gate.reservation,
            unhealthy=self._why_unhealthy,
            metadata=MetadataSource(self._settings.cdi_root, __version__) if self._settings.device_metadata else None,
            notices=f"{self._settings.cdi_root}/{notice.FOLDER}",
            prepared_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    def _why_device_plugin(self) -> str:
        """Return why claims are rejected because of a running device plugin; empty if they are not."""
        if self._settings.device_plugin_coexistence != "refuse":
            return ""
        return self._device_plugin.why(self._node.object)

    def _why_unhealthy(self, result: AllocatedDevice) -> str:
        effect = self._settings.unhealthy_device_effect
        return health.why_refused(self._hardware.health_of(result.device), result.tolerations, effect)
