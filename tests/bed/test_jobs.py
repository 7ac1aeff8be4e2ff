"""18.2. Jobs that run to their end on real kubelets, with CoreDNS: the ranks meet, also after rank 0 failed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from deployed import NAMESPACE
from fleet import TRN3, end_workloads, slots, wait_reason
from real_cluster import REPOSITORY, BedError, BedNode, Namespace, TestBed, eventually

from neuron_dra.core.wire import Obj

pytestmark = pytest.mark.long  # CoreDNS is built first
EXAMPLE = REPOSITORY / "deploy/examples/ultraservers/all-reduce-job.yaml"
NAME = "all-reduce"
GIVEN_UP = "node.kubernetes.io/out-of-service"


@pytest.fixture
def jobs(fleet: TestBed, place: Namespace) -> Iterator[Namespace]:
    """A namespace whose pods find Services by name; when it goes, its jobs have ended."""
    fleet.command("up", "--dns", timeout_s=1800)
    yield place
    place.kubectl("delete", "jobs", "--all", "--timeout=180s", timeout_s=190)
    end_workloads(place)


def example(bed: TestBed, *, size: int = 4, rounds: int = 20, pause_s: float = 0.1) -> list[Obj]:
    """Return the example for the test bed's nodes, whose images come from no registry: the driver's has Python."""
    found: list[Obj] = list(yaml.safe_load_all(EXAMPLE.read_text()))
    by_kind = {item["kind"]: item for item in found}
    by_kind["NeuronUltraServerWorkload"]["spec"] |= {"instanceType": TRN3, "topologySize": size}
    job = by_kind["Job"]["spec"]
    job |= {"completions": 2 * size, "parallelism": 2 * size}
    container = job["template"]["spec"]["containers"][0]
    driver = bed.get("daemonsets", "--namespace", NAMESPACE)["items"][0]["spec"]["template"]["spec"]["containers"][0]
    container["image"] = driver["image"]
    container["env"] = [{"name": "ROUNDS", "value": f"{rounds}"}, {"name": "PAUSE", "value": f"{pause_s}"}]
    return found


def start(place: Namespace, objects: list[Obj]) -> None:
    for item in objects:
        place.apply(item)


def log(place: Namespace, name: str) -> list[str]:
    return place.kubectl("logs", name).splitlines()


def ranks(place: Namespace) -> dict[int, Obj]:
    """Return the running pods by the rank that they print."""
    found = {}
    for item in place.get("pods", f"--selector=job-name={NAME}")["items"]:
        if item["status"]["phase"] == "Running" and "deletionTimestamp" not in item["metadata"]:
            first = re.match(r"rank (\d+) of", "\n".join(log(place, item["metadata"]["name"])))
            if first:
                found[int(first[1])] = item
    return found


def after_round(place: Namespace, count: int, number: int) -> dict[int, Obj]:
    """Wait until all ranks run and rank 0 has done some rounds; return the pods by rank."""

    def reached() -> dict[int, Obj]:
        found = ranks(place)
        done = "\n".join(log(place, found[0]["metadata"]["name"])) if len(found) == count else ""
        return found if f"round {number}:" in done else {}

    return eventually(f"{count} ranks, and round {number}", reached, 120)


def complete(place: Namespace, timeout_s: int = 300) -> None:
    """Wait until the Job is complete."""
    place.kubectl(
        "wait", f"job/{NAME}", "--for=condition=Complete", f"--timeout={timeout_s}s", timeout_s=timeout_s + 10
    )


def last_lines(place: Namespace) -> set[str]:
    """Return the last line of each pod that has succeeded."""
    items = place.get("pods", f"--selector=job-name={NAME}")["items"]
    return {log(place, item["metadata"]["name"])[-1] for item in items if item["status"]["phase"] == "Succeeded"}


def test_a_job_of_eight_ranks_runs_to_its_end(fleet: TestBed, jobs: Namespace) -> None:
    """(18.2)"""
    start(jobs, example(fleet))
    complete(jobs)
    assert last_lines(jobs) == {f"rank {rank} of 8: finished 20 rounds" for rank in range(8)}


def test_a_job_goes_on_after_a_power_cut_of_rank_0s_node(fleet: TestBed, jobs: Namespace) -> None:
    """(18.2)"""
    start(jobs, example(fleet, rounds=300))
    before = after_round(jobs, 8, 5)
    BedNode(fleet, before[0]["spec"]["nodeName"], TRN3).break_("reboot")
    complete(jobs)
    assert last_lines(jobs) == {f"rank {rank} of 8: finished 300 rounds" for rank in range(8)}
    assert {log(jobs, before[rank]["metadata"]["name"])[-1] for rank in range(1, 8)} == {
        f"rank {rank} of 8: finished 300 rounds" for rank in range(1, 8)
    }


def test_ranks_find_rank_0_again_on_another_node(fleet: TestBed, jobs: Namespace) -> None:
    """(18.2) Two groups of two; the group of rank 0 moves, the other keeps its pods."""
    start(jobs, example(fleet, size=2, rounds=600))
    before = after_round(jobs, 4, 5)
    dead = BedNode(fleet, before[0]["spec"]["nodeName"], TRN3)
    dead.break_("kubelet", "stop")
    kill_program(fleet, dead.name)
    try:
        wait_reason(jobs, NAME, "WaitingForPods", timeout_s=60)
        fleet.kubectl("taint", "node", dead.name, f"{GIVEN_UP}=nodeshutdown:NoExecute")
        complete(jobs)
        assert last_lines(jobs) == {f"rank {rank} of 4: finished 600 rounds" for rank in range(4)}
        assert dead.name not in {node for nodes in slots(fleet)[NAME].values() for node in nodes}
        for rank in (2, 3):
            lines = log(jobs, before[rank]["metadata"]["name"])
            found = [match for line in lines if (match := re.search(r"connected to (\S+), after (\d+) rounds", line))]
            assert len({match[1] for match in found}) > 1, lines
            assert int(found[-1][2]) >= 5
    finally:
        with contextlib.suppress(BedError):
            fleet.kubectl("taint", "node", dead.name, f"{GIVEN_UP}-")
        dead.repair("kubelet")


def kill_program(bed: TestBed, node: str) -> None:
    """Kill the job's process on a node, as a power cut does."""
    from bed import cgroups

    for pid in cgroups.members(bed.where, node):
        with contextlib.suppress(OSError):
            if b"all_reduce.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
