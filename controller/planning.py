"""The decision: what to write, from what is known. Pure: the same snapshot and time give the same plan.

Per workload, in the order of the protocol: Pending in the NeuronUltraServers' status -> nodes tag their slices -> Bound
-> ResourceClaimTemplate -> Allocated; and back: template deleted -> Draining -> tag seen -> pods evicted -> claims gone
-> removed from the status -> finalizer. Nothing remembers a step: each is read off the objects, so a controller that
dies anywhere is continued by the next.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller import placement, render
from controller.actions import (
    Action,
    CreateTemplate,
    CreateUltraServer,
    DeleteTemplate,
    DeleteUltraServer,
    Evict,
    LabelNode,
    Plan,
    SetFinalizers,
    UpdateTopology,
    Verdict,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from controller.discovery import Group, discover, labels
from controller.holdings import Holdings
from controller.model import FINALIZER, NODE_NAMES_SHOWN, Reservation, Snapshot, UltraServer, Workload, shortened
from neuron_dra.core.ultraserver import Phase


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait for what."""

    tag_timeout: datetime.timedelta = datetime.timedelta(seconds=60)
    starvation_threshold: datetime.timedelta = datetime.timedelta(minutes=10)


DEFAULT_LIMITS = Limits()
QUIET = datetime.timedelta(seconds=5)  # nodes answer in well under a second; those that have not by then are named


@dataclass(slots=True)
class _Planning:
    """The state of one call of `plan`."""

    snapshot: Snapshot
    now: datetime.datetime
    limits: Limits
    groups: tuple[Group, ...]
    holdings: Holdings
    before: list[Action] = field(default_factory=list)  # finalizers and templates: ahead of the reservations
    after: list[Action] = field(default_factory=list)
    statuses: list[Action] = field(default_factory=list)
    last: list[Action] = field(default_factory=list)
    starving: dict[str, Workload] = field(default_factory=dict)  # by instance type
    recheck: list[datetime.datetime] = field(default_factory=list)


