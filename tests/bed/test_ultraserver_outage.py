"""Stopped kubelets, and pods that their node rejects: the controller on a real control plane."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hack.bed.real_cluster import QUICK, BedNode, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import (
    NODES,
    TRN3,
    events_of,
    job,
    pods,
    slots,
    submit,
    uids,
    wait_available,
    wait_reason,
    wait_state,
    workload,
)

GRACE_S = 30  # nodes stop and come back one after the other, within this time
BEYOND_THE_GRACE_S = GRACE_S + 15.0


@pytest.fixture(scope="module", autouse=True)
def patient(running_fleet: TestBed) -> Iterator[None]:
    """The controller acts on nodes that have been NotReady for GRACE_S instead of 2 s as in other tests."""
    words = ("up", "--driver", "daemonset", "--set", "ultraserverOperator.allowShortGraces=true", "--set")
    running_fleet.command(*words, f"ultraserverOperator.nodeFailureGrace={GRACE_S}s")
    yield
    running_fleet.command(*words, "ultraserverOperator.nodeFailureGrace=2s")


class Kubelets:
    """The kubelets of the nodes, which are stopped and started together."""

    def __init__(self, bed: TestBed) -> None:
        self.bed = bed
        self.stopped: list[BedNode] = []

    def stop(self, *names: str) -> None:
        self.stopped += [BedNode(self.bed, name, TRN3) for name in names]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda node: node.break_("kubelet", "stop"), self.stopped))
        eventually("the nodes are not Ready", lambda: {*names} <= self.not_ready(), 120)

    def start(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda node: node.repair("kubelet"), self.stopped))
        self.stopped = []
        eventually("the nodes are Ready again", lambda: not self.not_ready(), 120)

    def not_ready(self) -> set[str]:
        return {
            item["metadata"]["name"]
            for item in self.bed.get("nodes")["items"]
            for each in item["status"].get("conditions") or []
            if each["type"] == "Ready" and each["status"] != "True"
        }


@pytest.fixture
def kubelets(fleet: TestBed) -> Iterator[Kubelets]:
    found = Kubelets(fleet)
    yield found
    if found.stopped:
        found.start()


def running(place: Namespace, strategy: str) -> dict[str, str]:
    """Run a workload on all eight nodes with a pod on each; return the pods' UIDs by node."""
    submit(place, workload("job", 4, 2, strategy=strategy))
    place.apply(job("job", len(NODES), "job"))
    wait_available(place, "job")
    return uids(pods(place, "job"))


def status(place: Namespace) -> Obj:
    found: Obj = place.get("nusw", "job")["status"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("number", [8, 5])
def test_outage_of_most_kubelets_evicts_no_pod(
    fleet: TestBed, place: Namespace, kubelets: Kubelets, number: int
) -> None:
    """Issue 13.4: RestartAll evicted every pod as soon as the kubelets were back."""
    before, held = running(place, "RestartAll"), slots(fleet)
    kubelets.stop(*NODES[:number])
    words = wait_reason(place, "job", "NodeNotReady", "Degraded")
    eventually("an outage", lambda: outage_status(place) == "True")
    assert f"outage: {number} of 8 nodes of UltraServers" in eventually(
        "its words", lambda: wait_nodes_named(place, number), 60
    )
    assert "nodes are not Ready" in words
    time.sleep(BEYOND_THE_GRACE_S)
    kubelets.start()
    wait_reason(place, "job", "NoProblem", "Degraded", 60)
    time.sleep(BEYOND_THE_GRACE_S)
    assert (uids(pods(place, "job")), slots(fleet)) == (before, held)
    assert status(place)["state"] == "Allocated"
    assert [name for name in ("restarts", "restarting", "restartedAt") if name in status(place)] == []
    assert outage_status(place) == "False"


@pytest.mark.long
def test_stop_of_half_the_kubelets_is_a_failure(fleet: TestBed, place: Namespace, kubelets: Kubelets) -> None:
    """Issue 13.4: 4 of 8 nodes are no outage."""
    running(place, "RestartAll")
    kubelets.stop(*NODES[:4])
    eventually("the workload restarts", lambda: status(place).get("restarts") == 1, GRACE_S + 60)
    eventually("pods are evicted", lambda: not pods_on(place, NODES[4:]), 60)
    kubelets.start()
    wait_state(place, "job", "Allocated", 120)
    assert len(status(place)["restartedAt"]) == 1


def outage_status(place: Namespace) -> str:
    return next((each["status"] for each in status(place)["conditions"] if each["type"] == "Outage"), "")


def wait_nodes_named(place: Namespace, number: int) -> str:
    """Return the message of Degraded for this number of nodes."""
    message = next(each["message"] for each in status(place)["conditions"] if each["type"] == "Degraded")
    return str(message) if f"outage: {number} of" in message else ""


def pods_on(place: Namespace, nodes: tuple[str, ...]) -> list[str]:
    found = place.get("pods")["items"]
    return [item["metadata"]["name"] for item in found if item["spec"].get("nodeName") in nodes]


# Pods that their node rejects


def placed_late(place: Namespace, name: str, node: str, workload_uid: str = "") -> str:
    """Bind a pod with an allocated claim to a node, as a scheduler with old slices does; return the pod's UID."""
    request = {"name": "neuron", "exactly": {"deviceClassName": "neuron.aws.com"}}
    parameters = {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "UltraServerConfig",
        "ultraserverMode": 4,
        "workloadId": "gone",
        "workloadUid": workload_uid,
    }
    opaque = [{"requests": ["neuron"], "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}]
    config = opaque if workload_uid else []
    place.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [request], "config": config}},
        }
    )
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "main",
                        "image": QUICK,
                        "command": ["sleep", "infinity"],
                        "resources": {"claims": [{"name": "neuron"}]},
                    }
                ],
                "resourceClaims": [{"name": "neuron", "resourceClaimName": name}],
            },
        }
    )
    uid = str(place.get("pod", name)["metadata"]["uid"])
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {
        "devices": {
            "results": [{"request": "neuron", "driver": "neuron.aws.com", "pool": node, "device": "neuron-node-0"}],
            "config": [{"source": "FromClaim", **each} for each in config],
        },
        "nodeSelector": {"nodeSelectorTerms": [term]},
    }
    reserved = [{"resource": "pods", "name": name, "uid": uid}]
    patch = json.dumps({"status": {"allocation": allocation, "reservedFor": reserved}})
    place.kubectl("patch", "resourceclaim", name, "--subresource=status", "--type=merge", "-p", patch)
    return uid


@pytest.mark.long
def test_rejected_pods_are_evicted_after_two_minutes(fleet: TestBed, place: Namespace) -> None:
    """Issue 13.12: they were rejected permanently, and kept their nodes."""
    submit(place, workload("job", 4, 1))
    [reserved] = slots(fleet)["job"].values()
    free = next(name for name in NODES if name not in reserved)
    late = {
        placed_late(place, "foreign", reserved[0]): f"node {reserved[0]} is reserved for NeuronUltraServerWorkload",
        placed_late(place, "straggler", free, "a-workload-that-is-gone"): f"node {free} is no longer reserved",
    }
    eventually("both pods are evicted", lambda: not place.get("pods")["items"], 240)
    for uid, why in late.items():
        (message,) = eventually("its Event", lambda uid=uid: events_of(place, [uid], "RefusedPodEvicted"), 30)
        assert why in message
        assert message.endswith("no controller owns this pod: create it again")
    assert slots(fleet)["job"] == {0: reserved}
