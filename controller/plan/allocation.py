"""Giving a workload what it asks for: reserve, bind when all nodes have answered, replace what broke. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from controller.observe import decode
from controller.observe.model import (
    FINALIZER,
    SLOT_SIZES,
    Reservation,
    Template,
    Workload,
    shortened,
)
from controller.plan import (
    objects,
    placement,
    queue,
    recovery,
    releasing,
    restart_all,
    restoration,
)
from controller.plan.actions import (
    CreateTemplate,
    DeleteTemplate,
    SetFinalizers,
    Verdict,
)
from controller.plan.context import PlanningContext, joined
from controller.plan.recovery import damage
from neuron_dra.core.ultraserver import Phase

QUIET = datetime.timedelta(seconds=5)  # nodes answer in well under a second; those that have not by then are named


def serve(context: PlanningContext, workload: Workload) -> Verdict:
    """Bring a workload one step closer to what it asks for."""
    impediment = _impediment(context, workload)
    bound = any(each.allocation.phase is Phase.BOUND for each in context.holdings.of(workload.uid))
    if impediment is not None and not (bound or workload.restarting):
        return _failed(context, workload, impediment)
    if impediment is not None and impediment[0] == "InvalidSpec":  # nothing can be planned for it: all stays as it is
        return Verdict(str(workload.status.get("state") or "PartiallyAllocated"), *impediment, impediment)
    if FINALIZER not in workload.finalizers:
        names = (*workload.finalizers, FINALIZER)
        context.before.append(
            SetFinalizers(workload.namespace, workload.name, workload.version, names, owners=frozenset({workload.uid}))
        )
    unreadable = restoration.unreadable(context.holdings.unread, workload)
    if unreadable:
        return Verdict(workload.state, "UnreadableReservation", unreadable)
    recovery.note_faults(context, workload)
    broken = recovery.broken(context, workload)
    begins_again = restart_all.restart(context, workload, broken)
    if begins_again is not None:
        return begins_again
    if workload.strategy == "RestartAll":
        broken = set()  # it waits, with all that it has
    setbacks, leaving = _clean(context, workload, broken)
    shortage = _reserve(context, workload)
    spare, closing = _replace(context, workload, broken)
    context.holdings.tell_world(workload, grown=shortage is None)
    waiting = _bind(context, workload, closing)
    aside = "; ".join(f"passed over: {text}" for text in setbacks)
    verdict = _verdict(context, workload, shortage, spare, leaving, waiting, aside)
    return verdict if impediment is None else _reported(verdict, impediment)


def _impediment(context: PlanningContext, workload: Workload) -> tuple[str, str] | None:
    """What only a person can change, before anything can be reserved: a reason and a message, or None."""
    if workload.size not in SLOT_SIZES or not workload.count:
        return "InvalidSpec", (
            f"spec.topologySize is {workload.size}, spec.serverCount {workload.count}: write 1, 2 or 4 nodes for each "
            "group, and at least one group; the CRD of this release refuses others, so upgrade it, too"
        )
    name = f"{workload.namespace}/{workload.template_name}"
    advice = "delete this workload and create it with another spec.resourceClaimTemplate.name"
    template = _template(context, workload)
    owner = context.contested.get((workload.namespace, workload.template_name), workload)
    if owner.uid != workload.uid:
        return "TemplateNameTaken", f"ResourceClaimTemplate {name} is that of workload {owner.ref}: {advice}"
    if template is not None and not template.is_of(workload):
        return "TemplateNameTaken", f"ResourceClaimTemplate {name} exists and is not ours: delete it, or {advice}"
    return None


def _failed(context: PlanningContext, workload: Workload, impediment: tuple[str, str]) -> Verdict:
    """Hold nothing."""
    waiting = releasing.give_back(context, workload.uid, list(context.holdings.of(workload.uid)))
    if context.holdings.of(workload.uid):
        reason, message = waiting or ("Releasing", "the reservation is being taken back")
        return Verdict("Deallocating", reason, joined(message, impediment[1]))
    return Verdict("Failed", *impediment)


def _reported(verdict: Verdict, impediment: tuple[str, str]) -> Verdict:
    """Say it beside whatever else there is to say: pods of the workload may run, so it goes on."""
    reason, message = verdict.degraded or (impediment[0], "")
    degraded = (reason, joined(message, impediment[1]))
    if verdict.reason == "WaitingForNodes":
        return replace(verdict, reason=impediment[0], message=impediment[1], degraded=degraded)
    return replace(verdict, degraded=degraded)


def _template(context: PlanningContext, workload: Workload) -> Template | None:
    """What has the name of the workload's template."""
    return context.templates.get((workload.namespace, workload.template_name))


