"""Reads the deployed driver on the test bed: slices, sockets, metrics, Events; and programs beside it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from hack.bed.deployed import DATA, cdi_claims, is_ready, neurons, pod, prepared
from hack.bed.real_cluster import REPOSITORY, TESTBED, BedError, BedNode, Namespace, TestBed, eventually
from neuron_dra.core import catalogue
from neuron_dra.core.wire import Obj

NAMESPACE = "neuron-dra-driver"
DAEMONSET = "neuron-dra-driver-kubelet-plugin"
CONTROLLER = "neuron-ultraserver-controller"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{CONTROLLER}"
AS_CONTROLLER = (f"--as={ACCOUNT}", "--as-group=system:masters")
"""Flags of kubectl: policies see the controller, and RBAC allows everything, as kubectl also reads."""
ONLY_PLUGINS = f"--selector=app!={CONTROLLER}"
MANIFESTS = REPOSITORY / "tests/bed/manifests"
REGISTRY = "/var/lib/kubelet/plugins_registry"
DEVICE_PLUGIN = "/var/lib/kubelet/device-plugins/neuron-devplugin.sock"
OLD_RESOURCE = "aws.amazon.com/neuron"
TYPE_LABEL = "node.kubernetes.io/instance-type"


def is_installed(bed: TestBed) -> bool:
    """Return True if the DaemonSet has a ready pod on every node that should have one."""
    with contextlib.suppress(BedError):
        words = ("rollout", "status", f"daemonset/{DAEMONSET}", "--namespace", NAMESPACE, "--timeout=1s")
        return bed.parts.state.driver == "daemonset" and "successfully" in bed.kubectl(*words)
    return False


def driver_image(bed: TestBed) -> str:
    """Return the image of the driver, which every node has; it has Python and gRPC."""
    [daemonset] = bed.get("daemonsets", "--namespace", NAMESPACE)["items"]
    return str(daemonset["spec"]["template"]["spec"]["containers"][0]["image"])


def with_setting(bed: TestBed, word: str) -> None:
    """Set an environment variable of the driver, as NAME=value, or remove it, as NAME-; wait until all pods have it."""
    target = (f"daemonset/{DAEMONSET}", "--namespace", NAMESPACE)
    bed.kubectl("set", "env", *target, word)
    bed.kubectl("rollout", "status", *target, "--timeout=480s", timeout_s=490)


# Devices and claims of a node


def slices(bed: TestBed, node: str, driver: str = "neuron.aws.com") -> list[Obj]:
    """Return the ResourceSlices of a driver on a node."""
    found = bed.get("resourceslices")["items"]
    return [item for item in found if (item["spec"].get("nodeName"), item["spec"]["driver"]) == (node, driver)]


def devices(bed: TestBed, node: str) -> list[Obj]:
    """Return the published Neuron devices of a node."""
    return [device for item in slices(bed, node) for device in item["spec"].get("devices") or []]


def plugin_pods(bed: TestBed, node: str) -> list[Obj]:
    """Return the ready driver pods of a node, the newest first, without terminating ones."""
    pods = bed.get("pods", "--namespace", NAMESPACE, ONLY_PLUGINS)["items"]
    mine = [p for p in pods if p["spec"].get("nodeName") == node and "deletionTimestamp" not in p["metadata"]]
    return sorted(filter(is_ready, mine), key=lambda p: p["metadata"]["creationTimestamp"], reverse=True)


def template_hash(bed: TestBed) -> str:
    """Return the hash that pods of the DaemonSet's present template have; empty until its controller has seen that.

    A number of the template does not tell: a template that was changed and changed back has a new one, and the pods
    that were not replaced in between keep the old one.
    """
    daemonset = bed.get("daemonset", DAEMONSET, "--namespace", NAMESPACE)
    if daemonset["status"].get("observedGeneration") != daemonset["metadata"]["generation"]:
        return ""
    uid = daemonset["metadata"]["uid"]
    revisions = {}
    for each in bed.get("controllerrevisions", "--namespace", NAMESPACE)["items"]:
        if uid in [owner["uid"] for owner in each["metadata"]["ownerReferences"]]:
            revisions[each["revision"]] = each["metadata"]["labels"]["controller-revision-hash"]
    return str(revisions[max(revisions)])


def plugin_pod(bed: TestBed, node: str) -> Obj:
    """Wait for the driver pod of a node, and return it: one of the DaemonSet's present template."""

    def current() -> list[Obj]:
        wanted = template_hash(bed)
        pods = plugin_pods(bed, node)
        return [each for each in pods if each["metadata"]["labels"]["controller-revision-hash"] == wanted]

    return eventually(f"a ready driver pod on {node}", current, 180)[0]


