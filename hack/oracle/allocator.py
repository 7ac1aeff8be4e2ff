"""Random arrivals and departures of sets, cores and devices on one node, placed by Kubernetes' own allocator.

The laws: what is placed is contiguous on the hardware; no core is in two claims; a request waits only if no published
device of its size is free.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from hack.bench.table import quantile
from hack.oracle import judge, packing
from hack.oracle.connected_slices import partitions_of, slices_of
from hack.oracle.judge import Oracle
from hack.oracle.study import Options
from neuron_dra.core import names
from neuron_dra.core.slices import Pool
from neuron_dra.core.wire import Obj

NODE: Final = "node-a"
REPOSITORY: Final = Path(__file__).resolve().parents[2]
CLASSES: Final = REPOSITORY / "deploy/manifests/connected-sets/20-deviceclasses.yaml"
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


# The study, on one node of each type. The times are those of the allocator for one claim.

TYPES: Final = ("inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge")
PART: Final = 1000  # steps, which begin with an empty node
SHOWN: Final = 20  # violations


def study(options: Options) -> int:
    """Play a third of the steps on each type; return 1 if one violates a law. It needs Go."""
    program = judge.build(REPOSITORY / "build" / "oracle")
    totals = {instance_type: Walk() for instance_type in TYPES}
    share, seed, began = -(-(options.number or 100_000) // len(TYPES)), options.first, time.monotonic()
    with Oracle(program) as answers:
        while (left := share - totals[TYPES[0]].steps) > 0 and time.monotonic() - began < options.minutes * 60:
            for instance_type, total in totals.items():
                total.add(walk(answers, instance_type, steps=min(PART, left), seed=seed))
            done = sum(total.steps for total in totals.values())
            print(f"seed {seed}: {done:,} steps in {time.monotonic() - began:.0f} s", flush=True)
            seed += 1
    for instance_type, total in totals.items():
        print(f"{instance_type}: {total.steps:,} steps, {total.placed:,} placed, {total.refused:,} refused")
        for text in total.wrong[:SHOWN]:
            print(f"FAILED {instance_type}, {text}")
    is_wrong = any(total.wrong for total in totals.values())
    times = [f"{name} {_ms(one.placed_s)} placed, {_ms(one.refused_s)} refused" for name, one in totals.items()]
    print(f"{'FAILED' if is_wrong else 'passed'}, {done:,} steps; ms for a node, p50/p99: {'; '.join(times)}")
    return 1 if is_wrong else 0


def _ms(seconds: Sequence[float]) -> str:
    return f"{quantile(seconds, 0.5) * 1000:.1f}/{quantile(seconds, 0.99) * 1000:.1f}" if seconds else "none"
