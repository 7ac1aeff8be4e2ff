"""18.2. Jobs on real kubelets, with CoreDNS: the ranks meet and run to their end, also after rank 0 failed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

from hack.bed.real_cluster import BedError, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import with_efa
from tests.bed.fleet import NODES, TRN3, end_workloads, slots, wait_available, wait_reason
from tests.bed.recipes import (
    GIVEN_UP,
    all_reduce,
    complete,
    ended,
    kill_program,
    last_lines,
    log,
    runnable,
    set_rounds,
    start,
)

pytestmark = pytest.mark.long  # CoreDNS is built first
PROGRAM = "programs/all-reduce.yaml"
NAME = "all-reduce"
OF_THE_JOB = f"job-name={NAME}"
OF_THE_SET = "jobset.sigs.k8s.io/jobset-name=training"
TRAINING = "app=ultraserver-training"
LAUNCHER = "training.kubeflow.org/job-name=collectives,training.kubeflow.org/job-role=launcher"


@pytest.fixture
def jobs(fleet: TestBed, place: Namespace) -> Iterator[Namespace]:
    """A namespace whose pods find Services by name; when it goes, its jobs have ended."""
    fleet.command("up", "--with", "dns", timeout_s=1800)
    yield place
    place.kubectl("delete", "jobs", "--all", "--timeout=180s", timeout_s=190)
    end_workloads(place)


def ranks(place: Namespace, selector: str) -> dict[int, Obj]:
    """Return the running pods by the rank that they print."""
    found = {}
    for item in place.get("pods", f"--selector={selector}")["items"]:
        if item["status"]["phase"] == "Running" and "deletionTimestamp" not in item["metadata"]:
            first = re.search(r"^rank (\d+) of", "\n".join(log(place, item["metadata"]["name"])), re.MULTILINE)
            if first:
                found[int(first[1])] = item
    return found


def after_round(place: Namespace, count: int, number: int, selector: str = OF_THE_JOB) -> dict[int, Obj]:
    """Wait until all ranks run and rank 0 has done some rounds; return the pods by rank."""

    def reached() -> dict[int, Obj]:
        found = ranks(place, selector)
        done = "\n".join(log(place, found[0]["metadata"]["name"])) if len(found) == count else ""
        return found if f"round {number}:" in done else {}

    return eventually(f"{count} ranks, and round {number}", reached, 120)


def test_a_job_of_eight_ranks_runs_to_its_end(fleet: TestBed, jobs: Namespace) -> None:
    """(18.2)"""
    start(jobs, all_reduce(fleet))
    complete(jobs, f"job/{NAME}")
    assert last_lines(jobs, OF_THE_JOB) == {f"rank {rank} of 8: finished 20 rounds" for rank in range(8)}


def test_a_job_goes_on_after_a_power_cut_of_rank_0s_node(fleet: TestBed, jobs: Namespace) -> None:
    """(18.2)"""
    start(jobs, all_reduce(fleet, rounds=300))
    before = after_round(jobs, 8, 5)
    BedNode(fleet, before[0]["spec"]["nodeName"], TRN3).break_("reboot")
    complete(jobs, f"job/{NAME}")
    assert last_lines(jobs, OF_THE_JOB) == {f"rank {rank} of 8: finished 300 rounds" for rank in range(8)}
    assert {log(jobs, before[rank]["metadata"]["name"])[-1] for rank in range(1, 8)} == {
        f"rank {rank} of 8: finished 300 rounds" for rank in range(1, 8)
    }


def test_ranks_find_rank_0_again_on_another_node(fleet: TestBed, jobs: Namespace) -> None:
    """(18.2) Two groups of two; the group of rank 0 moves, the other keeps its pods."""
    start(jobs, all_reduce(fleet, size=2, rounds=600))
    before = after_round(jobs, 4, 5)
    dead = BedNode(fleet, before[0]["spec"]["nodeName"], TRN3)
    dead.break_("kubelet", "stop")
    kill_program(fleet, dead.name, "all_reduce.py")
    try:
        wait_reason(jobs, NAME, "WaitingForPods", timeout_s=60)
        fleet.kubectl("taint", "node", dead.name, f"{GIVEN_UP}=nodeshutdown:NoExecute")
        complete(jobs, f"job/{NAME}")
        assert last_lines(jobs, OF_THE_JOB) == {f"rank {rank} of 4: finished 600 rounds" for rank in range(4)}
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


# JobSet


@pytest.fixture
def job_sets(fleet: TestBed, jobs: Namespace) -> Iterator[Namespace]:
    """A namespace with the JobSet controller; when it goes, its JobSets have ended."""
    fleet.command("up", "--with", "jobsets", timeout_s=1800)
    yield jobs
    jobs.kubectl("delete", "jobsets", "--all", "--timeout=180s", timeout_s=190)


def job_set(bed: TestBed, rounds: int) -> list[Obj]:
    """Return the JobSet and what belongs to it."""
    found = runnable(bed, PROGRAM, "ultraservers/jobset.yaml")
    [entry] = next(item["spec"]["replicatedJobs"] for item in found if item["kind"] == "JobSet")
    set_rounds(entry["template"]["spec"], rounds, 0.1)
    return found


def jobs_on(place: Namespace) -> dict[str, set[str]]:
    """Return the nodes of each Job of the JobSet."""
    found: dict[str, set[str]] = {}
    for item in place.get("pods", f"--selector={OF_THE_SET}")["items"]:
        index = item["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]
        found.setdefault(index, set()).add(item["spec"].get("nodeName", ""))
    return found


def test_a_job_set_runs_to_its_end(fleet: TestBed, job_sets: Namespace) -> None:
    """(18.2) Each of its Jobs is on one UltraServer."""
    start(job_sets, job_set(fleet, 20))
    complete(job_sets, "jobset/training", "Completed")
    assert last_lines(job_sets, OF_THE_SET) == {f"rank {rank} of 8: finished 20 rounds" for rank in range(8)}
    assert sorted(map(sorted, jobs_on(job_sets).values())) == [sorted(NODES[:4]), sorted(NODES[4:])]


def test_a_job_set_starts_again_after_a_power_cut_of_rank_0s_node(fleet: TestBed, job_sets: Namespace) -> None:
    """(18.2)"""
    start(job_sets, job_set(fleet, 300))
    before = after_round(job_sets, 8, 5, OF_THE_SET)
    BedNode(fleet, before[0]["spec"]["nodeName"], TRN3).break_("reboot")
    complete(job_sets, "jobset/training", "Completed")
    assert last_lines(job_sets, OF_THE_SET) == {f"rank {rank} of 8: finished 300 rounds" for rank in range(8)}
    assert job_sets.get("jobset", "training")["status"]["restarts"] > 0


# The Deployment of the documents


def test_the_documents_job_runs_with_efa_until_it_is_deleted(fleet: TestBed, jobs: Namespace) -> None:
    """(18.2)"""
    objects = runnable(fleet, PROGRAM, "ultraservers/my-training-job.yaml")
    # Its pods end while the driver serves interfaces, which releases them.
    with with_efa(fleet, NODES), ended(jobs, "deployments"):
        start(jobs, objects)
        wait_available(jobs, "my-training-workload")
        after_round(jobs, 8, 5, TRAINING)


# torchrun and MPI


@pytest.fixture
def tools(fleet: TestBed, jobs: Namespace) -> Namespace:
    """A namespace on nodes that have an image with PyTorch and Open MPI."""
    fleet.command("up", "--with", "job-image", timeout_s=1800)
    return jobs


def test_a_job_with_torchrun_runs_to_its_end(fleet: TestBed, tools: Namespace) -> None:
    """(18.2)"""
    start(tools, runnable(fleet, "programs/torch-all-reduce.yaml", "ultraservers/torchrun-job.yaml"))
    complete(tools, "job/torchrun")
    assert last_lines(tools, "job-name=torchrun") == {
        f"[default0]:rank {rank} of 8: finished 20 rounds" for rank in range(8)
    }


def test_an_mpi_job_runs_with_efa_to_its_end(fleet: TestBed, tools: Namespace) -> None:
    """(18.2) An SSH session gets the devices' variables too."""
    fleet.command("up", "--with", "mpijobs", timeout_s=1800)
    with with_efa(fleet, NODES), ended(tools, "mpijobs"):
        start(tools, runnable(fleet, PROGRAM, "ultraservers/mpijob.yaml"))
        complete(tools, "mpijob/collectives", "Succeeded")
        lines = tools.kubectl("logs", f"--selector={LAUNCHER}", "--tail=-1").splitlines()
        finished = {line for line in lines if "finished" in line}
        assert finished == {f"rank {rank} of 8: finished 20 rounds" for rank in range(8)}
