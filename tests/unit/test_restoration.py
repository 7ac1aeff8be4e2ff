"""Reservations survive their objects, AWS's operator and other releases; exact owners are required."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from hack.bench.ultraservers import ultraserver
from neuron_dra.core.ultraserver import NAMESPACE, Phase
from neuron_dra.planner.decisions.actions import Evict, WriteWorkloadStatus
from neuron_dra.planner.observed import decode
from neuron_dra.planner.plan.planning import Limits, plan
from tests.unit.ultraserver_world import World

RESERVED = "neuron.aws.com/ultraserver-reserved"
NODES = ("u0-0", "u0-1", "u0-2", "u0-3")


def fleet(count: int = 2) -> World:
    world = World([item for n in range(count) for item in ultraserver(f"u{n}")])
    world.settle()
    return world


def running(count: int = 1, servers: int = 2, **spec: Any) -> World:
    """A fleet with an allocated workload, and a claim of a pod of it on each of its nodes."""
    world = fleet(servers)
    world.submit("job", count=count, **spec)
    world.settle()
    uid = world.workload("job")["metadata"]["uid"]
    for nodes in world.reserved("job").values():
        for name in nodes:
            world.claim(f"claim-{name}", [name], workload_uid=uid)
    world.settle()
    world.log.clear()
    return world


def server(world: World, name: str = "us-u0") -> dict[str, Any]:
    return world.get("NeuronUltraServer", name, NAMESPACE)


def servers_with_finalizer(world: World) -> list[str]:
    return [
        item["metadata"]["name"]
        for item in world.all("NeuronUltraServer")
        if RESERVED in item["metadata"].get("finalizers", [])
    ]


def tell(world: World, name: str = "us-u0") -> tuple[str, str]:
    condition = next(c for c in server(world, name)["status"]["conditions"] if c["type"] == "Degraded")
    return condition["reason"], condition["message"]


def degraded(world: World) -> tuple[str, str]:
    """Return reason and message of the job's condition Degraded."""
    condition = next(c for c in world.workload("job")["status"]["conditions"] if c["type"] == "Degraded")
    return condition["reason"], condition["message"]


def evictions(world: World) -> list[Evict]:
    return [action for action in world.log if isinstance(action, Evict)]


def take_ids(world: World, name: str = "us-u0") -> None:
    """Reduce the allocations to the fields of AWS's operator, or of its CRD."""
    item = copy.deepcopy(server(world, name))
    kept = ("workloadRef", "phase", "nodeCount", "allocatedNodes", "leaderNodeName", "ultraserverIndex", "allocatedAt")
    item["status"]["allocations"] = [{key: entry[key] for key in kept} for entry in item["status"]["allocations"]]
    world.put(item)


def take_tags(world: World) -> None:
    """Reduce the slices to the attributes of another driver."""
    for item in world.all("ResourceSlice"):
        for device in item["spec"]["devices"]:
            device["attributes"] = {
                k: v for k, v in device["attributes"].items() if not k.startswith(("workload", "allocationId"))
            }
        world.put(item)


# -- the finalizer -----------------------------------------------------------------------------------------------------


def test_reserved_ultraserver_has_the_finalizer() -> None:
    """13.3. World rejects a reservation that is written without it."""
    world = running()
    assert servers_with_finalizer(world) == ["us-u0"]
    for item in world.all("ResourceClaim"):
        world.remove("ResourceClaim", item["metadata"]["name"], "ml")
    world.delete_workload("job")
    world.settle()
    assert servers_with_finalizer(world) == []
    assert all(item["status"]["allocations"] == [] for item in world.all("NeuronUltraServer"))


def test_old_reservations_get_finalizer_and_copy() -> None:
    """13.3."""
    world = running()
    item, job = copy.deepcopy(server(world)), copy.deepcopy(world.workload("job"))
    item["metadata"]["finalizers"] = ["example.com/other"]
    del job["status"]["groups"]
    world.put(item)
    world.put(job)
    world.settle()
    assert server(world)["metadata"]["finalizers"] == ["example.com/other", RESERVED]
    (group,) = world.workload("job")["status"]["groups"]
    (entry,) = server(world)["status"]["allocations"]
    assert group == {
        "ultraserverIndex": 0,
        "ultraserver": "us-u0",
        "ultraserverUid": server(world)["metadata"]["uid"],
        "allocationId": entry["allocationId"],
        "nodes": list(NODES),
        "nodeUids": entry["nodeUids"],
    }


