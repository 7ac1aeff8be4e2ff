"""MigrateAffected: reserves other nodes for slots with a fault, then drains these. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from controller.observe.model import shortened
from controller.plan import objects, placement, releasing
from controller.plan.reasons import Reason
from controller.plan.recovery import node_faults
from controller.plan.view import View, join_texts
from neuron_dra.core.notice import Notice, NoticeReason
from neuron_dra.core.ultraserver import Phase


def replace(view: View, indices: set[int], near: Iterable[placement.Slot]) -> tuple[View, placement.Shortage | None]:
    """Reserve a replacement for each slot with a fault that has none: for all of them or for none.

    - `indices`: indices of the slots with a fault.
    - `near`: slots near which the new ones should be.

    Returns why there is none, or None.
    """
    coming = {each.allocation.ultraserver_index for each in view.held.pending}
    wanted = sorted(indices - coming)
    if not wanted:
        return view, None
    view = view.replacing()
    chosen = view.choose(len(wanted), tuple(near))
    if chosen is not None:
        return view.reserving(wanted, chosen), None
    return _in_place(view, wanted) or (view, view.shortage(len(wanted)))


def _in_place(view: View, wanted: list[int]) -> tuple[View, placement.Shortage] | None:
    """Drain the slots first if their only fault is that instances were replaced in place, and no spare group exists.

    The same slots are then reserved again. Returns None if that does not help.
    """
    live = view.held.live()
    slots = [live[index] for index in wanted]
    for one in slots:
        reasons = {each.reason for each in node_faults(view, one) if each.acts_at is not None}
        own = view.slots_of({*one.allocation.nodes})
        if reasons != {Reason.NODE_REPLACED} or view.sight.foreign(one.allocation) or not own:
            return None
    names = tuple(name for one in slots for name in one.allocation.nodes)
    text = f"no spare group: releasing nodes to reserve them again: {shortened(names)}"
    view = view.having(view.held.drain(*slots, notice=_moves(view)))
    return view, placement.Shortage(Reason.WAITING_FOR_RELEASE, text)


def drain_replaced(view: View, indices: set[int]) -> tuple[View, set[int]]:
    """Drain each slot whose replacement shows its tags, and return the indices.

    `indices` are those of slots with a fault; if the fault has ended, the slot stays. A slot whose pods are on dead
    nodes only stays Bound: its nodes may come back.
    """
    coming = {each.allocation.ultraserver_index: each for each in view.held.pending}
    closed = {}
    for index, one in view.held.live().items():
        answered = index in indices and index in coming and view.sight.has_tags(coming[index].allocation)
        if answered and releasing.pods_on_dead_nodes(view.sight, (one,)) is None:
            closed[index] = one
    return view.having(view.held.drain(*closed.values(), notice=_moves(view))), set(closed)


def _moves(view: View) -> Notice:
    return objects.notice(NoticeReason.MIGRATING, view.now)


def blocked_by_dead_nodes(view: View) -> tuple[str, str] | None:
    """Return why slots with a replacement cannot drain yet, as a reason and a message; None if they can."""
    coming = {each.allocation.ultraserver_index for each in view.held.pending}
    live = view.held.live()
    old = [one for index, one in live.items() if index in coming and one.allocation.phase is Phase.BOUND]
    found = (releasing.pods_on_dead_nodes(view.sight, (one,)) for one in old)
    return next((each for each in found if each is not None), None)


def describe_moves(view: View) -> str:
    """Return a message that names each slot and its replacement."""
    old = {
        each.allocation.ultraserver_index: each.allocation
        for each in (*view.held.live().values(), *view.leaving())
        if each.allocation.phase is not Phase.PENDING
    }
    texts = []
    for each in view.held.pending:
        index, new = each.allocation.ultraserver_index, each.allocation
        if index in old:
            texts.append(f"group {index} moves from {shortened(old[index].nodes)} to {shortened(new.nodes)}")
            if index == 0 and view.workload.count > 1:
                texts.append(
                    f"rank 0 moves too: running pods of other groups keep NEURON_DRA_RANK0_NODE={old[0].nodes[0]} "
                    "until they are recreated"
                )
    return join_texts(*texts)
