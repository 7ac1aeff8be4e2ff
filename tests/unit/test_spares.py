"""A pool of spares: groups of four nodes that only groups which must move may take. Issue 36, number 3."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from controller.metrics import Metrics
from controller.query import grpc_server, queries
from controller.query.dry_run import Grouped
from hack.bench.ultraservers import ultraserver
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2 as pb
from neuron_dra.planner.fleet import spares
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.fleet.limits import Limits
from neuron_dra.planner.observed.model import condition
from neuron_dra.planner.plan.planning import plan_of
from tests.unit.ultraserver_world import World

TYPE = "trn3.48xlarge"
ONE, TWO = Limits(spares=((TYPE, 1),)), Limits(spares=((TYPE, 2),))
MIGRATE, RESTART = {"failureStrategy": "MigrateAffected"}, {"failureStrategy": "RestartAll"}


def fleet(number: int, limits: Limits = ONE) -> World:
    world = World([item for each in range(number) for item in ultraserver(f"u{each}")])
    world.settle(limits)
    return world


def shown(world: World) -> list[str]:
    """Return the UltraServers that are shown as spares, by the name that their nodes begin with."""
    found = []
    for item in world.all("NeuronUltraServer"):
        said = condition(item.get("status") or {}, "Spare")
        if said:
            assert said["status"] == "True"
            found.append(item["spec"]["topology"][0]["nodeName"].partition("-")[0])
    return sorted(found)


def servers(world: World, name: str) -> list[str]:
    """Return the UltraServers of a workload, in the order of its groups."""
    return [nodes[0].partition("-")[0] for _, nodes in sorted(world.reserved(name).items())]


def break_node(world: World, name: str) -> None:
    """The machine of a node is gone."""
    world.remove("Node", name)


def go_on(world: World, limits: Limits, minutes: int = 8) -> None:
    for _ in range(minutes):
        world.later(60)
        world.settle(limits)


def test_there_are_none_by_default() -> None:
    world = fleet(2, Limits())
    world.submit("job", size=4, count=2)
    world.settle()
    assert (world.state("job")[0], shown(world)) == ("Allocated", [])


def test_new_workload_leaves_the_spares() -> None:
    world = fleet(3)
    kept = shown(world)
    assert len(kept) == 1
    world.submit("job", size=4, count=2)
    world.settle(ONE)
    assert world.state("job")[0] == "Allocated"
    assert ({*servers(world, "job")}, shown(world)) == ({"u0", "u1", "u2"} - {*kept}, kept)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_workload_that_the_spares_would_satisfy_waits_and_says_so(size: int) -> None:
    world = fleet(1)
    world.submit("job", size=size)
    world.settle(ONE)
    assert world.state("job") == ("Pending", "ExceedsFleet")
    assert "4 nodes are spares, which only groups that must move may take (--spares)" in world.message("job")


def test_message_counts_spares_apart() -> None:
    world = fleet(3)
    world.submit("first", size=4, count=1)
    world.settle(ONE)
    world.submit("job", size=4, count=2)
    world.settle(ONE)
    assert world.state("job") == ("Pending", "InsufficientCapacity")
    assert world.message("job") == (
        "needs 2 x 4 trn3.48xlarge nodes; 1 of 2 groups of 4 are free: short of 4 nodes; 4 of 12 nodes are free; 4 "
        "nodes are spares, which only groups that must move may take (--spares)"
    )


def test_request_for_more_than_all_but_the_spares_holds_nobody_back() -> None:
    world = fleet(3)
    world.submit("all", size=4, count=3)
    world.settle(ONE)
    assert world.state("all") == ("Pending", "ExceedsFleet")
    assert "set spec.serverCount to at most 2" in world.message("all")
    world.later(3600)
    world.submit("job", size=4)
    world.settle(ONE)
    assert world.state("job")[0] == "Allocated"


def test_partly_used_ultraserver_is_no_spare() -> None:
    """A pool is filled by whole groups; nobody waits for it because of single nodes."""
    world = fleet(1, Limits())
    world.submit("old", size=1)
    world.settle()
    world.submit("job", size=2)
    world.settle(ONE)
    assert (world.state("job")[0], shown(world)) == ("Allocated", [])


@pytest.mark.parametrize("policy", [MIGRATE, RESTART], ids=["MigrateAffected", "RestartAll"])
def test_replacement_takes_a_spare(policy: dict[str, str]) -> None:
    world = fleet(2)
    [kept] = shown(world)
    world.submit("job", size=4, allocationPolicy=policy)
    world.settle(ONE)
    [first] = servers(world, "job")
    assert first != kept
    world.submit("waits", size=4)
    world.settle(ONE)
    break_node(world, f"{first}-0")
    go_on(world, ONE)
    assert (servers(world, "job"), world.state("job")[0]) == ([kept], "Allocated")
    assert (world.state("waits")[0], shown(world)) == ("Pending", [])


def test_pool_is_filled_before_those_who_wait() -> None:
    world = fleet(3, TWO)
    assert len(shown(world)) == 2
    world.submit("job", size=4, allocationPolicy=MIGRATE)
    world.settle(TWO)
    [first] = servers(world, "job")
    break_node(world, f"{first}-0")
    go_on(world, TWO)
    world.submit("waits", size=4)
    world.settle(TWO)
    assert (len(shown(world)), world.state("waits")[0]) == (1, "Pending")
    world.delete_workload("job")
    world.settle(TWO)
    assert (len(shown(world)), world.state("waits")[0]) == (2, "Pending")


def test_spare_with_a_fault_is_none() -> None:
    world = fleet(3)
    [kept] = shown(world)
    node = world.get("Node", f"{kept}-1")
    world.put({**node, "spec": {**node.get("spec", {}), "unschedulable": True}})
    world.settle(ONE)
    [other] = shown(world)
    assert other != kept
    world.submit("job", size=4, count=1)
    world.settle(ONE)
    assert servers(world, "job")[0] not in (kept, other)


def test_spare_on_a_block_that_ends_is_none() -> None:
    """Nobody may take it any more."""
    world = fleet(3)
    [kept] = shown(world)
    for number in range(4):
        node = world.get("Node", f"{kept}-{number}")
        end = world.now + datetime.timedelta(minutes=90)
        node["metadata"]["annotations"] = {ANNOTATION: end.strftime("%Y-%m-%dT%H:%M:%SZ")}
        world.put(node)
    world.settle(ONE)
    assert shown(world) == [kept]
    assert world.plan(ONE).recheck is not None
    world.later(1801)
    world.settle(ONE)
    assert shown(world) != [kept]
    assert len(shown(world)) == 1


def test_claim_of_another_pod_ends_a_spare() -> None:
    world = fleet(2)
    [kept] = shown(world)
    world.claim("plain", [f"{kept}-0"])
    world.settle(ONE)
    assert kept not in shown(world)
    assert len(shown(world)) == 1


def test_every_leader_chooses_the_same() -> None:
    """Which groups are spares is no record: whoever has the objects knows."""
    world = fleet(6, TWO)
    world.submit("job", size=2, count=3)
    world.settle(TWO)
    followed = FleetIndex.of(world.snapshot())
    first = plan_of(followed, world.now, TWO)
    second = plan_of(FleetIndex.of(world.snapshot()), world.now + datetime.timedelta(minutes=7), TWO)
    assert (first.actions, second.actions) == ((), ())
    assert first.kept.spares == second.kept.spares
    assert len(first.kept.spares) == 2


def test_condition_is_written_again_if_its_write_failed() -> None:
    world = fleet(3, Limits())
    followed = FleetIndex.of(world.snapshot())
    before = plan_of(followed, world.now, Limits())
    first = plan_of(followed, world.now, ONE, kept=before.kept)
    second = plan_of(followed, world.now, ONE, kept=first.kept)
    assert second.actions == first.actions != ()


def test_lower_number_gives_them_to_those_who_wait() -> None:
    world = fleet(2, TWO)
    world.submit("job", size=4)
    world.settle(TWO)
    assert world.state("job")[0] == "Pending"
    world.settle(ONE)
    assert (world.state("job")[0], len(shown(world))) == ("Allocated", 1)


def test_higher_number_takes_nothing_from_anyone() -> None:
    world = fleet(2)
    world.submit("job", size=4)
    world.settle(ONE)
    world.settle(TWO)
    assert (world.state("job")[0], len(shown(world))) == ("Allocated", 1)


def test_spares_of_another_type_keep_nothing() -> None:
    limits = Limits(spares=(("trn2u.48xlarge", 3),))
    world = fleet(1, limits)
    world.submit("job", size=4)
    world.settle(limits)
    assert (world.state("job")[0], shown(world)) == ("Allocated", [])


def test_groups_of_one_node_leave_spares_whole() -> None:
    world = fleet(2)
    [kept] = shown(world)
    world.submit("job", size=1, count=4)
    world.settle(ONE)
    assert {*servers(world, "job")} == {"u0", "u1"} - {kept}


def test_forged_condition_makes_no_spare() -> None:
    """The condition only shows what a plan found: none reads it."""
    world = fleet(2)
    [kept] = shown(world)
    [other] = {"u0", "u1"} - {kept}
    said = next(each for each in world.all("NeuronUltraServer") if condition(each["status"], "Spare"))
    forged = condition(said["status"], "Spare")
    target = next(
        each for each in world.all("NeuronUltraServer") if each["spec"]["topology"][0]["nodeName"].startswith(other)
    )
    status = {**target["status"], "conditions": [*target["status"]["conditions"], forged]}
    world.put({**target, "status": status})
    world.submit("job", size=4)
    world.settle(ONE)
    assert (servers(world, "job"), shown(world)) == ([other], [kept])


def test_dry_run_over_grpc_leaves_them() -> None:
    world = fleet(2)
    tried = pb.Workload(instance_type=TYPE, topology_size=4, server_count=2)
    steps = queries.plan(Grouped(FleetIndex.of(world.snapshot())), pb.PlanRequest(workload=tried), world.now, ONE)
    [planned] = grpc_server._at_once(steps).workloads
    assert (planned.fits, planned.reason) == (False, "ExceedsFleet")
    assert planned.shortage == pb.Shortage(groups_missing=2, groups_free=1, nodes_short=4, nodes_free=4, nodes_total=8)


def test_metrics_count_spares_apart() -> None:
    world = fleet(3, TWO)
    index, metrics = FleetIndex.of(world.snapshot()), Metrics()
    metrics.planned(0.1, index, plan_of(index, world.now, TWO), world.now, TWO.spares)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"neuron_ultraserver_{name}", {"instance_type": TYPE, **labels})

    assert [value("free_groups", size=str(size)) for size in (1, 2, 4)] == [4, 2, 1]
    assert [value("spare_groups", state=each) for each in ("kept", "missing")] == [2, 0]


def test_missing_spares_are_counted() -> None:
    world = fleet(2)
    world.submit("job", size=1)
    world.settle(TWO)
    index, metrics = FleetIndex.of(world.snapshot()), Metrics()
    metrics.planned(0.1, index, plan_of(index, world.now, TWO), world.now, TWO.spares)
    found = metrics.registry.get_sample_value(
        "neuron_ultraserver_spare_groups", {"instance_type": TYPE, "state": "missing"}
    )
    assert found == 2 - len(shown(world))


def test_namespace_limit_counts_no_spares() -> None:
    limits = replace(ONE, max_reserved_nodes=4)
    world = fleet(2, limits)
    world.submit("job", size=4, allocationPolicy=MIGRATE)
    world.settle(limits)
    [first] = servers(world, "job")
    break_node(world, f"{first}-0")
    go_on(world, limits)
    assert (world.state("job")[0], servers(world, "job") != [first]) == ("Allocated", True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("trn3.48xlarge=2", ((TYPE, 2),)),
        ("trn3.48xlarge=2, trn2u.48xlarge=0", ((TYPE, 2),)),
        ("trn3.48xlarge=1,trn2u.48xlarge=3", (("trn2u.48xlarge", 3), (TYPE, 1))),
    ],
)
def test_setting(text: str, found: tuple[tuple[str, int], ...]) -> None:
    assert spares.parse(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trn3.48xlarge", "write TYPE=NUMBER"),
        ("trn3.48xlarge=", "write TYPE=NUMBER"),
        ("trn3.48xlarge=-1", "write TYPE=NUMBER"),
        ("trn3.48xlarge=9999999", "write TYPE=NUMBER"),
        ("trn3.48xlarge=1,trn3.48xlarge=2", "write trn3.48xlarge once"),
        ("trn1.32xlarge=1", "trn1.32xlarge has no UltraServers"),
        ("p5.48xlarge=1", "p5.48xlarge is not known"),
    ],
)
def test_invalid_setting(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spares.parse(text)
