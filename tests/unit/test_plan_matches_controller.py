"""The result of Plan equals the controller's actions on every fleet, and unreadable objects are named. Issue 13.14,
acceptance 4. NEURON_DRA_PLAN_FLEETS is the number of fleets; make night tries 10,000.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import yaml

from controller.main import main
from controller.query import dry_run, queries
from controller.query.dry_run import Grouped
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.ultraserver import decode_allocations
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2 as pb
from neuron_dra.planner.decisions.actions import CreateUltraServer, SetFinalizers
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import FINALIZER
from neuron_dra.planner.plan import planning
from neuron_dra.planner.plan.planning import DEFAULT_LIMITS
from tests.unit.ultraserver_world import World

FLEETS = int(os.environ.get("NEURON_DRA_PLAN_FLEETS", "150"))
AT_ONCE = 50
TYPE = "trn3.48xlarge"

Held = list[tuple[str, int, str, str, tuple[str, ...]]]
"""Return workload, index, phase, UltraServer and nodes, sorted; a moving group has two entries for one index."""


def random_fleet(rng: random.Random) -> World:
    """Return a fleet in any state: discovered or not, with workloads, foreign claims and failed nodes."""
    numbers = range(rng.randint(1, 3))
    world = World(
        [item for number in numbers for item in ultraserver(f"u{number}", TYPE, group=rng.choice((4, 4, 4, 2, 1)))]
    )
    nodes = [item["metadata"]["name"] for item in world.all("Node")]
    if rng.random() < 0.7:
        world.settle()
    for number in range(rng.randint(0, 6)):
        happens(world, rng, number, nodes)
        for _ in range(rng.choice((0, 1, 2, 30))):
            world.step()
        world.later(rng.choice((0, 1, 30, 90, 700)))
    return world


def happens(world: World, rng: random.Random, number: int, nodes: list[str]) -> None:
    """Change something."""
    name, node = f"w{number}", rng.choice(nodes)
    names = [item["metadata"]["name"] for item in world.all("NeuronUltraServerWorkload")]
    match rng.choice(("submit", "submit", "submit", "claim", "cordon", "lose", "silence", "delete", "resize", "new")):
        case "submit":
            strategy = {"failureStrategy": rng.choice(("NoOp", "RestartAll", "MigrateAffected"))}
            template: dict[str, Any] = {"resourceClaimTemplate": {"name": "same"}} if rng.random() < 0.2 else {}
            count = rng.choice((1, 1, 2, 3, 100))
            world.submit(name, size=rng.choice((1, 2, 4)), count=count, allocationPolicy=strategy, **template)
        case "claim":
            world.claim(f"claim-{number}", [node])
        case "cordon":
            world.get("Node", node)["spec"]["unschedulable"] = True
        case "lose":
            world.get("Node", node)["status"]["conditions"][0]["status"] = "False"
        case "silence":
            world.silent.add(node)
        case "delete" if names:
            world.delete_workload(rng.choice(names))
        case "resize" if names:
            item = world.workload(rng.choice(names))
            item["spec"]["serverCount"] = rng.randint(1, 4)
            world.put(item)
        case "new":
            for item in ultraserver(f"v{number}", TYPE):
                world.put(item)


def answered(response: pb.PlanResponse) -> tuple[Held, dict[str, tuple[str, str, str]]]:
    """Return the result of Plan: the reservations of each workload, and its state."""
    held = sorted(
        (each.workload, each.ultraserver_index, each.phase, each.ultraserver, tuple(each.nodes))
        for workload in response.workloads
        for each in workload.reservations
    )
    said = {f"{each.namespace}/{each.name}": (each.state, each.reason, each.message) for each in response.workloads}
    return held, said


def ask(world: World, request: pb.PlanRequest) -> pb.PlanResponse:
    """Return the answer, as the service gives it where some UltraServers have no object."""
    found = dry_run.grouped(FleetIndex.of(world.snapshot()), world.now, DEFAULT_LIMITS)
    steps = queries.plan(found, request, world.now, DEFAULT_LIMITS)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert isinstance(end.value, pb.PlanResponse)
            return end.value


def done(world: World) -> tuple[Held, dict[str, tuple[str, str, str]]]:
    """Return the result of the controller: it groups the nodes, adds finalizers, then makes its plan's writes."""
    for action in world.plan().actions:
        if isinstance(action, CreateUltraServer):
            world.write(action)
        if isinstance(action, SetFinalizers) and FINALIZER in action.finalizers:
            world.write(action)
    plan = world.plan()
    workloads = {each.uid: each for each in world.snapshot().workloads}
    for action in plan.actions:
        world.write(action)
    held = sorted(
        (each.workload, each.ultraserver_index, each.phase.value, item["metadata"]["name"], each.nodes)
        for item in world.all("NeuronUltraServer")
        for each in decode_allocations(item)
        if each.workload_uid in workloads
    )
    said = {each.ref: ("", "", "") for each in workloads.values()}
    said |= {workloads[uid].ref: (each.state, each.reason, each.message) for uid, each in plan.verdicts.items()}
    return held, said


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, FLEETS, AT_ONCE))
def test_plan_equals_the_controllers_result(first: int) -> None:
    """13.14"""
    for seed in range(first, min(first + AT_ONCE, FLEETS)):
        world = random_fleet(random.Random(seed))
        asked = ask(world, pb.PlanRequest())
        assert answered(asked) == done(world), f"fleet {seed}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, FLEETS, AT_ONCE))
