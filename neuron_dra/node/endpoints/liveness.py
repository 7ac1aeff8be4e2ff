"""Liveness of the plugin: calls itself through the kubelet's sockets, and measures the event loop's delay."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as grpc_health_pb2
from grpc_health.v1 import health_pb2_grpc as grpc_health_pb2_grpc

from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc
from neuron_dra.node.endpoints.sockets import inode
from neuron_dra.node.prepare.kubelet import PROBE_METADATA
from neuron_dra.node.timing import DEFAULT_TIMING, LivenessTiming

log = logging.getLogger(__name__)

GRPC_HEALTH = grpc_health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Liveness(grpc_health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """gRPC health: makes the kubelet's calls to our own sockets.

    Any client may call it over the network. A result is therefore reused for a moment while the sockets are unchanged,
    and concurrent callers share one check, so that a flood of calls opens no channels.
    """

    def __init__(
        self, dra_socket: Path, registration_socket: Path, timing: LivenessTiming = DEFAULT_TIMING.liveness
    ) -> None:
        self._timing = timing
        self._sockets = dra_socket, registration_socket
        self._answers = False
        self._answer_of: object = None
        self._answered_at = 0.0
        self._looking = asyncio.Lock()

    async def Check(self, request: Any, context: Any) -> grpc_health_pb2.HealthCheckResponse:
        """Return the state of service "liveness", or of the server as a whole."""
        if request.service not in ("", "liveness"):
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service; use liveness")
        is_alive = await self.alive()
        return grpc_health_pb2.HealthCheckResponse(status="SERVING" if is_alive else "NOT_SERVING")

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[grpc_health_pb2.HealthCheckResponse]:
        """Yield the state now, and after each change."""
        sent = None
        while True:
            response = await self.Check(request, context)
            if response.status != sent:
                sent = response.status
                yield response
            await asyncio.sleep(self._timing.watch_s)

    async def alive(self) -> bool:
        """Return whether both sockets answer, or did up to `holds_s` seconds ago."""
        async with self._looking:
            sockets = [inode(path) for path in self._sockets]
            if sockets != self._answer_of or time.monotonic() - self._answered_at >= self._timing.holds_s:
                self._answers = await self._look()
                self._answer_of, self._answered_at = sockets, time.monotonic()
            return self._answers

    async def _look(self) -> bool:
        dra_socket, registration_socket = self._sockets
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        try:
            async with (
                grpc.aio.insecure_channel(f"unix:{registration_socket}", options=options) as registration,
                grpc.aio.insecure_channel(f"unix:{dra_socket}", options=options) as dra,
            ):
                await registration_pb2_grpc.RegistrationStub(registration).GetInfo(
                    registration_pb2.InfoRequest(), timeout=self._timing.call_s, metadata=(PROBE_METADATA,)
                )
                await dra_pb2_grpc.DRAPluginStub(dra).NodePrepareResources(
                    dra_pb2.NodePrepareResourcesRequest(), timeout=self._timing.call_s
                )
        except grpc.aio.AioRpcError as err:
            log.error("liveness probe failed", extra={"code": err.code().name, "detail": err.details()})
            return False
        return True


class Lag:
    """Reports the event loop's worst delay, in seconds, of the last minute."""

    def __init__(self, report: Callable[[float], None], alarm_s: float) -> None:
        self._report = report
        self._alarm_s = alarm_s
        self._worst, self._since = 0.0, time.monotonic()

    def take(self, lag_s: float) -> None:
        """Record one delay; log a long one and report the worst."""
        if lag_s > self._alarm_s:
            log.warning("the event loop was blocked", extra={"seconds": round(lag_s, 2)})
        if time.monotonic() - self._since > 60.0:
            self._worst, self._since = 0.0, time.monotonic()
        self._worst = max(self._worst, lag_s)
        self._report(self._worst)
