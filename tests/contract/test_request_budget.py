"""What an event on one node costs the API server: requests are counted, watches aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.kubelet_wire import KubeletDevice
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_SLICES
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.publish.rivals import AT_ONCE
from neuron_dra.node.publish.slice_publisher import SlicePublisher
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import PodResources
from tests.support.timings import quicker
from tests.support.waiting import always, eventually

DRIVER = "neuron.aws.com"
NAME = "node-a-neuron.aws.com-00"
HOURS = 36_000.0
QUIET = quicker(
    DEFAULT_TIMING,
    publish={"gather_s": 0.02, "rival_s": (HOURS, HOURS), "rival_window_s": HOURS},
    hardware={"period_s": 0.1},
    kubelet={"supervise_s": 0.05},
)


@pytest.fixture
def timing() -> PluginTiming:
    return QUIET


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


async def settled(plugin: Plugin) -> None:
    await eventually(lambda: plugin.publish_state.result is not None)


def costs(api: EmbeddedApi, since: int = 0) -> Counter[str]:
    """Return the requests that a node makes for claims and slices, after the first `since` in the log."""
    wanted = ("resourceclaims", "resourceslices")
    found = [entry for entry in api.log[since:] if entry.resource in wanted and entry.verb != "watch"]
    return Counter(f"{entry.verb} {entry.resource}" for entry in found)


def names(api: EmbeddedApi) -> list[str]:
    return [device["name"] for item in api.objects("resourceslices") for device in item["spec"]["devices"]]


# An idle node

PLAIN: dict[str, Any] = {}
ULTRASERVER: dict[str, Any] = {"instance_type": "trn2u.48xlarge", "node_id": 1, "server_id": "5a7b1c2d3e4f6070"}


@pytest.mark.parametrize(
    ("hardware", "watched"),
    [
        (PLAIN, {"nodes": 1, "resourceslices": 1}),
        (ULTRASERVER, {"nodes": 1, "resourceslices": 1, "neuronultraservers": 1}),
    ],
    ids=["plain node", "UltraServer"],
)
async def test_plugin_watches_what_the_planning_page_counts(
    api: EmbeddedApi, short_path: Path, hardware: dict[str, Any], watched: dict[str, int]
) -> None:
    api.register_neuron_kinds()
    host = PluginHost(short_path, api.url, timing=QUIET, **hardware)
    async with host.running() as plugin:
        await settled(plugin)
        await eventually(lambda: {kind: api.watches.count(kind) for kind in watched} == watched)
        await always(lambda: api.watches.count() == len(watched), 0.3)
    await host.close()
    page = (Path(__file__).resolve().parents[2] / "docs/planning.md").read_text()
    text = "2: its Node and its slices; 3 on UltraServers with the controller"
    assert f"| watches of the API server | {text} | 800 to 1,200 | 10,000 to 15,000 |" in page


# A new node


@pytest.mark.contract("O10")
async def test_new_node_publishes_without_a_list_of_all_claims(api: EmbeddedApi, host: PluginHost) -> None:
    api.create(allocated_claim("job", "node-a", [0]))
    async with host.running() as plugin:
        await settled(plugin)
    assert costs(api) == {"list resourceslices": 1, "create resourceslices": 1}


@pytest.mark.contract("O10")
async def test_new_node_that_published_lists_no_claims_later(api: EmbeddedApi, host: PluginHost) -> None:
    api.create(allocated_claim("job", "node-a", [0]))
    async with host.running() as plugin:
        await settled(plugin)
        await always(lambda: not plugin.prepared.claims, 0.5)
    async with host.running() as plugin:
        await settled(plugin)
    assert costs(api) == {"list resourceslices": 2, "create resourceslices": 1}


def left_a_file(host: PluginHost) -> None:
    host.cdi.mkdir()
    (host.cdi / "k8s.neuron.aws.com-claim_uid-old.yaml").write_text("kind: k8s.neuron.aws.com/claim")


class Running:
    """A node with a pod that has a claim of this driver."""

    pods: ClassVar[list[Obj]] = [
        {
            "metadata": {"name": "old", "namespace": "default"},
            "spec": {
                "resourceClaims": [{"name": "c", "resourceClaimName": "job"}],
                "containers": [{"name": "main", "resources": {"claims": [{"name": "c"}]}}],
            },
        }
    ]

    def prepared(self, namespace: str, name: str) -> Any:
        return {DRIVER: (KubeletDevice(("neuron",), "node-a", "neuron-device-0", ("cdi",), None),)}


async def test_node_with_traces_of_another_driver_lists_before_it_publishes(api: EmbeddedApi, host: PluginHost) -> None:
    made = api.create(allocated_claim("job", "node-a", [0]))
    left_a_file(host)
    async with host.running() as plugin:
        await settled(plugin)
        assert set(plugin.prepared.claims) == {made["metadata"]["uid"]}
    order = [f"{entry.verb} {entry.resource}" for entry in api.log]
    assert order.index("list resourceclaims") < order.index("create resourceslices")


async def test_node_whose_kubelet_lists_a_claim_reads_that_claim_alone(api: EmbeddedApi, host: PluginHost) -> None:
    made = api.create(allocated_claim("job", "node-a", [0]))
    async with PodResources(Running(), host.pod_resources), host.running() as plugin:
        await settled(plugin)
        assert set(plugin.prepared.claims) == {made["metadata"]["uid"]}
    assert costs(api) == {"list resourceslices": 1, "create resourceslices": 1, "get resourceclaims": 1}


# Restart and rolling update


@pytest.mark.contract("O10")
async def test_restart_lists_no_claims_and_writes_nothing(
    api: EmbeddedApi, host: PluginHost, kubelet: ScriptedKubelet
) -> None:
    made = api.create(allocated_claim("job", "node-a", [0]))
    async with host.running("pod-1") as plugin:
        await settled(plugin)
        await kubelet.registered(DRIVER)
        await kubelet.prepare([made])
        await plugin.prepared.adopt({})  # as the list after the first publish would
    before = len(api.log)
    async with host.running("pod-2") as plugin:
        await settled(plugin)
    assert costs(api, before) == {"list resourceslices": 1}


@pytest.mark.contract("O10")
async def test_rolling_update_lists_no_claims_and_writes_nothing(
    api: EmbeddedApi, host: PluginHost, kubelet: ScriptedKubelet
) -> None:
    async with host.running("pod-1") as old:
        await settled(old)
        before = len(api.log)
        async with host.running("pod-2") as new:
            await kubelet.registered(DRIVER, endpoint=str(host.settings("pod-2").dra_socket))
            await settled(new)
            assert costs(api, before) == {"list resourceslices": 1}


# A sick device


@pytest.mark.contract("O10")
async def test_sick_device_costs_a_write_a_dry_run_and_an_event(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(plugin)
        before = len(api.log)
        host.hardware.add_ecc(5)
        await eventually(lambda: any(e["reason"] == "NeuronDeviceUnhealthy" for e in api.objects("events")))
        await eventually(lambda: costs(api, before)["update resourceslices"])
        assert costs(api, before) == {"create resourceslices": 1, "update resourceslices": 1}  # the first is a dry run
        assert sum(event["reason"] == "NeuronDeviceUnhealthy" for event in api.objects("events")) == 1


# A rival


def theirs(api: EmbeddedApi) -> None:
    """Write the node's slice as another program would."""
    api.patch("resourceslices", NAME, {"spec": {"devices": [{"name": "theirs"}]}})


