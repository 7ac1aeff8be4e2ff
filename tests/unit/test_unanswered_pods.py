"""Pods that wait for the device plugin, or for a scheduler that is not there, are told so in time (32.7)."""

from __future__ import annotations

from typing import Any

import pytest

from controller.limits import unanswered
from controller.limits.unanswered import Observed, Pending
from neuron_dra.core.wire import Obj

NEURON, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
OLD_S, SCHEDULER_S = 10.0, 30.0


def pod(name: str, *resources: str, scheduler: str = "my-scheduler", condition: str = "", **spec: Any) -> Obj:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": condition}] if condition else []
    limits = dict.fromkeys(resources, "9")
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"schedulerName": scheduler, "containers": [container], **spec},
        "status": {"phase": "Pending", "conditions": conditions},
    }


def seen(*pods: Obj) -> list[Pending]:
    return [found for each in pods if (found := unanswered.pending(each)) is not None]


def said(observed: Observed, now: float, *, has_plugin: bool | None = False) -> list[tuple[str, str]]:
    due = observed.due(now, OLD_S, SCHEDULER_S, has_plugin=has_plugin)
    return [(each.pod.name, each.reason) for each in due]


def next_at(observed: Observed, now: float) -> float | None:
    return observed.next_at(now, OLD_S, SCHEDULER_S, has_plugin=False)


def test_the_pod_of_the_documents_is_told_which_label_to_set() -> None:
    observed = Observed()
    observed.follow(seen(pod("seed", CORE)), 100)
    assert (said(observed, 129), next_at(observed, 100)) == ([], 130)
    assert said(observed, 130) == [("seed", "NeuronSchedulerMissing")]
    [remark] = observed.due(130, OLD_S, SCHEDULER_S, has_plugin=False)
    assert remark.text.startswith("no scheduler named my-scheduler has handled this pod, or another one, for 30 s.")
    assert "kubectl label namespace default neuron.aws.com/rewrite-limits=true" in remark.text


def test_old_names_without_a_device_plugin_are_told_after_ten_seconds() -> None:
    waits = pod("old", NEURON, scheduler="default-scheduler", condition="Unschedulable")
    observed = Observed()
    observed.follow(seen(pod("old", NEURON, scheduler="default-scheduler")), 0)
    observed.follow(seen(waits), 50)
    assert (said(observed, 59), next_at(observed, 50)) == ([], 60)
    assert said(observed, 60) == [("old", "NeuronOldLimits")]
    assert said(observed, 60, has_plugin=True) == said(observed, 60, has_plugin=None) == []
    [remark] = observed.due(60, OLD_S, SCHEDULER_S, has_plugin=False)
    assert remark.text.startswith(f"no node has {NEURON} to allocate")
    assert "neuron.aws.com/rewrite-limits=true" in remark.text


def test_signs_of_schedulers_that_no_pod_names_are_forgotten() -> None:
    """4.02: a tenant that names another scheduler in each pod grew the watcher without end."""
    observed = Observed()
    for number in range(100):
        observed.follow(seen(pod("brief", CORE, scheduler=f"scheduler-{number}", condition="Unschedulable")), number)
    observed.follow(seen(pod("seed", CORE)), 100)
    assert observed.signs == {}
    observed.follow(seen(pod("seed", CORE), pod("other", condition="Unschedulable")), 110)
    assert observed.signs == {"my-scheduler": 110}  # the control


@pytest.mark.parametrize(
    "other",
    [
        [(110, [pod("other", condition="Unschedulable")])],  # it had a look at another pod
        [(105, [pod("other")]), (110, [])],  # the other pod has a node, or is gone
    ],
)
def test_a_scheduler_that_handles_another_pod_is_there(other: list[tuple[float, list[Obj]]]) -> None:
    observed = Observed()
    observed.follow(seen(pod("seed", CORE)), 100)
    for now, pods in other:
        observed.follow(seen(pod("seed", CORE), *pods), now)
    assert said(observed, 139) == []
    assert said(observed, 140) == [("seed", "NeuronSchedulerMissing")]  # and then not for as long


@pytest.mark.parametrize(
    "waits",
    [
        pod("a", "cpu"),
        pod("a", CORE, scheduler="default-scheduler"),
        pod("a", CORE, condition="Unschedulable"),
        pod("a", CORE, schedulingGates=[{"name": "g"}]),
        {**pod("a", CORE), "metadata": {"name": "a", "namespace": "b", "uid": "c", "deletionTimestamp": "x"}},
    ],
)
def test_other_pods_get_no_event_about_a_scheduler(waits: Obj) -> None:
    observed = Observed()
    observed.follow(seen(waits), 0)
    assert said(observed, 1000, has_plugin=True) == []


@pytest.mark.parametrize(
    ("allocatable", "expected"),
    [({}, False), ({NEURON: "0"}, False), ({"cpu": "4"}, False), ({CORE: "2"}, True), ({NEURON: 1}, True)],
)
def test_a_device_plugin_shows_by_what_can_be_allocated(allocatable: Obj, expected: bool) -> None:
    assert unanswered.has_device_plugin({"status": {"allocatable": allocatable}}) is expected
