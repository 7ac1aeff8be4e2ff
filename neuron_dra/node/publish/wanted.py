"""What the node publishes now: gathers the facts for the decisions of core/publication and core/divided."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from neuron_dra import __version__
from neuron_dra.core import busy, checkpoint, devices, divided, limits, publication, slices
from neuron_dra.core.topology import Node
from neuron_dra.core.wire import Wire
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.publish.connected import ConnectedSets
from neuron_dra.node.publish.slice_publisher import SlicePublisher
from neuron_dra.node.timing import PublishTiming
from neuron_dra.node.ultraserver.tag_keeper import TagKeeper
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to publish; `ends_division` means that the node had devices with counters and has none from now on."""

    devices: tuple[Wire, ...]
    counters: tuple[Wire, ...] = ()
    position: Mapping[str, int] | None = None
    ends_division: bool = False


class WantedDevices:
    """Decides what to publish; `look_at` is when to decide again even without a change."""

    def __init__(
        self,
        settings: PluginSettings,
        timing: PublishTiming,
        hardware: Hardware,
        prepared: PreparedClaims,
        claims: ClaimReader,
        publisher: SlicePublisher,
        tags: TagKeeper,
        connected: ConnectedSets,
    ) -> None:
        self._settings = settings
        self._timing = timing.leaving
        self._hardware = hardware
        self._prepared = prepared
        self._claims = claims
        self._publisher = publisher
        self._tags = tags
        self._connected = connected
        self._offered: dict[str, tuple[Node, tuple[devices.Device, ...]]] = {}
        self._keeps_shape = False
        self._claimed: publication.Claimed | None = None
        self.look_at: float | None = None

    async def decide(self, refusal: str, pool: slices.Pool) -> Wanted | None:
        """Return what to publish, or None if no slices exist and none may be created. Raises ApiError."""
        is_divided = await self._connected.settle(pool, self._published, self._prepared.claims.values())
        offered = self._checked(self._connected.shape)
        if is_divided:
            division = self._connected.division(self._hardware.node, offered)
        else:
            division = None
        situation = self._situation(refusal, division)
        allocated_names: set[str] | None = None
        if division is not None:
            divided_outcome, allocated_names = await self._divided(situation, division)
            if divided_outcome.divided:
                self._look_again(self._connected.look_at, divided_outcome.look_at)
                position = division.position if divided_outcome.counters else None
                return Wanted(divided_outcome.devices, divided_outcome.counters, position)
        now = asyncio.get_running_loop().time()
        outcome = publication.decide(now, situation, self._claimed, allocated_names, self._timing)
        if outcome.needs_allocated:
            allocated_names = {device.device async for claim in self._claims.allocated() for device in claim.devices}
            now = asyncio.get_running_loop().time()
            outcome = publication.decide(now, situation, self._claimed, allocated_names, self._timing)
        if outcome.keeps_shape and not self._keeps_shape:
            log.warning(
                "--ultraserver-devices changed while claims are allocated on the node; its devices are published as "
                "before until those claims are gone",
                extra={"wanted": self._settings.ultraserver_devices},
            )
        self._claimed, self._keeps_shape = outcome.claimed, outcome.keeps_shape
        self._look_again(self._connected.look_at, outcome.look_at)
        if outcome.devices is None:
            return None
        return Wanted(outcome.devices, ends_division=division is not None)

    def offers(self, name: str) -> bool:
        """Return whether this node publishes, or is about to publish, a device of that name."""
        if any(device.name == name for device in self._checked(self._connected.shape)):
            return True
        for resource_slice in self._publisher.current:
            is_ours = slices.is_ours(resource_slice["metadata"]["name"], self._settings.node_name)
            if is_ours and any(device["name"] == name for device in resource_slice["spec"].get("devices") or []):
                return True
        return False

    async def _divided(
        self, situation: publication.Situation, division: divided.Division
    ) -> tuple[divided.DividedOutcome, set[str] | None]:
        """Decide on devices with counters; return the allocated devices' names too, if listed. Raises ApiError."""
        now = asyncio.get_running_loop().time()
        allocated_names: set[str] | None = None
        divided_outcome = divided.decide(now, situation, division, self._connected.leaving, None, self._timing)
        if divided_outcome.needs_allocated:
            claims = self._claims.allocated(reserved=False)
            allocated_names = {device.device async for claim in claims for device in claim.devices}
            divided_outcome = divided.decide(
                now, situation, division, self._connected.leaving, allocated_names, self._timing
            )
        self._connected.leaving = divided_outcome.leaving
        return divided_outcome, allocated_names

    def _look_again(self, *times: float | None) -> None:
        self.look_at = min((at for at in times if at is not None), default=None)

    def _situation(self, refusal: str, division: divided.Division | None) -> publication.Situation:
        shape = self._connected.shape
        current = {device["name"]: device for device in self._published}
        offered, other = self._checked(shape), self._checked("devices" if shape == "node" else "node")
        device_names = {*current, *(device.name for device in (*offered, *other))}
        prepared = tuple(self._prepared.claims.values())
        device_names |= checkpoint.device_names(prepared)
        if division is not None:
            device_names |= division.position.keys()
        return publication.Situation(
            current=current,
            offered=offered,
            other=other,
            refused=bool(refusal),
            prepared=prepared,
            ids={name: self._hardware.device_ids(name) for name in device_names},
            reasons={name: self._hardware.health_of(name).reasons for name in device_names},
            effect=self._settings.unhealthy_device_effect,
            keeps_taints=self._publisher.keeps_taints,
            tag=self._tags.current,
            is_closed=busy.is_closed(self._hardware.node.spec, self._hardware.node.ultraserver),
        )

    @property
    def _published(self) -> list[Wire]:
        return self._publisher.devices

    def _checked(self, shape: str) -> tuple[devices.Device, ...]:
        """Return the devices that the hardware offers in this shape, computed once per reading."""
        node = self._hardware.node
        if shape not in self._offered or self._offered[shape][0] is not node:
            proposed = devices.published(node, driver_version=__version__, ultraserver_devices=shape)
            valid_devices, problems = limits.check_devices(proposed)
            for problem in problems:
                log.error("device not published: it violates a limit of the API", extra={"problem": problem})
            self._offered[shape] = (node, valid_devices)
        return self._offered[shape][1]
