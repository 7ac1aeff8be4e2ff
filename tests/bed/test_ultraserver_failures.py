"""What becomes of running workloads when kubelets restart, plugins are away, and links between nodes break."""

from __future__ import annotations

import json
import time

import pytest
from deployed import slices
from fleet import (
    OUTAGE,
    TRN3,
    in_order,
    job,
    outage,
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

pytestmark = pytest.mark.long

TRN2U = "trn2u.48xlarge"

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
    place.apply(job("kept", 1, "kept"))
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


def test_each_strategy_on_a_link_that_breaks(fleet: TestBed, place: Namespace) -> None:
    fleet.command("up", "--ultraserver", f"u={TRN2U}")
    submit(place, workload("linked", 2, 1, instance_type=TRN2U))
    place.apply(job("linked", 2, "linked"))
    wait_available(place, "linked")
    before, held, order = uids(pods(place, "linked")), slots(fleet)["linked"], ranks(place, pods(place, "linked"))
    broken = BedNode(fleet, "u-0", TRN2U)
    broken.break_("link", "right")
    try:
        wait_said(place, "linked", "LinkDown", "Degraded")
        words = f"links that the group needs are down on: {', '.join(held[0])}"
        eventually("both nodes are named", lambda: words in said(place.get("nusw", "linked"), "Degraded")[1])
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
    anew = ranks(place, pods(place, "linked"))
    assert anew == in_order(slots(fleet)["linked"])
    assert sorted(anew.values()) == sorted(order.values()) == [0, 1]


@pytest.mark.long
def test_a_pair_whose_link_breaks_moves_to_another_ultraserver(fleet: TestBed, place: Namespace) -> None:
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
