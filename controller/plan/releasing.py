"""Taking reservations back: template deleted, nodes closed, pods evicted, claims gone, nodes free. Pure.

Nothing is ever deleted by force. A node that does not answer keeps its slot closed, and the message says what a person
can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.observe import decode
from controller.observe.model import (
    FINALIZER,
    NODE_NAMES_SHOWN,
    Reservation,
    Workload,
    shortened,
)
from controller.plan import restoration
from controller.plan.actions import (
    DeleteTemplate,
    Evict,
    SetFinalizers,
    Verdict,
)
from controller.plan.context import PlanningContext, joined
from neuron_dra.core.ultraserver import Allocation, Phase

QUARANTINE = 10  # tag timeouts that a node which never answered is kept out of the choice, so that others are tried


def release(context: PlanningContext, workload: Workload) -> Verdict | None:
    """Bring the release of a deleted workload one step further; None when nothing of it is left."""
    owners = frozenset({workload.uid})
    left = delete_templates(context, workload)
    holdings = context.holdings
    stored = list(holdings.of(workload.uid))
    waiting = give_back(context, workload.uid, stored, final=True)
    if FINALIZER not in workload.finalizers:
        return None
    unreadable = restoration.unreadable(holdings.unread, workload)
    if unreadable and not (stored or left):
        return Verdict("Deallocating", "UnreadableReservation", unreadable)
    if not stored and not left:
        names = tuple(name for name in workload.finalizers if name != FINALIZER)
        context.last.append(SetFinalizers(workload.namespace, workload.name, workload.version, names, owners=owners))
        return None
    return Verdict("Deallocating", *(waiting or ("Releasing", "the reservation is being taken back")))


def delete_templates(context: PlanningContext, workload: Workload) -> bool:
    """Delete the workload's templates; return whether there are any yet."""
    found = context.snapshot.templates_of(workload.uid)
    named = context.templates.get((workload.namespace, workload.template_name))
    templates = [each for each in dict.fromkeys((*found, *([named] if named else []))) if each.is_of(workload)]
    context.before += [
        DeleteTemplate(t.namespace, t.name, t.uid, owners=frozenset({workload.uid}))
        for t in templates
        if not t.deleting
    ]
    return bool(templates)


def give_back(
    context: PlanningContext,
    workload_uid: str,
    reservations: Sequence[Reservation],
    *,
    final: bool = False,
    failed: bool = False,
) -> tuple[str, str] | None:
    """Take reservations back, each one step; return what is waited for, as a reason and a message.

    A slot is free when its nodes show Draining, so that nothing new is placed, and when no claim of the workload is
    left. `final`: the workload goes, so a node that never opened is not kept closed. `failed`: because of a failure, so
    that nothing is evicted during an outage.
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
        lenient = final or _waited_long_enough(context, allocation)
        closed = [name for name in allocation.nodes if holdings.is_closed(name, allocation, final=lenient)]
        still_open = [name for name in allocation.nodes if name not in closed]
        unseen += still_open
        if any(holdings.is_ready(name) for name in still_open):
            continue
        # Only dead nodes are left open: they do not keep the pods of the others.
        uses = [use for use in holdings.uses(allocation.nodes) if use.is_of(allocation)]
        if not uses and not still_open:
            holdings.drop(one)
        for use in uses:
            if not use.pods:
                pods.append(f"claim {use.namespace}/{use.name}")
            for name, uid in use.pods:
                pods.append(f"{use.namespace}/{name}")
                if hold or not {*use.nodes} & {*closed}:
                    continue  # on dead nodes only, where an eviction would change nothing
                context.after.append(Evict(use.namespace, name, uid, owners=frozenset({workload_uid})))
                if uid in context.snapshot.blocked_evictions:
                    blocked.append(f"{use.namespace}/{name}: {context.snapshot.blocked_evictions[uid]}")
    if blocked:
        return "EvictionBlocked", "pods that may not be evicted: " + "; ".join(sorted(blocked)[:NODE_NAMES_SHOWN])
    hint = way_out(context, [name for one in reservations for name in one.allocation.nodes])
    if pods:
        return "WaitingForPods", joined(_holders(pods), hold, hint)
    if unseen:
        return "Draining", joined(
            f"waiting for {len(unseen)} node{'s' if len(unseen) != 1 else ''} to close: {shortened(unseen)}", hint
        )
    return None


def _holders(pods: Iterable[str]) -> str:
    return f"waiting for what holds the nodes: {shortened(sorted(set(pods)))}"


def out_of_reach(
    context: PlanningContext, workload_uid: str, reservations: Iterable[Reservation]
) -> tuple[str, str] | None:
    """Tell that closing these groups would evict nobody now: their pods are on dead nodes only; None if it would.

    Such nodes may come back with their pods well, so the groups stay as they are until then, or until a person says
    that the nodes are off.
    """
    names = [name for one in reservations for name in one.allocation.nodes]
    uses = [use for use in context.holdings.uses(names) if use.workload_uid == workload_uid]
    on = {name for use in uses for name in use.nodes}
    if any(context.holdings.is_ready(name) for name in on) or not any(_may_return(context, name) for name in on):
        return None
    pods = [f"{use.namespace}/{name}" for use in uses for name, _ in use.pods]
    return "WaitingForPods", joined(_holders(pods), way_out(context, names))


def _may_return(context: PlanningContext, name: str) -> bool:
    node = context.nodes.get(name)
    return node is not None and not node.out_of_service


def _waited_long_enough(context: PlanningContext, allocation: Allocation) -> bool:
    """A node that does not answer is kept closed for a while, so that it is not chosen again, but not for ever."""
    until = decode.time(allocation.allocated_at) + QUARANTINE * context.limits.tag_timeout
    context.look_again(until)
    return context.now >= until


def way_out(context: PlanningContext, names: Iterable[str]) -> str:
    """What a person can do about nodes that are dead: nothing is ever deleted by force."""
    dead = sorted(name for name in {*names} if name in context.nodes and not context.nodes[name].ready)
    if not dead:
        return ""
    return (
        f"not Ready: {shortened(dead)}; a node that will not come back is given up by deleting its Node, or by the "
        "taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
