"""A second DRA driver, small: the EFA interfaces of a simulated node, as DraNet publishes them on AWS.

    python -m tests.support.net_driver --node-name a --instance-type trn2.48xlarge --kubeconfig FILE

It serves claims for a Neuron device and the nearest network interface: both drivers publish the same
`resource.aws.com/devicegroup…_id`, and `matchAttribute` pairs them. A container gets no interface, only a variable,
`DRA_NET_DEVICES`, with the names of the claim's devices: there is no EFA on the machine that runs this.

With --refuse-while FILE it fails every claim while that file exists, to test the pod's other claims.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from neuron_dra.api import claims as wire
from neuron_dra.arguments import object_name
from neuron_dra.core import catalogue, cdi, groups, names
from neuron_dra.errors import ApiError, ClaimError, NeuronDraError, NotFound, SettingsError
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2
from neuron_dra.gen.kubelet.dra.v1beta1 import dra_pb2 as dra_v1beta1_pb2
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc
from neuron_dra.kube import config
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.requests import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from neuron_dra.node.endpoints.sockets import UnixServer
from neuron_dra.node.files import Files, write_atomically

log = logging.getLogger(__name__)

DRIVER: Final = "dra.net"
CDI_KIND: Final = f"k8s.{DRIVER}/claim"
PCI_DEVICE: Final = "Elastic Fabric Adapter (EFA)"
ENVIRONMENT: Final = "DRA_NET_DEVICES"
PUBLISH_PERIOD_S: Final = 2.0  # kubelets delete slices when they start; after this pause they are written again


def device_name(function: str) -> str:
    """Return the device's name for a PCI function: `0000:c9:00.0` is `pci-0000-c9-00-0`."""
    return "pci-" + function.replace(":", "-").replace(".", "-")


def published(spec: catalogue.InstanceType) -> list[dict[str, Any]]:
    """Return one device for each EFA interface of the type, in the order of the nearest Neuron devices.

    Raises SettingsError for a type whose EFA interfaces AWS does not document.
    """
    if spec.efa is None:
        raise SettingsError(f"--instance-type {spec.name}: AWS publishes no map of its EFA interfaces")
    by_function = {spec.efa[device_id]: ids for device_id, ids in reversed(groups.group_ids(spec).items())}
    return [
        {
            "name": device_name(function),
            "attributes": {
                f"{DRIVER}/pciDevice": {"string": PCI_DEVICE},
                f"{DRIVER}/pciAddress": {"string": function},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci{function[:7]}"},
                **{f"{names.GROUP_DOMAIN}/devicegroup{size}_id": {"string": value} for size, value in ids.items()},
            },
        }
        for function, ids in ((function, by_function[function]) for function in dict.fromkeys(spec.efa))
    ]


