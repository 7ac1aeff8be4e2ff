"""The EFA driver of a node: its own store, sockets, slice and loops, beside those of the Neuron devices.

It shares with them the client, the Node, the publisher lock, Events and the metrics of claims. Its parts are those of
the Neuron driver wherever these do not depend on what a device is.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from pathlib import Path

import grpc

from neuron_dra.core import backoff, catalogue, checkpoint, efa, health, names, slices
from neuron_dra.core.catalogue import InstanceType
from neuron_dra.core.claims import Claim, PreparedClaim
from neuron_dra.core.dra_driver import EFA
from neuron_dra.errors import ApiError, ClaimError
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2_grpc
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.events import EventsAbout
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_SLICES
from neuron_dra.node.boot import boot_id
from neuron_dra.node.efa.admission import EfaAdmission, EfaClaimReader
from neuron_dra.node.efa.hardware import EfaHardware
from neuron_dra.node.efa.managers import OtherManagers
from neuron_dra.node.endpoints.sockets import UnixServer
from neuron_dra.node.endpoints.stale_sockets import StaleSockets
from neuron_dra.node.files import Files
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.health import HealthSource
from neuron_dra.node.loops import Loop
from neuron_dra.node.metrics import PluginMetrics
from neuron_dra.node.own_node import OwnNode
from neuron_dra.node.prepare import rediscovery
from neuron_dra.node.prepare.flusher import Flusher
from neuron_dra.node.prepare.host_folders import HostFolders
from neuron_dra.node.prepare.inventory import Inventory
from neuron_dra.node.prepare.kubelet import DraService, HealthService, Registration, handlers
from neuron_dra.node.prepare.orphan_release import OrphanRelease
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.recovery import Recovery
from neuron_dra.node.prepare.rediscovery import KubeletList, Rediscovery
from neuron_dra.node.prepare.store import Store
from neuron_dra.node.prepare.transactions import Transactions
from neuron_dra.node.publish.coexistence import DevicePluginWatch
from neuron_dra.node.publish.publisher_lock import PublisherLock
from neuron_dra.node.publish.slice_publisher import SlicePublisher, checked
from neuron_dra.node.signal import Signal
from neuron_dra.node.timing import PluginTiming
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of the plugin that its drivers share."""

    settings: PluginSettings
    timing: PluginTiming
    files: Files
    client: KubeClient
    node: OwnNode
    hardware: Hardware
    device_plugin: DevicePluginWatch
    lock: PublisherLock
    events: EventsAbout
    metrics: PluginMetrics


