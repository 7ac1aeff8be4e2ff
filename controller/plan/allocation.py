"""Allocates a workload: reserves slots, binds them when all nodes show their tags, replaces slots with faults. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from controller.observe import decode
from controller.observe.model import FINALIZER, GROUPS_AT_MOST, SLOT_SIZES, Reservation, Template, Workload, shortened
from controller.plan import objects, placement, places, queue, recovery, releasing, rendezvous, restart_all, restoration
from controller.plan.actions import CreateTemplate, DeleteTemplate, SetFinalizers, Verdict
from controller.plan.context import PlanningContext, join_texts
from controller.plan.recovery import degradation
from neuron_dra.core.ultraserver import Phase

LATE_NODE_GRACE = datetime.timedelta(seconds=5)
"""Nodes usually tag within a second. After this time the message names those that have not."""


def allocate(context: PlanningContext, workload: Workload) -> Verdict:
    """Plan the next step of a workload towards Allocated, and return its state.

    Reserves missing slots, binds those whose nodes answered, replaces those with faults, and creates the template.
    """
    problem = _blocking_problem(context, workload)
    if problem is not None and not (_has_run(context, workload) or workload.restarting):
        return _failed(context, workload, problem)
    if problem is not None and problem[0] == "InvalidSpec":  # nothing can be planned; the reservations stay
        return Verdict(str(workload.status.get("state") or "PartiallyAllocated"), *problem, problem)
    if FINALIZER not in workload.finalizers:
        names = (*workload.finalizers, FINALIZER)
        context.before.append(
            SetFinalizers(workload.namespace, workload.name, workload.version, names, owners=frozenset({workload.uid}))
        )
    unreadable = restoration.unreadable(context.holdings.unread, workload)
    if unreadable:
        return Verdict(workload.state, "UnreadableReservation", unreadable)
    not_seen = restoration.not_seen(context.holdings, workload)
    if not_seen:
        return Verdict(workload.state, objects.NOT_SEEN, not_seen)
    recovery.note_faults(context, workload)
    broken = recovery.faulty_slots(context, workload)
    restart = restart_all.restart(context, workload, broken)
    if restart is not None:
        return restart
    if workload.strategy == "RestartAll":
        broken = set()  # the restart waits; until then the workload keeps its slots
    opened = queue.opened(context.holdings.of(workload.uid))
    dropped, leaving = _drop_unusable(context, workload, broken)
    shortage = _reserve(context, workload, opened)
    spare, closing = _replace(context, workload, broken)
    groups = min(opened, workload.count)
    context.holdings.set_world_size(workload, rendezvous.wanted(context, workload), groups)
    waiting = _bind(context, workload, closing)
    skipped = "; ".join(f"skipped: {text}" for text in dropped)
    verdict = _verdict(context, workload, shortage, spare, leaving, waiting, skipped)
    return verdict if problem is None else _with_problem(verdict, problem)


def _blocking_problem(context: PlanningContext, workload: Workload) -> tuple[str, str] | None:
    """Return what a user must correct before anything is reserved; None if nothing.

    A reason and a message.
    """
    if workload.size not in SLOT_SIZES or not 1 <= workload.count <= GROUPS_AT_MOST:
        return "InvalidSpec", (
            f"spec.topologySize is {workload.size}, spec.serverCount {workload.count}: write 1, 2 or 4 nodes for each "
            f"group, and 1 to {GROUPS_AT_MOST} groups; the CRD of this release rejects other values, so upgrade the "
            "CRD, too"
        )
    name = f"{workload.namespace}/{workload.template_name}"
    advice = "delete this workload and create it with another spec.resourceClaimTemplate.name"
    template = _template(context, workload)
    owner = context.contested.get((workload.namespace, workload.template_name), workload)
    if owner.uid != workload.uid:
        return "TemplateNameTaken", f"ResourceClaimTemplate {name} belongs to workload {owner.ref}: {advice}"
    if template is not None and not template.is_of(workload):
        return "TemplateNameTaken", f"ResourceClaimTemplate {name} exists and has another owner: delete it, or {advice}"
    return None


def _has_run(context: PlanningContext, workload: Workload) -> bool:
    """Return True if pods of the workload may run in a group, or in the one that a Pending group replaces."""
    phases = {each.allocation.phase for each in context.holdings.of(workload.uid)}
    return Phase.BOUND in phases or (Phase.PENDING in phases and bool(workload.status.get("allocatedAt")))


def _failed(context: PlanningContext, workload: Workload, problem: tuple[str, str]) -> Verdict:
    """Release what the workload has; it is Failed when all is released."""
    waiting = releasing.release_reservations(context, workload.uid, list(context.holdings.of(workload.uid)))
    if context.holdings.of(workload.uid):
        reason, message = waiting or ("Releasing", "the reservation is being released")
        return Verdict("Deallocating", reason, join_texts(message, problem[1]))
    return Verdict("Failed", *problem)


def _with_problem(verdict: Verdict, problem: tuple[str, str]) -> Verdict:
    """Return the verdict with the problem added. Pods of the workload may run, so its allocation goes on."""
    reason, message = verdict.degraded or (problem[0], "")
    degraded = (reason, join_texts(message, problem[1]))
    if verdict.reason == "WaitingForNodes":
        return replace(verdict, reason=problem[0], message=problem[1], degraded=degraded)
    return replace(verdict, degraded=degraded)


def _template(context: PlanningContext, workload: Workload) -> Template | None:
    """Return the ResourceClaimTemplate that has the name of the workload's template."""
    return context.templates.get((workload.namespace, workload.template_name))


