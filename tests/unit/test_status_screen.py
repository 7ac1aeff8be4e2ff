"""`status`: counts, UltraServers, and the pods that wait, within 80 columns (17.1)."""

from __future__ import annotations

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small


def screen(items: list[Obj], *, wide: bool = False) -> list[str]:
    return status_text.lines(World(snapshot.build(items), proposes=False), "", wide=wide)


def ultraserver(name: str, node: str, position: int) -> list[Obj]:
    """A node of an UltraServer with its slice."""
    slices = small.slices(node, "trn2u.48xlarge")
    for device in slices[0]["spec"]["devices"]:
        device["attributes"] |= {
            "ultraserverId": {"string": name},
            "ultraserverNodeId": {"int": position},
            "linkVertical": {"bool": True},
            "linkHorizontal": {"bool": position != 3},
        }
    return [small.node(node, "trn2u.48xlarge"), *slices]


def test_fleet_is_counted_by_type() -> None:
    items = faults.healthy()
    items += [small.node("inf-0", "inf2.48xlarge"), *small.slices("inf-0", "inf2.48xlarge")]
    items += [small.node("silent", "trn2.48xlarge"), small.node("web", "m5.large")]
    slices = faults.all_of(items, "ResourceSlice")
    slices[0]["spec"]["devices"][15]["taints"] = [{"key": "neuron.aws.com/unhealthy", "effect": "NoSchedule"}]
    assert screen(items)[:11] == [
        "WRONG",
        "  unhealthy: neuron.aws.com/unhealthy: node a (device 15)",
        "  publishes nothing: node silent",
        "",
        "TYPE           MOST ON A NODE  FREE        OF 4  OF 8  OF 16",
        "inf2.48xlarge  12              12 devices  -     -     -",
        "trn2.48xlarge  16              27 devices  6     2     1",
        "",
        "TYPE           NODES  PUBLISHED   HELD  UNHEALTHY  RESERVED  PROBLEMS",
        "inf2.48xlarge  1      12 devices  0     0          0",
        "trn2.48xlarge  3      32 devices  4     1          0         1 silent",
    ]


def test_ultraservers_show_reservations_and_links() -> None:
    items = small.base()
    for position in range(4):
        items += ultraserver("us-1", f"u{position}", position)
    slices = faults.all_of(items, "ResourceSlice")
    rest = [item for item in items if item not in slices]
    lines = screen([*rest, *small.reserved(slices[:2], "job"), *slices[2:]])
    place = lines.index("ULTRASERVER")
    assert lines[place + 1] == "us-1  trn2u.48xlarge  2 ml/job Bound, 2 free; horizontal links down"


def test_waiting_pods_show_their_cause() -> None:
    items = faults.healthy()
    faults.change_requests(items, count=17)
    lines = screen(items)
    assert lines[lines.index("WAITING (1 pod)") + 1].startswith("default/p: request neurons wants 17 devices")
    data = status_text.data(World(snapshot.build(items)), "")
    assert data["waiting"] == [{"pod": "default/p", "since": None}]
    assert status_text.data(World(snapshot.build(items)), "other")["waiting"] == []


def test_screen_has_at_most_80_columns() -> None:
    items = faults.healthy()
    faults.change_requests(items, count=17)
    assert max(map(len, screen(items))) <= 80


def test_wide_names_every_node_and_its_users() -> None:
    lines = screen(faults.healthy(), wide=True)
    assert "a     trn2.48xlarge  12    4     0          default/other" in lines
    assert "b     trn2.48xlarge  16    0     0          free" in lines


def test_connected_sets_in_use_hold_their_devices() -> None:
    """A set has no device of its own: the devices whose counters it consumes are held."""
    items = small.base("a")
    spec = faults.all_of(items, "ResourceSlice")[0]["spec"]
    counters = [{"name": "devices", "counters": {f"d{n}": {"value": "1"} for n in range(16)}}]
    for number, device in enumerate(spec["devices"]):
        device["consumesCounters"] = [{"counterSet": "devices", "counters": {f"d{number}": {"value": "1"}}}]
    used = {f"d{n}": {"value": "1"} for n in range(4, 8)}
    consumed = [{"counterSet": "devices", "counters": used}]
    spec["devices"].append({"name": "neuron-set-4-4", "attributes": {}, "consumesCounters": consumed})
    spec["pool"]["resourceSliceCount"] = 2
    first = next(item for item in items if item["kind"] == "ResourceSlice")
    items.append(
        {**first, "metadata": {"name": "a-counters"}, "spec": {**spec, "devices": [], "sharedCounters": counters}}
    )
    result = {"request": "r", "driver": "neuron.aws.com", "pool": "a", "device": "neuron-set-4-4"}
    claim = {
        "apiVersion": small.API,
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "set"}],
        },
    }
    assert screen([*items, claim])[1] == "trn2.48xlarge  12              12 devices  3     1     0"


def test_cluster_without_neuron_nodes_says_so() -> None:
    assert screen([small.node("web", "m5.large")])[0].startswith("no Neuron nodes")