class InterfaceDriver:
    """One run of the driver; the plugin opens it, runs its loops, and closes it."""

    def __init__(self, shared: SharedParts) -> None:
        settings, timing = shared.settings, shared.timing
        self._shared = shared
        self.dirty = Signal()
        self.hardware = EfaHardware(settings, self._instance_type, timing.hardware)
        self.health = HealthSource(lambda: self.hardware.read_at)
        self.slices = Reflector(
            shared.client,
            RESOURCE_SLICES,
            field_selector=f"spec.driver={EFA.name},spec.nodeName={settings.node_name}",
            on_change=self.dirty.notify,
            project=checked,
        )
        self.managers = OtherManagers(
            settings,
            shared.node,
            self.hardware,
            shared.device_plugin,
            self._slice_names,
            self.dirty.notify,
            timing.publish,
        )
        self.claims = EfaClaimReader(shared.client, settings.node_name, timing.prepare)
        self.store = self._own_store()
        self.prepared = PreparedClaims(self.store, self.dirty.notify)
        self.admission = EfaAdmission(settings, self.claims, self.hardware, self.managers, timing.hardware.deadline_s)
        self.transactions = Transactions(self.prepared, self.admission, settings.device_wait_seconds, timing.prepare)
        self._flusher = Flusher(self.prepared, self._not_flushed, timing.prepare)
        finds = self._rediscovery()
        # Its gauge of a damaged checkpoint is not that of the Neuron driver, so the metrics are not exported.
        self.recovery = Recovery(self.prepared, finds, self.hardware.known.wait, PluginMetrics(), timing.prepare)
        self._inventory = Inventory(self.prepared, self.recovery, finds)
        self._orphan_release = OrphanRelease(
            self.prepared,
            self.claims,
            settings.node_name,
            Path(settings.kubelet_pod_resources_socket),
            lambda: shared.node.kubelet_version,
            timing.orphans,
            EFA,
        )
        self.publisher = SlicePublisher(shared.client, self.slices)
        self.registration = Registration(
            str(settings.efa_dra_socket), self.dirty.notify, timing.kubelet, driver=EFA.name
        )
        self._dra = UnixServer(settings.efa_dra_socket, self._add_dra)
        self._reg = UnixServer(settings.efa_registration_socket, self._add_registration)
        self._is_registering = False
        self._is_stopping = False
        self._sockets = asyncio.Lock()
        self._was_refused = ""
        self._had_dranet = False
        self._is_recalled = False
        self._inventory_taken = False
        self._unhealthy: frozenset[str] = frozenset()

    def _own_store(self) -> Store:
        settings, files = self._shared.settings, self._shared.files
        cdi_root = Path(settings.cdi_root)
        folders = [Path(settings.kubelet_registrar_directory_path), Path(settings.kubelet_plugins_directory_path)]
        return Store(
            settings.efa_folder,
            cdi_root,
            boot_id(settings),
            files,
            self._shared.timing.prepare.lock_s,
            host_folders=HostFolders(cdi_root, folders, files),
            driver=EFA,
            renew=self.hardware.renewed,
        )

    def _rediscovery(self) -> Rediscovery:
        settings, node = self._shared.settings, self._shared.node
        socket = Path(settings.kubelet_pod_resources_socket)
        return Rediscovery(
            settings.node_name,
            self.claims,
            self.admission.decide,
            _adopted,
            KubeletList(socket, lambda: node.kubelet_version, self._shared.timing.prepare.list_s),
            lambda name: name in self.hardware.watch,
            EFA,
        )

    def _instance_type(self) -> InstanceType | None:
        label = self._shared.node.labels.get(names.INSTANCE_TYPE_LABEL, "")
        return self._shared.hardware.node.spec or (catalogue.lookup(label) if label else None)

    def _slice_names(self) -> list[str]:
        # A copy, because a thread that commits a claim reads them too.
        return [resource_slice["metadata"]["name"] for resource_slice in list(self.slices.items.values())]

    def _not_flushed(self, text: str) -> None:
        self._shared.events.post("Warning", "NeuronStateNotFlushed", text)

    def _add_dra(self, server: grpc.aio.Server) -> None:
        dra = DraService(self.transactions, self._shared.metrics)
        device_health = HealthService(self.health, self._shared.settings.node_name, self._shared.timing.kubelet)
        server.add_generic_rpc_handlers(handlers(dra, device_health))

    def _add_registration(self, server: grpc.aio.Server) -> None:
        registration_pb2_grpc.add_RegistrationServicer_to_server(self.registration, server)

    # Start and stop

    async def open(self) -> None:
        """Read the checkpoint, and serve the DRA socket. Raises SocketError, OSError."""
        await self.prepared.open()
        await self._dra.start()

    def loops(self) -> list[Loop]:
        """Return the driver's background loops."""
        settings, timing = self._shared.settings, self._shared.timing
        sockets = settings.efa_dra_socket, settings.efa_registration_socket
        stale_sockets = StaleSockets(*sockets, "neuron.aws.com-efa", self._shared.files)
        return [
            Loop("EFA: read interfaces", self._read),
            Loop("EFA: look for other managers", self._look_for_managers),
            Loop("EFA: watch slices", self.slices.run),
            Loop("EFA: publish", self._publish_on_change),
            Loop("EFA: keep sockets", self._keep_sockets),
            Loop("EFA: flush the checkpoint", self._flusher.run),
            Loop("EFA: repair CDI files", self._repair),
            Loop("EFA: rebuild the checkpoint", self.recovery.run),
            Loop("EFA: release orphans", self._orphan_release.run),
            Loop("EFA: remove stale sockets", lambda: stale_sockets.run(timing.kubelet.stale_sockets_s)),
        ]

    def hurry(self) -> None:
        """End all waits, before the plugin stops."""
        self._is_stopping = True
        self.health.close()
        self.transactions.hurry()

    async def close(self) -> None:
        """Stop serving, and wait for running transactions. A second call does nothing."""
        self.hurry()
        graces = self._shared.timing.kubelet
        async with self._sockets:
            await asyncio.gather(self._reg.stop(graces.registration_grace_s), self._dra.stop(graces.call_grace_s))
        await self.transactions.finish(graces.transaction_grace_s)

    # Loops

    async def _read(self) -> None:
        if self._instance_type() is None:
            await self._shared.hardware.wait()  # or the first slice would lack the groups, which the type decides
        while True:
            if await self.hardware.look():
                self.dirty.notify()
            await asyncio.sleep(self._shared.timing.hardware.period_s)

    async def _look_for_managers(self) -> None:
        await self.managers.look()
        await self.managers.run()

    async def _repair(self) -> None:
        await self.prepared.keep_repaired(self._shared.timing.prepare.repair_s, self._shared.metrics.repaired)

    async def _keep_sockets(self) -> None:
        """Serve the registration socket unless DRANET runs, and restore sockets that were removed."""
        while True:
            async with self._sockets:
                if self._is_stopping:
                    return
                if not self._dra.intact:
                    await self._dra.restart()
                await self._register()
            await asyncio.sleep(self._shared.timing.kubelet.supervise_s)

    async def _register(self) -> None:
        may_register = self.managers.looked.is_set() and self.slices.synced.is_set() and not self.managers.dranet
        if may_register != self._is_registering:
            self.registration.start_over()
            await (self._reg.start() if may_register else self._reg.stop(0))
            self._is_registering = may_register
        elif may_register and (not self._reg.intact or self.registration.needs_fresh_socket()):
            self.registration.start_over()
            await self._reg.restart()

    async def _publish_on_change(self) -> None:
        timing = self._shared.timing.publish
        waits = backoff.delays(*timing.retry_s, random.random)
        now = asyncio.get_running_loop().time
        compare_at = now() + timing.efa_compare_s * random.uniform(0.9, 1.1)
        while True:
            changes_seen = self.dirty.count
            try:
                if now() >= compare_at:
                    await self.slices.relist()
                    compare_at = now() + timing.efa_compare_s * random.uniform(0.9, 1.1)
                await self.publish()
                waits = backoff.delays(*timing.retry_s, random.random)
            except (ApiError, ClaimError, OSError) as err:
                wait_s = next(waits)
                log.error("publishing EFA interfaces failed", extra={"error": str(err), "retry_in_s": round(wait_s, 1)})
                await asyncio.sleep(wait_s)
                continue
            # The publisher lock notifies another signal, and the kubelet may not have listed its pods.
            await self.dirty.after(changes_seen, timing.list_again_s)
            await asyncio.sleep(timing.gather_s * random.uniform(0.5, 1.5))

    # Publishing

    async def publish(self) -> None:
        """Publish once, or withdraw what was published while another program manages the interfaces.

        Raises ApiError, ClaimError, OSError.
        """
        node = self._shared.node.object
        is_known = self.slices.synced.is_set() and self.hardware.known.is_set() and self.managers.looked.is_set()
        if node is None or not is_known:
            return
        self._had_dranet |= bool(self.managers.dranet)
        refusal = self.managers.why()
        self._report_refusal(refusal)
        if self.managers.dranet:
            await self._doubt()
        self._recall()
        self.health.set(efa.judged(self.hardware.watch))
        if not self._shared.lock.holding:
            return
        if refusal:
            await self._withdraw()
            return
        self._report_health()
        if not await self._take_inventory():
            return
        if self.managers.why():  # the inventory takes a while
            return
        await self._write(slices.Pool(self._shared.settings.node_name, node["metadata"]["uid"], EFA.name))

    async def _write(self, pool: slices.Pool) -> None:
        effect = self._shared.settings.unhealthy_device_effect
        is_tainted = effect != health.NO_EFFECT and any(watched.reason for watched in self.hardware.watch.values())
        if is_tainted and self.publisher.keeps_taints is None:
            await self.publisher.learn_taints(pool)
        held_names = checkpoint.device_names(self.prepared.claims.values())
        devices = efa.devices(
            self.hardware.watch, effect=effect, keeps_taints=self.publisher.keeps_taints, held=held_names
        )
        if not devices:
            await self._withdraw()  # a node without EFA interfaces has no slice
            return
        if self.managers.dranet:  # since the dry run
            return
        published = await self.publisher.publish(pool, devices)
        if published.writes:
            log.info("EFA interfaces published", extra={"devices": published.devices})

    async def _withdraw(self) -> None:
        """Delete this driver's slices, and no other program's."""
        await self.publisher.withdraw(self._shared.settings.node_name, EFA.name)

    async def _take_inventory(self) -> bool:
        """Find claims that were prepared here and are not in the checkpoint; return whether that was possible."""
        if not self._inventory_taken:
            self._inventory_taken = await self._inventory.take(others_published=self._had_dranet)
            self._had_dranet = False
        elif self._had_dranet:
            self._inventory_taken, self._had_dranet = await self._inventory.take(others_published=True), False
        return self._inventory_taken

    async def _doubt(self) -> None:
        """Doubt our prepared claims: the kubelet calls DRANET for them, and it answers that it unprepared them."""
        if any(not claim.doubtful for claim in self.prepared.claims.values()):
            await self.prepared.adopt({}, others_ran=True)

    def _recall(self) -> None:
        """Take the published interfaces into account, once; a reboot may have changed which ones there are."""
        if self._is_recalled:
            return
        self._is_recalled = True
        if not self.store.is_first_of_boot:
            self.hardware.recall(self._own_devices())

    def _own_devices(self) -> list[dict[str, object]]:
        node_name = self._shared.settings.node_name
        own_devices: list[dict[str, object]] = []
        for resource_slice in self.publisher.current:
            if slices.is_ours(resource_slice["metadata"]["name"], node_name, EFA.name):
                own_devices += resource_slice["spec"].get("devices") or []
        return own_devices

    def _report_refusal(self, refusal: str) -> None:
        if refusal and refusal != self._was_refused:
            log.error("the EFA driver stands down", extra={"reason": refusal})
        elif self._was_refused and not refusal:
            log.info("the EFA driver no longer stands down")
        self._was_refused = refusal
        if refusal:
            self._shared.events.post("Warning", "NeuronEfaStandsDown", refusal)

    def _report_health(self) -> None:
        """Post an Event about each unhealthy interface, and about each that is healthy again."""
        watch = self.hardware.watch
        unhealthy = frozenset(name for name, watched in watch.items() if watched.reason)
        for name in sorted(unhealthy):
            reason = watch[name].reason
            text = f"EFA interface {name} is unhealthy ({reason}): {efa.ADVICE[reason]}"
            self._shared.events.post("Warning", "NeuronDeviceUnhealthy", text)
        for name in sorted(self._unhealthy - unhealthy):
            self._shared.events.post("Normal", "NeuronDeviceHealthy", f"EFA interface {name} is healthy again")
        self._unhealthy = unhealthy


def _adopted(claim: Claim) -> PreparedClaim:
    return rediscovery.adopted(claim, lambda name: ())
