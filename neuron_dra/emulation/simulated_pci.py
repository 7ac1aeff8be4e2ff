"""The PCI functions of simulated hardware, with their NUMA nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.numa import numa_nodes
from neuron_dra.emulation.simulated_files import make_link, put

PCI: Final = "sys/bus/pci"


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
