"""Two replicas of the controller: when the leader dies, the other continues, and no node is reserved twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.bed import cgroups, driver
from hack.bed.deployed import is_ready
from hack.bed.real_cluster import TESTBED, Namespace, TestBed, eventually
from tests.bed.deployed import CONTROLLER, NAMESPACE
from tests.bed.fleet import slots, workload


def leader(bed: TestBed) -> str:
    """Return the holder of the Lease."""
    spec = bed.get("lease", CONTROLLER, "--namespace", NAMESPACE)["spec"]
    return str(spec.get("holderIdentity", ""))


def leader_process(bed: TestBed) -> tuple[str, str, int]:
    """Wait for a leader; return its identity, its node, and its process on this machine."""

    def found() -> tuple[str, str, int] | None:
        identity = leader(bed)
        pods = {item["metadata"]["name"]: item for item in replicas(bed)}
        pod = pods.get(identity.partition("_")[0])
        if pod is None:
            return None
        pids = driver.controller_pids(cgroups.members(bed.where, pod["spec"]["nodeName"]))
        mine = [pid for pid in pids if f"/pod{pod['metadata']['uid']}/" in Path(f"/proc/{pid}/cgroup").read_text()]
        return (identity, pod["spec"]["nodeName"], mine[0]) if mine else None

    acting = eventually("a leader", found, 180)
    assert acting is not None
    return acting


def replicas(bed: TestBed) -> list[dict[str, Any]]:
    """Return the controller's pods."""
    found: list[dict[str, Any]] = bed.get("pods", "--namespace", NAMESPACE, f"--selector=app={CONTROLLER}")["items"]
    return found


@contextlib.contextmanager
def every_version(bed: TestBed, file: Path) -> Iterator[None]:
    """Write every version of all NeuronUltraServers to a file until the end of the block."""
    words = [str(TESTBED / "testbed"), "exec", "--", "kubectl", "get", "nus", "-n", NAMESPACE, "-w", "-o", "json"]
    with file.open("wb") as out:
        watch = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
    try:
        eventually("the watch", lambda: file.stat().st_size > 0, 10)
        yield
    finally:
        watch.terminate()
        watch.wait(120)


def versions(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects that were written; the last one may be cut off."""
    text, decoder, position = file.read_text(), json.JSONDecoder(), 0
    with contextlib.suppress(ValueError):
        while position < len(text):
            item, position = decoder.raw_decode(text, position)
            position += len(text[position:]) - len(text[position:].lstrip())
            yield item


def test_the_test_bed_shows_the_controller(fleet: TestBed) -> None:
    eventually("two replicas", lambda: [is_ready(pod) for pod in replicas(fleet)] == [True, True], 60)
    assert f"{CONTROLLER}: 2 of 2 replicas ready" in fleet.command("status")
    assert f"{CONTROLLER} starts" in fleet.command("logs", CONTROLLER)


@pytest.mark.parametrize(
    "kills", [5, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(2400)])], ids=lambda kills: f"{kills}"
)
def test_leader_deaths_reserve_no_node_twice(fleet: TestBed, place: Namespace, tmp_path: Path, kills: int) -> None:
    dice = random.Random(kills)
    seen = tmp_path / "ultraservers.json"
    eventually("two replicas", lambda: [is_ready(pod) for pod in replicas(fleet)] == [True, True], 60)
    # Four nodes and six, of eight: only one of the two fits.
    wanted = {"four": workload("four", 4, 1), "six": workload("six", 2, 3)}
    with every_version(fleet, seen):
        for number in range(kills):
            identity, node, pid = leader_process(fleet)  # after some deaths, once a back-off of the kubelet has ended
            place.apply({"apiVersion": "v1", "kind": "List", "items": list(wanted.values())})
            time.sleep(dice.uniform(0, 0.8))
            if number % 3:
                os.kill(pid, signal.SIGTERM)
            else:
                fleet.command("break", node, "controller")  # SIGKILL
            eventually("another leader", lambda old=identity: leader(fleet) not in ("", old), 180)
            eventually("one has all, the other waits", lambda: states(place) == ["Allocated", "Pending"], 120)
            held = slots(fleet)
            assert held.keys() in ({"four"}, {"six"})
            place.kubectl("delete", "nusw", "--all", "--timeout=180s", timeout_s=190)
    doubles = [
        nodes
        for item in versions(seen)
        if len(set(nodes := [n for a in item.get("status", {}).get("allocations") or [] for n in a["allocatedNodes"]]))
        != len(nodes)
    ]
    assert doubles == []
    assert sum(1 for _ in versions(seen)) > kills


def states(place: Namespace) -> list[str]:
    """Return the states of the workloads, sorted."""
    return sorted(item.get("status", {}).get("state", "") for item in place.get("nusw")["items"])