def deleted(world: World, name: str = "us-u0") -> None:
    item = copy.deepcopy(server(world, name))
    item["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    world.put(item)


def test_deletion_waits_for_the_workload() -> None:
    """13.3. `kubectl delete nus`."""
    world = running()
    deleted(world)
    world.submit("other", count=2)
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")
    assert world.state("other") == ("Pending", "InsufficientCapacity")
    assert tell(world) == (
        "DeletionWaits",
        "its deletion waits for NeuronUltraServerWorkload ml/job: delete the workloads to release the nodes; until "
        "then their pods keep running, and nothing new is reserved here",
    )
    world.delete_workload("job")
    world.settle()
    assert "deletionTimestamp" not in server(world)["metadata"]  # deleted and recreated
    assert world.state("other") == ("Allocated", "Allocated")


# -- deleted by force --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.parametrize("servers", [("us-u0",), ("us-u0", "us-u1")])
def test_lost_reservation_is_restored_first(servers: tuple[str, ...], wiped: bool) -> None:
    """13.3. Ids, indices and order of the nodes are as before, and pods keep running; also with all slices deleted."""
    world = running(count=2, servers=4)
    world.submit("next", count=2)
    before = {name: server(world, name)["status"]["allocations"] for name in servers}
    slices = world.all("ResourceSlice")
    for name in servers:
        world.remove("NeuronUltraServer", name, NAMESPACE)
    for item in slices if wiped else ():
        world.remove("ResourceSlice", item["metadata"]["name"])
    world.step()
    world.step()
    for item in slices if wiped else ():
        world.put(item)
    world.settle()
    assert {name: server(world, name)["status"]["allocations"] for name in servers} == before
    assert [name for name in servers if RESERVED in server(world, name)["metadata"]["finalizers"]] == list(servers)
    assert world.state("job") == ("Allocated", "Allocated")
    assert evictions(world) == []
    assert set(world.reserved("next")) == {0, 1}
    uids = {group["ultraserver"]: group["ultraserverUid"] for group in world.workload("job")["status"]["groups"]}
    assert {name: uids[name] for name in servers} == {name: server(world, name)["metadata"]["uid"] for name in servers}


@pytest.mark.parametrize("silent", [(), NODES], ids=["nodes show Draining", "nodes still show Bound"])
def test_moving_group_survives_forced_deletion(silent: tuple[str, ...]) -> None:
    """13.3. Otherwise two containers would have one rank. Nodes whose plugin is down show their last tag."""
    world = running(allocationPolicy={"failureStrategy": "MigrateAffected"})
    world.silent = set(silent)
    world.budget = {f"pod-claim-{name}": "a budget" for name in NODES}
    item = copy.deepcopy(world.get("ResourceSlice", "u0-1-neuron.aws.com-00"))
    for device in item["spec"]["devices"]:
        device["attributes"] |= {"linkVertical": {"bool": False}, "ultraserverModes": {"string": "1"}}
    world.put(item)
    world.step()
    world.later(240)
    for _ in range(4):
        world.step()
    assert {e["phase"] for u in world.all("NeuronUltraServer") for e in u["status"]["allocations"]} == {
        "Draining",
        "Pending",
    }
    world.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    for _ in range(4):
        world.step()
    (old,) = server(world)["status"]["allocations"]
    (new,) = server(world, "us-u1")["status"]["allocations"]
    assert (old["phase"], new["phase"]) == ("Draining", "Pending")
    world.silent, world.budget = set(), {}
    for _ in range(6):
        world.step()
    assert (server(world)["status"]["allocations"], world.reserved("job")) == (
        [],
        {0: ("u1-0", "u1-1", "u1-2", "u1-3")},
    )


REJECTED = {"us-u0": "a policy rejects it"}
UNSTORED = (
    "reservations cannot be changed or stored, because the status of NeuronUltraServer us-u0 cannot be written: a "
    "policy rejects it"
)


@pytest.mark.parametrize("kind", ["Ready", "Degraded"])
def test_workload_explains_what_cannot_be_stored(kind: str) -> None:
    """13.3: its status waited for the write of the reservations, and said for ever what held before it."""
    world = running(count=2)
    world.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    world.step()
    if kind == "Ready":
        world.delete_workload("job")
    made = plan(replace(world.snapshot(), unwritable=REJECTED), world.now)
    [write] = [action for action in made.actions if isinstance(action, WriteWorkloadStatus)]
    world.write(write)
    shown = [
        (each["type"], each["status"])
        for each in world.workload("job")["status"]["conditions"]
        if (each["reason"], each["message"]) == ("ReservationNotStored", UNSTORED)
    ]
    # What a workload that does not run waited for is not so any more.
    assert shown == {"Degraded": [("Degraded", "True")], "Ready": [("Ready", "False"), ("Progressing", "False")]}[kind]
    again = plan(replace(world.snapshot(), unwritable=REJECTED), world.now)
    assert not [action for action in again.actions if isinstance(action, WriteWorkloadStatus)]


def forge_groups(
    world: World, name: str, nodes: tuple[str, ...], allocation_id: str = "f" * 16, ultraserver: str = "us-gone"
) -> None:
    """Write a copy of a reservation that never existed, as a user with all rights in the namespace can."""
    item = copy.deepcopy(world.workload(name))
    where = {"ultraserverIndex": 0, "ultraserver": ultraserver, "nodes": list(nodes)}
    record = {**where, "allocationId": allocation_id}
    item["status"] = {**item.get("status", {}), "allocatedAt": "2026-03-01T12:00:00Z", "groups": [record]}
    world.put(item)


def test_forged_copy_gives_no_published_node() -> None:
    """Free nodes have no tag: a copy that names them is not of a reservation."""
    world = fleet(2)
    world.submit("job")
    forge_groups(world, "job", ("u1-0", "u1-1", "u1-2", "u1-3"))
    world.settle()
    world.submit("next")
    world.settle()
    assert (world.reserved("job"), world.reserved("next")) == ({0: NODES}, {0: ("u1-0", "u1-1", "u1-2", "u1-3")})


def test_copy_with_the_id_of_another_workload_is_not_believed() -> None:
    world = running()
    (entry,) = server(world)["status"]["allocations"]
    world.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    world.submit("thief")
    world.workload("thief")["metadata"]["uid"] = "uid-0"  # copies are looked at in the order of UIDs
    forge_groups(world, "thief", NODES, entry["allocationId"], "us-u0")
    world.step()
    world.step()
    assert world.reserved("job") == {0: NODES}


def test_reserved_claim_on_an_untagged_node_restores_the_group() -> None:
    """An older driver publishes no tag. The pod runs on, and no other may get its rank."""
    world = running(servers=3)
    for item in world.all("ResourceClaim"):
        item["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "workload.neuron.aws.com"
        world.put(item)
    before = [entry["allocatedNodes"] for entry in server(world)["status"]["allocations"]]
    world.silent = {"u0-2"}
    item = world.get("ResourceSlice", "u0-2-neuron.aws.com-00")
    for device in item["spec"]["devices"]:
        kept = {k: v for k, v in device["attributes"].items() if not k.startswith(("workload", "allocationId"))}
        device["attributes"] = kept
    world.put(item)
    world.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    world.settle()
    assert [entry["allocatedNodes"] for entry in server(world)["status"]["allocations"]] == before
    assert evictions(world) == []


def unpublished(world: World, *names: str) -> list[dict[str, Any]]:
    """Remove the slices of these nodes, and return them."""
    slices = [item for item in world.all("ResourceSlice") if item["spec"]["nodeName"] in names]
    for item in slices:
        world.remove("ResourceSlice", item["metadata"]["name"])
    return slices


def test_copy_of_silent_nodes_holds_them_closed() -> None:
    """Nothing proves the copy, so no node is Bound; nothing contradicts it, so no other node is reserved either."""
    world = running(servers=3)
    before = server(world)["status"]["allocations"]
    slices = unpublished(world, *NODES)
    world.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    world.step()
    world.step()
    assert (world.state("job")[0], world.reserved("job")) == ("Allocated", {})
    assert degraded(world) == (
        "ReservationNotSeen",
        "the NeuronUltraServer with reservations of this workload was deleted, and the nodes that show them publish "
        "nothing: u0-0, u0-1, u0-2, u0-3; they stay closed, and nothing is reserved or released, until they publish "
        "again; to give them up, delete their Nodes",
    )
    for item in slices:
        world.put(item)
    world.settle()
    assert server(world)["status"]["allocations"] == before
    assert (world.state("job"), evictions(world)) == (("Allocated", "Allocated"), [])


@pytest.mark.parametrize("contradiction", ["claim", "limit"])
def test_contradicted_copy_of_silent_nodes_is_dropped(contradiction: str) -> None:
    world = fleet(2)
    world.submit("job")
    forge_groups(world, "job", ("u1-0", "u1-1", "u1-2", "u1-3"))
    slices = unpublished(world, "u1-0", "u1-1", "u1-2", "u1-3")
    limit = 4
    if contradiction == "claim":
        world.claim("other", ["u1-2"])
    else:
        limit = 3
    world.settle(Limits(max_reserved_nodes=limit))
    assert "reservations" not in world.message("job")
    for item in slices:
        world.put(item)
    world.settle(Limits(max_reserved_nodes=limit))
    assert world.reserved("job") == ({0: NODES} if contradiction == "claim" else {})


def test_removed_entry_is_not_restored() -> None:
    """13.3. A controller may die after it removed a reservation, and before it updated the workload."""
    world = running()
    copied = copy.deepcopy(world.workload("job")["status"]["groups"])
    for item in world.all("ResourceClaim"):
        world.remove("ResourceClaim", item["metadata"]["name"], "ml")
    world.put({**server(world), "status": {**server(world)["status"], "allocations": []}})
    world.tag_nodes()
    world.step()
    assert copied[0]["allocationId"] not in {e["allocationId"] for e in server(world)["status"]["allocations"]}


def test_orphaned_tags_are_released_after_claims() -> None:
    """13.3. Both kinds were deleted by force: the pods keep running, and their nodes are not reserved."""
    world = running(servers=1)
    world.silent = set(NODES)  # plugins keep the tag of a deleted object
    world.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    world.remove("NeuronUltraServerWorkload", "job", "ml")
    world.remove("ResourceClaimTemplate", "job", "ml")
    world.budget = {f"pod-claim-{name}": "a budget" for name in NODES}
    world.submit("next")
    world.step()
    world.step()
    assert [(e["phase"], e["allocatedNodes"]) for e in server(world)["status"]["allocations"]] == [
        ("Draining", list(NODES))
    ]
    assert world.reserved("next") == {}
    world.silent, world.budget = set(), {}
    world.settle()
    assert world.reserved("next") == {0: NODES}


def test_dead_nodes_old_tag_is_not_restored() -> None:
    """13.3."""
    world = running(servers=1)
    world.silent = set(NODES)
    world.remove("NeuronUltraServer", "us-u0", NAMESPACE)
    world.remove("NeuronUltraServerWorkload", "job", "ml")
    for name in NODES:
        node = copy.deepcopy(world.get("Node", name))
        node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        world.put(node)
    world.settle()
    assert server(world)["status"]["allocations"] == []


# -- entries of AWS's operator, and of other releases ------------------------------------------------------------------


def test_aws_entry_gets_ids_in_place() -> None:
    """13.3."""
    world = running()
    before = server(world)["status"]["allocations"]
    take_tags(world)
    job = copy.deepcopy(world.workload("job"))
    del job["status"]["groups"]
    world.put(job)
    take_ids(world)
    for item in world.all("ResourceClaim"):
        del item["status"]["allocation"]["devices"]["config"][0]["opaque"]["parameters"]["workloadUid"]
        world.put(item)
    world.settle()
    (entry,) = server(world)["status"]["allocations"]
    new = entry.pop("allocationId")
    assert {**entry, "allocationId": before[0]["allocationId"]} == before[0]
    assert (len(new), new != before[0]["allocationId"]) == (16, True)
    assert {s["spec"]["devices"][0]["attributes"]["allocationId"]["string"] for s in world.all("ResourceSlice")
            if s["spec"]["nodeName"] in NODES} == {new}  # fmt: skip
    assert (world.state("job"), evictions(world)) == (("Allocated", "Allocated"), [])
    assert servers_with_finalizer(world) == ["us-u0"]
    assert world.workload("job")["status"]["conditions"][2]["reason"] == "NoProblem"  # the claims are its own


def test_dropped_ids_are_restored_from_tags() -> None:
    """13.3, 13.5."""
    world = running()
    before = server(world)["status"]["allocations"]
    take_ids(world)
    world.settle()
    assert server(world)["status"]["allocations"] == before
    world.silent = set(NODES)
    for name in NODES:
        world.remove("ResourceSlice", f"{name}-neuron.aws.com-00")
    take_ids(world)
    world.settle()
    assert server(world)["status"]["allocations"] == before


def test_pending_aws_entry_gets_the_full_timeout() -> None:
    """13.3."""
    world = fleet()
    world.silent = set(NODES)
    world.submit("job")
    world.step()
    take_ids(world)
    world.later(3600)
    world.step()
    (entry,) = server(world)["status"]["allocations"]
    assert (entry["phase"], entry["allocatedAt"]) == ("Pending", "2026-03-01T13:00:00Z")
    world.silent = set()
    world.settle()
    assert world.reserved("job") == {0: NODES}


@pytest.mark.parametrize("spec", [{"topologySize": 2, "serverCount": 2}, {"topologySize": 4, "serverCount": 1}])
def test_outgrown_pending_entry_is_given_up(spec: dict[str, int]) -> None:
    """13.3, 13.6: an old CRD dropped its ids, and then topologySize changed: it kept its nodes permanently."""
    world = fleet()
    world.silent = set(NODES)
    world.submit("job", count=2)
    world.step()
    for name in ("us-u0", "us-u1"):
        take_ids(world, name)
    job = copy.deepcopy(world.workload("job"))
    job["spec"] |= spec
    world.put(job)
    world.silent = set()
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")
    assert [len(nodes) for nodes in world.reserved("job").values()] == [spec["topologySize"]] * spec["serverCount"]
    assert evictions(world) == []


def drain_elsewhere(world: World) -> None:
    """Put a Draining group of the job on u1: an earlier one with the index of the group on u0."""
    names = [f"u1-{number}" for number in range(4)]
    item = copy.deepcopy(server(world, "us-u1"))
    moved = {
        "phase": "Draining",
        "allocationId": "earlier",
        "allocatedNodes": names,
        "leaderNodeName": names[0],
        "nodeUids": [world.get("Node", name)["metadata"]["uid"] for name in names],
    }
    item["status"]["allocations"] = [{**server(world)["status"]["allocations"][0], **moved}]
    item["metadata"]["finalizers"] = [RESERVED]
    world.put(item)
    world.tag_nodes()


@pytest.mark.parametrize("spec", [{}, {"topologySize": 2}], ids=str)
def test_draining_entry_that_lost_its_ids_is_released(spec: dict[str, int]) -> None:
    """30: AWS's CRD had dropped them. Its index is that of the group that replaced it, and it waited for ever.

    Also if its workload has another topologySize meanwhile.
    """
    world = running()
    drain_elsewhere(world)
    take_ids(world, "us-u1")
    job = copy.deepcopy(world.workload("job"))
    job["spec"] |= spec
    world.put(job)
    world.settle()
    phases = [entry["phase"] for name in ("us-u0", "us-u1") for entry in server(world, name)["status"]["allocations"]]
    assert (world.state("job"), phases) == (("Allocated", "Allocated"), ["Bound"])
    assert world.reserved("job") == {0: NODES} or spec


@pytest.mark.parametrize("spec", [{"serverCount": 1}, {"topologySize": 2}], ids=str)
def test_outgrown_entry_that_lost_its_ids_is_released(spec: dict[str, int]) -> None:
    """30: the spec changed while the ids were gone."""
    world = running(count=2)
    take_ids(world, "us-u1")
    job = copy.deepcopy(world.workload("job"))
    job["spec"] |= spec
    world.put(job)
    world.settle()
    assert world.state("job") == ("Allocated", "Allocated")
    wanted = {"topologySize": 4, "serverCount": 2, **spec}
    assert [len(nodes) for nodes in world.reserved("job").values()] == [wanted["topologySize"]] * wanted["serverCount"]


@pytest.mark.parametrize("next_one", [False, True], ids=["gone", "another of its name"])
def test_entry_that_lost_its_ids_is_released_without_its_workload(next_one: bool) -> None:
    """30: the nodes show that it is of a workload that is gone, and not of the next one with its name."""
    world = running(servers=1)
    world.remove("NeuronUltraServerWorkload", "job", "ml")
    world.remove("ResourceClaimTemplate", "job", "ml")
    take_ids(world)
    if next_one:
        world.submit("job")
    world.settle()
    assert [action.name for action in evictions(world)] == [f"claim-{name}" for name in NODES]
    entries = server(world)["status"]["allocations"]
    assert [entry["workloadUid"] for entry in entries] == (
        [world.workload("job")["metadata"]["uid"]] if next_one else []
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"phase": "Suspended"}, "phase 'Suspended' is not one of Pending, Bound, Draining"),
        ({"allocationId": None, "workloadUid": None, "ultraserverIndex": 7}, "has an index beyond spec.serverCount 1"),
        ({"allocationId": None, "workloadUid": "uid-old"}, "has workload UID uid-old, and the workload's is"),
        (
            {"allocationId": None, "nodeUids": None, "nodeCount": 2, "allocatedNodes": ["u0-0", "u0-1"]},
            "has 2 nodes, and spec.topologyS",
        ),
    ],
)
def test_unreadable_entry_keeps_its_nodes(change: dict[str, Any], why: str) -> None:
    """13.3. Its workload gets no second group under the same index."""
    world = running()
    item = copy.deepcopy(server(world))
    entry = {**item["status"]["allocations"][0], **change}
    entry = {key: value for key, value in entry.items() if value is not None}
    item["status"]["allocations"] = [entry]
    world.put(item)
    take_tags(world)
    for claim in world.all("ResourceClaim"):
        world.remove("ResourceClaim", claim["metadata"]["name"], "ml")
    world.silent = set(NODES)
    world.submit("other", count=2)
    world.settle()
    assert server(world)["status"]["allocations"] == [entry]
    reason, message = tell(world)
    assert (reason, why in message, "remove the entries from status.allocations" in message) == (
        "UnreadableReservation",
        True,
        True,
    )
    assert world.state("job") == ("Allocated", "UnreadableReservation")
    assert world.state("other") == ("Pending", "InsufficientCapacity")
    assert servers_with_finalizer(world) == ["us-u0"]


