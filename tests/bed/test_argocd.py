"""18.7. Argo CD's own controllers install, upgrade and delete the chart, and show the health of workloads.

Part `gitops` of `make night`, on a test bed without the driver.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed import gitops
from tests.bed.deployed import DAEMONSET, NAMESPACE
from tests.bed.recipes import all_reduce, complete
from tests.bed.releases import IMAGE, VERSIONS, Shell, commands, images

pytestmark = [pytest.mark.long, pytest.mark.timeout(5400)]
ARGOCD, CHART, OBJECTS = "argocd", "neuron-dra", "objects"
REFRESHES = 5
AUTOMATED = {"prune": True, "selfHeal": True}
WAVE = "argocd.argoproj.io/sync-wave"


@pytest.fixture
def shell(bed: TestBed, published: Shell) -> Shell:
    """One UltraServer without the driver, Argo CD, what the jobs need, and a registry with releases."""
    gitops.up(bed, "argocd")
    return published


@pytest.fixture
def argocd(bed: TestBed, shell: Shell) -> Namespace:
    """Argo CD's namespace, with its project, the registry's repositories, and the health check of the page."""
    place = Namespace(bed, ARGOCD)
    shell.run(commands(gitops.text())[0])
    anything = [{"group": "*", "kind": "*"}]
    place.apply({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "AppProject",
        "metadata": {"name": "default"},
        "spec": {
            "sourceRepos": ["*"],
            "destinations": [{"server": "*", "namespace": "*"}],
            "clusterResourceWhitelist": anything,
        },
    })  # fmt: skip
    repository(place, gitops.objects("Install with Argo CD")[0])
    url = {"type": "oci", "name": OBJECTS, "url": f"oci://{gitops.OBJECTS}"}
    labels = {"argocd.argoproj.io/secret-type": "repository"}
    repository(
        place,
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": OBJECTS, "labels": labels}, "stringData": url},
    )
    return place


def repository(place: Namespace, secret: Obj) -> None:
    """Apply a repository without TLS."""
    place.apply({**secret, "stringData": {**secret["stringData"], "insecureOCIForceHttp": "true"}})


def application(name: str, namespace: str, source: Obj) -> Obj:
    """Return an Application like that of the page."""
    found = gitops.objects("Install with Argo CD")[1]
    # Without retries: an Application is not deleted while it retries a sync.
    policy = {"automated": found["spec"]["syncPolicy"]["automated"], "retry": {"limit": 0}}
    destination = {**found["spec"]["destination"], "namespace": namespace}
    spec = {**found["spec"], "source": source, "destination": destination, "syncPolicy": policy}
    return {**found, "metadata": {**found["metadata"], "name": name}, "spec": spec}


def install(argocd: Namespace, version: str, **controller: Any) -> None:
    """Apply the Application of the page with a version, and wait until it is synced and healthy."""
    found = gitops.objects("Install with Argo CD")[1]
    found["spec"]["source"]["targetRevision"] = version
    found["spec"]["source"]["helm"]["valuesObject"]["ultraserverOperator"] |= controller
    argocd.apply(found)
    values = found["spec"]["source"]["helm"]["valuesObject"]
    eventually(f"{version} is compared", lambda: compared(argocd).get("helm", {}).get("valuesObject") == values, 120)
    eventually(f"{version} is synced and healthy", lambda: state(argocd, CHART) == (version, "Synced", "Healthy"), 300)
    eventually(f"only pods of {version}", lambda: images(argocd.bed) == {f"{IMAGE}:{version}"}, 120)


def deliver(shell: Shell, argocd: Namespace, place: Namespace, tag: str, objects: list[Obj]) -> None:
    """Push objects, and apply the Application that has them."""
    gitops.push(shell, tag, objects)
    source = {"repoURL": f"oci://{gitops.OBJECTS}", "targetRevision": tag, "path": "."}
    argocd.apply(application(OBJECTS, place.name, source))


def automated(argocd: Namespace, policy: Obj | None) -> None:
    """Let Argo CD sync the chart by itself, or not."""
    patch = json.dumps({"spec": {"syncPolicy": {"automated": policy}}})
    argocd.kubectl("patch", "application", CHART, "--type=merge", f"--patch={patch}")


def compared(argocd: Namespace) -> Obj:
    """Return the source that was compared with the cluster last."""
    found: Obj = argocd.get("application", CHART).get("status", {}).get("sync", {}).get("comparedTo", {})
    source: Obj = found.get("source", {})
    return source


def state(argocd: Namespace, name: str) -> tuple[str, str, str]:
    """Return the revision that an Application has compared, whether it is synced, and its health."""
    status = argocd.get("application", name).get("status", {})
    sync = status.get("sync", {})
    revision = sync.get("comparedTo", {}).get("source", {}).get("targetRevision", "")
    return revision, sync.get("status", ""), status.get("health", {}).get("status", "")


def health(argocd: Namespace, name: str) -> tuple[str, str]:
    """Return the status and message of a workload's health in its Application."""
    for each in argocd.get("application", OBJECTS).get("status", {}).get("resources", []):
        if (each["kind"], each["name"]) == ("NeuronUltraServerWorkload", name) and "health" in each:
            return each["health"]["status"], each["health"].get("message", "")
    return "", ""


