"""The decision: what to write, from what is known. Pure: the same snapshot and time give the same plan.

Per workload, in the order of the protocol: Pending in the NeuronUltraServers' status -> nodes tag their slices -> Bound
-> ResourceClaimTemplate -> Allocated (`serving`); and back: template deleted -> Draining -> tag seen -> pods evicted ->
claims gone -> removed from the status -> finalizer (`releasing`). A slot that breaks is left the same way, when another
is there (`recovery`). Nothing remembers a step: each is read off the objects, so a controller that dies anywhere is
continued by the next.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller import render, restarting
from controller.actions import (
    Action,
    CreateUltraServer,
    DeleteUltraServer,
    LabelNode,
    Plan,
    SetFinalizers,
    UpdateTopology,
    Verdict,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from controller.discovery import labels
from controller.draft import DEFAULT_LIMITS, Draft, Limits, joined
from controller.fleet_index import FleetIndex
from controller.holdings import Holdings
from controller.model import Snapshot, UltraServer, Workload, shortened
from controller.releasing import give_back, release
from controller.serving import serve
from neuron_dra.core.ultraserver import Phase

__all__ = ["DEFAULT_LIMITS", "Limits", "plan"]

SHORTAGES = ("InsufficientCapacity", "CapacitySplit", "NoUltraServers", "NoSpareGroup")
"""Reasons of those who wait for nodes."""


def plan(snapshot: Snapshot, now: datetime.datetime, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Return the writes that bring the cluster one step closer, and nothing when there is none."""
    return plan_of(FleetIndex.of(snapshot), now, limits)


def plan_of(index: FleetIndex, now: datetime.datetime, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Return the same from an index that is kept up as objects change: what is settled in it is not looked at again."""
    draft = Draft.of(index, now, limits)
    verdicts: dict[str, Verdict] = {}
    for workload in sorted(index.workloads, key=lambda each: _turn(each, draft.holdings)):
        verdict = release(draft, workload) if workload.deleting else serve(draft, workload)
        if verdict is not None:
            verdict = _with_unwritable(index.unwritable, verdict)
            verdicts[workload.uid] = verdict
            _write_status(draft, workload, verdict)
    present = {workload.uid for workload in index.workloads}
    for uid in sorted(draft.holdings.workload_uids() - present):
        give_back(draft, uid, draft.holdings.of(uid), final=True)
    names = sorted({*index.unsettled, *draft.holdings.changed})
    topologies, labelled, reservations = _topologies(draft, names), _labels(draft), _reservations(draft, names)
    written = {_object_of(action) for action in (*topologies, *reservations)}
    return Plan(
        actions=(
            *topologies,
            *labelled,
            *draft.before,
            *reservations,
            *draft.after,
            *draft.statuses,
            *draft.last,
        ),
        verdicts=verdicts,
        recheck=min((moment for moment in draft.recheck if moment > now), default=None),
        settled=frozenset(names) - written,
        settled_nodes=frozenset(index.unsettled_nodes) - {action.name for action in labelled},
    )


def _turn(workload: Workload, holdings: Holdings) -> tuple[bool, bool, datetime.datetime, str]:
    """First who gives back, then who has something already, then first come, first served."""
    return not workload.deleting, not holdings.of(workload.uid), workload.created, workload.ref


# -- UltraServers ------------------------------------------------------------------------------------------------------


def _topologies(draft: Draft, names: Sequence[str]) -> list[Action]:
    actions: list[Action] = []
    for name in names:
        group, have = draft.snapshot.group_by_name.get(name), draft.snapshot.ultraserver_by_name.get(name)
        if group is None:
            continue
        if have is None:
            actions.append(CreateUltraServer(render.ultraserver(group)))
        elif not group.topology and not have.reservations:
            actions.append(DeleteUltraServer(have.name, have.uid, have.version))
        elif (have.spec.get("topology") or []) != (wanted := render.topology(group)) and not _moves(draft, have):
            actions.append(UpdateTopology(have.name, have.version, tuple(wanted)))
    return actions


def _object_of(action: Action) -> str:
    """Return the name of the NeuronUltraServer that an action writes."""
    match action:
        case CreateUltraServer(body=body):
            return str(body["metadata"]["name"])
        case UpdateTopology(name=name) | DeleteUltraServer(name=name) | WriteUltraServerStatus(name=name):
            return name
    raise TypeError(f"{type(action).__name__} writes no NeuronUltraServer")


def _moves(draft: Draft, stored: UltraServer) -> bool:
    """Reservations change here. One object is written once in a plan, and these are written first."""
    return {*draft.holdings.at(stored.name)} != {*stored.reservations}


def _labels(draft: Draft) -> list[LabelNode]:
    """Keep the labels of nodes that publish; a node whose slices are away for a moment keeps its own."""
    actions: list[LabelNode] = []
    for name in sorted(draft.snapshot.unsettled_nodes):
        node, published = draft.nodes.get(name), draft.snapshot.published_by_name.get(name)
        if node is None or published is None or published.node_uid not in ("", node.uid) or not published.complete:
            continue
        wanted: dict[str, str] = labels(published) if published.ultraserver_id else {}
        changes: dict[str, str | None] = {k: v for k, v in wanted.items() if node.labels.get(k) != v}
        changes |= {name: None for name in node.labels if name not in wanted}
        if changes:
            actions.append(LabelNode(node.name, node.uid, dict(sorted(changes.items()))))
    return actions


def _reservations(draft: Draft, names: Sequence[str]) -> list[Action]:
    """Write the status of every NeuronUltraServer that differs, but for those whose topology is written now."""
    in_use = draft.holdings.in_use
    actions: list[Action] = []
    for name in names:
        stored = draft.snapshot.ultraserver_by_name.get(name)
        if stored is None:
            continue
        group = draft.snapshot.group_by_name[name]
        held = draft.holdings.at(stored.name)
        if not group.topology and not held and not stored.reservations:
            continue
        if (stored.spec.get("topology") or []) != render.topology(group) and not _moves(draft, stored):
            continue
        status = render.ultraserver_status(group, stored, held, in_use, draft.now)
        if status != dict(stored.status):
            changed = {r.allocation.workload_uid for r in {*held} ^ {*stored.reservations}}
            actions.append(
                WriteUltraServerStatus(stored.name, stored.version, stored.status, status, owners=frozenset(changed))
            )
    return actions


# -- statuses ----------------------------------------------------------------------------------------------------------


def _with_unwritable(unwritable: Mapping[str, str], verdict: Verdict) -> Verdict:
    """Tell who waits for nodes that there are more, in UltraServers of which the status cannot be written."""
    if not unwritable or verdict.reason not in SHORTAGES:
        return verdict
    names = sorted(unwritable)
    text = f"left out, because their status cannot be written: {shortened(names)} ({unwritable[names[0]]})"
    return replace(verdict, message=joined(verdict.message, text))


def _write_status(draft: Draft, workload: Workload, verdict: Verdict) -> None:
    if any(isinstance(a, SetFinalizers) and a.owners == {workload.uid} for a in (*draft.before, *draft.last)):
        return  # that write changes the resourceVersion; the status follows when it is seen
    status = render.workload_status(
        workload,
        verdict,
        [each for each in draft.holdings.of(workload.uid) if each.allocation.phase is not Phase.DRAINING],
        draft.now,
        restarting.record(draft, workload, verdict),
    )
    if status == dict(workload.status):
        return
    draft.statuses.append(
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
