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
    shortage = gangs.shortage(world, pod)
    if shortage is None:
        return None
    return {"group": shortage.group, "least": shortage.least, "what": _what(shortage)}


def _what(shortage: GangShortage) -> str:
    if not shortage.unplaced:
        return f"{shortage.pods} exist{'s' if shortage.pods == 1 else ''}"
    run = f" ({shortage.running} run)" if shortage.running else ""
    fitting = shortage.pods - len(shortage.unplaced)
    return f"{fitting} of {shortage.pods} fit{run}{_why(shortage.after, shortage.unplaced[0])}"


def _why(world: World, pod: Wire) -> str:
    """Return what is in the way of a pod beside those that fit, to be added to a sentence."""
    claims = [pod_claim.claim for pod_claim in world.claims_of(pod) if pod_claim.claim is not None]
    blocked = Blockers(world, pod, claims).all()
    findings = obstacles.findings(world, pod, blocked) if blocked else []
    if findings:
        return f": {findings[0].text}"
    return ""
