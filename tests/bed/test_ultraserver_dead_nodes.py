"""Running workloads whose nodes die, and the steps that a user must take."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hack.bed.deployed import is_ready
from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import (
    OUTAGE,
    TRN3,
    end_workloads,
    in_order,
    job,
    outage,
    pods,
    ranks,
    slots,
    submit,
    uids,
    wait_available,
    wait_reason,
    wait_state,
    workload,
)

GIVEN_UP = "node.kubernetes.io/out-of-service"
OF_THE_SET = "leaderworkerset.sigs.k8s.io/name=move"


def leader_worker_set(name: str, replicas: int) -> Obj:
    """Return a LeaderWorkerSet whose groups are one pod each, with a claim from the template of the same name."""
    template = job(name, replicas, name)["spec"]["template"]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}},
    }


# Three dead nodes and a stopped plugin at once


@dataclass(slots=True)
class Stricken:
    """Four workloads of single nodes, their state before, and their state when a user must act."""

    bed: TestBed
    place: Namespace
    slots: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    uids: dict[str, dict[str, str]] = field(default_factory=dict)
    ranks: dict[str, dict[str, int]] = field(default_factory=dict)
    hit: dict[str, str] = field(default_factory=dict)  # the affected node of each workload
    words: dict[str, str] = field(default_factory=dict)

    def pods(self, name: str) -> dict[str, Obj]:
        return pods(self.place, name, OF_THE_SET if name == "move" else "")

    def node(self, name: str) -> BedNode:
        return BedNode(self.bed, self.hit[name], TRN3)


def all_ready(of: Stricken, name: str, count: int) -> dict[str, Obj]:
    """Wait until a workload has `count` pods and all are ready; return them."""

    def ready() -> dict[str, Obj]:
        found = of.pods(name)
        return found if len(found) == count and all(map(is_ready, found.values())) else {}

    return eventually(f"{count} ready pods of {name}", ready, 60)


WANTED = {"report": ("NoOp", 1), "again": ("RestartAll", 2), "move": ("MigrateAffected", 2), "steady": ("NoOp", 1)}
DEAD = ("report", "again", "move")


@pytest.fixture(scope="module")
def stricken(running_fleet: TestBed) -> Iterator[Stricken]:
    place = Namespace(running_fleet, f"test-{uuid.uuid4().hex[:8]}")
    running_fleet.kubectl("create", "namespace", place.name)
    seen = Stricken(running_fleet, place)
    try:
        _run(seen)
        _strike(seen)
        yield seen
    finally:
        _repair(seen)


def _run(seen: Stricken) -> None:
    place = seen.place
    for name, (strategy, count) in WANTED.items():
        submit(place, workload(name, 1, count, strategy=strategy))
        if name == "move":
            place.apply(leader_worker_set(name, count))
        else:
            place.apply(job(name, count, name))
    for name, (_, count) in WANTED.items():
        running = all_ready(seen, name, count)
        seen.uids[name], seen.ranks[name] = uids(running), ranks(place, running)
    seen.slots = slots(seen.bed)
    # Of each workload its last rank; a change of rank 0 would concern the other pods.
    seen.hit = {name: held[max(held)][0] for name, held in seen.slots.items()}


def _strike(seen: Stricken) -> None:
    for name in DEAD:
        seen.node(name).break_("kubelet", "stop")
    seen.bed.kubectl("taint", "node", seen.hit["steady"], f"{OUTAGE}=yes:NoExecute")
    for name, reason in (("again", "WaitingForPods"), ("move", "WaitingForPods")):
        seen.words[name] = wait_reason(seen.place, name, reason, timeout_s=60)
        seen.bed.kubectl("taint", "node", seen.hit[name], f"{GIVEN_UP}=nodeshutdown:NoExecute")


def _repair(seen: Stricken) -> None:
    place = seen.place
    for name, node in seen.hit.items():
        for key in (OUTAGE, GIVEN_UP):
            seen.bed.kubectl("taint", "node", node, f"{key}-", "--overwrite") if has_taint(
                seen.bed, node, key
            ) else None
        if name in DEAD:
            seen.node(name).repair("kubelet")
    place.kubectl("delete", "leaderworkersets,deployments", "--all", "--timeout=180s", timeout_s=190)
    end_workloads(place)
    place.remove()


def has_taint(bed: TestBed, node: str, key: str) -> bool:
    return any(taint["key"] == key for taint in bed.get("node", node)["spec"].get("taints") or [])


def test_noop_reports_a_dead_node_only(stricken: Stricken, bed: TestBed) -> None:
    words = wait_reason(stricken.place, "report", "NodeNotReady", "Degraded")
    assert f"nodes are not Ready: {stricken.hit['report']}" in words
    assert "failureStrategy NoOp only reports it" in words
    assert slots(bed)["report"] == stricken.slots["report"]
    assert uids(stricken.pods("report")) == stricken.uids["report"]
    assert stricken.place.get("nusw", "report")["status"]["state"] == "Allocated"


@pytest.mark.parametrize("name", ["move", "again"])
def test_message_explains_how_to_give_up_a_dead_node(stricken: Stricken, name: str, bed: TestBed) -> None:
    dead = stricken.hit[name]
    assert (
        f"not Ready: {dead}; to give up a node that will not come back, delete its Node or add the taint "
        f"{GIVEN_UP}=nodeshutdown:NoExecute" in stricken.words[name]
    )


def test_migrate_affected_moves_only_its_group(stricken: Stricken, bed: TestBed) -> None:
    wait_state(stricken.place, "move", "Allocated", 60)
    running = all_ready(stricken, "move", 2)
    dead, before, held = stricken.hit["move"], stricken.slots["move"], slots(bed)["move"]
    assert held[0] == before[0]
    assert held[1] != before[1] == (dead,)
    [stayed] = held[0]
    assert uids(running)[stayed] == stricken.uids["move"][stayed]
    assert ranks(stricken.place, running) == in_order(held)
    assert stricken.ranks["move"] == in_order(before)


def test_restart_all_avoids_the_dead_node(stricken: Stricken, bed: TestBed) -> None:
    wait_state(stricken.place, "again", "Allocated", 60)
    wait_available(stricken.place, "again")
    running, held = stricken.pods("again"), slots(bed)["again"]
    assert stricken.hit["again"] not in in_order(held)
    assert not {*uids(running).values()} & {*stricken.uids["again"].values()}
    assert ranks(stricken.place, running) == in_order(held)
    assert sorted(in_order(held).values()) == sorted(stricken.ranks["again"].values()) == [0, 1]


def test_long_plugin_outage_changes_nothing(stricken: Stricken, bed: TestBed) -> None:
    outage(stricken.place, "steady", stricken.hit["steady"])
    assert slots(bed)["steady"] == stricken.slots["steady"]
    assert uids(stricken.pods("steady")) == stricken.uids["steady"]
