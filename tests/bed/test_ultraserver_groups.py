"""The real LeaderWorkerSet controller on UltraServers: each of its groups is on one of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deployed import environment, is_ready
from fleet import RANK, in_order, published, slots, wait_state
from real_cluster import QUICK, REPOSITORY, Namespace, TestBed, eventually

from neuron_dra.core.wire import Obj

EXAMPLES = REPOSITORY / "deploy/examples"
IMAGE = "public.ecr.aws/ubuntu/ubuntu:22.04"
GROUP = "leaderworkerset.sigs.k8s.io/group-index"


@pytest.fixture
def sets(fleet: TestBed, place: Namespace) -> Iterator[Namespace]:
    """A namespace for LeaderWorkerSets; their pods are gone before the workloads are."""
    yield place
    place.kubectl("delete", "leaderworkersets", "--all", "--timeout=180s", timeout_s=190)
    eventually("no stateful sets", lambda: not place.get("statefulsets")["items"], 60)


def groups(place: Namespace, count: int) -> dict[str, list[Obj]]:
    """Wait until all pods of a set are ready, and return them by their group."""

    def ready() -> list[Obj]:
        items = place.get("pods", f"--selector={GROUP}")["items"]
        return items if len(items) == count and all(map(is_ready, items)) else []

    found: dict[str, list[Obj]] = {}
    for item in eventually(f"{count} ready pods", ready, 90):
        found.setdefault(item["metadata"]["labels"][GROUP], []).append(item)
    return found


def nodes_of(members: list[Obj]) -> set[str]:
    return {item["spec"]["nodeName"] for item in members}


def test_documented_set_has_groups_on_one_ultraserver(fleet: TestBed, sets: Namespace) -> None:
    sets.apply((EXAMPLES / "4-node-inference-us.yaml").read_text().replace(IMAGE, QUICK))
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
def test_set_groups_are_slots_with_ranks(fleet: TestBed, sets: Namespace) -> None:
    sets.apply((EXAMPLES / "ultraservers/leaderworkerset.yaml").read_text().replace(IMAGE, QUICK))
    wait_state(sets, "inference", "Allocated")
    found = groups(sets, 8)
    held = slots(fleet)["inference"]
    assert sorted(map(sorted, map(nodes_of, found.values()))) == sorted(map(sorted, held.values()))
    order = in_order(held)
    for members in found.values():
        for item in members:
            assert environment(sets, item["metadata"]["name"])[RANK] == str(order[item["spec"]["nodeName"]])
