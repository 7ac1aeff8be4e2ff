"""What fails under a workload, since when, and what its failureStrategy makes of it. Pure.

Since when is read off the objects, so that it survives the controller: the Node's Ready condition, and for what nodes
publish, `faults` in the allocation. A fault that is over for a moment starts anew; what a node does not say is neither.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from controller import decode, placement, releasing, render
from controller.actions import Verdict
from controller.draft import Draft, joined
from controller.model import Reservation, Workload, shortened
from neuron_dra.core.ultraserver import Fault, Phase

TEXTS = {
    "NodeGone": "nodes are gone",
    "NodeReplaced": "nodes were replaced by others of the same name",
    "NodeNotReady": "nodes are not Ready",
    "DeviceUnhealthy": "nodes with unhealthy or missing devices",
    "LinkDown": "links that the group needs are down on",
    "SliceMissing": "nodes publish no slice",
    "ForeignClaim": "claims of others are allocated on nodes of this workload; delete their pods",
}
"""What can be wrong with a reserved node, the worst first. The last two are told, and never acted upon."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong with a node of a slot. At `acts_at` the strategy acts on it; None is never."""

    reason: str
    name: str
    acts_at: datetime.datetime | None


def note_faults(draft: Draft, workload: Workload) -> None:
    """Keep in the workload's bound slots since when their nodes have lost what the slots need."""
    for one in draft.holdings.of(workload.uid):
        if one.allocation.phase is Phase.BOUND:
            faults = tuple(_faults(draft, one))
            if faults != one.allocation.faults:
                draft.holdings.change(one, faults=faults)


def _faults(draft: Draft, one: Reservation) -> Iterable[Fault]:
    allocation = one.allocation
    size, group_size = allocation.node_count, draft.group_size(one.ultraserver)
    since = {(fault.node, fault.reason): fault for fault in allocation.faults}
    for name in allocation.nodes:
        published = draft.holdings.published(name, allocation)
        whole = published is not None and published.complete and published.kind
        for reason, fine in (
            ("DeviceUnhealthy", not published.sick_devices if published and whole else None),
            ("LinkDown", placement.links_up(published, size, group_size) if published and whole else None),
        ):
            before = since.get((name, reason))
            if fine is False:
                yield before or Fault(name, reason, render.time(draft.now))
            elif fine is None and before:
                yield before


def troubles(draft: Draft, one: Reservation) -> list[Trouble]:
    """Return what is wrong with the nodes of a slot now."""
    holdings, allocation = draft.holdings, one.allocation
    found = []
    for name in allocation.nodes:
        node = draft.nodes.get(name)
        published = holdings.published(name, allocation)
        if node is None:
            found.append(Trouble("NodeGone", name, draft.now))
        elif not holdings.is_there(name, allocation):
            found.append(Trouble("NodeReplaced", name, draft.now))
        elif not node.ready:
            found.append(Trouble("NodeNotReady", name, node.ready_changed + draft.limits.node_failure_grace))
        if not (published and published.kind) and holdings.is_there(name, allocation):
            found.append(Trouble("SliceMissing", name, None))
    seen = {(name, reason) for name, reason in seen_now(draft, one)}
    for fault in allocation.faults:
        acts_at = decode.time(fault.since) + draft.limits.fault_grace if (fault.node, fault.reason) in seen else None
        found.append(Trouble(fault.reason, fault.node, acts_at))
    found += [Trouble("ForeignClaim", use.holder, None) for use in holdings.foreign(allocation)]
    return found


def seen_now(draft: Draft, one: Reservation) -> Iterable[tuple[str, str]]:
    """The faults that nodes show at this moment, and not only before they fell silent."""
    return ((fault.node, fault.reason) for fault in _faults(draft, one.changed(faults=())))


def broken(draft: Draft, workload: Workload) -> set[str]:
    """Return the allocation ids of the bound slots on which the workload's strategy acts now."""
    if workload.strategy not in ("RestartAll", "MigrateAffected"):
        return set()
    found = set()
    for one in draft.holdings.of(workload.uid):
        if one.allocation.phase is Phase.BOUND:
            moments = [trouble.acts_at for trouble in troubles(draft, one) if trouble.acts_at is not None]
            for moment in moments:
                draft.look_again(moment)
            if moments and min(moments) <= draft.now:
                found.add(one.allocation.allocation_id)
    return found


def damage(draft: Draft, workload: Workload, *more: str) -> tuple[str, str] | None:
    """What is wrong with the nodes on which pods of the workload may be: a reason and a message, or None."""
    holdings = draft.holdings
    leaving = holdings.leaving(workload.uid)
    bound = [each for each in holdings.of(workload.uid) if each.allocation.phase is Phase.BOUND]
    found = [trouble for each in (*bound, *leaving) for trouble in troubles(draft, each)]
    reasons = [reason for reason in TEXTS if any(trouble.reason == reason for trouble in found)]
    if not reasons:
        return None
    texts = []
    for reason in reasons:
        names = list(dict.fromkeys(trouble.name for trouble in found if trouble.reason == reason))
        texts.append(f"{TEXTS[reason]}: {shortened(names)}")
    return reasons[0], joined(*texts, _prospect(draft, workload, [t for t in found if t.acts_at is not None]), *more)


