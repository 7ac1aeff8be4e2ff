"""Plans without writing. It groups the nodes first, as the controller does. No I/O.

The index of the running controller is read, not copied: a workload that is only tried lies over it.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.decisions.actions import NOTHING_KEPT, CreateUltraServer, Kept, Plan
from controller.fleet.fleet_index import FleetIndex
from controller.observe import decode
from controller.observe.model import NOTHING_KNOWN, FleetSnapshot, Known, Workload
from controller.observe.projections import Pod
from controller.plan import claim_pods, planning
from controller.plan.planning import Limits


@dataclass(frozen=True, slots=True)
class Grouped:
    """An index in which each UltraServer has an object, the creations that this needs, and what else is known.

    - `kept`: what the last plan of this index has left.
    """

    index: FleetIndex
    created: tuple[CreateUltraServer, ...] = ()
    known: Known = NOTHING_KNOWN
    kept: Kept = NOTHING_KEPT


def grouped(index: FleetIndex, now: datetime.datetime, limits: Limits, known: Known = NOTHING_KNOWN) -> Grouped:
    """Add to an index the objects that the controller creates first; it must be the caller's own."""
    first = planning.plan_of(index, now, limits, known)
    created = tuple(action for action in first.actions if isinstance(action, CreateUltraServer))
    for action in created:
        made = decode.ultraserver(_stored(action))
        index.put_ultraserver(made.name, made)
    index.refresh()
    return Grouped(index, created, known)


def beside(index: FleetIndex, workload: Workload | None) -> FleetIndex:
    """Return an index with one workload added or changed, over the same objects; it holds until these change."""
    view = copy.copy(index)
    if workload is not None:
        key = next((key for key, each in index.workload_by_key.items() if each.uid == workload.uid), workload.ref)
        view.workload_by_key = {**index.workload_by_key, key: workload}
        view.workload_by_uid = {**index.workload_by_uid, workload.uid: workload}
    return view


def steps(found: Grouped, now: datetime.datetime, limits: Limits) -> Generator[None, None, Plan]:
    """Plan in steps, as `planning.steps`, with the creations first."""
    made = yield from planning.steps(found.index, now, limits, found.known, found.kept)
    return replace(made, actions=(*found.created, *made.actions))


def plan(snapshot: FleetSnapshot, now: datetime.datetime, limits: Limits) -> tuple[FleetSnapshot, Plan]:
    """Return a snapshot with the NeuronUltraServers that the controller creates first, and the plan for it."""
    found = grouped(FleetIndex.of(snapshot), now, limits, snapshot)
    made = planning.plan_of(found.index, now, limits, snapshot)
    return found.index.snapshot(snapshot), replace(made, actions=(*found.created, *made.actions))


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
