"""Says what an allocation has led to: state, reasons and faults; the template once all groups are bound. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neuron_dra.core.ultraserver import Phase
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Action, CreateTemplate, DeleteTemplate, Verdict
from neuron_dra.planner.decisions.reasons import WAITING, Reason
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet import placement
from neuron_dra.planner.fleet.view import View, join_texts
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import Reservation, Workload, shortened
from neuron_dra.planner.plan import recovery, releasing

SHORTAGE_REASONS = (
    Reason.INSUFFICIENT_CAPACITY,
    Reason.CAPACITY_SPLIT,
    Reason.NO_ULTRASERVERS,
    Reason.NO_SPARE_GROUP,
)
"""The reasons with which a workload waits for nodes."""
LATE_NODE_GRACE = datetime.timedelta(seconds=5)
"""Nodes usually tag within a second. After this time the message names those that have not."""


@dataclass(frozen=True, slots=True)
class Done:
    """What an allocation has done.

    - `view`: with the reservations from now on.
    - `shortage`, `spare`: why missing slots, and those that replace others, are not reserved.
    - `leaving`: what the release of slots waits for.
    - `waiting`: the nodes that do not show their tags yet.
    - `skipped`: which reservations were given up, as a message.
    - `moves`: which slots are being replaced, as a message.
    """

    view: View
    shortage: placement.Shortage | None
    spare: placement.Shortage | None
    leaving: tuple[str, str] | None
    waiting: list[str]
    skipped: str
    moves: str

    @property
    def complete(self) -> bool:
        """True if every slot is bound, and none is being replaced."""
        return self.shortage is None and self.spare is None and not (self.moves or self.waiting)


def verdict(done: Done) -> Verdict:
    """Return the state of a workload after an allocation."""
    view, problem = done.view, done.view.problem
    workload_verdict = _allocated(view, done.skipped) if done.complete else _incomplete(view, done)
    spare = done.spare if workload_verdict.reason == Reason.NO_SPARE_GROUP else None
    more = f"no spare group: {spare.message}" if spare is not None else ""
    workload_verdict = replace(workload_verdict, degraded=degradation(view, more))
    if problem is not None:
        workload_verdict = _with_problem(workload_verdict, problem)
    return _explained(view, workload_verdict)


def _incomplete(view: View, done: Done) -> Verdict:
    """Return the verdict on a workload that does not have all its slots, or not those that it should keep."""
    workload, skipped = view.workload, done.skipped
    shortage, spare = _with_cause(done.shortage, done.leaving), _with_cause(done.spare, done.leaving)
    partly = State.PARTIALLY_ALLOCATED if view.has_template else State.ALLOCATING
    if spare is not None and spare.reason in (Reason.WAITING_FOR_RELEASE, Reason.EVICTION_BLOCKED):
        return Verdict(partly, spare.reason, join_texts(spare.message, done.moves, skipped))
    if spare is not None:
        text = join_texts(f"no spare group yet: {spare.message}", done.moves, skipped)
        return Verdict(partly, Reason.NO_SPARE_GROUP, text)
    if done.moves:
        replacements_show_tags = all(view.sight.has_tags(reservation.allocation) for reservation in view.held.pending)
        blocked = done.leaving or _blocked_by_dead_nodes(view)
        if replacements_show_tags and blocked:
            reason, text = blocked
        else:
            reason, text = Reason.MIGRATING, _waiting(view, done.waiting)
        return Verdict(partly, reason, join_texts(done.moves, text, skipped))
    if shortage is None:
        text = join_texts(_waiting(view, done.waiting), skipped)
        return Verdict(partly, Reason.WAITING_FOR_NODES, text)
    bound = [reservation for reservation in view.held.live().values() if reservation.allocation.phase is Phase.BOUND]
    if bound:
        text = f"{len(bound)} of {workload.count} groups are reserved; for the rest: {shortage.message}"
        return Verdict(State.PARTIALLY_ALLOCATED, shortage.reason, join_texts(text, skipped))
    return Verdict(State.PENDING, shortage.reason, join_texts(shortage.message, skipped))


def _allocated(view: View, skipped: str) -> Verdict:
    """Return the verdict on a workload of which every slot is bound."""
    workload, live, has_template = view.workload, view.held.live(), view.has_template
    unseen = _unseen(view)
    if workload.status.get("state") != State.ALLOCATED and (unseen or not has_template):
        state = State.PARTIALLY_ALLOCATED if has_template else State.ALLOCATING
        if workload.status.get("state") == State.ALLOCATING:
            state = State.ALLOCATING
        return Verdict(state, Reason.WAITING_FOR_NODES, join_texts(_waiting(view, unseen), skipped))
    total = workload.count * workload.size
    servers = len({reservation.ultraserver for reservation in live.values()})
    text = (
        f"{total} node{'s' if total > 1 else ''} in {servers} UltraServer{'s' if servers > 1 else ''} reserved; pods "
        f"get them with resourceClaimTemplateName: {workload.template_name}"
    )
    return Verdict(State.ALLOCATED, Reason.ALLOCATED, text)


def _unseen(view: View) -> list[str]:
    """Return the nodes that do not show yet that they are Bound."""
    return [
        node_name
        for reservation in view.held.live().values()
        for node_name in reservation.allocation.nodes
        if not view.sight.shows(node_name, reservation.allocation, Phase.BOUND)
    ]


def _waiting(view: View, nodes: Sequence[str]) -> str:
    """Return what the workload waits for. Names late nodes only after a while, to save a write for each tag."""
    reserved_at = [decode.time(reservation.allocation.allocated_at) for reservation in view.held]
    patient_until = max(reserved_at, default=view.now) + LATE_NODE_GRACE
    if view.now < patient_until or not nodes:
        view.sight.look_again(patient_until)
        return "waiting for all nodes to show the reservation on their devices"
    late = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    text = f"waiting for {late} to show the reservation on their devices: {shortened(tuple(nodes))}"
    return join_texts(text, releasing.dead_node_advice(view.sight, nodes))


def templates(done: Done) -> list[Action]:
    """Return the writes of the workload's template: it is created once all slots are bound.

    Should a user delete it later, it is created again at once: pods of healthy groups need it.
    """
    view = done.view
    workload, template = view.workload, view.template
    official = template is not None and template.is_official(workload)
    actions: list[Action] = []
    if not view.has_template and (done.complete or workload.status.get("allocatedAt")):
        actions += _make_template(view)
    if done.complete and official and not _unseen(view):
        # Its claims match no tagged node; the next plan creates ours.
        actions += releasing.delete_templates(view)
    return actions


def _make_template(view: View) -> list[Action]:
    """Return the creation of the template if a group is bound and its nodes publish a resourceType."""
    workload, template = view.workload, view.template
    owners = frozenset({workload.uid})
    if template is not None:
        if template.is_of(workload) and not template.deleting:  # for groups of another size
            return [DeleteTemplate(template.namespace, template.name, template.uid, owners=owners)]
        return []
    kind = view.kind
    live = view.held.live().values()
    if kind is None or not any(reservation.allocation.phase is Phase.BOUND for reservation in live):
        return []
    body = objects.claim_template(workload, kind, objects.device_class(view.sight.index.workload_class))
    return [CreateTemplate(body, owners=owners)]


def _with_problem(verdict: Verdict, problem: tuple[str, str]) -> Verdict:
    """Return the verdict with the problem added. Pods of the workload may run, so its allocation goes on."""
    reason, message = verdict.degraded or (problem[0], "")
    degraded = (reason, join_texts(message, problem[1]))
    if verdict.reason == Reason.WAITING_FOR_NODES:
        return replace(verdict, reason=problem[0], message=problem[1], degraded=degraded)
    return replace(verdict, degraded=degraded)


def _with_cause(shortage: placement.Shortage | None, leaving: tuple[str, str] | None) -> placement.Shortage | None:
    """Return the shortage; where groups wait for a release that a budget blocks, the one that names the budget."""
    if shortage and leaving and (shortage.reason, leaving[0]) == (Reason.WAITING_FOR_RELEASE, Reason.EVICTION_BLOCKED):
        return placement.Shortage(*leaving)
    return shortage


def _blocked_by_dead_nodes(view: View) -> tuple[str, str] | None:
    """Return why slots with a replacement cannot drain yet, as a reason and a message; None if they can."""
    pending_indices = {reservation.allocation.ultraserver_index for reservation in view.held.pending}
    live = view.held.live()
    replaced = [
        reservation
        for index, reservation in live.items()
        if index in pending_indices and reservation.allocation.phase is Phase.BOUND
    ]
    reasons = (releasing.pods_on_dead_nodes(view.sight, (reservation,)) for reservation in replaced)
    return next((reason for reason in reasons if reason is not None), None)


def describe_moves(view: View) -> str:
    """Return a message that names each slot and its replacement."""
    opened_by_index = {
        reservation.allocation.ultraserver_index: reservation.allocation
        for reservation in (*view.held.live().values(), *view.leaving())
        if reservation.allocation.phase is not Phase.PENDING
    }
    texts = []
    for pending in view.held.pending:
        index = pending.allocation.ultraserver_index
        opened = opened_by_index.get(index)
        if opened is None:
            continue
        texts.append(f"group {index} moves from {shortened(opened.nodes)} to {shortened(pending.allocation.nodes)}")
        if index == 0 and view.workload.count > 1:
            texts.append(
                f"rank 0 moves too: running pods of other groups keep NEURON_DRA_RANK0_NODE={opened.nodes[0]} "
                "until they are recreated"
            )
    return join_texts(*texts)


def _explained(view: View, verdict: Verdict) -> Verdict:
    """Return the verdict with what else a workload that waits for nodes should say."""
    texts = [verdict.message]
    unwritable = view.sight.known.unwritable
    if unwritable and verdict.reason in SHORTAGE_REASONS:
        unwritable_names = sorted(unwritable)
        why = unwritable[unwritable_names[0]]
        texts.append(f"left out, because their status cannot be written: {shortened(unwritable_names)} ({why})")
    if verdict.reason == Reason.CAPACITY_SPLIT:
        texts.append(view.sight.known.room.get(view.workload.uid, ""))
    if verdict.reason in WAITING:
        texts.append(_class_problem(view.workload, view.sight.known.priorities))
    return replace(verdict, message=join_texts(*texts)) if any(texts[1:]) else verdict


def _class_problem(workload: Workload, priorities: Mapping[str, int]) -> str:
    """Return what is wrong with the workload's PriorityClass, for its message; empty if nothing is."""
    class_name = workload.priority_class
    if not class_name or class_name in priorities:
        return ""
    return f"PriorityClass {class_name} does not exist or cannot be read: it waits with priority 0"


