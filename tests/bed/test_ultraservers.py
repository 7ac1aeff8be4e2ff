"""UltraServers are reserved, used and released by the deployed controller and plugins on a real cluster."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from hack.bed.deployed import pod
from hack.bed.real_cluster import REPOSITORY, BedError, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import refusal, settled, stays_pending, with_efa
from tests.bed.fleet import (
    NODES,
    RANK,
    TRN3,
    condition,
    events_of,
    in_order,
    job,
    job_variables,
    pods,
    published,
    ranks,
    resize,
    scale,
    slots,
    submit,
    tags,
    uids,
    unplaced,
    wait_available,
    wait_reason,
    wait_state,
    without_policies,
    workload,
)
from tests.bed.recipes import idle

EXAMPLES = REPOSITORY / "deploy/examples"
DEPLOYMENT, WORKLOAD, TEMPLATE = "my-training-workload", "my-training-job", "my-training-job-rct"


def addresses(place: Namespace, service: str) -> list[str]:
    """Return the addresses in the EndpointSlice of a workload's Service."""
    found = place.get("endpointslices", f"--selector=kubernetes.io/service-name={service}")["items"]
    return [address for item in found for each in item["endpoints"] or () for address in each["addresses"]]


# The documents' job.


@pytest.fixture(
    params=[
        pytest.param((TRN3, "u1", "u2"), id="trn3"),
        pytest.param(("trn2u.48xlarge", "u", "v"), id="trn2u", marks=pytest.mark.long),
    ]
)
def pair(request: pytest.FixtureRequest, fleet: TestBed) -> tuple[str, list[str]]:
    """An instance type, and the eight nodes of its two UltraServers."""
    instance_type, *names = request.param
    nodes = [f"{name}-{position}" for name in names for position in range(4)]
    if not all(fleet.has(node, instance_type) for node in nodes):
        words = [word for name in names for word in ("--ultraserver", f"{name}={instance_type}")]
        fleet.command("up", *words, "--driver", "daemonset")
    return instance_type, nodes


@pytest.fixture
def training(fleet: TestBed, pair: tuple[str, list[str]]) -> Iterator[None]:
    """EFA interfaces on the eight nodes."""
    _, nodes = pair
    with with_efa(fleet, nodes):
        yield


@pytest.fixture
def job_place(training: None, place: Namespace) -> Namespace:
    """A namespace whose pods end before the driver stops serving interfaces."""
    return place


def test_documented_job_gets_two_ultraservers(
    fleet: TestBed, pair: tuple[str, list[str]], job_place: Namespace
) -> None:
    instance_type, nodes = pair
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "List", "items": idle("ultraservers/my-training-job.yaml")}
    made["items"][0]["spec"]["instanceType"] = instance_type
    job_place.apply(made)
    allocated = wait_state(job_place, WORKLOAD, "Allocated")
    wait_available(job_place, DEPLOYMENT)

    assert len(allocated["status"]["allocatedUltraServers"]) == 2
    assert tags(fleet) == dict.fromkeys(nodes, WORKLOAD)
    running = pods(job_place, DEPLOYMENT, "app=ultraserver-training")
    assert sorted(running) == sorted(nodes)
    facts, order = published(fleet), in_order(slots(fleet)[WORKLOAD])
    first = next(name for name, rank in order.items() if rank == 0)
    assert job_variables(job_place, running) == {
        node: {
            **variables_of(facts[node], mode="1"),
            RANK: str(order[node]),
            "NEURON_DRA_WORLD_SIZE": "8",
            "NEURON_DRA_RANK0_NODE": first,
            "NEURON_DRA_RANK0_ADDR": f"{WORKLOAD}-rank0.{job_place.name}.svc",
            "NEURON_GLOBAL_TOPOID0_HOST": f"{WORKLOAD}-rank0.{job_place.name}.svc",
            "NEURON_DRA_NOTICE_FILE": "/neuron-dra/notice.json",
        }
        for node in nodes
    }
    for item in running.values():
        names = job_place.exec(item["metadata"]["name"], "sh", "-c", "ls /dev/infiniband").split()
        assert sorted(names) == sorted([*(f"uverbs{number}" for number in range(16)), "rdma_cm"])
    assert sorted(order.values()) == list(range(8))
    service = f"{WORKLOAD}-rank0"  # 18.2
    eventually(
        "the Service leads to the pod with rank 0",
        lambda: addresses(job_place, service) == [running[first]["status"]["podIP"]],
    )

    job_place.kubectl("delete", "nusw", WORKLOAD, "--timeout=180s", timeout_s=190)
    waiting = unplaced(job_place, DEPLOYMENT, 8, "app=ultraserver-training")
    replacements = {item["metadata"]["uid"] for item in waiting}
    assert not replacements & set(uids(running).values())
    words = eventually(
        "a message about the template", lambda: events_of(job_place, replacements, "FailedResourceClaimCreation")
    )
    assert (
        f'resource claim template "{TEMPLATE}": resourceclaimtemplate.resource.k8s.io "{TEMPLATE}" not found'
        in words[0]
    )
    assert slots(fleet) == {}
    eventually("no device names the workload", lambda: tags(fleet) == {})
    left = job_place.get("resourceclaimtemplates,resourceclaims,nusw")["items"]
    names = [
        item["metadata"]["name"]
        for item in left
        if "neuron-claim" in item["metadata"]["name"] or TEMPLATE in item["metadata"]["name"]
    ]
    assert names == []


