"""The catalogue of instance types: what each promises. The data is neuron_dra/data/instances.toml."""

from __future__ import annotations

import enum
import functools
import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

GIB = 1024**3

Shape = Literal["none", "line", "ring", "torus", "switch"]


class Platform(enum.Enum):
    """How the kernel driver runs an instance type; it decides which UltraServer files exist."""

    STANDARD = "standard"
    ULTRASERVER = "ultraserver"  # Trn2: four nodes elect their ids over the links
    PDS = "pds"  # Trn3 behind switches: ids come from firmware
    MAX = "max"  # Trn3 with four devices a node


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What one instance type promises.

    `lnc_allowed` are the sizes of a logical NeuronCore in physical ones that a claim may ask for; empty means fixed.
    `efa` has the PCI function of each device's EFA interface, None where AWS publishes no map.
    `links` are each device's neighbours in the order the kernel driver prints them; empty where it prints none.
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
    arch: tuple[str, str, str, str]  # arch_type of device and core, instance_type and device_name in sysfs

    @property
    def is_trainium(self) -> bool:
        """Trn, not Inf."""
        return self.generation.startswith("trn")

    @property
    def whole_node(self) -> bool:
        """Nodes of this type are parts of UltraServers, and are handed out whole by default."""
        return self.platform is not Platform.STANDARD


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files("neuron_dra").joinpath("data/instances.toml").read_text())


@functools.cache
def all_types() -> tuple[InstanceType, ...]:
    """Return every type of the catalogue, in its order."""
    return tuple(_instance(name, entry) for entry in _data()["instance"] for name in entry["names"])


@functools.cache
def lookup(name: str) -> InstanceType | None:
    """Return the type called `name`, or one that the kernel driver takes for the same by its prefix, or None."""
    for known in all_types():
        if known.name == name:
            return known
    for prefixes in _data()["prefixes"].values():
        for prefix in prefixes:
            if name.startswith(prefix):
                return replace(next(known for known in all_types() if known.name == prefix), name=name, efa=None)
    return None


def _instance(name: str, entry: dict[str, Any]) -> InstanceType:
    data = _data()
    generation = data["generation"][entry["generation"]]
    count = entry["devices"]
    efa = data["efa"][entry["efa"]] if "efa" in entry else None
    return InstanceType(
        name=name,
        generation=entry["generation"],
        platform=Platform(entry.get("platform", "standard")),
        device_count=count,
        cores_per_device=generation["cores"],
        memory_bytes_per_device=generation["memory_gib"] * GIB,
        lnc_default=generation["lnc_default"],
        lnc_allowed=tuple(generation["lnc"]),
        shape=entry["shape"],
        efa=tuple(f"0000:{function}" for function in efa) if efa else None,
        links=_links(entry["shape"], count, data["links"].get(generation.get("links", ""))),
        arch=tuple(generation["arch"]),
    )


def _links(shape: str, count: int, torus: list[str] | None) -> tuple[tuple[int, ...], ...]:
    if count == 16 and torus and shape in ("torus", "switch"):
        return tuple(tuple(map(int, row.split(","))) for row in torus)
    if shape == "line":
        return tuple(tuple(n for n in (i - 1, i + 1) if 0 <= n < count) for i in range(count))
    if shape == "ring":
        return tuple(tuple(dict.fromkeys(((i - 1) % count, (i + 1) % count))) for i in range(count))
    return ()
