"""Proof that the fleet's invariants can fail: a few seeds find each of these programs with a planted bug."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest

from controller import settings as controller_settings
from controller.apply import claim_pods, requests
from controller.apply.leader import Leader
from controller.apply.outbox import Outbox
from controller.apply.refused_pod_eviction import Refusals
from controller.apply.rendezvous_service import RendezvousServices
from controller.apply.schema_check import Schemas
from controller.apply.writes import Writes
from controller.jobs import decide
from controller.observe import caches
from controller.qualify import yielding
from controller.queue import decide as queue_decide
from controller.queue import queues
from controller.queue.admission import QueueView
from controller.queue.model import KueueWorkload
from neuron_dra.core import reservation, tenants, ultraserver
from neuron_dra.core.notice import NoticeReason
from neuron_dra.core.ultraserver import Phase, Reading, Tag, object_name
from neuron_dra.kube.requests import CLAIM_TEMPLATES, NAMESPACES, NEURON_ULTRASERVERS, NEURON_WORKLOADS, NODES
from neuron_dra.node.ultraserver import watch
from neuron_dra.node.ultraserver.tag_keeper import TagKeeper
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import SetFinalizers
from neuron_dra.planner.fleet import outage, placement
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.free_slots import FreeSlots
from neuron_dra.planner.fleet.placement import Slot
from neuron_dra.planner.fleet.places import Overlay
from neuron_dra.planner.fleet.quota import Quota
from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.fleet.spares import SparePool
from neuron_dra.planner.fleet.view import View
from neuron_dra.planner.observed import discovery
from neuron_dra.planner.observed.agents import Reports
from neuron_dra.planner.observed.model import FINALIZER, ClusterNode, Workload
from neuron_dra.planner.plan import allocation as serving
from neuron_dra.planner.plan import (
    binding,
    next_step,
    queue,
    recovery,
    releasing,
    rendezvous,
    restoration,
    statuses,
    ultraserver_writes,
    waiting_limit,
)
from neuron_dra.planner.plan.ledger import Ledger
from tests.support.fleet import agents, blocks
from tests.support.fleet.delays import Delays
from tests.support.fleet.fleet import USERS, Fleet
from tests.support.fleet.network import Policy
from tests.support.fleet.pods import PLAIN, Job
from tests.support.fleet.run import run
from tests.support.fleet.safety import Violation
from tests.support.fleet.schedule import Schedule
from tests.support.fleet.tenants import LIMIT
from tests.support.fleet.view import condition

MOST_SEEDS = 40


def binds_before_tags_are_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sight, "shows", lambda self, name, allocation, phase: True)


def ignores_foreign_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FleetIndex, "is_taken", lambda self, node, more=0: self.reserved(node) + more > 0)
    patch.setattr(Sight, "foreign", lambda self, allocation: [])


def opens_the_gate_on_the_node(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reservation, "why_refused", lambda claim, holder, node_name: "")


def ignores_limits(patch: pytest.MonkeyPatch) -> None:
    """13.15."""
    patch.setattr(Quota, "refusal", lambda self, workload, indices, held: None)


def never_evicts(patch: pytest.MonkeyPatch) -> None:
    async def evict(self: Any, action: Any) -> None:
        pass

    patch.setattr(requests.Applier, "_evict", evict)


def gives_no_reason(patch: pytest.MonkeyPatch) -> None:
    say = objects.workload_status

    def workload_status(workload: Any, verdict: Any, *more: Any) -> Any:
        silent = dataclasses.replace(verdict, message="") if verdict.state == "Pending" else verdict
        return say(workload, silent, *more)

    patch.setattr(objects, "workload_status", workload_status)


def reserves_across_racks(patch: pytest.MonkeyPatch) -> None:
    """Chooses the pairs {1, 2} and {0, 3} where it can, instead of those inside the racks."""
    find = placement.slots

    def slots(groups: Any, taken: Any, instance_type: str, size: int) -> Any:
        if size != 2:
            return find(groups, taken, instance_type, size)
        found: list[placement.Slot] = []
        for group in groups:
            free = {one.first_id: one for one in find((group,), taken, instance_type, 1)}
            across = [(free[one], free[other]) for one, other in ((1, 2), (0, 3)) if {one, other} <= free.keys()]
            if {1, 2} <= free.keys():
                found += [dataclasses.replace(one, nodes=one.nodes + other.nodes) for one, other in across]
            else:
                found += find((group,), taken, instance_type, 2)
        return tuple(found)

    patch.setattr(placement, "slots", slots)


def never_steps_down(patch: pytest.MonkeyPatch) -> None:
    """A leader that lost its Lease continues, and its writes are not guarded."""
    patch.setattr(Leader, "holds", lambda self: self.term > 0)
    patch.setattr(requests, "_guarded", lambda version, changes: changes)


def waits_for_the_impossible(patch: pytest.MonkeyPatch) -> None:
    """13.1: a workload that has waited for long blocks others without end, even if its request is impossible."""
    patch.setattr(serving, "_exceeds_fleet", lambda *_: None)
    patch.setattr(queue, "starving_until", lambda workload, now, limits: now + datetime.timedelta(days=1))
    patch.setattr(queue, "goes_first", lambda view: view.starving)


def keeps_what_does_not_fit(patch: pytest.MonkeyPatch) -> None:
    """13.6"""
    patch.setattr(serving, "_fits", lambda view, one: True)


def gives_one_template_name_to_two(patch: pytest.MonkeyPatch) -> None:
    """13.7"""
    patch.setattr(queue, "template_names", lambda workloads, templates, holdings: {})


def drops_reservations_for_any_claim(patch: pytest.MonkeyPatch) -> None:
    """13.2: also for claims that requested reserved devices without a workload."""
    patch.setattr(Sight, "untagged_claims", Sight.foreign)


def ignores_outages(patch: pytest.MonkeyPatch) -> None:
    """13.4"""
    patch.setattr(outage, "judge", lambda total, away, **limits: None)


def sees_no_lost_tags(patch: pytest.MonkeyPatch) -> None:
    """13.9"""
    judged = recovery._checks
    patch.setattr(recovery, "_checks", lambda *of: (each for each in judged(*of) if each[0] != "TagLost"))


def sees_no_cordons(patch: pytest.MonkeyPatch) -> None:
    """13.9"""
    patch.setattr(recovery, "_cordons_and_taints", lambda view, one: ())


def leaves_refused_pods(patch: pytest.MonkeyPatch) -> None:
    """13.12"""

    def look(self: Refusals, suspects: Any, now: Any) -> None:
        return None

    patch.setattr(Refusals, "look", look)


def makes_no_reservation_again(patch: pytest.MonkeyPatch) -> None:
    """The controller loses the reservations of objects that are deleted by force."""
    patch.setattr(restoration, "restore", lambda index, holdings, quota, now: restoration.Failures())


def loses_reservations_with_objects(patch: pytest.MonkeyPatch) -> None:
    """As before the fix: no finalizer, no copy, and nodes drop tags that their object does not have."""
    makes_no_reservation_again(patch)
    patch.setattr(ultraserver_writes, "_finalizers", lambda ledger, stored: None)
    patch.setattr(ultraserver, "outlives", lambda current, reading: False)


def publishes_ranks_that_are_only_requested(patch: pytest.MonkeyPatch) -> None:
    """As before the fix: a failed growth left groups with ranks that do not exist."""
    right = binding._open_groups
    patch.setattr(binding, "_open_groups", lambda view, opened: max(right(view, opened), view.workload.count))


def keeps_what_no_job_needs(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(decide, "_release", lambda *_, **__: False)


def forgets_jobs_that_scale(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(decide._JobStep, "_change", lambda self, workload, spec: None)


def trusts_a_mark_for_the_job(patch: pytest.MonkeyPatch) -> None:
    """35: any workload that is marked with a job counts as its reservation."""
    step = decide._JobStep._keep_in_step

    def keep(self: Any, spec: Any, template: str) -> None:
        if not self._own:
            step(self, spec, template)

    patch.setattr(decide._JobStep, "_keep_in_step", keep)


def reserves_before_admission(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(View, "refusal", lambda self, indices: self.quota.refusal(self.workload, indices, self.held))
    keeps_nodes_of_evicted_workloads(patch)


def keeps_nodes_of_evicted_workloads(patch: pytest.MonkeyPatch) -> None:
    """35."""
    others = tuple(rule for rule in next_step.RULES if rule is not next_step.revoked)
    patch.setattr(next_step, "RULES", others)


def gives_quota_back_before_the_nodes(patch: pytest.MonkeyPatch) -> None:
    """35."""
    right = queues._held
    patch.setattr(queues, "_held", lambda *of, **more: dataclasses.replace(right(*of, **more), some=False))


def keeps_quota_after_an_eviction(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(queue_decide, "_returned", lambda found: None)


def hoards_quota(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(queue_decide._Step, "_why_return", lambda self, found: "")


def never_queues_again(patch: pytest.MonkeyPatch) -> None:
    """35."""
    later = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
    patch.setattr(queue_decide, "returns_at", lambda workload, found, timing: later)


def leaves_preempted_workloads_out_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(queue_decide, "REQUEUED_BY_KUEUE", ())


def never_tells_that_nodes_are_ready(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(queue_decide, "_readiness", lambda found, ready: {})


def keeps_quota_of_groups_that_it_gave_up(patch: pytest.MonkeyPatch) -> None:
    """35."""
    right = queues._held
    patch.setattr(queues, "_held", lambda *of, **more: dataclasses.replace(right(*of, **more), nodes=1_000))


def forgets_what_it_is_writing(patch: pytest.MonkeyPatch) -> None:
    """4.05."""
    patch.setattr(Writes, "assumed", lambda self: ())


def takes_all_deciders_for_one(patch: pytest.MonkeyPatch) -> None:
    """4.05: a decision of one replaces those of the others."""
    right = Outbox.decide

    def decide(self: Outbox, decider: str, term: int, wishes: Any) -> None:
        for other in list(self._lanes):
            self._forget(other)
        right(self, decider, term, wishes)

    patch.setattr(Outbox, "decide", decide)


def grows_without_quota(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(KueueWorkload, "granted", property(lambda self: 1_000))


def leaves_finalizers(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(queue_decide, "_finish", lambda found, gone=False: None)


def requires_no_queue(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(caches, "JOBS_QUEUED", "no namespace has this")


def empties_slices_first(patch: pytest.MonkeyPatch) -> None:
    """30: until the other slice is written, the name of rank 0 leads nowhere."""
    follow = RendezvousServices._follow

    async def emptied(self: Any, service: Any, pod: Any, check: Any, *, all_of_them: bool) -> Any:
        wanted = rendezvous.endpoint_slice(service, pod)
        if wanted is not None:
            await self._empty_all_but(wanted["metadata"]["name"], service, check)
        return await follow(self, service, pod, check, all_of_them=all_of_them)

    patch.setattr(RendezvousServices, "_follow", emptied)


def writes_for_former_meetings(patch: pytest.MonkeyPatch) -> None:
    """4.05: reads that began before the pod with rank 0 ran end with a write that takes its name away."""
    patch.setattr(RendezvousServices, "_check", lambda self, meeting, term: self._sender.fence.check(term))


def leaves_addresses_in_other_slices(patch: pytest.MonkeyPatch) -> None:
    """30."""

    async def leave(self: Any, kept: str, service: Any, check: Any) -> None:
        pass

    patch.setattr(RendezvousServices, "_empty_all_but", leave)


def forgets_slices_of_earlier_releases(patch: pytest.MonkeyPatch) -> None:
    """30."""
    patch.setattr(
        rendezvous,
        "slice_names",
        lambda service: tuple(rendezvous.slice_name(service, family) for family in rendezvous.FAMILIES),
    )


def sees_no_reports(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(recovery, "_is_well", lambda node: True)


def chooses_reported_nodes(patch: pytest.MonkeyPatch) -> None:
    """36."""
    right = discovery._is_usable
    unreported = functools.partial(dataclasses.replace, reported=())
    patch.setattr(discovery, "_is_usable", lambda published, node: right(published, unreported(node)))
    sees_no_reports(patch)  # otherwise it drops them again


def takes_a_storm_for_many_faults(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(ClusterNode, "unhealthy", property(lambda self: False))


def forgets_reports_at_once(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(Reports, "_is_over", lambda self, spell, now: spell.ended is not None)


def ignores_the_ends_of_blocks(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(View, "lasts", lambda self, slot: True)


def gives_spares_to_everyone(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(FreeSlots, "beside_spares", FreeSlots.free)


def keeps_spares_from_groups_that_move(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(View, "replacing", lambda self: self)


def keeps_spares_from_restarted_workloads(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(View, "was_restarted", property(lambda self: False))


def fills_no_pool_again(patch: pytest.MonkeyPatch) -> None:
    """36."""
    right = SparePool.of
    first: dict[str, frozenset[str]] = {}

    def only_the_first(pool: SparePool, free: Overlay, instance_type: str) -> tuple[Slot, ...]:
        found = right(pool, free, instance_type)
        chosen = first.setdefault(instance_type, frozenset(slot.ultraserver for slot in found))
        return tuple(slot for slot in found if slot.ultraserver in chosen)

    patch.setattr(SparePool, "of", only_the_first)


def shows_what_was_a_spare(patch: pytest.MonkeyPatch) -> None:
    """36."""
    patch.setattr(Ledger, "may_differ", property(lambda self: self.unsettled))


def never_yields(patch: pytest.MonkeyPatch) -> None:
    """36: tests go on, whoever waits."""
    patch.setattr(yielding, "yields", lambda *_: yielding.Yields({}, frozenset()))


def sees_no_lost_fields(patch: pytest.MonkeyPatch) -> None:
    """35."""

    patch.setattr(Schemas, "_note_spec", lambda self, fields: None)


def finds_no_pods_of_groups(patch: pytest.MonkeyPatch) -> None:
    """35."""
    patch.setattr(claim_pods, "users", lambda use, pods: ())


def tells_no_pod(patch: pytest.MonkeyPatch) -> None:
    async def tell(self: Any, tag: Tag | None) -> None:
        pass

    patch.setattr(TagKeeper, "_tell", tell)


def tells_after_the_tag(patch: pytest.MonkeyPatch) -> None:
    """A node shows that it is closed, and writes the notice with the next publish."""
    tell = TagKeeper._tell

    async def late(self: Any, tag: Tag | None) -> None:
        if tag == self.current:
            await tell(self, tag)

    patch.setattr(TagKeeper, "_tell", late)


def leaves_notices(patch: pytest.MonkeyPatch) -> None:
    """A notice that is taken back stays in the containers."""
    told = ultraserver.told

    def never_nothing(tag: Tag | None, reading: Reading) -> Any:
        found = told(tag, reading)
        return found if found is not None and found.notice is not None else None

    patch.setattr(ultraserver, "told", never_nothing)


def restarts_what_loses_its_block(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "is_taken_back", lambda workload: False)


def names_other_tenants(patch: pytest.MonkeyPatch) -> None:
    """4.02: messages in one namespace name objects of another."""
    patch.setattr(tenants, "shown", lambda kind, namespace, name, *, reader: f"{kind} {namespace}/{name}")


def reserves_before_the_finalizer(patch: pytest.MonkeyPatch) -> None:
    """4.02: then the rejected finalizer of one workload keeps its neighbours on an UltraServer from being stored."""

    def decided(view: View) -> Any:
        workload = view.workload
        steps = (rule(view) for rule in next_step.RULES)
        step = next((step for step in steps if step is not None), None)
        if step is None:
            step = next_step.not_to_be_read(view) or next_step._with_nodes(view)
            if FINALIZER not in workload.finalizers:
                step = step.doing(SetFinalizers.of(workload, (*workload.finalizers, FINALIZER)))
        return statuses.with_status(view.having(step.held), step)

    patch.setattr(next_step, "_decided", decided)


def gives_no_turn(patch: pytest.MonkeyPatch) -> None:
    """4.02: a workload beyond the limit of its namespace does not get its turn when earlier ones leave."""

    def beyond(workloads: Any, index: Any, holdings: Any, admissions: Any, limit: int) -> Any:
        waiting: dict[str, list[Any]] = {}
        for workload in workloads:
            if waiting_limit._only_waits(workload, index, holdings, admissions):
                waiting.setdefault(workload.namespace, []).append(workload)
        return {
            namespace: [each for place, each in enumerate(those) if place or "TooManyWaiting" in str(each.status)]
            for namespace, those in waiting.items()
        }

    patch.setattr(waiting_limit, "beyond", beyond)


def joins_by_uid_alone(patch: pytest.MonkeyPatch) -> None:
    """4.02: whoever copies the UID of a workload into a Workload of Kueue decides about it, in any namespace."""

    def of(self: QueueView, workload: Workload) -> KueueWorkload | None:
        return next((found for _, found in sorted(self.kueue.get(workload.uid, {}).items(), reverse=True)), None)

    patch.setattr(QueueView, "of", of)


def leaves_before_its_template(patch: pytest.MonkeyPatch) -> None:
    """4.02: new claims are made from the template of a workload whose nodes are being released."""

    def release_all(view: View, **options: Any) -> releasing.Release:
        made = releasing.release_reservations(
            view.sight, view.workload.uid, view.held, view.held.all, **{"why": NoticeReason.RELEASING, **options}
        )
        return dataclasses.replace(made, actions=(*releasing.delete_templates(view), *made.actions))

    patch.setattr(releasing, "release_all", release_all)


def lets_all_wait(patch: pytest.MonkeyPatch) -> None:
    """4.02: one namespace may keep any number of workloads waiting."""
    patch.setattr(waiting_limit, "beyond", lambda *_: {})


def believes_any_404(patch: pytest.MonkeyPatch) -> None:
    """4.02: a plugin takes a proxy's 404 for a missing CRD."""

    async def is_missing(client: Any, resource: Any) -> bool:
        return True

    patch.setattr(watch, "is_missing", is_missing)


