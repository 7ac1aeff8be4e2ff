"""Plans the writes that a snapshot calls for. Pure: the same snapshot and time give the same plan.

A workload is allocated in these steps (`allocation`): reservation Pending in the status of NeuronUltraServers, tags on
the nodes' slices, Bound, ResourceClaimTemplate, Allocated. It is released in these (`releasing`): template deleted,
Draining, tags Draining, pods evicted, claims gone, reservation removed, finalizer removed. A slot with a fault is
released in the same way once another is reserved (`recovery`). Every plan derives each workload's step from the objects
and keeps no state, so another replica can continue at any point.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator, Sequence, Set
from dataclasses import replace
from typing import cast

from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import (
    NOTHING_KEPT,
    Action,
    Kept,
    Plan,
    Verdict,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.fleet import outage
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.free_slots import FreeSlots
from neuron_dra.planner.fleet.holdings import Holdings
from neuron_dra.planner.fleet.limits import DEFAULT_LIMITS, Limits
from neuron_dra.planner.fleet.quota import Quota
from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.fleet.spares import SparePool
from neuron_dra.planner.observed.model import NOTHING_KNOWN, FleetSnapshot, Known, Suspect, shortened
from neuron_dra.planner.plan import (
    claim_pods,
    node_labels,
    queue,
    restoration,
    statuses,
    ultraserver_writes,
    waiting_limit,
)
from neuron_dra.planner.plan.ledger import Ledger
from neuron_dra.planner.plan.next_step import next_step

__all__ = ["DEFAULT_LIMITS", "Limits", "plan"]

WORKLOADS_A_STEP = 8
ULTRASERVERS_A_STEP = 64
"""The leader renews its Lease between steps: in one piece, a plan of a large fleet could take longer than the Lease."""


def plan(snapshot: FleetSnapshot, now: datetime.datetime, limits: Limits = DEFAULT_LIMITS) -> Plan:
    """Return the writes that bring the cluster one step closer, and nothing when there is none.

    Planning again after the writes gives the next step, so a failed write needs no special care. `now` decides about
    timeouts and grace periods; `Plan.recheck` is when the next one ends.
    """
    return plan_of(FleetIndex.of(snapshot), now, limits, snapshot)


def plan_of(
    index: FleetIndex,
    now: datetime.datetime,
    limits: Limits = DEFAULT_LIMITS,
    known: Known = NOTHING_KNOWN,
    kept: Kept = NOTHING_KEPT,
) -> Plan:
    """Return the plan for an index that follows the objects, as `plan` does for a snapshot.

    - `kept`: what an earlier plan of this index has left.
    """
    planning_steps = steps(index, now, limits, known, kept)
    while True:
        try:
            next(planning_steps)
        except StopIteration as end:
            return cast(Plan, end.value)


def steps(
    index: FleetIndex,
    now: datetime.datetime,
    limits: Limits = DEFAULT_LIMITS,
    known: Known = NOTHING_KNOWN,
    kept: Kept = NOTHING_KEPT,
) -> Generator[None, None, Plan]:
    """Plan in steps, between which the caller may do other things, but not change the index; return the plan.

    Objects that need no write according to `kept`, and have not changed since, are skipped. If the CRDs are outdated
    (`known.outdated`), the plan only says so.
    """
    if known.outdated:
        return replace(_stopped(index, now, known.outdated), kept=kept)
    ledger = begin(index, now, limits, known, kept)
    for number, workload in enumerate(ledger.workloads):
        if number % WORKLOADS_A_STEP == 0:
            yield
        view = ledger.view(workload)
        reads = view.reads()
        ledger.after(view, ledger.kept(view, reads) or next_step(view), reads)
    for namespace in ledger.beyond_limit:
        yield
        ledger.put_off(namespace)
    ledger.release_the_gone()
    ledger.find_spares()
    ledger.end_turns()
    ultraserver_names = ledger.touched
    other_writes: list[Action] = []
    reservation_writes: list[WriteUltraServerStatus] = []
    for first in range(0, len(ultraserver_names), ULTRASERVERS_A_STEP):
        yield
        names_of_step = ultraserver_names[first : first + ULTRASERVERS_A_STEP]
        object_writes, status_writes = ultraserver_writes.writes(ledger, names_of_step)
        other_writes += object_writes
        reservation_writes += status_writes
    written = {ultraserver_writes.object_of(action) for action in (*other_writes, *reservation_writes)}
    return _plan(ledger, written, other_writes, reservation_writes)


def begin(index: FleetIndex, now: datetime.datetime, limits: Limits, known: Known, kept: Kept) -> Ledger:
    """Return the ledger before any step, except that lost reservations are restored.

    `now` is the time of the plan; every duration is measured against it.
    """
    holdings = Holdings(index)
    holdings.assume(known.assumed)
    quota = Quota(index, limits.max_reserved_nodes, holdings)
    unrestored = restoration.restore(index, holdings, quota, now)
    current_outage = outage.judge(
        index.countable, index.away, at_least=limits.outage_nodes, percent=limits.outage_percent
    )
    workloads, errors = queue.ordered(index.workloads, holdings, known.priorities, now)
    contested = queue.template_names(index.workloads, index.template_by_key, holdings)
    beyond_limit = waiting_limit.beyond(workloads, index, holdings, known.admissions, limits.max_waiting_workloads)
    uids = {workload.uid for put_off in beyond_limit.values() for workload in put_off}
    return Ledger(
        [workload for workload in workloads if workload.uid not in uids],
        Sight(index, known, now, limits, current_outage),
        holdings,
        FreeSlots(index, holdings, known.unwritable, SparePool(limits.spares, now + limits.block_lead)),
        quota,
        contested,
        unrestored,
        turns=dict(known.turns),
        errors={**unrestored.ultraservers, **errors},
        unsettled=kept.open | index.changed_since(kept.version),
        unsettled_nodes=kept.open_nodes | index.nodes_changed_since(kept.version),
        earlier=kept,
        beyond_limit=beyond_limit,
    )


def _plan(
    ledger: Ledger,
    written: Set[str],
    other_writes: Sequence[Action],
    reservation_writes: Sequence[WriteUltraServerStatus],
) -> Plan:
    """Return the plan of a complete ledger.

    - `written`: the UltraServers that need the writes `other_writes` and `reservation_writes`.
    """
    sight, index, writes = ledger.sight, ledger.index, ledger.writes
    suspects, explained = _suspects(ledger), _explained(ledger, reservation_writes)
    labelled = node_labels.changes(index, ledger.unsettled_nodes)
    ends = (end - sight.limits.told_before_end for end in index.block_ends)
    moments = (moment for moment in (*ledger.recheck, *ends) if moment > sight.now)
    return Plan(
        actions=(
            *other_writes,
            *labelled,
            *writes.before,
            *reservation_writes,
            *writes.after,
            *explained,
            *writes.last,
        ),
        verdicts=ledger.verdicts,
        waiting=ledger.waiting,
        recheck=min(moments, default=None),
        suspects=suspects,
        starting=tuple(ledger.starting),
        shared=tuple(ledger.shared),
        to_read=tuple(ledger.to_read),
        meetings=tuple(ledger.meetings),
        kept=Kept(
            index.version,
            ledger.decided,
            ledger.may_differ & written,
            frozenset(action.name for action in labelled),
            frozenset(ledger.spares),
        ),
        errors=ledger.errors,
        turns=ledger.turns,
        beyond_limit=frozenset(workload.uid for put_off in ledger.beyond_limit.values() for workload in put_off),
    )


def _explained(ledger: Ledger, reservation_writes: Sequence[WriteUltraServerStatus]) -> list[Action]:
    """Return the writes of statuses; that of a workload with a write that was rejected says only that.

    Its whole status waits for those writes, and would say what held before them: perhaps for ever.
    """
    sight, status_writes = ledger.sight, ledger.writes.statuses
    unwritable_by_uid: dict[str, list[str]] = {}
    for write in reservation_writes:
        for workload_uid in write.owners if write.name in sight.known.unwritable else ():
            unwritable_by_uid.setdefault(workload_uid, []).append(write.name)
    hindered_uids = unwritable_by_uid.keys() | sight.known.rejected.keys()
    if not hindered_uids:
        return status_writes
    explained_writes = [write for write in status_writes if hindered_uids.isdisjoint(write.owners)]
    for workload in (indexed for indexed in ledger.index.workloads if indexed.uid in hindered_uids):
        if workload.uid not in unwritable_by_uid:
            reason, text = sight.known.rejected[workload.uid]
            explained_writes += statuses.condition(workload, reason, text, sight.now)
            continue
        ultraserver_names = unwritable_by_uid[workload.uid]
        text = (
            "reservations cannot be changed or stored, because the status of NeuronUltraServer "
            f"{shortened(ultraserver_names)} cannot be written: {sight.known.unwritable[ultraserver_names[0]]}"
        )
        explained_writes += statuses.condition(workload, Reason.RESERVATION_NOT_STORED, text, sight.now)
    return explained_writes


def _suspects(ledger: Ledger) -> tuple[Suspect, ...]:
    """Return the pods that a Ready node may reject, each once; those of a PodGroup are read when a plan asks for them.

    None in an outage, because nothing is evicted then.
    """
    if ledger.sight.outage is not None:
        return ()
    sight = ledger.sight.anew()
    suspects_by_uid: dict[str, Suspect] = {}
    for refused_use in ledger.index.refused():
        if sight.is_ready(refused_use.node):
            for pod_name, pod_uid in claim_pods.of(sight, refused_use.use):
                suspects_by_uid[pod_uid] = Suspect(
                    refused_use.use.namespace, pod_name, pod_uid, refused_use.node, refused_use.why
                )
    ledger.note(sight)
    return tuple(suspects_by_uid.values())


def _stopped(index: FleetIndex, now: datetime.datetime, outdated: str) -> Plan:
    """Return a plan that only writes into each workload why the controller has stopped.

    Nothing is reserved, released or evicted: the API server would drop fields that the CRDs lack.
    """
    verdicts, actions = {}, []
    for workload in sorted(index.workloads, key=lambda workload: workload.ref):
        verdicts[workload.uid] = Verdict(workload.state, Reason.CUSTOM_RESOURCES_OUTDATED, outdated)
        status = objects.with_condition(workload, "Ready", False, Reason.CUSTOM_RESOURCES_OUTDATED, outdated, now)
        if status is not None:
            actions.append(WriteWorkloadStatus.of(workload, status, warning=True, explains_stop=True))
    return Plan(tuple(actions), verdicts)
