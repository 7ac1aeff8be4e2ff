"""Discovery of UltraServers, and messages when hardware, EC2 and Kubernetes disagree."""

from __future__ import annotations

from typing import Any

from hack.bench.ultraservers import facts, node_and_slice, ultraserver
from neuron_dra.core.facts import DEFAULT_SERVER_ID, UltraServerFacts, Unread
from tests.unit.ultraserver_world import World

PREFIX = "neuron.amazonaws.com/ultraserver-"


def settled(*objects: dict[str, Any]) -> World:
    world = World(objects)
    world.settle()
    return world


def ready(item: dict[str, Any]) -> tuple[str, str]:
    condition = next(c for c in item["status"]["conditions"] if c["type"] == "Ready")
    return condition["reason"], condition["message"]


def test_capacity_block_of_four_is_an_ultraserver() -> None:
    world = settled(*ultraserver("cr-1", "trn2u.48xlarge"))
    (item,) = world.all("NeuronUltraServer")
    assert (item["metadata"]["name"], item["spec"]["instanceType"]) == ("us-cr-1", "trn2u.48xlarge")
    assert [(e["nodeName"], e["nodeId"]) for e in item["spec"]["topology"]] == [(f"cr-1-{n}", n) for n in range(4)]
    assert {(e["linkStatusVertical"], e["linkStatusHorizontal"]) for e in item["spec"]["topology"]} == {("up", "up")}
    status = item["status"]
    assert (status["state"], status["availability"], status["supportedSizes"]) == ("Ready", "Available", "1_2_4")
    assert (status["nodeCount"], status["freeNodeCount"]) == (4, 4)


def test_plain_nodes_get_no_ultraserver_label() -> None:
    world = settled(*node_and_slice("plain", "trn1.32xlarge", None, UltraServerFacts()))
    assert world.all("NeuronUltraServer") == []
    assert not [name for name in world.get("Node", "plain")["metadata"]["labels"] if name.startswith(PREFIX)]


def test_nodes_get_the_labels_of_the_device_plugin() -> None:
    world = settled(*ultraserver("cr-1", "trn2u.48xlarge"))
    labels = {
        n: {
            name.removeprefix(PREFIX): value
            for name, value in world.get("Node", f"cr-1-{n}")["metadata"]["labels"].items()
            if name.startswith(PREFIX)
        }
        for n in range(4)
    }
    assert [(labels[n]["node-id-2"], labels[n]["node-id-4"]) for n in range(4)] == [
        ("0", "0"),
        ("1", "1"),
        ("0", "2"),
        ("1", "3"),
    ]
    assert {labels[n]["mode"] for n in range(4)} == {"1_2_4"}
    assert len({labels[n]["server-id-4"] for n in range(4)}) == 1
    assert labels[0]["server-id-2"] == labels[1]["server-id-2"] != labels[2]["server-id-2"] == labels[3]["server-id-2"]


def test_trn3_pair_has_its_own_label() -> None:
    world = settled(*ultraserver("cr-1", "trn3.48xlarge"))
    labels = [world.get("Node", f"cr-1-{n}")["metadata"]["labels"][f"{PREFIX}server-id-2"] for n in range(4)]
    assert labels[0] == labels[1] != labels[2] == labels[3]
    numbers = [world.get("Node", f"cr-1-{n}")["metadata"]["labels"][f"{PREFIX}node-id-2"] for n in range(4)]
    assert numbers == ["0", "1", "0", "1"]


def pair(server_id: str, first: int = 0) -> list[dict[str, Any]]:
    """Return two nodes whose election found only each other, and no capacity block."""
    objects: list[dict[str, Any]] = []
    for number in range(2):
        read = UltraServerFacts(modes=(3, 4), node_id_2=number, server_id_2=server_id)
        objects += node_and_slice(f"node-{first + number}", "trn2u.48xlarge", None, read)
    return objects


def test_pairs_are_ultraservers_of_two() -> None:
    world = settled(*pair("5a7b1c2d3e4f6070"), *pair("5a7b1c2d3e4f606f", first=2))
    items = world.all("NeuronUltraServer")
    assert [(item["metadata"]["name"], len(item["spec"]["topology"])) for item in items] == [
        ("us-5a7b1c2d3e4f606f-2", 2),
        ("us-5a7b1c2d3e4f6070-2", 2),
    ]
    assert {item["status"]["state"] for item in items} == {"Ready"}
    world.submit("job", instanceType="trn2u.48xlarge", size=2, count=2)
    world.settle()
    assert sorted(world.reserved("job").values()) == [("node-0", "node-1"), ("node-2", "node-3")]


