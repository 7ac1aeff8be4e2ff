"""What a decision about one workload reads, and what it returns. Pure values.

`View` is frozen. A decision that changes reservations on its way goes on with another view (`View.having`); its end is
a `Step`, which the plan's `Ledger` follows.
"""

from __future__ import annotations

import datetime
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from neuron_dra.core.qualification import Target
from neuron_dra.core.ultraserver import GROUPS_AT_MOST, NAME_LENGTH, Allocation, Phase, UnreadAllocation
from neuron_dra.planner.decisions import objects
from neuron_dra.planner.decisions.actions import Action, Verdict, WriteWorkloadStatus
from neuron_dra.planner.decisions.reasons import Reason
from neuron_dra.planner.decisions.states import State
from neuron_dra.planner.fleet import places, suitable
from neuron_dra.planner.fleet.free_slots import FreeSlots
from neuron_dra.planner.fleet.held import Held
from neuron_dra.planner.fleet.holdings import Draft, Holdings
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.fleet.placement import KINDS, Shortage, Slot, most_of_a_kind
from neuron_dra.planner.fleet.places import Overlay, Places, everywhere
from neuron_dra.planner.fleet.quota import Quota
from neuron_dra.planner.fleet.sight import Sight
from neuron_dra.planner.observed.model import (
    SLOT_SIZES,
    Admission,
    Meeting,
    Pods,
    Reservation,
    Starting,
    Template,
    Turn,
    Workload,
    shortened,
)

TurnKey = tuple[str, str]
"""Instance type and namespace."""
Reads = tuple[object, ...] | None
"""The cache key of a decision: every input except the time. None if the decision must not be cached."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a failureStrategy does; `strategies` has the table.

    - `name`: as in the spec.
    - `acts`: it acts on faults; otherwise it only reports them.
    - `on_every_fault`: also on faults that may concern every node at once.
    - `replaces`: it reserves other nodes for a slot with a fault, then drains the slot.
    - `instead`: returns a step in place of allocation if there are slots on which it acts; None if it has to wait.
    - `outlook`: what it waits for once a fault lasts too long: a reason, empty unless it outranks the faults, and a
      message.
    """

    name: str
    acts: bool = False
    on_every_fault: bool = True
    replaces: bool = False
    instead: Callable[[View], Step | None] = lambda view: None
    outlook: Callable[[View, list[Reservation]], tuple[str, str]] = lambda view, bound: ("", "")


