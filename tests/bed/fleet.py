"""UltraServers on the test bed: workloads, the nodes that they hold, and the ranks in their pods."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hack.bed import cgroups, driver
from hack.bed.real_cluster import PATIENCE_S, QUICK, REPOSITORY, BedError, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import CONTROLLER, NAMESPACE, environment, slices

TRN3 = "trn3.48xlarge"
NODES = tuple(f"{ultraserver}-{position}" for ultraserver in ("u1", "u2") for position in range(4))
RANK = "NEURON_GLOBAL_TOPOID"
OUR_CRDS = REPOSITORY / "deploy/crds"
AWSS_CRDS = REPOSITORY / "tests/bed/manifests/official-crds.yaml"
OUTAGE = "testbed.local/outage"  # a taint that evicts the plugin from a node, but not the pods of `job`


# Workloads.


def workload(
    name: str, size: int, count: int, *, instance_type: str = TRN3, strategy: str = "NoOp", template: str = ""
) -> Obj:
    """Return a NeuronUltraServerWorkload."""
    spec: Obj = {
        "instanceType": instance_type,
        "topologySize": size,
        "serverCount": count,
        "allocationPolicy": {"failureStrategy": strategy},
    }
    if template:
        spec["resourceClaimTemplate"] = {"name": template}
    return {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": name},
        "spec": spec,
    }


def wait_state(place: Namespace, name: str, state: str, timeout_s: int = 30) -> Obj:
    """Wait until a workload is in a state, and return it; the error has its status."""
    timeout_s = max(timeout_s, PATIENCE_S)
    try:
        place.kubectl(
            "wait", f"nusw/{name}", f"--for=jsonpath={{.status.state}}={state}", f"--timeout={timeout_s}s",
            timeout_s=timeout_s + 10,
        )  # fmt: skip
    except BedError as err:
        raise AssertionError(f"{name} is not {state}: {err}; {condition(place.get('nusw', name))}") from err
    return place.get("nusw", name)


def submit(place: Namespace, made: Obj, state: str = "Allocated") -> Obj:
    """Apply a workload, wait for its state, and return it."""
    place.apply(made)
    return wait_state(place, made["metadata"]["name"], state)


def condition(made: Obj, kind: str = "Ready") -> tuple[str, str]:
    """Return reason and message of a workload's condition."""
    conditions = made.get("status", {}).get("conditions", [])
    return next(((each["reason"], each["message"]) for each in conditions if each["type"] == kind), ("", ""))


def wait_reason(place: Namespace, name: str, reason: str, kind: str = "Ready", timeout_s: float = 30) -> str:
    """Wait until a workload's condition has this reason, and return its message."""
    held, timeout_s = place.kubectl, max(timeout_s, PATIENCE_S)
    jsonpath = f'--for=jsonpath={{.status.conditions[?(@.type=="{kind}")].reason}}={reason}'
    try:
        held("wait", f"nusw/{name}", jsonpath, f"--timeout={timeout_s:.0f}s", timeout_s=timeout_s + 10)
    except BedError as err:
        raise AssertionError(f"{name}: {err}; it says {condition(place.get('nusw', name), kind)}") from err
    return condition(place.get("nusw", name), kind)[1]


def end_workloads(place: Namespace) -> None:
    """Delete the workloads of a namespace, and return when their nodes are free."""
    place.kubectl("delete", "nusw", "--all", "--timeout=180s", timeout_s=190)


def seconds_to_allocated(place: Namespace) -> float:
    """Submit a workload, wait until its nodes are reserved, release them, and return the seconds until then."""
    began = time.monotonic()
    submit(place, workload("job", 4, 1))
    took_s = time.monotonic() - began
    end_workloads(place)
    return took_s


# Who holds what.