def test_dry_run_equals_the_real_result(first: int) -> None:
    """13.14"""
    for seed in range(first, min(first + AT_ONCE, FLEETS)):
        rng = random.Random(seed)
        world = random_fleet(rng)
        size, count = rng.choice((1, 2, 4)), rng.choice((1, 2, 3))
        workload = pb.Workload(namespace="ml", name="tried", instance_type=TYPE, topology_size=size, server_count=count)
        try:
            asked = ask(world, pb.PlanRequest(workload=workload))
        except queries.BadRequest as err:  # no such type here yet
            pytest.fail(f"fleet {seed}: {err}")
        world.submit("tried", size=size, count=count)
        held, said = done(world)
        mine = [each for each in held if each[0] == "ml/tried"]
        assert answered(asked) == (mine, {"ml/tried": said["ml/tried"]}), f"fleet {seed}"
        [planned] = asked.workloads
        assert planned.fits == (len(mine) == count), f"fleet {seed}"
        if not planned.fits and planned.reason != "WaitsForOlder" and planned.state == "Pending":
            assert planned.shortage.groups_free < count, f"fleet {seed}"


def test_plan_groups_nodes_without_stored_objects() -> None:
    """13.14: it returned "0 of 1 groups are free" together with groups_free 1."""
    world = World(ultraserver("u0"))
    workload = pb.Workload(namespace="ml", name="job", instance_type=TYPE, topology_size=4, server_count=1)
    asked = ask(world, pb.PlanRequest(workload=workload))
    [planned] = asked.workloads
    assert (planned.fits, planned.reason, [tuple(each.nodes) for each in planned.reservations]) == (
        True,
        "WaitingForNodes",
        [("u0-0", "u0-1", "u0-2", "u0-3")],
    )


def test_controller_reports_missing_ultraservers() -> None:
    """13.14"""
    world = World(ultraserver("u0"))
    world.submit("job")
    [verdict] = planning.plan(world.snapshot(), world.now).verdicts.values()
    assert (verdict.state, verdict.reason) == ("Pending", "CreatingUltraServers")


def refused(capsys: pytest.CaptureFixture[str], path: Any, content: str) -> str:
    path.write_text(content)
    assert main(["plan", "--snapshot", str(path)]) == 2
    return capsys.readouterr().err.removeprefix(f"neuron-ultraserver-controller: --snapshot {path}: ").strip()