def test_nodes_with_the_default_id_are_no_ultraserver() -> None:
    objects: list[dict[str, Any]] = []
    for number in range(4):
        read = UltraServerFacts(modes=(1, 3, 4), node_id=number, reservation_id=DEFAULT_SERVER_ID)
        objects += node_and_slice(f"node-{number}", "trn3.48xlarge", None, read)
    assert settled(*objects).all("NeuronUltraServer") == []


def test_duplicate_node_ids_are_reported() -> None:
    objects = ultraserver("cr-1")
    objects[-2:] = node_and_slice("cr-1-3", "trn3.48xlarge", "cr-1", facts("trn3.48xlarge", 2, "00000000000000aa"))
    for item in objects[1::2]:  # all of one partition
        item["spec"]["devices"][0]["attributes"]["reservationId"] = {"string": "00000000000000aa"}
    world = settled(*objects)
    assert ready(world.all("NeuronUltraServer")[0]) == (
        "DuplicateNodeId",
        "several nodes publish the same number of this UltraServer: 2",
    )
    world.submit("one", size=1, count=2)
    world.submit("two", size=1)
    world.settle()
    assert (world.reserved("one"), world.reserved("two")) == ({0: ("cr-1-0",), 1: ("cr-1-1",)}, {})


def test_changed_node_id_is_followed() -> None:
    world = settled(*ultraserver("cr-1")[:-4])
    _, slice_ = node_and_slice("cr-1-1", "trn3.48xlarge", "cr-1", facts("trn3.48xlarge", 3, "00000000000000aa"))
    world.put(slice_)
    world.settle()
    (item,) = world.all("NeuronUltraServer")
    assert [(e["nodeName"], e["nodeId"]) for e in item["spec"]["topology"]] == [("cr-1-0", 0), ("cr-1-1", 3)]


def test_busy_node_does_not_inherit_an_id() -> None:
    world = settled(*ultraserver("cr-1"))
    busy = UltraServerFacts(modes=Unread.BUSY, node_id=Unread.BUSY, reservation_id=Unread.UNKNOWN)
    node, slice_ = node_and_slice("cr-1-1", "trn3.48xlarge", "cr-1", busy)
    node["metadata"]["uid"] = slice_["metadata"]["ownerReferences"][0]["uid"] = "another-instance"
    world.put(node)
    world.put(slice_)
    world.settle()
    assert [e["nodeId"] for e in world.all("NeuronUltraServer")[0]["spec"]["topology"]] == [0, 2, 3]


def test_busy_node_joins_later() -> None:
    objects = ultraserver("cr-1")
    busy = UltraServerFacts(modes=Unread.BUSY, node_id=Unread.BUSY, reservation_id=Unread.UNKNOWN)
    world = settled(*objects[:2], *node_and_slice("cr-1-1", "trn3.48xlarge", "cr-1", busy), *objects[4:])
    (item,) = world.all("NeuronUltraServer")
    assert [e["nodeId"] for e in item["spec"]["topology"]] == [0, 2, 3]
    world.put(objects[3])
    world.settle()
    assert [e["nodeId"] for e in world.all("NeuronUltraServer")[0]["spec"]["topology"]] == [0, 1, 2, 3]


def test_slice_without_node_is_ignored() -> None:
    world = settled(*ultraserver("cr-1"), *ultraserver("cr-2"))
    world.remove("Node", "cr-1-3")
    world.submit("job")
    world.settle()
    assert world.reserved("job") == {0: tuple(f"cr-2-{n}" for n in range(4))}


def test_missing_slice_does_not_delay_other_labels() -> None:
    objects = ultraserver("cr-1")
    objects[1]["spec"]["pool"]["resourceSliceCount"] = 2
    world = settled(*objects)
    modes = [world.get("Node", f"cr-1-{n}")["metadata"]["labels"].get(f"{PREFIX}mode") for n in range(4)]
    assert modes == [None, "1_2_4", "1_2_4", "1_2_4"]


