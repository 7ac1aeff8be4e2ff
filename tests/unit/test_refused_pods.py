"""Pods that are rejected permanently are evicted. Issue 13, number 12."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from neuron_dra.core import names
from neuron_dra.core.ultraserver import Phase, Tag, tagged
from neuron_dra.planner.fleet.refused_pods import event_message, refused_until
from neuron_dra.planner.observed.model import Suspect
from tests.unit.failing_world import LIMITS, U0, not_ready, running
from tests.unit.ultraserver_world import World

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
SUSPECT = Suspect("ml", "pod-0", "uid-0", "node-0", "node node-0 is reserved for NeuronUltraServerWorkload ml/job")


def suspects(world: World) -> list[tuple[str, str, str]]:
    return [(each.name, each.node, each.why) for each in world.plan(LIMITS).suspects]


def pod(**changes: Any) -> dict[str, Any]:
    """A pod that its node has rejected since noon."""
    made: dict[str, Any] = {
        "metadata": {"name": "pod-0", "namespace": "ml", "uid": "uid-0", "resourceVersion": "7"},
        "spec": {"nodeName": "node-0"},
        "status": {
            "phase": "Pending",
            "startTime": "2026-03-01T12:00:00Z",
            "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
        },
    }
    for path, value in changes.items():
        part, name = path.split("__")
        made[part][name] = value
    return made


def test_own_pods_are_not_candidates() -> None:
    assert suspects(running("NoOp")) == []


def test_foreign_pod_on_reserved_node_is_a_candidate() -> None:
    """13.12: it was rejected permanently, and kept the node."""
    world = running("NoOp")
    world.claim("foreign", ["u0-1"], pod="intruder")
    assert suspects(world) == [("intruder", "u0-1", "node u0-1 is reserved for NeuronUltraServerWorkload ml/job")]


def test_other_workloads_pod_is_a_candidate() -> None:
    """13.12."""
    world = running("NoOp")
    world.claim("foreign", ["u0-1"], workload_uid="another", pod="intruder")
    assert [name for name, _, _ in suspects(world)] == ["intruder"]


def test_pod_on_a_released_node_is_a_candidate() -> None:
    """13.12: the scheduler had not seen the removal of the node's tag."""
    world = running("NoOp")
    world.claim("late", ["u2-1"], workload_uid=world.workload("job")["metadata"]["uid"], pod="straggler")
    assert suspects(world) == [
        ("straggler", "u2-1", "node u2-1 is no longer reserved for the workload of its claim ml/late")
    ]


def test_plain_pod_on_a_free_node_is_no_candidate() -> None:
    world = running("NoOp")
    world.claim("plain", ["u2-1"], pod="plain")
    assert suspects(world) == []


def test_pod_for_reserved_devices_on_a_free_node_is_a_candidate() -> None:
    """13.12: it was allocated while the node was reserved, and no node starts it."""
    world = running("NoOp")
    world.claim("late", ["u2-1"], device_class=names.WORKLOAD_CLASS, pod="straggler")
    why = f"claim ml/late requests DeviceClass {names.WORKLOAD_CLASS}, and belongs to no NeuronUltraServerWorkload"
    assert suspects(world) == [("straggler", "u2-1", why)]


def test_foreign_pod_on_a_node_that_is_only_tagged_is_a_candidate() -> None:
    """13.12: the tag stays while a claim is allocated, so the pod kept the node reserved for no workload."""
    world = running("NoOp")
    slice_ = world.get("ResourceSlice", "u2-1-neuron.aws.com-00")
    tag = Tag("ml", "earlier", "uid-earlier", "0123456789abcdef", Phase.DRAINING)
    slice_["spec"]["devices"] = [tagged(device, tag) for device in slice_["spec"]["devices"]]
    world.put(slice_)
    world.claim("plain", ["u2-1"], pod="intruder")
    why = "node u2-1 is still reserved for NeuronUltraServerWorkload ml/earlier"
    assert suspects(world) == [("intruder", "u2-1", why)]


def test_unknown_reservation_gives_no_candidate() -> None:
    """13.12: a plugin keeps its tag when the object is gone."""
    world = running("NoOp")
    world.claim("late", ["u2-1"], workload_uid=world.workload("job")["metadata"]["uid"], pod="straggler")
    world.remove("ResourceSlice", "u2-1-neuron.aws.com-00")
    assert suspects(world) == []


def test_pods_on_dead_nodes_are_kept() -> None:
    """13.12."""
    world = running("NoOp")
    world.claim("foreign", ["u0-1"], pod="intruder")
    not_ready(world, "u0-1")
    assert suspects(world) == []


def test_nothing_is_evicted_in_an_outage() -> None:
    """13.4."""
    world = running("NoOp")
    world.claim("foreign", ["u2-1"], workload_uid="another", pod="intruder")
    assert len(suspects(world)) == 1
    not_ready(world, *U0, "u1-0", "u1-1", "u1-2")
    assert suspects(world) == []


def test_pod_counts_as_rejected_after_two_minutes() -> None:
    """13.12."""
    assert refused_until(pod(), SUSPECT) == NOW + datetime.timedelta(minutes=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"status__phase": "Running"},
        {"status__conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]},
        {"status__startTime": None},
        {"metadata__uid": "another pod of that name"},
        {"metadata__deletionTimestamp": "2026-03-01T12:00:00Z"},
        {"spec__nodeName": "node-1"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_possibly_starting_pod_is_kept(
    changes: dict[str, Any],
) -> None:
    """13.12: one that pulls a large image is ready to start containers."""
    assert refused_until(pod(**changes), SUSPECT) is None


def test_event_for_a_pod_without_owner() -> None:
    """13.12."""
    owner = {"kind": "ReplicaSet", "name": "job-1", "controller": True}
    why = "evicted because it could not start for two minutes: node node-0 is reserved for "
    assert event_message(pod(), SUSPECT) == (
        f"{why}NeuronUltraServerWorkload ml/job; no controller owns this pod: create it again"
    )
    assert event_message(pod(metadata__ownerReferences=[owner]), SUSPECT) == (
        f"{why}NeuronUltraServerWorkload ml/job; its ReplicaSet job-1 creates another pod, which is scheduled again"
    )
