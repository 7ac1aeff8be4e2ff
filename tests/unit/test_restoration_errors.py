"""An error while a reservation is restored is that of its workload or UltraServer; its nodes stay closed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.planner.decisions.actions import (
    CreateUltraServer,
    Evict,
    Plan,
    WriteUltraServerStatus,
    WriteWorkloadStatus,
)
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import FINALIZER, ClusterNode, FleetSnapshot, UltraServer, Workload
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.ultraserver_world import World

FREE = ("u2-0", "u2-1", "u2-2", "u2-3")


class Unusable:
    """A value that no decoder returns: whatever is done with it raises."""

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "unusable"

    def __bool__(self) -> bool:
        raise TypeError("this value cannot be used")

    def __eq__(self, _: object) -> bool:
        raise TypeError("this value cannot be compared")


def world() -> World:
    """`job` runs on u0 and `other` on u1; `next` wants an UltraServer, of which u2 is free."""
    made = World([item for name in ("u0", "u1", "u2") for item in ultraserver(name)])
    made.settle()
    for name in ("job", "other"):
        made.submit(name, size=4)
        made.settle()
        [nodes] = made.reserved(name).values()
        made.claim(f"{name}-claim", nodes[:2], workload_uid=made.workload(name)["metadata"]["uid"])
    made.settle()
    made.submit("next", size=4)
    waiting = made.workload("next")
    waiting["metadata"]["finalizers"] = [FINALIZER]  # a reservation waits for it
    made.put(waiting)
    return made


def planned(snapshot: FleetSnapshot, made: World) -> Plan:
    return plan_of(FleetIndex.of(snapshot), made.now)


def reserved(plan: Plan) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Return the reservations that a plan writes, by UltraServer."""
    return {
        write.name: [
            (each["workloadRef"], each["phase"], each["allocatedNodes"]) for each in write.status["allocations"]
        ]
        for write in plan.actions
        if isinstance(write, WriteUltraServerStatus)
    }


def degraded(plan: Plan, name: str) -> tuple[str, str]:
    """Return status and reason of the condition Degraded that a plan writes for an UltraServer."""
    [write] = [each for each in plan.actions if isinstance(each, WriteUltraServerStatus) and each.name == name]
    [found] = [each for each in write.status["conditions"] if each["type"] == "Degraded"]
    return found["status"], found["reason"]


COPIES: list[dict[str, Any]] = [
    {"nodes": None},
    {"nodes": ["u0-0", "u0-1", "u0-2", "u0-3", 7], "nodeUids": ["a"]},
    {"ultraserver": ["us-u0"]},
    {"nodeUids": 7},
]


@pytest.mark.parametrize("change", COPIES, ids=repr)
@pytest.mark.parametrize("deleting", [False, True])
def test_copy_that_raises_costs_its_workload_alone(change: dict[str, Any], deleting: bool) -> None:
    made = world()
    made.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    [created] = [each for each in made.plan().actions if isinstance(each, CreateUltraServer)]
    made.write(created)
    if deleting:
        made.delete_workload("job")
    snapshot = made.snapshot()

    def damaged(each: Workload) -> Workload:
        if each.name != "job":
            return each
        return replace(each, groups=tuple({**record, **change} for record in each.groups))

    plan = planned(replace(snapshot, workloads=tuple(map(damaged, snapshot.workloads))), made)
    job, other = (made.workload(name)["metadata"]["uid"] for name in ("job", "other"))
    assert list(plan.errors) == ["ml/job"]
    assert plan.verdicts[job].reason == "InternalError"
    [status] = [each for each in plan.actions if isinstance(each, WriteWorkloadStatus) and each.name == "job"]
    kind, value = ("Ready", "False") if deleting else ("Degraded", "True")
    assert (status.status["conditions"][0]["type"], status.status["conditions"][0]["status"]) == (kind, value)
    assert (plan.verdicts[other].state, plan.verdicts[other].reason) == ("Allocated", "Allocated")
    assert not [each for each in plan.actions if isinstance(each, Evict)]
    assert reserved(plan) == {"us-u0": [], "us-u2": [("ml/next", "Pending", list(FREE))]}


def test_copies_before_the_one_that_raises_are_taken_back() -> None:
    """One half of a workload would run on under an old size, and the other half be given away."""
    made = World([item for name in ("u0", "u1", "u2") for item in ultraserver(name)])
    made.settle()
    made.submit("job", size=4, count=2)
    made.settle()
    made.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    made.remove("NeuronUltraServer", "us-u1", NAMESPACE)
    made.submit("next", size=4, count=2)
    made.step()
    snapshot = made.snapshot()
    [job] = [each for each in snapshot.workloads if each.name == "job"]
    groups = (job.groups[0], {**job.groups[1], "nodeUids": 7})
    workloads = tuple(replace(each, groups=groups) if each.name == "job" else each for each in snapshot.workloads)
    plan = planned(replace(snapshot, workloads=workloads), made)
    assert list(plan.errors) == ["ml/job"]
    assert {name: found for name, found in reserved(plan).items() if found} == {}
    assert plan.verdicts[made.workload("next")["metadata"]["uid"]].reason == "InsufficientCapacity"


@pytest.mark.parametrize("change", [{"nodes": (None, [])}, {"workload_uid": Unusable()}], ids=repr)
def test_entry_that_raises_keeps_its_nodes(change: dict[str, Any]) -> None:
    """It stays as it is, and its UltraServer says so; the other workloads are planned."""
    made = world()
    item = copy.deepcopy(made.get("NeuronUltraServer", "us-u0", NAMESPACE))
    for entry in item["status"]["allocations"]:
        del entry["allocationId"], entry["workloadUid"]
    made.put(item)
    snapshot = made.snapshot()

    def damaged(each: UltraServer) -> UltraServer:
        unread = tuple(replace(one, official=one.official and replace(one.official, **change)) for one in each.unread)
        return replace(each, unread=unread)

    plan = planned(replace(snapshot, ultraservers=tuple(map(damaged, snapshot.ultraservers))), made)
    assert list(plan.errors) == ["us-u0"]
    assert degraded(plan, "us-u0") == ("True", "UnreadableReservation")
    assert plan.verdicts[made.workload("job")["metadata"]["uid"]].reason == "UnreadableReservation"
    assert reserved(plan)["us-u2"] == [("ml/next", "Pending", list(FREE))]


def test_tag_that_raises_closes_its_nodes() -> None:
    """The workload and its entry are gone. Its nodes are neither drained nor given to another."""
    made = world()
    item = copy.deepcopy(made.get("NeuronUltraServer", "us-u0", NAMESPACE))
    item["status"]["allocations"] = []
    made.put(item)
    made.remove("ResourceClaim", "job-claim", "ml")
    made.remove("NeuronUltraServerWorkload", "job", "ml")
    made.remove("ResourceClaimTemplate", "job", "ml")
    made.submit("wide", size=4, count=2)
    snapshot = made.snapshot()

    def damaged(each: ClusterNode) -> ClusterNode:
        return replace(each, out_of_service=Unusable()) if each.name == "u0-1" else each  # type: ignore[arg-type]

    plan = planned(replace(snapshot, nodes=tuple(map(damaged, snapshot.nodes))), made)
    assert list(plan.errors) == ["us-u0"]
    assert degraded(plan, "us-u0") == ("True", "InternalError")
    assert reserved(plan) == {"us-u0": [], "us-u2": [("ml/next", "Pending", list(FREE))]}
    assert plan.verdicts[made.workload("wide")["metadata"]["uid"]].reason == "InsufficientCapacity"
