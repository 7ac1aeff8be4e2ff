"""Watches pods that wait for a node: posts an Event on those that request what no node serves, or whose scheduler is
missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from controller.limits import advice, unanswered
from controller.limits.advice import NodeSizes, Waiting
from controller.limits.unanswered import Pending, Remark
from controller.observe.caches import projected, wall_clock
from controller.settings import WatcherSettings
from controller.timing import DEFAULT_WATCHER_TIMING, WatcherTiming
from neuron_dra.core import names
from neuron_dra.core.event_turns import EventTurns
from neuron_dra.core.wire import Wire
from neuron_dra.http import HttpServer
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder, reference
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NODES, PODS, RESOURCE_SLICES
from neuron_dra.planner.observed import projections
from neuron_dra.planner.observed.model import UNSCHEDULED

NAME: Final = "neuron-dra-limits-watcher"
AT_ONCE: Final = 64
"""The number of Events after which the pods are looked at again; namespaces take turns."""


def _both(pod: Wire) -> tuple[Waiting | None, Pending | None]:
    """Return what both kinds of Events are about."""
    return advice.waiting(pod), unanswered.pending(pod)


class LimitsWatcher:
    """The watcher. `run()` works until `stop()`.

    It keeps no state but the Events that it posted, and since when pods wait: a second replica, or a new one, posts the
    same Events.
    """

    def __init__(
        self,
        settings: WatcherSettings,
        kube: KubeConfig,
        *,
        client: KubeClient | None = None,
        clock: Callable[[], datetime.datetime] = wall_clock,
        timing: WatcherTiming = DEFAULT_WATCHER_TIMING,
    ) -> None:
        """`client` and `clock` are for simulations, which have their own network and time."""
        self._clock = clock
        self._settings = settings
        self._timing = timing
        self._client = client or KubeClient(kube, user_agent=NAME, timing=timing.client)
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._registry = CollectorRegistry()
        self._unserved = Gauge(
            "neuron_dra_unserved_pods", "Pods that request a number that no node serves", registry=self._registry
        )
        watched = self._changed.set
        self.pods = Reflector(
            self._client,
            PODS,
            field_selector=UNSCHEDULED,
            project=projected(_both),
            fields=projections.PodWithLimits,
            page_bytes=projections.SMALL_PAGE_BYTES,
            on_change=watched,
        )
        self.nodes = Reflector(
            self._client,
            NODES,
            project=projected(unanswered.has_device_plugin),
            fields=projections.NodeResources,
            page_bytes=projections.SMALL_PAGE_BYTES,
            on_change=watched,
        )
        self._observed = unanswered.Observed()
        self._remarks: dict[tuple[str, str], Remark] = {}
        self._turns: EventTurns[tuple[str, str]] = EventTurns()
        self.slices = Reflector(
            self._client,
            RESOURCE_SLICES,
            field_selector=f"spec.driver={names.DRIVER}",
            project=projected(advice.offered),
            on_change=watched,
        )

    def stop(self) -> None:
        """End `run()`."""
        self._stopping.set()

    def ready(self) -> str:
        """Return why the watcher is not ready, empty if it is."""
        missing = []
        for name, reflector in (("pods", self.pods), ("slices", self.slices)):
            if not reflector.synced.is_set():
                missing.append(name)
        if missing:
            return f"not listed yet: {', '.join(missing)}"
        return ""

    async def run(self) -> None:
        """Watch, and post Events, until stopped."""
        async with self._client as client, asyncio.TaskGroup() as group:
            events = EventRecorder(client, self._settings.identity, NAME)
            tasks = []
            for reflector in (self.pods, self.slices, self.nodes):
                tasks.append(group.create_task(reflector.run()))
            tasks.append(group.create_task(self._explain(events), name="explain"))
            tasks.append(group.create_task(events.run(), name="events"))
            servers = []
            for address in self._settings.http_addresses:
                servers.append((HttpServer(self._registry, self.ready), address))
            tasks += [group.create_task(server.run(address)) for server, address in servers]
            await self._stopping.wait()
            for task in tasks:
                task.cancel()
            for server, _ in servers:
                await server.stop()

    async def _explain(self, events: EventRecorder) -> None:
        """Post the Events after each change, and from time to time."""
        is_rejected = False
        while True:
            if is_rejected or not self._turns or self.ready():
                await self._change()
            self._changed.clear()
            if not self.ready():
                self._follow()
                is_rejected = not self._post(events)

    async def _change(self) -> None:
        """Wait until there may be something new to post."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s()):
                await self._changed.wait()
        await asyncio.sleep(self._timing.gather_s)

    def _wait_s(self) -> float:
        """Return how long to wait for a change before there may be something to post."""
        now = asyncio.get_running_loop().time()
        next_at = self._observed.next_at(
            now, self._timing.old_limits_s, self._timing.scheduler_s, has_plugin=self._has_plugin
        )
        if next_at is None:
            return self._timing.retry_s
        return min(self._timing.retry_s, next_at - now)

    @property
    def _has_plugin(self) -> bool | None:
        """Whether a node serves the device plugin's names; None while unknown."""
        if not self.nodes.synced.is_set():
            return None
        return any(item["value"] for item in self.nodes.items.values())

    def _follow(self) -> None:
        """Find what to say about the pods as they are. What was said and has not changed is not said again."""
        now = asyncio.get_running_loop().time()
        pending = [item["value"][1] for item in self.pods.items.values()]
        self._observed.follow([pod for pod in pending if pod is not None], now)
        due = self._observed.due(now, self._timing.old_limits_s, self._timing.scheduler_s, has_plugin=self._has_plugin)
        remarks = {remark.key: remark for remark in (*self._advice(), *due)}
        for key in self._remarks.keys() - remarks.keys():
            self._turns.forget(key)
        self._remarks = remarks
        # The API server deletes an Event after its lifetime: one that still applies is posted again before.
        period_s = self._timing.client.events.lifetime_s / 2
        for key, remark in remarks.items():
            periods = self._observed.periods(remark.pod.uid, now, period_s)
            self._turns.put(key, remark.pod.namespace, f"{periods} {remark.text}")

    def _advice(self) -> list[Remark]:
        """Return what to say about each pod that waits for a number that no node serves."""
        offers: list[NodeSizes] = [item["value"] for item in self.slices.items.values()]
        values = [item["value"][0] for item in self.pods.items.values()]
        waiting: list[Waiting] = [value for value in values if value is not None]
        fleet = advice.served(offers)
        advised = [Remark(pod, advice.REASON, advice.advice(pod, fleet)) for pod in waiting]
        unserved = [remark for remark in advised if remark.text]
        self._unserved.set(len(unserved))
        return unserved

    def _post(self, events: EventRecorder) -> bool:
        """Post the next Events; return False if too many wait, so that one is posted again later."""
        is_posted = True
        for key in self._turns.take(AT_ONCE):
            remark = self._remarks[key]
            about = reference("v1", "Pod", remark.pod.namespace, remark.pod.name, remark.pod.uid)
            if not events.post(about, "Warning", remark.reason, remark.text, self._clock()):
                self._turns.forget(key)
                is_posted = False
        return is_posted
