"""An update of the DaemonSet and its rollback on a real node, with two plugins at once and a stream of pods.

No pod fails, no device is freed early, and the ResourceSlice stays. Stolen sockets are recreated.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hack.bed.deployed import DATA, cdi_claims, neurons, pod, prepared, template
from hack.bed.errors import BedError
from hack.bed.real_cluster import IMAGE, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.hanging import stopped
from tests.bed.deployed import (
    DAEMONSET,
    NAMESPACE,
    REGISTRY,
    allocated,
    events,
    plugin_pod,
    python_on,
    registered_pods,
    settled,
    slices,
)

TRN2 = "trn2.48xlarge"
TARGET = (f"daemonset/{DAEMONSET}", "--namespace", NAMESPACE)
AT_ONCE = 5  # pods of the stream
# Each pod of the stream prints the devices that it has, and its start and end time.
LOOK = r"ls /dev | grep -E '^neuron[0-9]+$' | xargs echo"
SCRIPT = f"seen=$({LOOK}); began=$EPOCHREALTIME; sleep 0.5; echo $seen $began $EPOCHREALTIME"


@pytest.fixture
def trn2(driver: TestBed, node: Callable[[str], BedNode]) -> BedNode:
    """A trn2.48xlarge with the driver on it, and one plugin."""
    taken = node(TRN2)
    settled(taken)
    eventually("one plugin", lambda: len(registered_pods(taken)) == 1, 60)
    return taken


# The stream.


@pytest.fixture
def stream(trn2: BedNode, namespace: Namespace) -> Iterator[Namespace]:
    """A Job on the node that runs until it is suspended: short pods with one device each, five at a time."""
    namespace.apply(template("one"))
    namespace.apply(job(trn2))
    yield namespace
    namespace.kubectl("delete", "job", "stream", "--cascade=foreground", "--timeout=180s", timeout_s=190)


def job(node: BedNode) -> Obj:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["bash", "-c", SCRIPT],
        "resources": {"claims": [{"name": "neurons"}]},
    }
    content = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node.name},
        "containers": [container],
        "resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": "one"}],
    }
    spec = {"completions": 10_000, "parallelism": AT_ONCE, "backoffLimit": 0, "template": {"spec": content}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "stream"}, "spec": spec}


def status(place: Namespace) -> Obj:
    found: Obj = place.get("job", "stream")["status"]
    assert "failed" not in found, f"a pod failed: {pod_warnings(place)}"
    return found


def goes_on(place: Namespace) -> None:
    """Return when more pods have succeeded than run at a time, so that at least one started after the call."""
    before = status(place).get("succeeded", 0)
    eventually("more pods end well", lambda: status(place).get("succeeded", 0) > before + AT_ONCE, 60, 0.3)


def suspend(place: Namespace) -> None:
    """End the stream: running pods are deleted, though they may still succeed; ended ones stay."""
    place.kubectl("patch", "job", "stream", "--type=merge", "--patch", json.dumps({"spec": {"suspend": True}}))

    def states() -> set[tuple[str, bool]]:
        pods = place.get("pods", "--selector=job-name=stream")["items"]
        return {(item["status"]["phase"], "deletionTimestamp" in item["metadata"]) for item in pods}

    eventually("only pods that have ended are left", lambda: states() == {("Succeeded", False)}, 60, 0.3)
    assert not status(place).get("active")


LATE_KUBELET = re.compile(
    r"FailedMount: .*(failed to fetch token: .*"
    r"(pod \"[^\"]+\" not found|node requested token bound to a pod scheduled on a different node)"
    r"|failed to sync configmap cache: timed out waiting for the condition)",
    re.DOTALL,
)


def pod_warnings(place: Namespace) -> set[str]:
    """Return the warnings about the pods of a namespace.

    Without those of the scheduler, whose pods may wait, and of the kubelet: its cache is late, or gets no token for a
    pod that was deleted before its start, or whose binding the API server's node authorizer has not seen yet.
    """
    found = place.get("events", "--field-selector=type=Warning")["items"]
    texts = {f"{item['reason']}: {item['message']}" for item in found if item["reason"] != "FailedScheduling"}
    return {text for text in texts if not LATE_KUBELET.fullmatch(text)}


def uses(place: Namespace) -> dict[str, list[tuple[float, float]]]:
    """Return the intervals in which ended pods of the stream had each device, in order."""
    logs = place.kubectl("logs", "--selector=job-name=stream", "--tail=-1").splitlines()
    assert len(logs) == len(place.get("pods", "--selector=job-name=stream")["items"])
    found: dict[str, list[tuple[float, float]]] = {}
    for line in logs:
        assert len(line.split()) == 3, f"a pod did not have exactly one device: {line}"
        device, began, ended = line.split()
        found.setdefault(device, []).append((float(began), float(ended)))
    return {device: sorted(times) for device, times in found.items()}


# The update.


@pytest.fixture
def everywhere_at_once(driver: TestBed, trn2: BedNode) -> Iterator[None]:
    """Update all nodes at once.

    Only after the node exists: Helm rejects fields that others have changed.
    """
    strategy = driver.get(*TARGET)["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

    def surge(count: int | str) -> None:
        patch = {"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": count}}}}
        driver.kubectl("patch", *TARGET, "--type=merge", "--patch", json.dumps(patch))

    surge("100%")
    yield
    surge(1)


def two_registered(node: BedNode, interval_s: float | None = None) -> set[str]:
    """Wait until two plugins are registered; return their pods' UIDs."""

    def two() -> set[str]:
        found = registered_pods(node)
        return found if len(found) == 2 else set()

    return eventually("two plugins at once", two, 120, interval_s)


