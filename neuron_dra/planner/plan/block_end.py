"""The end of capacity blocks under workloads: EC2 takes the instances back then. Pure.

The condition EndsSoon says it: at first when that is, and from half an hour before (`Limits.block_notice`) that it is
soon. From then on reservations have a notice, which their nodes write into a file that containers read. Nothing is
released because of it.
"""

from __future__ import annotations

import datetime
from typing import Final

from neuron_dra.core.notice import NoticeReason
from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed.model import ENDS_SOON, condition, shortened

SOON: Final = "CapacityBlockEnds"
LATER: Final = "CapacityBlock"
TOO_SOON: Final = "EndsBeforeWorkload"


def taken_back(view: View) -> tuple[datetime.datetime, list[str]] | None:
    """Return when EC2 may take back the first nodes of a workload, and which; None if that is not known of any."""
    node_names = [
        node_name
        for reservation in view.held
        if reservation.allocation.phase is not Phase.DRAINING
        for node_name in reservation.allocation.nodes
    ]
    nodes = [view.sight.node(node_name) for node_name in node_names]
    ends = {node.name: node.block_end for node in nodes if node is not None and node.block_end is not None}
    if not ends:
        return None
    first_end = min(ends.values())
    return first_end - view.limits.block_lead, sorted(node_name for node_name, end in ends.items() if end == first_end)


def ends_soon(view: View) -> tuple[bool, str, str] | None:
    """Return value, reason and message of the condition EndsSoon; None if no end is known."""
    first_loss = taken_back(view)
    if first_loss is None:
        return _as_told(view)
    moment, node_names = first_loss
    workload = view.workload
    text = (
        f"EC2 may take back {shortened(node_names)} from {objects.time(moment)} on, because their capacity block ends"
    )
    if view.now >= moment - view.limits.block_notice:  # also in Limits.told_before_end
        return True, SOON, f"{text}: save what the job needs; its pods end when their instances do"
    if not workload.expected:
        return False, LATER, f"{text}; spec.expectedDuration does not say whether the workload ends before"
    if view.needed_until > moment:
        return False, TOO_SOON, f"{text}, and the workload ends later, by its spec.expectedDuration"
    return False, LATER, f"{text}; the workload ends before, by its spec.expectedDuration"


def told(view: View) -> Held:
    """Return the workload's reservations; those that are open have the notice of a block that ends soon.

    All groups have it, because one job runs in them; it stays when the nodes of the block are gone.
    """
    soon_condition, first_loss = ends_soon(view), taken_back(view)
    if soon_condition is None or not soon_condition[0]:
        return view.held.tell(None)
    return view.held if first_loss is None else view.held.tell(objects.notice(NoticeReason.BLOCK_ENDS, first_loss[0]))


def _as_told(view: View) -> tuple[bool, str, str] | None:
    """Return the condition as it was, if it was told that nodes are taken back and some are gone; None otherwise."""
    stored = condition(view.workload.status, ENDS_SOON)
    node_names = (node_name for reservation in view.held for node_name in reservation.allocation.nodes)
    if stored.get("status") != "True" or all(view.sight.node(node_name) is not None for node_name in node_names):
        return None
    return True, str(stored.get("reason")), str(stored.get("message"))
