"""A plugin, a fleet and a controller with the values of the shipped product (4.01).

tests/support/differences.py lists where other tests differ from it.
"""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2

from controller import settings as controller_settings
from controller.program import Controller
from neuron_dra.api.objects import allocated_claim
from neuron_dra.arguments import Parser
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.kube.config import KubeConfig
from tests.story.controller_cluster import Cluster, answering
from tests.story.plugin_story import prepared, published, started, unprepared
from tests.support.difference_finder import of_controller, of_plugin, of_settings, of_the_machine
from tests.support.fleet import schedule
from tests.support.fleet.fleet import Fleet
from tests.support.fleet.run import run
from tests.support.neighbour import grpc_probe, http_probe
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import NoPods, PodResources
from tests.support.ports import free_port
from tests.support.waiting import always, eventually

SEED = 3
SERVING = health_pb2.HealthCheckResponse.SERVING
PORTS = {"settings.healthcheck_port", "settings.metrics_bind_address"}
NO_PORTS = {"settings.grpc_address", "settings.health_probe_bind_address", "settings.metrics_bind_address"}


async def test_shipped_plugin_serves_a_node(api: EmbeddedApi, host: PluginHost) -> None:
    """With its ports, the kubelet's list of pods, and a claim that waits for a device."""
    values = host.as_shipped()
    of_the_pod = {"settings.pod_uid", *PORTS}
    assert set(of_settings(host.settings("uid-1", **values))) == of_the_machine("PluginHost") | of_the_pod
    async with (
        PodResources(NoPods(), host.pod_resources) as pods,
        ScriptedKubelet(host.registry, node_name=host.node_name, api_url=api.url) as kubelet,
    ):
        process = await started(host, kubelet, "uid-1", **values)
        await published(api)
        first, second = (api.create(allocated_claim(name, "node-a", [0, 1])) for name in ("first", "second"))
        await prepared(kubelet, first)
        waiting = asyncio.create_task(prepared(kubelet, second))
        await always(lambda: not waiting.done(), 0.3, "the claim waits for its devices")
        await unprepared(kubelet, first)
        await waiting
        await unprepared(kubelet, second)
        assert pods.asked > 0
        assert await grpc_probe(values["healthcheck_port"]) == SERVING
        ready = await http_probe(int(values["metrics_bind_address"].rpartition(":")[2]), "/readyz")
        assert ready.startswith(b"HTTP/1.1 200")
        assert await process.stop() == 0


def test_fleets_plugins_and_controllers_are_as_shipped() -> None:
    """Nodes are added and restarted in the run: each plugin and controller is looked at when it ends."""
    plugins: set[str] = set()
    replicas: set[str] = set()

    async def drive(fleet: Fleet, steps: int) -> None:
        await schedule.drive(fleet, steps)
        for node in fleet.nodes.values():
            plugins.update(of_plugin(node.plugin) if node.plugin is not None else ())
        for replica in fleet.replicas:
            if replica.controller is not None:
                replicas.update(of_controller(replica.controller))

    outcome = run(SEED, steps=4, drive=drive, actors=())
    assert outcome.violation == ""
    assert plugins == of_the_machine("FleetNode") | PORTS
    assert replicas == of_the_machine("Replica") | NO_PORTS


async def test_shipped_controller_allocates_a_workload() -> None:
    """With its ports."""
    parser = Parser()
    controller_settings.add_arguments(parser)
    ports = {flag: free_port() for flag in ("health-probe-bind-address", "metrics-bind-address", "grpc-address")}
    async with answering(Cluster) as cluster:
        flags = [f"--{flag}=127.0.0.1:{port}" for flag, port in ports.items()]
        loaded = controller_settings.load(
            parser.parse_args(["--leader-elect", f"--kube-api-server={cluster.api.url}", *flags]), {}, ""
        )
        controller = Controller(loaded, KubeConfig(cluster.api.url))
        assert of_controller(controller) == of_the_machine("Replica") | NO_PORTS  # they have other numbers here
        task = asyncio.create_task(controller.run())
        try:
            cluster.submit("job")
            await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
            for flag, path in (("health-probe-bind-address", "/readyz"), ("metrics-bind-address", "/metrics")):
                assert (await http_probe(ports[flag], path)).startswith(b"HTTP/1.1 200")
        finally:
            controller.stop()
            await task
