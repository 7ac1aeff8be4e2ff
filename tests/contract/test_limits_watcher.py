"""16.5: the watcher posts an Event on each waiting pod whose number of devices no node serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.limits.watcher import LimitsWatcher
from controller.settings import WatcherSettings
from controller.timing import WatcherTiming
from neuron_dra.api.objects import node_object
from neuron_dra.core import sizes
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.kube.config import KubeConfig
from tests.support.waiting import always, eventually

SETTINGS = WatcherSettings(identity="test", health_probe_bind_address="", metrics_bind_address="")
TIMING = WatcherTiming(gather_s=0.02, retry_s=0.05, old_limits_s=0.3, scheduler_s=0.5)
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(controllers=False) as server:
        yield server


@pytest.fixture
async def watching(api: EmbeddedApi) -> AsyncIterator[LimitsWatcher]:
    made = LimitsWatcher(SETTINGS, KubeConfig(api.url), timing=TIMING)
    task = asyncio.create_task(made.run())
    yield made
    made.stop()
    await task


def waiting_pod(name: str, number: int) -> Obj:
    limits = {sizes.resource_name(sizes.DEVICE, number): "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]},
    }


def slice_of(instance_type: str, *numbers: int) -> Obj:
    def device(number: int) -> dict[str, Any]:
        attributes = {"instanceType": {"string": instance_type}, "connectedDevices": {"int": number}}
        return {"name": f"set-{number}", "attributes": attributes}

    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{instance_type}-slice"},
        "spec": {
            "driver": "neuron.aws.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
            "devices": [device(number) for number in numbers],
        },
    }


def messages(api: EmbeddedApi) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in api.objects("events", "default"):
        assert (event["type"], event["reason"]) == ("Warning", "NeuronNumberNotServed")
        found.setdefault(event["involvedObject"]["name"], []).append(event["message"])
    return found


SEVEN = (
    "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number of "
    "devices. In this cluster: trn1.32xlarge serves 1, 4, 8 or 16 devices."
)


async def test_waiting_pod_gets_the_numbers_that_are_served(api: EmbeddedApi, watching: LimitsWatcher) -> None:
    api.create(slice_of("trn1.32xlarge", 1, 4, 8, 16))
    api.create(waiting_pod("four", 4))
    api.create(waiting_pod("seven", 7))
    assert await eventually(lambda: messages(api)) == {"seven": [SEVEN]}


async def test_first_node_ends_the_silence(api: EmbeddedApi, watching: LimitsWatcher) -> None:
    """Without nodes an autoscaler may still add some."""
    api.create(waiting_pod("seven", 7))
    await eventually(lambda: not watching.ready())
    await always(lambda: messages(api) == {}, for_s=0.3)
    api.create(slice_of("trn1.32xlarge", 1, 4, 8, 16))
    assert await eventually(lambda: messages(api)) == {"seven": [SEVEN]}


async def test_rejected_event_is_posted_again(api: EmbeddedApi, watching: LimitsWatcher) -> None:
    rejected = api.faults.add(InjectedFault(verb="create", resource="events", status=403, times=2))
    api.create(slice_of("trn1.32xlarge", 1, 4, 8, 16))
    api.create(waiting_pod("seven", 7))
    found = await eventually(lambda: messages(api))
    assert (found, rejected.hits) == ({"seven": [SEVEN]}, 2)


async def test_pod_without_a_status_or_containers_is_skipped(api: EmbeddedApi, watching: LimitsWatcher) -> None:
    api.create(slice_of("trn1.32xlarge", 1, 4, 8, 16))
    api.create({**waiting_pod("odd", 7), "status": {"phase": "Pending"}})
    api.create(waiting_pod("seven", 7))
    assert await eventually(lambda: messages(api)) == {"seven": [SEVEN]}


def reasons(api: EmbeddedApi) -> dict[str, str]:
    return {event["involvedObject"]["name"]: event["reason"] for event in api.objects("events", "default")}


def old_pod(name: str, **spec: Any) -> Obj:
    made = waiting_pod(name, 1)
    made["spec"] = {**made["spec"], **spec}
    made["spec"]["containers"][0]["resources"] = {"limits": {"aws.amazon.com/neuroncore": "9"}}
    return made


async def test_pods_for_the_device_plugin_and_its_scheduler_are_told(api: EmbeddedApi, watching: LimitsWatcher) -> None:
    """(32.7) The pod of the scheduler extension's documents, in a namespace without the label."""
    api.create(node_object("node-a"))
    api.create(old_pod("old"))
    api.create({**old_pod("seed", schedulerName="my-scheduler"), "status": {"phase": "Pending"}})
    expected = {"old": "NeuronOldLimits", "seed": "NeuronSchedulerMissing"}
    await eventually(lambda: reasons(api) == expected)


async def test_nothing_is_said_where_a_device_plugin_serves_a_node(api: EmbeddedApi, watching: LimitsWatcher) -> None:
    api.create(node_object("node-a", allocatable={"aws.amazon.com/neuroncore": "32"}))
    api.create(old_pod("old"))
    await eventually(lambda: not watching.ready())
    await always(lambda: reasons(api) == {}, for_s=1.0)
