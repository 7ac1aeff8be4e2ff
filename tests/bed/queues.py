"""Kueue on the test bed: its queues, its Workloads of reservations, and a record of what both become."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.bed.real_cluster import QUICK, TESTBED, BedError, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import TRN3, workload
from tests.support import kueue_log
from tests.support.kueue_log import CLUSTER_QUEUES
from tests.support.kueue_log import WORKLOADS as WORKLOADS

LABEL = "kueue.x-k8s.io/queue-name"
JOBS_QUEUE = "neuron.aws.com/queue"
RESERVES = "neuron.aws.com/ultraservers"
RESOURCE = "neuron.aws.com/ultraserver-node"
API = "kueue.x-k8s.io/v1beta2"
FLAVOR = "trn3"
CLASSES = {"low": 10, "high": 100}
PRIORITY = {
    "withinClusterQueue": "LowerPriority",
    "reclaimWithinCohort": "Any",
}


@dataclass(slots=True)
class Queues:
    """The queues of one namespace. Each LocalQueue has a ClusterQueue; all of them are in one cohort."""

    place: Namespace
    made: list[str] = field(default_factory=list)

    def add(self, name: str, quota: int, **spec: Any) -> None:
        """Add a queue with quota for some nodes; `spec` is added to its ClusterQueue's."""
        resources = [{"name": RESOURCE, "nominalQuota": quota}]
        group = {"coveredResources": [RESOURCE], "flavors": [{"name": FLAVOR, "resources": resources}]}
        cluster = {
            "cohortName": self.place.name,
            "namespaceSelector": {},
            "preemption": PRIORITY,
            "resourceGroups": [group],
            **spec,
        }
        whole = f"{self.place.name}-{name}"
        self.made.append(whole)
        self.place.apply(_object("ClusterQueue", whole, cluster))
        self.place.apply(_object("LocalQueue", name, {"clusterQueue": whole}))

    def reserved(self, name: str) -> int:
        """Return the quota that is in use in a queue."""
        status = self.place.bed.get(CLUSTER_QUEUES, f"{self.place.name}-{name}").get("status", {})
        flavors = status.get("flavorsReservation") or []
        totals = [each["total"] for flavor in flavors for each in flavor["resources"] if each["name"] == RESOURCE]
        return sum(int(each) for each in totals)

    def remove(self) -> None:
        """Remove the queues, which nothing uses any more."""
        self.place.kubectl("delete", "localqueues.kueue.x-k8s.io", "--all")
        for name in self.made:
            self.place.bed.kubectl("delete", CLUSTER_QUEUES, name, "--timeout=50s")


def _object(kind: str, name: str, spec: Obj) -> Obj:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def prepare(bed: TestBed) -> None:
    """Create what all queues share: the flavor of the fleet's nodes, and two priorities."""
    flavor = _object("ResourceFlavor", FLAVOR, {"nodeLabels": {"node.kubernetes.io/instance-type": TRN3}})
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(flavor))
    for name, value in CLASSES.items():
        item = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        bed.kubectl("apply", "-f", "-", stdin=json.dumps({**item, "value": value}))


# Workloads and jobs


def queued(name: str, queue: str, size: int, count: int, *, template: str = "", priority: str = "") -> Obj:
    """Return a NeuronUltraServerWorkload in a queue."""
    made = workload(name, size, count, template=template)
    made["apiVersion"] = "neuron.aws.com/v1beta1"
    made["metadata"]["labels"] = {LABEL: queue}
    if priority:
        made["spec"]["priorityClassName"] = priority
    return made


def gang(name: str, queue: str, size: int, count: int, *, priority: str = "", seconds: int = 2) -> Obj:
    """Return a Job that reserves its own nodes through a queue, and ends after some seconds."""
    container = {
        "name": "main",
        "image": QUICK,
        "command": ["sleep", f"{seconds}"],
        "resources": {"claims": [{"name": "node"}]},
    }
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {"node.kubernetes.io/instance-type": TRN3},
        "containers": [container],
        "resourceClaims": [{"name": "node", "resourceClaimTemplateName": f"{name}-rct"}],
    }
    if priority:
        pod["priorityClassName"] = priority
    annotations = {RESERVES: f"topologySize={size}", JOBS_QUEUE: queue}
    spec = {
        "parallelism": size * count,
        "completions": size * count,
        "completionMode": "Indexed",
        "backoffLimit": 100,  # pods of a preempted gang are evicted
        "template": {"spec": pod},
    }
    metadata: Obj = {"name": name, "annotations": annotations}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def of_reservation(place: Namespace, name: str) -> Obj | None:
    """Return Kueue's Workload of a reservation; None without one."""
    items = place.get(WORKLOADS)["items"]
    prefix = f"ultraservers-{name}-"
    found = [each for each in items if each["metadata"]["name"].startswith(prefix)]
    return found[0] if found else None


def conditions(item: Obj | None) -> dict[str, tuple[str, str]]:
    """Return status and reason of each condition of Kueue's Workload."""
    if item is None:
        return {}
    return {each["type"]: (each["status"], each["reason"]) for each in item.get("status", {}).get("conditions", ())}


def is_true(item: Obj | None, kind: str) -> bool:
    return conditions(item).get(kind, ("", ""))[0] == "True"


def message(item: Obj | None, kind: str) -> str:
    """Return the message of a condition of Kueue's Workload."""
    if item is None:
        return ""
    found = [each["message"] for each in item.get("status", {}).get("conditions", ()) if each["type"] == kind]
    return str(found[0]) if found else ""


def granted(item: Obj) -> int:
    """Return the nodes for which Kueue's Workload has quota."""
    if not is_true(item, "QuotaReserved") or is_true(item, "Finished") or item["spec"].get("active") is False:
        return 0
    returned = sum(each["count"] for each in item["status"].get("reclaimablePods") or ())
    return int(item["spec"]["podSets"][0]["count"]) - int(returned)


def set_active(place: Namespace, name: str, active: bool) -> None:
    """Deactivate Kueue's Workload of a reservation, or activate it again."""
    found = of_reservation(place, name)
    assert found is not None
    patch = json.dumps({"spec": {"active": active}})
    place.kubectl("patch", WORKLOADS, found["metadata"]["name"], "--type=merge", "--patch", patch)


def gone(place: Namespace, name: str) -> None:
    """Wait until Kueue's Workload of a reservation has ended and is removed, with its finalizer."""
    eventually(f"no Workload of {name}", lambda: of_reservation(place, name) is None, 120)


# The record


@contextlib.contextmanager
def recorded(bed: TestBed, folder: Path) -> Iterator[Path]:
    """Write every version of Kueue's Workloads and ClusterQueues, and of the UltraServers, to files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for kind in kueue_log.KINDS:
            stack.enter_context(_watch(bed, kind, folder / f"{kind}.json"))
        yield folder


@contextlib.contextmanager
def _watch(bed: TestBed, kind: str, file: Path) -> Iterator[None]:
    words = ["get", kind, "--all-namespaces", "--watch", "--output-watch-events", "--show-managed-fields", "-o", "json"]
    command = [str(TESTBED / "testbed"), "exec", "--", "kubectl", *words]
    with file.open("wb") as out:
        watch = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        watch.terminate()
        watch.wait(120)


def refused(place: Namespace, made: Obj) -> str:
    """Apply an object; return why it was refused, empty if it was not."""
    try:
        place.apply(made)
    except BedError as err:
        return str(err)
    return ""
