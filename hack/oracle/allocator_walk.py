"""Random arrivals and departures of sets, cores and devices on one node, placed by Kubernetes' own allocator.

The laws: what is placed is contiguous on the hardware; no core is in two claims; a request waits only if no published
device of its size is free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from hack.oracle import packing_walk as packing
from hack.oracle.connected_slices import partitions_of, slices_of
from hack.oracle.judge import Oracle
from neuron_dra.core import names
from neuron_dra.core.slices import Pool
from neuron_dra.core.wire import Obj

NODE: Final = "node-a"
CLASSES: Final = Path(__file__).resolve().parents[2] / "deploy/manifests/connected-sets/20-deviceclasses.yaml"
SINGLE: Final = "connected-1"
"""The size that claims of the class for plain devices have too."""


@dataclass(slots=True)
class Walk:
    """The results: the numbers of requests, the violations, and the allocator's times in seconds."""

    steps: int = 0
    placed: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    placed_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def add(self, other: Walk) -> None:
        """Add the results of another walk."""
        self.steps += other.steps
        self.placed += other.placed
        self.refused += other.refused
        self.wrong += other.wrong
        self.placed_s += other.placed_s
        self.refused_s += other.refused_s


def walk(oracle: Oracle, instance_type: str, *, steps: int, seed: int) -> Walk:
    """Play `steps` arrivals and departures on a node of this type, and check each of them."""
    offered, found = packing.offer(instance_type), Walk()
    cores = {one.device.name: sum(1 << core for core in one.cores) for one in partitions_of(instance_type).partitions}
    held: list[str] = []
    free = (1 << offered.cores) - 1
    about: Obj = _node(instance_type)
    for event in packing.requests(offered, steps, seed):
        found.steps += 1
        if isinstance(event, float):
            if held:
                free |= cores[held.pop(int(event * len(held)))]
            continue
        in_use = [{"driver": names.DRIVER, "pool": NODE, "device": device} for device in held]
        answer = oracle.ask({**about, "claims": [_claim(event, found.steps)], "inUse": in_use, "timed": True})
        about = {}  # the program keeps it
        device = _allocated(answer)
        (found.refused_s if device is None else found.placed_s).append(answer["nanoseconds"] / 1e9)
        wrong = _wrong(offered, event, free, None if device is None else cores.get(device, 0), answer)
        if wrong:
            found.wrong.append(f"seed {seed}, step {found.steps}, {event}: {wrong}; held: {', '.join(held)}")
        if device is None:
            found.refused += 1
            continue
        found.placed += 1
        held.append(device)
        free &= ~cores.get(device, 0)
    return found


def _wrong(offered: packing.Offer, size: str, free: int, got: int | None, answer: Obj) -> str:
    """Return which law an answer violates, or an empty string; `got` are the cores of the allocated device."""
    if answer.get("error"):
        return str(answer["error"])
    if got is None:
        is_free = any(place & free == place for place in offered.places[size])
        return "waits although a place is free" if is_free else ""
    if got not in packing.possible(offered.instance_type, size):
        return "got what is not contiguous, or of another size"
    return "" if got & free == got else "got cores that another claim has"


def _allocated(answer: Obj) -> str | None:
    allocations: list[Any] = answer.get("allocations") or []
    return str(allocations[0]["devices"]["results"][0]["device"]) if allocations else None


def _claim(size: str, number: int) -> Obj:
    """Return a claim for one device of a size; every other one for a single device has the class of plain devices."""
    name = names.DRIVER if size == SINGLE and number % 2 else f"{size}.{names.DRIVER}"
    request = {"name": "r", "exactly": {"deviceClassName": name, "allocationMode": "ExactCount", "count": 1}}
    return {
        "metadata": {"name": f"claim-{number}", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }


def _node(instance_type: str) -> Obj:
    """Return the node, its slices and the DeviceClasses."""
    classes = [item for item in yaml.safe_load_all(CLASSES.read_text()) if item and item["kind"] == "DeviceClass"]
    made = slices_of(partitions_of(instance_type), Pool(NODE, "node-uid"))
    return {"slices": made, "classes": classes, "node": {"metadata": {"name": NODE}}}
