"""`why` says how to apply a change of a spec that the API server does not let anybody update (4.09)."""

from __future__ import annotations

import copy
import random

import pytest

from neuron_dra.ask.read import snapshot
from neuron_dra.ask.why import answer
from neuron_dra.ask.world.world import World
from neuron_dra.core.wire import Obj
from tests.support import cluster_faults as faults
from tests.support import small_clusters as small

CREATE_AGAIN = "kubectl replace --force -f FILE"
OF_TEMPLATE = f"kubectl apply cannot change a template: {CREATE_AGAIN}"
RUNNING = "running pods keep their claims"


def broken(fault: faults.Fault) -> list[Obj]:
    items = faults.healthy()
    fault(random.Random(0), items)
    return items


def steps(items: list[Obj]) -> str:
    """Return how the first change for the waiting pod is applied."""
    world = World(snapshot.build(copy.deepcopy(items)))
    pod = world.snapshot.get("Pod", "p", "default")
    assert pod is not None
    return answer.REPORTS["Pod"](world, pod).findings[0].changes[0].steps


@pytest.mark.parametrize("fault", [faults.too_many, faults.wrong_type, faults.group_too_small, faults.class_renamed])
def test_template_is_created_again(fault: faults.Fault) -> None:
    assert steps(broken(fault)) == f"{OF_TEMPLATE}, then delete p and create it again; {RUNNING}"


def test_template_of_pods_without_claims_is_created_again() -> None:
    items = broken(faults.wrong_type)
    faults.uncreate(items)
    assert steps(items) == f"{OF_TEMPLATE}; {RUNNING}"


def test_all_pods_with_old_claims_are_deleted() -> None:
    """A pod of a controller needs no word about its creation."""
    items = broken(faults.too_many)
    template = faults.the(items, "ResourceClaimTemplate", "four")
    assert template is not None
    for name in ("p", "q"):
        items = [item for item in items if item["metadata"]["name"] not in (name, f"{name}-neurons-x")]
        pod, claim = small.created(small.pod(name, "four"), template)
        owner = {"kind": "ReplicaSet", "name": "web-1", "uid": "uid-web", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        items += [pod, claim]
    assert steps(items) == f"{OF_TEMPLATE}, then delete p, q; {RUNNING}"


def test_claim_is_created_again() -> None:
    items = [item for item in broken(faults.too_many) if item["metadata"]["name"] != "four"]
    pod = faults.waiting(items)
    pod["spec"]["resourceClaims"] = [{"name": "neurons", "resourceClaimName": "p-neurons-x"}]
    pod["status"].pop("resourceClaimStatuses")
    claim = faults.the(items, "ResourceClaim", "p-neurons-x")
    assert claim is not None
    del claim["metadata"]["ownerReferences"]
    assert steps(items) == f"kubectl apply cannot change a claim: {CREATE_AGAIN}; its pods get the new claim"


def misplaced(rng: random.Random, items: list[Obj]) -> None:
    faults.waiting(items)["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": "trn2.48xlage"}


def reserved_for_neuron(rng: random.Random, items: list[Obj]) -> None:
    for node in faults.all_of(items, "Node"):
        node["spec"]["taints"] = [{"key": "aws.amazon.com/neuron", "effect": "NoSchedule"}]


def test_pod_is_created_again() -> None:
    assert steps(broken(misplaced)) == f"kubectl apply cannot change this in a pod: {CREATE_AGAIN}"


def test_change_of_a_pod_belongs_into_its_controller() -> None:
    items = broken(misplaced)
    owner = {"kind": "StatefulSet", "name": "train", "uid": "uid-train", "controller": True}
    faults.waiting(items)["metadata"]["ownerReferences"] = [owner]
    assert steps(items) == "write it into the pod template of StatefulSet train"


def test_toleration_is_added_to_the_pod() -> None:
    """The API server lets people add tolerations to a pod that exists."""
    items = broken(reserved_for_neuron)
    assert steps(items) == ""


def test_quota_is_edited() -> None:
    assert steps(broken(faults.quota)) == ""
