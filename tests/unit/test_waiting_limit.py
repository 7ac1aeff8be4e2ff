"""4.02: the number of workloads that a namespace may keep waiting is limited, and the limit reaches nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import SetFinalizers, WriteWorkloadStatus
from neuron_dra.planner.observed.model import Admission
from neuron_dra.planner.plan import planning
from neuron_dra.planner.plan.planning import Limits
from tests.unit.ultraserver_world import World

LIMITS = Limits(max_waiting_workloads=2)


def crowd(number: int = 5, namespace: str = "ml") -> World:
    """Return a fleet of two UltraServers, both reserved, and workloads that wait for them."""
    world = World([item for name in ("u0", "u1") for item in ultraserver(name)])
    world.submit("holder", count=2, namespace="ops")
    world.settle(LIMITS)
    for each in range(number):
        world.submit(f"w{each}", namespace=namespace)
        world.later(1)
    world.settle(LIMITS)
    return world


def reasons(world: World) -> dict[str, str]:
    names = [item["metadata"]["name"] for item in world.all("NeuronUltraServerWorkload")]
    return {name: world.state(name)[1] for name in names if name.startswith("w")}


def test_first_workloads_of_a_namespace_wait() -> None:
    number = Counter(reasons(crowd()).values())
    assert number == {"InsufficientCapacity": 2, "TooManyWaiting": 3}


def test_message_says_limit_count_and_change() -> None:
    world = crowd()
    assert (world.state("w4")[0], world.message("w4")) == (
        "Pending",
        "namespace ml may keep 2 workloads waiting (--max-waiting-workloads), and 5 waited when this was written: the "
        "controller looks for nodes for this one when earlier ones have left; delete workloads that are not needed, or "
        "have the limit raised",
    )


def test_workload_takes_its_turn_when_earlier_ones_leave() -> None:
    world = crowd()
    world.delete_workload("w0")
    world.settle(LIMITS)
    assert reasons(world) == {
        "w1": "InsufficientCapacity",
        "w2": "InsufficientCapacity",
        "w3": "TooManyWaiting",
        "w4": "TooManyWaiting",
    }


def test_every_workload_gets_nodes_in_the_end() -> None:
    world = World([item for name in ("u0", "u1") for item in ultraserver(name)])
    for each in range(9):
        world.submit(f"w{each}", size=1)
        world.later(1)
    world.settle(LIMITS)
    got_nodes = [name for name in reasons(world) if world.state(name)[0] == "Allocated"]
    assert got_nodes == [f"w{each}" for each in range(8)]


def test_priority_comes_before_age() -> None:
    world = crowd()
    world.put({**world.workload("w4"), "spec": {**world.workload("w4")["spec"], "priorityClassName": "high"}})
    known = world.snapshot()
    plan = planning.plan(replace(known, priorities={"high": 10}), world.now, LIMITS)
    by_name = {workload.name: plan.verdicts[workload.uid].reason for workload in known.workloads}
    assert by_name["w4"] == "InsufficientCapacity"
    assert by_name["w1"] == "TooManyWaiting"


def test_workload_beyond_the_limit_is_written_once() -> None:
    """Another one that comes does not change the message of thousands."""
    world = crowd()
    world.submit("w9")
    world.log.clear()
    world.settle(LIMITS)
    assert [(type(action), getattr(action, "name", "")) for action in world.log] == [(WriteWorkloadStatus, "w9")]


def test_raised_limit_is_taken_up_at_once() -> None:
    world = crowd()
    world.settle(Limits(max_waiting_workloads=4))
    assert Counter(reasons(world).values()) == {"InsufficientCapacity": 4, "TooManyWaiting": 1}
    assert "may keep 4 workloads waiting" in world.message("w4")


def test_workload_beyond_the_limit_gets_no_finalizer() -> None:
    world = crowd()
    finalized = {action.name for action in world.log if isinstance(action, SetFinalizers)}
    assert finalized == {"holder", "w0", "w1"}


def test_deletion_beyond_the_limit_is_not_delayed() -> None:
    """A workload keeps the finalizer that it got while it was within the limit."""
    world = crowd(4)
    world.settle(Limits(max_waiting_workloads=1))
    assert world.state("w1")[1] == "TooManyWaiting"
    world.delete_workload("w1")
    world.settle(Limits(max_waiting_workloads=1))
    assert "w1" not in reasons(world)


def test_reservations_do_not_count() -> None:
    """What has nodes, or had some, is decided, however many others of its namespace wait."""
    world = World([item for name in ("u0", "u1") for item in ultraserver(name)])
    for each in range(8):
        world.submit(f"w{each}", size=1)
    world.settle(LIMITS)
    assert Counter(reasons(world).values()) == {"Allocated": 8}
    for each in range(8):
        world.delete_workload(f"w{each}")
    world.settle(LIMITS)
    assert reasons(world) == {}


def test_other_namespaces_have_limits_of_their_own() -> None:
    world = crowd()
    world.submit("one", namespace="other")
    world.settle(LIMITS)
    conditions = world.get("NeuronUltraServerWorkload", "one", "other")["status"]["conditions"]
    assert {each["reason"] for each in conditions if each["type"] == "Ready"} == {"InsufficientCapacity"}


def test_workload_with_quota_is_within_the_limit() -> None:
    """It would keep quota that others could use."""
    world = crowd()
    known = world.snapshot()
    uid = world.workload("w4")["metadata"]["uid"]
    known = replace(known, admissions={uid: Admission(1, False, "", "")})
    plan = planning.plan(known, world.now, LIMITS)
    assert plan.verdicts[uid].reason == "InsufficientCapacity"
    assert uid not in plan.beyond_limit
    assert len(plan.beyond_limit) == 2
