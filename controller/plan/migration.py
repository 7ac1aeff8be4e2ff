"""MigrateAffected: reserves other nodes for slots with a fault, then drains these. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from controller.decisions import objects
from controller.decisions.reasons import Reason
from controller.fleet import placement
from controller.fleet.view import View
from controller.observe.model import shortened
from controller.plan import releasing
from controller.plan.recovery import node_faults
from neuron_dra.core.notice import Notice, NoticeReason


@dataclass(frozen=True, slots=True)
class Replaced:
    """What replaces slots with faults: why nothing does, and the indices of the slots that start to drain."""

    view: View
    shortage: placement.Shortage | None = None
    closing: frozenset[int] = frozenset()


def replace(view: View, broken: set[str]) -> Replaced:
    """Replace slots with faults: reserve the new one first, then drain the old one."""
    live = view.held.live()
    indices = {index for index, each in live.items() if each.allocation.allocation_id in broken}
    if not indices:
        return Replaced(view)
    fine = {index: each for index, each in live.items() if index not in indices}
    view, shortage = _reserve(view, indices, view.near(fine))
    view, closing = _drain_replaced(view, indices)
    return Replaced(view, shortage, frozenset(closing))


def _reserve(view: View, indices: set[int], near: tuple[placement.Slot, ...]) -> tuple[View, placement.Shortage | None]:
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
    chosen = view.choose(len(wanted), near)
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


def _drain_replaced(view: View, indices: set[int]) -> tuple[View, set[int]]:
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
