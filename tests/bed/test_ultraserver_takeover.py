"""AWS's operator and its CRDs on a real control plane: reservations are adopted, and pods keep running."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hack.bed.real_cluster import Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.deployed import AS_CONTROLLER, CONTROLLER, NAMESPACE
from tests.bed.fleet import (
    AWSS_CRDS,
    NODES,
    OUR_CRDS,
    condition,
    job,
    pods,
    replicas,
    slots,
    submit,
    tags,
    uids,
    wait_available,
    wait_state,
    workload,
)

WORKLOADS = "neuronultraserverworkloads.v1beta1.neuron.aws.com"
KINDS = ("neuronultraservers", "neuronultraserverworkloads")
FIRST = NODES[:4]


@pytest.fixture
def without_controller(fleet: TestBed, place: Namespace) -> Iterator[TestBed]:
    """No controller runs until the test starts it or ends; then it releases the workloads of `place`."""
    replicas(fleet, 0)
    yield fleet
    replicas(fleet, 2)


def ultraserver_of(bed: TestBed, node: str) -> Obj:
    found = bed.get("nus", "--namespace", NAMESPACE)["items"]
    return next(each for each in found if node in [entry["nodeName"] for entry in each["spec"]["topology"]])


def allocate_as_aws_does(bed: TestBed, ref: str) -> None:
    """Write the status of AWS's operator with all four nodes bound: it has no ids and no UIDs."""
    name = ultraserver_of(bed, FIRST[0])["metadata"]["name"]
    entry = {
        "workloadRef": ref,
        "phase": "Bound",
        "nodeCount": 4,
        "allocatedNodes": list(FIRST),
        "leaderNodeName": FIRST[0],
        "ultraserverIndex": 0,
        "allocatedAt": "2026-03-01T12:00:00Z",
    }
    patch = json.dumps({"status": {"allocations": [entry]}})
    words = ("patch", "nus", name, "--namespace", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)
    bed.kubectl(*words, *AS_CONTROLLER)


def template_of_aws(name: str) -> Obj:
    """A claim template as AWS's operator makes it: the plain class, and the workload's name without a UID."""
    parameters = {
        "apiVersion": "neuron.aws.com/v1",
        "kind": "UltraServerConfig",
        "ultraserverMode": 4,
        "workloadId": name,
    }
    request = {"name": "neuron", "exactly": {"deviceClassName": "neuron.aws.com", "allocationMode": "All"}}
    config = [{"requests": ["neuron"], "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request], "config": config}}},
    }


def on_the_first_ultraserver(made: Obj) -> Obj:
    names = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(FIRST)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [names]}}
    made["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    return made


def classes(place: Namespace, name: str) -> list[str]:
    template = place.get("resourceclaimtemplate", name)
    return [each["exactly"]["deviceClassName"] for each in template["spec"]["spec"]["devices"]["requests"]]


def test_takes_over_reservations_of_the_aws_operator(without_controller: TestBed, place: Namespace) -> None:
    """13.3: an allocation without an id was dropped, and the pods of the workload evicted."""
    bed = without_controller
    place.apply(workload("job", 4, 1))
    allocate_as_aws_does(bed, f"{place.name}/job")
    place.apply(template_of_aws("job"))
    place.apply(on_the_first_ultraserver(job("job", 4, "job")))
    wait_available(place, "job")
    before = uids(pods(place, "job"))
    assert set(before) == set(FIRST)

    replicas(bed, 2)
    wait_state(place, "job", "Allocated", 60)
    (entry,) = ultraserver_of(bed, FIRST[0])["status"]["allocations"]
    assert entry["workloadUid"] == place.get("nusw", "job")["metadata"]["uid"]
    assert (entry["allocatedNodes"], entry["phase"], bool(entry["allocationId"])) == (list(FIRST), "Bound", True)
    eventually("the nodes are tagged", lambda: tags(bed) == dict.fromkeys(FIRST, "job"))
    eventually("the template is ours", lambda: classes(place, "job") == ["workload.neuron.aws.com"])
    assert uids(pods(place, "job")) == before
    assert [place.restarts(each["metadata"]["name"]) for each in pods(place, "job").values()] == [0] * 4

    place.kubectl("delete", "pod", pods(place, "job")[FIRST[0]]["metadata"]["name"])
    wait_available(place, "job")
    again = uids(pods(place, "job"))
    assert [node for node in FIRST if again[node] != before[node]] == [FIRST[0]]


@pytest.fixture
def awss_crds(fleet: TestBed, place: Namespace) -> Iterator[TestBed]:
    """A function that replaces our CRDs by AWS's; ours are restored before the workloads of `place` are deleted."""
    yield fleet
    fleet.kubectl("replace", "-f", str(OUR_CRDS))


def written(place: Namespace, name: str) -> tuple[str, str]:
    """Return the resourceVersion of a workload, and why it is not ready."""
    found = place.get(WORKLOADS, name)
    return found["metadata"]["resourceVersion"], condition(found)[0]


def test_aws_crds_stop_the_controller_not_the_pods(awss_crds: TestBed, place: Namespace) -> None:
    """13.5: the API server drops fields that AWS's CRDs lack; the controller repeated the same write without end."""
    bed = awss_crds
    submit(place, workload("job", 4, 1))
    place.apply(job("job", 4, "job"))
    wait_available(place, "job")
    held, before = slots(bed)["job"], uids(pods(place, "job"))

    bed.kubectl("replace", "-f", str(AWSS_CRDS))
    place.apply({**workload("second", 4, 1), "apiVersion": "neuron.aws.com/v1beta1"})
    eventually("it says so", lambda: written(place, "second")[1] == "CustomResourcesOutdated", 60)
    eventually("so does the other", lambda: written(place, "job")[1] == "CustomResourcesOutdated", 60)
    words = condition(place.get(WORKLOADS, "second"))[1]
    assert "neuronultraservers.neuron.aws.com is not of this release: the API server drops" in words
    versions = [written(place, name)[0] for name in ("job", "second")]
    lines = bed.kubectl("logs", f"--selector=app={CONTROLLER}", "--tail=-1", "--namespace", NAMESPACE).splitlines()
    stops = [line for line in lines if "the controller stops writing" in line]
    assert [
        sum(f"CustomResourceDefinition {kind}.neuron.aws.com is not" in line for line in stops) for kind in KINDS
    ] == [1, 1]
    assert uids(pods(place, "job")) == before

    place.kubectl(
        "annotate", WORKLOADS, "job", "testbed.local/changed=1"
    )  # a change, after which the controller plans again
    eventually("the change is there", lambda: written(place, "job")[0] != versions[0])
    assert written(place, "second")[0] == versions[1]

    bed.kubectl("replace", "-f", str(OUR_CRDS))
    eventually("the replaced custom resources are served", lambda: place.get(WORKLOADS, "second"), 60)
    wait_state(place, "second", "Allocated", 150)
    wait_state(place, "job", "Allocated", 30)
    assert slots(bed)["job"] == held
    assert uids(pods(place, "job")) == before
