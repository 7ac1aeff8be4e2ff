"""The publishing loop: hardware, labels and held devices in, one node's ResourceSlices out.

Anything that may change the outcome only sets `dirty`. The loop lets changes gather, recomputes everything and writes
the difference; an empty difference writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from neuron_dra import __version__
from neuron_dra.core import backoff, checkpoint, devices, health, limits, names, slices, ultraserver
from neuron_dra.core.claims import Claim
from neuron_dra.core.topology import Node
from neuron_dra.errors import AlreadyExists, ApiError, ClaimError, Conflict, NeuronDraError, NotFound
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.publish import Published, SlicePublisher
from neuron_dra.kube.reflector import Reflector
from neuron_dra.node import coexistence
from neuron_dra.node.hardware import Hardware
from neuron_dra.node.health import HealthSource
from neuron_dra.node.metrics import Metrics
from neuron_dra.node.reserving import Tags
from neuron_dra.node.transaction import Transactions
from neuron_dra.node.turns import PublishingTurn
from neuron_dra.node.ultraserver import UltraServerWatch
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)

GATHER_S: Final = 0.2  # what happens together is written together; half as long or as long again, so that nodes spread
COMPARE_S: Final = 720.0  # a full list of our slices and a compare, whatever the watch said: five an hour
RETRY_S: Final = (0.5, 60.0)  # first and longest wait after a failure
CLAIMED_S: Final = (5.0, 60.0)  # first and longest wait until a device that should leave is looked at again
QUICK_RETRIES: Final = 5  # a lost race is run again at once, but not for ever


@dataclass(frozen=True, slots=True)
class PublishState:
    """The last publish: `result` of the last success, `error` if the last attempt failed or was refused."""

    result: Published | None = None
    error: str = ""
    at: datetime.datetime | None = None


class Publishing:
    """Publishes while it is this process's turn."""

    def __init__(
        self,
        settings: PluginSettings,
        hardware: Hardware,
        transactions: Transactions,
        turn: PublishingTurn,
        publisher: SlicePublisher,
        slice_cache: Reflector,
        node_cache: Reflector,
        health_source: HealthSource,
        events: EventRecorder,
        metrics: Metrics,
        allocated: Callable[[], AsyncIterator[Claim]],
        before_first: Callable[[], Awaitable[None]],
        watch: UltraServerWatch,
        tags: Tags,
    ) -> None:
        self._settings = settings
        self._hardware = hardware
        self._transactions = transactions
        self._turn = turn
        self._publisher = publisher
        self._slices = slice_cache
        self._nodes = node_cache
        self._health = health_source
        self._events = events
        self._metrics = metrics
        self._allocated = allocated
        self._before_first: Callable[[], Awaitable[None]] | None = before_first
        self._watch = watch
        self._tags = tags
        self._dirty = asyncio.Event()
        self._effect = settings.unhealthy_device_effect
        self._sick: frozenset[str] = frozenset()
        self._offered: dict[str, tuple[Node, tuple[devices.Device, ...]]] = {}
        self._recalled = False
        self._claimed_wait_s = CLAIMED_S[0]
        self.device_plugin_socket: str | None = None
        self.state = PublishState()

    def wake(self) -> None:
        """Something changed that slices may depend on."""
        self._dirty.set()

    @property
    def node_object(self) -> dict[str, Any] | None:
        """Our Node as last seen."""
        return self._nodes.items.get(f"/{self._settings.node_name}")

    async def run(self) -> None:
        """Publish on every change until cancelled; failures are told, and tried again."""
        waits = backoff.delays(*RETRY_S, random.random)
        quick = QUICK_RETRIES
        compare_at = _next_compare()
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it forgets a cancellation that comes just as the event is set.
                async with asyncio.timeout(max(0.0, compare_at - asyncio.get_running_loop().time())):
                    await self._dirty.wait()
            await asyncio.sleep(GATHER_S * random.uniform(0.5, 1.5))
            self._dirty.clear()
            try:
                if asyncio.get_running_loop().time() >= compare_at:
                    await self._slices.relist()
                    compare_at = _next_compare()
                await self.publish()
                waits, quick = backoff.delays(*RETRY_S, random.random), QUICK_RETRIES
            except (Conflict, AlreadyExists, NotFound) as err:
                log.info("slices changed under us; comparing again", extra={"error": str(err)})
                self._dirty.set()
                quick -= 1
                if quick <= 0:
                    await self._failed(err, next(waits))
            except ApiError as err:
                wait_s = next(waits)
                if err.retry_after_s:
                    wait_s = backoff.not_before(err.retry_after_s, random.random)
                await self._failed(err, wait_s)
            except (ClaimError, OSError) as err:  # the inventory of claims, or its place on disk
                await self._failed(err, next(waits))

    async def _failed(self, err: NeuronDraError | OSError, wait_s: float) -> None:
        log.error("publishing failed", extra={"error": str(err), "retry_in_s": round(wait_s, 1)})
        self.state = PublishState(self.state.result, str(err), self.state.at)
        self._metrics.publish_failed((err.reason if isinstance(err, ApiError) else "") or type(err).__name__)
        await asyncio.sleep(wait_s)
        self._dirty.set()

    async def publish(self) -> None:
        """Publish once, if it is our turn and the Node is known. Raises ApiError."""
        node = self.node_object
        if node is not None:
            labels = node["metadata"].get("labels") or {}
            self._hardware.label(labels)
            self._watch.saw_operator(any(label.startswith(names.ULTRASERVER_LABELS) for label in labels))
            meta = node["metadata"]
            self._watch.follow(
                self._hardware.ultraserver_id,
                whole_node=self._hardware.maybe_ultraserver,
                node=(meta["name"], meta["uid"]),
            )
        if self._slices.synced.is_set():
            self._recall()
        self._tell_health()
        if node is None or not self._slices.synced.is_set():
            if self._nodes.synced.is_set():
                why = f"the Node {self._settings.node_name} does not exist; is NODE_NAME the Node's name?"
                self.state = PublishState(self.state.result, "" if node else why, self.state.at)
            return
        await self._tell_findings(node)
        refusal = await self._refusal(node)
        if not self._turn.holding:
            return
        await self._tell_sick(node)
        if self._before_first is not None:
            await self._before_first()
            self._before_first = None
        if not await self._tags.settle(self._published):
            return
        pool = slices.Pool(self._settings.node_name, node["metadata"]["uid"])
        if self._sick and self._effect != health.NO_EFFECT and self._publisher.keeps_taints is None:
            await self._publisher.learn_taints(pool)
        wanted = await self._wanted(refusal)
        if wanted is None:
            self.state = PublishState(self.state.result, refusal, self.state.at)
            return
        kept_taints = self._publisher.keeps_taints
        result = await self._publisher.publish(pool, wanted)
        if self._publisher.keeps_taints is not kept_taints:
            self.wake()  # an API server was up- or downgraded: without taints, sick devices must leave
        if result.writes:
            log.info(
                "slices published",
                extra={"devices": result.devices, "generation": result.generation, "writes": result.writes},
            )
            self._tell_health()
        self._metrics.published(result.devices, result.generation, result.writes)
        self.state = PublishState(result, refusal, datetime.datetime.now(datetime.UTC))

    async def _wanted(self, refusal: str) -> list[slices.Wire] | None:
        """Return the devices to publish, or None for: leave the absence of slices as it is."""
        current = {device["name"]: device for device in self._published}
        held = checkpoint.device_names(self._transactions.claims.values())
        if refusal:
            if not current:
                return None
            fresh: tuple[devices.Device, ...] = ()
        else:
            fresh = await self._fresh(set(current))
        offered: dict[str, slices.Wire] = {device.name: device.to_wire() for device in fresh}
        elsewhere = self._held_elsewhere(set(offered))
        wire = {
            name: device
            for name, device in offered.items()
            if name in held or not (self._withheld(name) or elsewhere.intersection(self._hardware.device_ids(name)))
        }
        if not refusal:
            held |= await self._claimed(set(current) - set(wire) - held)
        for name in held - set(wire):
            if name in offered or name in current:
                wire[name] = offered.get(name) or current[name]  # allocated: stays published, sick or gone
        marked = {
            name: health.marked(device, self._hardware.health_of(name).reasons, self._effect)
            for name, device in wire.items()
        }
        return [ultraserver.tagged(marked[name], self._tags.current) for name in sorted(marked, key=_device_order)]

    def _held_elsewhere(self, offered: set[str]) -> set[int]:
        """Return the Neuron devices that claims hold under another name than those that are offered: another driver's.

        Under ours they would be free for the scheduler, and its pods would wait for what is refused here.
        """
        return {
            device_id
            for claim in self._transactions.claims.values()
            for device in claim.devices
            if device.device not in offered and not device.admin_access
            for device_id in device.device_ids
        }

    def _withheld(self, name: str) -> bool:
        """Tell whether a device must leave the slice unless somebody has it: there is no other way to keep it back."""
        reasons = self._hardware.health_of(name).reasons
        if health.MISSING in reasons and name != names.NODE_DEVICE:
            return True  # back since a moment, perhaps for a moment
        if self._tags.current is not None:
            return False  # the tag keeps others away, and the operator is to see what its workload has
        return bool(reasons) and self._effect != health.NO_EFFECT and self._publisher.keeps_taints is False

    async def _claimed(self, leaving: set[str]) -> set[str]:
        """Return those of the published devices `leaving` that a claim has been allocated, prepared or not.

        Asked of the API server only when something is to leave; looked at again after a while. Raises ApiError.
        """
        claimed = {device.device async for claim in self._allocated() for device in claim.devices} if leaving else set()
        if leaving & claimed:
            asyncio.get_running_loop().call_later(self._claimed_wait_s, self.wake)
            self._claimed_wait_s = min(2 * self._claimed_wait_s, CLAIMED_S[1])
        else:
            self._claimed_wait_s = CLAIMED_S[0]
        return leaving & claimed

    def _recall(self) -> None:
        """Once: what the slices say of sick devices holds, whoever published it."""
        if not self._recalled:
            self._recalled = True
            for device in self._published:
                self._hardware.recall(device["name"], health.reasons_on(device))

    @property
    def _published(self) -> list[slices.Wire]:
        return [device for item in self._publisher.current for device in item["spec"].get("devices") or []]

    def _checked(self, shape: str) -> tuple[devices.Device, ...]:
        """Return what the hardware offers in this shape, worked out once for each reading of it."""
        node = self._hardware.node
        if shape not in self._offered or self._offered[shape][0] is not node:
            proposed = devices.published(node, driver_version=__version__, ultraserver_devices=shape)
            kept, problems = limits.check_devices(proposed)
            for problem in problems:
                log.error("not published: it breaks a rule of the API", extra={"problem": problem})
            self._offered[shape] = (node, kept)
        return self._offered[shape][1]

    async def _fresh(self, published: set[str]) -> tuple[devices.Device, ...]:
        """Return what the hardware offers now. UltraServer nodes keep the shape that is published while it is in use:
        a new one waits until no claim is allocated on the node.
        """
        shape = self._settings.ultraserver_devices
        wanted = self._checked(shape)
        if not published or published & {device.name for device in wanted}:
            return wanted
        other = self._checked("devices" if shape == "node" else "node")
        if not published & {device.name for device in other}:
            return wanted
        if self._transactions.claims or [claim async for claim in self._allocated()]:
            log.warning(
                "--ultraserver-devices changed while claims are allocated on the node; published as before until "
                "they are gone",
                extra={"wanted": shape},
            )
            asyncio.get_running_loop().call_later(60.0, self.wake)
            return other
        return wanted

    def _tell_health(self) -> None:
        states = self._states()
        self._health.set(states)
        self._metrics.health((state.name, state.status.value, state.reasons) for state in states)
        self._metrics.claims(
            self._transactions.claims.values(), [f"neuron{d.device_id}" for d in self._hardware.node.devices]
        )

    def _states(self) -> tuple[health.DeviceHealth, ...]:
        """Return the health of every device that is published, held, or would be published if it were well."""
        own = self._hardware.device_names(self._settings.ultraserver_devices)
        seen = [device["name"] for device in self._published]
        held = checkpoint.device_names(self._transactions.claims.values())
        return tuple(self._hardware.health_of(name) for name in sorted({*own, *seen, *held}, key=_device_order))

    async def _tell_sick(self, node: dict[str, Any]) -> None:
        """Post an Event about each sick device, and about each that is well again."""
        states = {state.name: state for state in self._states()}
        sick = frozenset(name for name, state in states.items() if state.status is health.Health.UNHEALTHY)
        for name in sorted(sick, key=_device_order):
            await self._tell(node, "Warning", "NeuronDeviceUnhealthy", health.told(states[name], self._effect))
        for name in sorted(self._sick - sick, key=_device_order):
            if name in states:
                await self._tell(node, "Normal", "NeuronDeviceHealthy", f"{name} is healthy again")
        self._sick = sick

    async def _tell_findings(self, node: dict[str, Any]) -> None:
        findings = self._hardware.node.findings
        self._metrics.findings(finding.kind for finding in findings)
        for finding in findings:
            await self._warn(node, "Neuron" + "".join(map(str.title, finding.kind.split("-"))), finding.message)

    async def _refusal(self, node: dict[str, Any]) -> str:
        """Return why nothing new may be published now; empty if it may."""
        why = coexistence.explanation(self.device_plugin_socket, coexistence.advertised(node), self._settings.node_name)
        self._metrics.device_plugin(bool(why))
        if not why:
            return ""
        refuse = self._settings.device_plugin_coexistence == "refuse"
        text = why + ("" if refuse else "; published all the same, as --device-plugin-coexistence=warn says")
        await self._warn(node, "NeuronDevicePluginAlive", text)
        if refuse and self.state.error != why:
            log.error("refusing to publish", extra={"reason": why})
        return why if refuse else ""

    async def _warn(self, node: dict[str, Any], reason: str, message: str) -> None:
        await self._tell(node, "Warning", reason, message)

    async def _tell(self, node: dict[str, Any], kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        # A node's events carry its name as UID, or `kubectl describe node` does not find them.
        about = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["name"]}
        await self._events.post(about, kind, reason, message, datetime.datetime.now(datetime.UTC))


def _next_compare() -> float:
    """When to compare in full again, in the loop's time: spread, so that a fleet does not list at once."""
    return asyncio.get_running_loop().time() + COMPARE_S * random.uniform(0.9, 1.1)


def _device_order(name: str) -> tuple[int, str]:
    suffix = name.removeprefix(names.DEVICE_PREFIX)
    return (int(suffix), name) if suffix.isdigit() else (-1, name)
