"""The catalogue of instance types and their hardware; the data is in neuron_dra/data/instances.toml."""

from __future__ import annotations

import difflib
import enum
import functools
import pkgutil
import tomllib
from dataclasses import dataclass, replace
from typing import Any, Literal

GIB = 1024**3
SAGEMAKER = "ml."

Shape = Literal["none", "line", "ring", "torus", "switch"]


class Platform(enum.Enum):
    """The kernel driver's platform for an instance type, which determines which UltraServer files exist in sysfs."""

    STANDARD = "standard"
    ULTRASERVER = "ultraserver"  # Trn2: four nodes elect their ids over the links
    PDS = "pds"  # Trn3 behind switches: ids come from firmware
    MAX = "max"  # Trn3 with four devices a node


@dataclass(frozen=True, slots=True)
class InstanceType:
    """The specified hardware of one instance type.

    - `device_count`, `cores_per_device`, `memory_bytes_per_device`: devices of the node, physical NeuronCores and bytes
      of HBM of each.
    - `lnc_default`: the size of a logical NeuronCore in physical cores that the runtime uses by default.
    - `lnc_allowed`: the sizes that a claim may request; empty means that the size is fixed.
    - `shape`: how the links connect the devices.
    - `efa`: the PCI function of each device's EFA interface; None if AWS publishes no map.
    - `links`: each device's neighbors in the order in which the kernel driver prints them; empty if it prints none.
    - `links_promised`: False if a node may differ from `links`: Inf1 reads them from its hardware, and a switch has
      none.
    """

    name: str
    generation: str
    platform: Platform
    device_count: int
    cores_per_device: int
    memory_bytes_per_device: int
    lnc_default: int
    lnc_allowed: tuple[int, ...]
    shape: Shape
    efa: tuple[str, ...] | None
    links: tuple[tuple[int, ...], ...]
    links_promised: bool
    arch: tuple[str, str, str, str]  # arch_type of device and core, instance_type and device_name in sysfs

    @property
    def is_trainium(self) -> bool:
        """True for Trainium (trn), False for Inferentia (inf)."""
        return self.generation.startswith("trn")

    @property
    def whole_node(self) -> bool:
        """True if nodes of this type are part of an UltraServer; each is then published as one device by default."""
        return self.platform is not Platform.STANDARD


@functools.cache
def _data() -> dict[str, Any]:
    """Return the parsed neuron_dra/data/instances.toml."""
    # Not importlib.resources, which takes a hundredth of a second to import.
    text = pkgutil.get_data("neuron_dra", "data/instances.toml") or b""
    return tomllib.loads(text.decode())


@functools.cache
def all_types() -> tuple[InstanceType, ...]:
    """Return every instance type, in the catalogue's order."""
    types = []
    for type_entry in _data()["instance"]:
        for name in type_entry["names"]:
            types.append(_instance(name, type_entry))
    return tuple(types)


@functools.cache
def lookup(name: str) -> InstanceType | None:
    """Return the instance type `name`, or None if it is unknown.

    A name outside the catalogue matches by the prefixes that the kernel driver uses for it, so that a new size of a
    known family works; such a type has no EFA map, because that differs between sizes.

    SageMaker's names are EC2's with the prefix `ml.`, for the same machines.
    """
    if name.startswith(SAGEMAKER):
        instance_type = lookup(name.removeprefix(SAGEMAKER))
        return instance_type and replace(instance_type, name=name)
    for instance_type in all_types():
        if instance_type.name == name:
            return instance_type
    for prefixes in _data()["prefixes"].values():
        for prefix in prefixes:
            if name.startswith(prefix):
                representative = next(candidate for candidate in all_types() if candidate.name == prefix)
                return replace(representative, name=name, efa=None)
    return None


def largest(family: str) -> InstanceType | None:
    """Return the type of `family`, such as trn2u, that has the most devices; None if the family is unknown."""
    members = [instance_type for instance_type in all_types() if instance_type.name.partition(".")[0] == family]
    return max(members, key=lambda instance_type: instance_type.device_count, default=None)


def nearest(name: str) -> str:
    """Return "; did you mean ...?" with the types whose names resemble `name`, or an empty string, for messages."""
    near = difflib.get_close_matches(name, [instance_type.name for instance_type in all_types()], n=3, cutoff=0.6)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return ""


def _instance(name: str, type_entry: dict[str, Any]) -> InstanceType:
    """Return the instance type `name` from its entry in the data.

    Its generation has the fields that all types of a generation share.
    """
    catalogue = _data()
    generation = catalogue["generation"][type_entry["generation"]]
    count = type_entry["devices"]
    efa = catalogue["efa"][type_entry["efa"]] if "efa" in type_entry else None
    return InstanceType(
        name=name,
        generation=type_entry["generation"],
        platform=Platform(type_entry.get("platform", "standard")),
        device_count=count,
        cores_per_device=generation["cores"],
        memory_bytes_per_device=generation["memory_gib"] * GIB,
        lnc_default=generation["lnc_default"],
        lnc_allowed=tuple(generation["lnc"]),
        shape=type_entry["shape"],
        efa=tuple(f"0000:{function}" for function in efa) if efa else None,
        links=_links(type_entry, count, catalogue["links"].get(generation.get("links", ""))),
        links_promised=generation.get("links_promised", True) and type_entry["shape"] != "switch",
        arch=tuple(generation["arch"]),
    )


def _links(type_entry: dict[str, Any], count: int, torus: list[str] | None) -> tuple[tuple[int, ...], ...]:
    """Return each device's neighbors by the type's shape, in the order in which the kernel driver prints them.

    `torus` are the rows of the generation's 16-device torus; a switched type prints the same rows.
    """
    shape = type_entry["shape"]
    if count == 16 and torus and shape in ("torus", "switch"):
        return tuple(tuple(map(int, row.split(","))) for row in torus)
    steps = (1, -1) if type_entry["generation"] == "inf1" else (-1, 1)
    if shape == "line":
        neighbors = []
        for device_id in range(count):
            neighbors.append(tuple(device_id + step for step in steps if 0 <= device_id + step < count))
        return tuple(neighbors)
    if shape == "ring":
        return tuple(tuple((device_id + step) % count for step in steps) for device_id in range(count))
    return ()
