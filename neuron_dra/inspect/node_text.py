"""The state of one node's plugin as text. Pure, except for the terminal's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb
from neuron_dra.inspect import terminal, words

_HEALTH = {pb.HEALTH_HEALTHY: "healthy", pb.HEALTH_UNHEALTHY: "unhealthy", pb.HEALTH_UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class State:
    """The answers of NodeInspector."""

    status: pb.GetStatusResponse
    devices: pb.ListDevicesResponse
    claims: pb.ListPreparedClaimsResponse
    reservation: pb.GetReservationResponse
    configuration: pb.GetConfigurationResponse

    def parts(self) -> dict[str, Any]:
        """Return the answers by name."""
        return {name: getattr(self, name) for name in ("status", "devices", "claims", "reservation", "configuration")}


def problems(state: State) -> list[str]:
    """Return what is wrong, a sentence each."""
    status, devices = state.status, state.devices
    found = []
    if not status.registered:
        why = status.registration_error or "the kubelet has not called yet"
        found.append(f"not registered with the kubelet: {why}")
    if not status.published:
        found.append(f"not published: {status.publish_error or 'the first publish is not done yet'}")
    found += [f"{each.name}: {each.health_message or _HEALTH[each.health]}" for each in devices.devices if _bad(each)]
    return [*found, *devices.findings, *state.reservation.problems]


def _bad(device: pb.NeuronDevice) -> bool:
    return device.health != pb.HEALTH_HEALTHY


def lines(state: State, *, wide: bool = False) -> list[str]:
    """Return the screen; `wide` with the settings in force."""
    status, devices = state.status, state.devices
    kernel = f", kernel driver {devices.neuron_driver_version}" if devices.neuron_driver_version else ""
    out = [f"node {devices.node_name}: {devices.instance_type or 'unknown type'}{kernel}, plugin {status.version}"]
    if status.published:
        slices = f"{words.count(status.devices, 'device')} in {words.count(status.slices, 'slice')}"
        out.append(f"published {slices}, generation {status.pool_generation}, at {status.published_at}")
    out += _reservation(state.reservation)
    for text in problems(state):
        out += [terminal.colored(line, "red") for line in terminal.wrapped(text, first="! ", rest="  ")]
    out += ["", *terminal.table(_devices(state))]
    if state.claims.claims:
        out += ["", *terminal.table(_claims(state))]
    if wide:
        settings = [[each.name, each.value, each.source] for each in state.configuration.settings]
        out += ["", *terminal.table([["SETTING", "VALUE", "FROM"], *settings])]
    return out


def _devices(state: State) -> list[list[str]]:
    claims = {each.uid: f"{each.namespace}/{each.name}" for each in state.claims.claims}
    rows = [["DEVICE", "CORES", "MEMORY", "LINKS TO", "HEALTH", "CLAIM"]]
    for each in state.devices.devices:
        memory = f"{each.memory_bytes >> 30} GiB" if each.memory_bytes else "-"
        links = words.ranges(each.connected_devices) or "-"
        holder = claims.get(each.claim_uid, each.claim_uid) or "-"
        rows.append([each.name, str(each.core_count), memory, links, _HEALTH[each.health], holder])
    return rows


def _claims(state: State) -> list[list[str]]:
    rows = [["PREPARED CLAIM", "DEVICES", "SINCE"]]
    for each in state.claims.claims:
        admin = " (admin access)" if any(device.admin_access for device in each.devices) else ""
        devices = words.devices([device.device for device in each.devices]) + admin
        rows.append([f"{each.namespace}/{each.name}", devices, each.prepared_at])
    return rows


def _reservation(found: pb.GetReservationResponse) -> list[str]:
    if not found.ultraserver:
        return []
    if not found.HasField("reservation"):
        return [f"UltraServer {found.ultraserver}: not reserved" if found.known else f"UltraServer {found.ultraserver}"]
    mine = found.reservation
    rank = f", rank {mine.rank} of {mine.world_size}" if mine.HasField("rank") else ""
    shown = f"; its devices show {found.tag.phase}" if found.HasField("tag") else "; its devices do not show it"
    return terminal.wrapped(
        f"UltraServer {found.ultraserver}: reserved for workload {mine.workload}, {mine.phase}{rank}{shown}", rest="  "
    )