def rolled_out(node: BedNode, place: Namespace, *words: str) -> str:
    """Change the DaemonSet with kubectl, see both plugins and then the new one alone, and return its pod's UID."""
    old = registered_pods(node)
    node.bed.kubectl(*words)
    both = two_registered(node, 0.05)
    [new] = both - old
    eventually("the new plugin alone", lambda: registered_pods(node) == {new}, 120, 0.05)
    goes_on(place)
    node.bed.kubectl("rollout", "status", *TARGET, "--timeout=240s", timeout_s=250)
    return new


def log_of(node: BedNode) -> str:
    return node.bed.kubectl("logs", "--namespace", NAMESPACE, plugin_pod(node.bed, node.name)["metadata"]["name"])


def versions(bed: TestBed, node: BedNode) -> dict[str, str]:
    """Return UID and resourceVersion of a node's slices: equal values mean that there was no write."""
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in slices(bed, node.name)}


@pytest.mark.contract("R13")
@pytest.mark.contract("S23")
@pytest.mark.usefixtures("everywhere_at_once")
def test_update_and_rollback_fail_no_pod(driver: TestBed, trn2: BedNode, stream: Namespace) -> None:
    stream.apply(pod("holder", "one", node=trn2.name))
    stream.wait_ready("holder")
    held, before = neurons(stream, "holder"), versions(driver, trn2)
    goes_on(stream)

    changed = {"spec": {"template": {"metadata": {"annotations": {"example.com/update": "1"}}}}}
    there = rolled_out(trn2, stream, "patch", *TARGET, "--type=merge", "--patch", json.dumps(changed))
    assert "this plugin publishes the node's ResourceSlices" in log_of(trn2)
    assert "claim prepared" in log_of(trn2)
    back = rolled_out(trn2, stream, "rollout", "undo", *TARGET)
    assert "this plugin publishes the node's ResourceSlices" in log_of(trn2)
    assert "claim prepared" in log_of(trn2)

    suspend(stream)
    only = plugin_pod(driver, trn2.name)
    assert (only["metadata"]["uid"], there != back) == (back, True)
    assert only["status"]["containerStatuses"][0]["restartCount"] == 0
    assert versions(driver, trn2) == before
    assert pod_warnings(stream) == set()
    assert (neurons(stream, "holder"), stream.restarts("holder")) == (held, 0)
    [name] = (entry["resourceClaimName"] for entry in stream.get("pod", "holder")["status"]["resourceClaimStatuses"])
    claim = stream.get("resourceclaim", name)["metadata"]["uid"]
    eventually(
        "checkpoint, CDI folder and API server have only the holder's claim",
        lambda: prepared(trn2) == cdi_claims(trn2) == allocated(driver, trn2.name) == {claim},
        30,
    )
    for device, times in uses(stream).items():
        assert device != f"neuron{held[0]}"
        assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(times)), f"{device} had two users"


# An unprepare by the other plugin


@pytest.fixture
def two_at_once(driver: TestBed, trn2: BedNode, everywhere_at_once: None) -> Iterator[tuple[str, str]]:
    """The UIDs of the old and the new plugin of a paused update."""
    [old] = registered_pods(trn2)

    def wait_after_ready(seconds: int, annotation: str) -> None:
        template = {"metadata": {"annotations": {"example.com/update": annotation}}}
        patch = {"spec": {"minReadySeconds": seconds, "template": template}}
        driver.kubectl("patch", *TARGET, "--type=merge", "--patch", json.dumps(patch))

    wait_after_ready(3600, "slow")
    both = two_registered(trn2)
    [new] = both - {old}
    yield old, new
    wait_after_ready(0, "slow")
    eventually("the new plugin alone", lambda: registered_pods(trn2) == {new}, 120)
    driver.kubectl("rollout", "undo", *TARGET)
    driver.kubectl("rollout", "status", *TARGET, "--timeout=240s", timeout_s=250)
    settled(trn2)


def ask(node: BedNode, plugin: str, verb: str, claim: Obj) -> Obj:
    """Call a plugin, by its pod's UID, for a claim as the kubelet does; return the claim's result."""
    meta = claim["metadata"]
    asked = json.dumps({"claims": [{key: meta[key] for key in ("namespace", "name", "uid")}]})
    words = ("grpcurl", "-plaintext", "-unix", "-d", asked, f"{DATA}/dra-{plugin}.sock")
    answer = json.loads(node.run(*words, f"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/Node{verb}Resources"))
    return dict(answer["claims"][meta["uid"]])