def variables_of(facts: dict[str, Any], mode: str) -> dict[str, str]:
    """Return the UltraServer variables of a node's containers in a slot of four nodes."""
    server = facts["serverId4"] if "serverId4" in facts else facts["reservationId"]
    number = facts.get("nodeId4", facts["ultraserverNodeId"])
    return {
        "NEURON_LOGICAL_NC_CONFIG": "2",
        "NEURON_RT_VIRTUAL_CORE_SIZE": "2",
        "NEURON_RT_ULTRASERVER_MODE": mode,
        "NEURON_RT_ULTRASERVER_SERVER_ID": server,
        "NEURON_RT_ULTRASERVER_NODE_ID": str(number),
    }


# How nodes are chosen.


def test_four_nodes_wait_for_one_ultraserver(fleet: TestBed, place: Namespace) -> None:
    for name in "abcd":
        submit(place, workload(name, 2, 1))
    held = slots(fleet)
    racks = [
        (f"{ultraserver}-{first}", f"{ultraserver}-{first + 1}") for ultraserver in ("u1", "u2") for first in (0, 2)
    ]
    assert sorted(held[name][0] for name in "abcd") == racks

    waiting = submit(place, workload("four", 4, 1), state="Pending")
    reason, words = condition(waiting)
    assert reason == "InsufficientCapacity"
    assert "short of 4 nodes" in words

    one_of_each = {held[name][0][0].partition("-")[0]: name for name in "abcd"}
    place.kubectl("delete", "nusw", *one_of_each.values(), "--timeout=60s")
    words = wait_reason(place, "four", "CapacitySplit")
    assert "4 nodes are free, but split over 2 UltraServers" in words
    assert place.get("nusw", "four")["status"]["state"] == "Pending"


def test_competing_workloads_get_all_or_nothing(fleet: TestBed, place: Namespace) -> None:
    both = {"apiVersion": "v1", "kind": "List", "items": [workload(name, 2, 3) for name in ("left", "right")]}
    place.apply(both)

    def states() -> dict[str, str]:
        items = place.get("nusw")["items"]
        return {item.get("status", {}).get("state", ""): item["metadata"]["name"] for item in items}

    eventually("one has all, one waits", lambda: set(states()) == {"Allocated", "Pending"}, 30)
    first, second = states()["Allocated"], states()["Pending"]
    assert {name: len(held) for name, held in slots(fleet).items()} == {first: 3}
    reason, words = condition(place.get("nusw", second))
    assert reason == "InsufficientCapacity"
    assert f"needs 3 x 2 {TRN3} nodes; 1 of 3 groups of 2 are free: short of 4 nodes" in words

    place.kubectl("delete", "nusw", first, "--timeout=60s")
    wait_state(place, second, "Allocated")
    assert {name: len(held) for name, held in slots(fleet).items()} == {second: 3}


def test_workload_scales_while_pods_run(fleet: TestBed, place: Namespace) -> None:
    submit(place, workload("grown", 2, 1))
    place.apply(job("grown", 2, "grown"))
    wait_available(place, "grown")
    before = pods(place, "grown")
    first = in_order(slots(fleet)["grown"])
    assert ranks(place, before) == first

    resize(place, "grown", 2)
    wait_reason(place, "grown", "Allocated")
    eventually("two groups", lambda: place.get("nusw", "grown")["status"]["totalNodesAllocated"] == 4)
    scale(place, "grown", 4)
    wait_available(place, "grown")
    grown = pods(place, "grown")
    order = in_order(slots(fleet)["grown"])
    assert ranks(place, grown) == order
    assert sorted(order.values()) == [0, 1, 2, 3]
    assert {node: order[node] for node in first} == first
    assert {node: uids(grown)[node] for node in first} == uids(before)

    resize(place, "grown", 1)
    eventually("the highest index has left", lambda: in_order(slots(fleet)["grown"]) == first, 60)
    wait_state(place, "grown", "Allocated")
    assert uids(pods(place, "grown")) == uids(before)
    eventually("the released nodes have no tag", lambda: set(tags(fleet)) == set(first))


