"""Workloads are allocated and released, step by step."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.api import config
from neuron_dra.core.config import NeuronSettings, UltraServerSettings
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.planner.decisions.actions import Action, Evict, SetUltraServerFinalizers, WriteWorkloadStatus
from neuron_dra.planner.observed import decode
from neuron_dra.planner.plan.planning import DEFAULT_LIMITS, Limits, plan
from tests.unit.ultraserver_world import World

PLAIN, WORKLOAD = "neuron.aws.com", "workload.neuron.aws.com"
ALTERNATIVES = [{"name": "one", "deviceClassName": PLAIN}, {"name": "two", "deviceClassName": WORKLOAD}]


def fleet(count: int = 2, **options: Any) -> World:
    world = World([item for n in range(count) for item in ultraserver(f"u{n}", **options)])
    world.settle()
    return world


def kinds(actions: Iterable[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def phases(world: World) -> set[str]:
    return {e["phase"] for u in world.all("NeuronUltraServer") for e in u["status"].get("allocations", [])}


def tags(world: World) -> dict[str, str]:
    """workloadId by tagged node."""
    found = {}
    for item in world.all("ResourceSlice"):
        attributes = item["spec"]["devices"][0]["attributes"]
        if "workloadId" in attributes:
            found[item["spec"]["nodeName"]] = attributes["workloadId"]["string"]
    return found


def test_default_limits_are_documented() -> None:
    assert Limits() == Limits(
        tag_timeout=datetime.timedelta(seconds=60),
        starvation_threshold=datetime.timedelta(seconds=600),
        node_failure_grace=datetime.timedelta(seconds=300),
        fault_grace=datetime.timedelta(seconds=180),
        outage_nodes=3,
        outage_percent=55,
        restart_limit=3,
    )


# -- allocation --------------------------------------------------------------------------------------------------------


def test_two_ultraservers_allocate_eight_nodes() -> None:
    world = fleet(2)
    world.submit("job", size=4, count=2)
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")
    assert world.reserved("job") == {
        0: ("u0-0", "u0-1", "u0-2", "u0-3"),
        1: ("u1-0", "u1-1", "u1-2", "u1-3"),
    }
    status = world.workload("job")["status"]
    assert (status["allocatedUltraServers"], status["totalNodesAllocated"]) == (["us-u0", "us-u1"], 8)
    assert set(tags(world)) == {f"u{u}-{n}" for u in range(2) for n in range(4)}
    assert set(tags(world).values()) == {"job"}


def test_template_waits_for_all_tags() -> None:
    world = fleet(2)
    world.silent = {"u1-2"}
    world.submit("job", size=4, count=2)
    for _ in range(6):
        world.step()
    assert world.state("job") == ("Allocating", "WaitingForNodes")
    assert (phases(world), world.all("ResourceClaimTemplate")) == ({"Pending"}, [])
    world.silent = set()
    world.settle()
    assert (phases(world), len(world.all("ResourceClaimTemplate"))) == ({"Bound"}, 1)


def test_allocating_until_all_nodes_show_bound() -> None:
    world = fleet(1)
    world.submit("job")
    world.step()
    world.silent = {"u0-2"}
    world.step()
    world.step()
    assert (phases(world), len(world.all("ResourceClaimTemplate"))) == ({"Bound"}, 1)
    assert world.state("job") == ("Allocating", "WaitingForNodes")
    world.silent = set()
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")


def test_late_node_is_named_after_the_grace() -> None:
    world = fleet(1)
    world.silent = {"u0-2"}
    world.submit("job")
    world.step()
    world.step()
    assert world.message("job") == "waiting for all nodes to show the reservation on their devices"
    world.later(6)
    world.step()
    assert world.message("job") == "waiting for 1 node to show the reservation on their devices: u0-2"


def test_late_nodes_are_counted() -> None:
    world = fleet(1)
    world.silent = {"u0-1", "u0-2"}
    world.submit("job")
    world.step()
    world.later(6)
    world.step()
    assert world.message("job") == "waiting for 2 nodes to show the reservation on their devices: u0-1, u0-2"


@pytest.mark.parametrize(
    ("size", "count", "what"),
    [(1, 1, "1 node in 1 UltraServer"), (1, 2, "2 nodes in 1 UltraServer"), (4, 2, "8 nodes in 2 UltraServers")],
)
def test_allocated_message_explains_the_template(size: int, count: int, what: str) -> None:
    world = fleet(2)
    world.submit("job", size=size, count=count)
    world.settle()
    assert world.message("job") == f"{what} reserved; pods get them with resourceClaimTemplateName: job"


def test_untagging_node_is_replaced() -> None:
    world = fleet(2)
    world.silent = {"u0-0"}
    world.submit("job", size=2)
    world.step()
    world.step()
    assert world.reserved("job") == {0: ("u0-0", "u0-1")}
    world.later(61)
    world.step()
    assert world.message("job") == (
        "waiting for all nodes to show the reservation on their devices; skipped: no tag within 60 s from u0-0"
    )
    for _ in range(5):
        world.step()
    held = [e for u in world.all("NeuronUltraServer") for e in u["status"]["allocations"]]
    assert sorted((e["phase"], *e["allocatedNodes"]) for e in held) == [
        ("Bound", "u0-2", "u0-3"),
        ("Draining", "u0-0", "u0-1"),
    ]
    world.silent = set()
    world.settle()
    assert world.reserved("job") == {0: ("u0-2", "u0-3")}


def test_old_tag_does_not_answer_new_reservation() -> None:
    world = fleet(1)
    world.silent = {"u0-0"}
    world.submit("job")
    world.step()
    world.step()
    world.step()
    slice_ = world.get("ResourceSlice", "u0-0-neuron.aws.com-00")
    attributes = slice_["spec"]["devices"][0]["attributes"]
    uid = world.workload("job")["metadata"]["uid"]
    texts = {"workloadId": "job", "workloadNamespace": "ml", "workloadUid": uid, "allocationId": "an-older-one"}
    attributes |= {name: {"string": text} for name, text in {**texts, "workloadPhase": "Pending"}.items()}
    world.put(slice_)
    for _ in range(3):
        world.step()
    assert phases(world) == {"Pending"}


def test_template_selects_the_workloads_nodes() -> None:
    world = fleet(1)
    world.submit("job", config={"logicalNeuronCore": 1}, resourceClaimTemplate={"name": "job-rct"})
    world.settle()
    uid = world.workload("job")["metadata"]["uid"]
    template = world.get("ResourceClaimTemplate", "job-rct", "ml")
    devices = template["spec"]["spec"]["devices"]
    d = "device.attributes['neuron.aws.com']"
    assert devices["requests"][0]["exactly"] == {
        "deviceClassName": "workload.neuron.aws.com",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [
            {
                "cel": {
                    "expression": f"has({d}.workloadUid) && has({d}.workloadPhase) && {d}.workloadUid == '{uid}' && "
                    f"{d}.workloadPhase == 'Bound' && {d}.resourceType == 'neuron_node'"
                }
            }
        ],
    }
    decoded = [config.decode(entry["opaque"]["parameters"], "config") for entry in devices["config"]]
    [place, cores] = decoded
    assert isinstance(place, UltraServerSettings)
    assert (place.nodes, place.workload_id, place.workload_uid) == (4, "job", uid)
    assert isinstance(cores, NeuronSettings)
    assert cores.logical_neuron_core == 1
    assert [(o["kind"], o["uid"]) for o in template["metadata"]["ownerReferences"]] == [
        ("NeuronUltraServerWorkload", uid)
    ]


def test_template_requests_all_devices_of_a_node() -> None:
    world = fleet(1, whole_nodes=False)
    world.submit("job")
    world.settle()
    exactly = world.get("ResourceClaimTemplate", "job", "ml")["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert (exactly["allocationMode"], "count" in exactly) == ("All", False)
    assert "resourceType == 'neuron_device'" in exactly["selectors"][0]["cel"]["expression"]


def test_template_falls_back_to_the_plain_class() -> None:
    world = fleet(1)
    world.put({"kind": "DeviceClass", "metadata": {"name": "neuron.aws.com"}})
    world.submit("job")
    world.settle()
    exactly = world.get("ResourceClaimTemplate", "job", "ml")["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["deviceClassName"] == "neuron.aws.com"


def test_foreign_template_fails_the_workload() -> None:
    world = fleet(1)
    other = {"kind": "ResourceClaimTemplate", "metadata": {"name": "job", "namespace": "ml"}, "spec": {}}
    before = world.put(other)
    world.submit("job")
    world.settle()
    assert world.state("job") == ("Failed", "TemplateNameTaken")
    assert (world.get("ResourceClaimTemplate", "job", "ml"), world.reserved("job")) == (before, {})
    world.remove("ResourceClaimTemplate", "job", "ml")
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")


def test_late_foreign_template_ends_reservation() -> None:
    world = fleet(1)
    world.silent = {"u0-2"}
    world.submit("job")
    world.step()
    world.step()
    assert phases(world) == {"Pending"}
    world.put({"kind": "ResourceClaimTemplate", "metadata": {"name": "job", "namespace": "ml"}, "spec": {}})
    world.settle()
    assert (world.state("job"), phases(world)) == (("Failed", "TemplateNameTaken"), set())


def test_deleted_template_is_recreated() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    world.remove("ResourceClaimTemplate", "job", "ml")
    assert kinds(world.step().actions) == ["CreateTemplate"]
    assert world.plan().actions == ()


def test_used_node_is_not_reserved() -> None:
    world = fleet(2)
    world.claim("foreign", ["u0-1"])
    world.submit("job")
    world.settle()
    assert world.reserved("job") == {0: ("u1-0", "u1-1", "u1-2", "u1-3")}


def test_early_foreign_claim_moves_the_reservation() -> None:
    world = fleet(2)
    world.silent = {"u0-1"}
    world.submit("job")
    world.step()
    world.step()
    world.claim("foreign", ["u0-1"], pod="intruder")
    world.step()
    assert "skipped: pod ml/intruder has devices of u0-1" in world.message("job")
    world.settle()
    assert world.reserved("job") == {0: ("u1-0", "u1-1", "u1-2", "u1-3")}


def test_bypassing_claim_delays_no_reservation() -> None:
    """13.2. Without an admission policy: its pod cannot start, so no reservation is moved for it."""
    world = fleet(2)
    world.silent = {"u0-1"}
    world.submit("job")
    world.step()
    world.step()
    reserved = {0: ("u0-0", "u0-1", "u0-2", "u0-3")}
    world.claim("foreign", ["u0-1"], pod="intruder", device_class="workload.neuron.aws.com")
    world.step()
    assert world.reserved("job") == reserved
    world.silent = set()
    world.settle()
    assert (world.reserved("job"), world.state("job")) == (reserved, ("Allocated", "Allocated"))
    wrong = next(c for c in world.workload("job")["status"]["conditions"] if c["type"] == "Degraded")
    assert (wrong["status"], wrong["reason"]) == ("True", "ForeignClaim")
    assert wrong["message"].endswith("pod ml/intruder")


@pytest.mark.parametrize(
    ("requests", "result", "reserved"),
    [
        ([{"name": "r", "exactly": {"deviceClassName": WORKLOAD}}], {"request": "r"}, True),
        ([{"name": "r", "deviceClassName": WORKLOAD}], {"request": "r"}, True),
        ([{"name": "r", "exactly": {"deviceClassName": PLAIN}}], {"request": "r"}, False),
        ([{"name": "r", "firstAvailable": ALTERNATIVES}], {"request": "r/one"}, False),
        ([{"name": "r", "firstAvailable": ALTERNATIVES}], {"request": "r/two"}, True),
        ([{"name": "r", "exactly": {"deviceClassName": WORKLOAD}}], {"request": "r", "driver": "dra.net"}, None),
        ([{"name": "r", "exactly": {"deviceClassName": WORKLOAD}}], {"request": "r", "adminAccess": True}, None),
        ([], {"request": "r"}, False),
    ],
)
def test_bypassing_claim_is_known_by_its_class(
    requests: list[dict[str, Any]], result: dict[str, bool | str], reserved: bool | None
) -> None:
    """13.2. None: it has no Neuron device, or only with admin access."""
    result = {"driver": PLAIN, "pool": "n", "device": "neuron-node-0", **result}
    status = {"allocation": {"devices": {"results": [result]}}}
    meta = {"namespace": "ml", "name": "c"}
    found = decode.claim_use({"metadata": meta, "spec": {"devices": {"requests": requests}}, "status": status})
    assert (found and found.reserved_class) is reserved


def test_reservation_needs_few_writes() -> None:
    world = fleet(2)
    world.submit("job", count=2)
    world.log.clear()
    world.settle()
    assert sorted(kinds(world.log)) == sorted(
        ["WriteUltraServerStatus"] * 4 + ["SetFinalizers", "CreateTemplate"] + ["WriteWorkloadStatus"] * 2
    )


def test_slots_have_total_size_and_rank_0() -> None:
    world = fleet(2)
    world.submit("job", size=2, count=3)
    world.settle()
    held = [e for u in world.all("NeuronUltraServer") for e in u["status"]["allocations"]]
    first = next(e for e in held if e["ultraserverIndex"] == 0)
    assert {(e["worldSize"], e["rank0Node"]) for e in held} == {(6, first["leaderNodeName"])}


# -- waiting workloads -------------------------------------------------------------------------------------------------


def test_competing_workloads_get_all_or_nothing() -> None:
    world = fleet(4)
    world.submit("first", count=3)
    world.later(1)
    world.submit("second", count=3)
    world.settle()
    assert (world.state("first")[0], len(world.reserved("second"))) == ("Allocated", 0)
    assert world.state("second") == ("Pending", "InsufficientCapacity")
    assert world.message("second") == (
        "needs 3 x 4 trn3.48xlarge nodes; 1 of 3 groups of 4 are free: short of 8 nodes; 4 of 16 nodes are free"
    )
    world.delete_workload("first")
    world.settle()
    assert world.state("second") == ("Allocated", "Allocated")


def test_cordoned_node_is_not_reserved() -> None:
    world = fleet(2)
    world.get("Node", "u0-1")["spec"]["unschedulable"] = True
    world.submit("job", count=2)
    world.settle()
    assert world.state("job") == ("Pending", "InsufficientCapacity")
    assert world.message("job") == (
        "needs 2 x 4 trn3.48xlarge nodes; 1 of 2 groups of 4 are free: short of 4 nodes; 7 of 8 nodes are free; "
        "cordoned: u0-1; all healthy UltraServers together have 1 group of 4: set spec.serverCount to at most "
        "1, or add or repair nodes; it holds no other workload back"
    )
    [degraded] = [c for c in world.all("NeuronUltraServer")[0]["status"]["conditions"] if c["type"] == "Degraded"]
    assert (degraded["reason"], degraded["message"]) == (
        "NodeCordoned",
        "cordoned nodes, which cannot be reserved: u0-1",
    )
    del world.get("Node", "u0-1")["spec"]["unschedulable"]
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")


def test_cordoning_a_reserved_node_changes_nothing() -> None:
    world = fleet(2)
    world.submit("job", count=1, allocationPolicy={"failureStrategy": "MigrateAffected"})
    world.settle()
    held = world.reserved("job")
    world.get("Node", held[0][0])["spec"]["unschedulable"] = True
    world.settle()
    assert (world.reserved("job"), world.state("job")) == (held, ("Allocated", "Allocated"))


def test_fragmented_capacity_is_reported() -> None:
    world = fleet(2)
    for n in range(4):
        world.submit(f"pair-{n}", size=2)
        world.later(1)
    world.settle()
    assert {nodes for n in range(4) for nodes in world.reserved(f"pair-{n}").values()} == {
        (f"u{u}-{first}", f"u{u}-{first + 1}") for u in range(2) for first in (0, 2)
    }
    world.submit("big", size=4)
    world.settle()
    assert (world.state("big")[1], "short of 4 nodes" in world.message("big")) == ("InsufficientCapacity", True)
    ended = {nodes[0][:2]: n for n in range(4) for nodes in world.reserved(f"pair-{n}").values()}
    for n in ended.values():
        world.delete_workload(f"pair-{n}")
    world.settle()
    assert world.state("big") == ("Pending", "CapacitySplit")
    assert "split over 2 UltraServers or without the links: us-u0 has 2, us-u1 has 2" in world.message("big")


def test_missing_instance_type_is_reported() -> None:
    world = fleet(1)
    world.submit("job", instanceType="trn2u.48xlarge")
    world.settle()
    assert world.state("job") == ("Pending", "NoUltraServers")
    assert "UltraServers here are of type trn3.48xlarge" in world.message("job")


def test_small_workloads_pass_a_big_one_for_a_time() -> None:
    limits = Limits(starvation_threshold=datetime.timedelta(seconds=60))
    world = fleet(1)
    world.submit("holder", size=1)
    world.settle(limits)
    world.later(1)
    world.submit("big", size=4)
    world.later(1)
    world.submit("small-0", size=1)
    world.settle(limits)
    assert (world.state("big")[0], world.state("small-0")[0]) == ("Pending", "Allocated")
    world.later(60)
    world.submit("small-1", size=1)
    world.settle(limits)
    assert world.state("small-1") == ("Pending", "WaitsForOlder")
    assert world.message("small-1") == (
        "workload ml/big has waited longer for 1 x 4 nodes and goes first, until 2026-03-01T12:31:02Z at the latest"
    )


def test_plan_has_the_next_deadline() -> None:
    world = fleet(1)
    world.silent = {"u0-0"}
    world.submit("job")
    world.step()
    world.step()
    assert world.plan().recheck == world.now + datetime.timedelta(seconds=5)
    world.later(30)
    world.step()
    assert world.plan().recheck == world.now + datetime.timedelta(seconds=30)


# -- faults of nodes that hold a workload ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason"), [("gone", "NodeGone"), ("not ready", "NodeNotReady"), ("no slice", "SliceMissing")]
)
def test_noop_fault_is_only_reported(fault: str, reason: str) -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    if fault == "not ready":
        node = world.get("Node", "u0-1")
        node["status"]["conditions"][0]["status"] = "Unknown"
        world.put(node)
    else:
        world.remove("ResourceSlice", "u0-1-neuron.aws.com-00")
        if fault == "gone":
            world.remove("Node", "u0-1")
    world.log.clear()
    world.settle()
    status = world.workload("job")["status"]
    degraded = next(c for c in status["conditions"] if c["type"] == "Degraded")
    assert (status["state"], degraded["status"], degraded["reason"]) == ("Allocated", "True", reason)
    assert "u0-1" in degraded["message"]
    assert set(kinds(world.log)) <= {"WriteUltraServerStatus", "WriteWorkloadStatus", "UpdateTopology"}
    assert world.reserved("job") == {0: ("u0-0", "u0-1", "u0-2", "u0-3")}


def test_unwritable_status_does_not_hold_up_the_topology() -> None:
    """13.10: while a policy rejected the status, the nodes of the UltraServer were never corrected."""
    world = fleet(1)
    world.submit("job")
    world.settle()
    world.remove("Node", "u0-1")
    world.remove("ResourceSlice", "u0-1-neuron.aws.com-00")
    world.delete_workload("job")
    world.remove("ResourceClaimTemplate", "job", "ml")
    (name,) = (item["metadata"]["name"] for item in world.all("NeuronUltraServer"))

    def written(unwritable: dict[str, str]) -> list[Action]:
        actions = plan(replace(world.snapshot(), unwritable=unwritable), world.now).actions
        return [action for action in actions if getattr(action, "name", "") == name]

    rejected = {name: "a policy rejects it"}
    assert kinds(written({})) == ["WriteUltraServerStatus"]
    [topology] = written(rejected)
    world.write(topology)
    nodes = [entry["nodeName"] for entry in world.get("NeuronUltraServer", name, NAMESPACE)["spec"]["topology"]]
    assert nodes == ["u0-0", "u0-2", "u0-3"]
    assert kinds(written(rejected)) == ["WriteUltraServerStatus"]


def test_incomplete_reservation_is_released_together() -> None:
    world = fleet(2)
    world.silent = {"u1-3"}
    world.submit("job", count=2)
    world.step()
    world.step()
    assert phases(world) == {"Pending"}
    world.later(61)
    for _ in range(3):
        world.step()
    assert (phases(world), world.reserved("job")) == ({"Draining"}, {1: tuple(f"u1-{n}" for n in range(4))})


# -- after a failed write ----------------------------------------------------------------------------------------------


def entry_in(world: World, ultraserver_name: str, entry: dict[str, Any]) -> None:
    item = world.get("NeuronUltraServer", ultraserver_name, NAMESPACE)
    item["status"].setdefault("allocations", []).append(entry)
    world.put(item)


@pytest.mark.parametrize("allocation_id", ["0000000000000000", "zzzzzzzzzzzzzzzz"])
def test_duplicate_index_keeps_the_bound_slot(allocation_id: str) -> None:
    world = fleet(2)
    world.submit("job")
    world.settle()
    (entry,) = world.get("NeuronUltraServer", "us-u0", NAMESPACE)["status"]["allocations"]
    nodes = [f"u1-{n}" for n in range(4)]
    uids = [world.get("Node", name)["metadata"]["uid"] for name in nodes]
    second = {"allocationId": allocation_id, "phase": "Pending", "allocatedNodes": nodes, "nodeUids": uids}
    entry_in(world, "us-u1", {**entry, **second, "leaderNodeName": nodes[0]})
    for _ in range(4):
        world.step()
        (kept,) = world.get("NeuronUltraServer", "us-u0", NAMESPACE)["status"]["allocations"]
        assert kept == entry
    world.settle()
    assert not world.get("NeuronUltraServer", "us-u1", NAMESPACE)["status"].get("allocations")


def test_duplicate_pending_index_keeps_one() -> None:
    world = fleet(2)
    world.silent = {"u0-0", "u1-0"}
    world.submit("job")
    world.step()
    (entry,) = world.get("NeuronUltraServer", "us-u0", NAMESPACE)["status"]["allocations"]
    nodes = [f"u1-{n}" for n in range(4)]
    uids = [world.get("Node", name)["metadata"]["uid"] for name in nodes]
    second = {"allocationId": "zzzz", "allocatedNodes": nodes, "nodeUids": uids, "leaderNodeName": nodes[0]}
    entry_in(world, "us-u1", {**entry, **second})
    world.step()
    assert world.reserved("job") == {0: ("u0-0", "u0-1", "u0-2", "u0-3")}
    assert not world.get("NeuronUltraServer", "us-u1", NAMESPACE)["status"].get("allocations")


# -- release -----------------------------------------------------------------------------------------------------------


def test_release_steps_are_in_order() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    uid = world.workload("job")["metadata"]["uid"]
    for name in ("u0-0", "u0-1"):
        world.claim(f"claim-{name}", [name], workload_uid=uid)
    world.delete_workload("job")
    world.log.clear()
    world.silent = {"u0-3"}
    for _ in range(4):
        world.step()
    assert (kinds(world.log)[0], phases(world)) == ("DeleteTemplate", {"Draining"})
    assert not any(isinstance(action, Evict) for action in world.log)
    assert world.state("job") == ("Deallocating", "Draining")
    assert world.message("job") == "waiting for 1 node to close: u0-3"
    world.silent = set()
    world.settle()
    assert sorted(a.name for a in world.log if isinstance(a, Evict)) == ["claim-u0-0", "claim-u0-1"]
    assert (world.all("NeuronUltraServerWorkload"), phases(world), tags(world)) == ([], set(), {})


def test_deleted_pending_workload_frees_its_nodes() -> None:
    world = fleet(1)
    world.silent = {"u0-2"}
    world.submit("job")
    for _ in range(3):
        world.step()
    assert phases(world) == {"Pending"}
    world.delete_workload("job")
    world.settle()
    assert (world.all("NeuronUltraServerWorkload"), phases(world)) == ([], set())


def test_writes_name_their_workload() -> None:
    world = fleet(2)
    world.log.clear()
    world.submit("job")
    world.settle()
    uid = world.workload("job")["metadata"]["uid"]
    world.claim("mine", ["u0-0"], workload_uid=uid)
    world.delete_workload("job")
    world.settle()
    world.log = [action for action in world.log if not isinstance(action, SetUltraServerFinalizers)]  # nobody's
    assert {kind: {a.owners for a in world.log if type(a).__name__ == kind} for kind in set(kinds(world.log))} == {
        kind: {frozenset({uid})}
        for kind in (
            *("SetFinalizers", "WriteUltraServerStatus", "CreateTemplate", "WriteWorkloadStatus"),
            *("DeleteTemplate", "Evict"),
        )
    }


def test_deletion_ignores_nodes_without_answer() -> None:
    world = fleet(1)
    world.silent = {"u0-2"}
    world.submit("job")
    world.step()
    world.later(61)
    for _ in range(3):
        world.step()
    assert phases(world) == {"Draining"}
    world.delete_workload("job")
    world.settle()
    assert (world.all("NeuronUltraServerWorkload"), phases(world)) == ([], set())


def test_deletion_waits_for_the_template() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    lost = world.get("NeuronUltraServer", "us-u0", NAMESPACE)
    lost["status"]["allocations"] = []
    world.put(lost)
    world.delete_workload("job")
    world.log.clear()
    world.step()
    assert ("DeleteTemplate" in kinds(world.log), "SetFinalizers" in kinds(world.log)) == (True, False)
    world.settle()
    assert (world.all("NeuronUltraServerWorkload"), world.all("ResourceClaimTemplate")) == ([], [])


def test_release_evicts_only_own_pods() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    world.claim("mine", ["u0-0"], workload_uid=world.workload("job")["metadata"]["uid"])
    world.claim("theirs", ["u0-1"])
    world.delete_workload("job")
    world.settle()
    assert [action.name for action in world.log if isinstance(action, Evict)] == ["mine"]
    assert (world.all("NeuronUltraServerWorkload"), phases(world)) == ([], set())
    world.submit("next", size=2)
    world.settle()
    assert world.reserved("next") == {0: ("u0-2", "u0-3")}


def test_unused_claim_keeps_its_node_reserved() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    claim = world.claim("idle", ["u0-0"], workload_uid=world.workload("job")["metadata"]["uid"])
    claim["status"]["reservedFor"] = []
    world.put(claim)
    world.delete_workload("job")
    for _ in range(5):
        world.step()
    assert world.state("job") == ("Deallocating", "WaitingForPods")
    assert world.message("job") == "waiting for pods and claims on the nodes: claim ml/idle"
    assert phases(world) == {"Draining"}
    world.remove("ResourceClaim", "idle", "ml")
    world.settle()
    assert (world.all("NeuronUltraServerWorkload"), phases(world)) == ([], set())


def test_blocked_eviction_is_reported() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    world.claim("held", ["u0-0"], workload_uid=world.workload("job")["metadata"]["uid"])
    world.delete_workload("job")
    world.step()
    why = "the disruption budget trainers needs 1 healthy pods"
    verdict = replace(world.snapshot(), blocked_evictions={"pod-held": why})
    made = [a for a in plan(verdict, world.now).actions if isinstance(a, WriteWorkloadStatus)]
    ready = next(c for c in made[0].status["conditions"] if c["type"] == "Ready")
    assert (ready["reason"], made[0].warning) == ("EvictionBlocked", True)
    assert why in ready["message"]


def test_dead_node_is_quarantined_alone() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    uid = world.workload("job")["metadata"]["uid"]
    for name in ("u0-0", "u0-1"):
        world.claim(f"claim-{name}", [name], workload_uid=uid)
    node = world.get("Node", "u0-1")
    node["status"]["conditions"][0]["status"] = "Unknown"
    world.put(node)
    world.silent = {"u0-1"}
    world.delete_workload("job")
    for _ in range(5):
        world.step()
    assert [a.name for a in world.log if isinstance(a, Evict)] == ["claim-u0-0"]
    assert world.state("job") == ("Deallocating", "WaitingForPods")
    assert "waiting for pods and claims on the nodes: ml/claim-u0-1" in world.message("job")
    assert "not Ready: u0-1" in world.message("job")
    assert "delete its Node" in world.message("job")
    world.remove("Node", "u0-1")
    world.remove("ResourceSlice", "u0-1-neuron.aws.com-00")
    world.remove("ResourceClaim", "claim-u0-1", "ml")
    world.settle()
    assert (world.all("NeuronUltraServerWorkload"), phases(world)) == ([], set())


def test_reservations_without_workload_are_released() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    world.remove("NeuronUltraServerWorkload", "job", "ml")
    world.settle()
    assert (phases(world), tags(world)) == (set(), {})


def test_pods_without_workload_are_evicted_first() -> None:
    world = fleet(1)
    world.submit("job")
    world.settle()
    world.claim("worker", ["u0-1"], workload_uid=world.workload("job")["metadata"]["uid"])
    world.remove("NeuronUltraServerWorkload", "job", "ml")
    world.budget = {"pod-worker": "the disruption budget workers needs 1 healthy pods"}
    for _ in range(6):
        world.step()
    assert phases(world) == {"Draining"}
    world.budget = {}
    world.settle()
    assert (phases(world), world.all("ResourceClaim")) == (set(), [])


def test_unanswered_nodes_without_workload_are_freed() -> None:
    world = fleet(1)
    world.silent = {"u0-2"}
    world.submit("job")
    world.step()
    world.later(61)
    for _ in range(3):
        world.step()
    assert phases(world) == {"Draining"}
    world.remove("NeuronUltraServerWorkload", "job", "ml")
    world.settle()
    assert phases(world) == set()


def test_shrinking_releases_the_highest_index() -> None:
    world = fleet(2)
    world.submit("job", count=2)
    world.settle()
    before = world.reserved("job")
    item = world.workload("job")
    item["spec"]["serverCount"] = 1
    world.put(item)
    world.settle()
    assert world.reserved("job") == {0: before[0]}


def test_rank_is_reused_after_its_pods_are_gone() -> None:
    world = fleet(3)
    world.submit("job", count=2)
    world.settle()
    uid = world.workload("job")["metadata"]["uid"]
    second = world.reserved("job")[1]
    world.claim("worker", second[:1], workload_uid=uid)

    def resize(count: int) -> None:
        item = world.workload("job")
        item["spec"]["serverCount"] = count
        world.put(item)

    resize(1)
    world.step()
    resize(2)
    world.step()
    assert world.state("job") == ("PartiallyAllocated", "WaitingForRelease")
    world.settle()
    assert world.state("job")[0] == "Allocated"
    assert not [claim for claim in world.all("ResourceClaim") if claim["metadata"]["name"] == "worker"]


def test_growth_behind_a_blocked_eviction_names_the_budget() -> None:
    world = fleet(3)
    world.submit("job", count=2)
    world.settle()
    uid = world.workload("job")["metadata"]["uid"]
    world.claim("worker", world.reserved("job")[1][:1], workload_uid=uid)
    world.budget = {"pod-worker": "the disruption budget trainers needs 1 healthy pods"}
    for count in (1, 2):
        item = world.workload("job")
        item["spec"]["serverCount"] = count
        world.put(item)
        for _ in range(3):
            world.step()
    assert world.state("job") == ("PartiallyAllocated", "EvictionBlocked")
    assert "the disruption budget trainers needs 1 healthy pods" in world.message("job")


def test_growth_keeps_ranks_and_is_all_or_nothing() -> None:
    world = fleet(2)
    world.submit("job", size=4)
    world.settle()
    before = world.reserved("job")
    item = world.workload("job")
    item["spec"]["serverCount"] = 3
    world.put(item)
    world.settle()
    assert (world.state("job")[0], world.reserved("job")) == ("PartiallyAllocated", before)
    item = world.workload("job")
    item["spec"]["serverCount"] = 2
    world.put(item)
    world.settle()
    assert world.state("job")[0] == "Allocated"
    assert world.reserved("job")[0] == before[0]
    assert [kind for kind in kinds(world.log) if "Template" in kind] == ["CreateTemplate"]


def world_sizes(world: World) -> dict[int, int]:
    """Return the number of nodes that each group publishes, by index, without groups that are released."""
    entries = [e for u in world.all("NeuronUltraServer") for e in u.get("status", {}).get("allocations", [])]
    return {e["ultraserverIndex"]: e["worldSize"] for e in entries if e["phase"] != "Draining"}


def test_failed_growth_publishes_no_ranks_that_do_not_exist() -> None:
    """A pod that starts again would wait for them."""
    world = fleet(2)
    world.submit("job", size=4)
    world.settle()
    nodes = {item["metadata"]["name"] for item in world.all("Node")}
    world.silent = nodes - {*world.reserved("job")[0]}
    item = world.workload("job")
    item["spec"]["serverCount"] = 2
    world.put(item)
    world.step()
    assert world_sizes(world) == {0: 8, 1: 8}
    world.later(DEFAULT_LIMITS.tag_timeout.total_seconds() + 1)
    world.step()
    assert world_sizes(world) == {0: 4}


def phases_by_index(world: World) -> dict[int, str]:
    entries = [e for u in world.all("NeuronUltraServer") for e in u.get("status", {}).get("allocations", [])]
    return {e["ultraserverIndex"]: e["phase"] for e in entries}


def test_growth_opens_after_every_group_publishes_its_size() -> None:
    """While a policy rejects the status of group 0, pods of new groups would wait for ranks that do not know them."""
    world = fleet(2)
    world.submit("job", size=4)
    world.settle()
    item = world.workload("job")
    item["spec"]["serverCount"] = 2
    world.put(item)

    def pass_with(unwritable: dict[str, str]) -> None:
        found = plan(replace(world.snapshot(), unwritable=unwritable), world.now)
        for action in found.actions:
            if getattr(action, "name", "") not in unwritable:
                world.write(action)
        world.tag_nodes()

    for _ in range(4):
        pass_with({"us-u0": "a policy rejects it"})
    assert phases_by_index(world) == {0: "Bound", 1: "Pending"}
    assert world_sizes(world) == {0: 4, 1: 8}
    world.settle()
    assert phases_by_index(world) == {0: "Bound", 1: "Bound"}
    assert world_sizes(world) == {0: 8, 1: 8}


def test_reason_of_a_stopped_controller_is_written_once() -> None:
    """13.5."""
    world = World(ultraserver("u0"))
    world.settle()
    world.submit("job")
    found = plan(replace(world.snapshot(), outdated="the CRD is old"), world.now)
    (action,) = found.actions
    assert isinstance(action, WriteWorkloadStatus)
    world.write(action)
    assert (world.state("job"), world.message("job")) == (("Pending", "CustomResourcesOutdated"), "the CRD is old")
    world.later(60)
    assert plan(replace(world.snapshot(), outdated="the CRD is old"), world.now).actions == ()
