"""The state of one node's plugin as text. Pure, except for the terminal's width."""

from __future__ import annotations

from neuron_dra.ask.inspect.state import HEALTH, PluginState, problems
from neuron_dra.ask.render import terminal, words
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb


def lines(state: PluginState, *, wide: bool = False) -> list[str]:
    """Return the screen; `wide` with the settings in force."""
    status, devices = state.status, state.devices
    head = f"node {devices.node_name}: {devices.instance_type or 'unknown type'}"
    if devices.neuron_driver_version:
        head += f", kernel driver {devices.neuron_driver_version}"
    out = [f"{head}, plugin {status.version}"]
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
        settings = []
        for setting in state.configuration.settings:
            settings.append([setting.name, setting.value, setting.source])
        out += ["", *terminal.table([["SETTING", "VALUE", "FROM"], *settings])]
    return out


def _devices(state: PluginState) -> list[list[str]]:
    claims = {claim.uid: f"{claim.namespace}/{claim.name}" for claim in state.claims.claims}
    rows = [["DEVICE", "CORES", "MEMORY", "LINKS TO", "HEALTH", "CLAIM"]]
    for device in state.devices.devices:
        memory = f"{device.memory_bytes >> 30} GiB" if device.memory_bytes else "-"
        links = words.ranges(device.connected_devices) or "-"
        holder = claims.get(device.claim_uid, device.claim_uid) or "-"
        rows.append([device.name, str(device.core_count), memory, links, HEALTH[device.health], holder])
    return rows


def _claims(state: PluginState) -> list[list[str]]:
    rows = [["PREPARED CLAIM", "DEVICES", "SINCE"]]
    for claim in state.claims.claims:
        admin = ""
        if any(device.admin_access for device in claim.devices):
            admin = " (admin access)"
        devices = words.devices([device.device for device in claim.devices]) + admin
        rows.append([f"{claim.namespace}/{claim.name}", devices, claim.prepared_at])
    return rows


def _reservation(response: pb.GetReservationResponse) -> list[str]:
    if not response.ultraserver:
        return []
    text = f"UltraServer {response.ultraserver}"
    if not response.HasField("reservation"):
        if response.known:
            return [f"{text}: not reserved"]
        return [text]
    reservation = response.reservation
    text += f": reserved for workload {reservation.workload}, {reservation.phase}"
    if reservation.HasField("rank"):
        text += f", rank {reservation.rank} of {reservation.world_size}"
    if response.HasField("tag"):
        text += f"; its devices show {response.tag.phase}"
    else:
        text += "; its devices do not show it"
    return terminal.wrapped(text, rest="  ")
