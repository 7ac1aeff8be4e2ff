"""The EFA driver in the plugin's process: kubelet, API server and interfaces on real sockets and files (4.10)."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from neuron_dra.core import cdi, efa, names
from neuron_dra.core.dra_driver import EFA
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.hanging import hang, release
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.emulation.simulated_efa import EfaTree
from neuron_dra.gen.kubelet.podresources.v1 import podresources_pb2 as pb
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import PluginTiming
from tests.support.plugin_host import PluginHost
from tests.support.pod_resources import NoPods, PodResources
from tests.support.timings import QUICK, quicker
from tests.support.waiting import always, eventually

NAME: Final = "node-a-dra.net-00"
FIRST, SECOND = "pci-0000-56-00-0", "pci-0000-57-00-0"
HURRIED: Final = quicker(
    QUICK,
    kubelet={"supervise_s": 0.05},
    publish={"device_plugin_s": 0.05, "list_again_s": 0.1},
    prepare={"repair_s": 0.1},
)


@pytest.fixture
def timing() -> PluginTiming:
    return HURRIED


@pytest.fixture
def tree(host: PluginHost) -> EfaTree:
    return EfaTree.write(host.root / "host", "trn2.48xlarge", rdma_cm=True)


@pytest.fixture
async def plugin(host: PluginHost, tree: EfaTree) -> AsyncIterator[Plugin]:
    async with host.running("pod-1", efa_interfaces=True, unhealthy_device_hold_seconds=0) as running:
        yield running


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as running:
        yield running


def own_slices(api: EmbeddedApi) -> list[dict[str, Any]]:
    return [item for item in api.objects("resourceslices") if item["spec"]["driver"] == EFA.name]


async def published(api: EmbeddedApi, count: int = 16) -> dict[str, Any]:
    await eventually(lambda: any(len(item["spec"].get("devices", [])) == count for item in own_slices(api)))
    (resource_slice,) = own_slices(api)
    return resource_slice


def efa_claim(name: str, *devices: str, neuron: int | None = None, config: Any = None) -> dict[str, Any]:
    """Return a claim with EFA interfaces of node-a, and perhaps with one Neuron device."""
    requests = [{"name": "efas", "exactly": {"deviceClassName": efa.CLASS}}]
    results = [{"request": "efas", "driver": EFA.name, "pool": "node-a", "device": device} for device in devices]
    if neuron is not None:
        device = f"{names.DEVICE_PREFIX}{neuron}"
        requests.append({"name": "neurons", "exactly": {"deviceClassName": names.DRIVER}})
        results.append({"request": "neurons", "driver": names.DRIVER, "pool": "node-a", "device": device})
    allocated: dict[str, Any] = {"results": results}
    if config is not None:
        allocated["config"] = [{"source": "FromClaim", "opaque": {"driver": EFA.name, "parameters": config}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": allocated}},
    }


async def prepare(kubelet: ScriptedKubelet, claim: dict[str, Any], driver: str = EFA.name) -> Any:
    return (await kubelet.prepare([claim], driver=driver))[claim["metadata"]["uid"]]


def spec_path(host: PluginHost, claim: dict[str, Any]) -> Path:
    return host.cdi / cdi.file_name(claim["metadata"]["uid"], EFA)


def container_files(host: PluginHost, claim: dict[str, Any]) -> list[str]:
    document = json.loads(spec_path(host, claim).read_text())
    edits = [device["containerEdits"] for device in document["devices"]]
    return [node["path"] for edit in edits for node in edit.get("deviceNodes", [])]


# Registration and slices.


async def test_interfaces_are_published_beside_the_devices(plugin: Plugin, api: EmbeddedApi) -> None:
    resource_slice = await published(api)
    assert resource_slice["metadata"]["name"] == NAME
    assert resource_slice["spec"]["pool"] == {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    assert resource_slice["metadata"]["ownerReferences"][0]["kind"] == "Node"
    await api.until("resourceslices", lambda items: len(items) == 2)


async def test_first_slice_waits_for_the_groups(host: PluginHost, tree: EfaTree, api: EmbeddedApi) -> None:
    """The Node has no label of its type, and the first reading of the hardware takes long."""
    slow_file = host.hardware.folder(3) / "reset"
    hang(slow_file)
    async with host.running("pod-1", efa_interfaces=True):
        await always(lambda: not own_slices(api), 0.5)
        release(slow_file)
        resource_slice = await published(api)
        devices = resource_slice["spec"]["devices"]
        assert all(f"{names.GROUP_DOMAIN}/devicegroup4_id" in device["attributes"] for device in devices)
        changes = [entry for entry in api.requests(resource="resourceslices") if entry.name == NAME]
        assert changes == [], "the slice was written again"


async def test_both_drivers_register(plugin: Plugin, kubelet: ScriptedKubelet, host: PluginHost) -> None:
    endpoints = [(await kubelet.registered(driver)).endpoint for driver in (names.DRIVER, EFA.name)]
    assert endpoints == [str(host.data / "dra-pod-1.sock"), str(host.data / "efa/dra-pod-1.sock")]


async def test_without_the_setting_nothing_changes(host: PluginHost, tree: EfaTree, api: EmbeddedApi) -> None:
    async with host.running("pod-1"):
        await api.until("resourceslices", lambda items: len(items) == 1)
        assert [path.name for path in sorted(host.registry.iterdir())] == ["neuron.aws.com-pod-1-reg.sock"]
        assert not (host.data / "efa").exists()
    assert not own_slices(api)


async def test_node_without_interfaces_has_no_slice(
    host: PluginHost, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    async with host.running("pod-1", efa_interfaces=True) as running:
        await kubelet.registered(EFA.name)
        await api.until("resourceslices", lambda items: len(items) == 1)
        await eventually(lambda: running.efa is not None and running.efa.hardware.known.is_set())
        await eventually(lambda: running.why_not_ready() == "")
    assert not own_slices(api)


# Claims.


async def test_claim_gets_its_interfaces(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, host: PluginHost
) -> None:
    await kubelet.registered(EFA.name)
    claim = api.create(efa_claim("job", FIRST, SECOND))
    answer = await prepare(kubelet, claim)
    assert not answer.error
    assert [device.cdi_device_ids for device in answer.devices] == [
        (f"k8s.dra.net/claim={claim['metadata']['uid']}-{name}",) for name in (FIRST, SECOND)
    ]
    files = container_files(host, claim)
    assert files == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs1"]
    assert await kubelet.unprepare([claim], driver=EFA.name) == {claim["metadata"]["uid"]: ""}
    assert not spec_path(host, claim).exists()


async def test_claim_of_both_drivers_has_two_entries(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, host: PluginHost
) -> None:
    for driver in (names.DRIVER, EFA.name):
        await kubelet.registered(driver)
    claim = api.create(efa_claim("job", FIRST, neuron=3))
    uid = claim["metadata"]["uid"]
    for driver in (names.DRIVER, EFA.name):
        answer = await prepare(kubelet, claim, driver)
        assert not answer.error
        assert len(answer.devices) == 1
    assert plugin.efa is not None
    assert {uid} == plugin.prepared.claims.keys() == plugin.efa.prepared.claims.keys()
    assert await kubelet.unprepare([claim], driver=EFA.name) == {uid: ""}
    assert {uid} == plugin.prepared.claims.keys()
    assert (host.cdi / cdi.file_name(uid)).exists()
    assert not spec_path(host, claim).exists()


async def test_interface_has_one_owner(plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    await kubelet.registered(EFA.name)
    first, second = api.create(efa_claim("first", FIRST)), api.create(efa_claim("second", FIRST))
    assert not (await prepare(kubelet, first)).error
    assert "is in use: it is held by claim default/first" in (await prepare(kubelet, second)).error
    assert await kubelet.unprepare([first], driver=EFA.name) == {first["metadata"]["uid"]: ""}
    assert not (await prepare(kubelet, second)).error


async def test_network_parameters_are_refused_with_their_path(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    await kubelet.registered(EFA.name)
    refused = api.create(efa_claim("refused", FIRST, config={"interface": {"name": "eth1"}}))
    assert "config[0].opaque.parameters.interface" in (await prepare(kubelet, refused)).error
    assert not (await prepare(kubelet, api.create(efa_claim("empty", FIRST, config={})))).error


async def test_restarted_plugin_keeps_claims_and_looks_up_the_number(
    host: PluginHost, tree: EfaTree, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    async with host.running("pod-1", efa_interfaces=True):
        await kubelet.registered(EFA.name)
        claim = api.create(efa_claim("job", SECOND))
        answer = await prepare(kubelet, claim)
    tree.renumber(5)
    async with host.running("pod-2", efa_interfaces=True):
        endpoint = str(host.data / "efa/dra-pod-2.sock")
        await kubelet.registered(EFA.name, endpoint=endpoint)
        assert container_files(host, claim)[0] == "/dev/infiniband/uverbs6"
        assert await prepare(kubelet, claim) == answer


async def test_repair_follows_the_number(
    plugin: Plugin, tree: EfaTree, kubelet: ScriptedKubelet, api: EmbeddedApi, host: PluginHost
) -> None:
    await kubelet.registered(EFA.name)
    claim = api.create(efa_claim("job", SECOND))
    assert not (await prepare(kubelet, claim)).error
    tree.renumber(5)
    await eventually(lambda: container_files(host, claim)[0] == "/dev/infiniband/uverbs6")
    spec_path(host, claim).unlink()
    await eventually(spec_path(host, claim).exists)


async def test_reboot_forgets_claims(
    host: PluginHost, tree: EfaTree, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    async with host.running("pod-1", efa_interfaces=True):
        await kubelet.registered(EFA.name)
        claim = api.create(efa_claim("job", SECOND))
        assert not (await prepare(kubelet, claim)).error
    host.hardware.set_boot_id()
    async with host.running("pod-2", efa_interfaces=True) as running:
        assert running.efa is not None
        assert running.efa.prepared.claims == {}
        await eventually(lambda: not spec_path(host, claim).exists())


# Health.


async def test_lost_interface_is_tainted_and_reported(
    plugin: Plugin, tree: EfaTree, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    await published(api)
    function = "0000:56:00.0"
    tree.unbind(function)

    def taints() -> list[Any]:
        return [taint["value"] for item in own_slices(api)[0]["spec"]["devices"] for taint in item.get("taints", [])]

    await eventually(lambda: taints() == ["missing"])
    await eventually(lambda: any(event["reason"] == "NeuronDeviceUnhealthy" for event in api.objects("events")))
    await kubelet.registered(EFA.name)
    claim = api.create(efa_claim("job", FIRST))
    assert "cannot be used (missing)" in (await prepare(kubelet, claim)).error


# Standing down.


def foreign_slice() -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "node-a-dra.net-x7k2p"},
        "spec": {
            "driver": EFA.name,
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        },
    }


@contextlib.contextmanager
def served(path: Path) -> Iterator[None]:
    """Listen on a socket, as another manager does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield
    path.unlink()


