"""Plans without writing. It groups the nodes first, as the controller does. No I/O.

The index of the running controller is read, not copied: a workload that is only tried lies over it.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from neuron_dra.planner.decisions.actions import NOTHING_KEPT, Action, CreateUltraServer, Kept, Plan, SetFinalizers
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed import decode
from neuron_dra.planner.observed.model import FINALIZER, NOTHING_KNOWN, FleetSnapshot, Known, Workload
from neuron_dra.planner.observed.projections import Pod
from neuron_dra.planner.plan import claim_pods, planning
from neuron_dra.planner.plan.planning import Limits


@dataclass(frozen=True, slots=True)
class Grouped:
    """An index in which each UltraServer has an object and each workload its finalizer, and what else is known.

    - `first`: the writes that this needs.
    - `kept`: what the last plan of this index has left.
    """

    index: FleetIndex
    first: tuple[Action, ...] = ()
    known: Known = NOTHING_KNOWN
    kept: Kept = NOTHING_KEPT


def grouped(index: FleetIndex, now: datetime.datetime, limits: Limits, known: Known = NOTHING_KNOWN) -> Grouped:
    """Add to an index the objects and finalizers that the controller writes first; it must be the caller's own."""
    actions = planning.plan_of(index, now, limits, known).actions
    created = [action for action in actions if isinstance(action, CreateUltraServer)]
    for creation in created:
        created_ultraserver = decode.ultraserver(_stored(creation))
        index.put_ultraserver(created_ultraserver.name, created_ultraserver)
    guards = [action for action in actions if isinstance(action, SetFinalizers) and FINALIZER in action.finalizers]
    keys = {workload.uid: key for key, workload in index.workload_by_key.items()}
    for guard in guards:
        [workload_uid] = guard.owners
        workload = index.workload_by_uid[workload_uid]
        index.put_workload(keys[workload_uid], replace(workload, finalizers=guard.finalizers))
    index.refresh()
    return Grouped(index, (*created, *guards), known)


def beside(base: Grouped, workload: Workload | None) -> Grouped:
    """Return the same with one workload added or changed, over the same objects; it holds until these change."""
    index = base.index
    view, guards = copy.copy(index), list[Action]()
    if workload is not None and FINALIZER not in workload.finalizers:
        guards.append(SetFinalizers.of(workload, (*workload.finalizers, FINALIZER)))
        workload = replace(workload, finalizers=(*workload.finalizers, FINALIZER))
    if workload is not None:
        key = next((key for key, indexed in index.workload_by_key.items() if indexed.uid == workload.uid), workload.ref)
        view.workload_by_key = {**index.workload_by_key, key: workload}
        view.workload_by_uid = {**index.workload_by_uid, workload.uid: workload}
    return replace(base, index=view, first=(*base.first, *guards))


def steps(base: Grouped, now: datetime.datetime, limits: Limits) -> Generator[None, None, Plan]:
    """Plan in steps, as `planning.steps`, with the writes that come first."""
    planned = yield from planning.steps(base.index, now, limits, base.known, base.kept)
    return replace(planned, actions=(*base.first, *planned.actions))


def plan(snapshot: FleetSnapshot, now: datetime.datetime, limits: Limits) -> tuple[FleetSnapshot, Plan]:
    """Return a snapshot with the NeuronUltraServers that the controller creates first, and the plan for it."""
    base = grouped(FleetIndex.of(snapshot), now, limits, snapshot)
    planned = planning.plan_of(base.index, now, limits, snapshot)
    return base.index.snapshot(snapshot), replace(planned, actions=(*base.first, *planned.actions))


def with_pods(snapshot: FleetSnapshot, pods: Mapping[str, Sequence[Pod]]) -> FleetSnapshot:
    """Return a snapshot that knows which of all pods, by node, use the claims that are reserved for PodGroups."""
    shared = {}
    for use in snapshot.claims:
        if use.others:
            on_nodes: list[Pod] = []
            for node in use.nodes:
                on_nodes += pods.get(node, ())
            shared[use.ref] = claim_pods.users(use, on_nodes)
    return replace(snapshot, shared_by=shared)


def _stored(action: CreateUltraServer) -> dict[str, object]:
    """Return the object as the API server would store it; its UID only has to be unique."""
    name = action.body["metadata"]["name"]
    return {
        **action.body,
        "metadata": {**action.body["metadata"], "uid": name, "resourceVersion": "0", "generation": 1},
    }
