"""18. From a release to an uninstall on two UltraServers, with each kind of job, an alert, and an upgrade beside a job.

Part `chain` of `make night`, on a test bed without the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed import monitored
from tests.bed.deployed import NAMESPACE, slices
from tests.bed.fleet import NODES, TRN3, end_workloads
from tests.bed.prometheus import dashboards, panels, rendered, running
from tests.bed.recipes import ALL_REDUCE, all_reduce, complete, ended, last_lines, runnable, start
from tests.bed.releases import (
    IMAGE,
    VERSIONS,
    Shell,
    commands,
    images,
    publish,
    section,
    set_values,
    uninstall,
    upgrade,
    with_registry,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]
EXTRAS = ("dns", "job-image", "leaderworkersets", "jobsets", "mpijobs")


@dataclass(frozen=True)
class Recipe:
    """An example, and what shows that it works."""

    files: tuple[str, ...]
    what: str
    condition: str


JOB = "job/all-reduce"
SERVER = "programs/group-server.yaml"
RECIPES = (
    Recipe(ALL_REDUCE, JOB, "Complete"),
    Recipe(("programs/torch-all-reduce.yaml", "ultraservers/torchrun-job.yaml"), "job/torchrun", "Complete"),
    Recipe(("programs/all-reduce.yaml", "ultraservers/jobset.yaml"), "jobset/training", "Completed"),
    Recipe(("programs/all-reduce.yaml", "ultraservers/mpijob.yaml"), "mpijob/collectives", "Succeeded"),
    Recipe((SERVER, "ultraservers/leaderworkerset.yaml"), "leaderworkerset/inference", "Available"),
    Recipe((SERVER, "ultraservers/prefill-decode.yaml"), "leaderworkerset/decode", "Available"),
)


@pytest.fixture
def shell(bed: TestBed, tmp_path: Path) -> Iterator[Shell]:
    """Two UltraServers without the driver, what the jobs need, and a registry."""
    extras = [word for extra in EXTRAS for word in ("--with", extra)]
    ultraservers = [word for name in ("u1", "u2") for word in ("--ultraserver", f"{name}={TRN3}")]
    bed.command("up", *ultraservers, *extras, timeout_s=3600)
    yield from with_registry(bed, tmp_path)


def run(bed: TestBed, place: Namespace, recipe: Recipe) -> None:
    """Run an example to its end, or until it serves, and delete it."""
    objects = runnable(bed, *recipe.files)
    kinds = {item["kind"].lower() for item in objects} - {"neuronultraserverworkload"}
    with ended(place, ",".join(sorted(kinds))):
        start(place, objects)
        complete(place, recipe.what, recipe.condition)
    end_workloads(place)


def running_pods(place: Namespace, number: int) -> list[Obj]:
    """Wait until the pods of a job run, and return them."""

    def found() -> list[Obj]:
        items = place.get("pods")["items"]
        return items if [item["status"]["phase"] for item in items] == ["Running"] * number else []

    return eventually(f"{number} running pods", found, 120)


def end_job(place: Namespace) -> None:
    place.kubectl("delete", "jobs", "--all", "--cascade=foreground", timeout_s=120)
    end_workloads(place)


def watched(bed: TestBed, place: Namespace, folder: Path) -> None:
    """Check that a device fault beside a job is an alert, and that a panel has the job's devices."""
    start(place, all_reduce(bed, groups=1, rounds=1_000_000))
    busy = {item["spec"]["nodeName"] for item in running_pods(place, 4)}
    idle = next(node for node in NODES if node not in busy)
    folder.mkdir()
    objects = rendered("draDriver.podMonitor.interval=2s", "ultraserverOperator.podMonitor.interval=2s")
    query = dict(panels(dashboards(objects)["neuron-dra-fleet"]))["Devices by namespace A"]
    with running(bed, folder, objects, port=9090) as server:
        eventually("all are scraped", lambda: sum(each["health"] == "up" for each in server.targets()) == 10, 120)
        with monitored.broken(bed, idle, "ecc", "3"):
            [labels] = eventually("an alert", lambda: server.firing("NeuronDeviceUnhealthy"), 120)
            assert (labels["node"], labels["neuron_device"]) == (idle, "3")
            used = eventually("the panel has data", lambda: server.query(query), 120)
            assert [labels["namespace"] for labels, _ in used] == [place.name]
        eventually("it resolves", lambda: not server.firing("NeuronDeviceUnhealthy"), 120)
    end_job(place)


def test_a_release_runs_jobs_until_it_is_uninstalled(shell: Shell, namespace: Namespace, tmp_path: Path) -> None:
    """On Kubernetes 1.34 with one kind of job."""
    bed, place = shell.bed, namespace
    publish(shell)
    for step in commands(section("Install from a registry")):
        shell.run(step)
    eventually("both UltraServers are known", lambda: len(bed.get("nus", "--namespace", NAMESPACE)["items"]) == 2, 120)
    assert images(bed) == {f"{IMAGE}:{VERSIONS[0]}"}
    set_values(shell, VERSIONS[0], "efa.enabled=true")
    for node in NODES:
        eventually(f"slices of dra.net on {node}", partial(slices, bed, node, "dra.net"), 60)
    if bed.parts.state.kubernetes != "1.34":
        for recipe in RECIPES:
            run(bed, place, recipe)
        watched(bed, place, tmp_path / "prometheus")

    start(place, all_reduce(bed, rounds=600))
    before = {item["metadata"]["uid"] for item in running_pods(place, 8)}
    upgrade(shell)
    complete(place, JOB)
    assert {item["metadata"]["uid"] for item in place.get("pods")["items"]} == before
    assert last_lines(place, "job-name=all-reduce") == {f"rank {rank} of 8: finished 600 rounds" for rank in range(8)}
    end_job(place)
    uninstall(shell)
