"""The scripted kubelet with a small plugin: registration, calls and errors as by a kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.emulation.scripted_kubelet import (
    DRA_V1,
    DRA_V1BETA1,
    HEALTH_V1,
    KubeletClaim,
    KubeletDevice,
    KubeletError,
    PreparedResult,
    ReportedHealth,
    ScriptedKubelet,
)
from neuron_dra.gen.kubelet.health.v1 import health_pb2
from neuron_dra.gen.kubelet.pluginregistration.v1 import registration_pb2 as reg
from tests.support.small_plugin import SmallPlugin
from tests.support.waiting import eventually

DRIVER = "neuron.aws.com"
CLAIM = KubeletClaim("ml", "job-0", "uid-0")


@pytest.fixture
async def plugin(tmp_path: Path) -> AsyncIterator[SmallPlugin]:
    plugin = await SmallPlugin(tmp_path).start()
    yield plugin
    await plugin.stop()


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(tmp_path / "registry") as kubelet:
        yield kubelet


async def test_kubelet_registers_a_plugin(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    registration = await kubelet.registered(DRIVER)

    assert (registration.driver, registration.endpoint, registration.service) == (DRIVER, plugin.endpoint, DRA_V1)
    assert registration.offered == (DRA_V1, DRA_V1BETA1, HEALTH_V1)
    await eventually(lambda: plugin.verdicts)
    assert plugin.verdicts == [(True, "")]


async def test_late_plugin_is_found(tmp_path: Path, kubelet: ScriptedKubelet) -> None:
    plugin = await SmallPlugin(tmp_path).start()
    assert (await kubelet.registered(DRIVER)).socket == plugin.socket
    await plugin.stop()


async def test_empty_endpoint_is_the_registration_socket(tmp_path: Path, kubelet: ScriptedKubelet) -> None:
    plugin = SmallPlugin(tmp_path)
    plugin.info.endpoint = ""
    await plugin.start()
    assert (await kubelet.registered(DRIVER)).endpoint == plugin.socket
    await plugin.stop()


async def test_prepare_returns_each_claims_result(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    other = {"metadata": {"namespace": "ml", "name": "job-1", "uid": "uid-1"}}
    plugin.errors["uid-1"] = "no such device"

    results = await kubelet.prepare([CLAIM, other])

    ids = ("k8s.neuron.aws.com/claim=uid-0-neuron-device-0",)
    assert results == {
        "uid-0": PreparedResult((KubeletDevice(("neurons",), "a", "neuron-device-0", ids),)),
        "uid-1": PreparedResult(error="no such device"),
    }
    assert plugin.calls[-1] == ("v1 prepare", ["uid-0", "uid-1"])


async def test_unprepare_returns_empty_text_on_success(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    plugin.errors["uid-1"] = "still in use"
    answer = await kubelet.unprepare([CLAIM, KubeletClaim("ml", "job-1", "uid-1")])
    assert answer == {"uid-0": "", "uid-1": "still in use"}


async def test_a_claim_without_an_answer_is_an_error(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    plugin.skipped = {"uid-0"}
    with pytest.raises(KubeletError, match=r"^NodePrepareResources skipped 1 ResourceClaims$"):
        await kubelet.prepare([CLAIM])
    with pytest.raises(KubeletError, match=r"^NodeUnprepareResources skipped 1 ResourceClaims$"):
        await kubelet.unprepare([CLAIM])


async def test_result_for_an_unknown_claim_is_an_error(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    plugin.surplus = ["uid-9"]
    with pytest.raises(KubeletError, match="returned result for unknown claim UID uid-9"):
        await kubelet.prepare([CLAIM])


async def test_an_old_kubelet_speaks_v1beta1(plugin: SmallPlugin, tmp_path: Path) -> None:
    async with ScriptedKubelet(tmp_path / "registry", services=(DRA_V1BETA1,)) as kubelet:
        assert (await kubelet.registered(DRIVER)).service == DRA_V1BETA1
        await kubelet.prepare([CLAIM])
    assert plugin.calls[-1] == ("v1beta1 prepare", ["uid-0"])


async def test_plugins_order_decides_the_service(tmp_path: Path, kubelet: ScriptedKubelet) -> None:
    plugin = SmallPlugin(tmp_path)
    plugin.info.supported_versions[:] = ["v9.DRAPlugin", DRA_V1BETA1, DRA_V1]
    await plugin.start()
    assert (await kubelet.registered(DRIVER)).service == DRA_V1BETA1
    await plugin.stop()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"supported_versions": []}, "empty list"),
        ({"supported_versions": ["v9.DRAPlugin"]}, "none of the services v9.DRAPlugin is supported"),
    ],
)
async def test_unsupported_plugin_is_rejected_with_the_reason(
    tmp_path: Path, kubelet: ScriptedKubelet, change: dict[str, Any], text: str
) -> None:
    plugin = SmallPlugin(tmp_path)
    fields = {"type": "DRAPlugin", "name": DRIVER, "endpoint": plugin.endpoint, "supported_versions": [DRA_V1]}
    plugin.info = reg.PluginInfo(**{**fields, **change})
    await plugin.start()
    await eventually(lambda: plugin.verdicts)
    accepted, reason = plugin.verdicts[0]
    assert not accepted
    assert text in reason
    assert kubelet.registrations == []
    await plugin.stop()


async def test_slow_get_info_is_retried(plugin: SmallPlugin, tmp_path: Path) -> None:
    plugin.info_delay_s = 0.5
    async with ScriptedKubelet(tmp_path / "registry", info_timeout_s=0.1) as kubelet:
        await eventually(lambda: kubelet.attempts)
        plugin.info_delay_s = 0.0
        await kubelet.registered(DRIVER)
        assert "DeadlineExceeded" in kubelet.attempts[0]


async def test_scripted_rejection_is_sent_once(tmp_path: Path, kubelet: ScriptedKubelet) -> None:
    kubelet.script.refusals = ["not today"]
    plugin = await SmallPlugin(tmp_path).start()
    await kubelet.registered(DRIVER)
    assert plugin.verdicts[0] == (False, "not today")
    await plugin.stop()


async def test_kubelet_1_35_does_not_retry_a_rejected_socket(tmp_path: Path, kubelet: ScriptedKubelet) -> None:
    kubelet.script.refusals, kubelet.script.retries_registration = ["not today"], False
    plugin = await SmallPlugin(tmp_path).start()
    with pytest.raises(TimeoutError):
        await kubelet.registered(DRIVER, timeout_s=1.0)

    Path(plugin.socket).unlink()
    await plugin.serve_registration()

    await kubelet.registered(DRIVER)
    await plugin.stop()


async def test_removed_socket_ends_the_registration(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    Path(plugin.socket).unlink()
    await kubelet.gone(DRIVER)
    with pytest.raises(KubeletError, match=f"^DRA driver {DRIVER} is not registered$"):
        await kubelet.prepare([CLAIM], driver=DRIVER)


async def test_latest_instance_is_called(plugin: SmallPlugin, tmp_path: Path, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    newer = await SmallPlugin(tmp_path, "b").start()
    await kubelet.registered(DRIVER, endpoint=newer.endpoint)

    await kubelet.prepare([CLAIM])
    assert newer.calls[-1] == ("v1 prepare", ["uid-0"])

    await newer.stop()
    await kubelet.gone(DRIVER, endpoint=newer.endpoint)
    await kubelet.prepare([CLAIM])
    assert plugin.calls[-1] == ("v1 prepare", ["uid-0"])


async def test_instance_cannot_take_anothers_endpoint(
    plugin: SmallPlugin, tmp_path: Path, kubelet: ScriptedKubelet
) -> None:
    await kubelet.registered(DRIVER)
    thief = SmallPlugin(tmp_path, "b")
    thief.info.endpoint = plugin.endpoint
    await thief.serve_registration()
    await eventually(lambda: thief.verdicts)
    assert thief.verdicts[0] == (False, f"endpoint {plugin.endpoint} already registered for DRA driver plugin {DRIVER}")
    await thief.stop()


async def test_slow_call_fails_with_the_deadline(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    plugin.prepare_delay_s = 5.0
    with pytest.raises(KubeletError, match="NodePrepareResources: rpc error: code = DeadlineExceeded"):
        await kubelet.prepare([CLAIM], deadline_s=0.1)


async def test_dropped_connections_are_restored(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    plugin.prepare_delay_s = 5.0
    running = asyncio.create_task(kubelet.prepare([CLAIM]))
    await eventually(lambda: ("v1 prepare", ["uid-0"]) in plugin.calls)

    await kubelet.drop_connections()

    with pytest.raises((KubeletError, asyncio.CancelledError)):
        await running
    plugin.prepare_delay_s = 0.0
    await kubelet.registered(DRIVER)
    assert await kubelet.prepare([CLAIM])


async def test_restarted_kubelet_registers_the_plugin_again(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    await kubelet.restart()
    await kubelet.registered(DRIVER)
    assert [call for call in plugin.calls if call[0] == "GetInfo"] == [("GetInfo", [])] * 2


async def test_restarted_plugin_is_registered_again(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    await kubelet.registered(DRIVER)
    await plugin.stop()
    await kubelet.gone(DRIVER)
    await plugin.start()
    await kubelet.registered(DRIVER)


async def test_health_is_read_as_complete_lists(plugin: SmallPlugin, kubelet: ScriptedKubelet) -> None:
    plugin.health = [health_pb2.HEALTHY, health_pb2.UNHEALTHY]
    await kubelet.registered(DRIVER)
    lists = [devices async for devices in kubelet.health()]
    assert lists == [
        [ReportedHealth("a", "neuron-device-0", "HEALTHY", 7, 0, "ecc")],
        [ReportedHealth("a", "neuron-device-0", "UNHEALTHY", 7, 0, "ecc")],
    ]


def _slice(name: str, node: str, driver: str = DRIVER) -> dict[str, Any]:
    spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


async def test_kubelet_start_deletes_its_nodes_slices(tmp_path: Path) -> None:
    async with EmbeddedApi() as api:
        for name, node in (("a-0", "a"), ("a-1", "a"), ("b-0", "b")):
            api.create(_slice(name, node))
        api.faults.add(InjectedFault(Do.RESPOND, verb="deletecollection", status=503))
        async with ScriptedKubelet(tmp_path / "registry", node_name="a", api_url=api.url):
            left = await api.until("resourceslices", lambda found: len(found) == 1)
    assert [entry["metadata"]["name"] for entry in left] == ["b-0"]


async def test_slices_of_an_absent_plugin_are_deleted(plugin: SmallPlugin, tmp_path: Path) -> None:
    async with (
        EmbeddedApi() as api,
        ScriptedKubelet(tmp_path / "registry", node_name="a", api_url=api.url, wipe_delay_s=0.3) as kubelet,
    ):
        await kubelet.registered(DRIVER)
        await eventually(lambda: api.requests("deletecollection"))  # the one at the start
        api.create(_slice("a-0", "a"))
        api.create(_slice("a-1", "a", "dra.net"))
        await plugin.stop()
        left = await api.until("resourceslices", lambda found: len(found) == 1)
    assert [entry["spec"]["driver"] for entry in left] == ["dra.net"]


async def test_plugin_returning_in_time_keeps_slices(plugin: SmallPlugin, tmp_path: Path) -> None:
    async with (
        EmbeddedApi() as api,
        ScriptedKubelet(tmp_path / "registry", node_name="a", api_url=api.url, wipe_delay_s=3600.0) as kubelet,
    ):
        await kubelet.registered(DRIVER)
        await eventually(lambda: api.requests("deletecollection"))
        api.create(_slice("a-0", "a"))
        await plugin.stop()
        await kubelet.gone(DRIVER)
        timer = f"kubelet: wipe {DRIVER}"
        await eventually(lambda: timer in {task.get_name() for task in asyncio.all_tasks()}, what="the timer")
        await plugin.start()
        await kubelet.registered(DRIVER)
        await eventually(lambda: timer not in {task.get_name() for task in asyncio.all_tasks()}, what="its end")
        assert len(api.objects("resourceslices")) == 1
