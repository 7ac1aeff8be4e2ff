"""Which gRPC services each of the plugin's servers has."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2_grpc

from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2, inspector_pb2_grpc
from neuron_dra.node.endpoints.inspector import Inspector
from neuron_dra.node.endpoints.liveness import GRPC_HEALTH, Liveness
from neuron_dra.node.endpoints.reflection import Reflection
from neuron_dra.node.prepare.kubelet import (
    DRA_SERVICES,
    HEALTH_SERVICES,
    DraService,
    HealthService,
    Registration,
    handlers,
)


class Services:
    """Adds services to a new server: on the DRA socket, the registration socket and the health port.

    Every server has gRPC health and reflection.
    """

    def __init__(
        self,
        dra: DraService,
        device_health: HealthService,
        inspector: Inspector,
        registration: Registration,
        liveness: Liveness,
    ) -> None:
        self._dra = dra
        self._device_health = device_health
        self._inspector = inspector
        self._registration = registration
        self._liveness = liveness

    def add_dra(self, server: grpc.aio.Server) -> None:
        """Add DRA and device health, in both versions, and NodeInspector."""
        server.add_generic_rpc_handlers(handlers(self._dra, self._device_health))
        inspector_pb2_grpc.add_NodeInspectorServicer_to_server(self._inspector, server)
        inspector = inspector_pb2.DESCRIPTOR.services_by_name["NodeInspector"].full_name
        self._add_common(server, *DRA_SERVICES, *HEALTH_SERVICES, inspector)

    def add_registration(self, server: grpc.aio.Server) -> None:
        """Add the kubelet's plugin registration."""
        registration_pb2_grpc.add_RegistrationServicer_to_server(self._registration, server)
        self._add_common(server, registration_pb2.DESCRIPTOR.services_by_name["Registration"].full_name)

    def add_health(self, server: grpc.aio.Server) -> None:
        """Add nothing but gRPC health and reflection."""
        self._add_common(server)

    def _add_common(self, server: grpc.aio.Server, *names: str) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._liveness, server)
        server.add_generic_rpc_handlers((Reflection(*names, GRPC_HEALTH),))
