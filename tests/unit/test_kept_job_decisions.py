"""Decisions about jobs cost what changed, and are those that a look at everything would find (30, net 3)."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from controller.apply.fence import Fence
from controller.apply.leader import Alone
from controller.apply.requests import Applier
from controller.jobs.decide import CreateWorkload, Write
from controller.jobs.guard import POLICY
from controller.jobs.reservations import AT_ONCE, JobReservations, _in_use
from controller.jobs.watches import JobWatches
from controller.observe.caches import Caches
from controller.timing import DEFAULT_TIMING, JobTiming
from neuron_dra.core.job_wish import QUEUE_ANNOTATION
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase
from neuron_dra.core.wire import Obj
from neuron_dra.errors import Unavailable
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.objects import Damaged
from neuron_dra.kube.reflector import Reflector
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import (
    API_VERSION,
    JOBS_LABEL,
    LIMIT_ANNOTATION,
    MADE_FOR,
    ClaimUse,
    Template,
    Workload,
)
from tests.support.decide_all import WholeJobView
from tests.support.decide_all import decide_jobs as decide
from tests.support.sent_events import send_events
from tests.unit.test_jobs_decide import item, pods
from tests.unit.test_plan_costs import counted
from tests.unit.test_queue_decide import NOW


class Server(KubeClient):
    """Has the policy that guards the label, and stores what it gets. `made` are the workloads, `told` the Events."""

    def __init__(self) -> None:
        super().__init__(KubeConfig("none:"))
        self.made: list[Obj] = []
        self.told: list[Obj] = []
        self.broken = False

    async def _send(self, method: str, path: str, params: Any, body: Any, *_: object) -> bytes:
        if method == "GET":
            found = {"policyName": POLICY, "validationActions": ["Deny"]}
            return msgspec.json.encode({"metadata": {"name": POLICY}, "spec": found, "items": []})
        if path.endswith("/events"):
            self.told.append(body)
            return msgspec.json.encode(body)
        if self.broken:
            raise Unavailable("no answer")
        self.made.append(body)
        meta = {**body["metadata"], "uid": f"made-{len(self.made)}", "resourceVersion": str(100_000 + len(self.made))}
        return msgspec.json.encode({**body, "metadata": meta})


class Followed:
    """Reservations for jobs of a controller whose objects are put in by hand."""

    def __init__(self) -> None:
        self.server = Server()
        self.now = NOW
        self.caches = Caches(self.server, lambda: None, FleetIndex(), DEFAULT_TIMING.caches)
        self.events = events = EventRecorder(self.server, "here")
        self.leadership = Alone()
        fence = Fence(self.leadership)
        fence.enter(self.leadership.term)
        self.applier = Applier(self.server, self.caches, events, DEFAULT_TIMING, fence)
        self.watches = JobWatches(self.server, lambda: None, JobTiming())
        for each in self.watches.reflectors.values():
            each.synced.set()
        program = self.server, self.caches, self.applier, self.watches, events, JobTiming()
        self.jobs = JobReservations(*program, None, queues=True)
        self.jobs._watched._term = self.applier.fence.term
        self._version = 0

    def store(self, reflector: Reflector, stored: Obj) -> None:
        """Put an object in, with another version."""
        self._version += 1
        reflector.remember({**stored, "metadata": {**stored["metadata"], "resourceVersion": str(self._version)}})

    def namespace(self, name: str, limit: str = "9999") -> None:
        meta: Obj = {"name": name, "uid": name, "labels": {JOBS_LABEL: "true"}}
        self.store(self.caches.namespaces, {"metadata": {**meta, "annotations": {LIMIT_ANNOTATION: limit}}})

    def job(self, name: str, template: str = "", namespace: str = "ml", **options: Any) -> None:
        made = item({"parallelism": 4, "template": pods(template or f"rct-{name}")}, name=name, **options)
        made["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}-{name}"}
        self.store(self.watches._by_kind["Job"], made)

    async def look(self) -> int:
        """Look once, and send what is due; return how many lines of the controller the look takes."""
        index = self.caches.index()
        with counted() as found:
            await self.jobs.look(index, self.now)
        await self.applier.sender.send_all()
        return found[0]

    async def settle(self, steps: int) -> list[int]:
        """Look so many times, with time between; return what each look costs."""
        costs = []
        for _ in range(steps):
            costs.append(await self.look())
            await send_events(self.events)
            self.now += datetime.timedelta(seconds=0.05)
        return costs

    def drain(self, at_once: int) -> None:
        """Decide what has to be, so many at once."""
        index = self.caches.index()
        self.jobs._follow(index)
        kept = self.jobs._kept
        kept.follow(self.jobs._view(index), at_once)
        while kept.undecided:
            kept.follow(self.jobs._view(index), at_once)

    def whole(self) -> WholeJobView:
        """Return the view as a look at everything finds it."""
        index = self.caches.index()
        namespaces = {each["value"].name: each["value"] for each in self.caches.namespaces.items.values()}
        listed = [each for each in self.watches.reflectors.values() if each.synced.is_set()]
        return WholeJobView(
            jobs=[each["value"] for reflector in listed for each in reflector.items.values()],
            kinds=self.watches.kinds,
            workloads=[each["value"] for each in self.caches.workloads.items.values()],
            templates=index.template_by_key,
            namespaces=None if index.namespaces is None else namespaces,
            default_limit=self.jobs._default_limit,
            unguarded=self.jobs._guard.problem,
            in_use=lambda workload: _in_use(index, workload),
            queues=self.jobs._queues,
            unkept=self.applier.schemas.unkept,
            unread_jobs=self.watches.unreadable,
            unread_workloads=self.caches.unread_workloads(),
        )


NAMES, NAMESPACES, TEMPLATES = ("a", "b"), ("ml", "other"), ("rct-1", "rct-2")
PODS: tuple[Any, ...] = (*[pods("rct-1")] * 4, pods("rct-2"), pods(*TEMPLATES), pods("rct-1", kind=""))
KEYS = {
    "namespace": st.sampled_from([*["ml"] * 8, "other"]),
    "name": st.sampled_from(NAMES),
    "uid": st.sampled_from([*["1"] * 5, "2"]),
}
FACTS: dict[str, st.SearchStrategy[Any]] = {
    "problem": st.sampled_from(["", "", "", "no policy"]),
    "unkept": st.sampled_from([(), (), ("spec.priorityClassName",)]),
    "queues": st.booleans(),
    "default": st.sampled_from([None, 8]),
    "listed": st.sampled_from([True, True, False]),
    "namespace": st.sampled_from(NAMESPACES),
    "label": st.sampled_from([*["true"] * 4, "queue", "", None]),
    "limit": st.sampled_from(["9", "9", "9", "x", ""]),
}
JOBS: dict[str, st.SearchStrategy[Any]] = {
    **KEYS,
    "kind": st.sampled_from([*["Job"] * 4, "StatefulSet"]),
    "text": st.sampled_from(
        [*["topologySize=4"] * 4, "topologySize=4,priorityClassName=high", "topologySize=4,template=rct-2", "x"]
    ),
    "count": st.sampled_from([4, 4, 4, 8, 6, 0]),
    "template": st.sampled_from(PODS),
    "suspend": st.sampled_from([*[False] * 5, True]),
    "queue": st.sampled_from([*[""] * 5, "team"]),
}
WORKLOADS: dict[str, st.SearchStrategy[Any]] = {
    **KEYS,
    "template": st.sampled_from(["rct-1", *TEMPLATES]),
    "mark": st.sampled_from([*["Job/{}/1"] * 5, "StatefulSet/{}/1", "Job/a/1", "Odd/{}/1", ""]),
    "count": st.sampled_from([1, 2]),
    "size": st.sampled_from([4, 4, 2]),
    "reason": st.sampled_from(["", "InsufficientCapacity"]),
    "deleting": st.sampled_from([*[False] * 7, True]),
    "nodes": st.sampled_from([(), ("u0-0",)]),
}


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.there = Followed()
        self.there.jobs._guard.problem = ""
        self.unchecked = 0
        for name in NAMESPACES:
            self.there.namespace(name)

    @rule(options=st.fixed_dictionaries(JOBS))
    def put_job(self, options: dict[str, Any]) -> None:
        spec = {"template": options["template"], "suspend": options["suspend"]}
        spec["parallelism" if options["kind"] == "Job" else "replicas"] = options["count"]
        made = item(spec, text=options["text"], name=options["name"])
        made["metadata"] |= {"namespace": options["namespace"], "uid": options["uid"]}
        if options["queue"]:
            made["metadata"]["annotations"][QUEUE_ANNOTATION] = options["queue"]
        self.there.store(self.there.watches._by_kind[options["kind"]], made)

    @rule(kind=st.sampled_from(["Job", "StatefulSet"]), number=st.integers(0, 2))
    def remove_job(self, kind: str, number: int) -> None:
        remove(self.there.watches._by_kind[kind], number)

    @rule(options=st.fixed_dictionaries(WORKLOADS))
    def put_workload(self, options: dict[str, Any]) -> None:
        name, namespace = options["name"], options["namespace"]
        meta: Obj = {"name": name, "namespace": namespace, "uid": f"w-{namespace}-{name}-{options['uid']}"}
        if options["mark"]:
            meta["annotations"] = {MADE_FOR: options["mark"].format(name)}
        if options["deleting"]:
            meta["deletionTimestamp"] = "2026-03-01T12:00:00Z"
        spec = {"instanceType": "trn3.48xlarge", "topologySize": options["size"], "serverCount": options["count"]}
        ready = {"type": "Ready", "status": "False", "reason": options["reason"], "message": "m"}
        group = {"ultraserverIndex": 0, "nodes": [*options["nodes"]], "ultraserver": "us-u0", "allocationId": "i"}
        status = {"conditions": [ready], "groups": [group] if options["nodes"] else []}
        stored = {"metadata": meta, "spec": {**spec, "resourceClaimTemplate": {"name": options["template"]}}}
        self.there.store(self.there.caches.workloads, {**stored, "status": status})

    @rule(number=st.integers(0, 2))
    def remove_workload(self, number: int) -> None:
        remove(self.there.caches.workloads, number)

    @rule(template=st.sampled_from(TEMPLATES), owner=st.sampled_from(["", "x", *["w-ml-a-1"] * 3]))
    def put_template(self, template: str, owner: str) -> None:
        kind = {"apiVersion": API_VERSION, "kind": "NeuronUltraServerWorkload"}
        owners = [{**kind, "name": "a", "uid": owner, "controller": True}] if owner else []
        meta = {"name": template, "namespace": "ml", "uid": f"t-{template}", "ownerReferences": owners}
        self.there.store(self.there.caches.templates, {"metadata": meta, "spec": {"spec": {}}})

    @rule(number=st.integers(0, 1))
    def remove_template(self, number: int) -> None:
        remove(self.there.caches.templates, number)

    @rule(workload=st.sampled_from(["a", "b"]), node=st.sampled_from(["u0-0", "u0-1"]))
    def use(self, workload: str, node: str) -> None:
        config = {"workloadId": workload}
        self.there.caches.index().put_claim(
            f"ml/{workload}", ClaimUse("ml", "claim", (node,), None, workload_id=config["workloadId"])
        )

    @rule(workload=st.sampled_from(["a", "b"]))
    def end_use(self, workload: str) -> None:
        self.there.caches.index().put_claim(f"ml/{workload}", None)

    @rule(names=st.sets(st.sampled_from(["a", "b"])))
    def reserve(self, names: Collection[str]) -> None:
        allocations = []
        for number, name in enumerate(sorted(names)):
            one = Allocation("ml", name, f"w-ml-{name}-1", f"id-{number}", Phase.BOUND, (f"u0-{number}",), 1, 0)
            allocations.append(one.to_wire())
        meta = {"name": "us-u0", "namespace": NAMESPACE, "uid": "u"}
        stored = {"apiVersion": API_VERSION, "metadata": meta, "spec": {}, "status": {"allocations": allocations}}
        self.there.store(self.there.caches.ultraservers, stored)

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def damage_jobs(self, names: Collection[str]) -> None:
        found = {f"ml/{name}": Damaged("ml", name, why="not UTF-8") for name in names}
        self.there.watches._by_kind["Job"].damaged = found

    @rule(names=st.sets(st.sampled_from(NAMES)))
    def damage_workloads(self, names: Collection[str]) -> None:
        found = {f"ml/{name}": Damaged("ml", name, why="not UTF-8") for name in names}
        self.there.caches.workloads.damaged = found

    @rule(facts=st.fixed_dictionaries(FACTS))
    def change_what_all_depend_on(self, facts: dict[str, Any]) -> None:
        there = self.there
        there.jobs._guard.problem = facts["problem"]
        there.applier.schemas.unkept = facts["unkept"]
        there.jobs._queues, there.jobs._default_limit = facts["queues"], facts["default"]
        synced = there.watches._by_kind["StatefulSet"].synced
        (synced.set if facts["listed"] else synced.clear)()
        namespaces, name = there.caches.namespaces, facts["namespace"]
        if facts["label"] is not None:
            meta = {"name": name, "uid": name, "annotations": {LIMIT_ANNOTATION: facts["limit"]}}
            there.store(namespaces, {"metadata": {**meta, "labels": {JOBS_LABEL: facts["label"]}}})
        elif f"/{name}" in namespaces.items:
            namespaces.forget(namespaces.items[f"/{name}"])

    @rule(number=st.integers(0, 2))
    def break_a_job(self, number: int) -> None:
        """No decoder returns such a job; whatever raises in a decision costs that job alone."""
        bad: Any = None
        reflector = self.there.watches._by_kind["Job"]
        for key, stored in [*reflector.items.items()][number : number + 1]:
            reflector.put(key, {**stored, "value": replace(stored["value"], wish=bad)})

    @rule()
    def decide_one(self) -> None:
        """Decide about one job, and leave the others for later."""
        there = self.there
        index = there.caches.index()
        there.jobs._follow(index)
        there.jobs._kept.follow(there.jobs._view(index), 1)
        names = [*self.templates()]
        assert len(names) == len({*names}), "two jobs get one template"

    def templates(self) -> Iterator[tuple[str, str]]:
        """Yield the templates for which workloads are to be created now."""
        for write in self.there.jobs._kept.writes.values():
            if isinstance(write, CreateWorkload):
                yield write.job.namespace, write.body["spec"]["resourceClaimTemplate"]["name"]

    @rule(number=st.integers(2, 5))
    def let_changes_gather(self, number: int) -> None:
        self.unchecked = number

    @invariant()
    def kept_decisions_are_those_of_a_look_at_everything(self) -> None:
        self.unchecked -= 1
        if self.unchecked > 0:
            return
        self.there.drain(2)
        kept, found = self.there.jobs._kept, decide(self.there.whole())
        assert kept.writes == {_written(write): write for write in found.writes}
        notes = [note for each in kept._decisions.values() for note in each.notes]
        assert sorted(notes, key=str) == sorted(found.notes, key=str)
        assert {name: repr(err) for name, err in kept.errors.items()} == {
            name: repr(err) for name, err in found.errors.items()
        }
        early = self.there.jobs._early_pods
        assert early._templates == dict(made_templates(self.there))


def _written(write: Write) -> str:
    """Return namespace/name of the workload that is written."""
    if isinstance(write, CreateWorkload):
        return f"{write.job.namespace}/{write.job.name}"
    return write.workload.ref


def remove(reflector: Reflector, number: int) -> None:
    """Remove an object, if there are so many."""
    for stored in [*reflector.items.values()][number : number + 1]:
        reflector.forget(stored)


def made_templates(there: Followed) -> Iterator[tuple[tuple[str, str], Template]]:
    """Yield the templates that workloads of jobs made."""
    templates = there.caches.index().template_by_key
    for stored in there.caches.workloads.items.values():
        workload: Workload = stored["value"]
        key = workload.namespace, workload.template_name
        if workload.made_for and key in templates and templates[key].is_of(workload) and not templates[key].deleting:
            yield key, templates[key]


def test_kept_decisions_are_those_of_a_look_at_everything() -> None:
    limits = settings(max_examples=200, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(Changes, settings=limits)


def test_the_first_in_the_order_gets_what_several_jobs_ask_for() -> None:
    """Whichever came first: nothing is kept but what a decision about all of them would find."""
    there = Followed()
    there.jobs._guard.problem = ""
    there.namespace("ml")
    kept = there.jobs._kept

    def reasons() -> dict[str, str]:
        there.drain(1)
        return {note.job.name: note.reason for each in kept._decisions.values() for note in each.notes}

    for name in ("c", "b"):
        there.job(name, "rct")
    assert (reasons(), [*kept.writes]) == ({"c": "TemplateNameInUse"}, ["ml/b"])
    there.job("a", "rct")
    assert (reasons(), [*kept.writes]) == (dict.fromkeys("bc", "TemplateNameInUse"), ["ml/a"])
    remove(there.watches._by_kind["Job"], 2)
    assert (reasons(), [*kept.writes]) == ({"c": "TemplateNameInUse"}, ["ml/b"])


async def decided(number: int) -> Followed:
    """Return the reservations of so many jobs of one namespace that cannot have any, after all was told."""
    there = Followed()
    there.namespace("ml")
    for each in range(number):
        there.job(f"j{each}", text="topologySize=3")
    await there.settle(number // AT_ONCE + 8)
    assert len(there.server.told) == number
    return there


async def test_a_look_costs_what_changed_however_many_jobs_there_are() -> None:
    costs = []
    for number in (20, 600):
        there = await decided(number)
        nothing = await there.look()
        there.job("j7")
        costs.append((nothing, await there.look()))
        assert [each["metadata"]["name"] for each in there.server.made] == ["j7"]
    assert costs[0] == costs[1]
    assert costs[0][0] < 230


async def test_a_burst_costs_each_look_a_budget_and_ends() -> None:
    """2,000 new jobs of one namespace; a job of another one has its turn at once."""
    there = Followed()
    for name in ("ml", "other"):
        there.namespace(name)
    for each in range(2_000):
        there.job(f"j{each}")
    there.job("small", namespace="other")
    costs = [await there.look()]
    assert "small" in [each["metadata"]["name"] for each in there.server.made]
    costs += await there.settle(2_001 // AT_ONCE + 4)
    assert sorted(each["metadata"]["name"] for each in there.server.made) == sorted(
        ["small", *(f"j{each}" for each in range(2_000))]
    )
    assert max(costs[1:]) < 50_000


async def test_what_was_not_sent_or_not_answered_is_sent_later() -> None:
    there = Followed()
    there.namespace("ml")
    there.job("train")
    there.leadership.term += 1
    await there.look()
    assert there.server.made == []
    there.applier.fence.enter(there.leadership.term)
    there.jobs._watched._term = there.leadership.term
    there.server.broken = True
    there.now += datetime.timedelta(seconds=2)
    await there.look()
    again = await there.jobs.look(there.caches.index(), there.now)
    assert again is not None
    assert again <= there.now + datetime.timedelta(seconds=3)
    there.server.broken = False
    await there.look()
    assert there.server.made == []
    there.now += datetime.timedelta(seconds=10)
    await there.look()
    await there.look()
    assert [each["metadata"]["name"] for each in there.server.made] == ["train"]


async def test_a_new_term_decides_everything_anew() -> None:
    """Another replica may have led meanwhile."""
    there = Followed()
    there.namespace("ml")
    there.job("train", text="topologySize=3")
    await there.look()
    nothing = await there.look()
    there.leadership.term += 1
    there.applier.fence.enter(there.leadership.term)
    there.jobs._watched._term = there.leadership.term
    assert await there.look() > nothing + 50
    assert await there.look() == nothing


async def test_an_event_is_posted_again_only_when_it_changes() -> None:
    there = Followed()
    there.namespace("ml")
    for text, told in (("topologySize=3", 1), ("topologySize=3 ", 1), ("topologySize=5", 2)):
        there.job("train", text=text)
        await there.settle(1)
        assert len(there.server.told) == told


async def test_what_changes_while_a_plan_keeps_the_index_is_seen_soon() -> None:
    there = Followed()
    there.namespace("ml")
    there.job("train", text="topologySize=3")
    await there.look()
    with there.caches.pinned():
        assert await there.jobs.look(there.caches.index(), there.now) == there.now
    again = await there.jobs.look(there.caches.index(), there.now)
    assert again is not None
    assert again > there.now
