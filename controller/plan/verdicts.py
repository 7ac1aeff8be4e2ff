"""Says what an allocation has led to: the workload's state and reasons, and its template once all is bound. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.observe import decode
from controller.observe.model import shortened
from controller.plan import migration, objects, placement, releasing
from controller.plan.actions import Action, CreateTemplate, DeleteTemplate, Verdict
from controller.plan.reasons import Reason
from controller.plan.recovery import degradation
from controller.plan.states import State
from controller.plan.view import View, join_texts
from neuron_dra.core.ultraserver import Phase

LATE_NODE_GRACE = datetime.timedelta(seconds=5)
"""Nodes usually tag within a second. After this time the message names those that have not."""


@dataclass(frozen=True, slots=True)
class Done:
    """What an allocation has done.

    - `view`: with the reservations from now on.
    - `shortage`, `spare`: why missing slots, and those that replace others, are not reserved.
    - `leaving`: what the release of slots waits for.
    - `waiting`: the nodes that do not show their tags yet.
    - `moves`: which slots are being replaced, as a message.
    - `skipped`: which reservations were given up, as a message.
    """

    view: View
    shortage: placement.Shortage | None
    spare: placement.Shortage | None
    leaving: tuple[str, str] | None
    waiting: list[str]
    moves: str
    skipped: str

    @property
    def complete(self) -> bool:
        """True if every slot is bound, and none is being replaced."""
        return self.shortage is None and self.spare is None and not (self.moves or self.waiting)


def verdict(done: Done) -> Verdict:
    """Return the state of a workload after an allocation."""
    view, problem = done.view, done.view.problem
    found = _allocated(view, done.skipped) if done.complete else _incomplete(view, done)
    return found if problem is None else _with_problem(found, problem)


def _incomplete(view: View, done: Done) -> Verdict:
    """Return the verdict on a workload that does not have all its slots, or not those that it should keep."""
    workload, skipped = view.workload, done.skipped
    shortage, spare = _with_cause(done.shortage, done.leaving), _with_cause(done.spare, done.leaving)
    partly = State.PARTIALLY_ALLOCATED if view.has_template else State.ALLOCATING
    if spare is not None and spare.reason in (Reason.WAITING_FOR_RELEASE, Reason.EVICTION_BLOCKED):
        return Verdict(partly, spare.reason, join_texts(spare.message, done.moves, skipped), degradation(view))
    if spare is not None:
        degraded = degradation(view, f"no spare group: {spare.message}")
        text = join_texts(f"no spare group yet: {spare.message}", done.moves, skipped)
        return Verdict(partly, Reason.NO_SPARE_GROUP, text, degraded)
    if done.moves:
        answered = all(view.sight.has_tags(each.allocation) for each in view.held.pending)
        blocked_by_dead_nodes = done.leaving or migration.blocked_by_dead_nodes(view)
        reason, text = (
            blocked_by_dead_nodes
            if answered and blocked_by_dead_nodes
            else (Reason.MIGRATING, _waiting(view, done.waiting))
        )
        return Verdict(partly, reason, join_texts(done.moves, text, skipped), degradation(view))
    if shortage is None:
        text = join_texts(_waiting(view, done.waiting), skipped)
        return Verdict(partly, Reason.WAITING_FOR_NODES, text, degradation(view))
    bound = [each for each in view.held.live().values() if each.allocation.phase is Phase.BOUND]
    if bound:
        text = f"{len(bound)} of {workload.count} groups are reserved; for the rest: {shortage.message}"
        return Verdict(State.PARTIALLY_ALLOCATED, shortage.reason, join_texts(text, skipped), degradation(view))
    return Verdict(State.PENDING, shortage.reason, join_texts(shortage.message, skipped), degradation(view))


def _allocated(view: View, skipped: str) -> Verdict:
    """Return the verdict on a workload of which every slot is bound."""
    workload, live, has_template = view.workload, view.held.live(), view.has_template
    unseen = _unseen(view)
    degraded = degradation(view)
    if workload.status.get("state") != State.ALLOCATED and (unseen or not has_template):
        state = State.PARTIALLY_ALLOCATED if has_template else State.ALLOCATING
        if workload.status.get("state") == State.ALLOCATING:
            state = State.ALLOCATING
        return Verdict(state, Reason.WAITING_FOR_NODES, join_texts(_waiting(view, unseen), skipped), degraded)
    total = workload.count * workload.size
    servers = len({each.ultraserver for each in live.values()})
    text = (
        f"{total} node{'s' if total > 1 else ''} in {servers} UltraServer{'s' if servers > 1 else ''} reserved; pods "
        f"get them with resourceClaimTemplateName: {workload.template_name}"
    )
    return Verdict(State.ALLOCATED, Reason.ALLOCATED, text, degraded)


def _unseen(view: View) -> list[str]:
    """Return the nodes that do not show yet that they are Bound."""
    return [
        name
        for each in view.held.live().values()
        for name in each.allocation.nodes
        if not view.sight.shows(name, each.allocation, Phase.BOUND)
    ]


def _waiting(view: View, nodes: Sequence[str]) -> str:
    """Return what the workload waits for. Names late nodes only after a while, to save a write for each tag."""
    began = [decode.time(each.allocation.allocated_at) for each in view.held]
    patient_until = max(began, default=view.now) + LATE_NODE_GRACE
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
    found: list[Action] = []
    if not view.has_template and (done.complete or workload.status.get("allocatedAt")):
        found += _make_template(view)
    if done.complete and official and not _unseen(view):
        # Its claims match no tagged node; the next plan creates ours.
        found += releasing.delete_templates(view, releasing.templates_of(view))
    return found


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
    if kind is None or not any(each.allocation.phase is Phase.BOUND for each in live):
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