def slots(bed: TestBed) -> dict[str, dict[int, tuple[str, ...]]]:
    """Return the nodes of each slot that is reserved, by workload and by the slot's index; a node has one holder."""
    held: dict[str, dict[int, tuple[str, ...]]] = {}
    nodes: list[str] = []
    for ultraserver in bed.get("nus", "--namespace", NAMESPACE)["items"]:
        for entry in ultraserver.get("status", {}).get("allocations") or []:
            name = entry["workloadRef"].partition("/")[2]
            held.setdefault(name, {})[entry["ultraserverIndex"]] = tuple(entry["allocatedNodes"])
            nodes += entry["allocatedNodes"]
    assert len(nodes) == len(set(nodes)), f"a node is in two slots: {held}"
    return held


def tags(bed: TestBed) -> dict[str, str]:
    """Return the workload in the tag of each reserved node."""
    return {
        item["spec"]["nodeName"]: device["attributes"]["workloadId"]["string"]
        for item in bed.get("resourceslices")["items"]
        for device in item["spec"].get("devices") or []
        if "workloadId" in device["attributes"]
    }


def published(bed: TestBed) -> dict[str, dict[str, Any]]:
    """Return the attributes of each node's first device, by node."""
    return {
        item["spec"]["nodeName"]: {
            key: next(iter(value.values())) for key, value in item["spec"]["devices"][0]["attributes"].items()
        }
        for item in bed.get("resourceslices")["items"]
        if item["spec"]["driver"] == "neuron.aws.com" and item["spec"].get("devices")
    }


# Pods.


def job(name: str, replicas: int, *templates: str) -> Obj:
    """Return a Deployment whose pods have a claim from each template, and end at once on SIGTERM."""
    names = [f"claim-{number}" for number in range(len(templates))]
    container = {
        "name": "main",
        "image": QUICK,
        "command": ["sleep", "infinity"],
        "resources": {"claims": [{"name": each} for each in names]},
    }
    claims = [
        {"name": each, "resourceClaimTemplateName": template} for each, template in zip(names, templates, strict=True)
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"job": name}},
            "template": {
                "metadata": {"labels": {"job": name}},
                "spec": {
                    "containers": [container],
                    "resourceClaims": claims,
                    "tolerations": [{"key": OUTAGE, "operator": "Exists"}],
                },
            },
        },
    }


def wait_available(place: Namespace, name: str, timeout_s: int = 60) -> None:
    """Wait until all pods of a Deployment are ready; the error has the messages of scheduler and kubelets."""
    timeout_s = max(timeout_s, PATIENCE_S)
    try:
        place.kubectl("rollout", "status", f"deployment/{name}", f"--timeout={timeout_s}s", timeout_s=timeout_s + 10)
    except BedError as err:
        events = place.kubectl("get", "events", "--field-selector=involvedObject.kind=Pod,type=Warning")
        raise AssertionError(f"deployment {name}: {err}\n{events[-3000:]}") from err


def pods(place: Namespace, name: str, selector: str = "") -> dict[str, Obj]:
    """Return the running pods of a Deployment by their node; a node has one."""
    found = [
        item
        for item in place.get("pods", f"--selector={selector or f'job={name}'}")["items"]
        if "nodeName" in item["spec"] and "deletionTimestamp" not in item["metadata"]
    ]
    by_node = {item["spec"]["nodeName"]: item for item in found}
    assert len(by_node) == len(found), "two pods on one node"
    return by_node


def uids(by_node: dict[str, Obj]) -> dict[str, str]:
    """Return the UID of each node's pod."""
    return {node: item["metadata"]["uid"] for node, item in by_node.items()}


def job_variables(place: Namespace, by_node: dict[str, Obj]) -> dict[str, dict[str, str]]:
    """Return the drivers' variables in each node's pod."""

    def of(item: Obj) -> dict[str, str]:
        return environment(place, item["metadata"]["name"])

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(by_node, pool.map(of, by_node.values()), strict=True))


def ranks(place: Namespace, by_node: dict[str, Obj]) -> dict[str, int]:
    """Return the rank in each node's pod."""
    return {node: int(variables[RANK]) for node, variables in job_variables(place, by_node).items()}


