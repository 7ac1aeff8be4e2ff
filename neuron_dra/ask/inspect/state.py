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
        answers = {}
        for name in ("status", "devices", "claims", "reservation", "configuration"):
            answers[name] = getattr(self, name)
        return answers


def problems(state: PluginState) -> list[str]:
    """Return what is wrong, a sentence each."""
    status, devices = state.status, state.devices
    problem_texts = []
    if not status.registered:
        why = status.registration_error or "the kubelet has not called yet"
        problem_texts.append(f"not registered with the kubelet: {why}")
    if not status.published:
        problem_texts.append(f"not published: {status.publish_error or 'the first publish is not done yet'}")
    for device in filter(_bad, devices.devices):
        problem_texts.append(f"{device.name}: {device.health_message or HEALTH[device.health]}")
    return [*problem_texts, *devices.findings, *state.reservation.problems]


def _bad(device: pb.NeuronDevice) -> bool:
    return device.health != pb.HEALTH_HEALTHY
