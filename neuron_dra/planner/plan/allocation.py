"""Allocates a workload: reserves slots, binds them when all nodes show their tags, replaces slots with faults. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuron_dra.core.notice import NoticeReason
from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Action
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.view import Step, TurnKey, View, join_texts
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import SLOT_SIZES, Reservation, Turn, shortened
from neuron_dra.planner.plan import binding, migration, queue, recovery, releasing, verdicts
from neuron_dra.planner.plan.verdicts import Done


def allocate(view: View, broken: set[str], *, withdrawn: bool) -> Step:
    """Return the next step towards Allocated.

    Reserves missing slots, binds those whose nodes answered, replaces those with faults (`broken` are their
    allocationIds), and creates the template.
    """
    opened = view.held.opened
    dropped = _drop_unusable(view, broken)
    reserved = _reserve(dropped.view, opened)
    spare = migration.replace(reserved.view, broken)
    bound_view, untagged_nodes = binding.bind(spare.view, spare.closing, opened)
    done = Done(
        view=bound_view,
        shortage=reserved.shortage,
        spare=spare.shortage,
        leaving=dropped.leaving,
        waiting=untagged_nodes,
        skipped="; ".join(f"skipped: {text}" for text in dropped.reasons),
        moves=verdicts.describe_moves(bound_view),
    )
    actions = (*dropped.actions, *verdicts.templates(done))
    return Step(verdicts.verdict(done), bound_view.held, actions, withdrawn, reserved.starves, reserved.turn)


# -- reservations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Dropped:
    """What became of the slots that the workload cannot use: why they are released, and what that waits for."""

    view: View
    reasons: tuple[str, ...]
    leaving: tuple[str, str] | None = None
    actions: tuple[Action, ...] = ()


def _drop_unusable(view: View, broken: set[str]) -> _Dropped:
    """Release slots that the workload cannot use."""
    workload, sight, reservations = view.workload, view.sight, view.held
    reasons: list[str] = []
    kept_indices: set[int] = set()
    leaving_indices = {reservation.allocation.ultraserver_index for reservation in view.leaving()}

    def worth(reservation: Reservation) -> tuple[bool, bool]:
        """Sort key. A failed write may leave two reservations for one index: the one whose pods may run stays."""
        return reservation.allocation.phase is not Phase.BOUND, reservation.allocation.allocation_id in broken

    for reservation in sorted(reservations, key=worth):
        allocation = reservation.allocation
        index = allocation.ultraserver_index
        if allocation.phase is Phase.DRAINING:
            continue
        is_surplus = index >= workload.count or index in kept_indices or not _fits(view, reservation)
        if allocation.phase is Phase.BOUND:
            if is_surplus:
                reservations = reservations.drain(reservation, notice=objects.notice(NoticeReason.RELEASING, view.now))
            elif allocation.allocation_id not in broken:
                kept_indices.add(index)
            continue
        foreign_claims = sight.untagged_claims(allocation)
        gone_nodes = [node_name for node_name in allocation.nodes if not sight.is_there(node_name, allocation)]
        faults = [*recovery.current_faults(view, reservation)]
        reported_nodes = sorted({node_name for node_name, reason in faults if reason == Reason.NODE_UNHEALTHY})
        degraded_nodes = sorted({node_name for node_name, _ in faults} - {*reported_nodes})
        if is_surplus or foreign_claims or gone_nodes or faults:
            reservations = reservations.drop(reservation)
            reasons += [
                f"{use.holder(workload.namespace)} has devices of {shortened(use.nodes)}" for use in foreign_claims
            ]
            reasons += [f"node {node_name} is gone" for node_name in gone_nodes]
            reasons += [f"node {node_name} is reported as unhealthy by an agent" for node_name in reported_nodes]
            reasons += [
                f"node {node_name} has lost links or devices that the group needs" for node_name in degraded_nodes
            ]
            continue
        why_late = ""
        if index not in leaving_indices:
            reservations, why_late = _give_up_late(view, reservations, reservation)
        if why_late:
            reasons.append(why_late)
        else:
            kept_indices.add(index)
    done = _Dropped(view.having(reservations), tuple(reasons))
    return _release(done) if reservations.draining else done


def _release(dropped: _Dropped) -> _Dropped:
    """Go on with the release of slots: of those that the workload gave up, and of those with faults."""
    view = dropped.view
    workload_uid, reservations = view.workload.uid, view.held
    beyond_count: list[Reservation] = []
    within_count: list[Reservation] = []
    for reservation in reservations.draining:
        is_beyond = reservation.allocation.ultraserver_index >= view.workload.count
        (beyond_count if is_beyond else within_count).append(reservation)
    because_of_faults = releasing.release_reservations(
        view.sight, workload_uid, reservations, within_count, failed=True
    )
    by_request = releasing.release_reservations(view.sight, workload_uid, because_of_faults.held, beyond_count)
    waiting = by_request.waiting or because_of_faults.waiting
    actions = (*because_of_faults.actions, *by_request.actions)
    return _Dropped(view.having(by_request.held), dropped.reasons, waiting, actions)


def _fits(view: View, reservation: Reservation) -> bool:
    """Return True if the reservation has the size and the instance type of the workload's spec."""
    workload = view.workload
    group = view.sight.index.group_by_name.get(reservation.ultraserver)
    instance_type = group.instance_type if group is not None else workload.instance_type
    return (reservation.allocation.node_count, instance_type) == (workload.size, workload.instance_type)


