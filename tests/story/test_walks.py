"""Calls between modules go down and never back up."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable

import pytest

from controller import settings as controller_settings
from controller.program import Controller
from neuron_dra.api.objects import allocated_claim, neuron_config
from neuron_dra.arguments import Parser
from neuron_dra.ask.read import snapshot
from neuron_dra.ask.read.snapshot import Snapshot
from neuron_dra.ask.status import text as status_text
from neuron_dra.ask.why import answer
from neuron_dra.ask.world.world import World
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.kube.config import KubeConfig
from tests.story.controller_cluster import Cluster, answering
from tests.support import cluster_faults as faults
from tests.support.difference_finder import of_controller, of_plugin, of_the_machine
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import NoPods, PodResources
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tests.support.walk import Walk

LISTENERS = ("health-probe-bind-address", "metrics-bind-address", "grpc-address")


async def allocate_and_release(controller: Controller, cluster: Cluster) -> None:
    """Run the controller while a workload is Pending, Allocated, used by pods and released."""
    task = asyncio.create_task(controller.run())
    try:
        workload = cluster.submit("job")
        await eventually(lambda: cluster.state("job") == "Allocated", what="the workload is Allocated")
        for n in range(4):
            cluster.pod_with_claim(f"pod-{n}", f"u0-{n}", workload)
        cluster.api.delete("neuronultraserverworkloads", "job", "ml")
        await eventually(lambda: cluster.state("job") == "None", what="the workload is gone")
        await eventually(lambda: not cluster.tags(), what="the tags are gone")
    finally:
        controller.stop()
        await task


async def test_controller_modules_call_downward_only() -> None:
    """The calls for a workload, from the watches to the writes (15, acceptance 2)."""
    parser = Parser()
    controller_settings.add_arguments(parser)
    async with answering(Cluster, 0.05) as cluster:
        ports = [f"--{name}=127.0.0.1:{free_port()}" for name in LISTENERS]
        parsed = parser.parse_args(["--leader-elect", f"--kube-api-server={cluster.api.url}", *ports])
        controller = Controller(controller_settings.load(parsed, {}, "here"), KubeConfig(cluster.api.url))
        with Walk(["controller", "neuron_dra.planner"]) as walk:
            await allocate_and_release(controller, cluster)
    not_as_shipped = {f"settings.{name.replace('-', '_')}" for name in LISTENERS}  # they have other numbers
    assert of_controller(controller) == of_the_machine("Replica") | not_as_shipped
    assert {
        "neuron_dra.planner.observed.decode",
        "neuron_dra.planner.plan.allocation",
        "controller.apply.requests",
    } <= {*walk.modules}
    assert dict(walk.returns) == {}


CLAIM = [
    "neuron_dra.node.prepare.kubelet",
    "neuron_dra.node.prepare.transactions",
    "neuron_dra.node.prepare.store",
    "neuron_dra.node.prepare.prepared_claims",
    "neuron_dra.node.prepare.device_wait",
    "neuron_dra.node.admission",
    "neuron_dra.node.prepare.claim_reader",
    "neuron_dra.node.hardware.hardware",
    "neuron_dra.node.publish.coexistence",
    "neuron_dra.node.ultraserver.reservation_gate",
    "neuron_dra.node.prepare.group_commit",
    "neuron_dra.node.prepare.daemon_worker",
]
"""The modules of a prepare, from the gRPC call to the files."""


async def test_node_modules_call_downward_only(api: EmbeddedApi, host: PluginHost) -> None:
    """The calls of a plugin, as shipped, that starts, publishes, prepares, unprepares and ends (15, acceptance 2)."""
    values = host.as_shipped()
    with Walk(["neuron_dra.node"], uncounted=["neuron_dra.node.files"]) as walk:
        async with (
            PodResources(NoPods(), host.pod_resources) as pods,
            ScriptedKubelet(host.registry, node_name=host.node_name, api_url=api.url) as kubelet,
            host.running("uid-1", **values) as plugin,
        ):
            await kubelet.registered("neuron.aws.com")
            await eventually(lambda: api.objects("resourceslices"), what="the slices")
            claim = api.create(allocated_claim("job", "node-a", [0, 3], config=[neuron_config(2)]))
            uid = claim["metadata"]["uid"]
            assert not (await kubelet.prepare([claim]))[uid].error
            assert await kubelet.unprepare([claim]) == {uid: ""}
            assert pods.asked > 0
    not_as_shipped = {"settings.pod_uid", "settings.healthcheck_port", "settings.metrics_bind_address"}
    assert of_plugin(plugin) == of_the_machine("PluginHost") | not_as_shipped  # ports have other numbers
    assert set(CLAIM) <= {*walk.modules}
    assert dict(walk.returns) == {}


def why(built: Snapshot) -> None:
    pod = built.get("Pod", "p", "default")
    assert pod is not None
    assert not answer.report(built, "Pod", pod).fine


def status(built: Snapshot) -> None:
    assert status_text.lines(World(built, proposes=False), "", lambda _: True)


@pytest.mark.parametrize("fault", [faults.held_in_part, faults.wrong_type])
@pytest.mark.parametrize("question", [why, status])
def test_an_answer_is_read_in_few_modules(question: Callable[[Snapshot], None], fault: faults.Fault) -> None:
    """33, acceptance 2: from the snapshot to the answer, beside what is read and derived, and the words."""
    items = faults.healthy()
    fault(random.Random(0), items)
    built = snapshot.build(copy.deepcopy(items))
    views = ["neuron_dra.ask.read", "neuron_dra.ask.world", "neuron_dra.ask.render", "neuron_dra.ask.status.text"]
    with Walk(["neuron_dra.ask"], uncounted=views) as walk:
        question(built)
    assert dict(walk.returns) == {}
    assert len(walk.modules) <= 9
    assert walk.came_back <= 6
