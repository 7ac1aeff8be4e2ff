"""The gRPC server: UltraServers, health and reflection, on a TCP port or a Unix socket. It never writes.

The only module here that imports gRPC. It is imported only if the service is on, because gRPC takes more than 10 MiB.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from controller.metrics import Metrics
from controller.observe.model import Snapshot
from controller.plan.planning import Limits
from controller.query import queries
from controller.timing import ServiceTiming
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2 as pb
from neuron_dra.gen.neuron.ultraserver.v1 import ultraservers_pb2_grpc

log = logging.getLogger(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["UltraServers"].full_name
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
OPTIONS: Final = (("grpc.so_reuseport", 0),)  # two processes must not share the port

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of replies. `unready` returns why there are none yet, empty if there are."""

    snapshot: Callable[[], Snapshot]
    unready: Callable[[], str]
    limits: Limits
    metrics: Metrics


class UltraServers(ultraservers_pb2_grpc.UltraServersServicer):
    """Answers from this replica's caches, one plan at a time."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._one = asyncio.Lock()

    async def ListUltraServers(self, request: pb.ListUltraServersRequest, context: Any) -> pb.ListUltraServersResponse:
        """Return every UltraServer."""
        return await self._answer("ListUltraServers", context, lambda seen: queries.ultraservers(seen, request))

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        """Return the controller's plan."""
        now, limits = datetime.datetime.now(datetime.UTC), self._from.limits
        return await self._answer("Plan", context, lambda seen: queries.plan(seen, request, now, limits))

    async def _answer(self, method: str, context: Any, make: Callable[[Snapshot], _Answer]) -> _Answer:
        unready = self._from.unready()
        if unready:
            self._from.metrics.answered(method, "UNAVAILABLE")
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"this replica has not read the cluster yet: {unready}")
        async with self._one:
            snapshot = self._from.snapshot()
            try:
                # In a thread, on frozen values: a plan for thousands of nodes must not delay renewing the lease.
                answer = await asyncio.to_thread(make, snapshot)
            except queries.BadRequest as err:
                self._from.metrics.answered(method, "INVALID_ARGUMENT")
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(err))
                raise  # abort has raised already
        self._from.metrics.answered(method, "OK")
        return answer


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING once the caches have listed the cluster."""

    def __init__(self, unready: Callable[[], str], period_s: float) -> None:
        self._unready = unready
        self._period_s = period_s

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status, the same for the server and for UltraServers."""
        if request.service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}: use {SERVICE}")
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


class Server:
    """The server at `address`: host:port, or unix:/path. `target` is the address to dial, empty until it is bound."""

    def __init__(self, address: str, sources: Sources, timing: ServiceTiming) -> None:
        self._address = address
        self._sources = sources
        self._timing = timing
        self.target = ""

    async def run(self) -> None:
        """Serve until cancelled. If the address is in use, retry: the controller works without gRPC."""
        waiting = False
        while True:
            server = grpc.aio.server(options=OPTIONS)
            ultraservers_pb2_grpc.add_UltraServersServicer_to_server(UltraServers(self._sources), server)
            health = Health(self._sources.unready, self._timing.health_s)
            health_pb2_grpc.add_HealthServicer_to_server(health, server)
            reflection.enable_server_reflection([SERVICE, HEALTH, reflection.SERVICE_NAME], server)
            try:
                self.target = self._bind(server)
                break
            except (OSError, RuntimeError) as err:
                if not waiting:
                    log.warning("gRPC is not served yet", extra={"address": self._address, "error": str(err)})
                    waiting = True
                await asyncio.sleep(self._timing.retry_s)
        await server.start()
        log.info("gRPC is served", extra={"address": self.target})
        try:
            await asyncio.Event().wait()
        finally:
            self.target = ""
            await server.stop(self._timing.stop_s)

    def _bind(self, server: grpc.aio.Server) -> str:
        """Bind the address and return it. Raises OSError or RuntimeError."""
        if self._address.startswith("unix:"):
            _probe_path(path := Path(self._address.removeprefix("unix:")))
            server.add_insecure_port(self._address)
            path.chmod(0o600)  # for its owner and root
            return self._address
        host, _, port = self._address.rpartition(":")
        host = _probe_port(host.strip("[]"), int(port))
        return f"{host}:{server.add_insecure_port(f'{host}:{port}')}"


def _probe_path(path: Path) -> None:
    """Raise OSError if the socket cannot be created: gRPC itself would only print to stderr."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a directory")
    if path.exists() and not path.is_socket():
        raise FileExistsError(f"{path} exists and is not a socket")


def _probe_port(host: str, port: int) -> str:
    """Return the host in gRPC's form; an empty one means all addresses. Raises OSError if the port is in use."""
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    family = socket.AF_INET6 if ":" in (host or everywhere) else socket.AF_INET
    socket.create_server((host or everywhere, port), family=family).close()
    return f"[{host or everywhere}]" if family is socket.AF_INET6 else host or everywhere
