"""`why` lists all that is in a pod's way on a node, not only the first thing (4.08)."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dra.core.wire import Obj
from tests.support import reported_clusters as reported
from tests.support import small_clusters as small
from tests.support.questions import ask, snapshot
from tests.support.reported_clusters import node

MARKS = [
    {"key": "example.com/first", "value": "yes", "effect": "NoSchedule"},
    {"key": "example.com/second", "effect": "NoExecute"},
    {"key": "example.com/wish", "effect": "PreferNoSchedule"},
]


def test_every_objection_of_a_node_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    items = reported.asks(small.base("a"), 4, nodeSelector={"pool": "train"})
    node(items)["spec"] = {"unschedulable": True, "taints": MARKS}
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert answer.first == (
        "pod default/p waits for a node: it may not run on node a that would serve it: it is cordoned, and the pod "
        "does not tolerate its taints example.com/first=yes:NoSchedule and example.com/second:NoExecute, and it does "
        "not match the pod's node selector or affinity"
    )


def test_tolerated_cordon_is_not_an_objection(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tolerations = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    items = reported.asks(small.base("a"), 4, tolerations=tolerations)
    node(items)["spec"] = {"unschedulable": True, "taints": MARKS[:1]}
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert answer.first.endswith("the pod does not tolerate its taint example.com/first=yes:NoSchedule")


def test_silent_node_with_another_obstacle_names_both(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    items = [item for item in reported.asks(small.base("a"), 4) if item["kind"] != "ResourceSlice"]
    items += [item for item in small.slices("gone") if item["kind"] == "ResourceSlice"]
    node(items)["spec"] = {"unschedulable": True}
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert "node a (trn2.48xlarge) publishes no devices; also, it is cordoned" in answer.first


def impossible(count: int) -> list[Obj]:
    """A pod that asks for devices of one node by an attribute that no device publishes."""
    return reported.asks(small.base("a"), count, group="resource.aws.com/devicegroup32_id")


def test_every_fault_of_a_request_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, impossible(17)))
    assert "request neurons wants 17 devices of one node, and the largest node has 16 that match" in answer.first
    unmet = "with the same resource.aws.com/devicegroup32_id, which none of the devices publishes"
    assert f"also: request neurons wants 17 devices {unmet}" in answer.text


def test_group_as_large_as_the_node_is_one_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    items = reported.asks(small.base("a"), 17, group="resource.aws.com/devicegroup16_id")
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert "also:" not in answer.out


def ended(*more: Obj) -> list[Obj]:
    """A pod in deletion whose container has ended, and whose claim the driver has not released."""
    state = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
    items = reported.started(phase="Running", containerStatuses=[state])
    reported.pod(items)["metadata"]["deletionTimestamp"] = reported.SINCE
    return [*items, *more]


def driver_pod() -> Obj:
    made = small.pod("neuron-dra-x", namespace="neuron-dra-driver")
    made["metadata"] |= {"labels": {"app": "neuron-dra-driver"}, "ownerReferences": [{"kind": "DaemonSet"}]}
    made["spec"]["nodeName"] = "a"
    return made


def test_ended_pod_waits_for_a_driver_that_is_gone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, ended()))
    assert answer.first == (
        "pod default/p is being deleted: its containers have ended, and no pod of the driver is on node a to release "
        "its claim p-neurons-x: install the driver there again, or delete the node"
    )


def test_ended_pod_waits_for_the_kubelet_while_the_driver_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, ended(driver_pod())))
    assert answer.first.endswith("the pod ends when the kubelet of node a has stopped it")


def held(by: str) -> list[Obj]:
    text = f"neuron-device-0 is held by claim default/{by} (UID x) until that claim is unprepared"
    failed = "NodePrepareResources failed for ResourceClaim p-neurons-x: claim default/p-neurons-x"
    message = f"Failed to prepare dynamic resources: prepare dynamic resources: {failed}: {text}"
    return reported.started(reported.event("FailedPrepareDynamicResources", message))


def test_device_of_a_claim_that_no_longer_exists_is_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, held("gone-neurons-x")))
    assert "neuron-device-0 is held by claim default/gone-neurons-x, which no longer exists" in answer.first
    assert "docs/health.md" in answer.first


def test_message_is_printed_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, held("p-neurons-x")))
    assert answer.text.count("until that claim is unprepared") == 1


def test_scheduler_that_cannot_score_has_a_known_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = 'plugin "DynamicResources" failed with: number of allocations 1 is smaller than number of claims 2'
    items = reported.asks(small.base("a"), 4, said=said)
    answer = ask(capsys, "why", "pod/p", "--snapshot", snapshot(tmp_path, items))
    assert "a known fault of the scheduler" in answer.first
    assert "kubernetes/kubernetes#139016" in answer.first
