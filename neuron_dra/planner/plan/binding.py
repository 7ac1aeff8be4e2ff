"""Opens the nodes of a workload for its pods, once they show their tags, and publishes how many there are. Pure."""

from __future__ import annotations

from neuron_dra.core import rendezvous
from neuron_dra.core.rendezvous import Rendezvous
from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.fleet.view import View


def bind(view: View, closing: frozenset[int], opened: int) -> tuple[View, list[str]]:
    """Bind the Pending slots if all their nodes show the tag; return the nodes that are waited for.

    A slot waits while pods with its index may run elsewhere; other slots do not wait for it. `closing` are the indices
    that this plan drains: the next plan finds out whether they are empty. All wait until the open slots publish the
    planned number of nodes: without it, pods there do not know the new ranks. `opened`: how many groups are or were
    open.
    """
    size, groups = view.workload.size, _open_groups(view, opened)
    view = view.having(view.held.with_world_size(size, _address(view), groups))
    reservations, sight = view.held, view.sight
    live = reservations.live()
    occupied_indices = closing | {reservation.allocation.ultraserver_index for reservation in view.leaving()}
    occupied_indices |= {index for index, reservation in live.items() if reservation.allocation.phase is Phase.BOUND}
    unoccupied = [
        reservation
        for reservation in reservations.pending
        if reservation.allocation.ultraserver_index not in occupied_indices
    ]
    other_size = reservations.with_another_size(view.stored) if unoccupied else []
    have_tags = not other_size and all(sight.has_tags(reservation.allocation) for reservation in unoccupied)
    if have_tags and sight.has_read_claims(unoccupied):
        reservations = reservations.bind(*unoccupied)
    untagged = [
        node_name for reservation in reservations.pending for node_name in sight.without_tag(reservation.allocation)
    ]
    without_size = [node_name for reservation in other_size for node_name in reservation.allocation.nodes]
    return view.having(reservations), [*untagged, *without_size]


def _open_groups(view: View, opened: int) -> int:
    """Return how many groups count for the number of nodes that pods see, even while one of them is repaired."""
    return min(opened, view.workload.count)


def _address(view: View) -> Rendezvous | None:
    """Return how the nodes of a workload find rank 0; None if nothing is reserved, or Services cannot be written.

    The stored address of the host stays while its Node does not exist or has none.
    """
    workload, first_group = view.workload, view.held.live().get(0)
    if first_group is None or view.sight.known.without_services:
        return None
    mode = workload.rendezvous if workload.rendezvous in rendezvous.MODES else ""
    stored_rendezvous, first_node = first_group.allocation.rendezvous, view.sight.node(first_group.allocation.nodes[0])
    host_ip = (first_node.internal_ip if first_node else "") or (stored_rendezvous.host_ip if stored_rendezvous else "")
    address = rendezvous.address(workload.namespace, workload.name)
    return Rendezvous(address, mode, host_ip if mode == rendezvous.HOST else "")
