"""The gRPC services that the kubelet calls: DRA and device health in two API versions each, and registration.

The two versions of a service have the same wire format, so one handler serves both. Decisions are made elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

import grpc

from neuron_dra import log as logs
from neuron_dra.core import names, user_text
from neuron_dra.core.claims import ClaimRef, PreparedClaim
from neuron_dra.core.health import DeviceHealth, Health
from neuron_dra.errors import ApiError, CheckpointDamaged, ClaimError, DeviceInUse, NeuronDraError, NotFound
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2
from neuron_dra.gen.kubelet.dra.v1beta1 import dra_pb2 as dra_v1beta1_pb2
from neuron_dra.gen.kubelet.health.v1 import health_pb2
from neuron_dra.gen.kubelet.health.v1alpha1 import health_pb2 as health_v1alpha1_pb2
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc
from neuron_dra.node.health import HealthSource
from neuron_dra.node.metrics import REFUSED, PluginMetrics
from neuron_dra.node.timing import DEFAULT_TIMING, KubeletTiming

log = logging.getLogger(__name__)

REPLY_CHARACTERS: Final = 1024  # of an error, which the kubelet copies into the pod's Events

DRA_SERVICES: Final = tuple(
    module.DESCRIPTOR.services_by_name["DRAPlugin"].full_name for module in (dra_pb2, dra_v1beta1_pb2)
)
HEALTH_SERVICES: Final = tuple(
    module.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name for module in (health_pb2, health_v1alpha1_pb2)
)
SUPPORTED_VERSIONS: Final = (
    "v1.DRAPlugin",  # first: the kubelet uses the first version that it supports
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
PROBE_METADATA: Final = ("neuron-dra-probe", "1")  # marks our own liveness probe, as opposed to the kubelet


class Claims(Protocol):
    """What the DRA service needs: prepare and unprepare one claim."""

    async def prepare(self, ref: ClaimRef) -> PreparedClaim: ...

    async def unprepare(self, ref: ClaimRef) -> None: ...


class DraService:
    """NodePrepareResources and NodeUnprepareResources: one result per claim, independent of the others."""

    def __init__(self, claims: Claims, metrics: PluginMetrics) -> None:
        self._claims = claims
        self._metrics = metrics

    async def prepare(
        self, request: dra_pb2.NodePrepareResourcesRequest, context: Any
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """Return the devices or an error message for each claim of the request."""
        response = dra_pb2.NodePrepareResourcesResponse()
        for claim, result in await self._for_claims("prepare", request.claims, self._claims.prepare):
            claim_response = response.claims[claim.uid]
            if isinstance(result, PreparedClaim):
                _add_devices(claim_response, result)
            else:
                claim_response.error = str(result)
        return response

    async def unprepare(
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: Any
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Return an empty result or an error message for each claim of the request."""
        response = dra_pb2.NodeUnprepareResourcesResponse()
        for claim, result in await self._for_claims("unprepare", request.claims, self._claims.unprepare):
            response.claims[claim.uid].error = "" if result is None else str(result)
        return response

    async def _for_claims(
        self, verb: str, claims: Iterable[dra_pb2.Claim], work: Callable[[ClaimRef], Awaitable[PreparedClaim | None]]
    ) -> list[tuple[dra_pb2.Claim, PreparedClaim | str | None]]:
        distinct_claims = list({claim.uid: claim for claim in claims}.values())
        if len(distinct_claims) == 1:  # the usual case needs no extra task
            return [(distinct_claims[0], await self._for_claim(verb, distinct_claims[0], work))]
        results = await asyncio.gather(*(self._for_claim(verb, claim, work) for claim in distinct_claims))
        return list(zip(distinct_claims, results, strict=True))

    async def _for_claim(
        self, verb: str, claim: dra_pb2.Claim, work: Callable[[ClaimRef], Awaitable[PreparedClaim | None]]
    ) -> PreparedClaim | str | None:
        logs.begin_operation()
        ref = ClaimRef(claim.namespace, claim.name, claim.uid)
        facts = {"claim": str(ref), "uid": ref.uid}
        started_s = time.perf_counter()
        try:
            result = await work(ref)
        except (NeuronDraError, OSError, TimeoutError) as err:
            text = str(err) or type(err).__name__
            if isinstance(err, OSError):
                text = f"claim {ref}: the node's state cannot be written: {text}"
            text = user_text.printable(text, REPLY_CHARACTERS)
            log.warning(f"{verb} failed", extra={**facts, "error": text})
            self._failed(verb, _reason(err), time.perf_counter() - started_s)
            return text
        except Exception:
            # The traceback goes only to the log: the kubelet copies the reply into the pod's Events.
            log.exception(f"{verb} failed", extra=facts)
            self._failed(verb, "Internal", time.perf_counter() - started_s)
            return f"claim {ref}: internal error in {names.DRIVER}; its log on this node has the details"
        # After the reply: the kubelet does not wait for logs and metrics.
        asyncio.get_running_loop().call_soon(self._done, verb, facts, result, time.perf_counter() - started_s)
        return result

    def _failed(self, verb: str, reason: str, took_s: float) -> None:
        self._metrics.claim_operation(verb, "error", took_s)
        if verb == "prepare":
            self._metrics.add(REFUSED, reason)

    def _done(self, verb: str, facts: dict[str, str], result: PreparedClaim | None, took_s: float) -> None:
        self._metrics.claim_operation(verb, "ok", took_s)
        devices = {"devices": ",".join(device.device for device in result.devices)} if result is not None else {}
        log.info(f"claim {verb}d", extra={**facts, **devices, "took_ms": round(took_s * 1000, 1)})