def template_is_official(context: PlanningContext, workload: Workload) -> bool:
    """The workload's template is the one that AWS's operator made."""
    template = _template(context, workload)
    return template is not None and template.is_official(workload)


def _clean(context: PlanningContext, workload: Workload, broken: set[str]) -> tuple[list[str], tuple[str, str] | None]:
    """Give back what the workload holds in vain; return why, and what the slots that it leaves wait for."""
    holdings, said, kept = context.holdings, [], set()
    leaving = {each.allocation.ultraserver_index for each in holdings.leaving(workload.uid)}

    def worth(each: Reservation) -> tuple[bool, bool]:
        """Of two for one index, which a write that failed leaves behind, the one whose pods may run stays."""
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
        foreign = holdings.slipped_in(allocation)
        gone = [name for name in allocation.nodes if not holdings.is_there(name, allocation)]
        worse = sorted({name for name, _ in recovery.seen_now(context, workload, one)})
        if surplus or foreign or gone or worse:
            holdings.drop(one)
            said += [f"{use.holder} has devices of {shortened(use.nodes)}" for use in foreign]
            said += [f"node {name} is gone" for name in gone]
            said += [f"node {name} has lost links or devices that the group needs" for name in worse]
            continue
        why = "" if index in leaving else _too_late(context, one)
        if why:
            said.append(why)
        else:
            kept.add(index)
    taken_back = [r for r in holdings.of(workload.uid) if r.allocation.phase is Phase.DRAINING]
    given = [r for r in taken_back if r.allocation.ultraserver_index >= workload.count]
    lost = [r for r in taken_back if r.allocation.ultraserver_index < workload.count]
    waiting = releasing.give_back(context, workload.uid, lost, failed=True)
    return said, releasing.give_back(context, workload.uid, given) or waiting


def _fits(context: PlanningContext, workload: Workload, one: Reservation) -> bool:
    """The reservation is of the size and the type that the workload asks for now."""
    group = context.snapshot.group_by_name.get(one.ultraserver)
    instance_type = group.instance_type if group is not None else workload.instance_type
    return (one.allocation.node_count, instance_type) == (workload.size, workload.instance_type)


def _too_late(context: PlanningContext, one: Reservation) -> str:
    """Give a reservation up whose nodes have not all answered in time; return why, or nothing."""
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
        holdings.drop(one)  # it is not Ready, so it is not chosen again
        return f"not Ready for {seconds}: {shortened(dead)}"
    holdings.drain(one)  # kept closed for a while, so that it is not chosen again at once
    return f"no tag within {seconds} from {shortened(late)}"


def _reserve(context: PlanningContext, workload: Workload) -> placement.Shortage | None:
    """Reserve all slots that are missing, or none; return why none."""
    holdings = context.holdings
    live = holdings.live(workload.uid)
    missing = [index for index in range(workload.count) if index not in live]
    if not missing:
        return None
    leaving = [each for each in holdings.leaving(workload.uid) if each.allocation.ultraserver_index in missing]
    if leaving:
        names = [name for each in leaving for name in each.allocation.nodes]
        text = f"pods with the same ranks may still run on nodes that are given back: {shortened(tuple(names))}"
        return placement.Shortage("WaitingForRelease", joined(text, releasing.way_out(context, names)))
    over = context.quota.refusal(workload, missing)
    if over is not None:
        if not any(each.allocation.phase is Phase.BOUND for each in live.values()):
            _drop(context, list(live.values()))
        return over  # it waits for no node, so it is in nobody's way
    free = context.free_slots.free(workload.instance_type, workload.size)
    kind = _kind(context, workload, live)
    repairs = missing[-1] < queue.grown_to(workload, live)
    first = None if repairs else queue.held_back(context, workload)
    if first is None:
        chosen = placement.choose(free, len(missing), kind=kind, near=_near(context, live, workload))
        if chosen is not None:
            for index, slot in zip(missing, chosen, strict=True):
                holdings.reserve(workload, index, slot, context.now)
            return None
    shortage = (
        context.free_slots.shortage(workload, len(missing)) if first is None else queue.comes_first(context, first)
    )
    if not any(each.allocation.phase is Phase.BOUND for each in live.values()):
        _drop(context, list(live.values()))  # all or nothing: half of it would keep others from the whole
    largest = queue.exceeds_fleet(context, workload, live, kind)
    if largest is not None:
        return queue.impossible(context, workload, len(missing), largest)
    if context.free_slots.has_type(workload.instance_type):
        queue.hold_back(context, workload)
    return shortage


