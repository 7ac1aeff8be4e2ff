"""The plugin as a process: starts, ends, kills, updates, outages."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from neuron_dra.api.objects import allocated_claim, neuron_config, node_object
from neuron_dra.ask.inspect import command as inspect_command
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.story.plugin_story import DRIVER, NAME, START_S, prepared, published, slice_writes, started, unprepared
from tests.support import slots
from tests.support.plugin_host import PluginHost
from tests.support.waiting import always, eventually


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


@pytest.mark.contract("R5")
@pytest.mark.contract("S14")
async def test_plugin_leaves_slices_and_no_sockets(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    process = await started(host, kubelet, "pod-1")
    before = await published(api)
    stream = kubelet.health()
    await anext(stream)
    assert await process.stop() == 0
    assert list(host.registry.iterdir()) == []
    assert list(host.data.glob("*.sock")) == []
    assert api.objects("resourceslices") == [before]
    assert "Traceback" not in process.log
    assert re.search(r"setting .*node_name.*node-a.*flag", process.log)
    await stream.aclose()


async def test_config_parser_is_imported_on_demand(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    process = await started(host, kubelet, "pod-1")
    maps = Path(f"/proc/{process.pid}/maps")
    await prepared(kubelet, api.create(allocated_claim("plain", "node-a", [0])))
    if maps.exists():
        assert "pydantic_core" not in maps.read_text()
    await prepared(kubelet, api.create(allocated_claim("job", "node-a", [3], config=[neuron_config(1)])))
    if maps.exists():
        assert "pydantic_core" in maps.read_text()


async def has_published(host: PluginHost, pod_uid: str) -> None:
    """Return when the plugin has published, also if it had nothing to write."""
    path = str(host.settings(pod_uid).dra_socket)
    async with asyncio.timeout(START_S):
        while not (await asyncio.to_thread(inspect_command.read, path))[1].status.published:
            await asyncio.sleep(0.05)


@pytest.mark.contract("R4")
@pytest.mark.contract("R15")
@pytest.mark.contract("N6")
async def test_results_are_equal_after_a_kill(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    claim = api.create(allocated_claim("job", "node-a", [0, 3, 12, 15], config=[neuron_config(1)]))
    uid = claim["metadata"]["uid"]
    process = await started(host, kubelet, "pod-1")
    before = await published(api)
    answer = await prepared(kubelet, claim)
    file = host.spec(uid)
    await process.kill()
    assert (host.data / "dra-pod-1.sock").is_socket(), "a kill leaves the socket file behind"
    await kubelet.restart()
    await started(host, kubelet, "pod-1")
    assert await prepared(kubelet, claim) == answer
    assert host.spec(uid) == file
    await has_published(host, "pod-1")
    assert api.objects("resourceslices") == [before]
    await unprepared(kubelet, claim)
    assert (host.specified, host.checkpointed) == (set(), set())


@pytest.mark.contract("P18")
async def test_kill_during_prepare_loses_nothing(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    claims = [api.create(allocated_claim(f"job-{i}", "node-a", [i])) for i in range(16)]
    process = await started(host, kubelet, "pod-1")
    calls = [asyncio.create_task(kubelet.prepare([claim])) for claim in claims]
    await eventually(lambda: host.cdi.exists() and host.specified)
    await process.kill()
    await asyncio.gather(*calls, return_exceptions=True)
    await kubelet.restart()
    await started(host, kubelet, "pod-1")
    assert host.specified <= host.checkpointed  # the others may be adopted: nothing says that no driver prepared them
    for claim in claims:
        await prepared(kubelet, claim)
    assert host.specified == host.checkpointed == {claim["metadata"]["uid"] for claim in claims}


async def test_kill_before_the_inventory_leaves_claims_held_and_ready(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    """A first start that ends before its first publish does not know which claims another driver prepared."""
    claims = [api.create(allocated_claim(f"job-{i}", "node-a", [i])) for i in range(4)]
    host.cdi.mkdir()
    theirs = host.cdi / f"k8s.neuron.aws.com-claim_{claims[3]['metadata']['uid']}.yaml"
    theirs.write_text("kind: k8s.neuron.aws.com/claim")
    api.faults.add(InjectedFault(Do.HANG, verb="list", resource="resourceclaims", times=None))
    process = await started(host, kubelet, "pod-1")
    await prepared(kubelet, claims[0])
    await process.kill()
    api.faults.clear()
    await kubelet.restart()
    await started(host, kubelet, "pod-1")
    uids = [claim["metadata"]["uid"] for claim in claims]
    await eventually(lambda: host.checkpointed == set(uids), what="the inventory")
    assert host.specified == {uids[0]}
    for claim in claims:
        await prepared(kubelet, claim)
    assert host.specified == set(uids)


@pytest.mark.contract("N4")
async def test_api_outage_keeps_claims_and_slices(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    kept, given_back = (api.create(allocated_claim(f"job-{i}", "node-a", [i], of_its_pod=True)) for i in range(2))
    await started(host, kubelet, "pod-1")
    before = await published(api)
    answer = await prepared(kubelet, kept)
    await prepared(kubelet, given_back)
    await api.refuse_connections()
    assert await prepared(kubelet, kept) == answer
    await unprepared(kubelet, given_back)
    host.hardware.remove_device(9)
    error = (await kubelet.prepare([given_back]))[given_back["metadata"]["uid"]].error
    assert "the API server does not answer" in error
    assert api.objects("resourceslices") == [before]
    await api.resume()
    await prepared(kubelet, given_back)


async def test_starts_without_an_api_server(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    claim = api.create(allocated_claim("job", "node-a", [0], of_its_pod=True))
    process = await started(host, kubelet, "pod-1")
    answer = await prepared(kubelet, claim)
    await process.stop()
    await api.refuse_connections()
    await started(host, kubelet, "pod-1")
    assert await prepared(kubelet, claim) == answer
    await unprepared(kubelet, claim)
    await api.resume()
    await published(api)


@pytest.mark.contract("S7")
@pytest.mark.contract("P19")
async def test_deleted_slices_and_cdi_file_are_restored(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    claim = api.create(allocated_claim("job", "node-a", [0]))
    uid = claim["metadata"]["uid"]
    await started(host, kubelet, "pod-1")
    await published(api)
    await prepared(kubelet, claim)
    file = host.spec(uid)
    (host.cdi / f"k8s.neuron.aws.com-claim_{uid}.json").unlink()
    api.delete("resourceslices", NAME)
    await published(api)
    await eventually(lambda: uid in host.specified, what="the CDI file")
    assert host.spec(uid) == file


@pytest.mark.contract("R13")
@pytest.mark.contract("R14")
@pytest.mark.contract("S23")
async def test_rolling_update_shares_claims(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    one, two = (api.create(allocated_claim(f"job-{i}", "node-a", [i])) for i in range(2))
    old = await started(host, kubelet, "pod-old")
    await published(api)
    await prepared(kubelet, one)
    new = await started(host, kubelet, "pod-new")
    await eventually(lambda: "this plugin publishes" in new.log, START_S, "the hand-over")
    assert "another plugin on this node now publishes" in old.log
    await prepared(kubelet, two)
    assert await old.stop() == 0
    await kubelet.gone(DRIVER, endpoint=str(host.settings("pod-old").dra_socket))
    await unprepared(kubelet, one)
    api.delete("resourceslices", NAME)
    await published(api)
    assert slice_writes(api) == ["create", "create"]
    assert host.checkpointed == {two["metadata"]["uid"]}


@pytest.mark.contract("R14")
async def test_older_plugin_publishes_when_newer_dies(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    old = await started(host, kubelet, "pod-old")
    await published(api)
    new = await started(host, kubelet, "pod-new")
    await eventually(lambda: "this plugin publishes" in new.log, START_S, "the hand-over")
    await new.kill()
    api.delete("resourceslices", NAME)
    await published(api)
    assert old.running
    assert old.log.count("this plugin publishes") == 2


@pytest.mark.contract("R14")
async def test_unregistered_plugin_does_not_publish(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    old = await started(host, kubelet, "pod-old")
    await published(api)
    kubelet.script.refusals = ["no"] * 100
    new = await host.start_process("pod-new")
    await eventually(lambda: "refused to register" in new.log, START_S)
    await always(lambda: "another plugin on this node" not in old.log, 1.5)


# A device plugin on the same node


def node_events(api: EmbeddedApi) -> list[str]:
    return [e["message"] for e in api.objects("events") if e["reason"] == "NeuronDevicePluginAlive"]


async def test_double_offer_is_rejected_with_an_event(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    api.patch("nodes", "node-a", {"status": {"allocatable": {"aws.amazon.com/neuron": "10"}}})
    process = await started(host, kubelet, "pod-1")
    await eventually(lambda: node_events(api), START_S)
    assert "the Node offers aws.amazon.com/neuron: 10" in node_events(api)[0]
    (event,) = (e for e in api.objects("events") if e["reason"] == "NeuronDevicePluginAlive")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    await eventually(lambda: "refusing to publish" in process.log)
    assert api.objects("resourceslices") == []
    api.patch("nodes", "node-a", {"status": {"allocatable": {"aws.amazon.com/neuron": "0"}}})
    await published(api)


async def test_device_plugin_blocks_the_first_publish(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(host.device_plugins / "neuron-devplugin.sock"))
        listening.listen()
        await started(host, kubelet, "pod-1")
        await eventually(lambda: node_events(api), START_S)
        assert slice_writes(api) == []


async def test_warn_mode_publishes_beside_a_device_plugin(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    api.patch("nodes", "node-a", {"status": {"allocatable": {"aws.amazon.com/neuron": "10"}}})
    await started(host, kubelet, "pod-1", device_plugin_coexistence="warn")
    await published(api)
    assert "devices are published because of --device-plugin-coexistence=warn" in node_events(api)[0]


# Damage.


@pytest.mark.contract("P20")
async def test_damaged_checkpoint_is_rebuilt_at_start(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    claims = [api.create(allocated_claim(f"job-{i}", "node-a", [i])) for i in range(3)]
    process = await started(host, kubelet, "pod-1")
    await published(api)
    for claim in claims:
        await prepared(kubelet, claim)
    await process.stop()
    slots.tear_all(host.data)
    away = api.faults.add(InjectedFault(Do.RESPOND, verb="list", resource="resourceclaims", status=503, times=None))
    process = await started(host, kubelet, "pod-1")
    await eventually(lambda: away.hits, START_S)
    error = (await kubelet.prepare([claims[0]]))[claims[0]["metadata"]["uid"]].error
    assert "checkpoint was damaged and is being rebuilt; the kubelet tries again" in error
    assert len(host.specified) == 3
    api.faults.clear()
    await eventually(lambda: "rebuilt the checkpoint" in process.log, START_S)
    for claim in claims:
        await prepared(kubelet, claim)
        await unprepared(kubelet, claim)
    assert (host.specified, host.checkpointed) == (set(), set())


@pytest.mark.contract("P19")
async def test_reboot_discards_prepared_claims(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    claim = api.create(allocated_claim("job", "node-a", [0]))
    process = await started(host, kubelet, "pod-1")
    answer = await prepared(kubelet, claim)
    await process.kill()
    host.hardware.set_boot_id()
    for name in os.listdir(host.cdi):
        (host.cdi / name).unlink()
    await kubelet.restart()
    await started(host, kubelet, "pod-1")
    assert host.checkpointed == set()
    assert await prepared(kubelet, claim) == answer
    assert host.specified == host.checkpointed == {claim["metadata"]["uid"]}


# Failed starts


async def refused(host: PluginHost, *arguments: str, **environment: str) -> tuple[int, str]:
    process = await host.start_command(*arguments, **environment)
    return await process.ended(START_S), process.log


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        ((), {}, "--node-name (NODE_NAME) is required"),
        (("--node-names=a",), {}, "--node-names"),
        (("--node-name=a", "-logtostderr=true"), {}, "logtostderr"),
        (("--node-name=a", "--ultraserver-devices=device"), {}, "write node or devices or both; did you mean devices?"),
        (("--node-name=a", "--healthcheck-port=x"), {}, "--healthcheck-port=x: write a whole number"),
        (("--node-name=a",), {"ENABLE_ULTRASERVER_OPERATOR": "maybe"}, "write true or false"),
        (("--node-name=a", "--emulation-mode=trn2u", "--host-root=/x"), {}, "set one"),
        (("--node-name=a", "--emulation-mode=trn9"), {}, "trn9"),
        (("--node-name=a", f"--kubelet-plugins-directory-path=/{'x' * 100}"), {}, "Linux allows 107"),
        (("--node-name=a", "--healthcheck-port=0"), {}, "no API server: this is not a pod in a cluster"),
    ],
)
async def test_invalid_settings_exit_with_code_2(
    host: PluginHost, arguments: tuple[str, ...], environment: dict[str, str], reason: str
) -> None:
    folders = [f"--kubelet-plugins-directory-path={host.plugins}"]
    if any("plugins-directory" in argument for argument in arguments):
        folders = []
    code, log = await refused(host, "plugin", *folders, *arguments, **environment)
    assert (code, "Traceback" in log) == (2, False), log
    assert reason in log


@pytest.mark.contract("R11")
async def test_bind_error_ends_the_plugin_with_reason(host: PluginHost) -> None:
    host.data.mkdir()
    (host.data / "dra.sock").mkdir()
    process = await host.start_process()
    assert await process.ended(START_S) == 1
    assert "the path is a file, not a socket; remove it" in process.log
    assert "Traceback" not in process.log


@pytest.mark.unchecked_end("no plugin can start on this disk")
async def test_unwritable_folder_ends_the_plugin_with_reason(host: PluginHost) -> None:
    host.data.write_text("no folder")
    process = await host.start_process()
    assert await process.ended(START_S) == 1
    assert "Traceback" not in process.log
    assert "File exists" in process.log


@pytest.mark.contract("S27")
async def test_old_api_server_ends_the_plugin_with_reason(host: PluginHost, api: EmbeddedApi) -> None:
    nodes = {"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [node_object("node-a")]}
    groups = {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [{"version": "v1"}]}]}

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.33.2"})
        if request.path == "/api/v1/nodes":
            return web.json_response(nodes)
        if request.path == "/apis":
            return web.json_response(groups)
        return web.json_response({"reason": "NotFound", "message": "no such path"}, status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        process = await host.start_process(kube_api_server=url)
        assert await process.ended(START_S) == 2, process.log
    finally:
        await runner.cleanup()
    assert "does not serve resource.k8s.io/v1; Kubernetes 1.34 to 1.37 does" in process.log
    assert "Traceback" not in process.log


async def test_layout_change_waits_for_claims(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    simulated_node.write(host.root / "host", "trn2u.48xlarge", node_id=2)
    claim = api.create(allocated_claim("job", "node-a", ["neuron-node-0"]))
    process = await started(host, kubelet, "pod-1")
    await published(api, 1)
    await prepared(kubelet, claim)
    await process.stop()
    process = await started(host, kubelet, "pod-1", ultraserver_devices="devices")
    await eventually(lambda: "changed while claims are allocated" in process.log, START_S)
    assert [d["name"] for d in (await published(api, 1))["spec"]["devices"]] == ["neuron-node-0"]
    await unprepared(kubelet, claim)
    api.delete("resourceclaims", "job", "default")
    api.patch("nodes", "node-a", {"metadata": {"labels": {"x": "y"}}})
    await published(api, 16)
