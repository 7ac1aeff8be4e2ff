"""13.16: a kept decision ends when something that it depends on changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from neuron_dra.core.wire import Obj
from neuron_dra.planner.decisions.actions import Plan
from neuron_dra.planner.plan.planning import plan, plan_of
from tests.unit.test_fleet_index import Course, follow, two_allocated


def settled() -> Course:
    """Return a course in which two workloads are Allocated."""
    course = Course()
    course.look()
    two_allocated(course)
    return course


def looked(course: Course, **changes: Any) -> Plan:
    """Return the plan of the followed index, which must equal that of a new one."""
    snapshot = replace(course.world.snapshot(), **changes)
    follow(course.index, course.seen, snapshot)
    course.seen = snapshot
    followed = plan_of(course.index, course.world.now, known=snapshot, kept=course.kept)
    course.kept = followed.kept
    at_once = plan(snapshot, course.world.now)
    for what in ("actions", "verdicts", "recheck", "starting", "suspects"):
        assert getattr(followed, what) == getattr(at_once, what)
    return followed


def edit(course: Course, kind: str, number: int, change: Callable[[Obj], None]) -> None:
    key = sorted(each for each in course.world.objects if each[0] == kind)[number]
    item = copy.deepcopy(course.world.objects[key])
    change(item)
    course.world.put(item)


def test_pods_that_cannot_be_scheduled_degrade() -> None:
    course = settled()
    uid = course.world.workload("one")["metadata"]["uid"]
    assert looked(course, unschedulable={uid: "no cpu"}).verdicts[uid].degraded == ("PodsUnschedulable", "no cpu")


def test_recreated_ultraservers_get_new_copies_of_their_uids() -> None:
    course = settled()
    for number in range(3):
        edit(course, "NeuronUltraServer", number, lambda item: item["metadata"].update(uid=f"new-{item['metadata']}"))
    assert len(looked(course).actions) == 2


def test_unreadable_entry_elsewhere_stops_the_workload() -> None:
    course = settled()
    entry = {"workloadRef": "ml/one", "allocatedNodes": ["u2-3"], "phase": "Odd", "ultraserverIndex": 0, "nodeCount": 1}
    edit(course, "NeuronUltraServer", 2, lambda item: item["status"]["allocations"].append(entry))
    uid = course.world.workload("one")["metadata"]["uid"]
    assert looked(course).verdicts[uid].reason == "UnreadableReservation"


def test_deleted_template_without_owner_is_created() -> None:
    course = settled()
    deleting = {"ownerReferences": [], "deletionTimestamp": "2026-03-01T12:00:00Z"}
    edit(course, "ResourceClaimTemplate", 0, lambda item: item["metadata"].update(deleting))
    looked(course)
    looked(course)
    key = min(each for each in course.world.objects if each[0] == "ResourceClaimTemplate")
    del course.world.objects[key]
    assert looked(course).actions
