"""Random arrivals and departures on nodes with connected sets: how well the published order packs.

The scheduler gives a request the first free device of its size, in the order in which the node publishes them. `run`
plays the same requests with that order, with a naive order, and with full knowledge of the node, and checks every step
against the hardware: what is placed is contiguous and free, and a request is refused only if no place is free.
A set of cores is an integer with a bit for each logical core of the node.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hack.oracle.connected_slices import partitions_of
from hack.oracle.study import Options
from hack.reports.reporting import commit_now
from neuron_dra.core import catalogue
from neuron_dra.core.members import cores_each
from neuron_dra.core.partitions import GROUPS

REPORT: Final = Path(__file__).resolve().parents[2] / "docs" / "reports" / "packing.md"
ARRIVALS: Final = 0.52
"""The share of arrivals in all steps; the others end what was placed."""

Choice = Callable[["Offer", str, int], "int | None"]
"""Chooses one of a size's places that are free, or None."""

BIG: Final = 1 / 3
"""A request for this share of a node's cores, or for more, is a big one: small ones easily stand in its way."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node publishes: the places of each size such as `connected-4`, in the published order."""

    instance_type: str
    cores: int
    places: dict[str, tuple[int, ...]]

    def size_of(self, name: str) -> int:
        """Return the number of logical cores of a size."""
        return self.places[name][0].bit_count()

    @property
    def big(self) -> list[str]:
        """The sizes of big requests."""
        return [name for name in self.places if self.size_of(name) >= self.cores * BIG]


@dataclass(slots=True)
class Outcome:
    """What became of the requests. `wrong` are the violations."""

    requested: Counter[str] = field(default_factory=Counter)
    placed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def share(self, names: Sequence[str]) -> float:
        """Return the share of the requests of these sizes that were placed."""
        return sum(self.placed[name] for name in names) / max(1, sum(self.requested[name] for name in names))


@functools.cache
def offer(instance_type: str) -> Offer:
    """Return what a healthy node of this type publishes with connected sets."""
    found = partitions_of(instance_type)
    places: dict[str, tuple[int, ...]] = {}
    for one in found.partitions:
        cores = sum(1 << core for core in one.cores)
        for attribute, prefix in (("connectedDevices", "connected"), ("cores", "cores")):
            if attribute in one.device.attributes:
                name = f"{prefix}-{one.device.attributes[attribute].value}"
                places[name] = (*places.get(name, ()), cores)
    total = max(cores.bit_length() for every in places.values() for cores in every)
    return Offer(instance_type, total, places)


def in_published_order(offered: Offer, name: str, free: int) -> int | None:
    """Choose as the scheduler does: the first free place."""
    return _first_free(offered.instance_type, name, free)


@functools.lru_cache(1_000_000)
def _first_free(instance_type: str, name: str, free: int) -> int | None:
    return next((cores for cores in offer(instance_type).places[name] if cores & free == cores), None)


def in_naive_order(offered: Offer, name: str, free: int) -> int | None:
    """Choose the first free place in an order that was made without thought: shuffled, the same at every call."""
    return next((cores for cores in _shuffled(offered.instance_type, name) if cores & free == cores), None)


def with_full_knowledge(offered: Offer, name: str, free: int) -> int | None:
    """Choose the place after which the most published devices can still be had, each counted by its cores."""
    fitting = [cores for cores in offered.places[name] if cores & free == cores]
    return max(fitting, key=lambda cores: _still_to_be_had(offered.instance_type, free & ~cores), default=None)


@functools.cache
def _shuffled(instance_type: str, name: str) -> tuple[int, ...]:
    places = list(offer(instance_type).places[name])
    random.Random(f"{instance_type}/{name}").shuffle(places)
    return tuple(places)


@functools.lru_cache(100_000)
def _still_to_be_had(instance_type: str, free: int) -> int:
    every = {cores for places in offer(instance_type).places.values() for cores in places}
    return sum(cores.bit_count() for cores in every if cores & free == cores)


