"""A cluster for the controller: the embedded API server, and two UltraServers with simulated plugins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from controller import settings as controller_settings
from controller.program import Controller
from controller.timing import Timing
from hack.bench.ultraservers import ultraserver
from neuron_dra.arguments import Parser
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.kube.config import KubeConfig
from neuron_dra.planner.rehearsal import tagged_slice
from tests.support.controller_timings import NO_PORTS

ClusterT = TypeVar("ClusterT", bound="Cluster")


@contextlib.asynccontextmanager
async def answering(
    make: Callable[[EmbeddedApi], ClusterT], every_s: float = 0.01, *, controllers: bool = True
) -> AsyncIterator[ClusterT]:
    """A new API server with the cluster that `make` returns, whose simulated plugins tag their slices.

    `controllers`: as for EmbeddedApi.
    """
    async with EmbeddedApi(controllers=controllers) as api:
        api.register_neuron_kinds()
        cluster = make(api)

        async def plugins() -> None:
            while True:
                cluster.tag_nodes()
                await asyncio.sleep(every_s)

        task = asyncio.create_task(plugins())
        try:
            yield cluster
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Cluster:
    """The embedded API server, and two UltraServers with simulated plugins."""

    def __init__(self, api: EmbeddedApi) -> None:
        self.api = api
        self.silent: set[str] = set()
        for name in ("default", "ml", NAMESPACE):
            if api.find("namespaces", name) is None:
                api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "workload.neuron.aws.com"},
                "spec": {},
            }
        )
        for block in ("u0", "u1"):
            self.add(ultraserver(block))

    def add(self, objects: list[Obj]) -> None:
        """Create nodes and their slices; a slice is owned by its Node as the server knows it."""
        for item in objects:
            if item["kind"] == "ResourceSlice":
                node = self.api.get("nodes", item["spec"]["nodeName"])
                item["metadata"]["ownerReferences"][0]["uid"] = node["metadata"]["uid"]
            self.api.create(item)

    def tag_nodes(self) -> None:
        """Tag each slice according to its NeuronUltraServer, and remove terminating pods, as kubelets do."""
        for pod in self.api.objects("pods"):
            if pod["metadata"].get("deletionTimestamp"):
                self.api.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"], grace_s=0)
        claims = self.api.objects("resourceclaims")
        busy = {
            result["pool"]
            for claim in claims
            for result in (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get(
                "results", []
            )
        }
        members = {
            entry["nodeName"]: item
            for item in self.api.objects("neuronultraservers")
            for entry in item["spec"]["topology"]
        }
        for item in self.api.objects("resourceslices"):
            name = item["spec"]["nodeName"]
            if name not in self.silent:
                new = tagged_slice(item, members.get(name), occupied=name in busy)
                if new["spec"] != item["spec"]:
                    self.api.replace(dict(new))

    def submit(self, name: str, *, size: int = 4, count: int = 2, **meta: Any) -> Obj:
        """Create a workload, with `meta` in its metadata."""
        return self.api.create(
            {
                "apiVersion": "neuron.aws.com/v1beta1",
                "kind": "NeuronUltraServerWorkload",
                "metadata": {"name": name, "namespace": "ml", **meta},
                "spec": {"instanceType": "trn3.48xlarge", "topologySize": size, "serverCount": count},
            }
        )

    def pod_with_claim(self, name: str, node: str, workload: Obj, *, plain: bool = False) -> None:
        """Create a running pod on a node of the workload, and its claim, from the template or plain."""
        claims = [{"name": "neuron", "resourceClaimName": name}] if plain else []
        pod = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "ml", "labels": {"app": "job"}},
                "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}], "resourceClaims": claims},
            }
        )
        self.api.patch("pods", name, {"status": {"phase": "Running"}}, "ml")
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": name,
                "namespace": "ml",
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"], "controller": True}
                ],
            },
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": "neuron",
                            "exactly": {
                                "deviceClassName": "neuron.aws.com" if plain else "workload.neuron.aws.com",
                                "allocationMode": "ExactCount",
                                "count": 1,
                            },
                        }
                    ]
                }
            },
        }
        self.api.create(claim)
        parameters = {
            "apiVersion": "neuron.aws.com/v1",
            "kind": "UltraServerConfig",
            "ultraserverMode": 4,
            "workloadId": workload["metadata"]["name"],
            "workloadUid": workload["metadata"]["uid"],
        }
        result = {"request": "neuron", "driver": "neuron.aws.com", "pool": node, "device": "neuron-node-0"}
        allocation = {
            "devices": {
                "results": [result],
                "config": [{"source": "FromClaim", "opaque": {"driver": "neuron.aws.com", "parameters": parameters}}],
            }
        }
        reserved = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
        self.api.patch("resourceclaims", name, {"status": {"allocation": allocation, "reservedFor": reserved}}, "ml")

    def state(self, name: str) -> str:
        found = self.api.find("neuronultraserverworkloads", name, "ml")
        return str((found or {}).get("status", {}).get("state"))

    def reason(self, name: str) -> tuple[str, str]:
        conditions = self.api.get("neuronultraserverworkloads", name, "ml")["status"]["conditions"]
        return next((c["reason"], c["message"]) for c in conditions if c["type"] == "Ready")

    def allocations(self) -> list[Obj]:
        return [
            entry
            for item in self.api.objects("neuronultraservers")
            for entry in (item.get("status") or {}).get("allocations", [])
        ]

    def tags(self) -> set[str]:
        return {
            item["spec"]["nodeName"]
            for item in self.api.objects("resourceslices")
            if "workloadUid" in item["spec"]["devices"][0]["attributes"]
        }


@contextlib.asynccontextmanager
async def running_controller(there: Cluster, *flags: str, timing: Timing) -> AsyncIterator[Controller]:
    """Run a controller beside the cluster, without ports of its own."""
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--kube-api-server", there.api.url, *NO_PORTS, *flags]
    loaded = controller_settings.load(parser.parse_args(words), {}, "here")
    controller = Controller(loaded, KubeConfig(loaded.kube_api_server), timing=timing)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        controller.stop()
        await task