# A reserved node rejects other claims


@pytest.fixture
def trn1(fleet: TestBed, node: Callable[[str], BedNode]) -> str:
    """The name of a trn1.2xlarge beside the UltraServers, with the driver on it."""
    taken = node("trn1.2xlarge")
    settled(taken)
    return taken.name


@pytest.fixture
def other(bed: TestBed) -> Iterator[Namespace]:
    """A second namespace."""
    own = Namespace(bed, f"test-{uuid.uuid4().hex[:8]}")
    bed.kubectl("create", "namespace", own.name)
    yield own
    own.remove()


def claim_template_of(file: str) -> Obj:
    """Return the ResourceClaimTemplate of an example."""
    documents = yaml.safe_load_all((EXAMPLES / file).read_text())
    only: dict[str, Any]
    [only] = [each for each in documents if each and each["kind"] == "ResourceClaimTemplate"]
    return only


def test_pair_pods_run_on_reserved_nodes_only(fleet: TestBed, trn1: str, place: Namespace) -> None:
    submit(place, workload("pair", 2, 1))
    plain, single = claim_template_of("4-node-inference-us.yaml"), claim_template_of("single-neuron-device.yaml")
    for made in (plain, single, job("pair", 2, "pair"), pod("alone", single["metadata"]["name"], node=trn1)):
        place.apply(made)
    elsewhere = job("plain", 6, plain["metadata"]["name"])
    elsewhere["spec"]["template"]["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": TRN3}
    place.apply(elsewhere)
    for name in ("pair", "plain"):
        wait_available(place, name)
    place.wait_ready("alone")

    reserved = set(in_order(slots(fleet)["pair"]))
    assert len(reserved) == 2
    assert set(tags(fleet)) == reserved
    assert set(pods(place, "pair")) == reserved
    assert set(pods(place, "plain")) == set(NODES) - reserved


def created(space: Namespace, item: Obj) -> bool:
    """Create an object; return True if the policies accept it."""
    try:
        space.apply(item)
    except BedError:
        return False
    return True


def test_reserved_node_rejects_other_pods(fleet: TestBed, place: Namespace, other: Namespace) -> None:
    submit(place, workload("owner", 2, 1))
    first, second = in_order(slots(fleet)["owner"])
    ours = place.get("resourceclaimtemplate", "owner")
    elsewhere = {**ours, "metadata": {"name": "copied"}}
    bare = json.loads(json.dumps({**ours, "metadata": {"name": "bare"}}))
    del bare["spec"]["spec"]["devices"]["config"]
    with pytest.raises(BedError, match="is only for the ResourceClaimTemplates that the UltraServer controller makes"):
        other.apply(elsewhere)
    with without_policies(fleet):  # as on a cluster without policies, the plugins must reject the claims
        for space, item in ((other, elsewhere), (place, bare)):
            eventually("the policy is out of force", lambda space=space, item=item: created(space, item), 60)
        other.apply(pod("copied", "copied", node=first))
        place.apply(pod("bare", "bare", node=second))
        for space in (other, place):
            eventually("the claim is made", lambda space=space: space.get("resourceclaims")["items"], 60)
    plain = claim_template_of("4-node-inference-us.yaml")
    place.apply(plain)
    place.apply(pod("plain", plain["metadata"]["name"], node=first))

    assert "cannot allocate all claims" in stays_pending(place, "plain", 1)
    words = {"copied": refusal(other, "copied"), "bare": refusal(place, "bare")}
    started = [
        one.get("pod", name)["status"].get("containerStatuses", [{}])[0].get("state", {}).get("running")
        for one, name in ((other, "copied"), (place, "bare"), (place, "plain"))
    ]
    own, hidden = f"NeuronUltraServerWorkload {place.name}/owner", "a NeuronUltraServerWorkload of another namespace"
    copy_of = f"a copy of its ResourceClaimTemplate in namespace {other.name}"
    assert f"node {first} is reserved for {hidden}, and {copy_of}" in words["copied"]
    assert f"node {second} is reserved for {own}, and this claim belongs to no workload" in words["bare"]
    assert started == [None, None, None]
