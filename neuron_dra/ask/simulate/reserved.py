"""Reserves UltraServers for the workloads of manifests as the controller would, so that their pods can be placed. Pure.

The controller's own planner decides, about all workloads of the cluster, until nothing changes any more.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from neuron_dra.ask.read.snapshot import Key, Snapshot, key_of
from neuron_dra.ask.read.views import UltraServerView, WorkloadView
from neuron_dra.ask.render import words
from neuron_dra.core.ultraserver import WORKLOAD_KIND
from neuron_dra.core.wire import Wire

if TYPE_CHECKING:
    from neuron_dra.plan_settings import PlanSettings
    from neuron_dra.planner.plan.planning import Limits
    from neuron_dra.planner.rehearsal import Rehearsal

KINDS: Final = (
    "ResourceSlice",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "DeviceClass",
    "Namespace",
    "NeuronUltraServer",
    WORKLOAD_KIND,
)
"""What the planner reads besides Nodes."""
NODES_SHOWN: Final = 8


@dataclass(slots=True)
class ReservedObjects:
    """The objects that the controller and the plugins change or delete, and notes about the workloads."""

    objects: list[Wire] = field(default_factory=list)
    removed: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def reserve(
    workloads: Sequence[Wire],
    snapshot: Snapshot,
    now: datetime.datetime,
    manifests: Snapshot | None = None,
    limits: Limits | None = None,
) -> ReservedObjects:
    """Return what changes after the controller has handled the workloads at `now`, besides the other `manifests`.

    Without `limits`, those are the controller's (`_settings`).

    A workload that the cluster has already stays as it is there.
    """
    unknown_workloads = [workload for workload in workloads if key_of(workload) not in snapshot.objects]
    if not unknown_workloads:
        return ReservedObjects()
    from neuron_dra.planner import rehearsal  # most manifests have no workload, and need no planner

    new = [rehearsal.submitted(workload, now) for workload in unknown_workloads]
    items: dict[Key, Wire] = {}
    for source in filter(None, (snapshot, manifests)):
        items |= {key_of(node): _registered(node) for node in source.all("Node")}
        items |= {key_of(item): item for kind in KINDS for item in source.all(kind)}
    items |= {key_of(workload): workload for workload in new}
    settings, settings_notes = _settings(snapshot)
    rehearsed = rehearsal.Rehearsal(
        items.values(),
        now,
        limits or settings.limits,
        fault_conditions=settings.fault_conditions,
        block_annotation=settings.block_annotation,
    )
    rehearsed.settle()
    reserved_objects = ReservedObjects()
    for key, item in rehearsed.changed.items():
        if item is None:
            reserved_objects.removed.append(key)
        else:
            reserved_objects.objects.append(item)
    for workload in new:
        _, namespace, name = key_of(workload)
        reserved_objects.notes.append(_note(rehearsed, WorkloadView.of(rehearsed.workload(namespace, name))))
    reserved_objects.notes += settings_notes
    return reserved_objects


def _settings(snapshot: Snapshot) -> tuple[PlanSettings, list[str]]:
    """Return the controller's settings, and notes about them.

    Without its Deployment they are the defaults, with the spares that the UltraServers show.
    """
    from neuron_dra.ask.simulate import deployed
    from neuron_dra.plan_settings import PlanSettings
    from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS

    settings, notes = deployed.settings(snapshot)
    if settings is not None:
        return settings, notes
    spares = _spares(snapshot)
    kept_free = [f"{number} x {instance_type}" for instance_type, number in spares]
    text = f"spares {', '.join(kept_free)}, else the defaults" if kept_free else "the defaults"
    notes.append(f"settings of the UltraServer controller: {text}")
    return PlanSettings(replace(DEFAULT_LIMITS, spares=spares)), notes


def _registered(node: Wire) -> Wire:
    """Return a Node with what each Node of a cluster has, and one of an imagined fleet lacks: a UID, and Ready."""
    meta, status = node["metadata"], node.get("status") or {}
    conditions = status.get("conditions") or ()
    if meta.get("uid") and conditions:
        return node
    ready = {"type": "Ready", "status": "True"}
    return {
        **node,
        "metadata": {"uid": f"simulated-{meta['name']}", **meta},
        "status": {**status, "conditions": conditions or [ready]},
    }


def _spares(snapshot: Snapshot) -> tuple[tuple[str, int], ...]:
    """Return how many UltraServers of each type are kept free for groups that must move, as their conditions say."""
    servers = [UltraServerView.of(server) for server in snapshot.all("NeuronUltraServer")]
    return tuple(Counter(server.spec.instance_type for server in servers if server.is_spare).items())


def _note(rehearsed: Rehearsal, workload: WorkloadView) -> str:
    """Return what the controller did for a workload, or why it waits."""
    name = f"NeuronUltraServerWorkload {workload.metadata.name}"
    ready = workload.status.condition("Ready")
    if ready is None or ready.status != "True":
        return f"{name}: not reserved: {ready.message if ready is not None else 'the controller says nothing'}"
    reservations = rehearsed.reservations(workload.metadata.uid)
    groups = f"{words.count(len(reservations), 'group')} of {words.count(workload.spec.topology_size, 'node')}"
    nodes = [node for reservation in reservations for node in reservation.allocation.nodes]
    return f"{name}: {groups} reserved: {words.listed(nodes, NODES_SHOWN)}"
