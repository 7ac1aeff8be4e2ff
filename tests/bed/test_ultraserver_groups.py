"""The real LeaderWorkerSet controller on UltraServers: each of its groups is on one of them, and its ranks meet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from hack.bed.deployed import is_ready
from hack.bed.real_cluster import BedError, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import environment
from tests.bed.fleet import RANK, TRN3, in_order, published, slots, wait_reason, wait_state
from tests.bed.recipes import GIVEN_UP, idle, kill_program, runnable, start

GROUP = "leaderworkerset.sigs.k8s.io/group-index"
SET = "leaderworkerset.sigs.k8s.io/name"
PROGRAM, WITH_CONTROLLER = "programs/group-server.yaml", "ultraservers/leaderworkerset.yaml"
ASK = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


@pytest.fixture
def sets(fleet: TestBed, place: Namespace) -> Iterator[Namespace]:
    """A namespace for LeaderWorkerSets; their pods are gone before the workloads are."""
    yield place
    place.kubectl("delete", "leaderworkersets", "--all", "--timeout=180s", timeout_s=190)
    eventually("no stateful sets", lambda: not place.get("statefulsets")["items"], 60)


@pytest.fixture
def servers(fleet: TestBed, sets: Namespace) -> Namespace:
    """A namespace for LeaderWorkerSets whose pods find Services by name."""
    fleet.command("up", "--with", "dns", timeout_s=1800)
    return sets


def groups(place: Namespace, count: int) -> dict[str, list[Obj]]:
    """Wait until all pods of a set are ready, and return them by their group."""

    def ready() -> list[Obj]:
        items = place.get("pods", f"--selector={GROUP}")["items"]
        gone = any("deletionTimestamp" in item["metadata"] for item in items)
        return items if len(items) == count and not gone and all(map(is_ready, items)) else []

    found: dict[str, list[Obj]] = {}
    for item in eventually(f"{count} ready pods", ready, 90):
        found.setdefault(item["metadata"]["labels"][GROUP], []).append(item)
    return found


def nodes_of(members: list[Obj]) -> set[str]:
    return {item["spec"]["nodeName"] for item in members}


def uids_of(members: list[Obj]) -> set[str]:
    return {item["metadata"]["uid"] for item in members}


def ask(place: Namespace, name: str, group: str, number: int) -> Obj:
    """Ask the leader of a group by its name, from its pod, for the sum of the numbers up to this one."""
    url = f"http://{name}-{group}.{name}.{place.name}:8000/sum?to={number}"
    found: Obj = json.loads(place.exec(f"{name}-{group}", "python3", "-c", ASK, url))
    return found


def answers(place: Namespace, name: str, found: dict[str, list[Obj]]) -> None:
    """Check that each group computes the sum, a rank on each of its nodes."""
    for group, members in found.items():
        said = ask(place, name, group, 1000)
        places = sorted(said.pop("places").values())
        numbers = sorted(
            int(environment(place, item["metadata"]["name"])["NEURON_RT_ULTRASERVER_NODE_ID"]) for item in members
        )
        assert (said, places) == ({"to": 1000, "sum": 500500}, numbers)


def test_documented_set_has_groups_on_one_ultraserver(fleet: TestBed, sets: Namespace) -> None:
    start(sets, idle("4-node-inference-us.yaml"))
    found = groups(sets, 8)
    assert sorted(found) == ["0", "1"]
    facts, places = published(fleet), []
    for members in found.values():
        assert len(nodes_of(members)) == 4
        [ultraserver] = {facts[node]["ultraserverId"] for node in nodes_of(members)}
        places.append(ultraserver)
        variables = [environment(sets, item["metadata"]["name"]) for item in members]
        assert {each["NEURON_RT_ULTRASERVER_MODE"] for each in variables} == {"1"}
        assert len({each["NEURON_RT_ULTRASERVER_SERVER_ID"] for each in variables}) == 1
        assert sorted(each["NEURON_RT_ULTRASERVER_NODE_ID"] for each in variables) == ["0", "1", "2", "3"]
    assert len(set(places)) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "name", "count", "mode"),
    [
        ("4-node-inference-us.yaml", "vllm", 8, "1"),
        ("us-and-lnc-config.yaml", "vllm-lnc-1", 8, "1"),
        ("2-node-inference-us.yaml", "vllm-2-node", 4, "3"),
    ],
)
def test_documented_set_answers(
    fleet: TestBed, servers: Namespace, file: str, name: str, count: int, mode: str
) -> None:
    """(18.2)"""
    start(servers, runnable(fleet, PROGRAM, file))
    found = groups(servers, count)
    assert sorted(found) == ["0", "1"]
    answers(servers, name, found)
    variables = [environment(servers, item["metadata"]["name"]) for members in found.values() for item in members]
    assert {each["NEURON_RT_ULTRASERVER_MODE"] for each in variables} == {mode}
    cores = {each.get("NEURON_LOGICAL_NC_CONFIG") for each in variables}
    assert cores == ({"1"} if name == "vllm-lnc-1" else cores - {"1"})


@pytest.mark.long
def test_set_groups_are_slots_with_ranks(fleet: TestBed, servers: Namespace) -> None:
    """(18.2) After a power cut of a leader's node, its group starts again and answers; the other goes on."""
    start(servers, runnable(fleet, PROGRAM, WITH_CONTROLLER))
    wait_state(servers, "inference", "Allocated")
    before = groups(servers, 8)
    held = slots(fleet)["inference"]
    assert sorted(map(sorted, map(nodes_of, before.values()))) == sorted(map(sorted, held.values()))
    order = in_order(held)
    for members in before.values():
        for item in members:
            assert environment(servers, item["metadata"]["name"])[RANK] == str(order[item["spec"]["nodeName"]])
    answers(servers, "inference", before)
    leader = next(item for item in before["0"] if item["metadata"]["name"] == "inference-0")
    BedNode(fleet, leader["spec"]["nodeName"], TRN3).break_("reboot")

    def again() -> dict[str, list[Obj]]:
        found = groups(servers, 8)
        return {} if uids_of(found["0"]) & uids_of(before["0"]) else found

    after = eventually("the group of the leader has new pods", again, 120)
    answers(servers, "inference", after)
    assert uids_of(after["1"]) == uids_of(before["1"])
    assert nodes_of(after["0"]) == nodes_of(before["0"])