def test_nodes_beside_unreadable_entry_are_released_and_reserved() -> None:
    """13.3: their tags stayed, so no pod and no workload could use these nodes again."""
    world = fleet(1)
    for name in ("kept", "job"):
        world.submit(name, size=2)
        world.settle()
    item = copy.deepcopy(server(world))
    item["status"]["allocations"][0]["phase"] = "Suspended"
    world.put(item)
    world.delete_workload("job")
    world.settle()
    assert [
        s["spec"]["nodeName"]
        for s in world.all("ResourceSlice")
        if "workloadPhase" in s["spec"]["devices"][0]["attributes"]
    ] == ["u0-0", "u0-1"]
    world.submit("next", size=2)
    world.settle()
    assert (world.state("next"), world.reserved("next")) == (("Allocated", "Allocated"), {0: ("u0-2", "u0-3")})


def test_workload_waits_for_unreadable_entries() -> None:
    """13.3."""
    world = running()
    item = copy.deepcopy(server(world))
    item["status"]["allocations"][0]["phase"] = "Suspended"
    world.put(item)
    world.submit("other", count=2)
    world.delete_workload("job")
    world.settle()
    assert world.state("job") == ("Deallocating", "UnreadableReservation")
    assert server(world)["status"]["allocations"] == item["status"]["allocations"]
    for claim in world.all("ResourceClaim"):
        world.remove("ResourceClaim", claim["metadata"]["name"], "ml")
    world.put({**server(world), "status": {**server(world)["status"], "allocations": []}})
    world.tag_nodes()
    world.settle()
    assert [w["metadata"]["name"] for w in world.all("NeuronUltraServerWorkload")] == ["other"]


