"""18.6. Flux's own controllers install, upgrade and uninstall the chart, and judge the health of workloads.

Part `gitops` of `make night`, on a test bed without the driver.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed import gitops
from tests.bed.deployed import NAMESPACE
from tests.bed.recipes import all_reduce, complete, start
from tests.bed.releases import IMAGE, VERSIONS, Shell, images

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
RELEASE, OBJECTS = "helmrelease/neuron-dra", "kustomization/objects"
RECONCILES = 5
REQUESTS = itertools.count(1)


@pytest.fixture
def shell(bed: TestBed, published: Shell) -> Shell:
    """One UltraServer without the driver, Flux, what the jobs need, and a registry with releases."""
    gitops.up(bed, "flux")
    return published


def repository(name: str, url: str, tag: str, **spec: Any) -> Obj:
    return {
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": "OCIRepository",
        "metadata": {"name": name},
        "spec": {"interval": "1h", "insecure": True, "url": f"oci://{url}", "ref": {"tag": tag}, **spec},
    }


def release(place: Namespace, version: str) -> None:
    """Apply the chart in a version, and wait until it is installed."""
    source, wanted = gitops.objects("Install with Flux")
    source["spec"] |= {"insecure": True, "ref": {"tag": version}}
    place.apply(source)
    place.apply(wanted)

    def installed() -> bool:
        found = place.get(*RELEASE.split("/"))
        history = found.get("status", {}).get("history") or [{}]
        # Flux adds the digest to the version.
        same = history[0].get("chartVersion", "").partition("+")[0] == version
        return same and gitops.condition(found)[0] == "True"

    eventually(f"{version} is installed", installed, 300)
    eventually(f"only pods of {version}", lambda: images(place.bed) == {f"{IMAGE}:{version}"}, 120)


def reconcile(place: Namespace, what: str) -> Obj:
    """Request a reconciliation, wait until it is done, and return the object."""
    request = f"{next(REQUESTS)}"
    place.kubectl("annotate", "--overwrite", what, f"reconcile.fluxcd.io/requestedAt={request}")

    def handled() -> Obj:
        found = place.get(*what.split("/"))
        return found if found["status"].get("lastHandledReconcileAt") == request else {}

    return eventually(f"{what} is reconciled", handled, 120)


def no_drift(place: Namespace) -> None:
    """Check that several comparisons with the cluster find no difference."""
    for _ in range(RECONCILES):
        found = reconcile(place, RELEASE)
        assert gitops.condition(found)[0] == "True", found["status"]
    assert drifts(place) == []


def drifts(place: Namespace) -> list[str]:
    """Return the messages of the events about differences between the release and the cluster."""
    items = place.get("events")["items"]
    return [item["message"] for item in items if item["reason"] in ("DriftDetected", "DriftCorrected")]


def deliver(shell: Shell, place: Namespace, tag: str, objects: list[Obj]) -> None:
    """Push objects, and apply the source and the Kustomization with the health check of the page."""
    gitops.push(shell, tag, objects)
    place.apply(repository("objects", gitops.OBJECTS, tag))
    place.apply({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
        "kind": "Kustomization",
        "metadata": {"name": "objects"},
        "spec": {
            "interval": "1h",
            "timeout": "5m",
            "prune": True,
            "sourceRef": {"kind": "OCIRepository", "name": "objects"},
            "targetNamespace": place.name,
            **gitops.objects("Health of a workload")[0]["spec"],
        },
    })  # fmt: skip


def health(place: Namespace, kind: str = "Ready") -> tuple[str, str, str]:
    """Return the status, reason and message of a condition of the Kustomization."""
    return gitops.condition(place.get(*OBJECTS.split("/")), kind)


def is_ready(place: Namespace, tag: str) -> bool:
    """Return whether the Kustomization has applied this version, and all of it is healthy."""
    found = place.get(*OBJECTS.split("/"))
    applied = found.get("status", {}).get("lastAppliedRevision", "")
    return applied.startswith(f"{tag}@") and gitops.condition(found)[0] == "True"


def test_flux_installs_the_chart_and_judges_workloads(shell: Shell, namespace: Namespace) -> None:
    bed, place = shell.bed, namespace
    release(place, VERSIONS[0])
    gitops.one_ultraserver(bed)
    no_drift(place)

    # A workload that no controller has processed is not ready. The missing replicas are drift, which Flux corrects.
    [workload], others = gitops.split(all_reduce(bed, groups=1, rounds=600))
    place.kubectl("patch", RELEASE, "--type=merge", '--patch={"spec":{"suspend":true}}')
    gitops.without_controller(bed)
    deliver(shell, place, "first", [workload])
    name = workload["metadata"]["name"]
    eventually("the workload is applied", lambda: place.get("nusw", name), 120)
    eventually("its health is checked", lambda: health(place, "Healthy")[1] == "Progressing", 60)
    assert (health(place)[0], health(place, "Healthy")[0]) == ("Unknown", "Unknown")
    assert "status" not in place.get("nusw", name)
    place.kubectl("patch", RELEASE, "--type=merge", '--patch={"spec":{"suspend":false}}')
    eventually("the workload is healthy", lambda: is_ready(place, "first"), 180)
    assert place.get("nusw", name)["status"]["state"] == "Allocated"
    corrected = drifts(place)
    assert [text for text in corrected if "Deployment" in text], corrected
    place.kubectl("delete", "events", "--all")

    # Neither a reserved workload nor its running job is drift; an upgrade leaves the pods as they are.
    start(place, others)
    before = gitops.pod_uids(place, 4)
    no_drift(place)
    release(place, VERSIONS[1])
    no_drift(place)
    complete(place, "job/all-reduce")
    assert {item["metadata"]["uid"] for item in place.get("pods")["items"]} == before
    assert is_ready(place, "first")

    # A workload that cannot be served fails the check at once.
    deliver(shell, place, "second", [workload, gitops.named(workload, "late")])
    eventually("the check fails", lambda: health(place)[:2] == ("False", "HealthCheckFailed"), 120)
    assert f"NeuronUltraServerWorkload/{place.name}/late" in health(place)[2]
    deliver(shell, place, "third", [workload])
    eventually("the other one is healthy", lambda: is_ready(place, "third"), 120)

    place.kubectl("delete", OBJECTS, "--timeout=170s", timeout_s=180)
    eventually("the workloads are deleted", lambda: not place.get("nusw")["items"], 120)
    place.kubectl("delete", "jobs", "--all", "--cascade=foreground", timeout_s=120)
    check = bed.neuron_dra("uninstall-check")
    assert check.returncode == 0, check.stdout + check.stderr
    place.kubectl("delete", RELEASE, "--timeout=170s", timeout_s=180)
    gitops.uninstalled(shell, place.name, f"namespace/{NAMESPACE}")
