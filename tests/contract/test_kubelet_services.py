"""The plugin with a kubelet on real sockets: both services, and a kubelet that restarts, rejects and gives up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from neuron_dra.api.objects import allocated_claim, neuron_config, opaque
from neuron_dra.emulation.embedded_api import (
    STRANGE,
    Do,
    EmbeddedApi,
    InjectedFault,
    Strange,
)
from neuron_dra.emulation.scripted_kubelet import (
    DRA_V1,
    DRA_V1BETA1,
    HEALTH_V1,
    HEALTH_V1ALPHA1,
    KubeletClaim,
    KubeletError,
    ScriptedKubelet,
)
from neuron_dra.errors import SettingsError, SocketError, Unavailable
from neuron_dra.gen.kubelet.dra.v1 import dra_pb2, dra_pb2_grpc
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2, registration_pb2_grpc
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2, inspector_pb2_grpc
from neuron_dra.node.endpoints import liveness
from neuron_dra.node.endpoints.sockets import TcpHealthServer, UnixServer
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.prepare.kubelet import Registration
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from neuron_dra.settings import load
from tests.support.faulty_files import DISK_ERRORS, FaultyFiles, disk_error
from tests.support.plugin_host import PluginHost, published_again
from tests.support.pod_resources import PodResources
from tests.support.timings import quicker, with_timing
from tests.support.waiting import always, eventually

DRIVER = "neuron.aws.com"


HURRIED = quicker(DEFAULT_TIMING, kubelet={"supervise_s": 0.05, "rejected_s": 0.3}, hardware={"period_s": 0.1})


@pytest.fixture
def timing() -> PluginTiming:
    return HURRIED


@pytest.fixture
async def plugin(host: PluginHost) -> AsyncIterator[Plugin]:
    async with host.running("pod-1") as running:
        yield running


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


@contextlib.asynccontextmanager
async def dialled(path: Any) -> AsyncIterator[grpc.aio.Channel]:
    options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        yield channel


# Registration and sockets.


@pytest.mark.contract("R1")
async def test_get_info_has_name_endpoint_and_services(plugin: Plugin, host: PluginHost) -> None:
    async with dialled(host.registry / "neuron.aws.com-pod-1-reg.sock") as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        info = await stub.GetInfo(registration_pb2.InfoRequest(), timeout=60)
    assert info == registration_pb2.PluginInfo(
        type="DRAPlugin",
        name=DRIVER,
        endpoint=str(host.data / "dra-pod-1.sock"),
        supported_versions=["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"],
    )


@pytest.mark.contract("R2")
async def test_service_serves_before_registration(host: PluginHost) -> None:
    settings = host.settings("pod-1")
    for _ in range(3):
        async with host.running("pod-1"):
            async with dialled(settings.dra_socket) as channel:
                answer = await dra_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
                    dra_pb2.NodePrepareResourcesRequest(), timeout=60
                )
            assert not answer.claims


@pytest.mark.contract("R3")
@with_timing(HURRIED, prepare={"get_s": 1.0})
async def test_registration_works_while_others_hang(
    plugin: Plugin, kubelet: ScriptedKubelet, host: PluginHost, api: EmbeddedApi
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    hang = api.faults.add(InjectedFault(Do.HANG, verb="get", resource="resourceclaims", times=None))
    call = asyncio.create_task(kubelet.prepare([made]))
    await eventually(lambda: hang.hits)
    async with dialled(host.registry / "neuron.aws.com-pod-1-reg.sock") as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        for _ in range(20):
            await stub.GetInfo(registration_pb2.InfoRequest(), timeout=20)  # less than the 45 s of the hung prepare
    call.cancel()
    api.faults.clear()


@pytest.mark.contract("R6")
async def test_restarted_kubelet_finds_the_plugin(plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    made = api.create(allocated_claim("job", "node-a", [0]))
    for _ in range(2):
        await kubelet.registered(DRIVER)
        assert not (await kubelet.prepare([made]))[made["metadata"]["uid"]].error
        await kubelet.restart()
    await kubelet.registered(DRIVER)


@pytest.mark.contract("R8")
@pytest.mark.contract("R9")
@pytest.mark.parametrize("retries", [True, False])
@pytest.mark.parametrize("text", ["unsupported", " "])
async def test_rejected_plugin_logs_and_registers_again(
    plugin: Plugin, host: PluginHost, retries: bool, text: str
) -> None:
    kubelet = ScriptedKubelet(host.registry)
    kubelet.script.refusals = [text]
    kubelet.script.retries_registration = retries
    assert "not registered" in plugin.why_not_ready()
    async with kubelet:
        await kubelet.registered(DRIVER)
        assert len(kubelet.attempts) == 1
        await eventually(lambda: plugin.registration.registered)
        assert "not registered" not in plugin.why_not_ready()


@pytest.mark.contract("R8")
@with_timing(HURRIED, kubelet={"verdict_s": 0.3})
async def test_missing_registration_result_renews_socket(plugin: Plugin, host: PluginHost) -> None:
    kubelet = ScriptedKubelet(host.registry)
    kubelet.script.silent_attempts = 1
    async with kubelet:
        await kubelet.registered(DRIVER)
    assert len(kubelet.attempts) == 1


@with_timing(HURRIED, kubelet={"verdict_s": 0.1})
async def test_own_probe_does_not_count_as_kubelet(plugin: Plugin, host: PluginHost) -> None:
    async with dialled(host.data / "dra-pod-1.sock") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="liveness"), timeout=60
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    before = os.lstat(host.registry / "neuron.aws.com-pod-1-reg.sock").st_ino
    await always(lambda: os.lstat(host.registry / "neuron.aws.com-pod-1-reg.sock").st_ino == before, 0.5)


@pytest.mark.contract("R10")
@pytest.mark.parametrize("which", ["dra", "reg"])
@pytest.mark.parametrize("how", ["removed", "stolen"])
async def test_removed_socket_is_served_again(
    plugin: Plugin, kubelet: ScriptedKubelet, host: PluginHost, api: EmbeddedApi, which: str, how: str
) -> None:
    await kubelet.registered(DRIVER)
    settings = host.settings("pod-1")
    path = settings.dra_socket if which == "dra" else settings.registration_socket
    path.unlink()
    with socket.socket(socket.AF_UNIX) as thief:
        if how == "stolen":
            thief.bind(str(path))
        await eventually(lambda: plugin._dra.intact and plugin._reg.intact)
        await eventually(lambda: plugin.registration.registered)
        made = api.create(allocated_claim("job", "node-a", [0]))

        async def prepared() -> bool:
            try:
                answer = await kubelet.prepare([made], deadline_s=2)
            except KubeletError:
                return False
            return not answer[made["metadata"]["uid"]].error

        async with asyncio.timeout(60):
            while not await prepared():
                await asyncio.sleep(0.05)


@pytest.mark.contract("R11")
async def test_bind_error_names_the_reason(host: PluginHost) -> None:
    (host.data).mkdir()
    (host.data / "dra.sock").mkdir()
    with pytest.raises(SocketError, match=r"cannot bind .*dra\.sock: the path is a file, not a socket"):
        async with host.running():
            pass
    with pytest.raises(SocketError, match="does not exist; is it mounted from the host"):
        await UnixServer(host.root / "none" / "a.sock", lambda server: None).start()


@pytest.mark.contract("R12")
def test_too_long_socket_path_is_rejected() -> None:
    folder = "/var/lib/" + "x" * 90
    with pytest.raises(SettingsError, match=r"has 1\d\d bytes, but Linux allows 107; use a shorter folder"):
        load({"node_name": "a", "kubelet_plugins_directory_path": folder}, {})
    fits = "/" + "x" * (107 - len("//neuron.aws.com/dra.sock"))
    assert len(str(load({"node_name": "a", "kubelet_plugins_directory_path": fits}, {}).dra_socket)) == 107


@pytest.mark.contract("R13")
async def test_two_plugins_end_independently(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    made = api.create(allocated_claim("job", "node-a", [0]))
    async with host.running("pod-2") as second:
        await kubelet.registered(DRIVER)
        async with host.running("pod-1"):
            await kubelet.registered(DRIVER, endpoint=str(host.data / "dra-pod-1.sock"))
            assert not (await kubelet.prepare([made]))[made["metadata"]["uid"]].error
        await kubelet.gone(DRIVER, endpoint=str(host.data / "dra-pod-1.sock"))
        assert not (await kubelet.unprepare([made]))[made["metadata"]["uid"]]
        assert second._dra.intact
        assert second._reg.intact


async def test_stop_keeps_a_socket_of_another_process(host: PluginHost) -> None:
    path = host.root / "a.sock"
    server = UnixServer(path, lambda server: None)
    await server.start()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        ours = os.lstat(path).st_ino
        await server.stop(0)
        assert os.lstat(path).st_ino == ours
    assert sorted(os.listdir(host.root)) == sorted({"a.sock", "host", "registry", "plugins", "device-plugins"})


@pytest.mark.contract("R16")
@pytest.mark.parametrize("dialect", [DRA_V1, DRA_V1BETA1])
async def test_old_and_new_kubelets_are_served_alike(
    plugin: Plugin, host: PluginHost, api: EmbeddedApi, dialect: str
) -> None:
    made = api.create(allocated_claim("job", "node-a", [0, 1], config=[neuron_config(1)]))
    uid = made["metadata"]["uid"]
    async with ScriptedKubelet(host.registry, services=[dialect]) as kubelet:
        assert (await kubelet.registered(DRIVER)).service == dialect
        (one, other) = (await kubelet.prepare([made]))[uid].devices
        assert (one.device_name, one.pool_name, one.request_names) == ("neuron-device-0", "node-a", ("neuron",))
        assert other.cdi_device_ids == (f"k8s.neuron.aws.com/claim={uid}-neuron-device-1",)
        assert await kubelet.unprepare([made]) == {uid: ""}
    assert host.specified == set()


@pytest.mark.contract("R17")
async def test_unknown_methods_are_unimplemented(plugin: Plugin, host: PluginHost) -> None:
    async with dialled(host.data / "dra-pod-1.sock") as channel:
        for method in ("/v9.DRAPlugin/NodePrepareResources", "/v1.DRAPlugin/NodeReboot", "/x"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await cast(Any, channel.unary_unary(method))(b"", timeout=60, metadata=(("x-unknown", "1"),))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        stub = dra_pb2_grpc.DRAPluginStub(channel)
        await stub.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(), timeout=60)


@pytest.mark.contract("R18")
@pytest.mark.contract("H7")
async def test_one_connection_carries_concurrent_calls(plugin: Plugin, host: PluginHost, api: EmbeddedApi) -> None:
    claims = [api.create(allocated_claim(f"job-{i}", "node-a", [i])) for i in range(8)]
    async with ScriptedKubelet(host.registry) as kubelet:
        await kubelet.registered(DRIVER)
        stream = kubelet.health()
        async with asyncio.timeout(60):
            await anext(stream)
        answers = await asyncio.gather(*(kubelet.prepare([made]) for made in claims))
        assert not [result for answer in answers for result in answer.values() if result.error]
        await asyncio.gather(*(kubelet.unprepare([made]) for made in claims))
        await stream.aclose()


@pytest.mark.contract("R19")
@pytest.mark.contract("P16")
async def test_connection_cut_during_prepare_is_harmless(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, host: PluginHost
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    delay = api.faults.add(InjectedFault(Do.DELAY, verb="get", resource="resourceclaims", delay_s=0.4))
    call = asyncio.create_task(kubelet.prepare([made]))
    await eventually(lambda: delay.hits)
    await kubelet.drop_connections()
    with pytest.raises((KubeletError, asyncio.CancelledError)):
        await call
    await kubelet.registered(DRIVER)
    answer = await kubelet.prepare([made])
    assert not answer[made["metadata"]["uid"]].error
    assert host.specified == {made["metadata"]["uid"]}
    assert len(api.requests("get", "resourceclaims")) == 1


@pytest.mark.contract("P16")
async def test_expired_deadline_does_not_stop_the_work(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, host: PluginHost
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    api.faults.add(InjectedFault(Do.DELAY, verb="get", resource="resourceclaims", delay_s=0.5))
    with pytest.raises(KubeletError, match="DeadlineExceeded"):
        await kubelet.prepare([made], deadline_s=0.2)
    assert not (await kubelet.prepare([made]))[made["metadata"]["uid"]].error
    assert len(api.requests("get", "resourceclaims")) == 1


@pytest.mark.contract("R20")
async def test_returned_service_socket_works(
    plugin: Plugin, kubelet: ScriptedKubelet, host: PluginHost, api: EmbeddedApi
) -> None:
    path = host.data / "dra-pod-1.sock"
    await kubelet.registered(DRIVER)
    os.rename(path, path.with_suffix(".away"))
    await eventually(lambda: plugin._dra.intact)
    await kubelet.drop_connections()
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    assert not (await kubelet.prepare([made]))[made["metadata"]["uid"]].error


@pytest.mark.contract("R21")
async def test_only_root_has_access_to_sockets_and_data(plugin: Plugin, host: PluginHost) -> None:
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in (host.data, *host.data.iterdir())}
    assert modes["neuron.aws.com"] == 0o750
    assert {mode & 0o077 for name, mode in modes.items() if name != "neuron.aws.com"} == {0}
    assert stat.S_IMODE((host.registry / "neuron.aws.com-pod-1-reg.sock").lstat().st_mode) == 0o600


# Prepare and unprepare.


@pytest.mark.contract("P1")
@pytest.mark.contract("P4")
@pytest.mark.contract("P12")
async def test_claims_of_a_batch_fail_independently(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, host: PluginHost
) -> None:
    await kubelet.registered(DRIVER)
    await eventually(lambda: plugin.publish_state.result)  # else counted as another driver's
    good = api.create(allocated_claim("good", "node-a", [0]))
    typo = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCoreCount": 1}
    wrong = api.create(allocated_claim("wrong", "node-a", [1], config=[opaque(typo)]))
    pending = api.create({**allocated_claim("pending", "node-a", [2]), "status": {}})
    replaced = KubeletClaim("default", "good", "another-uid")
    gone = KubeletClaim("default", "gone", "gone-uid")
    answers = await kubelet.prepare(
        [KubeletClaim.of(good), KubeletClaim.of(wrong), KubeletClaim.of(pending), replaced, gone]
    )
    assert [device.device_name for device in answers[good["metadata"]["uid"]].devices] == ["neuron-device-0"]
    assert 'did you mean "logicalNeuronCore"' in answers[wrong["metadata"]["uid"]].error
    assert "claim default/pending is not allocated" in answers[pending["metadata"]["uid"]].error
    assert "claim default/good was replaced" in answers["another-uid"].error
    assert "claim default/gone (UID gone-uid) does not exist" in answers["gone-uid"].error
    assert host.specified == host.checkpointed == {good["metadata"]["uid"]}
    refused = plugin.metrics.registry.get_sample_value  # 18.4
    assert refused("neuron_dra_refused_claims_total", {"reason": "Rejected"}) == 4


@pytest.mark.contract("P2")
async def test_retried_prepare_returns_the_same_result(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0, 3], config=[neuron_config(2)]))
    assert await kubelet.prepare([made]) == await kubelet.prepare([made])
    assert len(api.requests("get", "resourceclaims")) == 2


@pytest.mark.contract("P2")
async def test_retried_prepare_of_a_claim_made_for_a_pod_is_not_read_again(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0, 3], of_its_pod=True))
    assert await kubelet.prepare([made]) == await kubelet.prepare([made])
    assert len(api.requests("get", "resourceclaims")) == 1


@pytest.mark.contract("P34")
async def test_claim_that_the_next_pod_has_anew_is_refused(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    assert (await kubelet.prepare([made]))[made["metadata"]["uid"]].error == ""
    api.patch("resourceclaims", "job", {"status": {"reservedFor": None, "allocation": None}}, "default")
    api.patch("resourceclaims", "job", {"status": allocated_claim("job", "node-a", [5])["status"]}, "default")
    answers = await kubelet.prepare([made])
    assert "claim default/job was allocated again before it was unprepared" in answers[made["metadata"]["uid"]].error
    assert await kubelet.unprepare([made]) == {made["metadata"]["uid"]: ""}
    answers = await kubelet.prepare([made])
    assert [d.device_name for d in answers[made["metadata"]["uid"]].devices] == ["neuron-device-5"]


@pytest.mark.contract("P5")
async def test_recreated_claim_is_another_claim(plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    await kubelet.registered(DRIVER)
    old = api.create(allocated_claim("job", "node-a", [0]))
    api.patch("resourceclaims", "job", {"status": {"reservedFor": None, "allocation": None}}, "default")
    api.delete("resourceclaims", "job", "default")
    new = api.create(allocated_claim("job", "node-a", [5]))
    answers = await kubelet.prepare([old, new])
    assert "was replaced" in answers[old["metadata"]["uid"]].error
    assert [d.device_name for d in answers[new["metadata"]["uid"]].devices] == ["neuron-device-5"]


@pytest.mark.contract("N8")
async def test_claim_is_prepared_when_its_device_is_freed(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    old, new = (api.create(allocated_claim(name, "node-a", [5])) for name in ("old", "new"))
    async with host.running("pod-1", device_wait_seconds=3600):
        await kubelet.registered(DRIVER)
        await kubelet.prepare([old])
        waiting = asyncio.create_task(kubelet.prepare([new]))
        await eventually(lambda: "waiting for a device" in caplog.text, what="the wait")
        assert not waiting.done()
        await kubelet.unprepare([old])
        answer = (await waiting)[new["metadata"]["uid"]]
    assert (answer.error, [d.device_name for d in answer.devices]) == ("", ["neuron-device-5"])


@pytest.mark.contract("P6")
@pytest.mark.contract("N12")
async def test_empty_batch_has_an_empty_result(plugin: Plugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    assert await kubelet.prepare([]) == {}
    assert await kubelet.unprepare([]) == {}


@pytest.mark.contract("N2")
@pytest.mark.contract("N3")
async def test_unprepare_of_an_unknown_claim_succeeds(plugin: Plugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    unknown = KubeletClaim("ml", "none", "uid-none")
    for _ in range(2):
        assert await kubelet.unprepare([unknown]) == {"uid-none": ""}


@pytest.mark.contract("P3")
async def test_failed_prepare_succeeds_on_retry(plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    api.faults.add(InjectedFault(verb="get", resource="resourceclaims", status=403, times=3))
    uid = made["metadata"]["uid"]
    assert "403" in (await kubelet.prepare([made]))[uid].error
    assert not (await kubelet.prepare([made]))[uid].error


async def test_single_403_is_retried_within_the_call(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    """31.12: an API server that has just started may not know the driver's rights yet."""
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    fault = api.faults.add(InjectedFault(verb="get", resource="resourceclaims", status=403, times=1))
    assert not (await kubelet.prepare([made]))[made["metadata"]["uid"]].error
    assert fault.hits == 1