WORKLOAD: dict[str, Any] = {
    "apiVersion": "neuron.aws.com/v1beta1",
    "kind": "NeuronUltraServerWorkload",
    "metadata": {"name": "job", "namespace": "ml"},
    "spec": {"instanceType": TYPE, "topologySize": 4, "serverCount": 1},
}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({**WORKLOAD, "spec": {**WORKLOAD["spec"], "topologySize": 3}},
         "NeuronUltraServerWorkload ml/job: spec.topologySize is 3: write 1, 2 or 4"),
        ({**WORKLOAD, "spec": {}},
         "NeuronUltraServerWorkload ml/job: spec.instanceType is missing: write the type of UltraServer nodes, such as "
         "trn3.48xlarge"),
        ({**WORKLOAD, "spec": None},
         "NeuronUltraServerWorkload ml/job: spec.instanceType is missing: write the type of UltraServer nodes, such as "
         "trn3.48xlarge"),
        ({**WORKLOAD, "spec": {**WORKLOAD["spec"], "serverCount": "two"}},
         "NeuronUltraServerWorkload ml/job: spec.serverCount is 'two': it must be a whole number"),
        ({**WORKLOAD, "spec": {**WORKLOAD["spec"], "serverCount": 0}},
         "NeuronUltraServerWorkload ml/job: spec.serverCount is 0: write 1 to 1024"),
        ({**WORKLOAD, "spec": {**WORKLOAD["spec"], "allocationPolicy": {"failureStrategy": "Pray"}}},
         "NeuronUltraServerWorkload ml/job: spec.allocationPolicy.failureStrategy is 'Pray': write NoOp, RestartAll, "
         "MigrateAffected"),
        ({"kind": "Node", "metadata": {"name": "a"}, "status": []},
         "Node a: status is []: it must be an object"),
        ({"kind": "Node", "metadata": {"name": "a"}, "status": {"conditions": ["Ready"]}},
         "Node a: status.conditions[0] is 'Ready': it must be an object"),
        ({"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"driver": "neuron.aws.com", "devices": {}}},
         "ResourceSlice s: spec.devices is {}: it must be a list"),
        ({"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ml"}, "status": {"allocation": "x"}},
         "ResourceClaim ml/c: status.allocation is 'x': it must be an object"),
        ({"kind": "ConfigMap", "metadata": {"name": "a"}},
         "it has no objects that a plan depends on, only ConfigMap"),
    ],
)  # fmt: skip
def test_unreadable_objects_are_named(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], item: dict[str, Any], message: str
) -> None:
    """13.14"""
    text = yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [item]})
    assert refused(capsys, tmp_path / "c.yaml", text) == f"{message}; see --help for the command that prints one"


@pytest.mark.parametrize("content", ["", "---\n", "# nothing\n"])
def test_empty_file_is_rejected(tmp_path: Any, capsys: pytest.CaptureFixture[str], content: str) -> None:
    """13.14"""
    said = refused(capsys, tmp_path / "c.yaml", content)
    assert said == "it is empty; see --help for the command that prints one"


@pytest.mark.parametrize("seed", range(5))
def test_all_objects_of_a_cluster_are_readable(tmp_path: Any, seed: int) -> None:
    """13.14"""
    world = random_fleet(random.Random(seed))
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": list(world.objects.values())}))
    assert main(["plan", "--snapshot", str(path), "--at", "2026-03-01T13:00:00Z"]) == 0


def test_tried_workload_leaves_the_index_as_it_is() -> None:
    """The service reads the index of the running controller."""
    world = random_fleet(random.Random(3))
    for _ in range(3):
        world.step()
    index = FleetIndex.of(world.snapshot())
    kept = planning.plan_of(index, world.now).kept
    before = index.snapshot(), vars(index.places(TYPE, 4)), index.version
    tried = pb.Workload(namespace="ml", name="tried", instance_type=TYPE, topology_size=4, server_count=1)
    list(queries.plan(Grouped(index, kept=kept), pb.PlanRequest(workload=tried), world.now, DEFAULT_LIMITS))
    assert (index.snapshot(), vars(index.places(TYPE, 4)), index.version) == before