def _replace(
    context: PlanningContext, workload: Workload, broken: set[str]
) -> tuple[placement.Shortage | None, set[int]]:
    """Move the workload away from broken slots: a new one first, then the old one closes.

    Return why there is no new one, and the indices of those that close now.
    """
    live = context.holdings.live(workload.uid)
    indices = {index for index, each in live.items() if each.allocation.allocation_id in broken}
    if not indices:
        return None, set()
    fine = {index: each for index, each in live.items() if index not in indices}
    spare = recovery.replace(context, workload, indices, _kind(context, workload, live), _near(context, fine, workload))
    return spare, recovery.drain_replaced(context, workload, indices)


def _kind(context: PlanningContext, workload: Workload, live: dict[int, Reservation]) -> str | None:
    """What nodes of the workload must publish: what its template asks for, or else what those publish that it has."""
    asked = recovery.asked_for(context, workload)
    if asked:
        return asked
    kinds = {context.holdings.kind(name) for each in live.values() for name in each.allocation.nodes} - {None}
    return min(kinds, default=None, key=str)


def _near(context: PlanningContext, live: dict[int, Reservation], workload: Workload) -> Sequence[placement.Slot]:
    """The slots that the workload has, as places in the network."""
    have = {name for each in live.values() for name in each.allocation.nodes}
    return context.free_slots.of_nodes(have, workload.instance_type, workload.size)


def _drop(context: PlanningContext, reservations: list[Reservation]) -> None:
    for one in reservations:
        if one.allocation.phase is Phase.PENDING:
            context.holdings.drop(one)


# -- how far it is -----------------------------------------------------------------------------------------------------


def _verdict(
    context: PlanningContext,
    workload: Workload,
    shortage: placement.Shortage | None,
    spare: placement.Shortage | None,
    leaving: tuple[str, str] | None,
    waiting: list[str],
    aside: str,
) -> Verdict:
    """Say how far the workload is; when it is whole, make its template."""
    holdings = context.holdings
    has_template = _has_template(context, workload)
    partly = "PartiallyAllocated" if has_template else "Allocating"
    moves = recovery.moves(context, workload)
    live = holdings.live(workload.uid)
    if not has_template and workload.status.get("allocatedAt"):
        _make_template(context, workload, live)  # it was deleted by hand; pods of the groups that are well need it
    if spare is not None and spare.reason == "WaitingForRelease":
        return Verdict(partly, spare.reason, joined(spare.message, moves, aside), damage(context, workload))
    if spare is not None:
        hurt = damage(context, workload, f"no spare group: {spare.message}")
        return Verdict(partly, "NoSpareGroup", joined(f"nowhere to move to yet: {spare.message}", moves, aside), hurt)
    if moves:
        answered = all(holdings.has_answered(each.allocation) for each in holdings.pending(workload.uid))
        held_up = leaving or recovery.held_up(context, workload)
        reason, text = held_up if answered and held_up else (objects.MIGRATING, _waiting(context, workload, waiting))
        return Verdict(partly, reason, joined(moves, text, aside), damage(context, workload))
    if shortage is None:
        if waiting:
            text = joined(_waiting(context, workload, waiting), aside)
            return Verdict(partly, "WaitingForNodes", text, damage(context, workload))
        return _whole(context, workload, live, has_template, aside)
    bound = [each for each in live.values() if each.allocation.phase is Phase.BOUND]
    if bound:
        text = f"{len(bound)} of {workload.count} groups are reserved; for the rest: {shortage.message}"
        return Verdict("PartiallyAllocated", shortage.reason, joined(text, aside), damage(context, workload))
    return Verdict("Pending", shortage.reason, joined(shortage.message, aside), damage(context, workload))