def plan(snapshot: Snapshot, now: datetime.datetime, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Return the writes that bring the cluster one step closer, and nothing when there is none."""
    groups = discover(snapshot)
    holdings = Holdings(snapshot)
    state = _Planning(snapshot, now, limits, groups, holdings)
    verdicts: dict[str, Verdict] = {}
    for workload in sorted(snapshot.workloads, key=lambda each: _turn(each, holdings)):
        verdict = _release(state, workload) if workload.deleting else _serve(state, workload)
        if verdict is not None:
            verdicts[workload.uid] = verdict
            _write_status(state, workload, verdict)
    present = {workload.uid for workload in snapshot.workloads}
    for uid in sorted(holdings.workload_uids() - present):
        _give_back(state, uid, holdings.of(uid), final=True)
    return Plan(
        actions=(
            *_topologies(state),
            *_labels(state),
            *state.before,
            *_reservations(state),
            *state.after,
            *state.statuses,
            *state.last,
        ),
        verdicts=verdicts,
        recheck=min((moment for moment in state.recheck if moment > now), default=None),
    )


def _turn(workload: Workload, holdings: Holdings) -> tuple[bool, bool, datetime.datetime, str]:
    """First who gives back, then who has something already, then first come, first served."""
    return not workload.deleting, not holdings.of(workload.uid), workload.created, workload.ref


# -- UltraServers ------------------------------------------------------------------------------------------------------


def _topologies(state: _Planning) -> list[Action]:
    stored = {each.name: each for each in state.snapshot.ultraservers}
    actions: list[Action] = []
    for group in state.groups:
        have = stored.get(group.name)
        if have is None:
            actions.append(CreateUltraServer(render.ultraserver(group)))
        elif not group.topology and not have.reservations:
            actions.append(DeleteUltraServer(have.name, have.uid, have.version))
        elif (have.spec.get("topology") or []) != (wanted := render.topology(group)) and not _moves(state, have):
            actions.append(UpdateTopology(have.name, have.version, tuple(wanted)))
    return actions


def _moves(state: _Planning, stored: UltraServer) -> bool:
    """Reservations change here. One object is written once in a plan, and these are written first."""
    return {*state.holdings.at(stored.name)} != {*stored.reservations}


def _labels(state: _Planning) -> list[Action]:
    """Keep the labels of nodes that publish; a node whose slices are away for a moment keeps its own."""
    nodes = {node.name: node for node in state.snapshot.nodes}
    actions: list[Action] = []
    for published in sorted(state.snapshot.published, key=lambda each: each.name):
        node = nodes.get(published.name)
        if node is None or published.node_uid not in ("", node.uid) or not published.complete:
            continue
        wanted: dict[str, str] = labels(published) if published.ultraserver_id else {}
        changes: dict[str, str | None] = {k: v for k, v in wanted.items() if node.labels.get(k) != v}
        changes |= {name: None for name in node.labels if name not in wanted}
        if changes:
            actions.append(LabelNode(node.name, node.uid, dict(sorted(changes.items()))))
    return actions


def _reservations(state: _Planning) -> list[Action]:
    """Write the status of every NeuronUltraServer that differs, but for those whose topology is written now."""
    groups = {group.name: group for group in state.groups}
    actions: list[Action] = []
    for stored in sorted(state.snapshot.ultraservers, key=lambda each: each.name):
        group = groups[stored.name]
        held = state.holdings.at(stored.name)
        if not group.topology and not held and not stored.reservations:
            continue
        if (stored.spec.get("topology") or []) != render.topology(group) and not _moves(state, stored):
            continue
        status = render.ultraserver_status(group, stored, held, state.holdings.in_use, state.now)
        if status != dict(stored.status):
            changed = {r.allocation.workload_uid for r in {*held} ^ {*stored.reservations}}
            actions.append(
                WriteUltraServerStatus(stored.name, stored.version, stored.status, status, owners=frozenset(changed))
            )
    return actions


# -- a workload that wants something -----------------------------------------------------------------------------------


def _serve(state: _Planning, workload: Workload) -> Verdict:
    """Bring a workload one step closer to what it asks for."""
    templates = [t for t in state.snapshot.templates if t.namespace == workload.namespace]
    template = next((t for t in templates if t.name == workload.template_name), None)
    if template is not None and template.owner_uid != workload.uid:
        _drop(state, [r for r in state.holdings.of(workload.uid) if r.allocation.phase is Phase.PENDING])
        return Verdict(
            "Failed",
            "TemplateNameTaken",
            f"ResourceClaimTemplate {template.namespace}/{template.name} exists and is not ours: delete it, or delete "
            "this workload and create it with another spec.resourceClaimTemplate.name",
        )
    if FINALIZER not in workload.finalizers:
        names = (*workload.finalizers, FINALIZER)
        state.before.append(
            SetFinalizers(workload.namespace, workload.name, workload.version, names, owners=frozenset({workload.uid}))
        )
    setbacks = _clean(state, workload)
    shortage = _reserve(state, workload)
    return _advance(state, workload, template is not None and not template.deleting, shortage, setbacks)


def _clean(state: _Planning, workload: Workload) -> list[str]:
    """Give back what the workload holds in vain, and return why."""
    holdings, said, kept = state.holdings, [], set()
    nodes = {node.name: node for node in state.snapshot.nodes}
    # Of two for one index, which a write that failed leaves behind, the one whose pods may run stays.
    for one in sorted(holdings.of(workload.uid), key=lambda each: each.allocation.phase is not Phase.BOUND):
        allocation = one.allocation
        if allocation.phase is Phase.DRAINING:
            continue
        surplus = allocation.ultraserver_index >= workload.count or allocation.ultraserver_index in kept
        if allocation.phase is Phase.BOUND:
            if surplus:
                holdings.change(one, phase=Phase.DRAINING)
            else:
                kept.add(allocation.ultraserver_index)
            continue
        foreign = [use for use in holdings.uses(allocation.nodes) if use.workload_uid != workload.uid]
        gone = [name for name in allocation.nodes if name not in nodes]
        if surplus or foreign or gone:
            holdings.drop(one)
            said += [f"{use.holder} has devices of {shortened(use.nodes)}" for use in foreign]
            said += [f"node {name} is gone" for name in gone]
            continue
        deadline = _time(allocation.allocated_at) + state.limits.tag_timeout
        late = [name for name in allocation.nodes if not holdings.shows(name, allocation, Phase.PENDING)]
        if late and state.now >= deadline:
            holdings.change(one, phase=Phase.DRAINING)  # kept closed until its plugin answers, so not chosen again
            said.append(f"no tag within {state.limits.tag_timeout.total_seconds():g} s from {shortened(late)}")
            continue
        kept.add(allocation.ultraserver_index)
        if late:
            state.recheck.append(deadline)
    _give_back(state, workload.uid, [r for r in holdings.of(workload.uid) if r.allocation.phase is Phase.DRAINING])
    return said


def _reserve(state: _Planning, workload: Workload) -> placement.Shortage | None:
    """Reserve all slots that are missing, or none; return why none."""
    holdings = state.holdings
    live = holdings.live(workload.uid)
    missing = [index for index in range(workload.count) if index not in live]
    if not missing:
        return None
    leaving = [each for each in holdings.leaving(workload.uid) if each.allocation.ultraserver_index in missing]
    if leaving:
        names = [name for each in leaving for name in each.allocation.nodes]
        text = f"pods with the same ranks may still run on nodes that are given back: {shortened(tuple(names))}"
        return placement.Shortage("WaitingForRelease", text)
    stored = {each.name for each in state.snapshot.ultraservers}
    groups = [group for group in state.groups if group.name in stored]
    taken = holdings.taken()
    free = placement.slots(groups, taken, workload.instance_type, workload.size)
    first = state.starving.get(workload.instance_type)
    if first is None or live:
        chosen = placement.choose(free, len(missing), kind=_kind(state, live), near=_near(state, live, workload))
        if chosen is not None:
            for index, slot in zip(missing, chosen, strict=True):
                holdings.reserve(workload, index, slot, state.now)
            return None
        shortage = placement.shortage(state.groups, taken, workload, free, len(missing))
    else:
        shortage = placement.Shortage("WaitsForOlder", f"workload {first.ref} has waited longer and comes first")
    if not any(each.allocation.phase is Phase.BOUND for each in live.values()):
        _drop(state, list(live.values()))  # all or nothing: half of it would keep others from the whole
    if not live:
        waited = workload.created + state.limits.starvation_threshold
        if state.now >= waited:
            state.starving.setdefault(workload.instance_type, workload)
        else:
            state.recheck.append(waited)
    return shortage


def _kind(state: _Planning, live: dict[int, Reservation]) -> str | None:
    """What the nodes that the workload has publish."""
    kinds = {state.holdings.kind(name) for each in live.values() for name in each.allocation.nodes} - {None}
    return min(kinds, default=None, key=str)


def _near(state: _Planning, live: dict[int, Reservation], workload: Workload) -> Sequence[placement.Slot]:
    """The slots that the workload has, as places in the network."""
    have = {name for each in live.values() for name in each.allocation.nodes}
    others = frozenset(node.name for node in state.snapshot.nodes if node.name not in have)
    return placement.slots(state.groups, others, workload.instance_type, workload.size) if have else ()


def _drop(state: _Planning, reservations: list[Reservation]) -> None:
    for one in reservations:
        if one.allocation.phase is Phase.PENDING:
            state.holdings.drop(one)


def _advance(
    state: _Planning, workload: Workload, has_template: bool, shortage: placement.Shortage | None, setbacks: list[str]
) -> Verdict:
    """Bind what all nodes have tagged, make the template, and say how far the workload is."""
    holdings = state.holdings
    live = holdings.live(workload.uid)
    aside = "; ".join(f"passed over: {text}" for text in setbacks)
    if shortage is None:
        holdings.tell_world(workload)
        live = holdings.live(workload.uid)
        waiting = [
            name
            for each in live.values()
            if each.allocation.phase is Phase.PENDING
            for name in each.allocation.nodes
            if not (holdings.shows(name, each.allocation, Phase.PENDING) and holdings.is_ready(name))
        ]
        if waiting:
            text = _waiting(state, live, waiting)
            state_name = "PartiallyAllocated" if has_template else "Allocating"
            return Verdict(state_name, "WaitingForNodes", _joined(text, aside), _damage(state, live, has_template))
        for each in list(live.values()):
            holdings.change(each, phase=Phase.BOUND)
        live = holdings.live(workload.uid)
        return _bound(state, workload, live, has_template, aside)
    bound = [each for each in live.values() if each.allocation.phase is Phase.BOUND]
    if bound:
        text = f"{len(bound)} of {workload.count} groups are reserved; for the rest: {shortage.message}"
        return Verdict("PartiallyAllocated", shortage.reason, _joined(text, aside), _damage(state, live, has_template))
    return Verdict("Pending", shortage.reason, _joined(shortage.message, aside))


def _waiting(state: _Planning, live: dict[int, Reservation], nodes: Sequence[str]) -> str:
    """Say what is waited for; who is late only after a while, or each node's answer would be a write of its own."""
    patient_until = max(_time(each.allocation.allocated_at) for each in live.values()) + QUIET
    if state.now < patient_until or not nodes:
        state.recheck.append(patient_until)
        return "waiting until all nodes show the reservation on their devices"
    return f"waiting for {len(nodes)} nodes to show the reservation on their devices: {shortened(tuple(nodes))}"


def _bound(
    state: _Planning, workload: Workload, live: dict[int, Reservation], has_template: bool, aside: str
) -> Verdict:
    kind = _kind(state, live)
    if not has_template and kind is not None:
        body = render.claim_template(workload, kind, render.device_class(state.snapshot.workload_class))
        state.after.append(CreateTemplate(body, owners=frozenset({workload.uid})))
    unseen = [
        name
        for each in live.values()
        for name in each.allocation.nodes
        if not state.holdings.shows(name, each.allocation, Phase.BOUND)
    ]
    damage = _damage(state, live, has_template)
    if workload.status.get("state") != "Allocated" and (unseen or not has_template):
        return Verdict("Allocating", "WaitingForNodes", _joined(_waiting(state, live, unseen), aside), damage)
    total = workload.count * workload.size
    text = (
        f"{total} node{'s' if total > 1 else ''} in {len({each.ultraserver for each in live.values()})} UltraServer"
        f"{'s' if len({each.ultraserver for each in live.values()}) > 1 else ''} reserved; pods get them with "
        f"resourceClaimTemplateName: {workload.template_name}"
    )
    return Verdict("Allocated", "Allocated", text, damage)


def _damage(state: _Planning, live: dict[int, Reservation], in_use: bool) -> tuple[str, str] | None:
    """What is wrong with the nodes of a workload whose pods may run: a reason and a message."""
    if not in_use:
        return None
    nodes = {node.name: node for node in state.snapshot.nodes}
    mine = [name for _, each in sorted(live.items()) for name in each.allocation.nodes]
    groups = {each.ultraserver for each in live.values()}
    problems = [
        ("NodeGone", [name for name in mine if name not in nodes], "nodes are gone"),
        ("NodeNotReady", [name for name in mine if name in nodes and not nodes[name].ready], "nodes are not Ready"),
        ("SliceMissing", [n for n in mine if n in nodes and not state.holdings.kind(n)], "nodes publish no slice"),
    ]
    found = [(reason, f"{text}: {shortened(names)}") for reason, names, text in problems if names]
    found += [
        (problem.reason, f"UltraServer {group.name}: {problem.message}")
        for group in state.groups
        if group.name in groups
        for problem in group.problems
        if problem.reason in ("LinkDown", "IdentityMismatch")
    ]
    return (found[0][0], "; ".join(text for _, text in found)) if found else None


# -- a workload that gives back ----------------------------------------------------------------------------------------


def _release(state: _Planning, workload: Workload) -> Verdict | None:
    """Bring the release of a deleted workload one step further; None when nothing of it is left."""
    owners = frozenset({workload.uid})
    templates = [t for t in state.snapshot.templates if t.owner_uid == workload.uid]
    state.before += [
        DeleteTemplate(t.namespace, t.name, t.uid, owners=owners)
        for t in sorted(templates, key=lambda t: t.name)
        if not t.deleting
    ]
    stored = list(state.holdings.of(workload.uid))
    waiting = _give_back(state, workload.uid, stored, final=True)
    if FINALIZER not in workload.finalizers:
        return None
    if not stored and not templates:
        names = tuple(name for name in workload.finalizers if name != FINALIZER)
        state.last.append(SetFinalizers(workload.namespace, workload.name, workload.version, names, owners=owners))
        return None
    return Verdict("Deallocating", *(waiting or ("Releasing", "the reservation is being taken back")))


def _give_back(
    state: _Planning, workload_uid: str, reservations: Sequence[Reservation], *, final: bool = False
) -> tuple[str, str] | None:
    """Take reservations back, each one step; return what is waited for, as a reason and a message.

    A slot is free when its nodes show Draining, so that nothing new is placed, and when no claim of the workload is
    left. `final`: the workload goes, so a node that never opened is not kept closed.
    """
    holdings = state.holdings
    unseen: list[str] = []
    pods: list[str] = []
    blocked: list[str] = []
    for one in reservations:
        allocation = one.allocation
        if allocation.phase is Phase.PENDING:
            holdings.drop(one)
            continue
        if allocation.phase is Phase.BOUND:
            holdings.change(one, phase=Phase.DRAINING)
            unseen += allocation.nodes
            continue
        closed = [name for name in allocation.nodes if holdings.is_closed(name, allocation, final=final)]
        still_open = [name for name in allocation.nodes if name not in closed]
        unseen += still_open
        if any(holdings.is_ready(name) for name in still_open):
            continue
        # Only dead nodes are left open: they do not keep the pods of the others.
        uses = [use for use in holdings.uses(closed) if use.workload_uid == workload_uid]
        if not uses and not still_open:
            holdings.drop(one)
        for use in uses:
            for name, uid in use.pods:
                pods.append(f"{use.namespace}/{name}")
                state.after.append(Evict(use.namespace, name, uid, owners=frozenset({workload_uid})))
                if uid in state.snapshot.blocked_evictions:
                    blocked.append(f"{use.namespace}/{name}: {state.snapshot.blocked_evictions[uid]}")
            if not use.pods:
                pods.append(f"claim {use.namespace}/{use.name}")
    if blocked:
        return "EvictionBlocked", "pods that may not be evicted: " + "; ".join(sorted(blocked)[:NODE_NAMES_SHOWN])
    hint = _way_out(state, [name for one in reservations for name in one.allocation.nodes])
    if pods:
        text = f"waiting for what holds the nodes: {shortened(sorted(set(pods)))}"
        return "WaitingForPods", _joined(text, hint)
    if unseen:
        return "Draining", _joined(f"waiting for {len(unseen)} nodes to close: {shortened(unseen)}", hint)
    return None


def _way_out(state: _Planning, names: list[str]) -> str:
    """What a person can do about nodes that do not answer: nothing is ever deleted by force."""
    dead = sorted(node.name for node in state.snapshot.nodes if node.name in names and not node.ready)
    if not dead:
        return ""
    return (
        f"not Ready: {shortened(dead)}; a node that will not come back is given up by deleting its Node, or by the "
        "taint node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


# -- statuses ----------------------------------------------------------------------------------------------------------


def _write_status(state: _Planning, workload: Workload, verdict: Verdict) -> None:
    if any(isinstance(a, SetFinalizers) and a.owners == {workload.uid} for a in (*state.before, *state.last)):
        return  # that write changes the resourceVersion; the status follows when it is seen
    status = render.workload_status(
        workload,
        verdict.state,
        verdict.reason,
        verdict.message,
        verdict.degraded,
        [each for each in state.holdings.of(workload.uid) if each.allocation.phase is not Phase.DRAINING],
        state.now,
    )
    if status == dict(workload.status):
        return
    state.statuses.append(
        WriteWorkloadStatus(
            workload.namespace,
            workload.name,
            workload.uid,
            workload.version,
            workload.status,
            status,
            warning=verdict.state == "Failed" or verdict.degraded is not None or verdict.reason == "EvictionBlocked",
            owners=frozenset({workload.uid}),
        )
    )


def _time(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)
