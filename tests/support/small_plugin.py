"""A minimal DRA plugin that returns scripted results and records calls, for tests of the scripted kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import grpc.aio

from neuron_dra.emulation.kubelet_wire import (
    DRA_V1,
    DRA_V1BETA1,
    HEALTH_V1,
    KubeletDevice,
)
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2 as dra_v1
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2_grpc as dra_v1_grpc
from neuron_dra.gen.kubelet.dra.v1beta1 import dra_pb2 as dra_v1beta1
from neuron_dra.gen.kubelet.dra.v1beta1 import dra_pb2_grpc as dra_v1beta1_grpc
from neuron_dra.gen.kubelet.health.v1 import health_pb2
from neuron_dra.gen.kubelet.health.v1 import health_pb2_grpc as health_grpc
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2 as reg
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2_grpc as reg_grpc


class SmallPlugin(reg_grpc.RegistrationServicer, health_grpc.DRAResourceHealthServicer):
    """Serves registration, both services and v1 health on sockets below `folder`; `<folder>/registry` is the plugin
    registry.
    """

    def __init__(self, folder: Path, name: str = "a", *, driver: str = "neuron.aws.com") -> None:
        """`name` distinguishes the sockets of several instances."""
        self.endpoint = str(folder / f"{name}-dra.sock")
        self.socket = str(folder / "registry" / f"{name}-reg.sock")
        self.info = reg.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=self.endpoint, supported_versions=[DRA_V1, DRA_V1BETA1, HEALTH_V1]
        )
        self.verdicts: list[tuple[bool, str]] = []  # results of the registration from the kubelet
        self.calls: list[tuple[str, list[str]]] = []  # such as "v1 prepare", with the UIDs
        self.devices: Callable[[str], list[KubeletDevice]] = _one_device
        self.errors: dict[str, str] = {}  # by UID, for prepare and unprepare
        self.skipped: set[str] = set()  # UIDs missing from the results
        self.surplus: list[str] = []  # UIDs in the results that were not requested
        self.health = [health_pb2.HEALTHY]  # one message each
        self.info_delay_s = 0.0
        self.prepare_delay_s = 0.0
        self._servers: list[grpc.aio.Server] = []

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> Self:
        await self.serve_dra()
        await self.serve_registration()
        return self

    async def serve_dra(self) -> None:
        server = grpc.aio.server()
        dra_v1_grpc.add_DRAPluginServicer_to_server(_Dialect(self, "v1", dra_v1), server)
        dra_v1beta1_grpc.add_DRAPluginServicer_to_server(_Dialect(self, "v1beta1", dra_v1beta1), server)  # type: ignore[arg-type]
        health_grpc.add_DRAResourceHealthServicer_to_server(self, server)
        await self._serve(server, self.endpoint)

    async def serve_registration(self) -> None:
        server = grpc.aio.server()
        reg_grpc.add_RegistrationServicer_to_server(self, server)
        await self._serve(server, self.socket)

    async def _serve(self, server: grpc.aio.Server, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        self._servers.append(server)

    async def stop(self) -> None:
        """Stop serving and remove the sockets."""
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop(None)

    async def GetInfo(self, request: Any, context: Any) -> reg.PluginInfo:
        self.calls.append(("GetInfo", []))
        await asyncio.sleep(self.info_delay_s)
        return self.info

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> reg.RegistrationStatusResponse:
        self.verdicts.append((request.plugin_registered, request.error))
        return reg.RegistrationStatusResponse()

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        device = health_pb2.DeviceIdentifier(pool_name="a", device_name="neuron-device-0")
        for health in self.health:
            entry = health_pb2.DeviceHealth(device=device, health=health, last_updated_time=7, message="ecc")
            yield health_pb2.NodeWatchResourcesResponse(devices=[entry])


class _Dialect(dra_v1_grpc.DRAPluginServicer):
    def __init__(self, plugin: SmallPlugin, name: str, messages: Any) -> None:
        self._plugin, self._name, self._messages = plugin, name, messages

    def _note(self, method: str, request: Any) -> list[str]:
        uids = [claim.uid for claim in request.claims]
        self._plugin.calls.append((f"{self._name} {method}", uids))
        return [uid for uid in uids if uid not in self._plugin.skipped] + self._plugin.surplus

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        uids = self._note("prepare", request)
        await asyncio.sleep(self._plugin.prepare_delay_s)
        response = self._messages.NodePrepareResourcesResponse()
        for uid in uids:
            response.claims[uid].error = self._plugin.errors.get(uid, "")
            for device in self._plugin.devices(uid):
                response.claims[uid].devices.add(
                    request_names=device.request_names,
                    pool_name=device.pool_name,
                    device_name=device.device_name,
                    cdi_device_ids=device.cdi_device_ids,
                )
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        response = self._messages.NodeUnprepareResourcesResponse()
        for uid in self._note("unprepare", request):
            response.claims[uid].error = self._plugin.errors.get(uid, "")
        return response


def _one_device(uid: str) -> list[KubeletDevice]:
    cdi_id = f"k8s.neuron.aws.com/claim={uid}-neuron-device-0"
    return [KubeletDevice(("neurons",), "a", "neuron-device-0", (cdi_id,))]
