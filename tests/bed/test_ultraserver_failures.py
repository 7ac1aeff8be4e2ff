"""Running workloads when kubelets restart, plugins stop, and links between nodes break."""

from __future__ import annotations

import json
import time

import pytest

from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import all_healthy, slices
from tests.bed.fleet import (
    OUTAGE,
    TRN3,
    condition,
    in_order,
    job,
    outage,
    pods,
    ranks,
    slots,
    submit,
    tags,
    uids,
    unplaced,
    wait_available,
    wait_reason,
    wait_state,
    workload,
)

TRN2U = "trn2u.48xlarge"
LINK = "0:link_interserver"  # as the kernel driver reports that device 0 has lost its link to another node

# Restarts.


def test_kubelet_restart_changes_nothing(fleet: TestBed, place: Namespace) -> None:
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
    wait_reason(place, "kept", "NoProblem", "Degraded")
    assert place.get("nusw", "kept")["status"]["state"] == "Allocated"
    assert (uids(pods(place, "kept")), allocations(fleet)) == (before, held)


def allocations(bed: TestBed) -> list[str]:
    """Return the ids of all reservations."""
    items = bed.get("nus", "-A")["items"]
    return sorted(each["allocationId"] for item in items for each in item["status"].get("allocations") or [])


@pytest.mark.long
def test_two_minute_plugin_outage_changes_nothing(fleet: TestBed, place: Namespace) -> None:
    submit(place, workload("kept", 1, 1))
    place.apply(job("kept", 1, "kept"))
    wait_available(place, "kept")
    before, held = uids(pods(place, "kept")), allocations(fleet)
    [node] = before
    fleet.kubectl("taint", "node", node, f"{OUTAGE}=yes:NoExecute")
    time.sleep(120)
    outage(place, "kept", node)
    assert (uids(pods(place, "kept")), allocations(fleet)) == (before, held)


# Links between nodes, in sysfs


def set_strategy(place: Namespace, name: str, strategy: str) -> None:
    patch = {"spec": {"allocationPolicy": {"failureStrategy": strategy}}}
    place.kubectl("patch", "nusw", name, "--type=merge", "--patch", json.dumps(patch))


def test_strategies_on_a_broken_link(fleet: TestBed, place: Namespace) -> None:
    counts = {"move": 2, "report": 1}
    submit(place, workload("move", 2, 2, strategy="MigrateAffected"))
    submit(place, workload("report", 2, 1, strategy="NoOp"))
    for name, count in counts.items():
        place.apply(job(name, 2 * count, name))
    for name in counts:
        wait_available(place, name)
    before, held = {name: pods(place, name) for name in counts}, slots(fleet)
    assert ranks(place, before["move"]) == in_order(held["move"])
    ends = {name: BedNode(fleet, held[name][max(held[name])][0], TRN3) for name in counts}
    try:
        for end in ends.values():
            end.break_("component", LINK)
        eventually("the old pair is released", lambda: not {*tags(fleet)} & {*held["move"][1]}, 60)
        wait_state(place, "move", "Allocated", 60)
        wait_available(place, "move")
        moved, order = pods(place, "move"), in_order(slots(fleet)["move"])
        assert slots(fleet)["move"][0] == held["move"][0]
        assert {node: uids(moved)[node] for node in held["move"][0]} == {
            node: uids(before["move"])[node] for node in held["move"][0]
        }
        assert not {*order} & {*held["move"][1], *held["report"][0]}
        assert ranks(place, moved) == order
        assert sorted(order.values()) == [0, 1, 2, 3]

        words = wait_reason(place, "report", "LinkDown", "Degraded")
        assert f"links that the group needs are down on: {ends['report'].name}" in words
        assert (slots(fleet)["report"], uids(pods(place, "report"))) == (held["report"], uids(before["report"]))

        set_strategy(place, "report", "RestartAll")
        waiting = wait_state(place, "report", "Pending", 60)
        assert "0 of 1 groups of 2 are free" in condition(waiting)[1]
        unplaced(place, "report", 2)
        assert "report" not in slots(fleet)
    finally:
        for end in ends.values():
            end.repair_all()
    eventually("both nodes are healthy", lambda: all(map(all_healthy, ends.values())), 60)
    wait_state(place, "report", "Allocated", 60)
    wait_available(place, "report")
    again = ranks(place, pods(place, "report"))
    assert again == in_order(slots(fleet)["report"])
    assert sorted(again.values()) == [0, 1]


@pytest.mark.long
def test_strategies_on_a_broken_trn2_link(fleet: TestBed, place: Namespace) -> None:
    fleet.command("up", "--ultraserver", f"u={TRN2U}")
    submit(place, workload("linked", 2, 1, instance_type=TRN2U))
    place.apply(job("linked", 2, "linked"))
    wait_available(place, "linked")
    before, held, order = uids(pods(place, "linked")), slots(fleet)["linked"], ranks(place, pods(place, "linked"))
    broken = BedNode(fleet, "u-0", TRN2U)
    broken.break_("link", "right")
    try:
        wait_reason(place, "linked", "LinkDown", "Degraded")
        words = f"links that the group needs are down on: {', '.join(held[0])}"
        eventually("both nodes are named", lambda: words in condition(place.get("nusw", "linked"), "Degraded")[1])
        assert (uids(pods(place, "linked")), slots(fleet)["linked"]) == (before, held)

        set_strategy(place, "linked", "MigrateAffected")
        assert "no spare group yet" in wait_reason(place, "linked", "NoSpareGroup")
        assert (uids(pods(place, "linked")), slots(fleet)["linked"]) == (before, held)

        set_strategy(place, "linked", "RestartAll")
        waiting = wait_state(place, "linked", "Pending", 60)
        assert "0 of 1 groups of 2 are free" in condition(waiting)[1]
        unplaced(place, "linked", 2)
        assert slots(fleet) == {}
        eventually("no device names the workload", lambda: tags(fleet) == {})
    finally:
        broken.repair_all()
    wait_state(place, "linked", "Allocated", 60)
    wait_available(place, "linked")
    again = ranks(place, pods(place, "linked"))
    assert again == in_order(slots(fleet)["linked"])
    assert sorted(again.values()) == sorted(order.values()) == [0, 1]


@pytest.mark.long
def test_pair_with_a_broken_link_moves(fleet: TestBed, place: Namespace) -> None:
    fleet.command("up", "--ultraserver", f"u={TRN2U}", "--ultraserver", f"v={TRN2U}", "--driver", "daemonset")
    submit(place, workload("linked", 2, 1, instance_type=TRN2U, strategy="MigrateAffected"))
    place.apply(job("linked", 2, "linked"))
    wait_available(place, "linked")
    before, held = uids(pods(place, "linked")), slots(fleet)["linked"]
    old = BedNode(fleet, held[0][0], TRN2U)
    old.break_("link", "right")
    try:
        eventually("the old pair is released", lambda: not {*tags(fleet)} & {*held[0]}, 60)
        wait_state(place, "linked", "Allocated", 60)
        wait_available(place, "linked")
        running, moved = pods(place, "linked"), slots(fleet)["linked"]
        assert not {*uids(running).values()} & {*before.values()}
        assert moved[0][0].partition("-")[0] != held[0][0].partition("-")[0]
        assert ranks(place, running) == in_order(moved)
    finally:
        old.repair_all()
