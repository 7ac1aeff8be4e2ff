"""The DRA drivers of the plugin's process: what parts that serve both must not assume.

A request of the kubelet carries no driver name, so each driver has its own sockets, store and slices. What a driver
publishes, and how it decides on a claim, are the parts that the plugin passes to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from neuron_dra.core import names


@dataclass(frozen=True, slots=True)
class Driver:
    """A DRA driver: the name in slices and claims, and the pattern of its devices' names in CDI files."""

    name: str
    device_name: re.Pattern[str]

    @property
    def cdi_kind(self) -> str:
        """The vendor and class of its CDI devices."""
        return f"k8s.{self.name}/claim"

    @property
    def cdi_file_prefix(self) -> str:
        """How the names of its CDI files begin; a claim's UID follows."""
        return f"k8s.{self.name}-claim_"

    @property
    def metadata_folder(self) -> str:
        """Folder of its metadata files, inside the CDI folder."""
        return f"{self.name}-metadata"

    @property
    def notices_folder(self) -> str:
        """Folder of its claims' notices, inside the CDI folder."""
        return f"{self.name}-notices"


NEURON: Final = Driver(
    names.DRIVER,
    re.compile(rf"{names.DEVICE_PREFIX}\d+|{names.NODE_DEVICE}|({names.SET_PREFIX}|{names.CORES_PREFIX})\d+-\d+"),
)
EFA: Final = Driver("dra.net", re.compile(r"pci-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7]"))
"""EFA interfaces. The name is that of DRANET, which may have published the same interfaces before (core/efa.py)."""

BY_NAME: Final = {driver.name: driver for driver in (NEURON, EFA)}
