"""The kubelet's pod-resources API of a scripted node.

    async with PodResources(agent, folder / "kubelet.sock") as api:
        api.lists_claims = False  # as kubelets before 1.34
        api.error = grpc.StatusCode.UNAVAILABLE  # until it is None again
        api.hold()  # answers arrive late: after `release`, with what was true when they were asked for

tests/bed/test_released_claims.py compares it with the real kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

import grpc.aio

from neuron_dra.emulation.kubelet_wire import KubeletDevice
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb

_SERVICE: Final = "v1.PodResourcesLister"

Pod = Mapping[str, Any]
Devices = Mapping[str, tuple[KubeletDevice, ...]]  # by driver


class Runs(Protocol):
    """The state of a scripted node that the API shows."""

    @property
    def pods(self) -> Sequence[Pod]: ...

    def prepared(self, namespace: str, name: str) -> Devices | None: ...


class NoPods:
    """A scripted node on which nothing runs."""

    pods: Sequence[Pod] = ()

    def prepared(self, namespace: str, name: str) -> Devices | None:
        """Return the prepared devices of a claim: here, none."""
        return None


class PodResources:
    """Serves the API on `socket` from `start` to `stop`."""

    def __init__(self, runs: Runs, socket: Path) -> None:
        self.lists_claims = True
        self.error: grpc.StatusCode | None = None  # the error to return instead
        self.body: bytes | None = None  # the message to send instead
        self.asked = 0
        self.of_plugin: dict[str, dict[str, list[str]]] = {}  # ids by pod and resource, from a device plugin
        self._answering = asyncio.Event()
        self._answering.set()
        self._runs = runs
        self._socket = socket
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "List": grpc.unary_unary_rpc_method_handler(self._list)  # without serializers: bytes in and out
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        self.release()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def hold(self) -> None:
        """Send no answers until `release`."""
        self._answering.clear()

    def release(self) -> None:
        """Send the answers that are held, and later ones at once."""
        self._answering.set()

    async def _list(self, request: bytes, context: Any) -> bytes:
        """List the pods that have not ended, each container with its claims."""
        self.asked += 1
        answer = pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._runs.pods])
        body = answer.SerializeToString() if self.body is None else self.body
        error = self.error
        await self._answering.wait()
        if error is not None:
            await context.abort(error, "as the test says")
        return body

    def _pod(self, pod: Pod) -> pb.PodResources:
        # A restartable init container (sidecar) is listed; other init containers are not, even while they run.
        init_containers = pod["spec"].get("initContainers") or []
        sidecars = [container for container in init_containers if container.get("restartPolicy") == "Always"]
        return pb.PodResources(
            name=pod["metadata"]["name"],
            namespace=pod["metadata"]["namespace"],
            containers=[
                pb.ContainerResources(
                    name=container["name"],
                    dynamic_resources=self._claims(pod, container),
                    devices=[
                        pb.ContainerDevices(resource_name=resource, device_ids=ids)
                        for resource, ids in self.of_plugin.get(pod["metadata"]["name"], {}).items()
                    ],
                )
                for container in [*sidecars, *pod["spec"]["containers"]]
            ],
        )

    def _claims(self, pod: Pod, container: Mapping[str, Any]) -> list[pb.DynamicResource]:
        """Return the claims of a container; none if one of them is unknown."""
        claim_requests = (container.get("resources") or {}).get("claims") or []
        requested_names = {claim_request["name"] for claim_request in claim_requests}
        generated_names = {
            claim_status["name"]: claim_status.get("resourceClaimName")
            for claim_status in (pod.get("status") or {}).get("resourceClaimStatuses") or []
        }
        dynamic_resources: list[pb.DynamicResource] = []
        for pod_claim in pod["spec"].get("resourceClaims") or []:
            if pod_claim["name"] not in requested_names or not self.lists_claims:
                continue
            name = pod_claim.get("resourceClaimName") or generated_names.get(pod_claim["name"])
            devices = self._runs.prepared(pod["metadata"]["namespace"], name) if name else None
            if name is None or devices is None:
                return []
            dynamic_resources.append(_claim(pod["metadata"]["namespace"], name, devices))
        of_limits = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
        mapped = {mapping["containerName"] for mapping in of_limits.get("requestMappings") or []}
        if container["name"] in mapped and self.lists_claims:
            devices = self._runs.prepared(pod["metadata"]["namespace"], of_limits["resourceClaimName"])
            if devices is not None:
                dynamic_resources.append(_claim(pod["metadata"]["namespace"], of_limits["resourceClaimName"], devices))
        return dynamic_resources


def _claim(namespace: str, name: str, devices: Devices) -> pb.DynamicResource:
    resources = []
    for driver, handed_out in devices.items():
        so_far: list[pb.CDIDevice] = []  # a kubelet repeats the CDI devices of the claims before
        for device in handed_out:
            so_far += [pb.CDIDevice(name=cdi_id) for cdi_id in device.cdi_device_ids]
            resources.append(
                pb.ClaimResource(
                    cdi_devices=so_far,
                    driver_name=driver,
                    pool_name=device.pool_name,
                    device_name=device.device_name,
                )
            )
    return pb.DynamicResource(claim_name=name, claim_namespace=namespace, claim_resources=resources)