# -- the condition Degraded --------------------------------------------------------------------------------------------


def degradation(view: View, more: str = "") -> tuple[str, str] | None:
    """Return the faults of nodes on which pods of the workload may run; None without any.

    The result is the reason and the message of the condition Degraded. The reason is that of the worst fault
    (FAULTS), unless the limit of restarts outranks it; `more` is added to the message.
    """
    bound = view.held.bound
    faults = [fault for reservation in (*bound, *view.leaving()) for fault in recovery.node_faults(view, reservation)]
    reasons = [reason for reason in recovery.FAULTS if any(fault.reason == reason for fault in faults)]
    unschedulable = view.sight.known.unschedulable.get(view.workload.uid, "") if bound else ""
    if not (reasons or unschedulable):
        return None
    texts = []
    for reason in reasons:
        affected = list(dict.fromkeys(fault.name for fault in faults if fault.reason == reason))
        shown = _with_reports(view, affected) if reason == Reason.NODE_UNHEALTHY else affected
        texts.append(f"{recovery.FAULTS[reason].text}: {shortened(shown)}")
    reason, prospect = _outlook(view, [fault for fault in faults if fault.acts_at is not None], bound)
    return reason or (*reasons, Reason.PODS_UNSCHEDULABLE)[0], join_texts(*texts, unschedulable, prospect, more)


def _with_reports(view: View, node_names: Sequence[str]) -> list[str]:
    """Return the names of nodes, each with what agents report of it."""
    nodes = [view.sight.node(node_name) for node_name in node_names]
    return [node_name if node is None else node.report for node_name, node in zip(node_names, nodes, strict=True)]


def _outlook(view: View, faults: list[recovery.NodeFault], bound: list[Reservation]) -> tuple[str, str]:
    """Return what the strategy does, and when, as a message. The reason is empty unless it outranks the faults."""
    moments = [fault.acts_at for fault in faults if fault.acts_at is not None]
    if not moments:
        ended = recovery.is_taken_back(view.workload) and not view.strategy.on_every_fault
        return "", "their capacity block ends, so nothing is restarted because of nodes that are lost" if ended else ""
    if view.sight.outage is not None:
        return "", view.sight.outage.message
    if not view.strategy.acts:
        return "", "failureStrategy NoOp only reports it: to leave the node, delete the workload and create it again"
    if min(moments) > view.now:
        return "", f"{view.strategy.name} acts at {objects.time(min(moments))} if the fault lasts until then"
    return view.strategy.outlook(view, bound)
