"""Releases reservations: template deleted, nodes closed, pods evicted, claims gone, nodes free. Pure.

Nothing is deleted by force. A node that does not respond keeps its slot closed, and the message says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from neuron_dra.core.notice import NoticeReason
from neuron_dra.core.ultraserver import Allocation, Phase
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Action, DeleteTemplate, Evict
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.fleet.view import View, join_texts
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import NODE_NAMES_SHOWN, ClaimUse, Consumer, Reservation, shortened
from neuron_dra.planner.plan import claim_pods

QUARANTINE = 10
"""The number of tag timeouts for which a node that did not tag is not chosen again, so that others are tried."""


@dataclass(frozen=True, slots=True)
class Release:
    """The next step of a release.

    - `held`: the reservations that the workload has from now on.
    - `actions`: the other writes.
    - `waiting`: what the release waits for, as a reason and a message; None if nothing is left of it.
    """

    held: Held
    actions: tuple[Action, ...]
    waiting: tuple[str, str] | None


def release_all(
    view: View, *, final: bool = False, failed: bool = False, why: NoticeReason = NoticeReason.RELEASING
) -> Release:
    """Return the next step of the release of all that a workload has; see `release_reservations`.

    Its templates go first, so that no new claims are made from them. What is Bound waits for that: the write of a
    NeuronUltraServer is for all of its workloads, and must not wait for a deletion that may be rejected.
    """
    deletions = delete_templates(view)
    reservations = view.held.all
    if deletions:
        reservations = tuple(
            reservation for reservation in reservations if reservation.allocation.phase is not Phase.BOUND
        )
    release = release_reservations(
        view.sight, view.workload.uid, view.held, reservations, final=final, failed=failed, why=why
    )
    return replace(release, actions=(*deletions, *release.actions))


def delete_templates(view: View) -> list[DeleteTemplate]:
    """Return the deletion of a workload's templates that are not being deleted yet."""
    owners = frozenset({view.workload.uid})
    return [
        DeleteTemplate(template.namespace, template.name, template.uid, owners=owners)
        for template in view.own_templates
        if not template.deleting
    ]


def release_reservations(
    sight: Sight,
    workload_uid: str,
    held: Held,
    reservations: Collection[Reservation],
    *,
    final: bool = False,
    failed: bool = False,
    why: NoticeReason = NoticeReason.RELEASING,
) -> Release:
    """Return the next step of the release of some reservations of a workload, which has `held`.

    A Pending reservation is dropped, a Bound one becomes Draining. A Draining slot is free once its nodes show
    Draining, so that no new pods are placed there, and no claim of the workload is left. `final`: the workload is being
    deleted, so a node that never showed Bound need not show Draining. `failed`: the cause is a fault, so nothing is
    evicted during an outage. `why` is the notice for the pods of Bound ones.
    """
    outage_message = sight.outage.message if failed and sight.outage is not None else ""
    dropped: list[Reservation] = []
    drained: list[Reservation] = []
    not_closed: list[str] = []
    pods: list[str] = []
    evictions: list[Evict] = []
    for reservation in reservations:
        allocation = reservation.allocation
        if allocation.phase is Phase.PENDING:
            dropped.append(reservation)
            continue
        if allocation.phase is Phase.BOUND:
            drained.append(reservation)
            not_closed += allocation.nodes
            continue
        any_tag_closes = final or _quarantine_is_over(sight, allocation)
        closed_nodes = [
            node_name for node_name in allocation.nodes if sight.is_closed(node_name, allocation, final=any_tag_closes)
        ]
        open_nodes = [node_name for node_name in allocation.nodes if node_name not in closed_nodes]
        not_closed += open_nodes
        if any(sight.is_ready(node_name) for node_name in open_nodes):
            continue
        # Only dead nodes have not closed; the pods of the other nodes are evicted anyway.
        uses = sight.own_uses(allocation)
        if not uses and not open_nodes and sight.has_read_claims([reservation]):
            dropped.append(reservation)
        for use in uses:
            pods += _waited_for(sight, use)
            pods_of_claim = claim_pods.of(sight, use)
            if outage_message or not {*use.nodes} & {*closed_nodes}:
                continue  # on dead nodes only, where an eviction has no effect
            owners = frozenset({workload_uid})
            evictions += [Evict(use.namespace, pod_name, pod_uid, owners=owners) for pod_name, pod_uid in pods_of_claim]
    nodes = [node_name for reservation in reservations for node_name in reservation.allocation.nodes]
    remaining = held.drop(*dropped).drain(*drained, notice=objects.notice(why, sight.now))
    return Release(remaining, tuple(evictions), _waiting(sight, evictions, pods, not_closed, outage_message, nodes))