@pytest.mark.contract("O11")
async def test_rival_costs_a_bounded_number_of_requests_and_is_named(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(plugin)
        before = len(api.log)
        for _ in range(AT_ONCE + 1):
            theirs(api)
            await eventually(lambda: len(names(api)) == 16)
        why = (
            f"another program writes the ResourceSlices of neuron.aws.com for node node-a: {NAME}; only one driver may "
            "run on a node, so remove the other one"
        )
        await eventually(lambda: plugin.publish_state.error == why)
        assert why in plugin.why_not_ready()
        await eventually(lambda: why in [event["message"] for event in api.objects("events")])
        theirs(api)
        await always(lambda: names(api) == ["theirs"], 0.3)
        spent = costs(api, before)
        assert spent["update resourceslices"] == AT_ONCE + 1
        assert spent["list resourceclaims"] <= AT_ONCE + 1
        host.hardware.add_ecc(5)  # what happens on the node is published at once
        await eventually(lambda: len(names(api)) == 16)


@pytest.mark.contract("O11")
async def test_kubelet_that_deletes_the_slices_is_no_rival(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(plugin)
        for _ in range(AT_ONCE + 3):
            api.delete("resourceslices", NAME)
            await eventually(lambda: len(names(api)) == 16)
        await eventually(lambda: plugin.publish_state.error == "")


async def test_rival_is_named_by_its_field_manager() -> None:
    """The API server records which program wrote an object last."""
    client = KubeClient(KubeConfig("http://127.0.0.1:1"))
    cache = Reflector(client, RESOURCE_SLICES)
    written = [
        {"manager": "neuron-dra", "time": "2026-01-02T03:04:05Z"},
        {"manager": "k8s-neuron-dra-driver", "time": "2026-01-02T03:04:06Z"},
    ]
    item = {"metadata": {"name": NAME, "managedFields": written}}
    cache.items[f"/{NAME}"] = item
    assert SlicePublisher(client, cache)._described(item) == f"{NAME} (written by k8s-neuron-dra-driver)"
