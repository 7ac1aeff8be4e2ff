"""The publishing loop: computes the node's ResourceSlices from its hardware, labels and held devices.

Other parts only set `dirty` if the result may change. The loop collects changes for a moment, recomputes everything and
writes the difference, if there is one.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
from dataclasses import dataclass
from typing import Any, Final

from neuron_dra.core import backoff, busy, health, names, slices
from neuron_dra.core.members import is_partition
from neuron_dra.errors import AlreadyExists, ApiError, ClaimError, Conflict, NeuronDraError, NotFound
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.own_node import OwnNode
from neuron_dra.node.prepare.inventory import Inventory
from neuron_dra.node.publish.coexistence import DevicePluginWatch
from neuron_dra.node.publish.connected import ConnectedSets
from neuron_dra.node.publish.present_label import PresentLabel
from neuron_dra.node.publish.publisher_lock import PublisherLock
from neuron_dra.node.publish.reports import PublishReports
from neuron_dra.node.publish.rivals import Rivals
from neuron_dra.node.publish.slice_publisher import Published, SlicePublisher
from neuron_dra.node.publish.wanted import Wanted, WantedDevices
from neuron_dra.node.signal import Signal
from neuron_dra.node.timing import PublishTiming
from neuron_dra.node.ultraserver.tag_keeper import TagKeeper
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)

QUICK_RETRIES: Final = 5  # conflicts are retried at once, but only this often


@dataclass(frozen=True, slots=True)
class PublishState:
    """The last publish: `result` of the last success, `error` if the last attempt failed or was rejected."""

    result: Published | None = None
    error: str = ""
    at: datetime.datetime | None = None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, slots=True)
class _Wait:
    """Nothing is written now. `error` is why; empty if there is no error, None to keep the last one."""

    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Write:
    """The slices of the pool are written; `refusal` is why no new devices are published, empty if they are."""

    pool: slices.Pool
    desired: Wanted
    refusal: str


@dataclass(frozen=True, slots=True)
class PublishSources:
    """What decides whether this node publishes, and in which shape."""

    hardware: Hardware
    node: OwnNode
    device_plugin: DevicePluginWatch
    connected: ConnectedSets
    present: PresentLabel


class Publishing:
    """Publishes while this process holds the publisher lock."""

    def __init__(
        self,
        settings: PluginSettings,
        timing: PublishTiming,
        dirty: Signal,
        sources: PublishSources,
        inventory: Inventory,
        tags: TagKeeper,
        lock: PublisherLock,
        publisher: SlicePublisher,
        wanted_devices: WantedDevices,
        reports: PublishReports,
    ) -> None:
        self._settings = settings
        self._timing = timing
        self._dirty = dirty
        self._hardware = sources.hardware
        self._node = sources.node
        self._device_plugin = sources.device_plugin
        self._connected = sources.connected
        self._inventory = inventory
        self._inventory_taken = False
        self._rivals = Rivals(settings.node_name, timing)
        self._present = sources.present
        self._tags = tags
        self._lock = lock
        self._publisher = publisher
        self._wanted_devices = wanted_devices
        self._reports = reports
        self._recalled = False
        self._look_at: float | None = None  # when to publish again even without a change
        self.state = PublishState()

    async def follow_hardware(self) -> None:
        """Report the health and the UltraServer after each changed reading, until cancelled."""
        while True:
            readings_seen = self._hardware.changed.count
            if readings_seen:
                if self._hardware.known.is_set() and not self._hardware.maybe_ultraserver:
                    self._tags.watch.follow(None, whole_node=False)
                self._reports.device_health()
                self._dirty.notify()
            await self._hardware.changed.after(readings_seen)

    async def run(self) -> None:
        """Publish on every change until cancelled; failures are reported and retried."""
        waits = backoff.delays(*self._timing.retry_s, random.random)
        quick_retries = QUICK_RETRIES
        compare_at = self._next_compare()
        changes_seen = 0
        while True:
            wake_at = min(compare_at, self._look_at or compare_at)
            await self._dirty.after(changes_seen, wake_at - asyncio.get_running_loop().time())
            await asyncio.sleep(self._timing.gather_s * random.uniform(0.5, 1.5))
            changes_seen = self._dirty.count
            self._look_at = None
            reading = self._hardware.changed.count
            try:
                if asyncio.get_running_loop().time() >= compare_at:
                    await self._publisher.cache.relist()
                    compare_at = self._next_compare()
                await self.publish()
                waits, quick_retries = backoff.delays(*self._timing.retry_s, random.random), QUICK_RETRIES
                if pause_s := self._rivals.take_pause():
                    await self._hardware.changed.after(reading, pause_s)
            except (Conflict, AlreadyExists, NotFound) as err:
                log.info("slices were changed meanwhile; comparing again", extra={"error": str(err)})
                self._dirty.notify()
                quick_retries -= 1
                if quick_retries <= 0:
                    await self._failed(err, next(waits), reading)
            except ApiError as err:
                wait_s = next(waits)
                if err.retry_after_s:
                    wait_s = backoff.not_before(
                        min(err.retry_after_s, self._timing.longest_retry_after_s), random.random
                    )
                await self._failed(err, wait_s, reading)
            except (ClaimError, OSError) as err:  # while other drivers' claims were adopted
                await self._failed(err, next(waits), reading)

    async def _failed(self, err: NeuronDraError | OSError, wait_s: float, reading: int) -> None:
        """Report a failure, and wait; a change of the hardware after the reading `reading` ends the wait."""
        self._reports.publish_failed(err, wait_s)
        self.state = PublishState(self.state.result, str(err), self.state.at)
        await self._hardware.changed.after(reading, wait_s)
        self._dirty.notify()

    async def publish(self) -> None:
        """Publish once, if we hold the publisher lock and the Node is known. Raises ApiError, ClaimError, OSError."""
        node = self._node.object
        self._observe(node)
        step = await self._next_step(node)
        if isinstance(step, _Write):
            published = await self._write(step.pool, step.desired)
            self.state = PublishState(published, step.refusal or self._rivals.why, _now())
        elif step.error is not None:
            self.state = PublishState(self.state.result, step.error, self.state.at)

    def _observe(self, node: dict[str, Any] | None) -> None:
        """Pass the Node's labels, the UltraServer and the published faults to the parts that need them."""
        if node is not None:
            self._hardware.label(self._node.labels)
            has_operator = any(label.startswith(names.ULTRASERVER_LABELS) for label in self._node.labels)
            self._tags.watch.saw_operator(has_operator)
        if not self._hardware.known.is_set():
            return
        if node is not None:
            meta = node["metadata"]
            self._tags.watch.follow(
                self._hardware.ultraserver_id,
                whole_node=self._hardware.maybe_ultraserver,
                node=(meta["name"], meta["uid"]),
            )
        if self._publisher.cache.synced.is_set():
            self._recall()
        self._reports.device_health()

    async def _next_step(self, node: dict[str, Any] | None) -> _Wait | _Write:
        """Take the inventory, settle the tags, and return what to do now. Raises as `publish`."""
        if not self._hardware.known.is_set():
            self._reports.findings()
            is_told = self._hardware.node.findings or self._hardware.is_away
            return _Wait(self._hardware.why_unknown if is_told else "")
        if node is None or not self._publisher.cache.synced.is_set():
            return _Wait(self._why_no_node(node) if self._node.synced.is_set() else None)
        self._reports.findings()
        refusal = self._refusal(node)
        if not self._lock.holding:
            return _Wait()
        self._reports.post_health_events()
        list_again_at = await self._take_inventory()
        is_settled = await self._tags.settle(self._publisher.devices)
        self._look_at = self._tags.look_at
        self._look_again_at(list_again_at)
        if not is_settled:
            return _Wait()
        pool = slices.Pool(self._settings.node_name, node["metadata"]["uid"])
        if self._must_learn_taints():
            await self._publisher.learn_taints(pool)
        desired = await self._wanted_devices.decide(refusal, pool)
        self._look_again_at(self._wanted_devices.look_at)
        if desired is None:
            return _Wait(refusal)
        return _Write(pool, desired, refusal)

    def _why_no_node(self, node: dict[str, Any] | None) -> str:
        """Return an error if the API server has no Node of this name."""
        if node is not None:
            return ""
        return f"the Node {self._settings.node_name} does not exist; is NODE_NAME the Node's name?"

    def _must_learn_taints(self) -> bool:
        """Return whether a taint is wanted, and it is not known yet whether the API server keeps it."""
        has_effect = self._settings.unhealthy_device_effect != health.NO_EFFECT
        is_closed = busy.is_closed(self._hardware.node.spec, self._hardware.node.ultraserver)
        is_wanted = is_closed or (bool(self._reports.unhealthy) and has_effect)
        return is_wanted and self._publisher.keeps_taints is None

    def _look_again_at(self, when: float | None) -> None:
        """Publish again at the loop's time `when`, or before."""
        if when is not None:
            self._look_at = when if self._look_at is None else min(self._look_at, when)

    async def _write(self, pool: slices.Pool, desired: Wanted) -> Published:
        """Write the slices, and report it. Raises ApiError."""
        kept_before = (self._publisher.keeps_taints, self._publisher.keeps_counters)
        published = await self._publisher.publish(pool, desired.devices, desired.counters, desired.position)
        if desired.ends_division:
            await self._connected.ended()
        self._rivals.took(asyncio.get_running_loop().time(), desired, published)
        self._reports.rival(self._rivals.why)
        self._reports.post_taken_names()
        if (self._publisher.keeps_taints, self._publisher.keeps_counters) != kept_before:
            self._dirty.notify()  # the API server's version changed: what it drops is published in another way
        self._reports.published(published)
        await self._label_node(publishes=bool(desired.devices))
        return published

    async def _label_node(self, *, publishes: bool) -> None:
        await self._present.settle(publishes=publishes)
        self._look_again_at(self._present.look_at)

    async def _take_inventory(self) -> float | None:
        """Before the first publish, find the claims that were prepared here and are not in the checkpoint.

        Returns when to try again, in the loop's time, if the kubelet did not answer. Raises ApiError, OSError.
        """
        if self._inventory_taken:
            return None
        published_slices = self._publisher.cache.items.values()
        published_names = (resource_slice["metadata"]["name"] for resource_slice in published_slices)
        others_published = not all(slices.is_ours(name, self._settings.node_name) for name in published_names)
        self._inventory_taken = await self._inventory.take(others_published=others_published)
        if self._inventory_taken:
            return None
        return asyncio.get_running_loop().time() + self._timing.list_again_s

    def offers(self, name: str) -> bool:
        """Return whether this node publishes, or is about to publish, a device of that name."""
        return self._wanted_devices.offers(name)

    def _recall(self) -> None:
        """Restore the faults in the published slices, once: faults persist across restarts."""
        if not self._recalled:
            self._recalled = True
            published_devices = {
                device["name"]: device for device in self._publisher.devices if not is_partition(device["name"])
            }
            if len(published_devices) > 1:
                published_devices.pop(names.NODE_DEVICE, None)  # the devices themselves are there
            for name, device in published_devices.items():
                self._hardware.recall(name, health.reasons_on(device))

    def _refusal(self, node: dict[str, Any]) -> str:
        """Return why no new devices may be published now; empty if they may."""
        why = self._device_plugin.why(node)
        must_refuse = self._settings.device_plugin_coexistence == "refuse"
        self._reports.device_plugin(why, refuse=must_refuse)
        self._reports.pods_unlisted(self._device_plugin.unlisted)
        if why and must_refuse and self.state.error != why:
            log.error("refusing to publish", extra={"reason": why})
        if must_refuse:
            return why
        return ""

    def _next_compare(self) -> float:
        """Return the loop's time of the next full compare, varied so that nodes do not list at once."""
        return asyncio.get_running_loop().time() + self._timing.compare_s * random.uniform(0.9, 1.1)
