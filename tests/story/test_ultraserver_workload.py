"""Controller and plugins together: four nodes of an UltraServer, from a workload to its containers and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller import settings as controller_settings
from controller.program import Controller
from neuron_dra.api.objects import allocated_claim, node_object
from neuron_dra.arguments import Parser
from neuron_dra.core import names
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.errors import ClaimError
from neuron_dra.kube.config import KubeConfig
from neuron_dra.node.plugin import Plugin
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK_RESERVATIONS
from tests.support.waiting import eventually

TYPE, BLOCK, HARDWARE_ID = "trn2u.48xlarge", "cr-1", "00000000deadbeef"
NODES = ("n0", "n1", "n2", "n3")


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with EmbeddedApi(controllers=False) as server:
        server.register_neuron_kinds()
        for name in (NAMESPACE, "ml"):
            server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in NODES:
            node = node_object(name, labels={names.CAPACITY_BLOCK_LABEL: BLOCK, names.INSTANCE_TYPE_LABEL: TYPE})
            node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            server.create(node)
        yield server


@contextlib.asynccontextmanager
async def cluster(api: EmbeddedApi, folder: Path) -> AsyncIterator[dict[str, Plugin]]:
    """Run the controller, and the plugin of each node."""
    parser = Parser()
    controller_settings.add_arguments(parser)
    words = ["--kube-api-server", api.url, "--health-probe-bind-address=0", "--metrics-bind-address=0"]
    loaded = controller_settings.load(parser.parse_args(words), {}, "here")
    async with contextlib.AsyncExitStack() as stack:
        plugins = {}
        for number, name in enumerate(NODES):
            root = folder / name
            root.mkdir()
            hardware: dict[str, Any] = {"instance_type": TYPE, "node_id": number, "server_id": HARDWARE_ID}
            host = PluginHost(root, api.url, node_name=name, timing=QUICK_RESERVATIONS, **hardware)
            stack.push_async_callback(host.close)
            plugins[name] = await stack.enter_async_context(host.running())
        controller = Controller(loaded, KubeConfig(loaded.kube_api_server))
        stack.push_async_callback(_ended, controller, _started(controller))
        await eventually(lambda: is_ready(api), what="the UltraServer is discovered with all nodes")
        yield plugins


def is_ready(api: EmbeddedApi) -> bool:
    """Return True if all nodes are discovered; an earlier workload would use those present."""
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" and len(item["spec"]["topology"]) == len(NODES)
        for item in api.objects("neuronultraservers")
        for condition in item.get("status", {}).get("conditions", [])
    )


def _started(controller: Controller) -> Any:
    return asyncio.create_task(controller.run())


async def _ended(controller: Controller, task: Any) -> None:
    controller.stop()
    await task


def submit(api: EmbeddedApi, name: str, size: int, count: int) -> dict[str, Any]:
    return api.create(
        {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServerWorkload",
            "metadata": {"name": name, "namespace": "ml"},
            "spec": {"instanceType": TYPE, "topologySize": size, "serverCount": count},
        }
    )


def state(api: EmbeddedApi, name: str) -> str:
    found = api.find("neuronultraserverworkloads", name, "ml")
    return str((found or {}).get("status", {}).get("state"))


def tags(api: EmbeddedApi) -> dict[str, str]:
    """Return the workload in each node's tag."""
    return {
        item["spec"]["nodeName"]: device["attributes"]["workloadId"]["string"]
        for item in api.objects("resourceslices")
        for device in item["spec"].get("devices", [])
        if "workloadId" in device["attributes"]
    }


def claim_of(api: EmbeddedApi, template: str, node: str) -> ClaimRef:
    """Return a claim from this template as kube-scheduler allocates it on `node`."""
    found = api.get("resourceclaimtemplates", template, "ml")
    config = [{**entry, "source": "FromClaim"} for entry in found["spec"]["spec"]["devices"]["config"]]
    made = api.create(allocated_claim(f"{template}-{node}", node, ["neuron-node-0"], namespace="ml", config=config))
    return ClaimRef("ml", made["metadata"]["name"], made["metadata"]["uid"])


async def test_containers_start_with_their_nodes_rank(api: EmbeddedApi, short_path: Path) -> None:
    async with cluster(api, short_path) as plugins:
        submit(api, "job", size=2, count=2)
        await eventually(lambda: state(api, "job") == "Allocated", what="the workload is Allocated")
        assert tags(api) == dict.fromkeys(NODES, "job")
        ranks = {}
        for name, plugin in plugins.items():
            prepared = await plugin.transactions.prepare(claim_of(api, "job", name))
            variables = dict(text.split("=", 1) for device in prepared.devices for text in device.env)
            ranks[name] = variables["NEURON_GLOBAL_TOPOID"]
            assert variables["NEURON_RT_ULTRASERVER_MODE"] == "3"
            assert (variables["NEURON_DRA_WORLD_SIZE"], variables["NEURON_DRA_RANK0_NODE"]) == ("4", "n0")
            assert variables["NEURON_DRA_RANK0_ADDR"] == variables["NEURON_GLOBAL_TOPOID0_HOST"] == "job-rank0.ml.svc"
            assert not {"MASTER_ADDR", "MASTER_PORT", "NEURON_RT_ROOT_COMM_ID"} & variables.keys()
        assert ranks == {"n0": "0", "n1": "1", "n2": "2", "n3": "3"}


async def test_only_the_nodes_of_a_pair_are_reserved(api: EmbeddedApi, short_path: Path) -> None:
    async with cluster(api, short_path) as plugins:
        submit(api, "pair", size=2, count=1)
        await eventually(lambda: state(api, "pair") == "Allocated", what="the workload is Allocated")
        assert tags(api) == {"n0": "pair", "n1": "pair"}
        plain = {}
        for name in ("n0", "n2"):
            made = api.create(allocated_claim(f"plain-{name}", name, ["neuron-node-0"], namespace="ml"))
            plain[name] = ClaimRef("ml", f"plain-{name}", made["metadata"]["uid"])
        with pytest.raises(ClaimError, match="pair"):
            await plugins["n0"].transactions.prepare(plain["n0"])
        assert (await plugins["n2"].transactions.prepare(plain["n2"])).devices


async def test_deleted_workload_leaves_nothing(api: EmbeddedApi, short_path: Path) -> None:
    async with cluster(api, short_path):
        submit(api, "job", size=4, count=1)
        await eventually(lambda: state(api, "job") == "Allocated", what="the workload is Allocated")
        api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: state(api, "job") == "None", what="the workload is gone")
        await eventually(lambda: tags(api) == {}, what="the tags are gone")
        (found,) = api.objects("neuronultraservers")
        assert found["status"]["allocations"] == []
        assert api.objects("resourceclaimtemplates") == []
        submit(api, "next", size=4, count=1)
        await eventually(lambda: state(api, "next") == "Allocated", what="the next one is Allocated")
