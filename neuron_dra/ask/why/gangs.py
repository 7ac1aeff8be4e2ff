"""Why a pod that fits waits for others of its gang. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from neuron_dra.ask.why import obstacles
from neuron_dra.ask.world import gangs
from neuron_dra.ask.world.blockers import Blockers
from neuron_dra.ask.world.gangs import GangShortage
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Wire

AS_A_WHOLE: Final = re.compile("pod group is unschedulable")


def waits(world: World, pod: Wire) -> Mapping[str, Any] | None:
    """Return the gang of a pod that fits, how many pods it needs at once, and what there is; None if enough fit."""
    found = gangs.shortage(world, pod)
    if found is None:
        return None
    return {"group": found.group, "least": found.least, "what": _what(found)}


def _what(found: GangShortage) -> str:
    if not found.left:
        return f"{found.pods} exist{'s' if found.pods == 1 else ''}"
    run = f" ({found.running} run)" if found.running else ""
    return f"{found.pods - len(found.left)} of {found.pods} fit{run}{_why(found.after, found.left[0])}"


def _why(world: World, pod: Wire) -> str:
    """Return what is in the way of a pod beside those that fit, to be added to a sentence."""
    claims = [each.claim for each in world.claims_of(pod) if each.claim is not None]
    blocked = Blockers(world, pod, claims).all()
    found = obstacles.findings(world, pod, blocked) if blocked else []
    if found:
        return f": {found[0].text}"
    return ""
