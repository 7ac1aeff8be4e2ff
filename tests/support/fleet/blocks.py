"""Capacity blocks that end: the annotation comes late, is wrong, is extended, and is taken away."""

from __future__ import annotations

import contextlib
import datetime
from typing import TYPE_CHECKING, Final

from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.errors import NotFound
from neuron_dra.kube.requests import NODES
from tests.support.fleet.mix import Actor
from tests.support.fleet.node_steps import lose_for_good
from tests.support.fleet.nodes import FleetNode

if TYPE_CHECKING:
    from tests.support.fleet.fleet import Fleet
    from tests.support.fleet.schedule import Schedule

HOURS: Final = (
    0.5,
    1.4,
    1.7,
    5.0,
    30.0,
)  # EC2 takes instances back an hour before; workloads are told 1.5 hours before
DURATIONS: Final = ("10m", "2h", "24h")


async def set_end(schedule: Schedule) -> str | None:
    """The block of an UltraServer gets an end, or another one."""
    fleet, rng = schedule.fleet, schedule.rng
    block = rng.choice(sorted({node.block for node in fleet.nodes.values()}))
    hours = rng.choice(HOURS)
    end = (fleet.clock.now() + datetime.timedelta(hours=hours)).replace(microsecond=0)
    for node in (each for each in fleet.nodes.values() if each.block == block):
        node.ends(end, fleet.clock.now())
        await write_end(schedule, node)
    return f"block {block} ends in {hours:g} h"


async def forget_end(schedule: Schedule) -> str | None:
    """A node's annotation is taken away, or is no time."""
    fleet, rng = schedule.fleet, schedule.rng
    node = schedule.node(lambda n: n.present and n.block_end is not None)
    if node is None:
        return None
    node.ends(None, fleet.clock.now())
    text = rng.choice(("", "Friday"))
    await write_end(schedule, node, text)
    return f"node {node.name} says {text or 'nothing'} of the end of its block"


async def write_end(schedule: Schedule, node: FleetNode, text: str = "") -> None:
    """Write the annotation of a Node."""
    value = node.block_end.isoformat().replace("+00:00", "Z") if node.block_end is not None else text or None
    with contextlib.suppress(NotFound):
        await schedule.fleet.patch(NODES, "", node.name, {"metadata": {"annotations": {ANNOTATION: value}}})


async def submit_for_a_time(schedule: Schedule) -> str | None:
    """A user says how long a workload runs."""
    fleet, rng = schedule.fleet, schedule.rng
    schedule.made += 1
    name, duration = f"timed-{schedule.made}", rng.choice(DURATIONS)
    size = rng.choice((1, 2, 4))
    made = await fleet.submit(
        name, size, 1, rng.choice(("NoOp", "MigrateAffected", "RestartAll")), expectedDuration=duration
    )
    return None if made is None else f"workload {name} of {size} nodes runs for {duration}"


async def take_back(schedule: Schedule) -> str | None:
    """EC2 takes the nodes of a block back, after its end was announced: one after the other, while pods run there."""
    fleet, rng = schedule.fleet, schedule.rng
    blocks = _blocks_in_use(fleet, "RestartAll") or _blocks_in_use(fleet)
    if not blocks:
        return None
    block = rng.choice(blocks)
    end = (fleet.clock.now() + datetime.timedelta(hours=0.9)).replace(microsecond=0)
    for node in (each for each in fleet.nodes.values() if each.block == block):
        node.ends(end, fleet.clock.now())
        await write_end(schedule, node)
    await fleet.sleep(rng.choice((10.0, 20.0)))
    for node in (each for each in fleet.nodes.values() if each.block == block and each.present):
        await lose_for_good(schedule, node)
        await fleet.sleep(rng.choice((0.0, 0.5, 2.0)))
    return f"EC2 takes the nodes of block {block} back"


def _blocks_in_use(fleet: Fleet, strategy: str = "") -> list[str]:
    """Return the blocks with reserved nodes, perhaps only those of workloads with this failureStrategy."""
    workloads, holders = fleet.view.workloads(), fleet.view.holders()
    found = set()
    for node in fleet.nodes.values():
        held = holders.get(node.name) if node.present else None
        workload = workloads.get(held.allocation.holder) if held else None
        if workload is None:
            continue
        policy = workload["spec"].get("allocationPolicy") or {}  # a test has none
        if strategy in ("", policy.get("failureStrategy")):
            found.add(node.block)
    return sorted(found)


async def forget_all_ends(schedule: Schedule) -> None:
    """No block ends."""
    for node in schedule.fleet.nodes.values():
        node.ends(None, schedule.fleet.clock.now())
        if node.present:
            await write_end(schedule, node)


ACTORS: Final[dict[str, Actor]] = {
    "blocks": Actor(
        "capacity blocks end with their nodes, are extended, and say wrong times; workloads have an expected duration",
        {set_end: 5, forget_end: 2, submit_for_a_time: 6, take_back: 3},
        heal=forget_all_ends,
        issue="36",
    ),
}
