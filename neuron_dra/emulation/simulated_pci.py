"""The PCI functions of simulated hardware, with their NUMA nodes as far as they are known of the real one.

The EFA interfaces and Neuron devices with the lower bus numbers are on NUMA node 0, the others on 1: so it is on a
trn2n.48xlarge (Neuron SDK, neuron-ls). A single device has no NUMA node, as on a trn1.2xlarge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.facts import NumaFacts
from neuron_dra.emulation.simulated_files import make_link, put

PCI: Final = "sys/bus/pci"
NONE: Final = -1


def numa_nodes(spec: InstanceType) -> list[int]:
    """Return the NUMA node of each device."""
    if spec.device_count == 1:
        return [NONE]
    if spec.efa is None:
        return [0 if device_id < spec.device_count // 2 else 1 for device_id in range(spec.device_count)]
    functions = sorted(set(spec.efa))
    low = functions[: len(functions) // 2]
    return [0 if function in low else 1 for function in spec.efa]


def facts(spec: InstanceType) -> NumaFacts:
    """Return what the plugin reads of these functions."""
    nodes = numa_nodes(spec)
    efa = dict(zip(spec.efa or (), nodes, strict=False))
    same = nodes[0] if len(set(nodes)) == 1 and nodes[0] != NONE else None
    return NumaFacts(tuple(sorted(efa.items())), same)


def write(root: Path, spec: InstanceType) -> None:
    """Write the functions of a node's Neuron devices and of its EFA interfaces."""
    nodes = numa_nodes(spec)
    for function, node in dict(zip(spec.efa or (), nodes, strict=False)).items():
        _function(root, function, node)
    for device_id, node in enumerate(nodes):
        function = neuron_function(device_id)
        _function(root, function, node)
        make_link(root / PCI / "drivers/neuron-driver" / function, f"../../devices/{function}")


def neuron_function(device_id: int) -> str:
    """Return the PCI function of a Neuron device; real ones differ between types."""
    return f"0000:{device_id:02x}:1e.0"


def _function(root: Path, function: str, node: int) -> None:
    folder = root / PCI / "devices" / function
    put(folder / "vendor", "0x1d0f\n")
    put(folder / "numa_node", f"{node}\n", 0o644)
