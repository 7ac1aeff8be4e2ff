"""The running controller: its tasks, and how they start and end."""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from controller.apply.beside import Beside, Look
from controller.apply.fence import Fence
from controller.apply.leader import Alone, Leader, Leadership
from controller.apply.loop import Reconciler
from controller.apply.requests import Applier
from controller.jobs.reservations import JobReservations
from controller.jobs.watches import JobWatches
from controller.metrics import LOST_EVENTS, Metrics
from controller.observe.caches import Caches, wall_clock
from controller.qualify.qualifications import Qualifications
from controller.qualify.watches import QualifyWatches
from controller.queue.queues import Queues
from controller.queue.watches import QueueWatch
from controller.settings import ControllerSettings
from controller.timing import DEFAULT_TIMING, Timing
from neuron_dra.http import HttpServer
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.events import EventRecorder
from neuron_dra.planner.decisions.actions import WaitingWorkloads
from neuron_dra.planner.fleet.fleet_index import FleetIndex

if TYPE_CHECKING:
    from controller.query.grpc_server import QueryServer

log = logging.getLogger(__name__)

NAME = "neuron-ultraserver-controller"
Watch = Callable[[], Coroutine[Any, Any, None]]


class Controller:
    """The controller. `run()` works until `stop()`."""

    def __init__(
        self,
        settings: ControllerSettings,
        kube: KubeConfig,
        *,
        client: KubeClient | None = None,
        clock: Callable[[], datetime.datetime] = wall_clock,
        timing: Timing = DEFAULT_TIMING,
        claims_for_a_node: int | None = None,
    ) -> None:
        """`client` and `clock` are for simulations, which have their own network and time.

        `claims_for_a_node`: as for Caches.
        """
        self._settings = settings
        self._client = client or KubeClient(kube, user_agent=NAME, timing=timing.client)
        self._local_clock = clock
        self._timing = timing
        self._claims_for_a_node = claims_for_a_node
        self._stopping = asyncio.Event()
        self._caches: Caches[FleetIndex] | None = None
        self._reconciler: Reconciler | None = None
        self._beside: list[Beside] = []
        self.metrics = Metrics()
        self._events = EventRecorder(self._client, settings.identity, NAME)
        self._events.on_failure = partial(self.metrics.add, LOST_EVENTS)
        self._elected = self._leader() if settings.leader_elect else None
        self.leadership: Leadership = self._elected or Alone()
        self.servers: list[HttpServer] = []
        self.grpc: QueryServer | None = None

    def _clock(self) -> datetime.datetime:
        """Return the API server's time, by which every replica decides; this machine's before the first response."""
        return self._client.clock.now() or self._local_clock()

    def stop(self) -> None:
        """End `run()`. It releases the lease; reservations stay."""
        self._stopping.set()

    def ready(self) -> str:
        """Return why the controller is not ready, empty if it is. A follower is ready too."""
        missing = self._caches.missing() if self._caches else ["everything"]
        return f"not listed yet: {', '.join(missing)} (are the CRDs installed?)" if missing else ""

    async def run(self) -> None:
        """Watch, plan and write until stopped."""
        async with self._client as client:
            self._caches = caches = self._watched(client)
            events = self._events
            applier = Applier(client, caches, events, self._timing, Fence(self.leadership))
            watches: dict[str, Watch] = {}
            looks: list[Look] = []
            if self._settings.jobs_may_reserve:
                kinds = JobWatches(client, self._wake, self._timing.jobs)
                watches |= kinds.tasks()
                caches.others |= kinds.reflectors
                looks.append(self._jobs(caches, applier, kinds, events))
            if self._settings.qualifications:
                qualify_watches = QualifyWatches(client, self._wake, self._timing.qualify)
                watches |= qualify_watches.tasks()
                caches.others |= qualify_watches.reflectors
                looks.append(self._tests(caches, applier, qualify_watches, events))
            queue = QueueWatch(client, self._wake, self._timing.queues) if self._settings.queues else None
            queues = None
            if queue is not None:
                caches.others |= queue.reflectors
                queues = Queues(client, caches, applier, queue, events, self._timing.queues, self._wake)
            self._reconciler = reconciler = Reconciler(
                caches,
                applier,
                self.leadership,
                self.metrics,
                self._settings.limits,
                self._timing,
                self._clock,
                looks,
                queues,
            )
            for look in looks:
                self._beside.append(self._beside_plans(look, caches, reconciler))
            async with asyncio.TaskGroup() as group:
                watches = caches.watches() | watches
                tasks = [group.create_task(run(), name=f"watch {name}") for name, run in watches.items()]
                if queue is not None:
                    tasks.append(group.create_task(queue.run(), name="watch Kueue's workloads"))
                loops = {"reconcile": reconciler.run, "events": events.run, "send": applier.sender.run}
                tasks += [group.create_task(run(), name=name) for name, run in loops.items()]
                tasks += [group.create_task(beside.run(), name="beside the plans") for beside in self._beside]
                if self._elected is not None:
                    tasks.append(group.create_task(self._elected.run(), name="leader"))
                if self._settings.grpc_address:
                    self.grpc = self._service(caches, reconciler)
                    tasks.append(group.create_task(self.grpc.run(), name="grpc"))
                for address in self._settings.http_addresses:
                    self.servers.append(HttpServer(self.metrics.registry, self.ready))
                    tasks.append(group.create_task(self.servers[-1].run(address), name=f"http {address}"))
                await self._stopping.wait()
                for task in tasks:
                    task.cancel()
                for server in self.servers:
                    await server.stop()

    def _watched(self, client: KubeClient) -> Caches[FleetIndex]:
        return Caches(
            client,
            self._wake,
            FleetIndex(),
            self._timing.caches,
            self._claims_for_a_node,
            fault_conditions=self._settings.node_conditions,
            block_annotation=self._settings.block_annotation,
            clock=self._clock,
        )

    def _beside_plans(self, look: Look, caches: Caches[FleetIndex], reconciler: Reconciler) -> Beside:
        may = reconciler.is_current
        beside = Beside(look, caches.index, may, self._timing.passes, self._clock)
        if isinstance(look, Qualifications):
            reconciler.on_waiting = beside.changed.set
        return beside

    def _jobs(
        self, caches: Caches[FleetIndex], applier: Applier, watches: JobWatches, events: EventRecorder
    ) -> JobReservations:
        default = self._settings.limits.max_reserved_nodes
        timing, queues = self._timing.jobs, self._settings.queues
        program = self._client, caches, applier, watches, events, timing, default
        return JobReservations(*program, queues=queues, on_change=self._wake)

    def _tests(
        self, caches: Caches[FleetIndex], applier: Applier, watches: QualifyWatches, events: EventRecorder
    ) -> Qualifications:
        limits, timing = self._settings.limits, self._timing.qualify
        waiting, wake = self._waiting, self._wake
        return Qualifications(
            self._client, caches, applier, watches, events, self.metrics, limits, timing, waiting, wake
        )

    def _waiting(self) -> WaitingWorkloads:
        return WaitingWorkloads() if self._reconciler is None else self._reconciler.waiting

    def _leader(self) -> Leader:
        # Unique: a restarted pod of the same name is another replica until its old lease expires.
        identity = f"{self._settings.identity}_{uuid.uuid4()}"
        namespace = self._settings.leader_election_namespace
        timing, works, events = self._timing.lease, self._works, self._events
        return Leader(self._client, namespace, NAME, identity, self._wake, timing, works=works, events=events)

    def _works(self) -> bool:
        """Return False if the planner hangs."""
        return self._reconciler is None or self._reconciler.works()

    def _service(self, caches: Caches[FleetIndex], reconciler: Reconciler) -> QueryServer:
        from controller.query.grpc_server import QueryServer, Sources  # loads gRPC, only if it is served

        sources = Sources(
            index=caches.index,
            known=lambda: reconciler.known(self._clock()),
            kept=lambda: reconciler.kept,
            unready=self.ready,
            limits=self._settings.limits,
            metrics=self.metrics,
        )
        return QueryServer(self._settings.grpc_address, sources, self._timing.service)

    def _wake(self) -> None:
        if self._reconciler is not None:
            self._reconciler.changed.set()
        for beside in self._beside:
            beside.changed.set()