def _waiting(
    sight: Sight,
    evictions: Iterable[Evict],
    pods: Sequence[str],
    not_closed: Sequence[str],
    outage_message: str,
    nodes: Sequence[str],
) -> tuple[str, str] | None:
    """Return what a release waits for, as a reason and a message."""
    blocked = []
    for eviction in evictions:
        rejection = sight.known.blocked_evictions.get(eviction.uid)
        if rejection:
            blocked.append(f"{eviction.namespace}/{eviction.name}: {rejection}")
    if blocked:
        return Reason.EVICTION_BLOCKED, "pods that cannot be evicted: " + "; ".join(sorted(blocked)[:NODE_NAMES_SHOWN])
    hint = dead_node_advice(sight, nodes)
    if pods:
        return Reason.WAITING_FOR_PODS, join_texts(_holders(pods), outage_message, hint)
    if not_closed:
        how_many = f"{len(not_closed)} node{'s' if len(not_closed) != 1 else ''}"
        return Reason.DRAINING, join_texts(f"waiting for {how_many} to close: {shortened(not_closed)}", hint)
    return None


def _waited_for(sight: Sight, use: ClaimUse) -> list[str]:
    """Return what must go before the claim's node is free, for a message: pods, else groups, else the claim."""
    pods = [f"{use.namespace}/{pod_name}" for pod_name, _ in claim_pods.of(sight, use)]
    if pods:
        return pods
    # Only the deletion of the group releases its claim, and that is not the controller's to do.
    advice = " (no pod of it is there: delete it)" if use.ref in sight.known.shared_by else ""
    groups = [f"{_kind(consumer)} {use.namespace}/{consumer.name}{advice}" for consumer in use.others]
    return groups or [f"claim {use.ref}"]


def _kind(consumer: Consumer) -> str:
    return "PodGroup" if consumer.is_pod_group else f"{consumer.resource}.{consumer.group}".rstrip(".")


def _holders(pods: Iterable[str]) -> str:
    """Return the message about the pods and claims that keep nodes from being free."""
    return f"waiting for pods and claims on the nodes: {shortened(sorted(set(pods)))}"


def pods_on_dead_nodes(sight: Sight, reservations: Sequence[Reservation]) -> tuple[str, str] | None:
    """Return a reason and a message if the pods of these groups are on dead nodes only.

    None if some can be evicted, or if there are none. Dead nodes may come back with their pods running, so the groups
    stay Bound until then, or until a user gives up the nodes.
    """
    node_names = [node_name for reservation in reservations for node_name in reservation.allocation.nodes]
    uses: list[ClaimUse] = []
    for reservation in reservations:
        uses += sight.own_uses(reservation.allocation)
    nodes_in_use = {node_name for use in uses for node_name in use.nodes}
    if any(sight.is_ready(node_name) for node_name in nodes_in_use):
        return None
    if not any(_may_return(sight, node_name) for node_name in nodes_in_use):
        return None
    pods = [text for use in uses for text in _waited_for(sight, use)]
    return Reason.WAITING_FOR_PODS, join_texts(_holders(pods), dead_node_advice(sight, node_names))


def _may_return(sight: Sight, node_name: str) -> bool:
    """Return True unless a user has given the node up."""
    node = sight.node(node_name)
    return node is not None and not node.out_of_service


def _quarantine_is_over(sight: Sight, allocation: Allocation) -> bool:
    """Return True if nodes that did not tag have been closed for QUARANTINE tag timeouts."""
    until = decode.time(allocation.allocated_at) + QUARANTINE * sight.limits.tag_timeout
    sight.look_again(until)
    return sight.now >= until


def dead_node_advice(sight: Sight, node_names: Iterable[str]) -> str:
    """Return what a user can do about dead nodes, empty if all are Ready. The controller never deletes by force."""
    nodes_or_none = (sight.node(node_name) for node_name in {*node_names})
    dead = sorted(node.name for node in nodes_or_none if node is not None and not node.ready)
    if not dead:
        return ""
    return (
        f"not Ready: {shortened(dead)}; to give up a node that will not come back, delete its Node or add the taint "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
