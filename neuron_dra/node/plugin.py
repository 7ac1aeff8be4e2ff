"""The plugin as a whole: creates its parts, starts them in order, runs their tasks and stops them.

Start: settings, sysfs, checkpoint, DRA socket, registration socket, publishing. Stop: close the sockets, wait for
transactions, end the loops, stop metrics last. Slices stay: a restart of less than 30 s has no visible effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from functools import partial
from pathlib import Path

from neuron_dra import __version__
from neuron_dra.api import claims as wire
from neuron_dra.core import names
from neuron_dra.core.claims import Claim, PreparedClaim
from neuron_dra.errors import SettingsError
from neuron_dra.http import HttpServer
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder, EventsAbout, reference
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_SLICES
from neuron_dra.node import version
from neuron_dra.node.admission import NodeAdmission
from neuron_dra.node.boot import boot_id
from neuron_dra.node.efa.driver import InterfaceDriver, SharedParts
from neuron_dra.node.endpoints.inspector import Inspector
from neuron_dra.node.endpoints.liveness import Lag, Liveness
from neuron_dra.node.endpoints.services import Services
from neuron_dra.node.endpoints.sockets import TcpHealthServer, UnixServer
from neuron_dra.node.endpoints.stale_sockets import StaleSockets
from neuron_dra.node.endpoints.telemetry import Telemetry
from neuron_dra.node.files import Files
from neuron_dra.node.hardware.hardware import Hardware
from neuron_dra.node.health import HealthSource
from neuron_dra.node.loops import Loop, OnError, kept_running
from neuron_dra.node.metrics import BUILD, LAG, REGISTERED, PluginMetrics
from neuron_dra.node.own_node import OwnNode
from neuron_dra.node.prepare import orphans, rediscovery
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.flusher import Flusher
from neuron_dra.node.prepare.host_folders import HostFolders
from neuron_dra.node.prepare.inventory import Inventory
from neuron_dra.node.prepare.kubelet import DraService, HealthService, Registration
from neuron_dra.node.prepare.orphan_release import OrphanRelease
from neuron_dra.node.prepare.prepared_claims import PreparedClaims
from neuron_dra.node.prepare.recovery import Recovery
from neuron_dra.node.prepare.rediscovery import KubeletList, Rediscovery
from neuron_dra.node.prepare.store import Store
from neuron_dra.node.prepare.transactions import Transactions
from neuron_dra.node.publish.coexistence import DevicePluginWatch
from neuron_dra.node.publish.connected import ConnectedSets
from neuron_dra.node.publish.loop import Publishing, PublishSources, PublishState
from neuron_dra.node.publish.present_label import PresentLabel
from neuron_dra.node.publish.publisher_lock import LockKeeper, PublisherLock
from neuron_dra.node.publish.reports import PublishReports
from neuron_dra.node.publish.slice_publisher import SlicePublisher, checked
from neuron_dra.node.publish.wanted import WantedDevices
from neuron_dra.node.signal import Signal
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from neuron_dra.node.ultraserver.reservation_gate import ReservationGate
from neuron_dra.node.ultraserver.tag_keeper import TagKeeper
from neuron_dra.node.ultraserver.watch import UltraServerWatch
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)


class Plugin:
    """One run of the plugin. `run()` serves until `stop()` is called."""

    _loop: asyncio.AbstractEventLoop | None = None  # while `run()` serves

    def __init__(
        self,
        settings: PluginSettings,
        kube: KubeConfig,
        files: Files | None = None,
        *,
        client: KubeClient | None = None,
        hardware: Hardware | None = None,
        timing: PluginTiming = DEFAULT_TIMING,
    ) -> None:
        """`files`, `client` and `hardware` replace disk, network and devices in simulations."""
        self._files = files = files or Files()
        name = settings.node_name
        self.settings = settings
        self._timing = timing
        self.metrics = PluginMetrics()
        self.metrics.of(BUILD).info({"version": __version__})
        self.dirty = Signal()  # notified when something changed that slices may depend on
        self.client = client or KubeClient(kube, timing=timing.client)
        self.hardware = hardware or Hardware(
            settings.host_root, settings.unhealthy_device_hold_seconds, timing.hardware, settings.host_dev
        )
        self.health = HealthSource(lambda: self.hardware.read_at)
        # A node's Events carry its name as UID, or `kubectl describe node` does not find them.
        about = reference("v1", "Node", "", name, name)
        self.events = EventsAbout(about, EventRecorder(self.client, name))
        self.node = OwnNode(self.client, name, self.dirty.notify)
        self.claims = ClaimReader(self.client, name, timing.prepare)
        self.store = self._own_store()
        self.prepared = PreparedClaims(self.store, self.dirty.notify)
        self._flusher = Flusher(self.prepared, self._not_flushed, timing.prepare)
        identity = settings.pod_uid or f"pid-{os.getpid()}"
        self.publisher_lock = PublisherLock(settings.data_folder, identity, files, self._lock_changed)
        self._lock_keeper = LockKeeper(self.publisher_lock)
        self.device_plugin = DevicePluginWatch(settings, self.dirty.notify, timing.publish)
        self.ultraserver = UltraServerWatch(
            self.client, self.dirty.notify, expected=settings.enable_ultraserver_operator, timing=timing.ultraserver
        )
        tags = TagKeeper(name, self.ultraserver, self.prepared, self.claims, timing.ultraserver)
        self._reserved = tags.reserved
        self.gate = ReservationGate(name, self.ultraserver, tags, timing.ultraserver)
        self.admission = NodeAdmission(settings, self.claims, self.hardware, self.node, self.device_plugin, self.gate)
        self.transactions = Transactions(self.prepared, self.admission, settings.device_wait_seconds, timing.prepare)
        self.rediscovery = self._rediscovery()
        self.recovery = Recovery(self.prepared, self.rediscovery, self._ready_to_decide, self.metrics, timing.prepare)
        self.orphan_release = self._orphan_release()
        self.slices = self._own_slices()
        self.publishing = self._publishing(tags, files)
        self.registration = Registration(str(settings.dra_socket), self._registration_changed, timing.kubelet)
        self.services = self._services()
        self._dra = UnixServer(settings.dra_socket, self.services.add_dra)
        self._reg = UnixServer(settings.registration_socket, self.services.add_registration)
        self.efa = self._efa_driver()
        self._tcp_health = TcpHealthServer(
            settings.healthcheck_address, settings.healthcheck_port, self.services.add_health
        )
        self.telemetry = self._telemetry()
        refresh = self.telemetry.refresh if self.telemetry is not None else None
        self.http = HttpServer(self.metrics.registry, self.why_not_ready, refresh)
        self._stop = asyncio.Event()

    def _own_store(self) -> Store:
        settings, files = self.settings, self._files
        cdi_folder = Path(settings.cdi_root)
        kubelet_folders = [
            Path(settings.kubelet_registrar_directory_path),
            Path(settings.kubelet_plugins_directory_path),
        ]
        host_folders = HostFolders(cdi_folder, kubelet_folders, files)
        lock_s = self._timing.prepare.lock_s
        return Store(settings.data_folder, cdi_folder, boot_id(settings), files, lock_s, host_folders=host_folders)

    def _own_slices(self) -> Reflector:
        own_slices_selector = f"spec.driver={names.DRIVER},spec.nodeName={self.settings.node_name}"
        changed = self.dirty.notify
        return Reflector(
            self.client, RESOURCE_SLICES, field_selector=own_slices_selector, on_change=changed, project=checked
        )

    def _efa_driver(self) -> InterfaceDriver | None:
        if not self.settings.efa_interfaces:
            return None
        return InterfaceDriver(
            SharedParts(
                self.settings,
                self._timing,
                self._files,
                self.client,
                self.node,
                self.hardware,
                self.device_plugin,
                self.publisher_lock,
                self.events,
                self.metrics,
            )
        )

    def _not_flushed(self, text: str) -> None:
        self.events.post("Warning", "NeuronStateNotFlushed", text)

    def _rediscovery(self) -> Rediscovery:
        socket = Path(self.settings.kubelet_pod_resources_socket)
        return Rediscovery(
            self.settings.node_name,
            self.claims,
            self.admission.decide,
            self._adopted,
            KubeletList(socket, lambda: self.node.kubelet_version, self._timing.prepare.list_s),
            lambda name: self.publishing.offers(name),
        )

    def _orphan_release(self) -> OrphanRelease:
        return OrphanRelease(
            self.prepared,
            self.claims,
            self.settings.node_name,
            Path(self.settings.kubelet_pod_resources_socket),
            lambda: self.node.kubelet_version,
            self._timing.orphans,
        )

    def _publishing(self, tags: TagKeeper, files: Files) -> Publishing:
        publisher = SlicePublisher(self.client, self.slices)
        timing = self._timing.publish
        connected = ConnectedSets(self.settings, timing, self.node, self.client, publisher, self.events, files)
        is_enabled = self.settings.present_label
        present = PresentLabel(self.client, self.node, timing.label_retry_s, is_enabled=is_enabled)
        return Publishing(
            self.settings,
            timing,
            self.dirty,
            PublishSources(self.hardware, self.node, self.device_plugin, connected, present),
            Inventory(self.prepared, self.recovery, self.rediscovery),
            tags,
            self.publisher_lock,
            publisher,
            WantedDevices(self.settings, timing, self.hardware, self.prepared, self.claims, publisher, tags, connected),
            PublishReports(
                self.settings,
                self.hardware,
                self.prepared,
                connected,
                publisher,
                self.health,
                self.events,
                self.metrics,
            ),
        )

    def _telemetry(self) -> Telemetry | None:
        if self.settings.device_counters == "none":
            return None
        telemetry = Telemetry(
            Path(self.settings.host_root or "/"),
            self.settings.device_counters,
            self.prepared,
            Path(self.settings.kubelet_pod_resources_socket),
            lambda: self.hardware.node,
            lambda: self.hardware.hanging,
            self._timing.counters,
        )
        telemetry.register(self.metrics.registry)
        return telemetry

    def _services(self) -> Services:
        return Services(
            DraService(self.transactions, self.metrics),
            HealthService(self.health, self.settings.node_name, self._timing.kubelet),
            Inspector(self),
            self.registration,
            Liveness(self.settings.dra_socket, self.settings.registration_socket, self._timing.liveness),
        )

    @property
    def publish_state(self) -> PublishState:
        """The last publish."""
        return self.publishing.state

    def stop(self) -> None:
        """Ask `run()` to end."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until `stop()`. Raises SettingsError, SocketError, OSError if it cannot start or go on."""
        self._loop = asyncio.get_running_loop()
        async with self.client:
            await self.prepared.open()
            try:
                await self._dra.start()
                self.settings.registration_socket.parent.mkdir(parents=True, exist_ok=True)
                await self._reg.start()
                if self.efa is not None:
                    await self.efa.open()
                await self._serve()
            finally:
                await self._end()

    def loops(self) -> list[Loop]:
        """Return the background loops. docs/architecture-node.md has them in a table."""
        timing = self._timing
        sockets = (self.settings.dra_socket, self.settings.registration_socket)
        stale_sockets = StaleSockets(*sockets, names.DRIVER, self._files)
        loops = [
            Loop("read hardware", self.hardware.poll),
            Loop("keep the publisher lock", self._lock_keeper.run),
            Loop("watch slices", self.slices.run),
            Loop("watch node", self.node.run),
            Loop("watch UltraServer", self.ultraserver.run),
            Loop("follow hardware", self.publishing.follow_hardware),
            Loop("publish", self.publishing.run),
            Loop("post events", self.events.run),
            Loop("remove stale sockets", lambda: stale_sockets.run(timing.kubelet.stale_sockets_s)),
            Loop("flush the checkpoint", self._flusher.run),
            Loop("repair CDI files", self._repair),
            Loop("check host directories", self._check_folders, OnError.ENDS),
            Loop("rebuild the checkpoint", self.recovery.run),
            Loop("look for a device plugin", self.device_plugin.run),
            Loop("look for orphans", lambda: orphans.report(self.prepared, self.claims, self.metrics, timing.orphans)),
            Loop("release orphans", self.orphan_release.run),
            Loop("check versions", self._check_versions, OnError.ENDS),
            Loop("load models", self._load_models),
            Loop("supervise sockets", self._supervise, OnError.ENDS),
        ]
        if self.efa is not None:
            loops += self.efa.loops()
        if self.settings.healthcheck_port:
            loops.append(Loop("serve health", lambda: self._tcp_health.run(timing.port_retry_s)))
        if address := self.settings.metrics_bind_address:
            loops.append(Loop("serve metrics", lambda: self.http.run(address, timing.port_retry_s)))
        return loops

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running: dict[str, asyncio.Task[None]] = {}
            for loop in self.loops():
                running[loop.name] = tasks.create_task(kept_running(loop, self._timing.loop_retry_s), name=loop.name)
                if loop.name == "read hardware":
                    # Before the first publish, so that nothing is published beside a running device plugin.
                    await self.device_plugin.look()
            await self._stop.wait()
            log.info("stopping: no new claims from here on")
            self.health.close()
            self.transactions.hurry()
            if self.efa is not None:
                self.efa.hurry()
            await running.pop("supervise sockets")  # or it would restore the sockets that are closed next
            graces = self._timing.kubelet
            await asyncio.gather(self._reg.stop(graces.registration_grace_s), self._dra.stop(graces.call_grace_s))
            others = [self.efa.close()] if self.efa is not None else []
            await asyncio.gather(self.transactions.finish(graces.transaction_grace_s), *others)
            for task in running.values():
                task.cancel()

    async def _end(self) -> None:
        self.health.close()
        await asyncio.gather(self._reg.stop(0), self._dra.stop(0))
        if self.efa is not None:
            await self.efa.close()
        await self._lock_keeper.end()
        await self._tcp_health.stop(0)
        await self.http.stop()
        if self.telemetry is not None:
            await self.telemetry.close()

    def _adopted(self, claim: Claim) -> PreparedClaim:
        return rediscovery.adopted(claim, self.hardware.maybe_held, self.hardware.cores)

    async def _ready_to_decide(self) -> None:
        changed = self.hardware.changed
        try:
            while not self.hardware.known.is_set():
                self.prepared.rebuild_waits = self.hardware.why_unknown
                await changed.after(changed.count)
            self.prepared.rebuild_waits = "the API server has not returned the Node yet"
            await self.node.synced.wait()
        finally:
            self.prepared.rebuild_waits = ""
        await self.gate.known()

    def _registration_changed(self) -> None:
        self.metrics.set(REGISTERED, self.registration.registered)
        if self.registration.registered:
            self._lock_keeper.claim()
            self.dirty.notify()

    def _lock_changed(self) -> None:
        if self._loop is None:  # in a simulation, which takes the lock's steps itself
            self.dirty.notify()
        else:
            self._loop.call_soon_threadsafe(self.dirty.notify)

    def why_not_ready(self) -> str:
        """Return why the plugin is not ready, empty if it is: registered, published, checkpoint whole."""
        reasons = []
        if not self.registration.registered:
            reasons.append(f"not registered with the kubelet {self.registration.error}".strip())
        if self.publishing.state.error:
            reasons.append(self.publishing.state.error)
        elif self.publisher_lock.holding and self.publishing.state.result is None:
            reasons.append("slices are not published yet")
        reasons += self.prepared.problems()
        if self.efa is not None:
            reasons += [f"EFA interfaces: {problem}" for problem in self.efa.prepared.problems()]
        return "; ".join(reasons)

    async def _repair(self) -> None:
        await self.prepared.keep_repaired(self._timing.prepare.repair_s, self.metrics.repaired)

    async def _check_folders(self) -> None:
        """Check the host's directories until cancelled. Raises HostFolderReplaced."""
        while True:
            await asyncio.sleep(self._timing.prepare.repair_s)
            try:
                await asyncio.to_thread(self.store.check_folders)
            except OSError as err:  # as without a free descriptor, which shows nothing of the directories
                log.warning("cannot check the host's directories", extra={"error": str(err)})

    async def _supervise(self) -> None:
        """Restore sockets that were removed, poll the publisher lock, and measure how late the event loop is."""
        lag = Lag(partial(self.metrics.set, LAG), self._timing.liveness.lag_alarm_s)
        period_s = self._timing.kubelet.supervise_s
        while not self._stop.is_set():
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await self._stop.wait()
                return
            lag.take(time.monotonic() - began - period_s)
            self._lock_keeper.poll()
            if not self._dra.intact:
                log.warning("the DRA socket was removed or replaced; serving it again", extra={"path": self._dra.path})
                await self._dra.restart()
            if self._reg.intact and not self.registration.needs_fresh_socket():
                continue
            log.warning("offering the kubelet a fresh registration socket", extra={"path": self._reg.path})
            self.registration.start_over()
            await self._reg.restart()

    async def _load_models(self) -> None:
        """Load the models of configuration once the node is reserved, before the workload has pods.

        Every claim of a reserved workload has configuration. Other nodes may never need the models, which take 8 MiB.
        """
        await self._reserved.wait()
        await asyncio.to_thread(wire.load_models)

    async def _check_versions(self) -> None:
        await self.node.synced.wait()
        problems = version.problems(await version.server(self.client, self._timing.version_retry_s), self.node.info)
        for problem in problems:
            if problem.fatal:
                raise SettingsError(problem.text)
            level = logging.INFO if problem.depends else logging.ERROR
            log.log(level, "what is known about a version", extra={"problem": problem.text})
            if self.node.object is not None:
                self.events.post("Normal" if problem.depends else "Warning", problem.reason, problem.text)
