"""Failures of a workload's nodes and links: each strategy, step by step."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.planner.decisions.actions import CreateTemplate, DeleteTemplate
from tests.unit.failing_world import (
    LIMITS,
    U0,
    U1,
    U2,
    allocations,
    as_aws_made_them,
    attribute,
    break_links,
    degraded,
    evicted,
    held,
    not_ready,
    ready_again,
    remove_node,
    remove_slices,
    repair_links,
    running,
    start_pods,
)
from tests.unit.ultraserver_world import World

# -- when a failure counts ---------------------------------------------------------------------------------------------


def test_node_back_within_grace_changes_nothing() -> None:
    world = running("MigrateAffected")
    not_ready(world, "u1-2")
    world.later(59)
    world.settle(LIMITS)
    assert degraded(world) == (
        "NodeNotReady",
        "nodes are not Ready: u1-2; MigrateAffected acts at 2026-03-01T12:01:00Z if the fault lasts until then",
    )
    ready_again(world, "u1-2")
    world.later(10)
    world.settle(LIMITS)
    assert (held(world), degraded(world), evicted(world)) == ([(0, "Bound", *U0), (1, "Bound", *U1)], ("", ""), [])


def test_plan_has_the_end_of_a_grace_period() -> None:
    world = running("MigrateAffected")
    not_ready(world, "u1-2")
    world.settle(LIMITS)
    assert world.plan(LIMITS).recheck == world.now + datetime.timedelta(seconds=60)


def test_flapping_link_restarts_its_grace() -> None:
    world = running("MigrateAffected")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(20)
    repair_links(world, "u1-2")
    world.settle(LIMITS)
    assert [e.get("faults") for e in allocations(world)] == [None, None]
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(20)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U1)]
    world.later(10)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


def test_link_fault_time_is_in_the_allocation() -> None:
    world = running("MigrateAffected")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    assert allocations(world)[1]["faults"] == [
        {"nodeName": "u1-2", "reason": "LinkDown", "since": "2026-03-01T12:00:00Z"}
    ]


@pytest.mark.parametrize("unknown", ["busy", "no slice"])
def test_unknown_state_neither_adds_nor_ends_a_fault(unknown: str) -> None:
    world = running("MigrateAffected")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(20)
    if unknown == "busy":
        for name in ("ultraserverModes", "linkVertical", "linkHorizontal"):
            attribute(world, "u1-2", name, None)
    else:
        world.remove("ResourceSlice", "u1-2-neuron.aws.com-00")
    world.later(600)
    world.settle(LIMITS)
    assert (held(world), evicted(world)) == ([(0, "Bound", *U0), (1, "Bound", *U1)], [])
    assert allocations(world)[1]["faults"][0]["since"] == "2026-03-01T12:00:00Z"


@pytest.mark.parametrize("strategy", ["NoOp", "RestartAll", "MigrateAffected"])
def test_missing_slice_on_ready_node_never_evicts(strategy: str) -> None:
    world = running(strategy)
    world.remove("ResourceSlice", "u1-2-neuron.aws.com-00")
    world.later(7200)
    world.settle(LIMITS)
    assert (held(world), evicted(world), degraded(world)[0]) == (
        [(0, "Bound", *U0), (1, "Bound", *U1)],
        [],
        "SliceMissing",
    )


def test_node_without_devices_is_reported() -> None:
    world = running("MigrateAffected")
    item = world.get("ResourceSlice", "u1-2-neuron.aws.com-00")
    world.put({**item, "spec": {**item["spec"], "devices": []}})
    world.later(7200)
    world.settle(LIMITS)
    assert (held(world), degraded(world)[0]) == ([(0, "Bound", *U0), (1, "Bound", *U1)], "SliceMissing")


def test_unneeded_link_is_not_a_fault() -> None:
    world = running("MigrateAffected", size=2, count=1)
    nodes = allocations(world)[0]["allocatedNodes"]
    attribute(world, nodes[0], "ultraserverModes", {"string": "1_2"})
    attribute(world, nodes[0], "linkHorizontal", {"bool": False})
    world.later(600)
    world.settle(LIMITS)
    assert (held(world), degraded(world)) == ([(0, "Bound", *nodes)], ("", ""))


@pytest.mark.parametrize(("size", "moved"), [(1, False), (2, True), (4, True)])
def test_node_links_matter_to_multi_node_slots(size: int, moved: bool) -> None:
    world = running("MigrateAffected", size=size, count=1)
    before = held(world)
    attribute(world, before[0][2], "unhealthy", {"string": "link_interserver"})
    for _ in range(2):
        world.settle(LIMITS)
        world.later(40)
    world.settle(LIMITS)
    assert (held(world) != before) == moved


def test_unhealthy_device_moves_a_single_node() -> None:
    world = running("MigrateAffected", size=1, count=1)
    attribute(world, "u0-0", "unhealthy", {"string": "hbm_ecc,sram_ecc"})
    world.settle(LIMITS)
    assert degraded(world)[0] == "DeviceUnhealthy"
    world.later(30)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", "u0-1")]


# -- NoOp --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["gone", "not ready", "link"])
def test_noop_only_reports(fault: str) -> None:
    world = running("NoOp")
    if fault == "gone":
        remove_node(world, "u1-2")
    elif fault == "not ready":
        not_ready(world, "u1-2")
    else:
        break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(3600)
    world.settle(LIMITS)
    assert (held(world), evicted(world)) == ([(0, "Bound", *U0), (1, "Bound", *U1)], [])
    assert degraded(world)[0] == {"gone": "NodeGone", "not ready": "NodeNotReady", "link": "LinkDown"}[fault]
    assert "failureStrategy NoOp only reports it" in degraded(world)[1]


def test_faults_are_listed_worst_first() -> None:
    world = running("NoOp")
    break_links(world, "u1-2")
    attribute(world, "u0-1", "unhealthy", {"string": "hbm_ecc"})
    world.settle(LIMITS)
    assert degraded(world) == (
        "DeviceUnhealthy",
        "nodes with unhealthy or missing devices: u0-1; links that the group needs are down on: u1-2; failureStrategy "
        "NoOp only reports it: to leave the node, delete the workload and create it again",
    )


# -- MigrateAffected ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["MigrateAffected", "ReplaceAffected"])
def test_broken_slot_moves_and_keeps_its_index(strategy: str) -> None:
    world = running(strategy)
    stays = [entry for entry in allocations(world) if entry["ultraserverIndex"] == 0]
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]
    assert [entry for entry in allocations(world) if entry["ultraserverIndex"] == 0] == stays
    assert evicted(world) == [f"pod-{name}" for name in U1]
    assert not [a for a in world.log if isinstance(a, CreateTemplate | DeleteTemplate)]
    assert (world.state("job"), degraded(world)) == (("Allocated", "Allocated"), ("", ""))


def test_migration_steps_are_in_order() -> None:
    world = running("MigrateAffected")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    seen: list[list[tuple[Any, ...]]] = []
    for _ in range(12):
        world.step(LIMITS)
        now = held(world)[1:]
        if not seen or seen[-1] != now:
            seen.append(now)
    assert seen == [
        [(1, "Bound", *U1), (1, "Pending", *U2)],
        [(1, "Draining", *U1), (1, "Pending", *U2)],
        [(1, "Bound", *U2)],
    ]


def test_replaced_template_does_not_stop_a_migration() -> None:
    """13.7: with its only group Draining, the workload became Failed and gave up the group that replaces it."""
    world = running("MigrateAffected", count=1)
    break_links(world, "u0-2")
    world.settle(LIMITS)
    world.remove("ResourceClaimTemplate", "job", "ml")
    world.put({"kind": "ResourceClaimTemplate", "metadata": {"name": "job", "namespace": "ml"}, "spec": {"spec": {}}})
    world.later(30)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U1)]
    assert world.state("job") == ("Allocating", "TemplateNameTaken")


def test_new_slot_is_bound_after_old_one_closed() -> None:
    world = running("MigrateAffected")
    for name in U1:
        world.remove("ResourceClaim", f"claim-{name}", "ml")
    not_ready(world, *U1)
    world.later(60)
    seen: list[list[tuple[Any, ...]]] = []
    for _ in range(8):
        world.step(LIMITS)
        now = held(world)[1:]
        if not seen or seen[-1] != now:
            seen.append(now)
    assert seen == [
        [(1, "Bound", *U1), (1, "Pending", *U2)],
        [(1, "Draining", *U1), (1, "Pending", *U2)],
        [(1, "Draining", *U1), (1, "Bound", *U2)],
    ]


def test_eviction_waits_for_all_new_nodes() -> None:
    world = running("MigrateAffected")
    world.silent = {"u2-3"}
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    for _ in range(5):
        world.step(LIMITS)
    assert held(world)[1:] == [(1, "Bound", *U1), (1, "Pending", *U2)]
    assert (evicted(world), world.state("job")) == ([], ("PartiallyAllocated", "Migrating"))
    assert world.message("job") == (
        "group 1 moves from u1-0, u1-1, u1-2, u1-3 to u2-0, u2-1, u2-2, u2-3; waiting for all nodes to show the "
        "reservation on their devices"
    )


def test_ended_fault_cancels_the_migration() -> None:
    world = running("MigrateAffected")
    world.silent = {"u2-3"}
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    for _ in range(3):
        world.step(LIMITS)
    repair_links(world, "u1-2")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U1)]
    assert (world.state("job"), evicted(world)) == (("Allocated", "Allocated"), [])


def test_migration_without_spare_waits_and_reports() -> None:
    world = running("MigrateAffected", servers=2)
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.settle(LIMITS)
    assert (held(world), evicted(world)) == ([(0, "Bound", *U0), (1, "Bound", *U1)], [])
    assert world.state("job") == ("PartiallyAllocated", "NoSpareGroup")
    assert degraded(world)[0] == "LinkDown"
    assert "no spare group: needs 1 x 4 trn3.48xlarge nodes; 0 of 1 groups of 4 are free" in degraded(world)[1]
    for item in ultraserver("u2"):
        world.put(item)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


def test_waiting_migration_has_no_later_time() -> None:
    world = running("MigrateAffected", servers=1, count=1)
    break_links(world, "u0-0")
    world.settle(LIMITS)
    world.later(30)
    break_links(world, "u0-1")
    world.settle(LIMITS)
    assert world.state("job") == ("PartiallyAllocated", "NoSpareGroup")
    assert degraded(world)[1].startswith(
        "links that the group needs are down on: u0-0, u0-1; no spare group: needs 1 x 4 trn3.48xlarge nodes; "
    )


def test_two_broken_slots_move_together() -> None:
    world = running("MigrateAffected", servers=3)
    break_links(world, "u0-1")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U1)]
    assert "short of 4 nodes" in world.message("job")


def test_dead_node_blocks_binding_until_given_up() -> None:
    world = running("MigrateAffected")
    not_ready(world, "u1-2")
    world.later(60)
    world.settle(LIMITS)
    assert held(world)[1:] == [(1, "Draining", *U1), (1, "Pending", *U2)]
    assert evicted(world) == ["pod-u1-0", "pod-u1-1", "pod-u1-3"]
    assert world.state("job") == ("PartiallyAllocated", "WaitingForPods")
    assert "waiting for pods and claims on the nodes: ml/pod-u1-2" in world.message("job")
    assert "to give up a node that will not come back, delete its Node or add the taint" in world.message("job")
    remove_node(world, "u1-2")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]
    assert world.state("job") == ("Allocated", "Allocated")


@pytest.mark.parametrize("strategy", ["RestartAll", "MigrateAffected"])
def test_pods_of_aws_templates_are_awaited_on_dead_nodes(strategy: str) -> None:
    """The nodes of a group may come back with their pods running, so it stays Bound while all of them are dead."""
    world = running(strategy, count=1)
    as_aws_made_them(world)
    not_ready(world, *U0)
    world.later(60)
    world.settle(LIMITS)
    assert held(world)[0] == (0, "Bound", *U0)
    said = world.message("job") + degraded(world)[1]
    assert "waiting for pods and claims on the nodes: ml/pod-u0-0" in said


def test_out_of_service_taint_ends_a_migration() -> None:
    world = running("MigrateAffected")
    not_ready(world, "u1-2")
    world.later(60)
    world.settle(LIMITS)
    node = world.get("Node", "u1-2")
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    world.put({**node, "spec": {**node["spec"], "taints": [taint]}})
    world.remove("ResourceClaim", "claim-u1-2", "ml")  # as Kubernetes does with the pods of such a node
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


def test_dead_node_without_pods_does_not_block() -> None:
    world = running("MigrateAffected")
    world.remove("ResourceClaim", "claim-u1-2", "ml")
    not_ready(world, "u1-2")
    world.later(60)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Draining", *U1), (1, "Bound", *U2)]
    assert world.state("job") == ("Allocated", "Allocated")
    ready_again(world, "u1-2")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


def test_replaced_instance_is_another_node() -> None:
    world = running("MigrateAffected")
    remove_node(world, "u1-2")
    old = world.get("ResourceSlice", "u1-1-neuron.aws.com-00")
    facts = {name: old["spec"]["devices"][0]["attributes"][name] for name in ("reservationId",)}
    for item in ultraserver("u1")[4:6]:
        item["metadata"].pop("uid", None)
        item["metadata"]["name"] = item["metadata"]["name"]
        if item["kind"] == "ResourceSlice":
            item["metadata"]["ownerReferences"][0]["uid"] = "new-node"
            item["spec"]["devices"][0]["attributes"] |= facts
        else:
            item["metadata"]["uid"] = "new-node"
            item["spec"]["providerID"] = "aws:///us-west-2d/i-new"
        world.put(item)
    world.step(LIMITS)
    assert degraded(world)[0] == "NodeReplaced"
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]
    tags = world.get("ResourceSlice", "u1-2-neuron.aws.com-00")["spec"]["devices"][0]["attributes"]
    assert "workloadId" not in tags


def test_growth_keeps_a_moving_group() -> None:
    """13.7: growth that does not fit takes nothing from a workload whose only group is moving."""
    world = running("MigrateAffected", count=1)
    item = world.workload("job")
    item["spec"]["serverCount"] = 999
    world.put(item)
    world.step()
    remove_node(world, allocations(world)[0]["allocatedNodes"][0])
    world.settle()
    assert [(index, phase) for index, phase, *_ in held(world)] == [(0, "Bound")]
    assert world.state("job")[0] == "PartiallyAllocated"


def test_replaced_instance_is_reserved_in_place() -> None:
    world = running("MigrateAffected", servers=2)
    before = allocations(world)
    remove_node(world, "u1-2")
    node, slice_ = ultraserver("u1")[4:6]
    node["metadata"]["uid"] = slice_["metadata"]["ownerReferences"][0]["uid"] = "new-node"
    world.put(node)
    world.put(slice_)
    world.step(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Draining", *U1)]
    assert world.state("job") == ("PartiallyAllocated", "WaitingForRelease")
    assert world.message("job") == ("no spare group: releasing nodes to reserve them again: u1-0, u1-1, u1-2, u1-3")
    assert degraded(world)[0] == "NodeReplaced"
    world.settle(LIMITS)
    after = allocations(world)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U1)]
    assert [one["allocationId"] == two["allocationId"] for one, two in zip(before, after, strict=True)] == [True, False]
    assert (world.state("job"), after[1]["nodeUids"][2]) == (("Allocated", "Allocated"), "new-node")


def test_in_place_waits_for_the_new_instance() -> None:
    world = running("MigrateAffected", servers=2)
    remove_node(world, "u1-2")
    node, slice_ = ultraserver("u1")[4:6]
    node["metadata"]["uid"] = slice_["metadata"]["ownerReferences"][0]["uid"] = "new-node"
    for name in ("ultraserverModes", "linkVertical", "linkHorizontal"):
        del slice_["spec"]["devices"][0]["attributes"][name]
    world.put(node)
    world.put(slice_)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U1)]
    assert (world.state("job")[1], evicted(world)) == ("NoSpareGroup", [])


def test_in_place_waits_for_foreign_claims() -> None:
    world = running("MigrateAffected", servers=2)
    remove_node(world, "u1-2")
    node, slice_ = ultraserver("u1")[4:6]
    node["metadata"]["uid"] = slice_["metadata"]["ownerReferences"][0]["uid"] = "new-node"
    world.put(node)
    world.put(slice_)
    world.claim("foreign", ["u1-2"], pod="intruder")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U1)]
    assert (world.state("job")[1], evicted(world)) == ("NoSpareGroup", [])


def test_strategy_acts_on_first_lasting_fault() -> None:
    world = running("MigrateAffected", count=1)
    break_links(world, "u0-0")
    world.settle(LIMITS)
    world.later(20)
    break_links(world, "u0-1")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0)]
    assert degraded(world)[1].endswith("MigrateAffected acts at 2026-03-01T12:00:30Z if the fault lasts until then")
    world.later(10)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U1)]


def test_workload_moves_to_similar_nodes() -> None:
    world = World(ultraserver("u0", whole_nodes=False))
    world.settle(LIMITS)
    world.submit("job", allocationPolicy={"failureStrategy": "MigrateAffected"})
    world.settle(LIMITS)
    for item in (*ultraserver("u1"), *ultraserver("u2", whole_nodes=False)):
        world.put(item)
    break_links(world, "u0-3")
    world.settle(LIMITS)
    world.later(30)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U2)]


def test_workload_moves_near_its_other_nodes() -> None:
    here, there = ("nn-1", "nn-2", "nn-here"), ("nn-1", "nn-2", "nn-there")
    world = World([*ultraserver("u0", layers=here), *ultraserver("u1", layers=there)])
    world.settle(LIMITS)
    world.submit("job", count=2, allocationPolicy={"failureStrategy": "MigrateAffected"})
    world.settle(LIMITS)
    for item in (*ultraserver("u2", layers=there), *ultraserver("u3", layers=here)):
        world.put(item)
    break_links(world, "u1-3")
    world.settle(LIMITS)
    world.later(30)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *(f"u3-{n}" for n in range(4)))]


def test_restart_ignores_dead_nodes_without_pods() -> None:
    world = running("RestartAll", servers=2, count=1)
    not_ready(world, "u0-1")
    world.remove("ResourceClaim", "claim-u0-1", "ml")
    world.later(61)
    world.settle(LIMITS)
    assert held(world) == [(0, "Draining", *U0), (0, "Bound", *U1)]


def test_restart_reports_its_reason_until_the_end() -> None:
    world = running("RestartAll")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    said = []
    for _ in range(8):
        world.step(LIMITS)
        marker = world.workload("job")["status"].get("restarting")
        if marker:
            said.append((marker["since"], marker["reason"], marker["message"]))
            assert degraded(world) == (marker["reason"], marker["message"])
    assert len(said) > 1
    assert len(set(said)) == 1
    assert said[0][1] == "LinkDown"
    assert "u1-2" in said[0][2]


def test_template_is_recreated_while_waiting() -> None:
    world = running("MigrateAffected", servers=2)
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.settle(LIMITS)
    world.log.clear()
    world.remove("ResourceClaimTemplate", "job", "ml")
    world.settle(LIMITS)
    assert [action.body["metadata"]["name"] for action in world.log if isinstance(action, CreateTemplate)] == ["job"]
    assert world.state("job")[1] == "NoSpareGroup"


def test_broken_pending_slot_is_replaced() -> None:
    world = World([item for n in range(2) for item in ultraserver(f"u{n}")])
    world.settle(LIMITS)
    world.silent = {"u0-1"}
    world.submit("job", size=4, count=1)
    world.settle(LIMITS)
    assert held(world) == [(0, "Pending", *U0)]
    world.silent = set()
    break_links(world, "u0-3")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U1)]


def test_replaced_node_gets_no_old_reservation() -> None:
    world = running("NoOp")
    remove_node(world, "u1-2")
    node, slice_ = ultraserver("u1")[4:6]
    node["metadata"]["uid"] = slice_["metadata"]["ownerReferences"][0]["uid"] = "new-node"
    world.put(node)
    world.put(slice_)
    world.settle(LIMITS)
    tags = world.get("ResourceSlice", "u1-2-neuron.aws.com-00")["spec"]["devices"][0]["attributes"]
    assert (degraded(world)[0], "workloadId" in tags) == ("NodeReplaced", False)


def test_moved_group_0_updates_rank_0_everywhere() -> None:
    world = running("MigrateAffected")
    break_links(world, "u0-1")
    world.settle(LIMITS)
    world.later(30)
    said = []
    for _ in range(10):
        world.step(LIMITS)
        said.append(world.message("job"))
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U2), (1, "Bound", *U1)]
    assert {(e["rank0Node"], e["worldSize"]) for e in allocations(world)} == {("u2-0", 8)}
    assert any("running pods of other groups keep NEURON_DRA_RANK0_NODE=u0-0" in text for text in said)


def test_single_group_move_sends_no_rank_0_notice() -> None:
    world = running("MigrateAffected", servers=2, count=1)
    world.silent = {"u1-3"}
    break_links(world, "u0-1")
    world.settle(LIMITS)
    world.later(30)
    world.settle(LIMITS)
    assert world.message("job") == (
        "group 0 moves from u0-0, u0-1, u0-2, u0-3 to u1-0, u1-1, u1-2, u1-3; waiting for all nodes to show the "
        "reservation on their devices"
    )


def test_foreign_claim_redirects_the_migration() -> None:
    world = running("MigrateAffected", servers=4)
    world.silent = {"u2-0"}
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.step(LIMITS)
    world.claim("foreign", ["u2-0"])
    world.step(LIMITS)
    assert world.message("job").endswith("; skipped: pod ml/foreign has devices of u2-0")
    world.settle(LIMITS)
    assert held(world)[1:] == [(1, "Bound", *(f"u3-{n}" for n in range(4)))]


def blocked_migration() -> World:
    """The nodes of the new slot have their tags, and a budget prevents evictions from the old one."""
    world = running("MigrateAffected")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.budget = {"pod-claim-u1-0": "the disruption budget trainers needs 4 healthy pods"}
    for _ in range(8):
        world.step(LIMITS)
    return world


def test_blocked_eviction_delays_binding() -> None:
    world = blocked_migration()
    assert world.state("job") == ("PartiallyAllocated", "EvictionBlocked")
    assert "the disruption budget trainers needs 4 healthy pods" in world.message("job")
    assert held(world)[1:] == [(1, "Draining", *U1), (1, "Pending", *U2)]
    world.budget = {}
    world.settle(LIMITS)
    assert held(world)[1:] == [(1, "Bound", *U2)]


def test_dead_pending_node_message_has_remedy() -> None:
    world = blocked_migration()
    assert held(world)[1:] == [(1, "Draining", *U1), (1, "Pending", *U2)]
    not_ready(world, "u2-1")
    remove_slices(world, "u2-1")
    for _ in range(8):
        world.step(LIMITS)
        world.later(10)
    assert world.state("job") == ("PartiallyAllocated", "Migrating")
    assert world.message("job").endswith(
        "waiting for 1 node to show the reservation on their devices: u2-1; not Ready: u2-1; "
        "to give up a node that will not come back, delete its Node or add the taint "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )


# -- RestartAll --------------------------------------------------------------------------------------------------------


def test_restart_all_reserves_away_from_faults() -> None:
    world = running("RestartAll")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.step(LIMITS)
    assert world.state("job") == ("Deallocating", "Restarting")
    assert world.workload("job")["status"]["restarting"]["reason"] == "LinkDown"
    assert {phase for _, phase, *_ in held(world)} == {"Bound"}
    world.step(LIMITS)
    assert (world.all("ResourceClaimTemplate"), {phase for _, phase, *_ in held(world)}) == ([], {"Draining"})
    world.settle(LIMITS)
    assert evicted(world) == sorted(f"pod-{name}" for name in (*U0, *U1))
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]
    status = world.workload("job")["status"]
    assert ("restarting" in status, status["restarts"], world.state("job")[0]) == (False, 1, "Allocated")
    assert len(world.all("ResourceClaimTemplate")) == 1


def test_restart_without_template_releases_slots() -> None:
    world = running("RestartAll")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.step(LIMITS)
    world.remove("ResourceClaimTemplate", "job", "ml")
    world.step(LIMITS)
    assert world.state("job")[0] == "Deallocating"
    assert {phase for _, phase, *_ in held(world)} == {"Draining"}


def test_restart_without_slots_deletes_the_template() -> None:
    world = running("RestartAll")
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    world.step(LIMITS)
    for item in world.all("NeuronUltraServer"):
        world.put({**item, "status": {**item["status"], "allocations": []}})
    world.tag_nodes()
    world.step(LIMITS)
    why = world.workload("job")["status"]["restarting"]["message"]
    assert (world.state("job"), world.all("ResourceClaimTemplate")) == (("Deallocating", "Restarting"), [])
    assert world.message("job") == f"all nodes are released, then reserved again: {why}"
    for item in world.all("ResourceClaim"):
        world.remove("ResourceClaim", item["metadata"]["name"], "ml")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


def test_restart_all_waits_for_pods_of_dead_nodes() -> None:
    world = running("RestartAll")
    not_ready(world, "u1-2")
    world.later(60)
    world.settle(LIMITS)
    assert world.state("job") == ("Deallocating", "WaitingForPods")
    assert "to give up a node that will not come back, delete its Node" in world.message("job")
    remove_node(world, "u1-2")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


def test_restart_all_keeps_its_place_in_the_queue() -> None:
    world = running("RestartAll", servers=2)
    world.later(1)
    world.submit("younger", size=4)
    remove_node(world, "u1-2")
    world.settle(LIMITS)
    assert world.state("job") == ("Pending", "ExceedsFleet")
    for item in ultraserver("u2"):
        world.put(item)
    world.delete_workload("younger")
    world.settle(LIMITS)
    assert {tuple(entry["allocatedNodes"]) for entry in allocations(world)} == {U0, U2}


def test_lasting_fault_restarts_once() -> None:
    world = running("RestartAll")
    attribute(world, "u1-2", "unhealthy", {"string": "hbm_ecc,sram_ecc"})
    for _ in range(5):
        world.settle(LIMITS)
        start_pods(world)
        world.later(120)
    assert (world.workload("job")["status"]["restarts"], held(world)) == (
        1,
        [(0, "Bound", *U0), (1, "Bound", *U2)],
    )


# -- a controller that dies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["MigrateAffected", "RestartAll"])
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_next_controller_continues_after_any_write(strategy: str, writes: int) -> None:
    world = running(strategy)
    break_links(world, "u1-2")
    world.settle(LIMITS)
    world.later(30)
    for _ in range(30):
        world.step(LIMITS, writes=writes)
        live = [h for h in held(world) if h[1] == "Bound"]
        assert len({h[0] for h in live}) == len(live)
        if writes == 0:
            break
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0), (1, "Bound", *U2)]


# -- growth ------------------------------------------------------------------------------------------------------------


def test_slot_without_answer_is_released() -> None:
    world = running("NoOp", servers=2, count=1)
    world.silent = {"u1-3"}
    item = world.workload("job")
    item["spec"]["serverCount"] = 2
    world.put(item)
    world.step(LIMITS)
    world.later(61)
    for _ in range(3):
        world.step(LIMITS)
    assert held(world)[1:] == [(1, "Draining", *U1)]
    item = world.workload("job")
    item["spec"]["serverCount"] = 1
    world.put(item)
    world.step(LIMITS)
    assert world.plan(LIMITS).recheck == world.now + datetime.timedelta(seconds=600 - 61)
    world.later(600)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U0)]


def test_dead_pending_node_is_replaced() -> None:
    world = World([item for n in range(2) for item in ultraserver(f"u{n}")])
    world.settle(LIMITS)
    world.silent = {"u0-3"}
    world.submit("job")
    world.step(LIMITS)
    world.step(LIMITS)
    world.silent = set()
    not_ready(world, "u0-1")
    world.later(61)
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U1)]


def test_node_dying_after_its_tag_is_replaced() -> None:
    world = World([item for n in range(2) for item in ultraserver(f"u{n}")])
    world.settle(LIMITS)
    world.silent = {"u0-3"}
    world.submit("job")
    world.step(LIMITS)
    world.step(LIMITS)
    world.silent = set()
    not_ready(world, "u0-1")
    world.step(LIMITS)
    assert held(world) == [(0, "Pending", *U0)]
    world.later(61)
    world.step(LIMITS)
    assert world.message("job").endswith("; skipped: not Ready for 60 s: u0-1")
    world.settle(LIMITS)
    assert held(world) == [(0, "Bound", *U1)]


def test_fault_is_reported_while_growing() -> None:
    world = running("NoOp", servers=1, count=1)
    item = world.workload("job")
    item["spec"]["serverCount"] = 2
    world.put(item)
    break_links(world, "u0-2")
    world.settle(LIMITS)
    assert (world.state("job"), degraded(world)[0]) == (("PartiallyAllocated", "ExceedsFleet"), "LinkDown")


def test_foreign_claim_on_bound_node_is_reported() -> None:
    world = running("MigrateAffected")
    world.claim("foreign", ["u0-0"], pod="intruder")
    world.settle(LIMITS)
    assert degraded(world) == (
        "ForeignClaim",
        "claims of other pods are allocated on nodes of this workload; delete these pods: pod ml/intruder",
    )
    assert evicted(world) == []


def test_wait_for_dead_node_message_has_remedy() -> None:
    world = running("MigrateAffected")
    dead = world.reserved("job")[1][0]
    not_ready(world, dead)
    for count in (1, 2):
        item = world.workload("job")
        item["spec"]["serverCount"] = count
        world.put(item)
        world.settle()
    assert world.state("job") == ("PartiallyAllocated", "WaitingForRelease")
    assert world.message("job").endswith(
        f"; not Ready: {dead}; to give up a node that will not come back, delete its Node or add the taint "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
