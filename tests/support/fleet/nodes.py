"""The fleet's nodes: simulated hardware in memory, and on each the real plugin, without its sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hack.bench import ultraservers
from neuron_dra.core import names, node_conditions
from neuron_dra.core.capacity_block import ANNOTATION
from neuron_dra.core.catalogue import lookup
from neuron_dra.core.facts import DeviceFacts, NodeFacts
from neuron_dra.core.wire import Wire
from neuron_dra.kube.config import KubeConfig
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.ultraserver.reservation_gate import ReservationGate
from neuron_dra.node.ultraserver.tag_keeper import TagKeeper
from neuron_dra.node.ultraserver.watch import UltraServerWatch
from neuron_dra.settings import PluginSettings
from tests.support.fleet.network import Line

WIPED_S = 5.0  # by then the plugin has published its slices again, and the controller has seen them
WELL_S = 320.0  # by then a node without a report is chosen again
GROUP = 4  # nodes of an UltraServer here
MODES = ultraservers.MODES_OF_GROUP[GROUP]
BROKEN_MODES = ((3, 4), (4,))
"""`ultraserver_mode` with the links between the racks down, and with all links down."""


class FleetHardware(Hardware):
    """The kernel driver's readings, in memory."""

    def __init__(self, facts: NodeFacts) -> None:
        self._given = facts
        super().__init__("/")
        self.learn(facts)

    def set_modes(self, modes: tuple[int, ...]) -> None:
        """Set the modes that the driver offers."""
        changed = dataclasses.replace(self._given.ultraserver, modes=modes)
        self._given = dataclasses.replace(self._given, ultraserver=changed)

    def look(self) -> None:
        """Detect changes, as the plugin's poll does."""
        self.learn(self._given)


class NoUltraServer(UltraServerWatch):
    """Watches nothing."""

    def follow(self, ultraserver_id: str | None, *, whole_node: bool, node: tuple[str, str] = ("", "")) -> None:
        """Return a source for a node without an UltraServer."""
        super().follow(None, whole_node=False)


class NoTags(TagKeeper):
    """The publisher of a release without reservations: it publishes no tag."""

    async def settle(self, published: Sequence[Wire]) -> bool:
        """Forget the tag."""
        await self._keep(self.current, None)
        return True


