"""The answers of one node's plugin, and what they say is wrong. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb

HEALTH = {pb.HEALTH_HEALTHY: "healthy", pb.HEALTH_UNHEALTHY: "unhealthy", pb.HEALTH_UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class PluginState:
    """The answers of NodeInspector."""

    status: pb.GetStatusResponse
    devices: pb.ListDevicesResponse
    claims: pb.ListPreparedClaimsResponse
    reservation: pb.GetReservationResponse
    configuration: pb.GetConfigurationResponse

    def parts(self) -> dict[str, Any]:
        """Return the answers by name."""
        found = {}
        for name in ("status", "devices", "claims", "reservation", "configuration"):
            found[name] = getattr(self, name)
        return found


def problems(state: PluginState) -> list[str]:
    """Return what is wrong, a sentence each."""
    status, devices = state.status, state.devices
    found = []
    if not status.registered:
        why = status.registration_error or "the kubelet has not called yet"
        found.append(f"not registered with the kubelet: {why}")
    if not status.published:
        found.append(f"not published: {status.publish_error or 'the first publish is not done yet'}")
    found += [f"{each.name}: {each.health_message or HEALTH[each.health]}" for each in devices.devices if _bad(each)]
    return [*found, *devices.findings, *state.reservation.problems]


def _bad(device: pb.NeuronDevice) -> bool:
    return device.health != pb.HEALTH_HEALTHY