@pytest.mark.contract("P26")
async def test_unexpected_exception_is_a_claim_error(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    uid = made["metadata"]["uid"]

    def broken(*_: object) -> Any:
        raise ZeroDivisionError("secret detail")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plugin.admission, "decide", broken)
        error = (await kubelet.prepare([made]))[uid].error
    assert error == "claim default/job: internal error in neuron.aws.com; its log on this node has the details"
    assert not (await kubelet.prepare([made]))[uid].error
    refused = plugin.metrics.registry.get_sample_value  # 18.4
    assert refused("neuron_dra_refused_claims_total", {"reason": "Internal"}) == 1


@pytest.mark.contract("P27")
@with_timing(HURRIED, prepare={"get_s": 0.2, "fetch_patience_s": 1.0})
async def test_hanging_api_server_is_reported_before_deadline(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    assert DEFAULT_TIMING.prepare.get_s + DEFAULT_TIMING.prepare.fetch_patience_s < 45
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    api.faults.add(InjectedFault(Do.HANG, verb="get", resource="resourceclaims", times=None))
    error = (await kubelet.prepare([made], deadline_s=45))[made["metadata"]["uid"]].error
    assert "resourceclaims/job: the API server does not answer" in error


# A device plugin that allocates the same devices


@contextlib.contextmanager
def device_plugin(host: PluginHost) -> Iterator[None]:
    """A device plugin whose socket accepts connections."""
    path = host.device_plugins / "neuron-devplugin.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield
    path.unlink()


@with_timing(HURRIED, publish={"device_plugin_s": 0.05})
async def test_device_plugin_blocks_new_claims(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    """14.5: the device plugin would give the same device to another container. The kubelet retries."""
    before = api.create(allocated_claim("before", "node-a", [0]))
    async with host.running("pod-1") as plugin:
        await kubelet.registered(DRIVER)
        await eventually(lambda: plugin.publish_state.result is not None)
        assert not (await kubelet.prepare([before]))[before["metadata"]["uid"]].error
    with device_plugin(host):
        async with host.running("pod-2") as plugin:
            await kubelet.registered(DRIVER, endpoint=str(host.settings("pod-2").dra_socket))
            late = api.create(allocated_claim("late", "node-a", [1]))
            watcher = api.create(allocated_claim("watcher", "node-a", [{"device": 0, "adminAccess": True}]))
            answers = await kubelet.prepare([before, late, watcher])
            assert not answers[before["metadata"]["uid"]].error
            assert not answers[watcher["metadata"]["uid"]].error
            error = answers[late["metadata"]["uid"]].error
            assert error.startswith("claim default/late: a Neuron device plugin is alive on node node-a (its socket ")
            assert await kubelet.unprepare([before]) == {before["metadata"]["uid"]: ""}
            api.patch("nodes", "node-a", {"status": {"allocatable": {"aws.amazon.com/neuron": "0"}}})
    async with host.running("pod-3") as plugin:
        await kubelet.registered(DRIVER, endpoint=str(host.settings("pod-3").dra_socket))
        assert not (await kubelet.prepare([late]))[late["metadata"]["uid"]].error


@with_timing(HURRIED, publish={"device_plugin_s": 0.05})
async def test_pod_of_a_device_plugin_that_is_gone_closes_the_node(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    """31.5: it runs on while the Node's allocatable is 0. What is prepared stays so."""
    before = api.create(allocated_claim("before", "node-a", [0]))
    async with host.running("pod-1") as plugin, PodResources(Pods(), host.pod_resources) as pods:
        await kubelet.registered(DRIVER)
        await eventually(lambda: plugin.publish_state.result is not None)
        assert not (await kubelet.prepare([before]))[before["metadata"]["uid"]].error
        pods.of_plugin["old"] = {"aws.amazon.com/neuron": ["3"]}
        await eventually(lambda: plugin.device_plugin.pods)
        await published_again(plugin)
        late = api.create(allocated_claim("late", "node-a", [1]))
        answers = await kubelet.prepare([before, late])
        assert not answers[before["metadata"]["uid"]].error
        why = "pod ml/old (aws.amazon.com/neuron) on node node-a has devices of a Neuron device plugin"
        assert answers[late["metadata"]["uid"]].error.startswith(f"claim default/late: {why}")
        await eventually(lambda: any(why in event["message"] for event in api.objects("events")))
        assert host.checkpointed == host.specified == {before["metadata"]["uid"]}
        pods.of_plugin.clear()
        await eventually(lambda: not plugin.device_plugin.pods)
        assert not (await kubelet.prepare([late]))[late["metadata"]["uid"]].error


class Pods:
    """A node with one pod."""

    pods: ClassVar[list[Any]] = [
        {"metadata": {"name": "old", "namespace": "ml"}, "spec": {"containers": [{"name": "main"}]}}
    ]

    def prepared(self, namespace: str, name: str) -> None:
        return None


async def test_warn_mode_prepares_beside_a_device_plugin(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    with device_plugin(host):
        async with host.running("pod-1", device_plugin_coexistence="warn"):
            await kubelet.registered(DRIVER)
            made = api.create(allocated_claim("job", "node-a", [0]))
            assert not (await kubelet.prepare([made]))[made["metadata"]["uid"]].error


TROUBLE: dict[str, InjectedFault | Strange] = {
    "429 that asks for an hour": InjectedFault(status=429, retry_after=3600, times=2),
    "429 with a date": InjectedFault(status=429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT", times=2),
    "429 without a word": InjectedFault(status=429, times=2),
    "500": InjectedFault(status=500, times=3),
    "503 of a proxy": InjectedFault(status=503, body=b"<html>no healthy upstream</html>", times=3),
    "a dropped connection": InjectedFault(Do.DROP, times=3),
    "a page of HTML": STRANGE["a page of HTML"],
    "half an object": STRANGE["half an object"],
}


@pytest.mark.contract("P3")
@pytest.mark.parametrize("trouble", TROUBLE)
@with_timing(HURRIED, prepare={"fetch_retry_s": (0.01, 0.1), "longest_retry_after_s": 0.1})
async def test_transient_api_errors_fail_no_claim(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, trouble: str
) -> None:
    """14.7: a failure delays the pod by 90 s, and the kubelet's deadline is 45 s."""
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    kind = TROUBLE[trouble]
    fault = dataclasses.replace(kind) if isinstance(kind, InjectedFault) else kind.fault(times=3)
    fault.verb, fault.resource = "get", "resourceclaims"
    api.faults.add(fault)
    [answer] = (await kubelet.prepare([made])).values()
    assert (answer.error, [device.device_name for device in answer.devices]) == ("", ["neuron-device-0"])
    assert fault.hits == fault.times


@pytest.mark.contract("P3")
@with_timing(HURRIED, prepare={"fetch_retry_s": (0.01, 0.1)})
async def test_short_api_outage_fails_no_claim(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14.7: for example during an update of the only API server behind the load balancer."""
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [0]))
    refused = 0
    get = plugin.client.get

    async def counted(*args: Any, **more: Any) -> bytes:
        nonlocal refused
        try:
            return await get(*args, **more)
        except Unavailable:
            refused += 1
            raise

    monkeypatch.setattr(plugin.client, "get", counted)
    await api.refuse_connections()
    call = asyncio.create_task(kubelet.prepare([made]))
    await eventually(lambda: refused > 2, what="refused connections")
    await api.resume()
    [answer] = (await call).values()
    assert not answer.error


@pytest.mark.contract("P30")
async def test_many_claims_with_many_devices_meet_the_deadline(
    plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi, host: PluginHost
) -> None:
    await kubelet.registered(DRIVER)
    every = [{"device": i, "adminAccess": True} for i in range(16)]
    claims = [api.create(allocated_claim(f"job-{i}", "node-a", every)) for i in range(20)]
    answers = await kubelet.prepare(claims, deadline_s=45)
    assert [len(answer.devices) for answer in answers.values()] == [16] * 20
    assert len(host.specified) == 20


@pytest.mark.contract("P15")
async def test_shares_of_one_device_are_separate(plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    await kubelet.registered(DRIVER)
    shares = [f"00000000-0000-4000-8000-00000000000{i}" for i in (1, 2)]
    made = api.create(allocated_claim("job", "node-a", [{"device": 0, "shareID": share} for share in shares]))
    devices = (await kubelet.prepare([made]))[made["metadata"]["uid"]].devices
    assert [device.share_id for device in devices] == shares
    assert len({device.cdi_device_ids for device in devices}) == 2


# Health.


@pytest.mark.contract("H1")
@pytest.mark.contract("H2")
@pytest.mark.contract("H8")
@pytest.mark.parametrize("dialect", [HEALTH_V1, HEALTH_V1ALPHA1])
@with_timing(HURRIED, kubelet={"health_s": 0.2})
async def test_health_list_is_complete_on_each_update(
    plugin: Plugin, kubelet: ScriptedKubelet, host: PluginHost, dialect: str
) -> None:
    assert DEFAULT_TIMING.kubelet.health_s < DEFAULT_TIMING.kubelet.health_timeout_s / 2
    await kubelet.registered(DRIVER)
    await eventually(lambda: len(plugin.health.devices) == 16)
    stream = kubelet.health(dialect)
    async with asyncio.timeout(60):
        first = await anext(stream)
        assert [device.device_name for device in first] == [f"neuron-device-{i}" for i in range(16)]
        assert {(d.health, d.pool_name, d.timeout_s) for d in first} == {("HEALTHY", "node-a", 60)}
        assert await anext(stream)  # no change: sent after the period
        host.hardware.add_ecc(3)
        while (device := (await anext(stream))[3]).health == "HEALTHY":
            pass
        assert (device.health, device.message) == ("UNHEALTHY", "1 uncorrectable HBM error")
    await stream.aclose()


@pytest.mark.contract("H3")
@pytest.mark.contract("H4")
async def test_health_streams_are_independent(plugin: Plugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    await eventually(lambda: len(plugin.health.devices) == 16)
    kept = kubelet.health()
    async with asyncio.timeout(60):
        await anext(kept)
        before = len(asyncio.all_tasks())
        for _ in range(50):
            other = kubelet.health()
            await anext(other)
            await other.aclose()
        await eventually(lambda: len(asyncio.all_tasks()) <= before + 2)
        plugin.health.set(())
        assert await anext(kept) == []
    await kept.aclose()


@pytest.mark.contract("H9")
async def test_idle_health_reader_blocks_no_other(plugin: Plugin, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    await kubelet.registered(DRIVER)
    slow = kubelet.health()
    await anext(slow)
    states = plugin.health.devices
    for turn in range(2000):
        plugin.health.set(() if turn % 2 else states)
    made = api.create(allocated_claim("job", "node-a", [0]))
    assert not (await kubelet.prepare([made], deadline_s=45))[made["metadata"]["uid"]].error
    await slow.aclose()


@pytest.mark.contract("R5")
@with_timing(HURRIED, kubelet={"call_grace_s": 3600.0})  # a stop that waits for it does not end
async def test_open_health_stream_does_not_delay_stop(host: PluginHost, kubelet: ScriptedKubelet) -> None:
    async with host.running("pod-1"):
        await kubelet.registered(DRIVER)
        stream = kubelet.health()
        await anext(stream)
    assert not list(host.registry.iterdir())
    assert not list(host.data.glob("*.sock"))
    await stream.aclose()


@with_timing(HURRIED, kubelet={"transaction_grace_s": 0.3, "call_grace_s": 0.3}, prepare={"get_s": 600.0})
async def test_hanging_claim_delays_stop_by_its_grace_only(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    made = api.create(allocated_claim("job", "node-a", [0]))
    hang = api.faults.add(InjectedFault(Do.HANG, verb="get", resource="resourceclaims", times=None))
    async with host.running("pod-1"):
        await kubelet.registered(DRIVER)
        call = asyncio.create_task(kubelet.prepare([made]))
        await eventually(lambda: hang.hits)
    with pytest.raises((KubeletError, asyncio.CancelledError)):
        await call
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("prepare")] == []


@with_timing(HURRIED, kubelet={"call_grace_s": 3600.0, "transaction_grace_s": 3600.0})
async def test_stop_fails_claims_waiting_for_a_device(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    old, new = (api.create(allocated_claim(name, "node-a", [5])) for name in ("old", "new"))
    async with host.running("pod-1", device_wait_seconds=3600):
        await kubelet.registered(DRIVER)
        await kubelet.prepare([old])
        waiting = asyncio.create_task(kubelet.prepare([new]))
        await eventually(lambda: "waiting for a device" in caplog.text, what="the wait")
        assert not waiting.done()
    assert "neuron5 is held by claim default/old" in (await waiting)[new["metadata"]["uid"]].error


# Reflection and the inspector


async def test_services_support_reflection(plugin: Plugin, host: PluginHost) -> None:
    async def ask(channel: grpc.aio.Channel, request: Any) -> Any:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = stub.ServerReflectionInfo(iter([request]), timeout=60)
        answers = [answer async for answer in stream]
        return answers[0]

    everything = reflection_pb2.ServerReflectionRequest(list_services="")
    async with dialled(host.data / "dra-pod-1.sock") as channel:
        answer = await ask(channel, everything)
        services = {service.name for service in answer.list_services_response.service}
        assert services == {
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
            "neuron.dra.v1.NodeInspector",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        for name in services:
            described = await ask(channel, reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
            assert described.file_descriptor_response.file_descriptor_proto, name
    async with dialled(host.registry / "neuron.aws.com-pod-1-reg.sock") as channel:
        answer = await ask(channel, everything)
        assert "pluginregistration.Registration" in {s.name for s in answer.list_services_response.service}


async def test_inspector_shows_devices_claims_and_settings(
    plugin: Plugin, kubelet: ScriptedKubelet, host: PluginHost, api: EmbeddedApi
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [3], namespace="default", config=[neuron_config(1)]))
    uid = made["metadata"]["uid"]
    await kubelet.prepare([made])
    host.hardware.add_ecc(5)
    await eventually(lambda: plugin.publish_state.result and plugin.hardware.facts.devices[5].mem_ecc_uncorrected == 1)
    async with dialled(host.data / "dra-pod-1.sock") as channel:
        stub = inspector_pb2_grpc.NodeInspectorStub(channel)
        devices = await stub.ListDevices(inspector_pb2.ListDevicesRequest(), timeout=60)
        claims = await stub.ListPreparedClaims(inspector_pb2.ListPreparedClaimsRequest(), timeout=60)
        status = await stub.GetStatus(inspector_pb2.GetStatusRequest(), timeout=60)
        settings = await stub.GetConfiguration(inspector_pb2.GetConfigurationRequest(), timeout=60)
    assert (devices.node_name, devices.instance_type, len(devices.devices)) == ("node-a", "trn2.48xlarge", 16)
    assert [device.device_id for device in devices.devices if device.claim_uid] == [3]
    assert devices.devices[3].claim_uid == uid
    assert devices.devices[5].health == inspector_pb2.Health.HEALTH_UNHEALTHY
    assert list(devices.devices[0].connected_devices) == sorted(plugin.hardware.node.devices[0].connected)
    (claim,) = claims.claims
    assert (claim.namespace, claim.name, claim.uid) == ("default", "job", uid)
    assert json.loads(Path(claim.cdi_file).read_text())["kind"] == "k8s.neuron.aws.com/claim"
    assert "NEURON_LOGICAL_NC_CONFIG=1" in claim.devices[0].env
    assert (status.registered, status.published, status.devices, status.slices) == (True, True, 16, 1)
    assert {s.name: s.value for s in settings.settings}["node_name"] == "node-a"


@pytest.mark.contract("O1")
@with_timing(HURRIED, kubelet={"supervise_s": 3600.0})  # it would serve the socket again
async def test_liveness_probes_the_sockets(host: PluginHost) -> None:
    async def alive(channel: grpc.aio.Channel) -> int:
        stub = health_pb2_grpc.HealthStub(channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=60)).status)

    async with host.running("pod-1") as plugin, dialled(host.settings("pod-1").registration_socket) as channel:
        assert await alive(channel) == health_pb2.HealthCheckResponse.SERVING
        await plugin._dra.stop(0)
        assert await alive(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


class CountedRegistration(Registration):
    """Counts the calls of GetInfo."""

    times = 0

    async def GetInfo(self, request: registration_pb2.InfoRequest, context: Any) -> registration_pb2.PluginInfo:
        self.times += 1
        return await super().GetInfo(request, context)


async def test_health_checks_share_one_probe(plugin: Plugin, short_path: Path) -> None:
    """14.14: the health port requires no credentials."""
    asked = CountedRegistration("dra.sock", lambda: None)
    server = UnixServer(
        short_path / "reg.sock", lambda made: registration_pb2_grpc.add_RegistrationServicer_to_server(asked, made)
    )
    await server.start()
    try:
        timing = quicker(DEFAULT_TIMING.liveness, holds_s=3600.0)
        made = liveness.Liveness(plugin.settings.dra_socket, server.path, timing)
        assert await asyncio.gather(*(made.alive() for _ in range(50))) == [True] * 50
        assert asked.times == 1
        await server.restart()
        assert await made.alive()
        assert asked.times == 2, "another socket is looked at"
    finally:
        await server.stop(0)


async def test_health_port_is_taken_over_when_free(plugin: Plugin) -> None:
    holder = socket.create_server(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    server = TcpHealthServer("127.0.0.1", port, plugin.services.add_health)
    waiting = asyncio.create_task(server.run(retry_s=0.05))
    try:
        await always(lambda: not waiting.done(), 0.3)
        holder.close()
        async with asyncio.timeout(60):
            await waiting
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="liveness"), timeout=60
            )
            # 14.16: grpcurl finds the service without a proto file here, too.
            everything = reflection_pb2.ServerReflectionRequest(list_services="")
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            [listed] = [each async for each in stub.ServerReflectionInfo(iter([everything]), timeout=60)]
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        services = [service.name for service in listed.list_services_response.service]
        assert services == ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]
    finally:
        holder.close()
        waiting.cancel()
        await server.stop(0)


@pytest.mark.contract("O2")
@pytest.mark.contract("O3")
@pytest.mark.contract("R9")
async def test_http_serves_readiness_and_metrics(host: PluginHost, api: EmbeddedApi) -> None:
    """14.14: `neuron_device` is the label that `neuron_dra_device_fault` has, too."""
    async with (
        host.running("pod-1", metrics_bind_address="127.0.0.1:0") as plugin,
        aiohttp.ClientSession() as http,
    ):
        await eventually(lambda: plugin.http.port)
        base = f"http://127.0.0.1:{plugin.http.port}"

        async def read(path: str) -> tuple[int, str]:
            async with http.get(base + path) as response:
                return response.status, await response.text()

        assert (await read("/healthz"))[0] == 200
        status, text = await read("/readyz")
        assert status == 503
        assert "not registered with the kubelet" in text
        async with ScriptedKubelet(host.registry) as kubelet:
            await kubelet.registered(DRIVER)
            await eventually(lambda: not plugin.why_not_ready())
            assert (await read("/readyz"))[0] == 200
            made = api.create(allocated_claim("job", "node-a", [3], pod="job-pod"))
            await kubelet.prepare([made])
            await eventually(lambda: plugin.metrics.registry.get_sample_value("neuron_dra_prepared_claims") == 1)
            _, metrics = await read("/metrics")
        held = (
            'neuron_dra_device_info{claim="job",device="neuron3",namespace="default",neuron_device="3",pod="job-pod",'
            'workload=""} 1.0'
        )
        assert held in metrics, [line for line in metrics.splitlines() if "neuron3" in line]
        assert 'neuron_dra_claim_operation_seconds_count{operation="prepare",result="ok"} 1.0' in metrics
        assert (await read("/other"))[0] == 404


@pytest.mark.contract("P22")
async def test_full_disk_serves_prepared_claims(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    made = api.create(allocated_claim("job", "node-a", [0]))
    async with host.running("pod-1"):
        await kubelet.registered(DRIVER)
        answer = await kubelet.prepare([made])
    files = FaultyFiles()
    files.fail(1, disk_error(DISK_ERRORS[0]), times=None)
    async with host.running("pod-2", files=files) as plugin:
        await kubelet.registered(DRIVER, endpoint=str(host.data / "dra-pod-2.sock"))
        assert await kubelet.prepare([made]) == answer
        assert "No space left" in (await kubelet.unprepare([made]))[made["metadata"]["uid"]]
        files.heal()
        assert await kubelet.unprepare([made]) == {made["metadata"]["uid"]: ""}
        await eventually(lambda: plugin.publisher_lock.holding)


async def test_failed_event_is_posted_later(host: PluginHost, api: EmbeddedApi) -> None:
    api.faults.add(InjectedFault(verb="create", resource="events", status=500, times=1))
    host.hardware.break_link(0, 1)
    async with host.running("pod-1") as plugin:
        await eventually(lambda: api.requests("create", "events"))
        plugin.dirty.notify()
        await eventually(lambda: api.objects("events"))
        for _ in range(3):
            await published_again(plugin)
        assert len({event["message"] for event in api.objects("events")}) == len(api.objects("events"))


async def test_event_of_an_earlier_run_is_renewed(host: PluginHost, api: EmbeddedApi) -> None:
    host.hardware.break_link(0, 1)
    for count in (1, 2):
        async with host.running("pod-1"):
            await eventually(
                lambda wanted=count: [e for e in api.objects("events") if e["count"] == wanted], what=f"count {count}"
            )


async def test_failed_bind_removes_the_first_socket(host: PluginHost) -> None:
    (host.registry / "neuron.aws.com-pod-1-reg.sock").mkdir()
    with pytest.raises(SocketError):
        async with host.running("pod-1"):
            pass
    assert list(host.data.glob("*.sock")) == []
