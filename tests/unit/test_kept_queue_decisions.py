"""Decisions about queues cost what changed, and are those that a look at everything would find (30, net 3)."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from controller.apply.fence import unelected
from controller.apply.requests import Applier
from controller.observe.caches import Caches
from controller.queue.model import KueueWorkload, name_for
from controller.queue.queues import Queues, _held
from controller.queue.watches import QueueWatch
from controller.timing import DEFAULT_TIMING, QueueTiming
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.objects import Damaged
from neuron_dra.kube.reflector import Reflector
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import API_VERSION, JOBS_LABEL, JOBS_QUEUED, Workload
from tests.support.decide_all import WholeQueueView, admissions
from tests.support.decide_all import decide_queues as decide
from tests.unit.test_plan_costs import lines
from tests.unit.test_queue_decide import ADMISSION, ADMITTED, GIVEN_BACK, NOW, READY, RECORD, kueue_item, workload_item

NAMES = ("a", "b")
CONDITIONS: tuple[Any, ...] = (
    (),
    ADMITTED,
    (*ADMITTED, READY),
    GIVEN_BACK,
    (*ADMITTED, ("Evicted", True, "Preempted")),
)
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "name": st.sampled_from(NAMES),
    "queue": st.sampled_from(["team", "team", "team", "other", ""]),
    "state": st.sampled_from(["Pending", "Pending", "Allocated"]),
    "record": st.sampled_from([RECORD, RECORD, None]),
    "priority": st.sampled_from(["", "high"]),
    "deleting": st.sampled_from([False, False, False, False, True]),
}


class Followed:
    """Queues of a controller whose objects are put in by hand."""

    def __init__(self) -> None:
        client = KubeClient(KubeConfig("none:"))
        self.now = NOW
        self.caches = Caches(client, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        events = EventRecorder(client, "here")
        self.applier = Applier(client, self.caches, events, DEFAULT_TIMING, unelected())
        self.watch = QueueWatch(client, lambda: None, QueueTiming())
        self.watch._reflector.synced.set()
        self.queues = Queues(client, self.caches, self.applier, self.watch, events, QueueTiming())
        self._version = 0

    def store(self, reflector: Reflector, item: Obj) -> Obj:
        """Put an object in, with another version."""
        self._version += 1
        stored = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        reflector.remember(stored)
        return stored

    def workload(self, name: str, uid: str = "", **options: Any) -> Obj:
        return self.store(self.caches.workloads, workload_item(name=name, uid=uid or f"{name}{name * 8}", **options))

    def follow(self) -> None:
        self.queues._follow(self.caches.index(), self.now)

    def admit(self) -> None:
        self.queues.admissions(self.caches.index(), self.now)

    def whole(self) -> WholeQueueView:
        """Return the view as a look at everything finds it."""
        index = self.caches.index()
        by_owner: dict[str, dict[str, KueueWorkload]] = {}
        for item in self.watch._reflector.items.values():
            by_owner.setdefault(item["value"].owner.uid, {})[item["value"].ref] = item["value"]
        namespaces = [item["value"] for item in self.caches.namespaces.items.values()]
        return WholeQueueView(
            workloads=index.workloads,
            kueue=by_owner,
            unknown=self.watch.unknown,
            held=lambda uid, of: _held(index, uid, of, is_uncertain=uid in self.queues._uncertain),
            required={each.name for each in namespaces if each.jobs == JOBS_QUEUED},
            unsettled=self.queues._unsettled,
            priorities=self.applier.priorities.found,
            timing=QueueTiming(),
            now=self.now,
            unreadable={each.uid for each in index.workloads if kueue_name(each) in self.watch.unreadable},
            unread=self.caches.unread_workloads(),
            uncertain=self.queues._uncertain,
        )


def kueue_name(workload: Workload) -> str:
    return f"{workload.namespace}/{name_for(workload)}"


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.there = Followed()

    @rule(options=st.fixed_dictionaries(DRAWN))
    def put_workload(self, options: dict[str, Any]) -> None:
        self.there.workload(**options)

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def write_reservations(self, names: set[str]) -> None:
        uids = frozenset(f"{name}{name * 8}" for name in names)
        self.there.queues.leave_to_the_plan(frozenset(), frozenset(), uids)

    @rule(name=st.sampled_from(NAMES))
    def remove_workload(self, name: str) -> None:
        item = self.there.caches.workloads.items.get(f"ml/{name}")
        if item is not None:
            self.there.caches.workloads.forget(item)

    @rule(name=st.sampled_from(NAMES), conditions=st.sampled_from(CONDITIONS), since_s=st.sampled_from([0, 100]))
    def put_kueue(self, name: str, conditions: Any, since_s: int) -> None:
        of = workload_item(name=name, uid=f"{name}{name * 8}")
        item = kueue_item(*conditions, since_s=since_s, of=of, admission=ADMISSION)
        self.there.store(self.there.watch._reflector, item)

    @rule(name=st.sampled_from(NAMES))
    def remove_kueue(self, name: str) -> None:
        reflector = self.there.watch._reflector
        for item in [each for key, each in reflector.items.items() if key.startswith(f"ml/ultraservers-{name}-")]:
            reflector.forget(item)

    @rule(names=st.sets(st.sampled_from(NAMES)), phase=st.sampled_from(["Pending", "Bound", "Draining"]))
    def reserve(self, names: Collection[str], phase: str) -> None:
        self.there.store(self.there.caches.ultraservers, ultraserver(names, phase))

    @rule(queued=st.booleans())
    def label_namespace(self, queued: bool) -> None:
        labels = {JOBS_LABEL: JOBS_QUEUED} if queued else {}
        item = {"metadata": {"name": "ml", "uid": "ml", "labels": labels}}
        self.there.store(self.there.caches.namespaces, item)

    @rule(value=st.sampled_from([None, 1, 2]))
    def change_class(self, value: int | None) -> None:
        self.there.applier.priorities.found = {} if value is None else {"high": value}

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def doubt(self, names: Collection[str]) -> None:
        self.there.queues._unsettled = {f"{name}{name * 8}" for name in names}

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def damage_workloads(self, names: Collection[str]) -> None:
        self.there.caches.workloads.damaged = {f"ml/{name}": damaged(name) for name in names}

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def damage_kueue(self, names: Collection[str]) -> None:
        found = [each for each in self.there.caches.index().workloads if each.name in names]
        self.there.watch._reflector.damaged = {kueue_name(each): damaged(name_for(each)) for each in found}

    @rule()
    def lose_kueue(self) -> None:
        synced = self.there.watch._reflector.synced
        (synced.clear if synced.is_set() else synced.set)()

    @rule(seconds=st.sampled_from([1, 300]))
    def wait(self, seconds: int) -> None:
        self.there.now += datetime.timedelta(seconds=seconds)

    @invariant()
    def kept_decisions_are_those_of_a_look_at_everything(self) -> None:
        self.there.follow()
        kept, view = self.there.queues._kept, self.there.whole()
        found = decide(view)
        assert kept.admissions == admissions(view)
        assert kept.writes == found.writes
        assert kept.next_moment() == min(found.moments, default=None)
        notes = [note for uid in sorted(kept.workloads) for note in kept.of(uid).notes]
        assert sorted(notes, key=str) == sorted(found.notes, key=str)


def damaged(name: str) -> Damaged:
    return Damaged("ml", name, why="not UTF-8")


def ultraserver(names: Collection[str], phase: str) -> Obj:
    """Return an UltraServer in which each of these workloads has two nodes."""
    allocations = []
    for number, name in enumerate(sorted(names)):
        nodes = tuple(f"u0-{2 * number + n}" for n in range(2))
        one = Allocation("ml", name, f"{name}{name * 8}", f"id-{number}", Phase(phase), nodes, 2, 0)
        allocations.append(one.to_wire())
    meta = {"name": "us-u0", "namespace": NAMESPACE, "uid": "u"}
    return {"apiVersion": API_VERSION, "metadata": meta, "spec": {}, "status": {"allocations": allocations}}


def test_kept_decisions_are_those_of_a_look_at_everything() -> None:
    limits = settings(max_examples=100, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(Changes, settings=limits)


def waiting(number: int) -> Followed:
    """Return queues with so many workloads that wait for quota, decided once."""
    there = Followed()
    for each in range(number):
        uid = f"{each:08x}-uid"
        item = workload_item(name=f"w{each}", uid=uid)
        there.store(there.caches.workloads, item)
        there.store(there.watch._reflector, kueue_item(of=item))
    there.follow()
    return there


def test_a_pass_costs_what_changed_however_many_wait() -> None:
    costs = []
    for number in (20, 2_000):
        there = waiting(number)
        there.caches.index()
        nothing = lines(there.admit)
        there.store(there.watch._reflector, kueue_item(*ADMITTED, of=workload_item(name="w7", uid="00000007-uid")))
        costs.append((nothing, lines(there.admit)))
    assert costs[1] == costs[0]
    assert max(costs[0]) < 400


async def test_a_burst_is_decided_once() -> None:
    """2,000 want to be created in Kueue, and no request is answered."""
    there = Followed()
    for each in range(2_000):
        there.workload(f"w{each}", f"{each:08x}-uid", record=None)
    index = there.caches.index()
    there.queues.look(index, NOW)

    def look() -> None:
        there.queues.look(there.caches.index(), NOW)

    assert len(there.queues._writes._wished) == 2_000
    assert lines(look) < 400
