"""Pods of a gang, which run at once or not at all: one that fits waits until enough of its PodGroup fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron_dra.ask.why import obstacles, trials
from neuron_dra.ask.world import users
from neuron_dra.ask.world.blockers import Blockers
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire
from neuron_dra.simulate.scheduler import Placement

MOST: Final = 64
"""Larger gangs are not simulated: each pod is placed after the others."""
AS_A_WHOLE: Final = re.compile("pod group is unschedulable")


def waits(world: World, pod: Wire) -> Mapping[str, Any] | None:
    """Return the PodGroup of a pod that fits, how many pods it needs at once, and what there is; None if enough fit."""
    group = users.group_of(pod)
    least = _least(world, pod, group)
    if least < 2:
        return None
    mates = _mates(world, pod, group)
    if len(mates) < least:
        return {"group": group, "least": least, "what": f"{len(mates)} exist{'s' if len(mates) == 1 else ''}"}
    waiting = [each for each in mates if not each["spec"].get("nodeName")]
    if len(waiting) > MOST:
        return None
    running = len(mates) - len(waiting)
    after, left = _placed(world, waiting)
    fit = len(mates) - len(left)
    if fit >= least:
        return None
    why = _why(after, left[0])
    also = f" ({running} run)" if running else ""
    return {"group": group, "least": least, "what": f"{fit} of {len(mates)} fit{also}{why}"}


def _least(world: World, pod: Wire, group: str) -> int:
    namespace = pod["metadata"].get("namespace") or ""
    found = world.snapshot.get("PodGroup", group, namespace) if group else None
    policy = ((found or {}).get("spec") or {}).get("schedulingPolicy") or {}
    return int((policy.get("gang") or {}).get("minCount") or 0)


def _mates(world: World, pod: Wire, group: str) -> list[Wire]:
    """Return the pods of a group, this one among them, that have not ended."""
    found = []
    for each in world.snapshot.all("Pod"):
        meta, phase = each["metadata"], (each.get("status") or {}).get("phase")
        same = (meta.get("namespace") or "") == (pod["metadata"].get("namespace") or "")
        if same and users.group_of(each) == group and phase not in users.ENDED and not meta.get("deletionTimestamp"):
            found.append(each)
    return found


def _placed(world: World, pods: Sequence[Wire]) -> tuple[World, list[Wire]]:
    """Place pods one after the other; return the world with them, and those that fit nowhere."""
    left: list[Wire] = []
    for pod in pods:
        outcome = world.place(pod)
        if isinstance(outcome, Placement):
            world = world.after(trials.placed_objects(world, pod, outcome))
        else:
            left.append(pod)
    return world, left


def _why(world: World, pod: Wire) -> str:
    """Return what is in the way of a pod beside those that fit, to be added to a sentence."""
    claims = [each.claim for each in world.claims_of(pod) if each.claim is not None]
    blocked = Blockers(world, pod, claims).all()
    found = obstacles.findings(world, pod, blocked) if blocked else []
    return f": {found[0].text}" if found else ""