def test_node_with_missing_slice_is_not_reserved() -> None:
    objects = ultraserver("cr-1")
    objects[1]["spec"]["pool"]["resourceSliceCount"] = 2
    world = settled(*objects)
    world.submit("job", size=1, count=4)
    world.settle()
    assert (world.state("job")[0], world.reserved("job")) == ("Pending", {})


def test_link_changes_are_in_the_status() -> None:
    world = settled(*ultraserver("cr-1"))
    world.submit("job")
    world.settle()
    slice_ = world.get("ResourceSlice", "cr-1-2-neuron.aws.com-00")
    slice_["spec"]["devices"][0]["attributes"]["linkHorizontal"] = {"bool": False}
    world.put(slice_)
    world.settle()
    (item,) = world.all("NeuronUltraServer")
    assert [e["linkStatusHorizontal"] for e in item["spec"]["topology"]] == ["up", "up", "down", "up"]
    assert len(item["status"]["allocations"]) == 1


def test_node_problems_are_the_ultraservers_reason() -> None:
    world = settled(*ultraserver("cr-1"))
    node = world.get("Node", "cr-1-2")
    node["status"]["conditions"][0]["status"] = "Unknown"
    world.put(node)
    world.settle()
    assert ready(world.all("NeuronUltraServer")[0]) == ("NodeNotReady", "nodes that are not Ready: cr-1-2")
    node["status"]["conditions"][0]["status"] = "True"
    world.put(node)
    slice_ = world.get("ResourceSlice", "cr-1-2-neuron.aws.com-00")
    slice_["spec"]["devices"][0]["attributes"]["unhealthy"] = {"string": "link_interserver"}
    world.put(slice_)
    world.settle()
    reason, message = ready(world.all("NeuronUltraServer")[0])
    assert (reason, "cr-1-2" in message) == ("LinkDown", True)


def test_quarantined_nodes_are_reported() -> None:
    world = settled(*ultraserver("cr-1"))
    world.submit("job")
    world.settle()
    node = world.get("Node", "cr-1-3")
    node["status"]["conditions"][0]["status"] = "Unknown"
    world.put(node)
    world.silent = {"cr-1-3"}
    world.settle()
    assert "stay closed" not in ready(world.all("NeuronUltraServer")[0])[1]
    world.delete_workload("job")
    world.settle()
    message = ready(world.all("NeuronUltraServer")[0])[1]
    assert "stay closed after ml/job until cr-1-3 is Ready again" in message


def test_labels_follow_the_hardware() -> None:
    world = settled(*ultraserver("cr-1", "trn2u.48xlarge"))
    alone = UltraServerFacts(modes=(4,), node_id_4=Unread.UNKNOWN)
    _, slice_ = node_and_slice("cr-1-3", "trn2u.48xlarge", None, alone)
    world.put(slice_)
    world.settle()
    labels = world.get("Node", "cr-1-3")["metadata"]["labels"]
    assert [name for name in labels if name.startswith(PREFIX)] == []


def test_block_across_two_servers_is_degraded() -> None:
    objects = ultraserver("cr-1", "trn2u.48xlarge")
    wrong = facts("trn2u.48xlarge", 3, "00000000000000aa")
    objects[-2:] = node_and_slice("cr-1-3", "trn2u.48xlarge", "cr-1", wrong)
    world = settled(*objects)
    reason, message = ready(world.all("NeuronUltraServer")[0])
    assert reason == "IdentityMismatch"
    assert "capacity block cr-1 has nodes of several UltraServers" in message
    assert "00000000000000aa on cr-1-3" in message
    assert "on cr-1-0, cr-1-1, cr-1-2" in message
    world.submit("job", instanceType="trn2u.48xlarge", size=4)
    world.settle()
    assert world.state("job")[0] == "Pending"


def test_label_that_contradicts_driver_is_reported() -> None:
    world = settled(*ultraserver("cr-1"))
    node = world.get("Node", "cr-1-0")
    node["metadata"]["labels"]["topology.k8s.aws/capacity-block-id"] = "cr-9"
    world.put(node)
    world.settle()
    assert ready(world.all("NeuronUltraServer")[0]) == (
        "IdentityMismatch",
        "node cr-1-0 has the label of capacity block cr-9, and its driver publishes cr-1",
    )