def template_is_official(context: PlanningContext, workload: Workload) -> bool:
    """Return True if AWS's operator made the workload's template."""
    template = _template(context, workload)
    return template is not None and template.is_official(workload)


def _drop_unusable(
    context: PlanningContext, workload: Workload, broken: set[str]
) -> tuple[list[str], tuple[str, str] | None]:
    """Release slots that the workload cannot use; return why, and what their release waits for."""
    holdings, reasons, kept = context.holdings, [], set()
    leaving = {each.allocation.ultraserver_index for each in holdings.leaving(workload.uid)}

    def worth(each: Reservation) -> tuple[bool, bool]:
        """Sort key. A failed write may leave two reservations for one index: the one whose pods may run stays."""
        return each.allocation.phase is not Phase.BOUND, each.allocation.allocation_id in broken

    for one in sorted(holdings.of(workload.uid), key=worth):
        allocation = one.allocation
        index = allocation.ultraserver_index
        if allocation.phase is Phase.DRAINING:
            continue
        surplus = index >= workload.count or index in kept or not _fits(context, workload, one)
        if allocation.phase is Phase.BOUND:
            if surplus:
                holdings.drain(one)
            elif allocation.allocation_id not in broken:
                kept.add(index)
            continue
        foreign = holdings.untagged_claims(allocation)
        gone = [name for name in allocation.nodes if not holdings.is_there(name, allocation)]
        worse = sorted({name for name, _ in recovery.current_faults(context, workload, one)})
        if surplus or foreign or gone or worse:
            holdings.drop(one)
            reasons += [f"{use.holder} has devices of {shortened(use.nodes)}" for use in foreign]
            reasons += [f"node {name} is gone" for name in gone]
            reasons += [f"node {name} has lost links or devices that the group needs" for name in worse]
            continue
        why = "" if index in leaving else _give_up_late(context, one)
        if why:
            reasons.append(why)
        else:
            kept.add(index)
    taken_back = [r for r in holdings.of(workload.uid) if r.allocation.phase is Phase.DRAINING]
    given = [r for r in taken_back if r.allocation.ultraserver_index >= workload.count]
    lost = [r for r in taken_back if r.allocation.ultraserver_index < workload.count]
    waiting = releasing.release_reservations(context, workload.uid, lost, failed=True)
    return reasons, releasing.release_reservations(context, workload.uid, given) or waiting