async def stood_down(api: EmbeddedApi) -> None:
    """Return when this driver's slice is gone and an Event says why."""
    await eventually(lambda: NAME not in [item["metadata"]["name"] for item in own_slices(api)])
    await eventually(lambda: any(event["reason"] == "NeuronEfaStandsDown" for event in api.objects("events")))


async def test_dranets_slice_ends_the_registration(
    plugin: Plugin, api: EmbeddedApi, host: PluginHost, kubelet: ScriptedKubelet
) -> None:
    await published(api)
    registration = host.registry / "neuron.aws.com-efa-pod-1-reg.sock"
    claim = api.create(efa_claim("job", FIRST))
    await kubelet.registered(EFA.name)
    assert not (await prepare(kubelet, claim)).error
    foreign = api.create(foreign_slice())
    await stood_down(api)
    await eventually(lambda: not registration.exists())
    assert [item["metadata"]["name"] for item in own_slices(api)] == [foreign["metadata"]["name"]]
    efa_driver = plugin.efa
    assert efa_driver is not None
    await eventually(lambda: all(claim.doubtful for claim in efa_driver.prepared.claims.values()))
    api.delete("resourceslices", foreign["metadata"]["name"])
    await published(api)
    await eventually(registration.exists)


async def test_dranets_socket_keeps_this_driver_away(
    host: PluginHost, tree: EfaTree, api: EmbeddedApi, kubelet: ScriptedKubelet
) -> None:
    with served(host.registry / "dra.net-reg.sock"):
        async with host.running("pod-1", efa_interfaces=True):
            await stood_down(api)
            assert not own_slices(api)
            assert not (host.registry / "neuron.aws.com-efa-pod-1-reg.sock").exists()