def _give_up_late(view: View, reservations: Held, reservation: Reservation) -> tuple[Held, str]:
    """Release a reservation if a node has not tagged within the tag timeout; return why, or nothing."""
    sight, allocation, timeout = view.sight, reservation.allocation, view.limits.tag_timeout
    deadline = decode.time(allocation.allocated_at) + timeout
    untagged_nodes = [
        node_name for node_name in allocation.nodes if not sight.shows(node_name, allocation, Phase.PENDING)
    ]
    not_ready_nodes = [node_name for node_name in allocation.nodes if not sight.is_ready(node_name)]
    if not (untagged_nodes or not_ready_nodes):
        return reservations, ""
    if view.now < deadline:
        sight.look_again(deadline)
        return reservations, ""
    seconds = f"{timeout.total_seconds():g} s"
    if not_ready_nodes:
        # Nodes that are not Ready are not chosen again.
        return reservations.drop(reservation), f"not Ready for {seconds}: {shortened(not_ready_nodes)}"
    # Closed for a while, so that it is not chosen again at once.
    closed = reservations.drain(reservation, notice=objects.notice(NoticeReason.RELEASING, view.now))
    return closed, f"no tag within {seconds} from {shortened(untagged_nodes)}"


@dataclass(frozen=True, slots=True)
class _Reserved:
    """What was reserved, or why nothing was.

    - `starves`, `turn`: as in Step.
    """

    view: View
    shortage: placement.Shortage | None = None
    starves: bool = False
    turn: tuple[TurnKey, Turn] | None = None