def _fits(context: PlanningContext, workload: Workload, one: Reservation) -> bool:
    """Return True if the reservation has the size and the instance type of the workload's spec."""
    group = context.index.group_by_name.get(one.ultraserver)
    instance_type = group.instance_type if group is not None else workload.instance_type
    return (one.allocation.node_count, instance_type) == (workload.size, workload.instance_type)


def _give_up_late(context: PlanningContext, one: Reservation) -> str:
    """Release a reservation if a node has not tagged within the tag timeout; return why, or nothing."""
    holdings, allocation = context.holdings, one.allocation
    deadline = decode.time(allocation.allocated_at) + context.limits.tag_timeout
    late = [name for name in allocation.nodes if not holdings.shows(name, allocation, Phase.PENDING)]
    dead = [name for name in allocation.nodes if not holdings.is_ready(name)]
    if not (late or dead):
        return ""
    if context.now < deadline:
        context.look_again(deadline)
        return ""
    seconds = f"{context.limits.tag_timeout.total_seconds():g} s"
    if dead:
        holdings.drop(one)  # nodes that are not Ready are not chosen again
        return f"not Ready for {seconds}: {shortened(dead)}"
    holdings.drain(one)  # closed for a while, so that it is not chosen again at once
    return f"no tag within {seconds} from {shortened(late)}"


def _reserve(context: PlanningContext, workload: Workload, opened: int) -> placement.Shortage | None:
    """Reserve all missing slots, or none of them; return why none. `opened`: see `queue.opened`."""
    holdings = context.holdings
    live = holdings.live(workload.uid)
    missing = [index for index in range(workload.count) if index not in live]
    if not missing:
        return None
    leaving = [each for each in holdings.leaving(workload.uid) if each.allocation.ultraserver_index in missing]
    if leaving:
        names = [name for each in leaving for name in each.allocation.nodes]
        text = f"pods with the same ranks may still run on nodes that are being released: {shortened(tuple(names))}"
        return placement.Shortage("WaitingForRelease", join_texts(text, releasing.dead_node_advice(context, names)))
    over = context.quota.refusal(workload, missing)
    if over is not None:
        _drop_first_reservation(context, workload, live)
        return over  # it does not wait for nodes, so it holds back no other workload
    free = context.free_slots.free(workload.instance_type, workload.size)
    kind = _kind(context, workload, live)
    repairs = missing[-1] < opened
    first = None if repairs else queue.starving_workload(context, workload)
    if first is None:
        chosen = places.choose(free, len(missing), kind=kind, near=_near(context, live, workload))
        if chosen is not None:
            for index, slot in zip(missing, chosen, strict=True):
                holdings.reserve(workload, index, slot, context.now)
            return None
    shortage = (
        context.free_slots.shortage(workload, len(missing)) if first is None else queue.waits_for_older(context, first)
    )
    _drop_first_reservation(context, workload, live)
    largest = queue.exceeds_fleet(context, workload, live, kind)
    if largest is not None:
        return queue.unsatisfiable(context, workload, len(missing), largest)
    if context.free_slots.has_type(workload.instance_type):
        queue.note_starving(context, workload)
    return shortage


def _replace(
    context: PlanningContext, workload: Workload, broken: set[str]
) -> tuple[placement.Shortage | None, set[int]]:
    """Replace slots with faults: reserve the new one first, then drain the old one.

    Return why no new one is reserved, and the indices of the slots that start to drain.
    """
    live = context.holdings.live(workload.uid)
    indices = {index for index, each in live.items() if each.allocation.allocation_id in broken}
    if not indices:
        return None, set()
    fine = {index: each for index, each in live.items() if index not in indices}
    spare = recovery.replace(context, workload, indices, _kind(context, workload, live), _near(context, fine, workload))
    return spare, recovery.drain_replaced(context, workload, indices)


def _kind(context: PlanningContext, workload: Workload, live: dict[int, Reservation]) -> str | None:
    """Return the resourceType that the workload's nodes must publish: its template's, else that of nodes it has."""
    asked = recovery.template_kind(context, workload)
    if asked:
        return asked
    kinds = {context.holdings.kind(name) for each in live.values() for name in each.allocation.nodes} - {None}
    return min(kinds, default=None, key=str)