async def test_device_plugins_socket_ends_the_slice_and_claims_get_the_reason(
    plugin: Plugin, api: EmbeddedApi, host: PluginHost, kubelet: ScriptedKubelet
) -> None:
    await published(api)
    await kubelet.registered(EFA.name)
    with served(host.device_plugins / "aws-efa-device-plugin.sock"):
        await stood_down(api)
        claim = api.create(efa_claim("job", FIRST))
        assert "the EFA device plugin manages the EFA interfaces" in (await prepare(kubelet, claim)).error
    await published(api)
    assert not (await prepare(kubelet, claim)).error


async def test_exclusive_network_mode_ends_the_slice(plugin: Plugin, tree: EfaTree, api: EmbeddedApi) -> None:
    await published(api)
    tree.set_exclusive(True)
    await stood_down(api)
    tree.set_exclusive(False)
    await published(api)


@pytest.mark.parametrize("what", ["offer", "label"])
async def test_nodes_own_signs_end_the_slice(what: str, plugin: Plugin, api: EmbeddedApi) -> None:
    await published(api)
    if what == "offer":
        api.patch("nodes", "node-a", {"status": {"allocatable": {"vpc.amazonaws.com/efa": "16"}}})
    else:
        api.patch("nodes", "node-a", {"metadata": {"labels": {"eks.amazonaws.com/compute-type": "auto"}}})
    await stood_down(api)
    await always(lambda: not own_slices(api), 0.2)