@functools.cache
def possible(instance_type: str, name: str) -> frozenset[int]:
    """Return every place of a size that the hardware has, whatever is published: consecutive devices or cores."""
    spec = catalogue.lookup(instance_type)
    assert spec is not None
    each, total = cores_each(spec), spec.device_count
    kind, _, number = name.rpartition("-")
    size = int(number)
    if kind == "cores" and size % each:
        starts = range(total * each - size + 1) if size < each else range(0, total * each - size + 1, each)
        inside = [range(first, first + size) for first in starts if size > each or first % each + size <= each]
        return frozenset(sum(1 << core for core in cores) for cores in inside)
    size = size // each if kind == "cores" else size
    return frozenset(
        sum(((1 << each) - 1) << device * each for device in ids) for ids in _consecutive(spec.shape, total, size)
    )


def _consecutive(shape: str, total: int, size: int) -> Iterator[list[int]]:
    if size == total:
        yield list(range(total))
    elif shape in ("ring", "line"):
        for first in range(total if shape == "ring" else total - size + 1):
            yield [(first + step) % total for step in range(size)]
    elif size == 1 or size in GROUPS:
        for first in range(0, total, size):
            yield list(range(first, first + size))


def requests(offered: Offer, steps: int, seed: int) -> Iterator[str | float]:
    """Yield what happens: a size that is requested, or a number in [0, 1) that chooses which placed request ends.

    The smaller a size, the more often it is requested: each size requests about the same number of cores. More requests
    arrive than end, so that the nodes fill up and refuse some.
    """
    rng = random.Random(f"{offered.instance_type}/{seed}")
    sizes = sorted(offered.places)
    weights = [1 / offered.size_of(name) for name in sizes]
    for _ in range(steps):
        yield rng.choices(sizes, weights)[0] if rng.random() < ARRIVALS else rng.random()


def run(offered: Offer, choose: Choice, *, nodes: int = 1, best_node: bool = False, steps: int, seed: int) -> Outcome:
    """Play random requests on nodes of one type, and check each step.

    The node is a random one of those with a free place, because the scheduler does not rank nodes by devices; with
    `best_node`, it is the one with the fewest free cores.
    """
    rng, outcome = random.Random(seed), Outcome()
    free = [(1 << offered.cores) - 1] * nodes
    held: list[tuple[int, int]] = []
    for event in requests(offered, steps, seed):
        if isinstance(event, float):
            if held:
                node, cores = held.pop(int(event * len(held)))
                free[node] |= cores
            continue
        outcome.requested[event] += 1
        fitting = [node for node in range(nodes) if in_published_order(offered, event, free[node]) is not None]
        every = possible(offered.instance_type, event)
        if not fitting:
            if any(cores & each == cores for each in free for cores in every):
                outcome.wrong.append(f"{event} was refused although a place was free")
            continue
        node = min(fitting, key=lambda each: free[each].bit_count()) if best_node else rng.choice(fitting)
        chosen = choose(offered, event, free[node])
        if chosen is None or chosen not in every or chosen & free[node] != chosen:
            outcome.wrong.append(f"{event} got {chosen} where {free[node]:b} was free")
            continue
        free[node] &= ~chosen
        held.append((node, chosen))
        outcome.placed[event] += 1
    return outcome


# The study: 100,000 random arrivals and departures on a node of each type, and on a fleet of 100 nodes.

TYPES: Final = ("inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge")
FLEET: Final = ("inf2.48xlarge", 100)
SEEDS: Final = range(1, 6)
AT_LEAST: Final = 0.95

ORDERS: Final = {
    "published order": in_published_order,
    "naive order": in_naive_order,
    "full knowledge": with_full_knowledge,
}