def _reason(err: Exception) -> str:
    """Return why a claim was not prepared, as a label of the metric."""
    kinds: dict[str, type[Exception] | tuple[type[Exception], ...]] = {
        "DeviceInUse": DeviceInUse,
        "Rejected": (ClaimError, NotFound),  # a claim that is gone
        "ApiServer": ApiError,
        "Timeout": TimeoutError,
        "Disk": (OSError, CheckpointDamaged),
    }
    return next((name for name, kind in kinds.items() if isinstance(err, kind)), "Internal")


def _add_devices(claim_response: dra_pb2.NodePrepareResourceResponse, claim: PreparedClaim) -> None:
    for device in claim.devices:
        claim_response.devices.add(
            request_names=(device.request,),
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_ids,
            share_id=device.share_id,
        )


class HealthService:
    """NodeWatchResources: sends the complete list immediately, on every change, and before the last list expires."""

    def __init__(self, source: HealthSource, pool: str, timing: KubeletTiming = DEFAULT_TIMING.kubelet) -> None:
        self._timing = timing
        self._source = source
        self._pool = pool

    async def watch(
        self, request: health_pb2.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        """Yield lists until the kubelet disconnects or the plugin stops. A slow reader gets only the latest list."""
        async for devices in self._source.follow(self._timing.health_s):
            yield self._message(devices)

    def _message(self, devices: Iterable[DeviceHealth]) -> health_pb2.NodeWatchResourcesResponse:
        # HEALTHY is as old as the last reading of the hardware; UNHEALTHY and UNKNOWN are decided now.
        now, read_at = int(time.time()), int(self._source.read_at())
        return health_pb2.NodeWatchResourcesResponse(
            devices=[
                health_pb2.DeviceHealth(
                    device=health_pb2.DeviceIdentifier(pool_name=self._pool, device_name=device.name),
                    health=health_pb2.HealthStatus.Value(device.status.value),
                    last_updated_time=read_at if device.status is Health.HEALTHY else now,
                    health_check_timeout_seconds=self._timing.health_timeout_s,
                    message=device.message[:1024],
                )
                for device in devices
            ]
        )


def handlers(dra: DraService, health: HealthService) -> list[grpc.GenericRpcHandler]:
    """Return the gRPC handlers of the DRA socket."""
    unary = grpc.unary_unary_rpc_method_handler
    dra_methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodePrepareResources": unary(
            dra.prepare,
            request_deserializer=dra_pb2.NodePrepareResourcesRequest.FromString,
            response_serializer=dra_pb2.NodePrepareResourcesResponse.SerializeToString,
        ),
        "NodeUnprepareResources": unary(
            dra.unprepare,
            request_deserializer=dra_pb2.NodeUnprepareResourcesRequest.FromString,
            response_serializer=dra_pb2.NodeUnprepareResourcesResponse.SerializeToString,
        ),
    }
    health_methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
            health.watch,
            request_deserializer=health_pb2.NodeWatchResourcesRequest.FromString,
            response_serializer=health_pb2.NodeWatchResourcesResponse.SerializeToString,
        )
    }
    return [
        *(grpc.method_handlers_generic_handler(service, dra_methods) for service in DRA_SERVICES),
        *(grpc.method_handlers_generic_handler(service, health_methods) for service in HEALTH_SERVICES),
    ]


class Registration(registration_pb2_grpc.RegistrationServicer):
    """Registers the plugin with the kubelet, and keeps the kubelet's verdict."""

    def __init__(
        self,
        endpoint: str,
        on_change: Callable[[], None],
        timing: KubeletTiming = DEFAULT_TIMING.kubelet,
        driver: str = names.DRIVER,
    ) -> None:
        self._driver = driver
        self._timing = timing
        self._endpoint = endpoint
        self._on_change = on_change
        self.registered = False
        self.error = ""
        self.asked_at: float | None = None  # monotonic time of a GetInfo that still awaits its verdict
        self.refused_at: float | None = None  # monotonic time of the last verdict, if it was a refusal

    async def GetInfo(self, request: registration_pb2.InfoRequest, context: Any) -> registration_pb2.PluginInfo:
        """Return the driver's name, endpoint and API versions; the kubelet waits one second."""
        if not self.registered and PROBE_METADATA not in (context.invocation_metadata() or ()):
            self.asked_at = self.asked_at or time.monotonic()
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=self._endpoint,
            supported_versions=SUPPORTED_VERSIONS,
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus, context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        """Record the kubelet's verdict on the registration."""
        self.asked_at = None
        self.refused_at = None if request.plugin_registered else time.monotonic()
        self.registered, self.error = request.plugin_registered, request.error
        if self.registered:
            log.info("registered with the kubelet", extra={"endpoint": self._endpoint})
        else:
            log.error("the kubelet refused to register the plugin", extra={"error": request.error})
        self._on_change()
        return registration_pb2.RegistrationStatusResponse()

    def needs_fresh_socket(self) -> bool:
        """Return True without an accepted registration: older kubelets retry only on a new socket."""
        now = time.monotonic()
        return (self.refused_at is not None and now - self.refused_at > self._timing.rejected_s) or (
            self.asked_at is not None and now - self.asked_at > self._timing.verdict_s
        )

    def start_over(self) -> None:
        """Clear the verdict, before the socket is recreated."""
        self.registered, self.asked_at, self.refused_at = False, None, None
        self._on_change()