def registered_pods(node: BedNode) -> set[str]:
    """Return the UIDs of the driver pods that have a registration socket on a node."""
    names = node.run("ls", REGISTRY).split()
    return {m[1] for name in names if (m := re.fullmatch(r"neuron\.aws\.com-(.*)-reg\.sock", name))}


def allocated(bed: TestBed, node: str) -> set[str]:
    """Return the UIDs of the claims that are allocated on a node, from the API server."""
    return {
        claim["metadata"]["uid"]
        for claim in bed.get("resourceclaims", "--all-namespaces")["items"]
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        if (result["driver"], result["pool"]) == ("neuron.aws.com", node)
    }


def sockets(node: BedNode) -> list[str]:
    """Return the sockets of the driver on a node."""
    found = node.run("find", REGISTRY, DATA, "-name", "*.sock", "-o", "-name", "neuron.aws.com*.sock").split()
    return [path for path in found if "neuron.aws.com" in path]


def relabel(node: BedNode, instance_type: str) -> None:
    """Set a node's instance type label; the driver's DaemonSet runs on Neuron nodes only."""
    node.bed.kubectl("label", "node", node.name, f"{TYPE_LABEL}={instance_type}", "--overwrite")


def metrics(node: BedNode) -> list[str]:
    """Return the lines of a node's metrics."""
    address = plugin_pod(node.bed, node.name)["status"]["podIP"]
    with node.bed.inside(), urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=60) as answer:
        return str(answer.read().decode()).splitlines()


def prepares(node: BedNode) -> float:
    """Return how many claims a node's plugin has been called to prepare, and how many it has prepared."""
    wanted = 'neuron_dra_claim_operation_seconds_count{operation="prepare",result="ok"} '
    return sum(float(line.removeprefix(wanted)) for line in metrics(node) if line.startswith(wanted))


def all_healthy(node: BedNode) -> bool:
    """Return True if a node publishes the devices of its type, all of them healthy (an earlier test may have added
    faults).
    """
    spec = catalogue.lookup(node.instance_type)
    found = devices(node.bed, node.name)
    expected = 1 if spec is None or spec.whole_node else spec.device_count
    return len(found) == expected and not any("unhealthy" in device["attributes"] for device in found)


def settled(node: BedNode) -> None:
    """Wait until a node's driver is ready, all of its devices are published as well, and checkpoint and CDI agree."""
    plugin_pod(node.bed, node.name)
    eventually(f"healthy devices of {node.name}", lambda: all_healthy(node), 120)
    eventually(f"checkpoint and CDI folder of {node.name} agree", lambda: prepared(node) == cdi_claims(node), 60)


def events(place: Namespace, name: str, reason: str) -> list[str]:
    """Return the messages of the events about a pod that have this reason."""
    selector = f"--field-selector=involvedObject.name={name},reason={reason}"
    return [item.get("message", "") for item in place.get("events", selector)["items"]]


def stays_pending(place: Namespace, name: str, seconds: float = 4) -> str:
    """Check that the scheduler finds no node for a pod, and that it waits; return the scheduler's message."""
    words = eventually(f"a word about pod {name}", lambda: events(place, name, "FailedScheduling"), 30)
    time.sleep(seconds)
    pod = place.get("pod", name)
    assert pod["status"]["phase"] == "Pending"
    assert "nodeName" not in pod["spec"]
    return words[-1]


def refusal(place: Namespace, name: str) -> str:
    """Wait until the kubelet reports that a pod's claim could not be prepared, and return its message."""
    reason = "FailedPrepareDynamicResources"
    return eventually(f"a refusal of pod {name}", lambda: events(place, name, reason), 60)[-1]


def healths(place: Namespace, name: str) -> set[str]:
    """Return the health of a pod's devices in its status; kubelets up to 1.35 do not report it."""
    return {
        resource["health"]
        for container in place.get("pod", name)["status"].get("containerStatuses", [])
        for status in container.get("allocatedResourcesStatus", [])
        for resource in status["resources"]
    }


