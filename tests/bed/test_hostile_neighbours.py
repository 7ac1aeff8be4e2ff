"""31.1 on real nodes: pods of another namespace attack the ports of the plugin and the controller for five minutes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from hack.bed import cgroups, driver
from hack.bed.deployed import pod, template
from hack.bed.real_cluster import REPOSITORY, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import NAMESPACE, driver_image

LASTS_S = 300
MILLICORES = 1000
"""What all neighbours have together: twenty are twenty sources of connections, not twenty processors."""
MOST_KIB = 96 * 1024  # of the containers' limit of 256 MiB
PROGRAM = REPOSITORY / "tests/support/neighbour.py"


def attacked(bed: TestBed) -> list[Obj]:
    """Return the pods of the driver: plugin and controller."""
    return list(bed.get("pods", "--namespace", NAMESPACE)["items"])


def ports(pods: list[Obj]) -> list[str]:
    """Return address and port of each port that a pod names."""
    return [
        f"{each['status']['podIP']}:{port['containerPort']}"
        for each in pods
        for container in each["spec"]["containers"]
        for port in container["ports"]
    ]


def failed_probes(node: BedNode) -> dict[str, int]:
    """Return how many probes of the driver's pods have failed so far, as their kubelet counts them."""
    lines = node.bed.kubectl("get", f"--raw=/api/v1/nodes/{node.name}/proxy/metrics/probes").splitlines()
    found: dict[str, int] = {}
    for line in lines:
        counted = re.fullmatch(r'prober_probe_total\{.*pod="([^"]+)".*result="failed"\} (\d+)', line)
        if counted and f'namespace="{NAMESPACE}"' in line:
            found[counted[1]] = found.get(counted[1], 0) + int(counted[2])
    return found


def restarts(pods: list[Obj]) -> dict[str, int]:
    """Return how often each pod's container has restarted, by the pod's name."""
    return {each["metadata"]["name"]: each["status"]["containerStatuses"][0]["restartCount"] for each in pods}


def peaks_kib(node: BedNode) -> list[int]:
    """Return the largest resident size that each process of plugin and controller on a node ever had."""
    parts = node.bed.parts
    in_pods = cgroups.members(node.bed.where, node.name)
    pids = [*driver.plugin_pids(parts, parts.node(node.name), in_pods), *driver.controller_pids(in_pods)]
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return [int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("VmHWM:")]


def neighbour(name: str, image: str, command: list[str], millicores: int) -> Obj:
    """Return a pod without any right that runs the program of attacks."""
    container = {
        "name": "main",
        "image": image,
        "command": ["/opt/neuron-dra/bin/python", "/program/neighbour.py", *command],
        "volumeMounts": [{"name": "program", "mountPath": "/program"}],
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"cpu": f"{millicores}m", "memory": "1Gi"},
        },
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "program", "configMap": {"name": "neighbour"}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def begin(place: Namespace, count: int) -> list[str]:
    """Start pods that attack, each with another attack first, and return their names once they run."""
    targets = ports(attacked(place.bed))
    image = driver_image(place.bed)
    names = [f"neighbour-{number}" for number in range(count)]
    place.kubectl("create", "configmap", "neighbour", f"--from-file={PROGRAM}")
    for number, name in enumerate(names):
        place.apply(neighbour(name, image, [f"{LASTS_S}", f"{number}", *targets], MILLICORES // count))
    for name in names:
        eventually(f"{name} runs", partial(runs, place, name), 60)
    return names


def phase(place: Namespace, name: str) -> str:
    return str(place.get("pod", name)["status"].get("phase"))


def runs(place: Namespace, name: str) -> bool:
    return phase(place, name) == "Running"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [5, 20])
def test_neighbours_that_do_their_worst_cost_no_probe_no_restart_and_no_pod(
    trn2: BedNode, namespace: Namespace, count: int
) -> None:
    before = (restarts(attacked(trn2.bed)), failed_probes(trn2))
    namespace.apply(template("four", 4, group=4))
    neighbours = begin(namespace, count)
    started = 0
    while any(runs(namespace, name) for name in neighbours):
        name = f"started-{started}"
        namespace.apply(pod(name, "four", node=trn2.name))
        namespace.wait_ready(name)
        namespace.delete("pod", name)
        started += 1
    assert {phase(namespace, name) for name in neighbours} == {"Succeeded"}  # they have attacked to the end
    peaks = peaks_kib(trn2)
    print(f"{started} pods started meanwhile; peaks {peaks} KiB")
    for name in neighbours:
        print(f"attacks of {name}: {namespace.logs(name).strip()}")
    assert (restarts(attacked(trn2.bed)), failed_probes(trn2)) == before
    assert max(peaks) <= MOST_KIB
    assert started > 0