def _near(context: PlanningContext, live: dict[int, Reservation], workload: Workload) -> Sequence[placement.Slot]:
    """Return the workload's slots, to choose others near them in the network."""
    have = {name for each in live.values() for name in each.allocation.nodes}
    return context.free_slots.of_nodes(have, workload.instance_type, workload.size)


def _drop_first_reservation(context: PlanningContext, workload: Workload, live: dict[int, Reservation]) -> None:
    """Remove the Pending slots of a workload that cannot have all its slots: a part would block other workloads.

    A workload with a template has run, too: its Pending slots replace others and stay.
    """
    if _has_template(context, workload) or _has_run(context, workload):
        return
    for one in live.values():
        if one.allocation.phase is Phase.PENDING:
            context.holdings.drop(one)


# -- the verdict -------------------------------------------------------------------------------------------------------


def _verdict(
    context: PlanningContext,
    workload: Workload,
    shortage: placement.Shortage | None,
    spare: placement.Shortage | None,
    leaving: tuple[str, str] | None,
    waiting: list[str],
    skipped: str,
) -> Verdict:
    """Return the workload's state; create its template once all slots are bound."""
    holdings = context.holdings
    has_template = _has_template(context, workload)
    partly = "PartiallyAllocated" if has_template else "Allocating"
    moves = recovery.describe_moves(context, workload)
    live = holdings.live(workload.uid)
    if not has_template and workload.status.get("allocatedAt"):
        _make_template(context, workload, live)  # a user deleted it; pods of healthy groups need it
    shortage, spare = _with_cause(shortage, leaving), _with_cause(spare, leaving)
    if spare is not None and spare.reason in ("WaitingForRelease", "EvictionBlocked"):
        return Verdict(partly, spare.reason, join_texts(spare.message, moves, skipped), degradation(context, workload))
    if spare is not None:
        degraded = degradation(context, workload, f"no spare group: {spare.message}")
        text = join_texts(f"no spare group yet: {spare.message}", moves, skipped)
        return Verdict(partly, "NoSpareGroup", text, degraded)
    if moves:
        answered = all(holdings.has_tags(each.allocation) for each in holdings.pending(workload.uid))
        blocked_by_dead_nodes = leaving or recovery.blocked_by_dead_nodes(context, workload)
        reason, text = (
            blocked_by_dead_nodes
            if answered and blocked_by_dead_nodes
            else (objects.MIGRATING, _waiting(context, workload, waiting))
        )
        return Verdict(partly, reason, join_texts(moves, text, skipped), degradation(context, workload))
    if shortage is None:
        if waiting:
            text = join_texts(_waiting(context, workload, waiting), skipped)
            return Verdict(partly, "WaitingForNodes", text, degradation(context, workload))
        return _allocated(context, workload, live, has_template, skipped)
    bound = [each for each in live.values() if each.allocation.phase is Phase.BOUND]
    if bound:
        text = f"{len(bound)} of {workload.count} groups are reserved; for the rest: {shortage.message}"
        return Verdict("PartiallyAllocated", shortage.reason, join_texts(text, skipped), degradation(context, workload))
    return Verdict("Pending", shortage.reason, join_texts(shortage.message, skipped), degradation(context, workload))


def _with_cause(shortage: placement.Shortage | None, leaving: tuple[str, str] | None) -> placement.Shortage | None:
    """Return the shortage; where groups wait for a release that a budget blocks, the one that names the budget."""
    if shortage and leaving and (shortage.reason, leaving[0]) == ("WaitingForRelease", "EvictionBlocked"):
        return placement.Shortage(*leaving)
    return shortage


