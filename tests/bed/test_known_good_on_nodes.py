"""UltraServers that are known to be good, on real kubelets: spares, what agents report, room for a large job."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator

import pytest

from hack.bed.real_cluster import BedNode, Namespace, TestBed, eventually
from tests.bed.deployed import CONTROLLER, NAMESPACE, all_healthy
from tests.bed.fleet import (
    TRN3,
    condition,
    in_order,
    job,
    pods,
    ranks,
    slots,
    submit,
    tags,
    wait_available,
    wait_reason,
    wait_state,
    workload,
)

LINK = "0:link_interserver"
GIVEN_UP = "node.kubernetes.io/out-of-service"
AGENT = "AcceleratedHardwareReady"
FLAG = f"--spares={TRN3}=1"


def spares(bed: TestBed) -> list[str]:
    """Return the UltraServers that are shown as spares."""
    items = bed.get("nus", "--namespace", NAMESPACE)["items"]
    return sorted(each["metadata"]["name"] for each in items if condition(each, "Spare")[0])


def ultraserver_of(bed: TestBed, node: str) -> str:
    items = bed.get("nus", "--namespace", NAMESPACE)["items"]
    return next(
        str(each["metadata"]["name"])
        for each in items
        if node in [entry["nodeName"] for entry in each["spec"]["topology"]]
    )


def with_flags(bed: TestBed, flags: list[str]) -> None:
    """Let the controller run with these flags, and wait for it."""
    target = (f"deployment/{CONTROLLER}", "--namespace", NAMESPACE)
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": flags}]
    bed.kubectl("patch", *target, "--type=json", "--patch", json.dumps(patch))
    bed.kubectl("rollout", "status", *target, "--timeout=240s", timeout_s=250)


def restart_controller(bed: TestBed) -> None:
    target = (f"deployment/{CONTROLLER}", "--namespace", NAMESPACE)
    bed.kubectl("rollout", "restart", *target)
    bed.kubectl("rollout", "status", *target, "--timeout=240s", timeout_s=250)


@pytest.fixture
def kept(fleet: TestBed, place: Namespace) -> Iterator[str]:
    """The UltraServer that is kept as a spare, of two."""
    before = fleet.get("deployment", CONTROLLER, "--namespace", NAMESPACE)["spec"]["template"]["spec"]
    args = before["containers"][0]["args"]
    with_flags(fleet, [*args, FLAG])
    try:
        [name] = eventually("a spare", lambda: spares(fleet), 60)
        yield name
    finally:
        with_flags(fleet, args)
        eventually("no spare", lambda: not spares(fleet), 60)


def run_whole(place: Namespace, name: str) -> None:
    """Run a job on a whole UltraServer."""
    submit(place, workload(name, 4, 1, strategy="MigrateAffected"))
    place.apply(job(name, 4, name))
    wait_available(place, name)


def moved_to(bed: TestBed, place: Namespace, name: str, old: tuple[str, ...], dead: str = "") -> str:
    """Wait until the job runs on another UltraServer, and return that. A dead node keeps the tag that it had."""

    def is_moved() -> bool:
        return slots(bed).get(name, {}).get(0, old) != old and not {*tags(bed)} & {*old} - {dead}

    eventually("another group", is_moved, 120)
    wait_state(place, name, "Allocated", 60)
    wait_available(place, name)
    held = slots(bed)[name]
    assert ranks(place, pods(place, name)) == in_order(held)
    return ultraserver_of(bed, held[0][0])


def shown_after(place: Namespace, name: str, since: datetime.datetime) -> None:
    """Print how long after a moment the last pod of a job was scheduled, and the last container began."""
    moment = datetime.datetime.fromisoformat
    scheduled, started = [], []
    for each in pods(place, name).values():
        status = each["status"]
        scheduled += [
            moment(one["lastTransitionTime"]) for one in status["conditions"] if one["type"] == "PodScheduled"
        ]
        started += [moment(one["state"]["running"]["startedAt"]) for one in status["containerStatuses"]]
    seconds = [(max(times) - since).total_seconds() for times in (scheduled, started)]
    print(f"pods scheduled after {seconds[0]:.1f} s, containers after {seconds[1]:.1f} s")


def test_group_with_a_broken_link_moves_to_the_spare(fleet: TestBed, place: Namespace, kept: str) -> None:
    run_whole(place, "move")
    old = slots(fleet)["move"][0]
    assert (ultraserver_of(fleet, old[0]) == kept, spares(fleet)) == (False, [kept])
    submit(place, workload("waits", 4, 1), "Pending")
    assert "4 nodes are spares, which only groups that must move may take" in condition(place.get("nusw", "waits"))[1]
    broken = BedNode(fleet, old[1], TRN3)
    broken.break_("component", LINK)
    try:
        assert moved_to(fleet, place, "move", old) == kept
        assert (place.get("nusw", "waits")["status"]["state"], spares(fleet)) == ("Pending", [])
    finally:
        broken.repair_all()
    eventually("the pool is filled again", lambda: spares(fleet) == [ultraserver_of(fleet, old[0])], 90)
    assert place.get("nusw", "waits")["status"]["state"] == "Pending"
    eventually("the node is healthy", lambda: all_healthy(broken), 60)


@pytest.mark.long
def test_group_that_lost_power_moves_to_the_spare(fleet: TestBed, place: Namespace, kept: str) -> None:
    """From the taint on: before it, pods may still run there."""
    run_whole(place, "move")
    old = slots(fleet)["move"][0]
    dead = BedNode(fleet, old[3], TRN3)
    dead.break_("kubelet", "stop")
    try:
        wait_reason(place, "move", "WaitingForPods", timeout_s=120)
        given_up = datetime.datetime.now(datetime.UTC)
        fleet.kubectl("taint", "node", dead.name, f"{GIVEN_UP}=nodeshutdown:NoExecute")
        assert moved_to(fleet, place, "move", old, dead.name) == kept
        shown_after(place, "move", given_up)
    finally:
        fleet.kubectl("taint", "node", dead.name, f"{GIVEN_UP}-")
        dead.repair_all()


def say(bed: TestBed, node: str, status: str, reason: str) -> None:
    """Write the condition of a Node as the EKS node monitoring agent does."""
    then = "2026-01-01T00:00:00Z"  # times of agents are not used
    said = {"type": AGENT, "status": status, "reason": reason, "message": "nd0", "lastTransitionTime": then}
    patch = {"status": {"conditions": [{**said, "lastHeartbeatTime": then}]}}
    bed.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "--patch", json.dumps(patch))


def test_group_that_an_agent_reports_moves(fleet: TestBed, place: Namespace) -> None:
    """36, number 1."""
    run_whole(place, "move")
    old = slots(fleet)["move"][0]
    say(fleet, old[2], "False", "NeuronDMAError")
    try:
        words = wait_reason(place, "move", "NodeUnhealthy", "Degraded")
        assert f"{old[2]} ({AGENT} is False, NeuronDMAError: nd0)" in words
        assert moved_to(fleet, place, "move", old) != ultraserver_of(fleet, old[0])
        submit(place, workload("waits", 4, 1), "Pending")
    finally:
        say(fleet, old[2], "True", "NeuronAcceleratedHardwareIsReady")
        # A new leader does not know of reports that had ended before it led: the node is chosen at once.
        restart_controller(fleet)
    wait_state(place, "waits", "Allocated", 60)


def test_scattered_fleet_says_who_would_have_to_move(fleet: TestBed, place: Namespace) -> None:
    """36, number 5."""
    for name in ("one", "between", "two"):
        submit(place, workload(name, 2, 1))
    place.kubectl("delete", "nusw", "between", "--timeout=60s", timeout_s=70)
    submit(place, workload("big", 4, 1), "Pending")
    held = slots(fleet)

    def advice() -> str:
        words = condition(place.get("nusw", "big"))[1]
        return words if "there would be room if 1 workload moved" in words else ""

    words = eventually("advice", advice, 120)
    named = next(name for name in ("one", "two") if f"{place.name}/{name}" in words)
    assert f"moved: {place.name}/{named}, from {', '.join(sorted(held[named][0]))}; nobody is moved" in words
    assert slots(fleet) == held
    place.kubectl("delete", "nusw", named, "--timeout=60s", timeout_s=70)
    wait_state(place, "big", "Allocated", 60)