def reports_health(bed: TestBed) -> bool:
    """Return True if pods' statuses include the health of their devices: from Kubernetes 1.36 on."""
    return int(bed.parts.state.kubernetes.split(".")[1]) >= 36


def started(place: Namespace, wanted: Obj) -> list[int]:
    """Start a pod, and return the devices that its first container sees."""
    name = wanted["metadata"]["name"]
    place.apply(wanted)
    place.wait_ready(name)
    return neurons(place, name)


def environment(place: Namespace, name: str) -> dict[str, str]:
    """Return the variables of a pod that drivers set."""
    pairs = (line.partition("=")[::2] for line in place.exec(name, "env").splitlines())
    return {key: value for key, value in pairs if key.startswith(("NEURON_", "DRA_NET_"))}


def rows(numbers: Iterable[int]) -> set[int]:
    """Return the groups of four that these devices are in."""
    return {number // 4 for number in numbers}


# A claim that is allocated by hand, where the scheduler would not.


EARLY = "early"


def waits_for_its_start(place: Namespace, name: str, node: str) -> None:
    """Create the claim `early`, and a pod that uses it and waits for `open_gate`."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}]}}
    place.apply(
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": EARLY}, "spec": spec}
    )
    waits = pod(name, "unused", node=node)
    waits["spec"] |= {
        "schedulingGates": [{"name": "example.com/not-yet"}],
        "resourceClaims": [{"name": "neurons", "resourceClaimName": EARLY}],
    }
    place.apply(waits)


def open_gate(place: Namespace, name: str) -> None:
    """Let the scheduler place a pod that waits for its start."""
    place.kubectl("patch", "pod", name, "--type=json", "-p", '[{"op":"remove","path":"/spec/schedulingGates"}]')


def allocate(place: Namespace, pod_name: str, node: BedNode, device: str) -> None:
    """Allocate the claim `early` for a pod, as the scheduler does."""
    uid = place.get("pod", pod_name)["metadata"]["uid"]
    result = {"request": "r", "driver": "neuron.aws.com", "pool": node.name, "device": device}
    user = {"resource": "pods", "name": pod_name, "uid": uid}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    patch = json.dumps({"status": status})
    place.kubectl("patch", "resourceclaim", EARLY, "--subresource=status", "--type=merge", "--patch", patch)


# EFA interfaces.


@contextlib.contextmanager
def with_efa(bed: TestBed, nodes: Iterable[str]) -> Iterator[None]:
    """Let the driver of the bed serve the EFA interfaces of these nodes, until the end of the block."""
    bed.command("up", "--driver", "daemonset", "--set", "efa.enabled=true", timeout_s=1200)
    try:
        for node in nodes:
            eventually(f"slices of dra.net on {node}", partial(slices, bed, node, "dra.net"), 60)
        yield
    finally:
        bed.command("up", "--driver", "daemonset", "--set", "efa.enabled=false", timeout_s=1200)


@contextlib.contextmanager
def without_efa_commits(node: str, log: Path) -> Iterator[None]:
    """Hold the lock of the EFA driver's store on a node: it can neither prepare nor unprepare claims."""
    with python_on(node, f"-m tests.support.locking {DATA}/efa/serialize.lock", log):
        eventually(f"the EFA driver of {node} is locked", lambda: "locked" in log.read_text(), 60)
        yield


@contextlib.contextmanager
def python_on(node: str, program: str, log: Path) -> Iterator[None]:
    """Run a Python program of this repository on a node until the end of the block, which sends SIGTERM."""
    command = f"PYTHONPATH={REPOSITORY} exec {sys.executable} {program}"
    with log.open("wb") as out:
        words: list[str | Path] = [TESTBED / "testbed", "exec", "--node", node, "--", "sh", "-c", command]
        process = subprocess.Popen(words, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def device_plugin(node: str, log: Path) -> contextlib.AbstractContextManager[None]:
    """Serve the socket of AWS's device plugin on a node until the end of the block."""
    return python_on(node, f"-m tests.support.listening {DEVICE_PLUGIN}", log)


def registered_device_plugin(node: str, log: Path, count: int) -> contextlib.AbstractContextManager[None]:
    """Offer aws.amazon.com/neuron on a node to the kubelet, as AWS's device plugin does, until the end of the block."""
    return python_on(node, f"-m tests.support.device_plugin {Path(DEVICE_PLUGIN).parent} {OLD_RESOURCE} {count}", log)
