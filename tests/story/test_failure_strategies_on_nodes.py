"""Controller and plugins together when nodes fail: evictions, ranks, and unaffected pods."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller import settings as controller_settings
from controller.program import Controller
from controller.timing import DEFAULT_TIMING
from neuron_dra.api.objects import allocated_claim, node_object
from neuron_dra.arguments import Parser
from neuron_dra.core import names
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.ultraserver import NAMESPACE
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.errors import ClaimError
from neuron_dra.kube.config import KubeConfig
from tests.support.controller_passes import passes
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK_RESERVATIONS, quicker
from tests.support.waiting import eventually

TYPE, BLOCK, HARDWARE_ID = "trn2u.48xlarge", "cr-1", "00000000deadbeef"
NODES = ("n0", "n1", "n2", "n3")
CONTROLLER = quicker(DEFAULT_TIMING, writes={"first_eviction_s": 0.2, "longest_s": 1.0})
TIMING = quicker(QUICK_RESERVATIONS, hardware={"period_s": 0.1})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    """Four nodes of one UltraServer with their plugins; `run_pods` does what scheduler and kubelets do."""

    def __init__(self, api: EmbeddedApi, hosts: dict[str, PluginHost]) -> None:
        self.api, self.hosts = api, hosts
        self.stack = contextlib.AsyncExitStack()
        self.plugins: dict[str, Any] = {}
        self.running: dict[str, contextlib.AsyncExitStack] = {}
        self.dead: set[str] = set()
        self.claims: dict[str, tuple[str, ClaimRef]] = {}  # by pod: node and claim
        self.variables: dict[str, dict[str, str]] = {}  # by pod: the container as started
        self.controller: Controller | None = None
        self.ahead = datetime.timedelta(0)

    def clock(self) -> datetime.datetime:
        """Return the time that the controller's clock shows."""
        return datetime.datetime.now(datetime.UTC) + self.ahead

    async def until_the_graces_end(self) -> None:
        """Let the controller act on what has lasted longer than every grace."""
        assert self.controller is not None
        self.ahead += datetime.timedelta(seconds=10)
        self.api.clock_offset_s = self.ahead.total_seconds()
        for _ in range(2):  # two responses agree that the server's clock was set
            await self.controller._client.request("GET", "/version")
        await passes(self.controller, self.api)

    async def start(self, node: str) -> None:
        """Start the plugin of a node."""
        self.running[node] = contextlib.AsyncExitStack()
        self.plugins[node] = await self.running[node].enter_async_context(self.hosts[node].running())

    async def die(self, node: str) -> None:
        """Stop plugin and kubelet of the node, and make it not Ready."""
        self.dead.add(node)
        await self.running.pop(node).aclose()
        conditions = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": _now()}]
        self.api.patch("nodes", node, {"status": {"conditions": conditions}})

    async def run_pods(self) -> None:
        """Bind a pod to each empty node that is Bound, and end terminating pods."""
        for pod in self.api.objects("pods"):
            name = pod["metadata"]["name"]
            node, ref = self.claims[name]
            if pod["metadata"].get("deletionTimestamp") and node not in self.dead:
                await self.plugins[node].transactions.unprepare(ref)
                self.api.delete("pods", name, "ml", grace_s=0)
                self.api.delete("resourceclaims", name, "ml")
            elif name not in self.variables and node in self.running:
                await self._prepare(name)
        busy = {self.claims[pod["metadata"]["name"]][0] for pod in self.api.objects("pods")}
        template = self.api.find("resourceclaimtemplates", "job", "ml")
        for node, phase in self.phases().items():
            if phase == "Bound" and node not in busy | self.dead and template is not None:
                self._start_pod(node, template)

    def _start_pod(self, node: str, template: Obj) -> None:
        name = f"{node}-{len(self.claims)}"
        pod = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "ml"},
                "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
            }
        )
        self.api.patch("pods", name, {"status": {"phase": "Running"}}, "ml")
        config = [{**entry, "source": "FromClaim"} for entry in template["spec"]["spec"]["devices"]["config"]]
        claim = allocated_claim(name, node, ["neuron-node-0"], namespace="ml", config=config)
        claim["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
        made = self.api.create(claim)
        self.claims[name] = node, ClaimRef("ml", name, made["metadata"]["uid"])

    async def _prepare(self, name: str) -> None:
        """Start the container; a pod whose node is closing is rejected, and retried."""
        node, ref = self.claims[name]
        with contextlib.suppress(ClaimError):
            prepared = await self.plugins[node].transactions.prepare(ref)
            self.variables[name] = dict(text.split("=", 1) for device in prepared.devices for text in device.env)

    def give_up(self, node: str) -> None:
        """Delete the Node, and its pods, as Kubernetes does."""
        self.api.delete("nodes", node)
        for item in self.api.objects("resourceslices"):
            if item["spec"]["nodeName"] == node:
                self.api.delete("resourceslices", item["metadata"]["name"])
        for pod in self.api.objects("pods"):
            if pod["spec"]["nodeName"] == node:
                self.api.delete("pods", pod["metadata"]["name"], "ml", grace_s=0)
                self.api.delete("resourceclaims", pod["metadata"]["name"], "ml")

    def is_whole(self) -> bool:
        """Return True if all nodes are discovered and none is reserved."""
        found = [item.get("status") or {} for item in self.api.objects("neuronultraservers")]
        return [status.get("freeNodeCount") for status in found] == [len(NODES)]

    def phases(self) -> dict[str, str]:
        """The phase that each reserved node's devices show."""
        return {
            item["spec"]["nodeName"]: device["attributes"]["workloadPhase"]["string"]
            for item in self.api.objects("resourceslices")
            for device in item["spec"].get("devices", [])
            if "workloadPhase" in device["attributes"]
        }

    def ranks(self) -> dict[str, str]:
        """Return the rank in each pod's container, by node, without terminating pods."""
        return {
            pod["spec"]["nodeName"]: self.variables[pod["metadata"]["name"]]["NEURON_GLOBAL_TOPOID"]
            for pod in self.api.objects("pods")
            if not pod["metadata"].get("deletionTimestamp") and pod["metadata"]["name"] in self.variables
        }

    def uids(self) -> dict[str, str]:
        return {pod["spec"]["nodeName"]: pod["metadata"]["uid"] for pod in self.api.objects("pods")}

    def status(self) -> Obj:
        found: Obj = (self.api.find("neuronultraserverworkloads", "job", "ml") or {}).get("status", {})
        return found

    def counted(self, name: str, **labels: str) -> float:
        """One of the controller's metrics."""
        assert self.controller is not None
        return self.controller.metrics.registry.get_sample_value(f"neuron_ultraserver_{name}", labels) or 0.0

    def event_reasons(self) -> set[str]:
        return {event["reason"] for event in self.api.objects("events")}

    def submit(self, strategy: str, *, size: int, count: int) -> None:
        self.api.create(
            {
                "apiVersion": "neuron.aws.com/v1beta1",
                "kind": "NeuronUltraServerWorkload",
                "metadata": {"name": "job", "namespace": "ml"},
                "spec": {
                    "instanceType": TYPE,
                    "topologySize": size,
                    "serverCount": count,
                    "allocationPolicy": {"failureStrategy": strategy},
                },
            }
        )

    async def until_ranks(self, wanted: dict[str, str]) -> None:
        await eventually(lambda: self.ranks() == wanted, what=f"the ranks {wanted}")
        await eventually(lambda: self.status().get("state") == "Allocated", what="the workload is Allocated")


@pytest.fixture
async def cluster(short_path: Path) -> AsyncIterator[Cluster]:
    parser = Parser()
    controller_settings.add_arguments(parser)
    async with EmbeddedApi(controllers=False) as api, contextlib.AsyncExitStack() as stack:
        api.register_neuron_kinds()
        for name in (NAMESPACE, "ml"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        hosts = {}
        for number, name in enumerate(NODES):
            node = node_object(name, labels={names.CAPACITY_BLOCK_LABEL: BLOCK, names.INSTANCE_TYPE_LABEL: TYPE})
            node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            api.create(node)
            (short_path / name).mkdir()
            hardware: dict[str, Any] = {"instance_type": TYPE, "node_id": number, "server_id": HARDWARE_ID}
            hosts[name] = PluginHost(short_path / name, api.url, node_name=name, timing=TIMING, **hardware)
            stack.push_async_callback(hosts[name].close)
        made = Cluster(api, hosts)
        for name in NODES:
            await made.start(name)
        words = ["--kube-api-server", api.url, "--health-probe-bind-address=0", "--metrics-bind-address=0"]
        words += ["--fault-grace=1s", "--node-failure-grace=1s", "--allow-short-graces=true"]
        loaded = controller_settings.load(parser.parse_args(words), {}, "here")
        kube = KubeConfig(loaded.kube_api_server)
        controller = made.controller = Controller(loaded, kube, clock=made.clock, timing=CONTROLLER)

        async def answers() -> None:
            while True:
                await made.run_pods()
                await asyncio.sleep(0.05)

        tasks = [asyncio.create_task(controller.run()), asyncio.create_task(answers())]
        try:
            await eventually(made.is_whole, what="the UltraServer with its four nodes")
            yield made
        finally:
            controller.stop()
            tasks[1].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [result for result in results if isinstance(result, Exception)] == []
            for running in made.running.values():
                await running.aclose()


async def test_broken_link_moves_the_pair_with_its_ranks(cluster: Cluster) -> None:
    cluster.submit("MigrateAffected", size=2, count=1)
    await cluster.until_ranks({"n0": "0", "n1": "1"})
    cluster.hosts["n1"].hardware.set_modes("4")
    await cluster.until_ranks({"n2": "0", "n3": "1"})
    await eventually(lambda: {"LinkDown", "Migrating", "Recovered"} <= cluster.event_reasons(), what="the events")
    assert cluster.status()["migrations"] == 1
    assert (
        cluster.counted("failures_total", reason="LinkDown"),
        cluster.counted("recoveries_total", strategy="MigrateAffected"),
        cluster.counted("evictions_total", result="evicted"),
        cluster.counted("degraded_seconds_count"),
    ) == (1, 1, 2, 1)


async def test_unhealthy_device_moves_only_its_slot(cluster: Cluster) -> None:
    cluster.submit("MigrateAffected", size=1, count=3)
    await cluster.until_ranks({"n0": "0", "n1": "1", "n2": "2"})
    before = cluster.uids()
    cluster.hosts["n1"].hardware.set_unhealthy_components(3, "hbm")
    await cluster.until_ranks({"n0": "0", "n2": "2", "n3": "1"})
    after = cluster.uids()
    assert (after["n0"], after["n2"]) == (before["n0"], before["n2"])
    bound = {"n0": "Bound", "n2": "Bound", "n3": "Bound"}
    await eventually(lambda: cluster.phases() == bound, what="the end of the slot that drains")


async def test_restart_all_evicts_and_avoids_the_fault(cluster: Cluster) -> None:
    cluster.submit("RestartAll", size=1, count=3)
    await cluster.until_ranks({"n0": "0", "n1": "1", "n2": "2"})
    before = set(cluster.uids().values())
    template = cluster.api.get("resourceclaimtemplates", "job", "ml")["metadata"]["uid"]
    cluster.hosts["n1"].hardware.set_unhealthy_components(3, "hbm")
    await eventually(lambda: sorted(cluster.ranks()) == ["n0", "n2", "n3"], what="pods on the nodes that are left")
    await eventually(lambda: cluster.status()["state"] == "Allocated", what="the workload is Allocated")
    assert sorted(cluster.ranks().values()) == ["0", "1", "2"]
    assert not before & set(cluster.uids().values())
    assert cluster.api.get("resourceclaimtemplates", "job", "ml")["metadata"]["uid"] != template
    assert (cluster.status()["restarts"], "restarting" in cluster.status()) == (1, False)


async def test_noop_only_reports(cluster: Cluster) -> None:
    cluster.submit("NoOp", size=2, count=1)
    await cluster.until_ranks({"n0": "0", "n1": "1"})
    before = cluster.uids()
    cluster.hosts["n1"].hardware.set_modes("4")
    await eventually(lambda: "LinkDown" in cluster.event_reasons(), what="the fault has an Event")
    await cluster.until_the_graces_end()  # after which the other strategies act
    assert (cluster.uids(), cluster.phases()) == (before, {"n0": "Bound", "n1": "Bound"})


async def test_slot_moves_after_dead_node_is_given_up(cluster: Cluster) -> None:
    cluster.submit("MigrateAffected", size=2, count=1)
    await cluster.until_ranks({"n0": "0", "n1": "1"})
    await cluster.die("n1")
    await eventually(lambda: sorted(cluster.uids()) == ["n1"], what="the pod of the node that answers is evicted")
    await eventually(lambda: "WaitingForPods" in cluster.event_reasons(), what="the message names the dead node")
    ready = next(c for c in cluster.status()["conditions"] if c["type"] == "Ready")
    assert "to give up a node that will not come back, delete its Node" in ready["message"]
    assert {node: phase for node, phase in cluster.phases().items() if node in ("n2", "n3")} == {
        "n2": "Pending",
        "n3": "Pending",
    }
    cluster.give_up("n1")
    await cluster.until_ranks({"n2": "0", "n3": "1"})


async def test_plugin_outage_keeps_the_allocation(cluster: Cluster) -> None:
    cluster.submit("RestartAll", size=2, count=1)
    await cluster.until_ranks({"n0": "0", "n1": "1"})
    before = cluster.uids()
    await cluster.running.pop("n1").aclose()
    for item in cluster.api.objects("resourceslices"):
        if item["spec"]["nodeName"] == "n1":
            cluster.api.delete("resourceslices", item["metadata"]["name"])  # as a kubelet does when it starts
    await eventually(lambda: "SliceMissing" in cluster.event_reasons(), what="it has an Event")
    await cluster.until_the_graces_end()
    assert cluster.uids() == before
    await cluster.start("n1")
    await eventually(lambda: cluster.phases() == {"n0": "Bound", "n1": "Bound"}, what="the tag is back")
    assert cluster.uids() == before
