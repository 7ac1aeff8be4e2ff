"""Releases reservations: template deleted, nodes closed, pods evicted, claims gone, nodes free. Pure.

Nothing is deleted by force. A node that does not respond keeps its slot closed, and the message says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from controller.decisions import objects
from controller.decisions.actions import Action, DeleteTemplate, Evict
from controller.decisions.reasons import Reason
from controller.fleet.held import Held
from controller.fleet.sight import Sight
from controller.fleet.view import View, join_texts
from controller.observe import decode
from controller.observe.model import NODE_NAMES_SHOWN, ClaimUse, Consumer, Reservation, shortened
from controller.plan import claim_pods
from neuron_dra.core.notice import NoticeReason
from neuron_dra.core.ultraserver import Allocation, Phase

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
        reservations = tuple(one for one in reservations if one.allocation.phase is not Phase.BOUND)
    made = release_reservations(
        view.sight, view.workload.uid, view.held, reservations, final=final, failed=failed, why=why
    )
    return replace(made, actions=(*deletions, *made.actions))


def delete_templates(view: View) -> list[DeleteTemplate]:
    """Return the deletion of a workload's templates that are not being deleted yet."""
    owners = frozenset({view.workload.uid})
    return [DeleteTemplate(t.namespace, t.name, t.uid, owners=owners) for t in view.own_templates if not t.deleting]


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
    hold = sight.outage.message if failed and sight.outage is not None else ""
    dropped: list[Reservation] = []
    drained: list[Reservation] = []
    unseen: list[str] = []
    pods: list[str] = []
    evictions: list[Evict] = []
    for one in reservations:
        allocation = one.allocation
        if allocation.phase is Phase.PENDING:
            dropped.append(one)
            continue
        if allocation.phase is Phase.BOUND:
            drained.append(one)
            unseen += allocation.nodes
            continue
        lenient = final or _quarantine_is_over(sight, allocation)
        closed = [name for name in allocation.nodes if sight.is_closed(name, allocation, final=lenient)]
        still_open = [name for name in allocation.nodes if name not in closed]
        unseen += still_open
        if any(sight.is_ready(name) for name in still_open):
            continue
        # Only dead nodes have not closed; the pods of the other nodes are evicted anyway.
        uses = sight.own_uses(allocation)
        if not uses and not still_open and sight.has_read_claims([one]):
            dropped.append(one)
        for use in uses:
            pods += _waited_for(sight, use)
            found = claim_pods.of(sight, use)
            if hold or not {*use.nodes} & {*closed}:
                continue  # on dead nodes only, where an eviction has no effect
            owners = frozenset({workload_uid})
            evictions += [Evict(use.namespace, name, uid, owners=owners) for name, uid in found]
    nodes = [name for one in reservations for name in one.allocation.nodes]
    left = held.drop(*dropped).drain(*drained, notice=objects.notice(why, sight.now))
    return Release(left, tuple(evictions), _waiting(sight, evictions, pods, unseen, hold, nodes))


def _waiting(
    sight: Sight,
    evictions: Iterable[Evict],
    pods: Sequence[str],
    unseen: Sequence[str],
    hold: str,
    nodes: Sequence[str],
) -> tuple[str, str] | None:
    """Return what a release waits for, as a reason and a message."""
    whys = sight.known.blocked_evictions
    blocked = [f"{each.namespace}/{each.name}: {whys[each.uid]}" for each in evictions if whys.get(each.uid)]
    if blocked:
        return Reason.EVICTION_BLOCKED, "pods that cannot be evicted: " + "; ".join(sorted(blocked)[:NODE_NAMES_SHOWN])
    hint = dead_node_advice(sight, nodes)
    if pods:
        return Reason.WAITING_FOR_PODS, join_texts(_holders(pods), hold, hint)
    if unseen:
        number = f"{len(unseen)} node{'s' if len(unseen) != 1 else ''}"
        return Reason.DRAINING, join_texts(f"waiting for {number} to close: {shortened(unseen)}", hint)
    return None


def _waited_for(sight: Sight, use: ClaimUse) -> list[str]:
    """Return what must go before the claim's node is free, for a message: pods, else groups, else the claim."""
    pods = [f"{use.namespace}/{name}" for name, _ in claim_pods.of(sight, use)]
    if pods:
        return pods
    # Only the deletion of the group releases its claim, and that is not the controller's to do.
    advice = " (no pod of it is there: delete it)" if use.ref in sight.known.shared_by else ""
    groups = [f"{_kind(each)} {use.namespace}/{each.name}{advice}" for each in use.others]
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
    names = [name for one in reservations for name in one.allocation.nodes]
    uses: list[ClaimUse] = []
    for one in reservations:
        uses += sight.own_uses(one.allocation)
    on = {name for use in uses for name in use.nodes}
    if any(sight.is_ready(name) for name in on) or not any(_may_return(sight, name) for name in on):
        return None
    pods = [text for use in uses for text in _waited_for(sight, use)]
    return Reason.WAITING_FOR_PODS, join_texts(_holders(pods), dead_node_advice(sight, names))


def _may_return(sight: Sight, name: str) -> bool:
    """Return True unless a user has given the node up."""
    node = sight.node(name)
    return node is not None and not node.out_of_service


def _quarantine_is_over(sight: Sight, allocation: Allocation) -> bool:
    """Return True if nodes that did not tag have been closed for QUARANTINE tag timeouts."""
    until = decode.time(allocation.allocated_at) + QUARANTINE * sight.limits.tag_timeout
    sight.look_again(until)
    return sight.now >= until


def dead_node_advice(sight: Sight, names: Iterable[str]) -> str:
    """Return what a user can do about dead nodes, empty if all are Ready. The controller never deletes by force."""
    found = (sight.node(name) for name in {*names})
    dead = sorted(node.name for node in found if node is not None and not node.ready)
    if not dead:
        return ""
    return (
        f"not Ready: {shortened(dead)}; to give up a node that will not come back, delete its Node or add the taint "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
