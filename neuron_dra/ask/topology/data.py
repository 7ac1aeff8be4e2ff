"""The devices and EFA interfaces of a node for `-o json` and `-o yaml`. Pure."""

from __future__ import annotations

from typing import Any

from neuron_dra.ask.world import interfaces, unseen
from neuron_dra.ask.world.fleet import NodeView
from neuron_dra.ask.world.world import World


def node(world: World, view: NodeView) -> dict[str, Any]:
    """Return what a node publishes, who holds it, and which Neuron devices are next to its EFA interfaces."""
    devices = []
    for device in view.devices:
        devices.append(
            {
                "name": device.name,
                "number": device.number,
                "heldBy": [str(holder) for holder in device.holders],
                "faults": device.faults,
                "groups": dict(device.groups),
            }
        )
    node_interfaces = []
    for interface in interfaces.of_node(world, view.name):
        node_interfaces.append(
            {
                "name": interface.name,
                "rdmaName": interface.rdma_name,
                "heldBy": [str(interface.holder)] if interface.holder is not None else [],
                "faults": interface.faults,
                "nextTo": list(interface.next_to),
            }
        )
    return {
        "node": view.name,
        "type": view.type,
        "ready": view.ready,
        "schedulable": view.schedulable,
        "devices": devices,
        "interfaces": node_interfaces,
        "interfacesFault": interfaces.why_contested(world, view.name),
        "notSeen": unseen.data(world.snapshot),
    }