def _bind(context: PlanningContext, workload: Workload, closing: set[int]) -> list[str]:
    """Bind what is Pending when all of it has answered; return the nodes that have not.

    A slot under whose index pods may still run elsewhere waits for their end, and the others do not wait for it.
    `closing` are the indices that were closed in this very plan: whether they are empty is seen in the next.
    """
    holdings = context.holdings
    occupied = closing | {each.allocation.ultraserver_index for each in holdings.leaving(workload.uid)}
    occupied |= {index for index, each in holdings.live(workload.uid).items() if each.allocation.phase is Phase.BOUND}
    pending = holdings.pending(workload.uid)
    free = [each for each in pending if each.allocation.ultraserver_index not in occupied]
    if all(holdings.has_answered(each.allocation) for each in free):
        for each in free:
            holdings.bind(each)
    return [name for each in holdings.pending(workload.uid) for name in holdings.silent(each.allocation)]


def _waiting(context: PlanningContext, workload: Workload, nodes: Sequence[str]) -> str:
    """Say what is waited for; who is late only after a while, or each node's answer would be a write of its own."""
    began = [decode.time(each.allocation.allocated_at) for each in context.holdings.of(workload.uid)]
    patient_until = max(began, default=context.now) + QUIET
    if context.now < patient_until or not nodes:
        context.look_again(patient_until)
        return "waiting until all nodes show the reservation on their devices"
    late = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    text = f"waiting for {late} to show the reservation on their devices: {shortened(tuple(nodes))}"
    return joined(text, releasing.way_out(context, nodes))


def _has_template(context: PlanningContext, workload: Workload) -> bool:
    """The workload's own template is there, for groups of the size that it asks for."""
    template = _template(context, workload)
    mine = template is not None and template.is_of(workload) and not template.deleting
    return template is not None and mine and template.size in (None, workload.size)


def _make_template(context: PlanningContext, workload: Workload, live: dict[int, Reservation]) -> None:
    """Make the template, if there is a bound group for which it is, and if its nodes say what they publish."""
    kind, template = _kind(context, workload, live), _template(context, workload)
    if template is not None:
        if template.is_of(workload) and not template.deleting:  # it is for groups of another size
            owners = frozenset({workload.uid})
            context.before.append(DeleteTemplate(template.namespace, template.name, template.uid, owners=owners))
        return
    if kind is not None and any(each.allocation.phase is Phase.BOUND for each in live.values()):
        body = objects.claim_template(workload, kind, objects.device_class(context.snapshot.workload_class))
        context.after.append(CreateTemplate(body, owners=frozenset({workload.uid})))


def _whole(
    context: PlanningContext, workload: Workload, live: dict[int, Reservation], has_template: bool, aside: str
) -> Verdict:
    """Every slot is bound: the template can be there."""
    if not has_template and not workload.status.get("allocatedAt"):
        _make_template(context, workload, live)
    unseen = [
        name
        for each in live.values()
        for name in each.allocation.nodes
        if not context.holdings.shows(name, each.allocation, Phase.BOUND)
    ]
    if template_is_official(context, workload) and not unseen:
        releasing.delete_templates(context, workload)  # no node that is tagged is offered to its claims; ours follows
    hurt = damage(context, workload)
    if workload.status.get("state") != "Allocated" and (unseen or not has_template):
        state = "PartiallyAllocated" if has_template else "Allocating"
        if workload.status.get("state") == "Allocating":
            state = "Allocating"
        return Verdict(state, "WaitingForNodes", joined(_waiting(context, workload, unseen), aside), hurt)
    total = workload.count * workload.size
    servers = len({each.ultraserver for each in live.values()})
    text = (
        f"{total} node{'s' if total > 1 else ''} in {servers} UltraServer{'s' if servers > 1 else ''} reserved; pods "
        f"get them with resourceClaimTemplateName: {workload.template_name}"
    )
    return Verdict("Allocated", "Allocated", text, hurt)