def test_unreadable_entry_without_workload_stays() -> None:
    """13.3."""
    world = running()
    world.remove("NeuronUltraServerWorkload", "job", "ml")
    take_ids(world)
    take_tags(world)
    world.silent = set(NODES)
    entries = server(world)["status"]["allocations"]
    world.step()
    world.step()
    assert server(world)["status"]["allocations"][-1:] == entries
    assert "for ml/job, group 0, names a NeuronUltraServerWorkload that does not exist" in tell(world)[1]


# -- owners ------------------------------------------------------------------------------------------------------------


def template(**meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "job", "namespace": "ml", "uid": "t-1", **meta},
        "spec": {"spec": {"devices": {"config": []}}},
    }


def owner(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "name": "job",
        "uid": "uid-job",
        "controller": True,
        **changes,
    }


JOB = decode.workload(
    {
        "metadata": {"name": "job", "namespace": "ml", "uid": "uid-job"},
        "spec": {"instanceType": "trn3.48xlarge", "topologySize": 4, "serverCount": 1},
    }
)


@pytest.mark.parametrize(
    ("meta", "ours"),
    [
        ({"ownerReferences": [owner()]}, True),
        ({"ownerReferences": [owner(apiVersion="neuron.aws.com/v1")]}, True),
        ({"ownerReferences": [owner(controller=False)]}, False),
        ({"ownerReferences": [owner(kind="Deployment")]}, False),
        ({"ownerReferences": [owner(apiVersion="example.com/v1")]}, False),
        ({"ownerReferences": [owner(uid="uid-other")]}, False),
        ({"ownerReferences": [owner()], "namespace": "dev"}, False),
        ({}, False),
    ],
)
def test_own_template_needs_exact_owner(meta: dict[str, Any], ours: bool) -> None:
    """13.8."""
    assert decode.template(template(**meta)).is_of(JOB) is ours