def _reserve(view: View, opened: int) -> _Reserved:
    """Reserve all missing slots, or none of them. `opened`: see `Held.opened`."""
    workload, live = view.workload, view.held.live()
    missing_indices = [index for index in range(workload.count) if index not in live]
    if not missing_indices:
        return _Reserved(view)
    leaving = [
        reservation for reservation in view.leaving() if reservation.allocation.ultraserver_index in missing_indices
    ]
    if leaving:
        node_names = [node_name for reservation in leaving for node_name in reservation.allocation.nodes]
        text = (
            f"pods with the same ranks may still run on nodes that are being released: {shortened(tuple(node_names))}"
        )
        advice = releasing.dead_node_advice(view.sight, node_names)
        return _Reserved(view, placement.Shortage(Reason.WAITING_FOR_RELEASE, join_texts(text, advice)))
    over = view.refusal(missing_indices)
    if over is not None:  # it does not wait for nodes, so it holds back no other workload
        return _Reserved(_without_first_reservation(view), over)
    kind = view.kind
    repairs = missing_indices[-1] < opened
    if repairs or view.was_restarted:
        view = view.replacing()
    starving = None if repairs else queue.goes_first(view)
    if starving is None:
        chosen = view.choose(len(missing_indices), view.near(live))
        if chosen is not None:
            return _Reserved(view.reserving(missing_indices, chosen))
        shortage, turn = view.shortage(len(missing_indices)), None
    else:
        shortage, turn = queue.held_back(view, starving)
    without_first = _without_first_reservation(view)
    largest = _exceeds_fleet(without_first, live, kind)
    if largest is not None:
        return _Reserved(without_first, _unsatisfiable(without_first, len(missing_indices), largest), turn=turn)
    # Nodes that become free do not extend a block, and do not pass a test.
    can_starve = shortage.reason not in (Reason.BLOCK_ENDS_TOO_SOON, Reason.NOT_QUALIFIED) and workload.target is None
    starves = can_starve and view.free_slots.has_type(workload.instance_type) and queue.starves(view)
    return _Reserved(without_first, shortage, starves, turn)


def _without_first_reservation(view: View) -> View:
    """Remove the Pending slots of a workload that cannot have all its slots: a part would block other workloads.

    A workload with a template has run, too: its Pending slots replace others and stay.
    """
    if view.has_template or view.has_run:
        return view
    pending = [
        reservation for reservation in view.held.live().values() if reservation.allocation.phase is Phase.PENDING
    ]
    return view.having(view.held.drop(*pending))


def _exceeds_fleet(view: View, live: Mapping[int, Reservation], kind: str | None) -> int | None:
    """Return the largest serverCount that all healthy UltraServers together allow, besides the spares.

    None if the spec is within it. Slots of other workloads count as available, because they will be released; the
    workload's own `live` slots count too.
    """
    workload = view.workload
    own_node_names = {node_name for reservation in live.values() for node_name in reservation.allocation.nodes}
    usable = len(view.slots_of(own_node_names))
    slot_type = (workload.instance_type, workload.size, kind)
    largest = len(live) + view.free_slots.capacity(*slot_type, takes_spares=view.takes_spares) - usable
    return None if workload.count <= largest else max(largest, len(live))


def _unsatisfiable(view: View, missing_groups: int, largest: int) -> placement.Shortage:
    """Return the shortage of a workload that the whole fleet cannot hold, with what would help."""
    shortage = view.shortage(missing_groups)
    workload, free_slots, spares = view.workload, view.free_slots, view.takes_spares
    instance_type, size = workload.instance_type, workload.size
    if not free_slots.has_type(instance_type):
        return shortage
    if largest:
        advice = f"set spec.serverCount to at most {largest}"
    else:
        other_sizes = (slot_size for slot_size in SLOT_SIZES if slot_size != size)
        capacities = (
            (free_slots.capacity(instance_type, slot_size, None, takes_spares=spares), slot_size)
            for slot_size in other_sizes
        )
        alternatives = " and ".join(f"{capacity} of {slot_size}" for capacity, slot_size in capacities if capacity)
        advice = f"there are {alternatives}" if alternatives else "there are none of other sizes"
    groups = f"{largest} group{'s' if largest != 1 else ''} of {size}"
    besides = " besides the spares" if free_slots.keeps_spares(instance_type) and not spares else ""
    text = f"all healthy UltraServers together have {groups}{besides}: {advice}, or add or repair nodes"
    most = free_slots.members(instance_type, takes_spares=spares) // size
    reason = Reason.EXCEEDS_FLEET if workload.count > most else shortage.reason
    return placement.Shortage(reason, f"{shortage.message}; {text}; it holds no other workload back")