Sabotage = Callable[[pytest.MonkeyPatch], None]
SLOW_NEIGHBOURS = {
    *("agents", "back-off", "blocks", "bursts", "clocks", "delays", "deletions", "giants", "impossible", "ipv6"),
    *("jobs", "old-crds", "outages", "policies", "qualifications", "queues", "rollbacks", "spares", "spec-changes"),
    *("tenants", "two-at-once"),
}
"""The actors among whom a leader's reads of Services take longer than the start of a pod."""

FINDS: dict[Sabotage, int] = {
    publishes_ranks_that_are_only_requested: 51,
    never_steps_down: 9,
    never_yields: 4,
    waits_for_the_impossible: 8,
    keeps_what_does_not_fit: 8,
    gives_one_template_name_to_two: 32,
    drops_reservations_for_any_claim: 6,
    ignores_outages: 16,
    takes_a_storm_for_many_faults: 53,
    keeps_spares_from_restarted_workloads: 106,
    ignores_limits: 3,
    sees_no_lost_tags: 10,
    leaves_refused_pods: 19,
    makes_no_reservation_again: 28,
    loses_reservations_with_objects: 20,
    forgets_jobs_that_scale: 32,
    trusts_a_mark_for_the_job: 31,
    gives_quota_back_before_the_nodes: 43,
    leaves_preempted_workloads_out_of_the_queue: 4,
    keeps_quota_of_groups_that_it_gave_up: 30,
    hoards_quota: 15,
    never_queues_again: 15,
    leaves_addresses_in_other_slices: 20,
    forgets_slices_of_earlier_releases: 113,
    shows_what_was_a_spare: 3,
    chooses_reported_nodes: 53,
    sees_no_cordons: 19,
    keeps_what_no_job_needs: 2,
    keeps_nodes_of_evicted_workloads: 11,
    keeps_quota_after_an_eviction: 4,
    never_tells_that_nodes_are_ready: 4,
    requires_no_queue: 9,
    leaves_notices: 5,
    empties_slices_first: 5,
    writes_for_former_meetings: 6511,
    sees_no_reports: 12,
    keeps_spares_from_groups_that_move: 72,
    gives_no_turn: 40,
    joins_by_uid_alone: 68,
}
"""Seeds that found these when they were last measured. They go first, which only saves time; for others it is 1."""


