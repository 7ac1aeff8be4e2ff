"""Server reflection, for users with grpcurl; imported on the first call, since most nodes get none."""

from __future__ import annotations

from typing import Any, Final

import grpc

SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"


class Reflection(grpc.GenericRpcHandler):
    """Describes these services, and itself."""

    def __init__(self, *services: str) -> None:
        self._services = (*services, SERVICE)
        self._loaded: grpc.GenericRpcHandler | None = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a reflection call; None for other calls."""
        if not handler_call_details.method.startswith(f"/{SERVICE}/"):
            return None
        if self._loaded is None:
            self._loaded = _load(self._services)
        return self._loaded.service(handler_call_details)


def _load(services: tuple[str, ...]) -> grpc.GenericRpcHandler:
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    method = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(services).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"ServerReflectionInfo": method})
