"""Agents that report faults in conditions of Nodes: they flap, contradict each other, and err all at once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from neuron_dra.core.ultraserver import Phase
from neuron_dra.errors import NotFound
from tests.support.fleet.mix import Actor
from tests.support.fleet.nodes import FleetNode

if TYPE_CHECKING:
    from tests.support.fleet.schedule import Schedule

MONITOR: Final = "AcceleratedHardwareReady"  # of the EKS node monitoring agent
DETECTOR: Final = "NeuronHealth"  # of the node problem detector
FAULTS: Final[dict[str, dict[str, Any]]] = {
    MONITOR: {"status": "False", "reason": "NeuronDMAError"},
    DETECTOR: {"status": "True", "reason": "NeuronHasError_HBM_UNCORRECTABLE_ERROR"},
}
GOOD: Final[dict[str, dict[str, Any]]] = {
    MONITOR: {"status": "True", "reason": "NeuronAcceleratedHardwareIsReady"},
    DETECTOR: {"status": "False", "reason": "NeuronHasNoError"},
}
TIMES: Final = (None, "0001-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
LASTS_S: Final = (5.0, 50.0, 70.0, 400.0, 1500.0)  # strategies act after 60 s
STORM_S: Final = (70.0, 400.0)
SEEN_S: Final = 10.0  # by then the controller has seen it


async def say(schedule: Schedule, node: FleetNode, kind: str, *, fault: bool) -> None:
    """Let an agent write its condition, with any times and a message that is never the same."""
    said = (FAULTS if fault else GOOD)[kind]
    text = f"nd{schedule.rng.randrange(16)} at {schedule.rng.random()}\n\x1b[31m" if fault else ""
    times = {"lastTransitionTime": schedule.rng.choice(TIMES), "lastHeartbeatTime": schedule.rng.choice(TIMES)}
    node.say({"type": kind, "message": text, **said, **times}, schedule.fleet.clock.now())
    if node.present:
        with contextlib.suppress(NotFound):
            await schedule.fleet.write_conditions(node)


async def report(schedule: Schedule) -> str | None:
    """One agent reports a fault of a node for a while; the other one may say at the same time that all is well."""
    node = schedule.node(lambda n: n.alive and n.present and not n.reported)
    if node is None:
        return None
    kinds = [MONITOR, DETECTOR]
    schedule.rng.shuffle(kinds)
    await say(schedule, node, kinds[0], fault=True)
    if schedule.rng.random() < 0.5:
        await say(schedule, node, kinds[1], fault=False)
    seconds = schedule.rng.choice(LASTS_S)

    async def end() -> None:
        await asyncio.sleep(seconds)
        await say(schedule, node, kinds[0], fault=False)

    schedule.fleet.spawn(end())
    return f"{kinds[0]} of node {node.name} says that it has a fault, for {seconds:g} s"


async def flap(schedule: Schedule) -> str | None:
    """An agent reports a fault of a node, and takes it back, again and again."""
    node = schedule.node(lambda n: n.alive and n.present and not n.reported)
    if node is None:
        return None
    kind = schedule.rng.choice((MONITOR, DETECTOR))
    pause = schedule.rng.choice((0.2, 3.0, 40.0))

    async def repeat() -> None:
        for _ in range(5):
            await say(schedule, node, kind, fault=True)
            await asyncio.sleep(pause)
            await say(schedule, node, kind, fault=False)
            await asyncio.sleep(pause)

    schedule.fleet.spawn(repeat())
    return f"{kind} of node {node.name} flaps every {pause:g} s"


async def storm(schedule: Schedule) -> str | None:
    """An agent's wrong rule reports every node. No pod may be evicted because of it."""
    fleet, rng = schedule.fleet, schedule.rng
    nodes = [node for node in fleet.nodes.values() if node.alive and node.present and node.kubelet_up]
    if len(nodes) < len(fleet.nodes):
        return None
    kind = rng.choice((MONITOR, DETECTOR))
    for node in nodes:
        await say(schedule, node, kind, fault=True)
    await fleet.sleep(SEEN_S)
    bound = [held for held in fleet.view.held() if held.allocation.phase is Phase.BOUND]
    if "agents" in fleet.actors:
        fleet.safety.protect({held.allocation.allocation_id for held in bound})
    seconds = rng.choice(STORM_S)
    await fleet.sleep(seconds)
    fleet.safety.protect(set())
    for node in nodes:
        await say(schedule, node, kind, fault=False)
    return f"{kind} of all nodes said for {seconds:g} s that they have a fault"


async def agree(schedule: Schedule) -> None:
    """No agent reports a fault."""
    for node in schedule.fleet.nodes.values():
        for kind in (MONITOR, DETECTOR):
            if kind in node.conditions:
                await say(schedule, node, kind, fault=False)


ACTORS: Final[dict[str, Actor]] = {
    "agents": Actor(
        "agents report faults of nodes, with any times, flap, contradict each other, and report all nodes together",
        {report: 8, flap: 4, storm: 2},
        heal=agree,
        issue="36",
    ),
}
