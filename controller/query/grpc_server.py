"""The gRPC server: UltraServers, health and reflection, on a TCP port or a Unix socket. It never writes.

The only module here that imports gRPC. It is imported only if the service is on, because gRPC takes more than 10 MiB.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import secrets
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from controller.metrics import ANSWERS, Metrics
from controller.query import dry_run, queries
from controller.query.dry_run import Grouped
from controller.timing import ServiceTiming
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2 as pb
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2_grpc
from neuron_dra.network_port import PortLimits, Relay
from neuron_dra.planner.decisions.actions import Kept
from neuron_dra.planner.fleet.fleet_index import FleetIndex
from neuron_dra.planner.observed.model import FleetSnapshot, Known
from neuron_dra.planner.plan.planning import Limits

log = logging.getLogger(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["UltraServers"].full_name
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
LIMITS: Final = PortLimits(lifetime_s=600.0, received_bytes=4 * 1024 * 1024)
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 * 1024),  # a workload to plan has a few names
    ("grpc.max_metadata_size", 4 * 1024),
    ("grpc.absolute_max_metadata_size", 8 * 1024),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.http2.bdp_probe", 0),  # or the window, and with it what is buffered, grows
)
TRIES: Final = 3
"""How often an answer is begun again because the index changed; then it is made without pauses."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of replies. `unready` returns why there are none yet, empty if there are.

    `index` returns the controller's index, which others change while a task waits; `known` what else it knows; `kept`
    what its last plan has left.
    """

    index: Callable[[], FleetIndex]
    known: Callable[[], Known]
    kept: Callable[[], Kept]
    unready: Callable[[], str]
    limits: Limits
    metrics: Metrics


class UltraServerService(ultraservers_pb2_grpc.UltraServersServicer):
    """Answers from this replica's index, one question at a time."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._one = asyncio.Lock()

    async def ListUltraServers(self, request: pb.ListUltraServersRequest, context: Any) -> pb.ListUltraServersResponse:
        """Return every UltraServer."""

        async def answer() -> pb.ListUltraServersResponse:
            return await self._unchanged(lambda index: queries.ultraservers(index, request))

        return await self._answer("ListUltraServers", context, answer)

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        """Return the controller's plan."""
        now, limits = datetime.datetime.now(datetime.UTC), self._from.limits

        async def answer() -> pb.PlanResponse:
            index, known = self._from.index(), self._from.known()
            if not index.unstored:
                return await self._unchanged(
                    lambda live: queries.plan(Grouped(live, known=known, kept=self._from.kept()), request, now, limits)
                )
            # On frozen values in a thread: this builds an index of its own, which takes seconds for a large fleet.
            return await asyncio.to_thread(_plan_grouped, index.snapshot(known), request, now, limits)

        return await self._answer("Plan", context, answer)

    async def _unchanged(self, make: Callable[[FleetIndex], Generator[None, None, _Answer]]) -> _Answer:
        """Return an answer from one state of the index, and let the lease be renewed between its steps."""
        for _ in range(TRIES):
            index = self._from.index()
            version, answer_steps = index.version, make(index)
            while index.version == version:
                try:
                    next(answer_steps)
                except StopIteration as end:
                    return cast(_Answer, end.value)
                await asyncio.sleep(0)
        return _at_once(make(self._from.index()))

    async def _answer(self, method: str, context: Any, make: Callable[[], Awaitable[_Answer]]) -> _Answer:
        unready = self._from.unready()
        if unready:
            self._from.metrics.add(ANSWERS, method, "UNAVAILABLE")
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"this replica has not read the cluster yet: {unready}")
        async with self._one:
            try:
                answer = await make()
            except queries.BadRequest as err:
                self._from.metrics.add(ANSWERS, method, "INVALID_ARGUMENT")
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(err))
                raise  # abort has raised already
        self._from.metrics.add(ANSWERS, method, "OK")
        return answer


def _plan_grouped(
    snapshot: FleetSnapshot, request: pb.PlanRequest, now: datetime.datetime, limits: Limits
) -> pb.PlanResponse:
    """Return the plan where UltraServers have no object yet. Raises BadRequest."""
    base = dry_run.grouped(FleetIndex.of(snapshot), now, limits, snapshot)
    return _at_once(queries.plan(base, request, now, limits))


def _at_once(steps: Generator[None, None, _Answer]) -> _Answer:
    """Return an answer without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(_Answer, end.value)


class HealthOfQueries(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING once the caches have listed the cluster."""

    def __init__(self, unready: Callable[[], str], period_s: float) -> None:
        self._unready = unready
        self._period_s = period_s

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status, the same for the server and for UltraServers."""
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service: use {SERVICE}")
        return self._status()

    async def Watch(self, request: Any, context: Any) -> Any:
        """Stream the status whenever it changes."""
        if request.service not in ("", SERVICE):
            yield health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            return
        sent = None
        while True:
            status = self._status()
            if status != sent:
                sent = status
                yield status
            await asyncio.sleep(self._period_s)

    def _status(self) -> Any:
        kinds = health_pb2.HealthCheckResponse
        return kinds(status=kinds.NOT_SERVING if self._unready() else kinds.SERVING)


class QueryServer:
    """The server at `address`: host:port, or unix:/path. `target` is the address to dial, empty until it is bound."""

    def __init__(self, address: str, sources: Sources, timing: ServiceTiming) -> None:
        self._address = address
        self._sources = sources
        self._timing = timing
        self._relay: Relay | None = None  # in front of a TCP port, to limit its connections
        self.target = ""

    async def run(self) -> None:
        """Serve until cancelled. If the address is in use, retry: the controller works without gRPC."""
        waiting = False
        while True:
            server = grpc.aio.server(options=OPTIONS)
            ultraservers_pb2_grpc.add_UltraServersServicer_to_server(UltraServerService(self._sources), server)
            health = HealthOfQueries(self._sources.unready, self._timing.health_s)
            health_pb2_grpc.add_HealthServicer_to_server(health, server)
            reflection.enable_server_reflection([SERVICE, HEALTH, reflection.SERVICE_NAME], server)
            try:
                target = await self._bind(server)
                break
            except (OSError, RuntimeError) as err:
                if not waiting:
                    log.warning("gRPC is not served yet", extra={"address": self._address, "error": str(err)})
                    waiting = True
                await asyncio.sleep(self._timing.retry_s)
        await server.start()
        self.target = target
        log.info("gRPC is served", extra={"address": self.target})
        try:
            await asyncio.Event().wait()
        finally:
            self.target = ""
            if self._relay is not None:
                self._relay.port.stop()
            await server.stop(self._timing.stop_s)

    async def _bind(self, server: grpc.aio.Server) -> str:
        """Bind the address and return it. Raises OSError or RuntimeError."""
        if self._address.startswith("unix:"):
            _probe_path(path := Path(self._address.removeprefix("unix:")))
            server.add_insecure_port(self._address)
            path.chmod(0o600)  # for its owner and root
            return self._address
        inner = f"neuron-ultraservers-{secrets.token_hex(16)}"
        server.add_insecure_port(f"unix-abstract:{inner}")
        host, _, port = self._address.rpartition(":")
        self._relay = relay = Relay(f"\0{inner}", LIMITS)
        await relay.port.listen(host.strip("[]"), int(port))
        return f"{host or '127.0.0.1'}:{relay.port.port}"


def _probe_path(path: Path) -> None:
    """Raise OSError if the socket cannot be created: gRPC itself would only print to stderr."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a directory")
    if path.exists() and not path.is_socket():
        raise FileExistsError(f"{path} exists and is not a socket")