async def test_interface_lost_during_a_restart_is_tainted_at_once(
    host: PluginHost, tree: EfaTree, api: EmbeddedApi
) -> None:
    async with host.running("pod-1", efa_interfaces=True):
        await published(api)
    tree.unbind("0000:56:00.0")
    api.log.clear()
    async with host.running("pod-2", efa_interfaces=True):
        await eventually(lambda: "taints" in own_slices(api)[0]["spec"]["devices"][0])
    assert len(own_slices(api)[0]["spec"]["devices"]) == 16
    assert [entry.verb for entry in api.requests(resource="resourceslices", name=NAME)] == ["update"]


async def test_pods_of_the_device_plugin_keep_the_interfaces(host: PluginHost, tree: EfaTree, api: EmbeddedApi) -> None:
    device = pb.ContainerDevices(resource_name="vpc.amazonaws.com/efa", device_ids=["rdmap86s0"])
    container = pb.ContainerResources(name="main", devices=[device])
    pods = pb.ListPodResourcesResponse(
        pod_resources=[pb.PodResources(name="theirs", namespace="ml", containers=[container])]
    )
    async with PodResources(NoPods(), host.pod_resources) as kubelet_pods:
        kubelet_pods.body = pods.SerializeToString()
        async with host.running("pod-1", efa_interfaces=True):
            await stood_down(api)
            (event, *_) = [event for event in api.objects("events") if event["reason"] == "NeuronEfaStandsDown"]
            assert "pod ml/theirs on node node-a has EFA interfaces" in event["message"]
            kubelet_pods.body = None
            await published(api)