@pytest.mark.long
def test_decode_goes_on_from_the_answer_of_prefill(fleet: TestBed, servers: Namespace) -> None:
    """(18.2) Each on an UltraServer of its own."""
    start(servers, runnable(fleet, PROGRAM, "ultraservers/prefill-decode.yaml"))
    wait_state(servers, "prefill", "Allocated")
    wait_state(servers, "decode", "Allocated")
    members = groups(servers, 8)["0"]  # each set has a group 0
    by_set: dict[str, set[str]] = {}
    for item in members:
        by_set.setdefault(item["metadata"]["labels"][SET], set()).add(item["spec"]["nodeName"])
    held = slots(fleet)
    assert by_set == {name: set(held[name][0]) for name in ("prefill", "decode")}
    said = ask(servers, "decode", "0", 1001)
    places = {"0", "1", "2", "3"}
    assert (said["sum"], set(said["places"]), set(said["prefill"])) == (501501, places, places)


@pytest.mark.long
def test_a_group_answers_on_other_nodes_after_its_leaders_node_is_lost(fleet: TestBed, servers: Namespace) -> None:
    """(18.2)"""
    objects = runnable(fleet, PROGRAM, WITH_CONTROLLER, topologySize=2)
    [pods] = [item for item in objects if item["kind"] == "LeaderWorkerSet"]
    pods["spec"]["leaderWorkerTemplate"]["size"] = 2
    notes = pods["metadata"]["annotations"]
    pods["metadata"]["annotations"] = {key: value[:-1] + "2" for key, value in notes.items()}
    start(servers, objects)
    before = groups(servers, 4)
    leader = next(item for item in before["0"] if item["metadata"]["name"] == "inference-0")
    dead = BedNode(fleet, leader["spec"]["nodeName"], TRN3)
    dead.break_("kubelet", "stop")
    kill_program(fleet, dead.name, "group_server.py")
    try:
        wait_reason(servers, "inference", "WaitingForPods", timeout_s=60)
        fleet.kubectl("taint", "node", dead.name, f"{GIVEN_UP}=nodeshutdown:NoExecute")
        eventually("the group has moved", lambda: dead.name not in str(slots(fleet).get("inference", dead.name)), 120)
        after = groups(servers, 4)
        assert dead.name not in nodes_of(after["0"])
        answers(servers, "inference", after)
        assert uids_of(after["1"]) == uids_of(before["1"])
    finally:
        with contextlib.suppress(BedError):
            fleet.kubectl("taint", "node", dead.name, f"{GIVEN_UP}-")
        dead.repair("kubelet")
