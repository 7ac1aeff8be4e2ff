"""Releases reservations: template deleted, nodes closed, pods evicted, claims gone, nodes free. Pure.

Nothing is deleted by force. A node that does not respond keeps its slot closed, and the message says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.observe import decode
from controller.observe.model import (
    FINALIZER,
    NODE_NAMES_SHOWN,
    ClaimUse,
    Reservation,
    Workload,
    shortened,
)
from controller.plan import claim_pods, restoration
from controller.plan.actions import (
    DeleteTemplate,
    Evict,
    SetFinalizers,
    Verdict,
)
from controller.plan.context import PlanningContext, join_texts
from neuron_dra.core.ultraserver import Allocation, Phase

QUARANTINE = 10
"""The number of tag timeouts for which a node that did not tag is not chosen again, so that others are tried."""


def release(context: PlanningContext, workload: Workload) -> Verdict | None:
    """Plan the next step of a deleted workload's release; return None when nothing of it is left.

    The last step removes the workload's finalizer, after which the API server deletes it.
    """
    owners = frozenset({workload.uid})
    left = delete_templates(context, workload)
    holdings = context.holdings
    stored = list(holdings.of(workload.uid))
    waiting = release_reservations(context, workload.uid, stored, final=True)
    if FINALIZER not in workload.finalizers:
        return None
    unreadable = restoration.unreadable(holdings.unread, workload)
    if unreadable and not (stored or left):
        return Verdict("Deallocating", "UnreadableReservation", unreadable)
    if not stored and not left:
        names = tuple(name for name in workload.finalizers if name != FINALIZER)
        context.last.append(SetFinalizers(workload.namespace, workload.name, workload.version, names, owners=owners))
        return None
    return Verdict("Deallocating", *(waiting or ("Releasing", "the reservation is being released")))


def delete_templates(context: PlanningContext, workload: Workload) -> bool:
    """Plan the deletion of the workload's templates; return True while any exist.

    The template goes first, so that no new claims are made from it.
    """
    found = context.index.templates_of(workload.uid)
    named = context.templates.get((workload.namespace, workload.template_name))
    templates = [each for each in dict.fromkeys((*found, *([named] if named else []))) if each.is_of(workload)]
    context.before += [
        DeleteTemplate(t.namespace, t.name, t.uid, owners=frozenset({workload.uid}))
        for t in templates
        if not t.deleting
    ]
    return bool(templates)


def release_reservations(
    context: PlanningContext,
    workload_uid: str,
    reservations: Sequence[Reservation],
    *,
    final: bool = False,
    failed: bool = False,
) -> tuple[str, str] | None:
    """Plan the next step of each reservation's release; return what it waits for, as a reason and a message.

    A Pending reservation is dropped, a Bound one becomes Draining. A Draining slot is free once its nodes show
    Draining, so that no new pods are placed there, and no claim of the workload is left. `final`: the workload is being
    deleted, so a node that never showed Bound need not show Draining. `failed`: the cause is a fault, so nothing is
    evicted during an outage.
    """
    hold = context.outage.message if failed and context.outage is not None else ""
    holdings = context.holdings
    unseen: list[str] = []
    pods: list[str] = []
    blocked: list[str] = []
    for one in reservations:
        allocation = one.allocation
        if allocation.phase is Phase.PENDING:
            holdings.drop(one)
            continue
        if allocation.phase is Phase.BOUND:
            holdings.drain(one)
            unseen += allocation.nodes
            continue
        lenient = final or _quarantine_is_over(context, allocation)
        closed = [name for name in allocation.nodes if holdings.is_closed(name, allocation, final=lenient)]
        still_open = [name for name in allocation.nodes if name not in closed]
        unseen += still_open
        if any(holdings.is_ready(name) for name in still_open):
            continue
        # Only dead nodes have not closed; the pods of the other nodes are evicted anyway.
        uses = holdings.own_uses(allocation)
        if not uses and not still_open:
            holdings.drop(one)
        for use in uses:
            pods += claim_pods.waited_for(context, use)
            for name, uid in claim_pods.of(context, use):
                if hold or not {*use.nodes} & {*closed}:
                    continue  # on dead nodes only, where an eviction has no effect
                context.after.append(Evict(use.namespace, name, uid, owners=frozenset({workload_uid})))
                if why := context.known.blocked_evictions.get(uid):
                    blocked.append(f"{use.namespace}/{name}: {why}")
    if blocked:
        return "EvictionBlocked", "pods that cannot be evicted: " + "; ".join(sorted(blocked)[:NODE_NAMES_SHOWN])
    hint = dead_node_advice(context, [name for one in reservations for name in one.allocation.nodes])
    if pods:
        return "WaitingForPods", join_texts(_holders(pods), hold, hint)
    if unseen:
        nodes = f"{len(unseen)} node{'s' if len(unseen) != 1 else ''}"
        return "Draining", join_texts(f"waiting for {nodes} to close: {shortened(unseen)}", hint)
    return None


def _holders(pods: Iterable[str]) -> str:
    """Return the message about the pods and claims that keep nodes from being free."""
    return f"waiting for pods and claims on the nodes: {shortened(sorted(set(pods)))}"


def pods_on_dead_nodes(context: PlanningContext, reservations: Sequence[Reservation]) -> tuple[str, str] | None:
    """Return a reason and a message if the pods of these groups are on dead nodes only.

    None if some can be evicted, or if there are none. Dead nodes may come back with their pods running, so the groups
    stay Bound until then, or until a user gives up the nodes.
    """
    names = [name for one in reservations for name in one.allocation.nodes]
    uses: list[ClaimUse] = []
    for one in reservations:
        uses += context.holdings.own_uses(one.allocation)
    on = {name for use in uses for name in use.nodes}
    if any(context.holdings.is_ready(name) for name in on) or not any(_may_return(context, name) for name in on):
        return None
    pods = [text for use in uses for text in claim_pods.waited_for(context, use)]
    return "WaitingForPods", join_texts(_holders(pods), dead_node_advice(context, names))


def _may_return(context: PlanningContext, name: str) -> bool:
    """Return True unless a user has given the node up."""
    node = context.nodes.get(name)
    return node is not None and not node.out_of_service


def _quarantine_is_over(context: PlanningContext, allocation: Allocation) -> bool:
    """Return True if nodes that did not tag have been closed for QUARANTINE tag timeouts."""
    until = decode.time(allocation.allocated_at) + QUARANTINE * context.limits.tag_timeout
    context.look_again(until)
    return context.now >= until


def dead_node_advice(context: PlanningContext, names: Iterable[str]) -> str:
    """Return what a user can do about dead nodes, empty if all are Ready. The controller never deletes by force."""
    dead = sorted(name for name in {*names} if name in context.nodes and not context.nodes[name].ready)
    if not dead:
        return ""
    return (
        f"not Ready: {shortened(dead)}; to give up a node that will not come back, delete its Node or add the taint "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