def stays_synced(argocd: Namespace, *names: str) -> None:
    """Check that several comparisons with a fresh rendering find no difference, and that none leads to another sync."""
    for name in names:
        before = argocd.get("application", name)["status"]
        for _ in range(REFRESHES):
            argocd.kubectl("annotate", "application", name, "argocd.argoproj.io/refresh=hard")
            after = eventually(f"{name} is compared", lambda name=name: refreshed(argocd, name), 120)
            assert after["sync"]["status"] == "Synced", after
            assert after["operationState"]["startedAt"] == before["operationState"]["startedAt"], after


def refreshed(argocd: Namespace, name: str) -> Obj:
    found = argocd.get("application", name)
    return {} if "argocd.argoproj.io/refresh" in found["metadata"]["annotations"] else found["status"]


def deleted(argocd: Namespace, name: str) -> None:
    argocd.kubectl("delete", "application", name, "--timeout=170s", timeout_s=180)


def test_argo_cd_installs_the_chart_and_shows_health(shell: Shell, argocd: Namespace, namespace: Namespace) -> None:
    bed, place = shell.bed, namespace
    install(argocd, VERSIONS[0])
    gitops.one_ultraserver(bed)
    stays_synced(argocd, CHART)
    known = argocd.get("application", CHART)["status"]["resources"]
    assert DAEMONSET in {each["name"] for each in known if each.get("status") == "Synced"}
    assert "neuron-dra-test" not in bed.kubectl("get", "pods", "--namespace", NAMESPACE), "the test of the chart ran"

    # A workload in an earlier wave than its job: the job waits until the nodes are reserved.
    [workload], others = gitops.split(all_reduce(bed, groups=1, rounds=600))
    name = workload["metadata"]["name"]
    workload["metadata"]["annotations"] = {WAVE: "-1"}
    automated(argocd, None)
    gitops.without_controller(bed)
    deliver(shell, argocd, place, "first", [workload, *others])
    unseen = ("Progressing", "the UltraServer controller has not processed it yet")
    eventually("the workload is progressing", lambda: health(argocd, name) == unseen, 120)
    assert not place.get("jobs")["items"]
    automated(argocd, AUTOMATED)
    eventually("the workload is healthy", lambda: health(argocd, name)[0] == "Healthy", 180)
    before = gitops.pod_uids(place, 4)
    eventually("all is synced", lambda: state(argocd, OBJECTS)[:2] == ("first", "Synced"), 120)

    stays_synced(argocd, CHART, OBJECTS)
    install(argocd, VERSIONS[1])
    stays_synced(argocd, CHART, OBJECTS)
    complete(place, "job/all-reduce")
    assert {item["metadata"]["uid"] for item in place.get("pods")["items"]} == before

    # A workload that cannot be served is degraded, and so is its Application.
    deliver(shell, argocd, place, "second", [workload, *others, gitops.named(workload, "late")])
    eventually("a workload is degraded", lambda: health(argocd, "late")[0] == "Degraded", 120)
    assert "ResourceClaimTemplate" in health(argocd, "late")[1]
    eventually("so is its Application", lambda: state(argocd, OBJECTS)[::2] == ("second", "Degraded"), 120)
    assert health(argocd, name)[0] == "Healthy"
    deliver(shell, argocd, place, "third", [workload, *others])
    eventually("it is healthy again", lambda: state(argocd, OBJECTS) == ("third", "Synced", "Healthy"), 120)

    # Back to the first version, and the definitions are no longer in the chart: pruning leaves them and the workloads.
    uid = place.get("nusw", name)["metadata"]["uid"]
    install(argocd, VERSIONS[0], crds={"enabled": False})
    stays_synced(argocd, CHART)
    found = place.get("nusw", name)
    assert (found["metadata"]["uid"], found["status"]["state"]) == (uid, "Allocated")

    deleted(argocd, OBJECTS)
    eventually("the workloads are deleted", lambda: not place.get("nusw")["items"], 120)
    check = bed.neuron_dra("uninstall-check")
    assert check.returncode == 0, check.stdout + check.stderr
    deleted(argocd, CHART)
    gitops.uninstalled(shell, NAMESPACE)
