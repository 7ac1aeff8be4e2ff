"""The slices of a healthy node with connected sets."""

from __future__ import annotations

from neuron_dra.api.objects import healthy_node
from neuron_dra.core import devices, partitions, slices
from neuron_dra.core.partitions import Partitioned
from neuron_dra.core.slices import Pool
from neuron_dra.core.wire import Obj


def partitions_of(instance_type: str, shape: str = "devices") -> Partitioned:
    """Return what a healthy node of this type publishes; `shape` is the setting --ultraserver-devices."""
    node = healthy_node(instance_type)
    found = partitions.partitioned(node, devices.published(node, driver_version="1.2.3", ultraserver_devices=shape))
    assert found is not None
    return found


def slices_of(found: Partitioned, pool: Pool) -> list[Obj]:
    """Return the slices with these devices and counters."""
    wires = [one.device.to_wire() for one in found.partitions]
    counters = [each.to_wire() for each in found.counters]
    return slices.desired(pool, wires, 1, counters=counters, position=found.position)