@dataclass(frozen=True, slots=True)
class View:
    """One workload, and what the decision about it depends on.

    - `held`, `stored`: its reservations at this point of the decision, and as they are stored.
    - `sight`: what nodes and claims show; it notes times and pods that would change the decision.
    - `template`, `templates`: the ResourceClaimTemplate with the name in its spec, and those that it controls.
    - `rival`: the workload that gets the template's name, if it is not this one.
    - `entries`: reservations that cannot be read, by UltraServer; `withheld`: its nodes that publish nothing.
    - `unrestored`: why its reservations could not be restored.
    - `starving`: the workload of its type that goes first, if an earlier decision found one.
    - `turns`: since when namespaces hold others back.
    - `takes_spares`: the groups that it asks for replace others, so spares count as free.
    """

    workload: Workload
    strategy: Strategy
    held: Held
    stored: Held
    sight: Sight
    template: Template | None
    templates: Sequence[Template]
    rival: Workload | None
    entries: Mapping[str, Sequence[UnreadAllocation]]
    withheld: Sequence[str]
    unrestored: Exception | None
    starving: Workload | None
    turns: Mapping[TurnKey, Turn]
    holdings: Holdings
    free_slots: FreeSlots
    quota: Quota
    takes_spares: bool = False

    @property
    def now(self) -> datetime.datetime:
        """The time of the plan."""
        return self.sight.now

    @property
    def limits(self) -> Limits:
        """The limits of the plan."""
        return self.sight.limits

    @property
    def admission(self) -> Admission | None:
        """What a queue of Kueue allows the workload: the gate of `controller.queue`. None without a queue."""
        return self.sight.known.admissions.get(self.workload.uid)

    def reads(self) -> Reads:
        """Return what the decision depends on, if it may be kept for later plans.

        Most workloads of a fleet are Allocated and healthy, or wait for nodes. Deciding about each of them in every
        plan again costs more than the change that caused the plan. It is made again in an outage, and while
        reservations are unreadable, not seen, or changed earlier in this plan.
        """
        workload, sight, index = self.workload, self.sight, self.sight.index
        if workload.deleting or workload.problem or self.unrestored is not None or sight.outage is not None:
            return None
        if self.entries or self.withheld or self.holdings.has_changed(workload.uid):
            return None
        inputs: list[object] = [
            workload,
            sight.limits,
            index.workload_class,
            sight.known.unkept,
            sight.known.without_services,
            sight.known.unschedulable.get(workload.uid),
            self.admission,
            self._ends_passed(),
            self.rival,
            self.template,
            *self.templates,
        ]
        if not self.held:
            queue_inputs = self._queue_inputs()
            return None if queue_inputs is None else (*inputs, *queue_inputs)
        return (*inputs, *self._reservation_inputs())

    def _reservation_inputs(self) -> Iterator[object]:
        """Yield the inputs that its reservations add: what is stored, and the nodes with their slices and claims."""
        index = self.sight.index
        for reservation in self.held:
            group = index.group_by_name.get(reservation.ultraserver)
            ultraserver = index.ultraserver_by_name.get(reservation.ultraserver)
            yield reservation
            yield group and group.instance_type
            yield ultraserver and ultraserver.uid
            for node_name in reservation.allocation.nodes:
                yield index.node_by_name.get(node_name)
                yield index.published_by_name.get(node_name)
                yield index.uses(node_name)

    def _queue_inputs(self) -> Reads:
        """Return the inputs that a workload without a reservation adds.

        None if this plan has changed reservations of others, which may be what it waits for.
        """
        workload, sight, index = self.workload, self.sight, self.sight.index
        if self.holdings.version:
            return None
        keys = [
            (waiting.instance_type, waiting.namespace) for waiting in (workload, self.starving) if waiting is not None
        ]
        return (
            index.slot_index.changes(workload.instance_type),
            sight.known.unwritable,
            sight.known.priorities.get(workload.priority_class),
            sight.known.room.get(workload.uid),
            self.starving,
            *(self.turns.get(turn_key) for turn_key in keys),
            None if index.namespaces is None else index.namespaces.get(workload.namespace, False),
            self.holdings.nodes_of_namespace(workload.namespace),
        )

    def may_keep(self, step: Step) -> bool:
        """Return True if later plans may take a step as it is, while what it depends on is the same."""
        if step.held != self.held or step.verdict is None or step.turn is not None:
            return False
        if self.sight.shared or self.sight.to_read:
            return False
        if not self.held:
            # The write of its status may be put off, so it is kept with the decision.
            only_says_so = all(isinstance(action, WriteWorkloadStatus) for action in step.actions)
            return step.verdict.state == State.PENDING and only_says_so and step.error is None
        return step.verdict.is_healthy and not (step.actions or step.starving or self.sight.recheck)

    def _ends_passed(self) -> int:
        """Return how many of the times at which the condition EndsSoon changes have passed."""
        nodes = (self.sight.node(node_name) for reservation in self.held for node_name in reservation.allocation.nodes)
        ends = {node.block_end for node in nodes if node is not None and node.block_end is not None}
        return sum(end - self.limits.told_before_end <= self.now for end in ends)

    def having(self, reservations: Held) -> View:
        """Return the view with other reservations of the workload."""
        return self if reservations is self.held else replace(self, held=reservations)

    # What it has, and what is wrong with it

    @property
    def problem(self) -> tuple[str, str] | None:
        """What a user must correct before anything is reserved, as a reason and a message; None if nothing."""
        workload, template = self.workload, self.template
        if workload.size not in SLOT_SIZES or not 1 <= workload.count <= GROUPS_AT_MOST:
            return Reason.INVALID_SPEC, (
                f"spec.topologySize is {workload.size}, spec.serverCount {workload.count}: write 1, 2 or 4 nodes for "
                f"each group, and 1 to {GROUPS_AT_MOST} groups; the CRD of this release rejects other values, so "
                "upgrade the CRD, too"
            )
        characters = len(workload.name)
        if characters > NAME_LENGTH:
            return Reason.NAME_TOO_LONG, (
                f"metadata.name has {characters} characters, and the workloadId of devices at most {NAME_LENGTH}: "
                "delete this workload and create it with a shorter name"
            )
        template_ref = f"{workload.namespace}/{workload.template_name}"
        advice = "delete this workload and create it with another spec.resourceClaimTemplate.name"
        if self.rival is not None:
            return (
                Reason.TEMPLATE_NAME_TAKEN,
                f"ResourceClaimTemplate {template_ref} belongs to workload {self.rival.ref}: {advice}",
            )
        if template is not None and not template.is_of(workload):
            text = f"ResourceClaimTemplate {template_ref} exists and has another owner: delete it, or {advice}"
            return Reason.TEMPLATE_NAME_TAKEN, text
        return None

    @property
    def unreadable(self) -> str:
        """Where the workload has unreadable reservations, as a message; empty if nowhere.

        Until they are gone it gets no others, because its groups would have the same indices.
        """
        where = [
            ultraserver_name
            for ultraserver_name, entries in sorted(self.entries.items())
            for unread_entry in entries
            if isinstance(unread_entry.entry, Mapping) and unread_entry.entry.get("workloadRef") == self.workload.ref
        ]
        if not where:
            return ""
        return (
            f"NeuronUltraServers {shortened(where)} have reservations of this workload that this release cannot read: "
            "nothing is reserved or released until the release that wrote them runs again, or until they are removed "
            "from status.allocations"
        )

    @property
    def has_run(self) -> bool:
        """True if pods of the workload may run in a group, or in the one that a Pending group replaces."""
        return bool(self.held.bound or (self.held.pending and self.workload.status.get("allocatedAt")))

    @property
    def was_restarted(self) -> bool:
        """True if RestartAll has released all groups of the workload, which has to get them again."""
        return bool(self.workload.status.get("restartedAt")) and not self.held.live()

    @property
    def has_template(self) -> bool:
        """True if the workload's template exists and is for groups of the size in its spec."""
        template = self.template
        is_own = template is not None and template.is_of(self.workload) and not template.deleting
        return template is not None and is_own and template.size in (None, self.workload.size)

    @property
    def template_kind(self) -> str:
        """The resourceType that the workload's template requests, neuron_node or neuron_device; empty if unknown."""
        kinds = {template.kind for template in self.templates if not template.deleting} - {""}
        return kinds.pop() if len(kinds) == 1 else ""

    @property
    def kind(self) -> str | None:
        """The resourceType that the workload's nodes must publish: its template's, else that of nodes it has."""
        if self.template_kind:
            return self.template_kind
        live = self.held.live().values()
        node_names = [node_name for reservation in live for node_name in reservation.allocation.nodes]
        kinds = {self.sight.kind(node_name) for node_name in node_names} - {None}
        return min(kinds, default=None, key=str)

    @property
    def own_templates(self) -> list[Template]:
        """The workload's templates, whatever their name; they exist until their deletion is complete."""
        named = [] if self.template is None else [self.template]
        return [template for template in dict.fromkeys((*self.templates, *named)) if template.is_of(self.workload)]

    @property
    def is_used(self) -> bool:
        """True if claims of the workload are allocated on its nodes."""
        return any(self.sight.own_uses(reservation.allocation) for reservation in self.held)

    @property
    def has_expired(self) -> bool:
        """True if the reservation has expired; not if pods came in the moment before its release."""
        return self.workload.expired and not (self.held.bound and self.is_used)

    def pods(self) -> Pods:
        """Return the pods of the workload that have claims on its nodes."""
        uses = (use for reservation in self.held for use in self.sight.own_uses(reservation.allocation))
        return tuple(dict.fromkeys(pod for use in uses for pod in use.pods))

    def leaving(self) -> list[Reservation]:
        """Return the Draining reservations on which pods of the workload may still run."""
        return [reservation for reservation in self.held.draining if self.sight.may_run(reservation)]

    def reserving(self, indices: Sequence[int], slots: Sequence[Slot]) -> View:
        """Return the view with a new Pending reservation of each slot, under these indices."""
        pending = (self._reservation(index, slot) for index, slot in zip(indices, slots, strict=True))
        return self.having(self.held.add(*pending))

    def _reservation(self, group_index: int, slot: Slot) -> Reservation:
        """Return a Pending reservation.

        The allocationId contains the object's resourceVersion, which guards the write: no two written reservations can
        have the same id, and planning twice gives the same one.
        """
        workload, index = self.workload, self.sight.index
        stored = index.ultraserver_by_name[slot.ultraserver]
        id_parts = (stored.uid, stored.version, workload.uid, str(group_index), *slot.nodes)
        allocation = Allocation(
            workload_namespace=workload.namespace,
            workload_name=workload.name,
            workload_uid=workload.uid,
            allocation_id=hashlib.sha256("\n".join(id_parts).encode(errors="surrogatepass")).hexdigest()[:16],
            phase=Phase.PENDING,
            nodes=slot.nodes,
            node_count=len(slot.nodes),
            ultraserver_index=group_index,
            allocated_at=objects.time(self.now),
            node_uids=tuple(index.node_by_name[node_name].uid for node_name in slot.nodes),
        )
        return Reservation(slot.ultraserver, allocation)

    def near(self, live: Mapping[int, Reservation]) -> tuple[Slot, ...]:
        """Return the slots of reservations, to choose others near them in the network."""
        return self.slots_of({node_name for reservation in live.values() for node_name in reservation.allocation.nodes})

    # Free slots

    def replacing(self) -> View:
        """Return the view of one that asks for groups in place of others."""
        return self if self.takes_spares else replace(self, takes_spares=True)

    def free(self) -> Overlay:
        """Return the free slots of the workload's type and size that it may take."""
        find_free = self.free_slots.free if self.takes_spares else self.free_slots.beside_spares
        return find_free(self.workload.instance_type, self.workload.size, self._draft())

    def choose(self, count: int, near: Sequence[Slot]) -> tuple[Slot, ...] | None:
        """Return `count` free slots that suit the workload, close to `near`; None without enough."""
        target = self.workload.target
        if target is not None:
            return self._target(target, count)
        chosen = places.choose(self.free(), count, kind=self.kind, near=near)
        if chosen is None or all(map(self.suits, chosen)):
            return chosen
        suitable_slots = self._free_that(self.suits)
        if most_of_a_kind(Counter(slot.kind for slot in suitable_slots)) < count:
            return None
        suitable_places = Places()
        for slot in suitable_slots:
            suitable_places.add(slot)
        return places.choose(Overlay(suitable_places), count, kind=self.kind, near=near)

    def _target(self, target: Target, count: int) -> tuple[Slot, ...] | None:
        """Return the slot that a test must get, if it is free and is not taken back soon."""
        workload = self.workload
        free = self.free_slots.at(target.ultraserver, workload.instance_type, workload.size, self._draft())
        targets = tuple(slot for slot in free if suitable.is_target(workload, slot) and self.lasts(slot))
        return targets if len(targets) == count else None

    def suits(self, slot: Slot) -> bool:
        """Return True if the workload may get a free slot."""
        return self.lasts(slot) and suitable.is_qualified(self.workload, slot, self.now)

    def lasts(self, slot: Slot) -> bool:
        """Return True if a slot's capacity block does not end before the workload, as far as both are known."""
        return suitable.lasts(self.workload, slot, self.now, self.limits.block_lead)

    @property
    def needed_until(self) -> datetime.datetime:
        """When the workload ends, by its spec.expectedDuration; now without one."""
        return suitable.needed_until(self.workload, self.now)

    def _free_that(self, test: Callable[[Slot], bool]) -> list[Slot]:
        free = self.free()
        return [slot for kind in KINDS for slot in free.best(everywhere(kind)) if test(slot)]

    def shortage(self, count: int) -> Shortage:
        """Return why `count` more slots are not available."""
        target = self.workload.target
        if target is not None:
            text = f"the group of {target.ultraserver} that it tests is not free, or its capacity block ends soon"
            return Shortage(Reason.INSUFFICIENT_CAPACITY, text)
        free_count = most_of_a_kind(self.free().of_a_kind())
        if free_count >= count:
            lasting_slots = self._free_that(self.lasts)
            lasting_count = most_of_a_kind(Counter(slot.kind for slot in lasting_slots))
            if lasting_count < count:
                return self._too_short(count, free_count, lasting_count)
            qualified_kinds = (
                slot.kind for slot in lasting_slots if suitable.is_qualified(self.workload, slot, self.now)
            )
            qualified = most_of_a_kind(Counter(qualified_kinds))
            if qualified < count:
                return self._not_qualified(count, free_count, qualified)
        return self.free_slots.shortage(self.workload, count, self._draft(), takes_spares=self.takes_spares)

    def _not_qualified(self, count: int, free_count: int, qualified: int) -> Shortage:
        workload = self.workload
        hours = workload.qualified_within.total_seconds() / 3600
        requirement = (
            f"a test passed in the last {hours:.4g} h (spec.qualification.maxAge)" if hours else "no test failed twice"
        )
        text = (
            f"needs {count} x {workload.size} {workload.instance_type} nodes; {free_count} of these groups are free, "
            f"and on {qualified} of them {requirement}"
        )
        return Shortage(Reason.NOT_QUALIFIED, text)

    def _too_short(self, count: int, free_count: int, lasting: int) -> Shortage:
        workload = self.workload
        # No time of the day, which would be another one in each plan.
        hours = workload.expected.total_seconds() / 3600
        how_long = f" for {hours:.4g} h (spec.expectedDuration)" if workload.expected else ""
        minutes = int(self.limits.block_lead.total_seconds() // 60)
        text = (
            f"needs {count} x {workload.size} {workload.instance_type} nodes{how_long}; {free_count} of these groups "
            f"are free, and {lasting} of them in capacity blocks that last so long: EC2 takes instances back up to "
            f"{minutes} min before the end of their block"
        )
        return Shortage(Reason.BLOCK_ENDS_TOO_SOON, text)

    def slots_of(self, nodes: set[str]) -> tuple[Slot, ...]:
        """Return the slots that nodes form, reserved or not."""
        return self.free_slots.of_nodes(nodes, self.workload.instance_type, self.workload.size)

    def refusal(self, indices: Sequence[int]) -> Shortage | None:
        """Return why the workload's queue or its namespace may not have nodes for these indices; None if both may."""
        queued = self.admission
        if queued is not None and max(indices) >= queued.groups:
            return Shortage(queued.reason, queued.message)
        return self.quota.refusal(self.workload, indices, self.held)

    def _draft(self) -> Draft | None:
        return self.holdings.draft(self.workload.uid, self.held)


@dataclass(frozen=True, slots=True)
class Step:
    """The decision about one workload.

    - `verdict`: its state; None if nothing of it is left.
    - `held`: its reservations from now on.
    - `actions`: the writes besides those of reservations, in no order.
    - `withdrawn`: a restart that was decided earlier is withdrawn.
    - `starving`: it holds back others of its type.
    - `turn`: the namespace that holds it back, by type, and since when.
    - `starting`, `meeting`: what to read of its pods, and its pod with rank 0.
    - `error`: why no decision could be made.
    """

    verdict: Verdict | None
    held: Held
    actions: tuple[Action, ...] = ()
    withdrawn: bool = False
    starving: bool = False
    turn: tuple[TurnKey, Turn] | None = None
    starting: Starting | None = None
    meeting: Meeting | None = None
    error: Exception | None = None

    def doing(self, *actions: Action) -> Step:
        """Return the step with more writes."""
        return replace(self, actions=(*self.actions, *actions)) if actions else self

    def seeing(self, starting: Starting | None, meeting: Meeting | None) -> Step:
        """Return the step with what to read of the workload's pods, and its pod with rank 0."""
        return self if starting is None and meeting is None else replace(self, starting=starting, meeting=meeting)


def join_texts(*texts: str) -> str:
    """Return the texts that are not empty, joined with semicolons."""
    return "; ".join(text for text in texts if text)