def _bind(context: PlanningContext, workload: Workload, closing: set[int]) -> list[str]:
    """Bind the Pending slots if all their nodes show the tag; return the nodes that are waited for.

    A slot waits while pods with its index may run elsewhere; other slots do not wait for it. `closing` are the indices
    that this plan drains: the next plan finds out whether they are empty. All wait until the open slots publish the
    planned number of nodes: without it, pods there do not know the new ranks.
    """
    holdings = context.holdings
    occupied = closing | {each.allocation.ultraserver_index for each in holdings.leaving(workload.uid)}
    occupied |= {index for index, each in holdings.live(workload.uid).items() if each.allocation.phase is Phase.BOUND}
    free = [each for each in holdings.pending(workload.uid) if each.allocation.ultraserver_index not in occupied]
    other_size = holdings.with_another_size(workload.uid) if free else []
    if not other_size and all(holdings.has_tags(each.allocation) for each in free):
        for each in free:
            holdings.bind(each)
    untagged = [name for each in holdings.pending(workload.uid) for name in holdings.without_tag(each.allocation)]
    return [*untagged, *(name for each in other_size for name in each.allocation.nodes)]


def _waiting(context: PlanningContext, workload: Workload, nodes: Sequence[str]) -> str:
    """Return what the workload waits for. Names late nodes only after a while, to save a write for each tag."""
    began = [decode.time(each.allocation.allocated_at) for each in context.holdings.of(workload.uid)]
    patient_until = max(began, default=context.now) + LATE_NODE_GRACE
    if context.now < patient_until or not nodes:
        context.look_again(patient_until)
        return "waiting for all nodes to show the reservation on their devices"
    late = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    text = f"waiting for {late} to show the reservation on their devices: {shortened(tuple(nodes))}"
    return join_texts(text, releasing.dead_node_advice(context, nodes))


def _has_template(context: PlanningContext, workload: Workload) -> bool:
    """Return True if the workload's template exists and is for groups of the size in its spec."""
    template = _template(context, workload)
    mine = template is not None and template.is_of(workload) and not template.deleting
    return template is not None and mine and template.size in (None, workload.size)


def _make_template(context: PlanningContext, workload: Workload, live: dict[int, Reservation]) -> None:
    """Create the template if a group is bound and its nodes publish a resourceType."""
    kind, template = _kind(context, workload, live), _template(context, workload)
    if template is not None:
        if template.is_of(workload) and not template.deleting:  # for groups of another size
            owners = frozenset({workload.uid})
            context.before.append(DeleteTemplate(template.namespace, template.name, template.uid, owners=owners))
        return
    if kind is not None and any(each.allocation.phase is Phase.BOUND for each in live.values()):
        body = objects.claim_template(workload, kind, objects.device_class(context.index.workload_class))
        context.after.append(CreateTemplate(body, owners=frozenset({workload.uid})))


def _allocated(
    context: PlanningContext, workload: Workload, live: dict[int, Reservation], has_template: bool, skipped: str
) -> Verdict:
    """Return the verdict on a workload of which every slot is bound: create its template, then Allocated."""
    if not has_template and not workload.status.get("allocatedAt"):
        _make_template(context, workload, live)
    unseen = [
        name
        for each in live.values()
        for name in each.allocation.nodes
        if not context.holdings.shows(name, each.allocation, Phase.BOUND)
    ]
    if template_is_official(context, workload) and not unseen:
        releasing.delete_templates(context, workload)  # its claims match no tagged node; the next plan creates ours
    degraded = degradation(context, workload)
    if workload.status.get("state") != "Allocated" and (unseen or not has_template):
        state = "PartiallyAllocated" if has_template else "Allocating"
        if workload.status.get("state") == "Allocating":
            state = "Allocating"
        return Verdict(state, "WaitingForNodes", join_texts(_waiting(context, workload, unseen), skipped), degraded)
    total = workload.count * workload.size
    servers = len({each.ultraserver for each in live.values()})
    text = (
        f"{total} node{'s' if total > 1 else ''} in {servers} UltraServer{'s' if servers > 1 else ''} reserved; pods "
        f"get them with resourceClaimTemplateName: {workload.template_name}"
    )
    return Verdict("Allocated", "Allocated", text, degraded)
