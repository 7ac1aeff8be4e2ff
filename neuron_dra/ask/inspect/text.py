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
        for each in state.configuration.settings:
            settings.append([each.name, each.value, each.source])
        out += ["", *terminal.table([["SETTING", "VALUE", "FROM"], *settings])]
    return out


def _devices(state: PluginState) -> list[list[str]]:
    claims = {each.uid: f"{each.namespace}/{each.name}" for each in state.claims.claims}
    rows = [["DEVICE", "CORES", "MEMORY", "LINKS TO", "HEALTH", "CLAIM"]]
    for each in state.devices.devices:
        memory = f"{each.memory_bytes >> 30} GiB" if each.memory_bytes else "-"
        links = words.ranges(each.connected_devices) or "-"
        holder = claims.get(each.claim_uid, each.claim_uid) or "-"
        rows.append([each.name, str(each.core_count), memory, links, HEALTH[each.health], holder])
    return rows


def _claims(state: PluginState) -> list[list[str]]:
    rows = [["PREPARED CLAIM", "DEVICES", "SINCE"]]
    for each in state.claims.claims:
        admin = ""
        if any(device.admin_access for device in each.devices):
            admin = " (admin access)"
        devices = words.devices([device.device for device in each.devices]) + admin
        rows.append([f"{each.namespace}/{each.name}", devices, each.prepared_at])
    return rows


def _reservation(found: pb.GetReservationResponse) -> list[str]:
    if not found.ultraserver:
        return []
    text = f"UltraServer {found.ultraserver}"
    if not found.HasField("reservation"):
        if found.known:
            return [f"{text}: not reserved"]
        return [text]
    mine = found.reservation
    text += f": reserved for workload {mine.workload}, {mine.phase}"
    if mine.HasField("rank"):
        text += f", rank {mine.rank} of {mine.world_size}"
    if found.HasField("tag"):
        text += f"; its devices show {found.tag.phase}"
    else:
        text += "; its devices do not show it"
    return terminal.wrapped(text, rest="  ")
