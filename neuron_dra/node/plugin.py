"""The plugin as a whole: what is started in which order, which tasks run, and how it all ends.

Start: settings, sysfs, checkpoint, DRA socket, registration socket, publishing. Stop: sockets first, then transactions
are waited for, then the loops end, metrics last. Slices stay: a restart of less than 30 s is invisible.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc as grpc_health_pb2_grpc

from neuron_dra import __version__
from neuron_dra.core import decision, health, names, slices
from neuron_dra.core.claims import AllocatedDevice, Claim, ClaimRef, PreparedClaim
from neuron_dra.errors import CheckpointDamaged, ClaimError, SettingsError
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2, inspector_pb2_grpc
from neuron_dra.http import HttpServer
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.kube.publish import SlicePublisher
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import NODES, RESOURCE_SLICES
from neuron_dra.node import version
from neuron_dra.node.boot import boot_id
from neuron_dra.node.endpoints.inspector import Inspector
from neuron_dra.node.endpoints.liveness import GRPC_HEALTH, Lag, Liveness
from neuron_dra.node.endpoints.reflection import Reflection
from neuron_dra.node.endpoints.sockets import TcpHealthServer, UnixServer
from neuron_dra.node.event_queue import EventQueue
from neuron_dra.node.files import Files
from neuron_dra.node.health import HealthSource
from neuron_dra.node.metrics import Metrics
from neuron_dra.node.prepare import orphans, recovery
from neuron_dra.node.prepare.claim_reader import ClaimReader
from neuron_dra.node.prepare.kubelet import (
    DRA_SERVICES,
    HEALTH_SERVICES,
    DraService,
    HealthService,
    Registration,
    handlers,
)
from neuron_dra.node.prepare.orphan_release import OrphanRelease
from neuron_dra.node.prepare.store import Store
from neuron_dra.node.prepare.transactions import Transactions
from neuron_dra.node.publish.coexistence import DevicePluginWatch
from neuron_dra.node.publish.hardware import Hardware
from neuron_dra.node.publish.loop import Publishing, PublishState
from neuron_dra.node.publish.publisher_lock import PublisherLock
from neuron_dra.node.ultraserver.reservation_gate import Gate, Tags
from neuron_dra.node.ultraserver.watch import UltraServerWatch
from neuron_dra.settings import PluginSettings

log = logging.getLogger(__name__)

HARDWARE_PERIOD_S: Final = 10.0
REPAIR_PERIOD_S: Final = 5.0
SUPERVISE_PERIOD_S: Final = 1.0
FETCH_PATIENCE_S: Final = 34.0  # no GET begins later, so that the last one ends within the kubelet's 45 s
CALL_GRACE_S: Final = 5.0  # for calls of the kubelet that are under way when we stop
TRANSACTION_GRACE_S: Final = 20.0  # together with CALL_GRACE_S below the pod's 30 s


class Plugin:
    """One run of the plugin. `run()` serves until `stop()` is called."""

    def __init__(
        self,
        settings: PluginSettings,
        kube: KubeConfig,
        files: Files | None = None,
        *,
        client: KubeClient | None = None,
        hardware: Hardware | None = None,
    ) -> None:
        """`files`, `client` and `hardware` are for simulations: their disk, their network, their devices."""
        files = files or Files()
        self.settings = settings
        self.metrics = Metrics()
        self.metrics.build(__version__)
        self.hardware = hardware or Hardware(settings.host_root, settings.unhealthy_device_hold_seconds)
        self.hardware.on_change = self._hardware_changed
        self.health = HealthSource(lambda: self.hardware.read_at)
        self.store = Store(settings.data_folder, Path(settings.cdi_root), boot_id(settings), files)
        self.transactions = Transactions(
            self.store, self._fetch_and_wait, self.decide, settings.device_wait_seconds, FETCH_PATIENCE_S
        )
        self.transactions.on_change = self._wake
        self.transactions.on_damage = self._damaged
        self.turn = PublisherLock(settings.data_folder, settings.pod_uid or f"pid-{os.getpid()}", files)
        self.client = client or KubeClient(kube)
        self.claims = ClaimReader(self.client, settings.node_name)
        mine = f"spec.driver={names.DRIVER},spec.nodeName={settings.node_name}"
        self.slices = Reflector(self.client, RESOURCE_SLICES, field_selector=mine, on_change=self._wake)
        self.nodes = Reflector(
            self.client, NODES, field_selector=f"metadata.name={settings.node_name}", on_change=self._wake
        )
        self.ultraserver = UltraServerWatch(self.client, self._wake, expected=settings.enable_ultraserver_operator)
        tags = Tags(settings.node_name, self.ultraserver, self.transactions, self.claims.allocated)
        self.gate = Gate(settings.node_name, self.ultraserver, tags)
        self.registration = Registration(str(settings.dra_socket), self._registration_changed)
        self.news = EventQueue(settings.node_name, EventRecorder(self.client, settings.node_name))
        self.device_plugin = DevicePluginWatch(
            Path(settings.kubelet_device_plugins_directory_path), settings.node_name, self._wake
        )
        self.publishing = Publishing(
            settings,
            self.hardware,
            self.transactions,
            self.turn,
            SlicePublisher(self.client, self.slices),
            self.slices,
            self.nodes,
            self.health,
            self.news,
            self.metrics,
            self.claims.allocated,
            self._take_inventory,
            self.ultraserver,
            tags,
            self.device_plugin,
        )
        self.recovery = recovery.Recovery(
            self.store, self.transactions, self.claims.fetch, self.decide, self.claims.allocated, self._adopted
        )
        self._liveness = Liveness(settings.dra_socket, settings.registration_socket)  # one for all servers
        self.letting_go = OrphanRelease(
            self.transactions,
            self.client,
            settings.node_name,
            Path(settings.kubelet_pod_resources_socket),
            lambda: version.kubelet(self.publishing.node_object),
        )
        self._dra = UnixServer(settings.dra_socket, self._configure_dra)
        self._reg = UnixServer(settings.registration_socket, self._configure_registration)
        self._tcp_health = TcpHealthServer(
            settings.healthcheck_address, settings.healthcheck_port, self._configure_health_port
        )
        self.http = HttpServer(self.metrics.registry, self.why_not_ready)
        self._stop = asyncio.Event()
        self._recovering: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def publish_state(self) -> PublishState:
        """The last publish."""
        return self.publishing.state

    def stop(self) -> None:
        """Ask `run()` to end."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until `stop()`. Raises SettingsError, SocketError, OSError if it cannot start or go on."""
        async with self.client:
            await self.transactions.open()
            try:
                await self._dra.start()
                self.settings.registration_socket.parent.mkdir(parents=True, exist_ok=True)
                await self._reg.start()
                self._take_turn(self.turn.begin)
                await self._serve()
            finally:
                await self._end()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            reading = tasks.create_task(self.hardware.poll(HARDWARE_PERIOD_S), name="read hardware")
            # Known before the first publish, so that nothing is published beside a device plugin for a moment.
            await self.device_plugin.look()
            loops: dict[str, Coroutine[Any, Any, Any]] = {
                "watch slices": self.slices.run(),
                "watch node": self.nodes.run(),
                "watch UltraServer": self.ultraserver.run(),
                "publish": self.publishing.run(),
                "post events": self.news.run(),
                "repair CDI files": self._repair(),
                "look for a device plugin": self.device_plugin.run(),
                "look for orphans": orphans.report(self.transactions, self.client, self.metrics),
                "let claims go": self.letting_go.run(),
                "check versions": self._check_versions(),
            }
            if self.settings.healthcheck_port:
                loops["serve health"] = self._tcp_health.run()
            if self.settings.metrics_bind_address:
                loops["serve metrics"] = self.http.run(self.settings.metrics_bind_address)
            running = [reading, *(tasks.create_task(loop, name=name) for name, loop in loops.items())]
            supervisor = tasks.create_task(self._supervise(), name="supervise sockets")
            if self.transactions.damaged is not None:
                self._damaged()
            await self._stop.wait()
            log.info("stopping: no new claims from here on")
            self.health.close()
            self.transactions.hurry()
            await supervisor  # or it would serve the sockets again that we take away
            await asyncio.gather(self._reg.stop(1.0), self._dra.stop(CALL_GRACE_S))
            await self.transactions.finish(TRANSACTION_GRACE_S)
            for task in [*running, *([self._recovering] if self._recovering else [])]:
                task.cancel()

    async def _end(self) -> None:
        self.health.close()
        await asyncio.gather(self._reg.stop(0), self._dra.stop(0))
        self.turn.release()
        await self._tcp_health.stop(0)
        await self.http.stop()

    # What the transactions ask for.

    async def _fetch_and_wait(self, ref: ClaimRef) -> Claim:
        """Read a claim that is to be prepared, and give the node's reservation the time to fit it."""
        claim = await self.claims.fetch(ref)
        await self.hardware.wait()
        if why := self.hardware.why_unknown:
            raise ClaimError(f"claim {ref}: {why}", retryable=True)
        await self.device_plugin.looked.wait()
        if (why := self._device_plugin()) and not all(device.admin_access for device in claim.devices):
            raise ClaimError(f"claim {ref}: {why}", retryable=True)
        await self.gate.wait(claim)
        return claim

    def _device_plugin(self) -> str:
        """Return why a live device plugin keeps claims from being prepared; empty if none does."""
        if self.settings.device_plugin_coexistence != "refuse":
            return ""
        return self.device_plugin.why(self.publishing.node_object)

    def decide(self, claim: Claim, held: list[PreparedClaim]) -> PreparedClaim:
        """Decide with the hardware as it is now. Called in a thread."""
        return decision.decide(
            claim,
            node_name=self.settings.node_name,
            node=self.hardware.node,
            held=held,
            device_files=self.hardware.device_files,
            reservation=self.gate.reservation,
            sick=self._why_sick,
            prepared_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    def _why_sick(self, result: AllocatedDevice) -> str:
        effect = self.settings.unhealthy_device_effect
        return health.why_refused(self.hardware.health_of(result.device), result.tolerations, effect)

    def _adopted(self, claim: Claim) -> PreparedClaim:
        return recovery.adopted(claim, self.hardware.maybe_held)

    async def _take_inventory(self) -> None:
        """Before the first publish, where a driver before us has left traces: what it has handed out."""
        found = (item["metadata"]["name"] for item in self.slices.items.values())
        others = not all(slices.is_ours(name, self.settings.node_name) for name in found)
        if others and self._recovering is not None:
            await asyncio.wait([self._recovering])  # which takes it too; until then their slices stay
            return
        if self.transactions.damaged is not None:
            return
        try:
            needed = others or await asyncio.to_thread(self.store.needs_inventory)
        except CheckpointDamaged as err:
            self.transactions.found_damaged(err)
            return
        if needed:
            held = {claim.ref.uid: self._adopted(claim) async for claim in self.claims.allocated()}
            for claim in await self.transactions.adopt(held):
                recovery.tell_adopted(claim)

    # Callbacks.

    def _hardware_changed(self) -> None:
        if self.hardware.known.is_set() and not self.hardware.maybe_ultraserver:
            self.ultraserver.follow(None, whole_node=False)
        self.publishing.tell_health()
        self._wake()

    def _wake(self) -> None:
        if hasattr(self, "publishing"):
            self.publishing.wake()

    def _registration_changed(self) -> None:
        self.metrics.registered(self.registration.registered)
        if self.registration.registered:
            self._take_turn(self.turn.claim)
            self._wake()

    def _take_turn(self, step: Callable[[], None]) -> None:
        """Take a step of the turn; a disk that is full must not keep claims from being answered."""
        try:
            step()
        except OSError as err:
            log.warning("whose turn it is to publish cannot be settled", extra={"error": str(err)})

    def _damaged(self) -> None:
        self.metrics.checkpoint_damaged(True)
        if self._tasks is not None and (self._recovering is None or self._recovering.done()):
            self._recovering = self._tasks.create_task(self._recover(), name="rebuild the checkpoint")

    async def _recover(self) -> None:
        await self.hardware.known.wait()
        await self.nodes.synced.wait()
        await self.gate.known()
        await self.recovery.run()
        self.metrics.checkpoint_damaged(False)
        self._wake()

    def why_not_ready(self) -> str:
        """Return why the plugin is not ready, empty if it is: registered, published, checkpoint whole."""
        reasons = []
        if not self.registration.registered:
            reasons.append(f"not registered with the kubelet {self.registration.error}".strip())
        if self.publishing.state.error:
            reasons.append(self.publishing.state.error)
        elif self.turn.holding and self.publishing.state.result is None:
            reasons.append("slices are not published yet")
        if self.transactions.damaged is not None:
            reasons.append("the checkpoint is being rebuilt")
        return "; ".join(reasons)

    # Loops.

    async def _repair(self) -> None:
        while True:
            await asyncio.sleep(REPAIR_PERIOD_S)
            try:
                self.metrics.repaired(len(await self.transactions.repair()))
            except (OSError, TimeoutError) as err:
                log.warning("CDI files could not be checked", extra={"error": str(err)})

    async def _supervise(self) -> None:
        """Look after the sockets and the turn, and see how late the event loop wakes us for it."""
        lag = Lag(self.metrics.lag)
        while not self._stop.is_set():
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUPERVISE_PERIOD_S):
                    await self._stop.wait()
                return
            lag.take(time.monotonic() - began - SUPERVISE_PERIOD_S)
            self._take_turn(self.turn.poll)
            if self.turn.changed.is_set():
                self.turn.changed.clear()
                self._wake()
            if not self._dra.intact:
                log.warning("the DRA socket was removed or replaced; serving it again", extra={"path": self._dra.path})
                await self._dra.restart()
            if self._reg.intact and not self.registration.needs_fresh_socket():
                continue
            log.warning("offering the kubelet a fresh registration socket", extra={"path": self._reg.path})
            self.registration.start_over()
            await self._reg.restart()

    async def _check_versions(self) -> None:
        await self.nodes.synced.wait()
        node = self.publishing.node_object
        raw = await version.server(self.client)
        problems = version.problems(raw, ((node or {}).get("status") or {}).get("nodeInfo") or {})
        for problem in problems:
            if problem.fatal:
                raise SettingsError(problem.text)
            log.error("version trouble", extra={"problem": problem.text})
            if node is not None:
                self.news.tell("Warning", problem.reason, problem.text)

    # What the servers serve.

    def _configure_dra(self, server: grpc.aio.Server) -> None:
        dra = DraService(self.transactions, self.metrics)
        watch = HealthService(self.health, self.settings.node_name)
        server.add_generic_rpc_handlers(handlers(dra, watch))
        inspector_pb2_grpc.add_NodeInspectorServicer_to_server(Inspector(self), server)
        self._configure_health(server)
        inspector = inspector_pb2.DESCRIPTOR.services_by_name["NodeInspector"].full_name
        server.add_generic_rpc_handlers((Reflection(*DRA_SERVICES, *HEALTH_SERVICES, inspector, GRPC_HEALTH),))

    def _configure_registration(self, server: grpc.aio.Server) -> None:
        registration_pb2_grpc.add_RegistrationServicer_to_server(self.registration, server)
        self._configure_health(server)
        service = registration_pb2.DESCRIPTOR.services_by_name["Registration"].full_name
        server.add_generic_rpc_handlers((Reflection(service, GRPC_HEALTH),))

    def _configure_health(self, server: grpc.aio.Server) -> None:
        grpc_health_pb2_grpc.add_HealthServicer_to_server(self._liveness, server)

    def _configure_health_port(self, server: grpc.aio.Server) -> None:
        self._configure_health(server)
        server.add_generic_rpc_handlers((Reflection(GRPC_HEALTH),))