def played(instance_type: str, choose: Choice, steps: int, nodes: int, *, best_node: bool) -> Outcome:
    """Return the sum of the runs of all seeds."""
    total, offered = Outcome(), offer(instance_type)
    for seed in SEEDS:
        one = run(offered, choose, nodes=nodes, best_node=best_node, steps=steps // len(SEEDS), seed=seed)
        total.requested += one.requested
        total.placed += one.placed
        total.wrong += one.wrong
    return total


def rows(instance_type: str, steps: int, nodes: int) -> tuple[list[str], float, list[str]]:
    """Return the rows of the table, the published order's share of full knowledge's big requests, the violations."""
    offered, found, wrong = offer(instance_type), [], []
    shares: dict[tuple[str, bool], float] = {}
    for best_node in (False, True) if nodes > 1 else (False,):
        for name, choose in ORDERS.items():
            began = time.monotonic()
            outcome = played(instance_type, choose, steps, nodes, best_node=best_node)
            shares[name, best_node] = outcome.share(offered.big)
            wrong += [f"{instance_type}, {name}: {text}" for text in outcome.wrong[:3]]
            where = (
                instance_type if nodes == 1 else f"{nodes} × {instance_type}, {'fullest' if best_node else 'any'} node"
            )
            big = sum(outcome.requested[size] for size in offered.big)
            found.append(
                f"| {where} | {name} | {big:,} | {shares[name, best_node]:.1%} | "
                f"{outcome.share(list(offered.places)):.1%} |"
            )
            print(f"{found[-1]} {time.monotonic() - began:.0f} s", flush=True)
    return found, shares["published order", False] / shares["full knowledge", False], wrong


def report(steps: int, table: list[str], ratios: list[str], wrong: list[str]) -> str:
    """Return docs/reports/md."""
    return "\n".join(
        (
            "# Packing of connected sets",
            "",
            f"Commit {commit_now()}, `python -m hack.oracle packing --report`: {steps:,} random arrivals and departures on each "
            f"type, seeds {SEEDS.start} to {SEEDS[-1]}.",
            "Requests are for every published size of devices and cores; small sizes are more frequent, so that each size",
            "requests about the same number of cores. A big request is one for a third of the node or more. More arrives",
            "than ends, so the nodes are always full, and much is refused.",
            "",
            "- *Published order* is what the driver publishes: the scheduler takes the first free place of the size.",
            "- *Naive order* publishes the places of a size in a random order.",
            "- *Full knowledge* takes the place that leaves the most published devices available.",
            "- In the fleet, *any node* is a random one that has a free place, as the scheduler does not rank nodes by their",
            "  devices; *fullest node* is the one with the fewest free cores.",
            "",
            "| nodes | choice | big requests | placed of these | placed of all |",
            "| --- | --- | --- | --- | --- |",
            *table,
            "",
            f"Big requests placed, as a share of full knowledge on the same nodes: {', '.join(ratios)}.",
            "",
            "Every step was checked: each place was contiguous and free, and no request was refused while a place of its size",
            "was free on some node." if not wrong else "Violations:\n\n" + "\n".join(f"- {text}" for text in wrong),
            "",
        )
    )


def study(options: Options) -> int:
    """Measure all types and the fleet; return 1 if a law is violated or the order packs too badly.

    At least 95 % of the big requests that full knowledge places must be placed on one node.
    """
    table, ratios, wrong, steps = [], [], [], options.number or 100_000
    for instance_type, nodes in (*((each, 1) for each in TYPES), FLEET):
        found, ratio, violations = rows(instance_type, steps, nodes)
        table += found
        wrong += violations
        ratios.append(f"{nodes} × {instance_type} {ratio:.1%}")
        if nodes == 1 and ratio < AT_LEAST:
            wrong.append(f"{instance_type}: the published order places {ratio:.1%} of what full knowledge does")
    for text in wrong:
        print(text, file=sys.stderr)
    print(f"published order as a share of full knowledge: {', '.join(ratios)}")
    if options.report:
        REPORT.write_text(report(steps, table, ratios, wrong))
    return 1 if wrong else 0
