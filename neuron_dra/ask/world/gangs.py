"""Gangs: PodGroups of which so many pods run at once, or none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuron_dra.ask.read.pod_views import PodGroupView, PodPlace
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.world import placing
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.scheduler import Placement

MOST: Final = 64
"""Larger gangs are not simulated: each pod is placed after the others."""


@dataclass(frozen=True, slots=True)
class GangShortage:
    """A gang that needs more pods than exist, or than fit.

    - `least`, `pods`, `running`: how many it needs at once, exist, and run.
    - `unplaced`: those that fit nowhere, in the world `after` the others were placed.
    """

    group: str
    least: int
    pods: int
    running: int
    unplaced: Sequence[Wire]
    after: World


def least(snapshot: Snapshot, namespace: str, group: str) -> int:
    """Return how many pods of a PodGroup run at once or not at all; 0 without a gang."""
    pod_group = snapshot.get("PodGroup", group, namespace) if group else None
    return PodGroupView.of(pod_group).spec.scheduling_policy.gang.min_count


def running(snapshot: Snapshot, namespace: str, group: str) -> int:
    """Return how many pods of a PodGroup have a node already."""
    return sum(bool(PodPlace.of(pod).spec.node_name) for pod in _mates(snapshot, namespace, group))


def shortage(world: World, pod: Wire) -> GangShortage | None:
    """Return what the gang of a pod lacks; None if enough of its pods exist and fit, or if it is too large to tell."""
    pod_place = PodPlace.of(pod)
    group, namespace = pod_place.group, pod_place.metadata.namespace
    needed = least(world.snapshot, namespace, group)
    if needed < 2:
        return None
    mates = _mates(world.snapshot, namespace, group)
    waiting = [mate for mate in mates if not PodPlace.of(mate).spec.node_name]
    running = len(mates) - len(waiting)
    if len(mates) < needed:
        return GangShortage(group, needed, len(mates), running, (), world)
    if len(waiting) > MOST:
        return None
    after, unplaced = _placed(world, waiting)
    if len(mates) - len(unplaced) >= needed:
        return None
    return GangShortage(group, needed, len(mates), running, unplaced, after)


def _mates(snapshot: Snapshot, namespace: str, group: str) -> list[Wire]:
    """Return the pods of a group that have not ended."""
    mates = []
    for pod in snapshot.all("Pod"):
        pod_place = PodPlace.of(pod)
        same = pod_place.metadata.namespace == namespace and pod_place.group == group
        if same and not pod_place.has_ended and not pod_place.metadata.deletion_timestamp:
            mates.append(pod)
    return mates


def _placed(world: World, pods: Sequence[Wire]) -> tuple[World, list[Wire]]:
    """Place pods one after the other; return the world with them, and those that fit nowhere."""
    unplaced: list[Wire] = []
    for pod in pods:
        outcome = world.place(pod)
        if isinstance(outcome, Placement):
            world = world.after(placing.placed_objects(world, pod, outcome))
        else:
            unplaced.append(pod)
    return world, unplaced