def test_ultraserver_with_missing_node_is_degraded() -> None:
    world = settled(*ultraserver("cr-1")[:-2])
    (item,) = world.all("NeuronUltraServer")
    assert (item["status"]["state"], ready(item)) == ("Degraded", ("NodeMissing", "3 of 4 nodes exist"))


def test_missing_reserved_node_is_named() -> None:
    world = settled(*ultraserver("cr-1"))
    world.submit("job")
    world.settle()
    world.remove("ResourceSlice", "cr-1-3-neuron.aws.com-00")
    world.remove("Node", "cr-1-3")
    world.settle()
    assert ready(world.all("NeuronUltraServer")[0]) == ("NodeMissing", "3 of 4 nodes exist; gone: cr-1-3")


def test_deleted_node_leaves_and_returns() -> None:
    objects = ultraserver("cr-1")
    world = settled(*objects)
    world.remove("ResourceSlice", "cr-1-3-neuron.aws.com-00")
    world.remove("Node", "cr-1-3")
    world.settle()
    assert len(world.all("NeuronUltraServer")[0]["spec"]["topology"]) == 3
    for item in objects[-2:]:
        world.put(item)
    world.settle()
    assert world.all("NeuronUltraServer")[0]["status"]["state"] == "Ready"


def test_a_wiped_slice_keeps_the_node_a_member() -> None:
    world = settled(*ultraserver("cr-1"))
    world.remove("ResourceSlice", "cr-1-3-neuron.aws.com-00")
    world.settle()
    (item,) = world.all("NeuronUltraServer")
    assert len(item["spec"]["topology"]) == 4
    assert ready(item) == ("SliceMissing", "nodes that publish no ResourceSlice: cr-1-3")
    world.submit("job", size=4)
    world.settle()
    assert world.state("job")[0] == "Pending"


def test_slices_of_a_replaced_node_are_ignored() -> None:
    objects = ultraserver("cr-1")
    world = settled(*objects)
    node = world.get("Node", "cr-1-3")
    node["metadata"]["uid"] = "another-instance"
    world.put(node)
    world.settle()
    assert [e["nodeName"] for e in world.all("NeuronUltraServer")[0]["spec"]["topology"]] == [
        "cr-1-0",
        "cr-1-1",
        "cr-1-2",
    ]


def test_last_node_deletes_the_object() -> None:
    world = settled(*ultraserver("cr-1"))
    for n in range(4):
        world.remove("ResourceSlice", f"cr-1-{n}-neuron.aws.com-00")
        world.remove("Node", f"cr-1-{n}")
    world.settle()
    assert world.all("NeuronUltraServer") == []


def test_busy_node_keeps_its_id_without_slot() -> None:
    world = settled(*ultraserver("cr-1"))
    busy = UltraServerFacts(modes=Unread.BUSY, node_id=Unread.BUSY, reservation_id=Unread.UNKNOWN)
    _, slice_ = node_and_slice("cr-1-1", "trn3.48xlarge", "cr-1", busy)
    world.put(slice_)
    world.submit("pair", size=2)
    world.settle()
    (item,) = world.all("NeuronUltraServer")
    assert [e["nodeId"] for e in item["spec"]["topology"]] == [0, 1, 2, 3]
    assert "linkStatusVertical" not in item["spec"]["topology"][1]
    assert ready(item)[0] == "TopologyUnknown"
    assert world.reserved("pair") == {0: ("cr-1-2", "cr-1-3")}


def test_down_link_is_named_with_its_nodes() -> None:
    objects = ultraserver("cr-1")
    for n in (0, 1):
        broken = UltraServerFacts(modes=(4,), node_id=n, reservation_id="00000000000000aa")
        objects[2 * n : 2 * n + 2] = node_and_slice(f"cr-1-{n}", "trn3.48xlarge", "cr-1", broken)
    world = settled(*objects)
    (item,) = world.all("NeuronUltraServer")
    assert "links inside the rack are down, on: cr-1-0, cr-1-1" in ready(item)[1]
    assert [e["linkStatusVertical"] for e in item["spec"]["topology"]] == ["down", "down", "up", "up"]
