"""35.2 on real kubelets: a claim that is reserved for a PodGroup is released with its pods and its group.

Kubernetes 1.37 has PodGroups and their claims off by default, so this test bed has feature gates of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hack.bed.real_cluster import QUICK, Namespace, TestBed, eventually
from neuron_dra.core.wire import Obj
from tests.bed.fleet import TRN3, slots, tags, wait_reason, wait_state, workload

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

GROUP = "gang"
CLAIMS = [{"name": "node", "resourceClaimTemplateName": "train-rct"}]


@pytest.fixture(scope="module")
def grouping_bed(running_bed: TestBed) -> Iterator[TestBed]:
    """A second test bed with one UltraServer, whose Kubernetes knows claims of PodGroups."""
    name = f"{running_bed.where.name}-groups"
    bed = TestBed(replace(running_bed.where, name=name, state_dir=running_bed.where.state_dir.with_name(name)))
    was_up = bed.is_up
    bed.command("up", "--ultraserver", f"u1={TRN3}", "--with", "podgroups", "--driver", "daemonset", timeout_s=1800)
    yield bed
    if not was_up:
        bed.command("down")


@pytest.fixture
def grouped(grouping_bed: TestBed) -> Iterator[Namespace]:
    """A fresh namespace in it; when it goes, its nodes are free."""
    own = Namespace(grouping_bed, f"test-{uuid.uuid4().hex[:8]}")
    grouping_bed.kubectl("create", "namespace", own.name)
    yield own
    own.kubectl("delete", "pods", "--all", "--timeout=120s", timeout_s=130)
    own.kubectl("delete", "podgroups.scheduling.k8s.io", "--all", timeout_s=130)
    own.kubectl("delete", "nusw", "--all", "--timeout=180s", timeout_s=190)
    own.remove()


def group() -> Obj:
    """Return a PodGroup with a claim that its pods share."""
    spec = {"schedulingPolicy": {"basic": {}}, "resourceClaims": CLAIMS}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": GROUP},
        "spec": spec,
    }


def pod(name: str) -> Obj:
    """Return a pod of the group."""
    container = {
        "name": "main",
        "image": QUICK,
        "command": ["sleep", "infinity"],
        "resources": {"claims": [{"name": "node"}]},
    }
    spec = {"schedulingGroup": {"podGroupName": GROUP}, "containers": [container], "resourceClaims": CLAIMS}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def holders(place: Namespace) -> list[str]:
    """Return what the claims of a namespace are reserved for."""
    found = []
    for claim in place.get("resourceclaims")["items"]:
        found += [f"{each['resource']}/{each['name']}" for each in claim.get("status", {}).get("reservedFor") or ()]
    return found


def names(place: Namespace) -> list[str]:
    return sorted(each["metadata"]["name"] for each in place.get("pods")["items"])


def test_a_claim_of_a_group_is_released_with_its_pods_and_its_group(grouping_bed: TestBed, grouped: Namespace) -> None:
    grouped.apply(workload("train", 4, 1, template="train-rct"))
    wait_state(grouped, "train", "Allocated", 60)
    grouped.apply({"apiVersion": "v1", "kind": "List", "items": [group(), pod("gang-0"), pod("gang-1")]})
    grouped.kubectl("wait", "pod/gang-0", "pod/gang-1", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
    assert holders(grouped) == [f"podgroups/{GROUP}"]
    assert len({each["spec"]["nodeName"] for each in grouped.get("pods")["items"]}) == 1
    grouped.kubectl("delete", "nusw", "train", "--wait=false")
    eventually("the pods of the group are evicted", lambda: names(grouped) == [], 120)
    # Kubernetes keeps the claim for the group: only who made the group may delete it.
    text = f"PodGroup {grouped.name}/{GROUP} (no pod of it is there: delete it)"
    eventually("the group is named", lambda: text in wait_reason(grouped, "train", "WaitingForPods"), 120)
    assert slots(grouping_bed).keys() == {"train"}
    grouped.kubectl("delete", "podgroups.scheduling.k8s.io", GROUP)
    eventually("the workload is gone", lambda: grouped.get("nusw")["items"] == [], 120)
    eventually("its nodes are open", lambda: (slots(grouping_bed), tags(grouping_bed)) == ({}, {}), 60)


def test_a_workload_without_a_group_is_unaffected(grouping_bed: TestBed, grouped: Namespace) -> None:
    grouped.apply(workload("plain", 4, 1, template="train-rct"))
    wait_state(grouped, "plain", "Allocated", 60)
    alone = json.loads(json.dumps(pod("alone")))
    del alone["spec"]["schedulingGroup"]
    grouped.apply(alone)
    grouped.kubectl("wait", "pod/alone", "--for=condition=Ready", "--timeout=120s", timeout_s=130)
    assert holders(grouped) == ["pods/alone"]
    grouped.kubectl("delete", "nusw", "plain", "--timeout=120s", timeout_s=130)
    eventually("the pod is evicted", lambda: names(grouped) == [], 60)
    assert slots(grouping_bed) == {}