def workload(name: str, *conditions: tuple[str, str, str, str], state: str = "Pending") -> Obj:
    fields = ("type", "status", "reason", "message")
    listed = [dict(zip(fields, each, strict=True)) for each in conditions]
    meta = {"name": name, "namespace": "ml"}
    kind = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronUltraServerWorkload"}
    return {**kind, "metadata": meta, "spec": {}, "status": {"state": state, "conditions": listed}}


INVALID = ("Ready", "False", "InvalidSpec", "spec.topologySize is 3: write 1, 2 or 4")
READY = ("Ready", "True", "Allocated", "all nodes are reserved")


def test_workloads_that_wait_are_named_without_pods() -> None:
    items = [*faults.healthy(), workload("llm", INVALID), workload("fine", READY, state="Allocated")]
    lines = screen(items)
    place = lines.index("WORKLOADS (1 waits)")
    assert lines[place + 1] == "ml/llm is Pending: InvalidSpec: spec.topologySize is 3: write 1, 2 or 4"
    data = status_text.data(World(snapshot.build(items)), "")
    assert data["workloads"] == [
        {"workload": "ml/llm", "state": "Pending", "reason": "InvalidSpec", "message": INVALID[3]}
    ]
    assert status_text.data(World(snapshot.build(items)), "other")["workloads"] == []


@pytest.mark.parametrize(
    ("item", "line"),
    [
        (
            workload("a", READY, ("Degraded", "True", "NodeGone", "nodes are gone: u1"), state="PartiallyAllocated"),
            "ml/a is PartiallyAllocated: NodeGone: nodes are gone: u1",
        ),
        (workload("a", state=""), "ml/a is not handled yet: does the UltraServer controller run?"),
    ],
    ids=["degraded", "no conditions"],
)
def test_workloads_say_what_they_wait_for(item: Obj, line: str) -> None:
    assert line in screen([*faults.healthy(), item])


def test_equal_waits_of_workloads_are_one_line() -> None:
    lines = screen([*faults.healthy(), *(workload(f"w{number}", INVALID) for number in range(3))])
    place = lines.index("WORKLOADS (3 wait)")
    assert lines[place + 1].startswith("3 workloads wait: InvalidSpec: spec.topologySize is 3")
    assert "ml/w0, ml/w1, ml/w2" in " ".join(lines[place + 2 :])


NO_FILE = (
    'failed to stat CDI host device "/dev/neuron5": no such file or directory, CDI device injection failed: failed to'
)


def test_pods_that_do_not_start_are_named() -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError", "message": NO_FILE}}}
    items = reported.started(containerStatuses=[waiting])
    lines = screen(items)
    place = lines.index("NOT STARTED (1 pod)")
    assert lines[place + 1].startswith("default/p: /dev/neuron5 is missing on node a: check udev")
    [found] = status_text.data(World(snapshot.build(items)), "")["notStarted"]
    assert (found["pod"], found["node"], found["code"]) == ("default/p", "a", "DeviceFileMissing")
    assert status_text.data(World(snapshot.build(items)), "other")["notStarted"] == []


def test_pods_that_are_starting_are_not_stuck() -> None:
    lines = screen(reported.started())
    assert not any(line.startswith("NOT STARTED") for line in lines)
    assert status_text.data(World(snapshot.build(reported.started())), "")["notStarted"] == []


def test_pod_that_its_kubelet_never_ends_is_stuck() -> None:
    items = reported.started(
        reported.event("FailedKillPod", 'error killing pod: pod "default/p": ResourceClaim not created yet')
    )
    items = [each for each in items if each["kind"] != "ResourceClaim"]
    pod = reported.pod(items)
    pod["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    pod["status"].pop("resourceClaimStatuses", None)
    lines = screen(items)
    place = lines.index("NOT STARTED (1 pod)")
    assert "its claim neurons was never created" in " ".join(lines[place:])


def node_with(**status: object) -> list[Obj]:
    items = small.base("a", "b")
    reported.node(items)["status"] |= status
    return items


def disagreeing() -> list[Obj]:
    items = small.base("a", "b")
    [own] = [each for each in faults.all_of(items, "ResourceSlice") if each["spec"]["nodeName"] == "a"]
    other = {**own, "metadata": {"name": "foreign"}, "spec": {**own["spec"], "devices": []}}
    other["spec"]["pool"] = {**own["spec"]["pool"], "resourceSliceCount": 2}
    return [*items, other]


@pytest.mark.parametrize(
    ("items", "line"),
    [
        (
            node_with(nodeInfo={"containerRuntimeVersion": "docker://29.4.0"}),
            "  runtime docker://29.4.0 injects no CDI devices: cri-dockerd passes none on;",
        ),
        (node_with(nodeInfo={"kubeletVersion": "v1.31.4"}), "  kubelet v1.31.4 is too old; use 1.33 or later: node a"),
        (
            node_with(allocatable={"aws.amazon.com/neuron": "16"}),
            "  a Neuron device plugin offers aws.amazon.com/neuron: node a",
        ),
        (disagreeing(), "  its slices cannot be used: node a (the slices of pool neuron.aws.com/a"),
    ],
    ids=["runtime", "kubelet", "device plugin", "slices"],
)
def test_what_keeps_a_node_from_serving_is_wrong(items: list[Obj], line: str) -> None:
    lines = screen(items)
    assert lines[0] == "WRONG"
    assert lines[1].startswith(line)