class NetDriver:
    """The driver on one node: sockets, one slice, one CDI file for each prepared claim."""

    def __init__(self, arguments: argparse.Namespace, client: KubeClient) -> None:
        spec = catalogue.lookup(arguments.instance_type)
        if spec is None:
            raise SettingsError(f"--instance-type {arguments.instance_type} is not in the catalogue")
        self._node = arguments.node_name
        self._devices = published(spec)
        self._client = client
        self._cdi = Path(arguments.cdi_root)
        self._refuse = Path(arguments.refuse_while) if arguments.refuse_while else None
        self._data = Path(arguments.kubelet_plugins_directory_path) / DRIVER
        registry = Path(arguments.kubelet_registrar_directory_path)
        self._dra = UnixServer(self._data / "dra.sock", self._serve_dra)
        self._registration = UnixServer(registry / f"{DRIVER}-reg.sock", self._serve_registration)
        self.registered = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled; then the sockets are removed and the slice stays."""
        self._data.mkdir(parents=True, exist_ok=True)
        self._cdi.mkdir(parents=True, exist_ok=True)
        await self._dra.start()
        await self._registration.start()
        try:
            while True:
                try:
                    await self.publish()
                except ApiError as err:
                    log.warning("publish failed; will retry", extra={"error": str(err)})
                await asyncio.sleep(PUBLISH_PERIOD_S)
        finally:
            await self._registration.stop(0)
            await self._dra.stop(0)

    async def publish(self) -> None:
        """Write the slice if it differs. Raises ApiError."""
        name = f"{self._node}-{DRIVER}"
        try:
            present = json.loads(await self._client.get(RESOURCE_SLICES, "", name))
        except NotFound:
            node = json.loads(await self._client.get(NODES, "", self._node))
            await self._client.create(RESOURCE_SLICES, "", self._slice(name, node["metadata"]["uid"]))
            log.info("slice published", extra={"devices": len(self._devices)})
            return
        if present["spec"].get("devices") != self._devices:
            present["spec"]["devices"] = self._devices
            await self._client.replace(RESOURCE_SLICES, "", present)

    def _slice(self, name: str, node_uid: str) -> dict[str, Any]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node_uid, "controller": True}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER,
                "nodeName": self._node,
                "pool": {"name": self._node, "generation": 1, "resourceSliceCount": 1},
                "devices": self._devices,
            },
        }

    # The kubelet's calls

    def _serve_dra(self, server: grpc.aio.Server) -> None:
        unary = grpc.unary_unary_rpc_method_handler
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": unary(
                self._prepare,
                request_deserializer=dra_pb2.NodePrepareResourcesRequest.FromString,
                response_serializer=dra_pb2.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": unary(
                self._unprepare,
                request_deserializer=dra_pb2.NodeUnprepareResourcesRequest.FromString,
                response_serializer=dra_pb2.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        services = [module.DESCRIPTOR.services_by_name["DRAPlugin"].full_name for module in (dra_pb2, dra_v1beta1_pb2)]
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods) for name in services])

    def _serve_registration(self, server: grpc.aio.Server) -> None:
        registration_pb2_grpc.add_RegistrationServicer_to_server(_Registration(self), server)

    @property
    def endpoint(self) -> str:
        """The socket of the DRA service."""
        return str(self._dra.path)

    async def _prepare(
        self, request: dra_pb2.NodePrepareResourcesRequest, context: Any
    ) -> dra_pb2.NodePrepareResourcesResponse:
        answer = dra_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            entry = answer.claims[claim.uid]
            try:
                entry.devices.extend(await self._prepare_one(claim))
            except (NeuronDraError, OSError) as err:
                entry.error = str(err)
                log.warning("prepare failed", extra={"claim": f"{claim.namespace}/{claim.name}", "error": str(err)})
        return answer

    async def _prepare_one(self, claim: dra_pb2.Claim) -> list[dra_pb2.Device]:
        """Write the claim's CDI file. Raises ClaimError, ApiError, OSError."""
        self._check()
        stored = wire.decode_claim(await self._client.get(RESOURCE_CLAIMS, claim.namespace, claim.name))
        if stored.metadata.uid != claim.uid or stored.status.allocation is None:
            raise ClaimError(f"claim {claim.namespace}/{claim.name} was replaced, or is not allocated")
        known = {device["name"] for device in self._devices}
        results = [r for r in stored.status.allocation.devices.results or [] if r.driver == DRIVER]
        for result in results:
            if result.pool != self._node or result.device not in known:
                raise ClaimError(f"{result.pool}/{result.device} is not a device of node {self._node}")
        variable = f"{ENVIRONMENT}={','.join(result.device for result in results)}"
        document = {
            "cdiVersion": "0.5.0",  # device names that begin with a digit
            "kind": CDI_KIND,
            "devices": [
                {"name": f"{claim.uid}-{result.device}", "containerEdits": {"env": [variable]}} for result in results
            ],
        }
        await asyncio.to_thread(write_atomically, Files(), self._file(claim.uid), cdi.encode(document), 0o644)
        log.info("claim prepared", extra={"claim": f"{claim.namespace}/{claim.name}", "devices": variable})
        return [
            dra_pb2.Device(
                request_names=[result.request.split("/", 1)[0]],
                pool_name=result.pool,
                device_name=result.device,
                cdi_device_ids=[f"{CDI_KIND}={claim.uid}-{result.device}"],
            )
            for result in results
        ]

    async def _unprepare(
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: Any
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        answer = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            entry = answer.claims[claim.uid]
            try:
                self._check()
                self._file(claim.uid).unlink(missing_ok=True)
            except (NeuronDraError, OSError) as err:
                entry.error = str(err)
                log.warning("unprepare failed", extra={"claim": f"{claim.namespace}/{claim.name}", "error": str(err)})
        return answer

    def _check(self) -> None:
        if self._refuse is not None and self._refuse.exists():
            raise ClaimError(f"refused while {self._refuse} exists")

    def _file(self, uid: str) -> Path:
        return self._cdi / f"{CDI_KIND.replace('/', '-')}_{uid}.json"


class _Registration(registration_pb2_grpc.RegistrationServicer):
    def __init__(self, driver: NetDriver) -> None:
        self._driver = driver

    async def GetInfo(self, request: registration_pb2.InfoRequest, context: Any) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=self._driver.endpoint,
            supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin"],
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus, context: Any
    ) -> registration_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("registered with the kubelet")
            self._driver.registered.set()
        else:
            log.error("the kubelet refused to register the driver", extra={"error": request.error})
        return registration_pb2.RegistrationStatusResponse()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = argparse.ArgumentParser(prog="python -m tests.support.net_driver", description=__doc__)
    result.add_argument("--node-name", required=True, type=object_name, help="name of this Node object")
    result.add_argument("--instance-type", required=True, help="instance type, which decides the EFA interfaces")
    result.add_argument("--kubeconfig", default="", help="kubeconfig file; without one: inside a cluster")
    result.add_argument("--kube-api-server", default="", help="URL of an API server that requires no credentials")
    result.add_argument("--cdi-root", default="/var/run/cdi")
    result.add_argument("--refuse-while", default="", metavar="FILE", help="fail every claim while this file exists")
    result.add_argument("--kubelet-plugins-directory-path", default="/var/lib/kubelet/plugins")
    result.add_argument("--kubelet-registrar-directory-path", default="/var/lib/kubelet/plugins_registry")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver until SIGTERM."""
    from neuron_dra import log as logs

    arguments = parser().parse_args(argv)
    logs.configure("text", 2)
    try:
        kube = config.from_settings(arguments.kube_api_server, arguments.kubeconfig, os.environ)
        asyncio.run(_serve(arguments, kube))
    except NeuronDraError as err:
        log.error("dra.net ends", extra={"error": str(err)})
        return 1
    return 0


async def _serve(arguments: argparse.Namespace, kube: config.KubeConfig) -> None:
    async with KubeClient(kube, user_agent="dra-net-test-driver") as client:
        driver = asyncio.create_task(NetDriver(arguments, client).run(), name="dra.net")
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, driver.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await driver


if __name__ == "__main__":
    sys.exit(main())
