"""The limits watcher says each thing once, however many pods wait, and namespaces take turns. Issue 4.02."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from controller.limits.watcher import AT_ONCE, LimitsWatcher
from controller.settings import WatcherSettings
from controller.timing import DEFAULT_WATCHER_TIMING
from neuron_dra.core import sizes
from neuron_dra.core.wire import Obj
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import MOST_KEPT, EventRecorder
from tests.support.sent_events import send_events

SETTINGS = WatcherSettings(identity="test", health_probe_bind_address="", metrics_bind_address="")
TENANT_PODS = MOST_KEPT + 100
NOW = datetime.datetime.now(datetime.UTC)
PERIOD_S = DEFAULT_WATCHER_TIMING.client.events.lifetime_s / 2


class Server(KubeClient):
    """Takes every Event; `requests` has the namespace of each request."""

    def __init__(self) -> None:
        super().__init__(KubeConfig("events:"))
        self.requests: list[str] = []

    async def _send(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: Any = None, *_: Any
    ) -> bytes:
        self.requests.append(path.split("/")[4])
        name = body["metadata"]["name"] if method == "POST" else path.split("/")[-1]
        return msgspec.json.encode({"kind": "Event", "metadata": {"name": name}, "count": 2})


def waiting_pod(namespace: str, name: str) -> Obj:
    limits = {sizes.resource_name(sizes.DEVICE, 7): "1"}
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"},
        "spec": {
            "nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"},
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending", "conditions": [refusal]},
    }


class Watched:
    """A watcher whose watches show these pods, and the Events that it posts."""

    def __init__(self) -> None:
        self.watcher = LimitsWatcher(SETTINGS, KubeConfig("pods:"))
        self.server = Server()
        self.events = EventRecorder(self.server, "here")

    async def post_all(self) -> list[str]:
        """Post until nothing is left to say; return the namespaces of the requests in their order."""
        self.server.requests.clear()
        self.watcher._follow()
        for _ in range(TENANT_PODS // AT_ONCE + 2):
            assert self.watcher._post(self.events)
            await send_events(self.events)
        assert not self.watcher._turns
        return [*self.server.requests]


async def test_each_event_is_posted_once_however_many_pods_wait() -> None:
    watched = Watched()
    for number in range(TENANT_PODS):
        watched.watcher.pods.remember(waiting_pod("a", f"p{number}"))
    assert await watched.post_all() == ["a"] * TENANT_PODS
    assert await watched.post_all() == []
    watched.watcher.pods.remember(waiting_pod("z", "innocent"))
    assert await watched.post_all() == ["z"]
    # The control: the recorder itself has forgotten some of so many.
    about = {"kind": "Pod", "namespace": "a", "name": "p0", "uid": "a-p0"}
    remark = next(iter(watched.watcher._remarks.values()))
    before = len(watched.server.requests)
    watched.events.post({"apiVersion": "v1", **about}, "Warning", remark.reason, remark.text, NOW)
    await send_events(watched.events)
    assert len(watched.server.requests) > before


async def test_another_namespace_has_its_turn_among_many_pods() -> None:
    watched = Watched()
    for number in range(AT_ONCE * 2):
        watched.watcher.pods.remember(waiting_pod("a", f"p{number}"))
    watched.watcher.pods.remember(waiting_pod("z", "innocent"))
    requests = await watched.post_all()
    assert requests.index("z") <= 1
    assert requests.count("a") == AT_ONCE * 2


async def test_an_event_that_still_applies_is_renewed_within_its_lifetime() -> None:
    watched = Watched()
    watched.watcher.pods.remember(waiting_pod("a", "p"))
    assert await watched.post_all() == ["a"]
    for uid in watched.watcher._observed.seen:
        watched.watcher._observed.seen[uid] -= PERIOD_S
    watched.events._posted.clear()
    assert await watched.post_all() == ["a"]
    assert await watched.post_all() == []


async def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    watched = Watched()
    pods = [waiting_pod("a", f"p{number}") for number in range(AT_ONCE * 2)]
    for pod in pods:
        watched.watcher.pods.remember(pod)
    await watched.post_all()
    assert len(watched.watcher._turns._told) == len(pods)  # the control
    for pod in pods:
        watched.watcher.pods.forget(pod)
    assert await watched.post_all() == []
    assert (watched.watcher._remarks, watched.watcher._turns._told) == ({}, {})
