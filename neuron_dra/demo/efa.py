"""A second driver that publishes EFA interfaces beside the Neuron devices, as DRANET does on EFA nodes.

It has only what the aligned example needs: a slice with the same device groups, and a kubelet plugin whose prepare adds
nothing to the container.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from neuron_dra.core import catalogue, groups
from neuron_dra.core.wire import Obj
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc

DRIVER: Final = "dra.net"
CLASS: Final = "efa.networking.k8s.aws"
PCI_DEVICE: Final = "Elastic Fabric Adapter (EFA)"


def device_class() -> Obj:
    """Return the DeviceClass of AWS's chart for DRANET."""
    domain = f"device.attributes['{DRIVER}']"
    expression = f"device.driver == '{DRIVER}' && has({domain}.pciDevice) && {domain}.pciDevice == '{PCI_DEVICE}'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def resource_slice(node: str, instance_type: str) -> Obj:
    """Return the slice of a node: one device per EFA interface, in the groups of its Neuron devices."""
    spec = catalogue.lookup(instance_type)
    # By interface, because two devices of a trn1 share one.
    if spec:
        by_interface = {ids[1]: ids for _, ids in sorted(groups.group_ids(spec).items())}
    else:
        by_interface = {}
    devices = []
    for address, ids in by_interface.items():
        devices.append(
            {
                "name": f"pci-{address.replace(':', '-').replace('.', '-')}",
                "attributes": {
                    "pciDevice": {"string": PCI_DEVICE},
                    **{f"resource.aws.com/devicegroup{size}_id": {"string": text} for size, text in ids.items()},
                },
            }
        )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{DRIVER}-00"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


class EfaDriver(registration_pb2_grpc.RegistrationServicer, dra_pb2_grpc.DRAPluginServicer):
    """The driver's kubelet plugin, in this process; registration and DRA use one socket."""

    def __init__(self, registry: Path) -> None:
        self._socket = registry / f"{DRIVER}.sock"
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        registration_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def GetInfo(self, request: Any, context: Any) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=["v1.DRAPlugin"]
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration_pb2.RegistrationStatusResponse:
        return registration_pb2.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> dra_pb2.NodePrepareResourcesResponse:
        answers = {}
        for claim in request.claims:
            answers[claim.uid] = dra_pb2.NodePrepareResourceResponse()
        return dra_pb2.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(self, request: Any, context: Any) -> dra_pb2.NodeUnprepareResourcesResponse:
        answers = {}
        for claim in request.claims:
            answers[claim.uid] = dra_pb2.NodeUnprepareResourceResponse()
        return dra_pb2.NodeUnprepareResourcesResponse(claims=answers)
