"""A Neuron device plugin as the kubelet knows it: it registers a resource with some devices, and hands them out.

python -m tests.support.device_plugin FOLDER RESOURCE COUNT

Its messages are encoded here, because nothing else here uses that API (k8s.io/kubelet, deviceplugin/v1beta1).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import grpc.aio

KUBELET: Final = "kubelet.sock"
SOCKET: Final = "neuron-devplugin.sock"
VERSION: Final = "v1beta1"
ONE_EMPTY_RESPONSE: Final = b"\x0a\x00"  # AllocateResponse for one container: nothing to mount, no variable


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message; `content` is shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def registration(resource: str) -> bytes:
    """Return the RegisterRequest of this plugin."""
    return field(1, VERSION.encode()) + field(2, SOCKET.encode()) + field(3, resource.encode())


def healthy(count: int) -> bytes:
    """Return a ListAndWatchResponse with devices `0` to `count - 1`."""
    devices = (field(1, str(number).encode()) + field(2, b"Healthy") for number in range(count))
    return b"".join(field(1, device) for device in devices)


class DevicePlugin:
    """The service of the plugin. Requests and responses are encoded messages."""

    def __init__(self, count: int) -> None:
        self._count = count

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
        }
        return grpc.method_handlers_generic_handler(f"{VERSION}.DevicePlugin", methods)

    async def _options(self, request: bytes, context: object) -> bytes:
        return b""

    async def _list_and_watch(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        yield healthy(self._count)
        await asyncio.Event().wait()  # the devices do not change; the kubelet listens until the plugin ends

    async def _allocate(self, request: bytes, context: object) -> bytes:
        return ONE_EMPTY_RESPONSE


async def serve(folder: Path, resource: str, count: int) -> None:
    """Register with the kubelet, and serve it until SIGTERM; the socket is removed at the end."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((DevicePlugin(count).handler(),))
    server.add_insecure_port(f"unix:{folder / SOCKET}")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder / KUBELET}") as channel:
            register: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/{VERSION}.Registration/Register"
            )
            await register(registration(resource), timeout=60)
        await ended.wait()
    finally:
        await server.stop(None)
        (folder / SOCKET).unlink(missing_ok=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
