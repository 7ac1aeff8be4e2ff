"""Laws of capacity blocks: workloads and UltraServers say when nodes are taken back, and spares are not."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Final

from neuron_dra.core.ultraserver import Phase, object_name
from tests.support.fleet.known import Known
from tests.support.fleet.nodes import FleetNode
from tests.support.fleet.view import View, condition, state

LEAD: Final = datetime.timedelta(hours=1)
NOTICE: Final = datetime.timedelta(minutes=30)
SLACK: Final = datetime.timedelta(seconds=60)


def unsaid(view: View, nodes: Mapping[str, FleetNode], known: Known) -> Iterator[str]:
    """A workload says whether its nodes are taken back soon, by the annotations that they have now."""
    for uid, workload in view.workloads().items():
        held = [each for each in view.of(uid) if each.allocation.phase is Phase.BOUND]
        mine = [nodes[name] for each in held for name in each.allocation.nodes]
        is_settled = state(workload) == "Allocated" and not known.refuses(workload)
        if not is_settled or not all(node.present and node.alive for node in mine):
            continue
        if any(each.ultraserver in known.unwritable for each in held):
            continue
        name, told = workload["metadata"]["name"], condition(workload, "EndsSoon").get("status")
        ends = [node.block_end for node in mine if node.block_end is not None]
        if not ends:
            if told is not None:
                yield f"workload {name} has EndsSoon {told}, and no block of its nodes ends"
            continue
        begins = min(ends) - LEAD - NOTICE
        wanted = "True" if known.now > begins else "False"
        if abs(known.now - begins) > SLACK and told != wanted:
            yield f"workload {name} has EndsSoon {told} at {known.now:%H:%M:%S}, and is told at {begins:%H:%M:%S}"


def spares_that_end(view: View, nodes: Mapping[str, FleetNode], known: Known, found: set[str]) -> Iterator[str]:
    """No group that EC2 takes back now is a spare. `found`: the UltraServers that are shown as spares."""
    for node in nodes.values():
        late = node.block_end is not None and node.block_end - LEAD + SLACK < known.now
        if late and node.present and object_name(node.block) in found:
            yield f"{object_name(node.block)} is shown as a spare, and its block ends"
            return