def _prospect(draft: Draft, workload: Workload, found: list[Trouble]) -> str:
    """What the strategy does about it, and when."""
    moments = [trouble.acts_at for trouble in found if trouble.acts_at is not None]
    if not moments:
        return ""
    if workload.strategy == "NoOp":
        return "failureStrategy NoOp only reports it: delete the workload and create it again to leave the node"
    if min(moments) > draft.now:
        return f"{workload.strategy} acts at {render.time(min(moments))}, unless it is over by then"
    return ""


# -- MigrateAffected ---------------------------------------------------------------------------------------------------


def replace(
    draft: Draft, workload: Workload, indices: set[int], kind: str | None, near: Iterable[placement.Slot]
) -> placement.Shortage | None:
    """Reserve a new slot for each broken one that has none, for all of them or for none; return why none."""
    holdings = draft.holdings
    coming = {each.allocation.ultraserver_index for each in holdings.pending(workload.uid)}
    wanted = sorted(indices - coming)
    if not wanted:
        return None
    free = draft.room.free(workload.instance_type, workload.size)
    chosen = placement.choose(free, len(wanted), kind=kind, near=tuple(near))
    if chosen is None:
        return _in_place(draft, workload, wanted) or draft.room.shortage(workload, len(wanted))
    for index, slot in zip(wanted, chosen, strict=True):
        holdings.reserve(workload, index, slot, draft.now)
    return None


def _in_place(draft: Draft, workload: Workload, wanted: list[int]) -> placement.Shortage | None:
    """Release broken slots first, where nothing is wrong but that their instances were replaced at the same place.

    Without a spare group there is no other way, and the slots are free to be reserved anew. None: that does not help.
    """
    live = draft.holdings.live(workload.uid)
    slots = [live[index] for index in wanted]
    for one in slots:
        reasons = {trouble.reason for trouble in troubles(draft, one) if trouble.acts_at is not None}
        own = draft.room.of_nodes({*one.allocation.nodes}, workload.instance_type, workload.size)
        if reasons != {"NodeReplaced"} or draft.holdings.foreign(one.allocation) or not own:
            return None
    for one in slots:
        draft.holdings.change(one, phase=Phase.DRAINING, faults=())
    names = tuple(name for one in slots for name in one.allocation.nodes)
    text = f"no spare group: releases nodes, to reserve them anew: {shortened(names)}"
    return placement.Shortage("WaitingForRelease", text)


def drain_replaced(draft: Draft, workload: Workload, indices: set[int]) -> set[int]:
    """Close each broken slot whose replacement has answered, not earlier; return the indices."""
    closed = set()
    coming = {each.allocation.ultraserver_index: each for each in draft.holdings.pending(workload.uid)}
    for index, one in draft.holdings.live(workload.uid).items():
        if index in indices and index in coming and draft.holdings.has_answered(coming[index].allocation):
            draft.holdings.change(one, phase=Phase.DRAINING, faults=())
            closed.add(index)
    return closed


def moves(draft: Draft, workload: Workload) -> str:
    """Say which slots are being replaced by which."""
    holdings = draft.holdings
    old = {
        each.allocation.ultraserver_index: each.allocation
        for each in (*holdings.live(workload.uid).values(), *holdings.leaving(workload.uid))
        if each.allocation.phase is not Phase.PENDING
    }
    texts = []
    for each in holdings.pending(workload.uid):
        index, new = each.allocation.ultraserver_index, each.allocation
        if index in old:
            texts.append(f"group {index} moves from {shortened(old[index].nodes)} to {shortened(new.nodes)}")
            if index == 0 and workload.count > 1:
                texts.append(
                    f"rank 0 moves too: running pods of other groups keep NEURON_DRA_RANK0_NODE={old[0].nodes[0]} "
                    "until they are created anew"
                )
    return joined(*texts)


# -- RestartAll --------------------------------------------------------------------------------------------------------


def restart(draft: Draft, workload: Workload, broken_now: set[str]) -> Verdict | None:
    """Release everything of a workload; None when nothing is to be released, or nothing is left of it.

    The decision is written into the workload's status before anything else is, and stays there until all is released:
    a slot that broke may be gone while others are still bound.
    """
    holdings = draft.holdings
    marker = workload.restarting
    if marker is None:
        if workload.strategy != "RestartAll" or not broken_now:
            return None
        reason, message = damage(draft, workload) or ("Restarting", "")
        marker = {
            "since": render.time(draft.now),
            "reason": reason,
            "message": message[: render.MESSAGE_CHARACTERS],
        }
        text = f"everything is released, and reserved anew when that is done: {message}"
        return Verdict("Deallocating", "Restarting", text, (reason, message), marker)
    held = holdings.of(workload.uid)
    bound = any(each.allocation.phase is Phase.BOUND for each in held)
    if not (releasing.delete_templates(draft, workload) or bound or holdings.leaving(workload.uid)):
        return None
    waiting = releasing.give_back(draft, workload.uid, held)
    reason, message = str(marker["reason"]), str(marker.get("message") or "")
    return Verdict(
        "Deallocating",
        *(waiting or ("Restarting", f"everything is released, and reserved anew when that is done: {message}")),
        (reason, message),
        {str(name): str(value) for name, value in marker.items()},
    )