def in_order(held: dict[int, tuple[str, ...]]) -> dict[str, int]:
    """Return the rank of each node of a workload's slots: the slot's index, then the place in it."""
    return {
        node: index * len(members) + number for index, members in held.items() for number, node in enumerate(members)
    }


def events_of(place: Namespace, uids: Iterable[str], reason: str) -> list[str]:
    """Return the messages of the events with this reason about the objects with these UIDs."""
    wanted = set(uids)
    items = place.get("events", f"--field-selector=reason={reason}")["items"]
    return [item["message"] for item in items if item["involvedObject"]["uid"] in wanted]


def unplaced(place: Namespace, name: str, count: int, selector: str = "") -> list[Obj]:
    """Wait until all `count` pods of a Deployment are Pending without a node, and return them."""

    def waiting() -> list[Obj]:
        items = place.get("pods", f"--selector={selector or f'job={name}'}")["items"]
        fine = all(item["status"]["phase"] == "Pending" and "nodeName" not in item["spec"] for item in items)
        return items if fine and len(items) == count else []

    return eventually(f"{count} pods of {name} wait", waiting, 60)


def scale(place: Namespace, name: str, replicas: int) -> None:
    """Change how many pods a Deployment has."""
    place.kubectl("scale", f"deployment/{name}", f"--replicas={replicas}")


def resize(place: Namespace, name: str, count: int) -> None:
    """Change a workload's serverCount."""
    place.kubectl("patch", "nusw", name, "--type=merge", "--patch", json.dumps({"spec": {"serverCount": count}}))


# The controller.


def replicas(bed: TestBed, number: int) -> None:
    """Change how many replicas the controller has, and wait until as many run."""
    where = ("--namespace", NAMESPACE)
    bed.kubectl("scale", f"deployment/{CONTROLLER}", f"--replicas={number}", *where)
    bed.kubectl("rollout", "status", f"deployment/{CONTROLLER}", "--timeout=90s", *where, timeout_s=100)
    if number == 0:
        gone = ("--for=delete", "--timeout=90s")
        bed.kubectl("wait", "pod", f"--selector=app={CONTROLLER}", *gone, *where, timeout_s=100)


def controller_peak_kib(bed: TestBed) -> int:
    """Return the largest resident size that a running replica of the controller ever had."""
    pids = driver.controller_pids(cgroups.members(bed.where))
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return max(int(peak) for status in statuses for peak in re.findall(r"VmHWM:\s+(\d+) kB", status))


# A stopped plugin.


def outage(place: Namespace, name: str, node: str) -> None:
    """Wait until a node without its plugin has no slices, check the message, and let the plugin return."""
    eventually(f"no slice of {node}", lambda: not slices(place.bed, node), 90)
    assert f"nodes that publish no ResourceSlice: {node}" in wait_reason(place, name, "SliceMissing", "Degraded")
    assert place.get("nusw", name)["status"]["state"] == "Allocated"
    place.bed.kubectl("taint", "node", node, f"{OUTAGE}-")
    eventually(f"{node} is tagged again", lambda: tags(place.bed).get(node) == name, 60)
    wait_reason(place, name, "NoProblem", "Degraded")


@contextlib.contextmanager
def without_policies(bed: TestBed) -> Iterator[None]:
    """Remove the bindings of the policies of reserved devices, and restore them at the end."""
    names = [f"neuron-dra-driver-reserved-{name}" for name in ("templates", "claims", "pods")]
    found = [bed.get("validatingadmissionpolicybindings", name) for name in names]
    bed.kubectl("delete", "validatingadmissionpolicybindings", *names)
    try:
        yield
    finally:
        for each in found:
            kept = {key: each["metadata"][key] for key in ("name", "labels", "annotations") if key in each["metadata"]}
            bed.kubectl("create", "-f", "-", stdin=json.dumps({**each, "metadata": kept}))
