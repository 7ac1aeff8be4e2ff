"""The NUMA nodes of Neuron devices and EFA interfaces, as far as they are known of the real hardware.

The EFA interfaces and Neuron devices with the lower bus numbers are on NUMA node 0, the others on 1: so it is on a
trn2n.48xlarge (Neuron SDK, neuron-ls). A single device has no NUMA node, as on a trn1.2xlarge.
"""

from __future__ import annotations

from typing import Final

from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.facts import NumaFacts

NONE: Final = -1


def numa_nodes(spec: InstanceType) -> list[int]:
    """Return the NUMA node of each device."""
    if spec.device_count == 1:
        return [NONE]
    if spec.efa is None:
        node_by_device = []
        for device_id in range(spec.device_count):
            node_by_device.append(0 if device_id < spec.device_count // 2 else 1)
        return node_by_device
    functions = sorted(set(spec.efa))
    low = functions[: len(functions) // 2]
    return [0 if function in low else 1 for function in spec.efa]


def facts(spec: InstanceType) -> NumaFacts:
    """Return what the plugin reads of a node of this type."""
    nodes = numa_nodes(spec)
    efa = dict(zip(spec.efa or (), nodes, strict=False))
    common_node = nodes[0] if len(set(nodes)) == 1 and nodes[0] != NONE else None
    return NumaFacts(tuple(sorted(efa.items())), common_node)