def first_violation(sabotage: Sabotage, actors: Collection[str]) -> str:
    """Return the first violation that a seed finds, "nothing" if none of them does."""
    first = FINDS.get(sabotage, 1)
    seeds = (first, *(seed for seed in range(1, MOST_SEEDS) if seed != first))
    violations = (run(seed, actors=actors).violation for seed in seeds)
    return next((text for text in violations if text), "nothing")


@pytest.mark.sampled(5)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sabotage", "actors", "found"),
    [
        (waits_for_the_impossible, {"impossible", "giants"}, "requests more than exists|has held others back"),
        (keeps_what_does_not_fit, {"spec-changes"}, "is Allocated with (groups|a template) of|tells of|pods of"),
        (ignores_limits, {"tenants", "limits"}, "reserved nodes of namespace"),
        (gives_one_template_name_to_two, {"template-names"}, "has all its groups and is|is Failed and|another owner"),
        (drops_reservations_for_any_claim, {"rogues"}, "is removed by claims for reserved devices"),
        (ignores_outages, {"outages"}, "is evicted during an outage"),
        (sees_no_lost_tags, {"rollbacks"}, "is not Degraded, and nodes of it are broken"),
        (sees_no_lost_fields, {"old-crds"}, "does not say that fields of its spec are dropped"),
        (sees_no_cordons, {"cordons"}, "is not Degraded, and nodes of it are broken"),
        (leaves_refused_pods, {"rogues", "refused-pods"}, "has been refused on"),
        (keeps_what_no_job_needs, {"jobs"}, "which needs nothing, and no pod uses it|workload .* is left"),
        (forgets_jobs_that_scale, {"jobs"}, r"pods, and a reservation of"),
        (
            trusts_a_mark_for_the_job,
            {"jobs"},
            r"pods, and a reservation of|has no reservation|says that it was made for",
        ),
        (reserves_before_admission, {"queues"}, r"nodes, and quota for"),
        (keeps_nodes_of_evicted_workloads, {"queues"}, "is evicted, and its nodes are not released"),
        (gives_quota_back_before_the_nodes, {"queues"}, r"nodes, and quota for"),
        (keeps_quota_after_an_eviction, {"queues"}, "and keeps its quota"),
        (hoards_quota, {"queues", "giants"}, "and has no nodes"),
        (never_queues_again, {"queues", "giants"}, "does not queue again"),
        (leaves_preempted_workloads_out_of_the_queue, {"queues"}, "was preempted, and does not queue again"),
        (never_tells_that_nodes_are_ready, {"queues"}, "is not PodsReady"),
        (keeps_quota_of_groups_that_it_gave_up, {"queues"}, "and keeps quota for"),
        (grows_without_quota, {"queues"}, "nodes, and quota for"),
        (takes_all_deciders_for_one, {"jobs"}, "not settled after|there is no NeuronUltraServer"),
        (leaves_finalizers, {"queues"}, "is left"),
        (requires_no_queue, {"queues"}, "has nodes without a queue"),
        (empties_slices_first, {"ipv6"}, "does not lead to .* any more"),
        (writes_for_former_meetings, SLOW_NEIGHBOURS, "does not lead to .* any more"),
        (leaves_addresses_in_other_slices, {"ipv6"}, "and its name leads to"),
        (forgets_slices_of_earlier_releases, {"ipv6"}, "and its name leads to"),
        (finds_no_pods_of_groups, {"group-claims"}, "is not released|is left"),
        (sees_no_reports, {"agents"}, "is not Degraded, and nodes of it are broken"),
        (chooses_reported_nodes, {"agents"}, "is reserved, and an agent reports a fault"),
        (tells_no_pod, {"blocks"}, "and found no notice|reads the notice"),
        (leaves_notices, {"blocks"}, "reads the notice"),
        (ignores_the_ends_of_blocks, {"blocks"}, "and its block ends before"),
        (gives_spares_to_everyone, {"spares"}, "is new, and is on a spare|is shown as a spare, and is reserved"),
        (keeps_spares_from_groups_that_move, {"spares"}, "cannot move|waits .*, and .* groups are free"),
        (keeps_spares_from_restarted_workloads, {"spares"}, "waits .*, and .* groups are free"),
        (fills_no_pool_again, {"spares"}, "groups are kept as spares, and"),
        (shows_what_was_a_spare, {"spares"}, "groups are (shown|kept) as spares"),
        (names_other_tenants, {"tenants", "rogues"}, "a message in namespace .* names .* of"),
        (gives_no_turn, {"tenants"}, r"waits \(TooManyWaiting\), and .* groups are free"),
        (joins_by_uid_alone, {"forgeries", "queues"}, "and Kueue does not know it|nodes, and quota for"),
        (never_yields, {"qualifications"}, "still wait for tests|has waited for .* for tests"),
        (never_yields, {"qualifications", "spares"}, "has waited for .* for tests"),
        (
            takes_a_storm_for_many_faults,
            {"agents"},
            "is evicted during an outage|was removed|is gone|came back after it was gone",
        ),
    ],
)
def test_fleet_with_actors_finds(
    sabotage: Sabotage,
    actors: set[str],
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sabotage(monkeypatch)
    text = first_violation(sabotage, actors)
    assert re.search(found, text), text


@pytest.mark.sampled(5)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sabotage", "found"),
    [
        (makes_no_reservation_again, r"is reserved for no workload|both have rank|of \d+ pods of"),
        (loses_reservations_with_objects, r"both have rank|of \d+ pods of"),
    ],
)
def test_fleet_finds_a_lost_reservation(sabotage: Sabotage, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """13.3."""
    sabotage(monkeypatch)
    text = first_violation(sabotage, {"deletions"})
    assert re.search(found, text), text


@pytest.mark.sampled(5)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sabotage", "found"),
    [
        (binds_before_tags_are_seen, "was bound before its nodes showed it|did not begin as Pending"),
        (ignores_foreign_claims, "was bound while .* runs on|which is of"),
        (never_evicts, "is not released"),
        (gives_no_reason, "without a reason"),
        (reserves_across_racks, "is no slot of 2 nodes"),
        (publishes_ranks_that_are_only_requested, "and they publish"),
        (never_steps_down, "came back after it was gone|in two reservations|changed what it reserves|before"),
    ],
)
def test_fleet_finds(sabotage: Sabotage, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    text = first_violation(sabotage, ())
    assert re.search(found, text), text


async def a_scheduler_that_sees_no_tags(fleet: Fleet, steps: int) -> None:
    """The scheduler's view is some seconds old, from before the reservation."""
    await Schedule(fleet).begin()
    fleet.scheduler_line.lag_s = (5.0, 5.0)
    fleet.pods.jobs["plain"] = Job("plain", USERS, PLAIN, len(fleet.nodes))
    await fleet.sleep(2.0)
    await fleet.submit("job", size=1, count=len(fleet.nodes))
    await fleet.sleep(60.0)


def test_late_scheduler_starts_no_pod_on_reserved_nodes() -> None:
    outcome = run(1, drive=a_scheduler_that_sees_no_tags, actors=())
    assert outcome.violation == ""
    assert any("refuses claim" in line for line in outcome.trace)


def test_fleet_finds_a_node_that_rejects_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    opens_the_gate_on_the_node(monkeypatch)
    found = run(1, drive=a_scheduler_that_sees_no_tags, actors=()).violation
    assert re.search("started on .*, which is of", found), found


async def blocks_that_end_under_jobs(fleet: Fleet, steps: int) -> None:
    """EC2 takes back the nodes of every block, one after the other, after their end was announced."""
    schedule = Schedule(fleet)
    await schedule.begin()
    for number, strategy in enumerate(("RestartAll", "MigrateAffected")):
        name = f"job-{number}"
        await fleet.submit(name, 4, 1, strategy, template=name)
        fleet.pods.jobs[name] = Job(name, USERS, name, 4)
        await fleet.sleep(30.0)
    if len(fleet.pods.running) < len(fleet.nodes):
        raise Violation(f"{len(fleet.pods.running)} pods run")
    for _ in range(2):
        await blocks.take_back(schedule)
        await fleet.sleep(60.0)
    restarted = [item["metadata"]["name"] for item in fleet.view.workloads().values() if item["status"].get("restarts")]
    if restarted:
        raise Violation(f"{restarted} restarted, and no nodes are left")


def test_nodes_that_are_taken_back_restart_nothing() -> None:
    """36."""
    assert run(1, drive=blocks_that_end_under_jobs, actors=()).violation == ""


def test_fleet_finds_a_controller_that_restarts_what_loses_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """36."""
    restarts_what_loses_its_block(monkeypatch)
    found = run(1, drive=blocks_that_end_under_jobs, actors=()).violation
    assert re.search("restarts because of nodes that were to be taken back", found), found


async def a_job_that_is_deleted(fleet: Fleet, steps: int) -> None:
    """Its owner keeps the pods running until they are evicted."""
    await Schedule(fleet).begin()
    await fleet.submit("job", 4, 2, template="job")
    fleet.pods.jobs["job"] = Job("job", USERS, "job", 8)
    await fleet.sleep(60.0)
    running = len(fleet.pods.running)
    await fleet.remove(NEURON_WORKLOADS, USERS, "job")
    await fleet.sleep(60.0)
    if (running, len(fleet.pods.running)) != (8, 0):
        raise Violation(f"{running} pods ran, and {len(fleet.pods.running)} were left")


def test_pods_are_told_before_they_are_evicted() -> None:
    """36."""
    assert run(1, drive=a_job_that_is_deleted, actors=()).violation == ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sabotage", [tells_no_pod, tells_after_the_tag])
def test_fleet_finds_a_node_that_tells_nobody(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    """36."""
    sabotage(monkeypatch)
    found = run(1, drive=a_job_that_is_deleted, actors=()).violation
    assert re.search("and found no notice", found), found


async def a_job_after_an_agent_has_flapped(fleet: Fleet, steps: int) -> None:
    """An agent reports a fault of a node for a moment; a minute later a job asks for the whole fleet."""
    schedule = Schedule(fleet)
    await schedule.begin()
    node = next(iter(fleet.nodes.values()))
    await agents.say(schedule, node, agents.MONITOR, fault=True)
    await fleet.sleep(1.0)
    await agents.say(schedule, node, agents.MONITOR, fault=False)
    await fleet.sleep(60.0)
    await fleet.submit("job", size=1, count=len(fleet.nodes))
    await fleet.sleep(120.0)
    if node.name in fleet.view.holders():
        raise Violation(f"node {node.name} is reserved, and an agent reported it three minutes ago")
    await fleet.sleep(180.0)
    if node.name not in fleet.view.holders():
        raise Violation(f"node {node.name} has been well for five minutes, and is not reserved")


def test_node_is_chosen_again_when_it_has_been_well_for_five_minutes() -> None:
    """36."""
    assert run(1, drive=a_job_after_an_agent_has_flapped, actors=()).violation == ""


def test_fleet_finds_a_controller_that_takes_a_pause_for_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """36."""
    forgets_reports_at_once(monkeypatch)
    found = run(1, drive=a_job_after_an_agent_has_flapped, actors=()).violation
    assert re.search("an agent reported it three minutes ago", found), found


async def a_rejected_finalizer(fleet: Fleet, steps: int) -> None:
    """A policy rejects the finalizers of all workloads."""
    await Schedule(fleet).begin()
    path = NEURON_WORKLOADS.path(USERS, "job")
    fleet.policies.append(Policy("no finalizers", lambda method, of: (method, of) == ("PATCH", path)))
    await fleet.submit("job", 4, 1)
    await fleet.sleep(30.0)
    [job] = fleet.view.workloads().values()
    if condition(job, "Ready").get("reason") != "FinalizerRejected":
        raise Violation("no finalizer was rejected")


def test_nothing_is_reserved_before_its_finalizer() -> None:
    """4.02."""
    assert run(1, drive=a_rejected_finalizer, actors=()).violation == ""


def test_fleet_finds_a_controller_that_reserves_before_the_finalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.02."""
    reserves_before_the_finalizer(monkeypatch)
    found = run(1, drive=a_rejected_finalizer, actors=()).violation
    assert "is reserved before the finalizer of its workload is stored" in found


async def a_rejected_deletion_of_a_template(fleet: Fleet, steps: int) -> None:
    """A policy rejects the deletion of the template of a workload that is deleted."""
    await Schedule(fleet).begin()
    await fleet.submit("job", 4, 1, template="job")
    await fleet.sleep(30.0)
    path = CLAIM_TEMPLATES.path(USERS, "job")
    fleet.policies.append(Policy("templates stay", lambda method, of: (method, of) == ("DELETE", path)))
    await fleet.remove(NEURON_WORKLOADS, USERS, "job")
    await fleet.sleep(60.0)
    phases = {held.allocation.phase for held in fleet.view.held()}
    if phases != {Phase.BOUND}:
        raise Violation(f"the template exists, and its nodes are {sorted(phase.value for phase in phases) or 'free'}")
    fleet.policies.clear()
    await fleet.sleep(60.0)
    if [*fleet.view.held()]:
        raise Violation("the template is gone, and its nodes are not free")


def test_nodes_are_released_after_their_template() -> None:
    """4.02."""
    assert run(1, drive=a_rejected_deletion_of_a_template, actors=()).violation == ""


def test_fleet_finds_a_release_before_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.02."""
    leaves_before_its_template(monkeypatch)
    found = run(1, drive=a_rejected_deletion_of_a_template, actors=()).violation
    assert re.search("the template exists, and its nodes are", found), found


async def a_crowd(fleet: Fleet, steps: int) -> None:
    """A tenant lets more workloads wait than its namespace may."""
    await Schedule(fleet).begin()
    await fleet.submit("holder", size=1, count=len(fleet.nodes))
    await fleet.sleep(30.0)
    for number in range(CROWD):
        await fleet.submit(f"waits-{number}", 4, 1)
    await fleet.sleep(60.0)
    reasons = Counter(condition(item, "Ready").get("reason") for item in fleet.view.workloads().values())
    if reasons["TooManyWaiting"] != CROWD - ALLOWED:
        raise Violation(f"{reasons['TooManyWaiting']} of {CROWD} workloads are beyond the limit of {ALLOWED}")


CROWD, ALLOWED = 6, 2


@pytest.fixture
def few_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace may keep ALLOWED workloads waiting."""
    load = controller_settings.load

    def loaded(*of: Any) -> Any:
        return dataclasses.replace(load(*of), max_waiting_workloads=ALLOWED)

    monkeypatch.setattr(controller_settings, "load", loaded)


def test_a_namespace_may_keep_few_workloads_waiting(few_may_wait: None) -> None:
    """4.02."""
    assert run(1, drive=a_crowd, actors=()).violation == ""


def test_fleet_finds_a_missing_limit_of_waiting_workloads(few_may_wait: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.02."""
    lets_all_wait(monkeypatch)
    assert "0 of 6 workloads are beyond the limit of 2" in run(1, drive=a_crowd, actors=()).violation


async def a_proxy_without_the_kind(fleet: Fleet, steps: int) -> None:
    """For longer than a tag outlives its object, a proxy answers the plugins of an UltraServer with 404."""
    await Schedule(fleet).begin()
    await fleet.submit("job", 4, 1, template="job")
    await fleet.sleep(30.0)
    [held] = fleet.view.held()
    for name in held.allocation.nodes:
        line = fleet.nodes[name].line
        assert line is not None
        line.unserved = NEURON_ULTRASERVERS.plural
        line.break_watches()
    await fleet.sleep(1_800.0)
    open_nodes = [name for name in held.allocation.nodes if fleet.view.tags()[name] is None]
    if open_nodes:
        raise Violation(f"nodes {', '.join(open_nodes)} are reserved, and have no tag")


def test_a_proxys_404_opens_no_node() -> None:
    """4.02."""
    assert run(1, drive=a_proxy_without_the_kind, actors=()).violation == ""


def test_fleet_finds_a_plugin_that_believes_any_404(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.02."""
    believes_any_404(monkeypatch)
    found = run(1, drive=a_proxy_without_the_kind, actors=()).violation
    assert re.search("are reserved, and have no tag|is not Degraded", found), found


class LateReservations(Delays):
    """Only writes of reservations are answered late; they are carried out at once."""

    def of(self, path: str) -> tuple[float, float]:
        return (0.0, self.longest_s) if "/neuronultraservers/" in path and path.endswith("/status") else (0.0, 0.0)


async def a_job_that_ends_while_its_reservation_is_written(fleet: Fleet, steps: int) -> None:
    """No watch and no answer shows the reservation before another workload asks for the limit of the namespace."""
    await Schedule(fleet).begin()
    await fleet.patch(NAMESPACES, "", USERS, {"metadata": {"annotations": {LIMIT: "4"}}})
    fleet.safety.limited(USERS, 4)
    await fleet.sleep(5.0)
    for replica in fleet.replicas:
        if replica.line is not None:
            replica.line.delays = LateReservations("", 8.0)
            replica.line.silence("neuronultraservers")
    await fleet.submit("ends", 4, 1)
    await fleet.sleep(4.0)
    [ultraserver] = {held.ultraserver for held in fleet.view.held()}
    for node in fleet.nodes.values():
        if object_name(node.block) == ultraserver:  # the next one gets another UltraServer
            await fleet.patch(NODES, "", node.name, {"spec": {"unschedulable": True}})
    await fleet.admin.delete(NEURON_WORKLOADS, USERS, "ends")
    await fleet.submit("next", 4, 1)
    await fleet.sleep(60.0)


def test_reservation_that_may_be_stored_counts_against_the_limit() -> None:
    """4.05."""
    assert run(1, drive=a_job_that_ends_while_its_reservation_is_written, actors=()).violation == ""


def test_fleet_finds_a_controller_that_forgets_what_it_is_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.05."""
    forgets_what_it_is_writing(monkeypatch)
    found = run(1, drive=a_job_that_ends_while_its_reservation_is_written, actors=()).violation
    assert re.search("reserved nodes of namespace", found), found