class FleetPlugin(Plugin):
    """The plugin with all of its parts but the sockets: the fleet's kubelets call `transactions` themselves."""

    def forget_reservations(self) -> None:
        """Act as a release without reservations."""
        self.ultraserver = NoUltraServer(self.client, self.dirty.notify)
        tags = NoTags(self.settings.node_name, self.ultraserver, self.prepared, self.claims)
        self.gate = self.admission._gate = ReservationGate(self.settings.node_name, self.ultraserver, tags)
        self.publishing._tags = tags

    async def run(self) -> None:
        """Run until cancelled, which acts as a kill: nothing is finished or released."""
        async with self.client:
            await self.prepared.open()
            self.publisher_lock.claim()
            self.device_plugin.looked.set()  # no node here has a device plugin
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.slices.run())
                tasks.create_task(self.node.run())
                tasks.create_task(self.ultraserver.run())
                tasks.create_task(self.publishing.follow_hardware())
                tasks.create_task(self.publishing.run())
                tasks.create_task(self.recovery.run())
                tasks.create_task(self.events.run())

    async def killed(self) -> None:
        """End the other parts of a killed process."""
        running = list(self.transactions._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.publisher_lock.release()


class FleetNode:
    """One node. `incarnation` counts the instances that have had its name."""

    def __init__(
        self,
        name: str,
        block: str,
        node_id: int,
        instance_type: str,
        folder: Path,
        connect: Callable[[str], Line],
    ) -> None:
        self.name, self.block, self.node_id, self.instance_type = name, block, node_id, instance_type
        self.server_id = uuid.uuid5(uuid.NAMESPACE_DNS, block).hex[:15] + "8"
        self._folder = folder
        self._connect = connect
        self.incarnation = 0
        self.boots = 0
        self.alive = True  # powered on, with its kubelet
        self.present = True  # has a Node object
        self.kubelet_up = True  # False: containers keep running, and none is started or ended
        self.ready = True  # as its condition says
        self.cordoned = False
        self.taints: set[str] = set()  # keys of NoSchedule taints of users and autoscalers
        self.tags_its_devices = True  # False: a release of the driver without reservations
        self.ready_condition: dict[str, Any] = {"type": "Ready", "status": "False"}
        self.conditions: dict[str, dict[str, Any]] = {}  # what agents say, by type
        self.reported_since: datetime.datetime | None = None  # None: no agent reports a fault
        self.block_end: datetime.datetime | None = None  # as its annotation says
        self.block_end_since: datetime.datetime | None = None  # when that was written
        self.reported_until: datetime.datetime | None = None  # when the last report ended
        self.wiped_at: datetime.datetime | None = None  # when its slices were deleted
        self.modes: tuple[int, ...] = MODES
        self.hardware: FleetHardware
        self.plugin: FleetPlugin | None = None
        self.line: Line | None = None
        self._task: asyncio.Task[None] | None = None
        self.renew()

    @property
    def plugin_up(self) -> bool:
        """The plugin runs, and is not held."""
        return self.plugin is not None and self.line is not None and self.line._running.is_set()

    @property
    def healthy(self) -> bool:
        """True if it is healthy, except perhaps for its links."""
        return self.alive and self.present and self.kubelet_up and self.plugin_up

    @property
    def schedulable(self) -> bool:
        """The scheduler may place pods here."""
        return not (self.cordoned or self.taints)

    @property
    def reported(self) -> bool:
        """True if an agent reports a fault of it."""
        return self.reported_since is not None

    def say(self, condition: dict[str, Any], now: datetime.datetime) -> None:
        """Have another condition of an agent."""
        self.conditions[condition["type"]] = condition
        faults = [*node_conditions.faults(self.conditions.values(), node_conditions.DEFAULT)]
        if self.reported and not faults:
            self.reported_until = now
        self.reported_since = (self.reported_since or now) if faults else None

    def ends(self, end: datetime.datetime | None, now: datetime.datetime) -> None:
        """Have another end of its capacity block."""
        self.block_end, self.block_end_since = end, now

    def was_wiped(self, now: datetime.datetime) -> bool:
        """Return whether the node may have no slices."""
        return self.wiped_at is not None and (now - self.wiped_at).total_seconds() < WIPED_S

    def was_reported(self, now: datetime.datetime) -> bool:
        """True if an agent reports a fault of it, or did so lately: it is not chosen yet."""
        lately = self.reported_until is not None and (now - self.reported_until).total_seconds() < WELL_S
        return self.reported or lately

    def renew(self) -> None:
        """Become another instance: other hardware, an empty disk, no cordon, no taints and no reports of agents."""
        self.incarnation += 1
        self.conditions, self.reported_since = {}, None
        self.block_end = self.block_end_since = None
        self.cordoned, self.taints, self.kubelet_up = False, set(), True
        spec = lookup(self.instance_type)
        assert spec is not None
        found = dataclasses.replace(
            ultraservers.facts(self.instance_type, self.node_id, self.server_id, GROUP), modes=self.modes
        )
        self.hardware = FleetHardware(NodeFacts(self.instance_type, "2.30.2.0", _devices(spec), found))
        for part in ("registry", "plugins", "device-plugins", "cdi"):
            (self._disk / part).mkdir(parents=True)
        self.reboot()

    def reboot(self) -> None:
        """Have another boot id."""
        self.boots += 1
        (self._disk / "boot_id").write_text(f"{self.name}-{self.incarnation}-{self.boots}\n")

    @property
    def _disk(self) -> Path:
        return self._folder / f"{self.name}.{self.incarnation}"

    @property
    def settings(self) -> PluginSettings:
        """The plugin's settings here."""
        return PluginSettings(
            node_name=self.name,
            pod_uid=f"{self.name}-{self.incarnation}",
            cdi_root=str(self._disk / "cdi"),
            kubelet_registrar_directory_path=str(self._disk / "registry"),
            kubelet_plugins_directory_path=str(self._disk / "plugins"),
            kubelet_device_plugins_directory_path=str(self._disk / "device-plugins"),
            healthcheck_port=0,
            metrics_bind_address="",
            host_root="/",
            boot_id_file=str(self._disk / "boot_id"),
        )

    def node_object(self) -> dict[str, Any]:
        """Return the Node as its kubelet and cloud provider register it."""
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {
                    "kubernetes.io/hostname": self.name,
                    names.INSTANCE_TYPE_LABEL: self.instance_type,
                    names.CAPACITY_BLOCK_LABEL: self.block,
                    **dict.fromkeys(names.NETWORK_LAYER_LABELS, "nn-1"),
                },
                **({"annotations": {ANNOTATION: f"{self.block_end:%Y-%m-%dT%H:%M:%SZ}"}} if self.block_end else {}),
            },
            "spec": {"providerID": f"aws:///us-west-2d/i-{self.incarnation:04x}{self.name}"},
        }

    # The plugin

    def start_plugin(self) -> None:
        """Start the plugin's process; it reads its checkpoint and publishes."""
        if self.plugin is not None:
            return
        self.line = self._connect(f"plugin {self.name}")
        self.plugin = FleetPlugin(self.settings, KubeConfig("line:"), client=self.line, hardware=self.hardware)
        if not self.tags_its_devices:
            self.plugin.forget_reservations()
        self._task = asyncio.create_task(self.plugin.run(), name=f"plugin {self.name}")

    async def kill_plugin(self) -> None:
        """End the plugin's process, as SIGKILL does."""
        plugin, task, line = self.plugin, self._task, self.line
        self.plugin = self._task = self.line = None
        if plugin is None or task is None or line is None:
            return
        line.dead = True
        line.release()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await plugin.killed()

    def died(self) -> BaseException | None:
        """Return the exception that ended the plugin, None after a kill."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return self._task.exception() or RuntimeError("the plugin ended")
        return None

    def set_modes(self, modes: tuple[int, ...]) -> None:
        """Break or repair links: the kernel driver offers other modes, and a running plugin sees it."""
        self.modes = modes
        self.hardware.set_modes(modes)
        self.hardware.look()

    @property
    def checkpointed(self) -> set[str]:
        """UIDs of the claims that are prepared here."""
        return set(self.plugin.prepared.claims) if self.plugin is not None else set()

    @property
    def adopted(self) -> set[str]:
        """UIDs of the adopted claims."""
        held = self.plugin.prepared.claims if self.plugin is not None else {}
        return {uid for uid, claim in held.items() if claim.adopted}


def _devices(spec: Any) -> tuple[DeviceFacts, ...]:
    return tuple(
        DeviceFacts(i, spec.cores_per_device, spec.links[i] if spec.links else (), (243, i), True)
        for i in range(spec.device_count)
    )


def racks(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the capacity blocks of a fleet, and the names of their nodes by number."""
    for number in range(count):
        block = f"cr-{number}"
        yield block, [f"u{number}n{node_id}" for node_id in range(GROUP)]
