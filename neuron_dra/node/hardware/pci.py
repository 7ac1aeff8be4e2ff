"""NUMA nodes of PCI functions: the kernel driver's own sysfs has none, because its devices have no parent.

The files can be read without privilege. Which function belongs to which Neuron device is known only where AWS publishes
a map of the devices' EFA interfaces, which are beside them (core/topology.py). Source: aws-neuron-driver, neuron_cdev.c
and neuron_pci.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuron_dra.core import catalogue
from neuron_dra.core.facts import NumaFacts

DRIVER: Final = "sys/bus/pci/drivers/neuron-driver/*/numa_node"
"""The functions that are bound to the kernel driver."""

EFA_FUNCTIONS: Final = tuple(sorted({function for spec in catalogue.all_types() for function in spec.efa or ()}))
"""The EFA functions of all instance types that have a map."""

FILES: Final = ((DRIVER,), *((f"sys/bus/pci/devices/{function}/numa_node",) for function in EFA_FUNCTIONS))


def numa(texts: Sequence[bytes | None]) -> NumaFacts:
    """Return what the files of FILES contain."""
    of_driver, *of_efa = texts
    node_by_function = {function: _node(text) for function, text in zip(EFA_FUNCTIONS, of_efa, strict=True)}
    functions_with_node = tuple((function, node) for function, node in node_by_function.items() if node is not None)
    nodes = {_node(line) for line in (of_driver or b"").split()}
    return NumaFacts(functions_with_node, nodes.pop() if len(nodes) == 1 else None)


def _node(text: bytes | None) -> int | None:
    """Return a NUMA node; None for -1, which means that the firmware has named none."""
    word = (text or b"").strip()
    if word.isdigit() and len(word) <= 4:
        return int(word)
    return None
