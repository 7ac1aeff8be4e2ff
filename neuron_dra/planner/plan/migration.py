"""MigrateAffected: reserves other nodes for slots with a fault, then drains these. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_dra.core.notice import Notice, NoticeReason
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed.model import shortened
from neuron_dra.planner.plan import releasing
from neuron_dra.planner.plan.recovery import node_faults


@dataclass(frozen=True, slots=True)
class Replaced:
    """What replaces slots with faults: why nothing does, and the indices of the slots that start to drain."""

    view: View
    shortage: placement.Shortage | None = None
    closing: frozenset[int] = frozenset()


def replace(view: View, broken: set[str]) -> Replaced:
    """Replace slots with faults: reserve the new one first, then drain the old one."""
    live = view.held.live()
    indices = {index for index, reservation in live.items() if reservation.allocation.allocation_id in broken}
    if not indices:
        return Replaced(view)
    staying = {index: reservation for index, reservation in live.items() if index not in indices}
    view, shortage = _reserve(view, indices, view.near(staying))
    view, closing = _drain_replaced(view, indices)
    return Replaced(view, shortage, frozenset(closing))


def _reserve(view: View, indices: set[int], near: tuple[placement.Slot, ...]) -> tuple[View, placement.Shortage | None]:
    """Reserve a replacement for each slot with a fault that has none: for all of them or for none.

    - `indices`: indices of the slots with a fault.
    - `near`: slots near which the new ones should be.

    Returns why there is none, or None.
    """
    pending_indices = {reservation.allocation.ultraserver_index for reservation in view.held.pending}
    without_replacement = sorted(indices - pending_indices)
    if not without_replacement:
        return view, None
    view = view.replacing()
    chosen = view.choose(len(without_replacement), near)
    if chosen is not None:
        return view.reserving(without_replacement, chosen), None
    return _in_place(view, without_replacement) or (view, view.shortage(len(without_replacement)))


def _in_place(view: View, indices: list[int]) -> tuple[View, placement.Shortage] | None:
    """Drain the slots first if their only fault is that instances were replaced in place, and no spare group exists.

    The same slots are then reserved again. Returns None if that does not help.
    """
    live = view.held.live()
    reservations = [live[index] for index in indices]
    for reservation in reservations:
        reasons = {fault.reason for fault in node_faults(view, reservation) if fault.acts_at is not None}
        own_slots = view.slots_of({*reservation.allocation.nodes})
        if reasons != {Reason.NODE_REPLACED} or view.sight.foreign(reservation.allocation) or not own_slots:
            return None
    node_names = tuple(node_name for reservation in reservations for node_name in reservation.allocation.nodes)
    text = f"no spare group: releasing nodes to reserve them again: {shortened(node_names)}"
    view = view.having(view.held.drain(*reservations, notice=_moves(view)))
    return view, placement.Shortage(Reason.WAITING_FOR_RELEASE, text)


def _drain_replaced(view: View, indices: set[int]) -> tuple[View, set[int]]:
    """Drain each slot whose replacement shows its tags, and return the indices.

    `indices` are those of slots with a fault; if the fault has ended, the slot stays. A slot whose pods are on dead
    nodes only stays Bound: its nodes may come back.
    """
    pending_by_index = {reservation.allocation.ultraserver_index: reservation for reservation in view.held.pending}
    drained = {}
    for index, reservation in view.held.live().items():
        replacement_shows_tags = (
            index in indices and index in pending_by_index and view.sight.has_tags(pending_by_index[index].allocation)
        )
        if replacement_shows_tags and releasing.pods_on_dead_nodes(view.sight, (reservation,)) is None:
            drained[index] = reservation
    return view.having(view.held.drain(*drained.values(), notice=_moves(view))), set(drained)


def _moves(view: View) -> Notice:
    return objects.notice(NoticeReason.MIGRATING, view.now)
