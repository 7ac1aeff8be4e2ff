"""What becomes of running workloads when nodes, links and plugins fail under them, and who has to do what about it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from deployed import Object, is_ready, slices
from fleet import (
    TRN3,
    end_workloads,
    in_order,
    job,
    pods,
    ranks,
    said,
    slots,
    submit,
    tags,
    uids,
    unplaced,
    wait_available,
    wait_said,
    wait_state,
    workload,
)
from real_cluster import BedNode, Namespace, TestBed, eventually

TRN2U = "trn2u.48xlarge"
OUTAGE = "testbed.local/outage"
GIVEN_UP = "node.kubernetes.io/out-of-service"
OF_THE_SET = "leaderworkerset.sigs.k8s.io/name=move"
QUICKLY = ("nodeFailureGrace=2s", "faultGrace=2s")


@pytest.fixture(scope="module")
def impatient(running_fleet: TestBed) -> TestBed:
    """The UltraServers with a controller that does not wait long before it acts, and LeaderWorkerSets."""
    values = [word for value in QUICKLY for word in ("--set", f"ultraserverOperator.{value}")]
    running_fleet.command("up", *values, "--leaderworkersets")
    return running_fleet


def leader_worker_set(name: str, replicas: int) -> Object:
    """Return a LeaderWorkerSet whose groups are one pod each, with a claim from the template of its own name."""
    template = job(name, replicas, name)["spec"]["template"]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}},
    }


# Three dead nodes and a plugin that is away, at once.


@dataclass(slots=True)
class Stricken:
    """Four workloads of single nodes, and what was seen of them: before, and when a person was needed."""

    bed: TestBed
    place: Namespace
    slots: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    uids: dict[str, dict[str, str]] = field(default_factory=dict)
    ranks: dict[str, dict[str, int]] = field(default_factory=dict)
    hit: dict[str, str] = field(default_factory=dict)  # the node of each workload to which something happens
    words: dict[str, str] = field(default_factory=dict)

    def pods(self, name: str) -> dict[str, Object]:
        return pods(self.place, name, OF_THE_SET if name == "move" else "")

    def node(self, name: str) -> BedNode:
        return BedNode(self.bed, self.hit[name], TRN3)


WANTED = {"report": ("NoOp", 1), "again": ("RestartAll", 2), "move": ("MigrateAffected", 2), "steady": ("NoOp", 1)}
DEAD = ("report", "again", "move")


@pytest.fixture(scope="module")
def stricken(impatient: TestBed) -> Iterator[Stricken]:
    place = Namespace(impatient, f"test-{uuid.uuid4().hex[:8]}")
    impatient.kubectl("create", "namespace", place.name)
    seen = Stricken(impatient, place)
    try:
        _run(seen)
        _strike(seen)
        yield seen
    finally:
        _mend(seen)


def _run(seen: Stricken) -> None:
    place = seen.place
    for name, (strategy, count) in WANTED.items():
        submit(place, workload(name, 1, count, strategy=strategy))
        if name == "move":
            place.apply(leader_worker_set(name, count))
        else:
            made = job(name, count, name)
            made["spec"]["template"]["spec"]["tolerations"] = [{"key": OUTAGE, "operator": "Exists"}]
            place.apply(made)
    for name, (_, count) in WANTED.items():
        running = eventually(
            f"pods of {name}",
            lambda name=name, count=count: (
                found if len(found := seen.pods(name)) == count and all(map(is_ready, found.values())) else None
            ),
            60,
        )
        seen.uids[name], seen.ranks[name] = uids(running), ranks(place, running)
    seen.slots = slots(seen.bed)
    # Of each workload its last rank; rank 0 would change what the others were told.
    seen.hit = {name: held[max(held)][0] for name, held in seen.slots.items()}


def _strike(seen: Stricken) -> None:
    for name in DEAD:
        seen.node(name).break_("kubelet", "stop")
    seen.bed.kubectl("taint", "node", seen.hit["steady"], f"{OUTAGE}=yes:NoExecute")
    for name, reason in (("again", "WaitingForPods"), ("move", "WaitingForPods")):
        seen.words[name] = wait_said(seen.place, name, reason, timeout_s=60)
        seen.bed.kubectl("taint", "node", seen.hit[name], f"{GIVEN_UP}=nodeshutdown:NoExecute")


def _mend(seen: Stricken) -> None:
    place = seen.place
    for name, node in seen.hit.items():
        for key in (OUTAGE, GIVEN_UP):
            seen.bed.kubectl("taint", "node", node, f"{key}-", "--overwrite") if has_taint(
                seen.bed, node, key
            ) else None
        if name in DEAD:
            seen.node(name).repair("kubelet")
    place.kubectl("delete", "leaderworkersets,deployments", "--all", "--timeout=60s", timeout_s=70)
    end_workloads(place)
    place.remove()


def has_taint(bed: TestBed, node: str, key: str) -> bool:
    return any(taint["key"] == key for taint in bed.get("node", node)["spec"].get("taints") or [])


def test_no_op_reports_a_dead_node_and_changes_nothing(stricken: Stricken, bed: TestBed) -> None:
    words = wait_said(stricken.place, "report", "NodeNotReady", "Degraded")
    assert f"nodes are not Ready: {stricken.hit['report']}" in words
    assert "failureStrategy NoOp only reports it" in words
    assert slots(bed)["report"] == stricken.slots["report"]
    assert uids(stricken.pods("report")) == stricken.uids["report"]
    assert stricken.place.get("nusw", "report")["status"]["state"] == "Allocated"


@pytest.mark.parametrize("name", ["move", "again"])
def test_a_person_is_told_how_to_give_a_dead_node_up(stricken: Stricken, name: str, bed: TestBed) -> None:
    dead = stricken.hit[name]
    assert (
        f"not Ready: {dead}; a node that will not come back is given up by deleting its Node, or by the taint "
        f"{GIVEN_UP}=nodeshutdown:NoExecute" in stricken.words[name]
    )


def test_migrate_affected_moves_one_group_of_a_set_and_leaves_the_other_alone(stricken: Stricken, bed: TestBed) -> None:
    wait_state(stricken.place, "move", "Allocated", 60)
    running = eventually(
        "two ready pods",
        lambda: found if len(found := stricken.pods("move")) == 2 and all(map(is_ready, found.values())) else None,
        60,
    )
    dead, before, held = stricken.hit["move"], stricken.slots["move"], slots(bed)["move"]
    assert held[0] == before[0]
    assert held[1] != before[1] == (dead,)
    [stayed] = held[0]
    assert uids(running)[stayed] == stricken.uids["move"][stayed]
    assert ranks(stricken.place, running) == in_order(held)
    assert stricken.ranks["move"] == in_order(before)


def test_restart_all_begins_anew_without_the_dead_node(stricken: Stricken, bed: TestBed) -> None:
    wait_state(stricken.place, "again", "Allocated", 60)
    wait_available(stricken.place, "again")
    running, held = stricken.pods("again"), slots(bed)["again"]
    assert stricken.hit["again"] not in in_order(held)
    assert not {*uids(running).values()} & {*stricken.uids["again"].values()}
    assert ranks(stricken.place, running) == in_order(held)
    assert sorted(in_order(held).values()) == sorted(stricken.ranks["again"].values()) == [0, 1]


def test_a_plugin_that_is_away_until_its_slices_are_gone_changes_nothing(stricken: Stricken, bed: TestBed) -> None:
    outage(stricken.place, "steady", stricken.hit["steady"])
    assert slots(bed)["steady"] == stricken.slots["steady"]
    assert uids(stricken.pods("steady")) == stricken.uids["steady"]


def outage(place: Namespace, name: str, node: str) -> None:
    """Wait until a node whose plugin is away has no slices, check what is said, and let the plugin come back."""
    eventually(f"no slice of {node}", lambda: not slices(place.bed, node), 90)
    assert f"nodes publish no slice: {node}" in wait_said(place, name, "SliceMissing", "Degraded")
    assert place.get("nusw", name)["status"]["state"] == "Allocated"
    place.bed.kubectl("taint", "node", node, f"{OUTAGE}-")
    eventually(f"{node} is tagged again", lambda: tags(place.bed).get(node) == name, 60)
    wait_said(place, name, "NoProblem", "Degraded")


# Restarts.


def test_a_kubelet_that_restarts_changes_nothing(fleet: TestBed, place: Namespace) -> None:
    submit(place, workload("kept", 1, 1))
    place.apply(job("kept", 1, "kept"))
    wait_available(place, "kept")
    before, held = uids(pods(place, "kept")), allocations(fleet)
    [node] = before
    old = {item["metadata"]["uid"] for item in slices(fleet, node)}
    BedNode(fleet, node, TRN3).break_("kubelet")

    def fresh() -> bool:
        now = {item["metadata"]["uid"] for item in slices(fleet, node)}
        return bool(now) and not now & old

    eventually("new slices", fresh, 60)
    assert tags(fleet) == {node: "kept"}
    wait_said(place, "kept", "NoProblem", "Degraded")
    assert place.get("nusw", "kept")["status"]["state"] == "Allocated"
    assert (uids(pods(place, "kept")), allocations(fleet)) == (before, held)


def allocations(bed: TestBed) -> list[str]:
    """Return the ids of all reservations."""
    items = bed.get("nus", "-A")["items"]
    return sorted(each["allocationId"] for item in items for each in item["status"].get("allocations") or [])


@pytest.mark.long
def test_a_plugin_outage_of_two_minutes_changes_nothing(fleet: TestBed, place: Namespace) -> None:
    submit(place, workload("kept", 1, 1))
    made = job("kept", 1, "kept")
    made["spec"]["template"]["spec"]["tolerations"] = [{"key": OUTAGE, "operator": "Exists"}]
    place.apply(made)
    wait_available(place, "kept")
    before, held = uids(pods(place, "kept")), allocations(fleet)
    [node] = before
    fleet.kubectl("taint", "node", node, f"{OUTAGE}=yes:NoExecute")
    time.sleep(120)
    outage(place, "kept", node)
    assert (uids(pods(place, "kept")), allocations(fleet)) == (before, held)


# Links between nodes, in sysfs.


def set_strategy(place: Namespace, name: str, strategy: str) -> None:
    patch = {"spec": {"allocationPolicy": {"failureStrategy": strategy}}}
    place.kubectl("patch", "nusw", name, "--type=merge", "--patch", json.dumps(patch))


def test_each_strategy_on_a_link_that_breaks(impatient: TestBed, fleet: TestBed, place: Namespace) -> None:
    fleet.command("up", "--ultraserver", f"u={TRN2U}")
    submit(place, workload("linked", 2, 1, instance_type=TRN2U))
    place.apply(job("linked", 2, "linked"))
    wait_available(place, "linked")
    before, held, order = uids(pods(place, "linked")), slots(fleet)["linked"], ranks(place, pods(place, "linked"))
    broken = BedNode(fleet, "u-0", TRN2U)
    broken.break_("link", "right")
    try:
        words = wait_said(place, "linked", "LinkDown", "Degraded")
        assert all(node in words for node in held[0])
        assert (uids(pods(place, "linked")), slots(fleet)["linked"]) == (before, held)

        set_strategy(place, "linked", "MigrateAffected")
        assert "nowhere to move to yet" in wait_said(place, "linked", "NoSpareGroup")
        assert (uids(pods(place, "linked")), slots(fleet)["linked"]) == (before, held)

        set_strategy(place, "linked", "RestartAll")
        waiting = wait_state(place, "linked", "Pending", 60)
        assert "0 of 1 groups of 2 are free" in said(waiting)[1]
        unplaced(place, "linked", 2)
        assert (tags(fleet), slots(fleet)) == ({}, {})
    finally:
        broken.repair_all()
    wait_state(place, "linked", "Allocated", 60)
    wait_available(place, "linked")
    assert ranks(place, pods(place, "linked")) == in_order(slots(fleet)["linked"]) == order


@pytest.mark.long
def test_a_pair_whose_link_breaks_moves_to_another_ultraserver(
    impatient: TestBed, fleet: TestBed, place: Namespace
) -> None:
    fleet.command("up", "--ultraserver", f"u={TRN2U}", "--ultraserver", f"v={TRN2U}", "--driver", "daemonset")
    submit(place, workload("linked", 2, 1, instance_type=TRN2U, strategy="MigrateAffected"))
    place.apply(job("linked", 2, "linked"))
    wait_available(place, "linked")
    before, held = uids(pods(place, "linked")), slots(fleet)["linked"]
    old = BedNode(fleet, held[0][0], TRN2U)
    old.break_("link", "right")
    try:
        eventually("another slot", lambda: set(slots(fleet)["linked"][0]).isdisjoint(held[0]), 60)
        wait_state(place, "linked", "Allocated", 60)
        wait_available(place, "linked")
        running, moved = pods(place, "linked"), slots(fleet)["linked"]
        assert not {*uids(running).values()} & {*before.values()}
        assert moved[0][0].partition("-")[0] != held[0][0].partition("-")[0]
        assert ranks(place, running) == in_order(moved)
    finally:
        old.repair_all()