def allocate(place: Namespace, name: str, node: BedNode, device: str) -> Obj:
    """Create a claim and allocate it, as the scheduler does, for a pod that does not exist."""
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}
    spec = {"devices": {"requests": [request]}}
    place.apply({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec})
    result = {"request": "r", "driver": "neuron.aws.com", "pool": node.name, "device": device}
    status = {"allocation": {"devices": {"results": [result]}}}
    patch = json.dumps({"status": status})
    place.kubectl("patch", "resourceclaim", name, "--subresource=status", "--type=merge", "--patch", patch)
    return place.get("resourceclaim", name)


def test_old_plugin_does_not_prepare_unprepared_claim(
    driver: TestBed, trn2: BedNode, two_at_once: tuple[str, str], namespace: Namespace
) -> None:
    """(14.4) The old plugin waits for an API server that does not answer, while the kubelet withdraws the claim."""
    old, new = two_at_once
    claim = allocate(namespace, "withdrawn", trn2, "neuron-device-5")
    logs = f"cat /var/log/pods/{NAMESPACE}_*_{old}/*/*.log"
    waits = "retrying the API server"
    before = trn2.run("sh", "-c", logs).count(waits)
    with ThreadPoolExecutor(1) as pool:
        with stopped(driver.parts.processes.pid("kube-apiserver")):
            prepare = pool.submit(ask, trn2, old, "Prepare", claim)
            eventually("the old plugin waits", lambda: trn2.run("sh", "-c", logs).count(waits) > before, 30)
            assert ask(trn2, new, "Unprepare", claim) == {}
        error = prepare.result()["error"]
    assert "claim was unprepared while it was being prepared" in error.replace(f"{namespace.name}/withdrawn ", "")
    assert claim["metadata"]["uid"] not in prepared(trn2) | cdi_claims(trn2)
    # The withdrawal is not permanent: a later prepare succeeds.
    [device] = ask(trn2, old, "Prepare", claim)["devices"]
    assert "neuron-device-5" in device.values()
    assert ask(trn2, new, "Unprepare", claim) == {}
    assert claim["metadata"]["uid"] not in prepared(trn2) | cdi_claims(trn2)


# Theft.

THIEF = """
import os, socket, sys, time
os.unlink(sys.argv[1])
thief = socket.socket(socket.AF_UNIX)
thief.bind(sys.argv[1])
thief.listen()
print('stolen', flush=True)
time.sleep(300)
"""


@contextlib.contextmanager
def stolen(node: BedNode, path: str, log: Path) -> Iterator[None]:
    """Let a process replace a socket and listen there without replying."""
    script = log.with_suffix(".py")
    script.write_text(THIEF)
    with python_on(node.name, f"{script} {path}", log):
        eventually("the theft", lambda: "stolen" in log.read_text(), 20)
        yield


@pytest.mark.contract("R10")
def test_stolen_or_removed_sockets_are_recreated(
    driver: TestBed, trn2: BedNode, namespace: Namespace, tmp_path: Path
) -> None:
    namespace.apply(template("one"))
    namespace.apply(pod("running", "one", node=trn2.name))
    namespace.wait_ready("running")
    held, before = neurons(namespace, "running"), versions(driver, trn2)
    plugin = plugin_pod(driver, trn2.name)
    uid, address = plugin["metadata"]["uid"], plugin["status"]["podIP"]
    dra, registration = f"{DATA}/dra-{uid}.sock", f"{REGISTRY}/neuron.aws.com-{uid}-reg.sock"

    def serves() -> bool:
        """The liveness on the plugin's DRA socket covers both sockets."""
        words = ("grpcurl", "-plaintext", "-unix", "-max-time", "2", "-d", '{"service": "liveness"}', dra)
        with contextlib.suppress(BedError):
            return "SERVING" in trn2.run(*words, "grpc.health.v1.Health/Check").split('"')
        return False

    def is_ready() -> bool:
        with driver.inside(), contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://{address}:8080/readyz", timeout=5).status == 200)
        return False

    with stolen(trn2, dra, tmp_path / "thief.log"):
        trn2.run("rm", registration)
        eventually("both sockets are served again", serves, 15)
        eventually("the kubelet has registered the plugin again", is_ready, 30)
        namespace.apply(pod("next", "one", node=trn2.name))
        namespace.wait_ready("next")
    assert set(neurons(namespace, "next")).isdisjoint(held)
    assert events(namespace, "next", "FailedPrepareDynamicResources") == []
    assert plugin_pod(driver, trn2.name)["status"]["containerStatuses"][0]["restartCount"] == 0
    assert "the DRA socket was removed or replaced; serving it again" in log_of(trn2)
    assert registered_pods(trn2) == {uid}
    assert (neurons(namespace, "running"), versions(driver, trn2)) == (held, before)
    namespace.delete("pod", "running")
    eventually("its claim is unprepared", lambda: len(prepared(trn2)) == 1, 30)