def test_aws_template_is_replaced_once_bound() -> None:
    """13.3. Its DeviceClass does not select tagged nodes, so new pods could not start."""
    parameters = {"kind": "UltraServerConfig", "ultraserverMode": 4, "workloadId": "job"}
    config = [{"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}]
    official = {**template(), "spec": {"spec": {"devices": {"config": config}}}}
    assert decode.template(official).is_of(JOB)
    foreign = [{"opaque": {"driver": "example.com", "parameters": parameters}}]
    assert not decode.template({**official, "spec": {"spec": {"devices": {"config": foreign}}}}).is_of(JOB)
    world = running()
    ours = world.get("ResourceClaimTemplate", "job", "ml")
    world.put({**official, "kind": "ResourceClaimTemplate"})
    take_ids(world)
    world.settle()
    again = world.get("ResourceClaimTemplate", "job", "ml")
    assert (again["spec"], again["metadata"]["ownerReferences"]) == (ours["spec"], ours["metadata"]["ownerReferences"])
    assert (world.state("job"), evictions(world)) == (("Allocated", "Allocated"), [])


def used(*config: dict[str, Any], namespace: str = "ml") -> dict[str, Any]:
    results = [{"driver": "neuron.aws.com", "pool": "u0-0", "device": "neuron-node-0"}]
    return {
        "metadata": {"name": "c", "namespace": namespace},
        "status": {"allocation": {"devices": {"results": results, "config": list(config)}}},
    }


def opaque(driver: str = "neuron.aws.com", **parameters: Any) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": parameters}}


NAMED = opaque(workloadId="job", workloadUid="uid-job")


@pytest.mark.parametrize(
    ("claim", "own"),
    [
        (used(NAMED), True),
        (used(opaque(workloadId="job")), True),  # of AWS's operator
        (used(NAMED, namespace="dev"), False),
        (used(opaque(workloadId="job"), namespace="dev"), False),
        (used(opaque("example.com", workloadId="job", workloadUid="uid-job")), False),
        (used(opaque(workloadUid="uid-job")), False),
        (used(opaque(workloadId="job", workloadUid="uid-old")), False),
        (used(opaque(workloadId="other", workloadUid="uid-job")), False),
        (used(NAMED, opaque(workloadId="other", workloadUid="uid-other")), False),
        (used(), False),
    ],
)
def test_own_claim_needs_exact_match(claim: dict[str, Any], own: bool) -> None:
    """13.8."""
    world = fleet(1)
    world.submit("job")
    world.step()
    (reservation,) = decode.ultraserver(server(world)).reservations
    held = reservation.changed(workload_uid="uid-job", phase=Phase.BOUND).allocation
    use = decode.claim_use(claim)
    assert use is not None
    assert use.is_of(held) is own


def test_foreign_claim_naming_a_workload_is_ignored() -> None:
    """13.8."""
    world = running()
    item = copy.deepcopy(world.get("ResourceClaim", "claim-u0-0", "ml"))
    world.remove("ResourceClaim", "claim-u0-0", "ml")
    item["metadata"]["namespace"] = "dev"
    world.put(item)
    world.delete_workload("job")
    world.settle()
    assert world.all("NeuronUltraServerWorkload") == []
    assert {action.namespace for action in evictions(world)} == {"ml"}


def test_foreign_template_does_not_delay_release() -> None:
    """13.8."""
    world = running()
    uid = world.workload("job")["metadata"]["uid"]
    other = template(namespace="dev", ownerReferences=[owner(uid=uid)])
    world.put({**other, "kind": "ResourceClaimTemplate"})
    world.delete_workload("job")
    world.settle()
    assert world.all("NeuronUltraServerWorkload") == []
    assert [item["metadata"]["namespace"] for item in world.all("ResourceClaimTemplate")] == ["dev"]
