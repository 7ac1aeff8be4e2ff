"""No reply of the API server ends the plugin, and Events do not delay slices (14.2, 14.11)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core.claims import ClaimRef
from neuron_dra.emulation.embedded_api import (
    STRANGE,
    Do,
    EmbeddedApi,
    InjectedFault,
)
from neuron_dra.emulation.embedded_api.faults import Strange
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support import slots
from tests.support.plugin_host import PluginHost, published_again
from tests.support.timings import QUICK, quicker, with_timing
from tests.support.waiting import eventually

LONG_S = 120
NAME = "node-a-neuron.aws.com-00"


HURRIED = quicker(
    QUICK,
    client={"watch": {"retry_s": (0.02, 0.1)}},
    publish={"retry_s": (0.02, 0.1), "leaving": {"check_s": DEFAULT_TIMING.publish.leaving.check_s}},
    orphans={"report_first_s": (0.05, 0.05), "report_s": 0.05},
)


@pytest.fixture
def timing() -> PluginTiming:
    return HURRIED


async def settled(api: EmbeddedApi, plugin: Plugin) -> None:
    await eventually(lambda: plugin.publish_state.result, LONG_S, "the first publish")


@pytest.mark.parametrize("name", STRANGE)
async def test_malformed_claim_does_not_end_orphan_search(api: EmbeddedApi, host: PluginHost, name: str) -> None:
    """14.11. `running` raises the error that ends the plugin."""
    meta = api.create(allocated_claim("job", "node-a", [0]))["metadata"]
    ref = ClaimRef("default", "job", meta["uid"])
    async with host.running() as plugin:
        await settled(api, plugin)
        await plugin.transactions.prepare(ref)
        strange = api.faults.add(STRANGE[name].fault(verb="get", resource="resourceclaims", times=None))
        await eventually(lambda: strange.hits >= 2, LONG_S, "it goes on")
        assert set(plugin.prepared.claims) == {ref.uid}


async def test_reply_of_a_proxy_makes_no_claim_orphaned(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    """15, orphans: a 404 counts only if the API server says that the object is not found."""
    meta = api.create(allocated_claim("job", "node-a", [0]))["metadata"]
    async with host.running() as plugin:
        await settled(api, plugin)
        await plugin.transactions.prepare(ClaimRef("default", "job", meta["uid"]))
        proxy = api.faults.add(
            InjectedFault(verb="get", resource="resourceclaims", status=404, body=b"404 page not found", times=None)
        )
        await eventually(lambda: proxy.hits >= 2, LONG_S, "two searches")
    assert "the object of a prepared claim is gone" not in caplog.text


@with_timing(HURRIED, orphans={"report_s": 3600.0})
async def test_unprepared_orphan_is_not_counted_for_another_hour(api: EmbeddedApi, host: PluginHost) -> None:
    """18.4: its alert did not resolve before the next search."""
    meta = api.create(allocated_claim("job", "node-a", [0]))["metadata"]
    ref = ClaimRef("default", "job", meta["uid"])
    async with host.running() as plugin:
        await settled(api, plugin)
        await plugin.transactions.prepare(ref)
    api.delete("resourceclaims", "job", "default")
    async with host.running() as plugin:
        await eventually(lambda: orphans_of(plugin) == 1, LONG_S, "the orphan is counted")
        await plugin.transactions.unprepare(ref)
        await eventually(lambda: orphans_of(plugin) == 0, LONG_S, "nothing is counted")


@with_timing(HURRIED, orphans={"report_s": 3600.0})
async def test_restarted_plugin_soon_counts_its_orphans(api: EmbeddedApi, host: PluginHost) -> None:
    """18.4: it counted none for an hour, and the alert resolved."""
    meta = api.create(allocated_claim("job", "node-a", [0]))["metadata"]
    async with host.running() as plugin:
        await settled(api, plugin)
        await plugin.transactions.prepare(ClaimRef("default", "job", meta["uid"]))
    api.delete("resourceclaims", "job", "default")
    async with host.running() as plugin:
        await eventually(lambda: orphans_of(plugin) == 1, LONG_S, "the orphan is counted")


def orphans_of(plugin: Plugin) -> float | None:
    return plugin.metrics.registry.get_sample_value("neuron_dra_prepared_claims_without_object")


@pytest.mark.parametrize("name", STRANGE)
async def test_malformed_replies_do_not_end_publishing(api: EmbeddedApi, host: PluginHost, name: str) -> None:
    """14.11. `running` raises the error that ends the plugin."""
    for verb in ("list", "get", "create", "update", "patch"):
        api.faults.add(STRANGE[name].fault(verb=verb, times=None))
    asked = len(api.log)
    async with host.running() as plugin:
        await eventually(lambda: len(api.log) >= asked + 8, LONG_S, "it asks again and again")
        api.faults.clear()
        await settled(api, plugin)
        await eventually(lambda: not plugin.publish_state.error, LONG_S, "the publish succeeds")
        assert len(api.get("resourceslices", NAME)["spec"]["devices"]) == 16


NO_SLICES: dict[str, dict[str, Any]] = {
    "no spec": {},
    "no pool": {"spec": {"driver": "neuron.aws.com"}},
    "a generation in words": {"spec": {"pool": {"name": "node-a", "generation": "one"}}},
    "devices without names": {"spec": {"pool": {"name": "node-a", "generation": 1}, "devices": [{}]}},
}


@pytest.mark.parametrize("name", NO_SLICES)
async def test_list_of_other_objects_does_not_end_publishing(api: EmbeddedApi, host: PluginHost, name: str) -> None:
    """31, mend 2: a list of slices had objects that are none."""
    meta = {"name": "other", "uid": "u", "resourceVersion": "1"}
    listed = {"kind": "ResourceSliceList", "metadata": {"resourceVersion": "1"}}
    body = json.dumps({**listed, "items": [{"metadata": meta, **NO_SLICES[name]}]}).encode()
    strange = api.faults.add(Strange(body).fault(verb="list", resource="resourceslices", times=None))
    async with host.running() as plugin:
        await eventually(lambda: strange.hits and plugin.hardware.known.is_set(), LONG_S, "the list and the hardware")
        await settled(api, plugin)
        api.faults.clear()
        await eventually(lambda: not plugin.publish_state.error, LONG_S, "the publish succeeds")
        assert len(api.get("resourceslices", NAME)["spec"]["devices"]) == 16


async def test_checkpoint_damaged_before_publish_is_rebuilt(api: EmbeddedApi, host: PluginHost) -> None:
    """14.11."""
    held = api.faults.add(InjectedFault(Do.ANSWER_LATE, verb="list", resource="nodes"))
    async with host.running() as plugin:
        await eventually(lambda: held.hits and plugin.hardware.known.is_set(), LONG_S)
        slots.tear_all(host.data)
        held.release()
        await settled(api, plugin)
        await eventually(lambda: plugin.prepared.damaged is None, LONG_S, "the checkpoint is whole")
        assert host.checkpointed == set()


# Logs and metrics.


@pytest.mark.parametrize(
    "fault", [InjectedFault(Do.HANG), InjectedFault(status=503), InjectedFault(status=429, retry_after=30)]
)
async def test_failing_events_delay_no_slice(api: EmbeddedApi, host: PluginHost, fault: InjectedFault) -> None:
    """14.2: the first slice came after 33 s, a taint after 44 s."""
    fault.resource, fault.times = "events", None
    api.faults.add(fault)
    for device_id in range(4):
        host.hardware.break_link(device_id * 4, device_id * 4 + 1)
    async with host.running() as plugin:
        await eventually(lambda: fault.hits, LONG_S, "an Event is posted")
        hits = fault.hits
        if fault.do is Do.HANG:
            await settled(api, plugin)
            assert fault.hits == hits == 1, "published while the first Event is still under way"
        host.hardware.add_ecc(5)

        def tainted() -> bool:
            (found,) = api.objects("resourceslices") or [{"spec": {}}]
            return any(device.get("taints") for device in found["spec"].get("devices", []))

        await eventually(tainted, LONG_S, "the taint")
        if fault.do is Do.HANG:
            assert fault.hits == 1, "tainted while the first Event is still under way"


async def test_finding_events_are_posted_after_recovery(api: EmbeddedApi, host: PluginHost) -> None:
    host.hardware.break_link(0, 1)
    async with host.running() as plugin:
        await settled(api, plugin)
        events = await api.until("events", lambda items: any("neuron0 and neuron1" in e["message"] for e in items))
        others = ("NeuronPodsNotListed", "KubeletKnownBad")  # there is no kubelet that lists pods
        assert [e["reason"] for e in events if e["reason"] not in others] == ["NeuronMissingLink"]


# One deadline.


def lists_of_claims(api: EmbeddedApi) -> int:
    return len(api.requests("list", "resourceclaims"))


@with_timing(HURRIED, publish={"leaving": {"check_s": (3600.0, 3600.0)}})
async def test_withdrawal_checks_are_rate_limited(api: EmbeddedApi, host: PluginHost) -> None:
    """14.3: a hundred cluster-wide LISTs a minute."""
    async with host.running() as plugin:
        await settled(api, plugin)
        api.create(allocated_claim("job", "node-a", [3]))  # not prepared yet
        before = lists_of_claims(api)
        host.hardware.remove_device(3)
        await eventually(lambda: lists_of_claims(api) == before + 1, LONG_S, "the device's allocation is read")
        for _ in range(5):
            await published_again(plugin)
        assert lists_of_claims(api) == before + 1
        assert len(api.get("resourceslices", NAME)["spec"]["devices"]) == 16


# The host's root.


def device_nodes(host: PluginHost, uid: str) -> list[dict[str, Any]]:
    return [
        node
        for device in host.spec(uid)["devices"]
        for node in device["containerEdits"].get("deviceNodes", device["containerEdits"].get("mounts"))
    ]


@pytest.mark.parametrize("simulated", [True, False])
async def test_cdi_device_files_have_host_paths(api: EmbeddedApi, host: PluginHost, simulated: bool) -> None:
    """14.12: the container runtime does not see the plugin's mounts. Simulated hardware has the same path for both."""
    meta = api.create(allocated_claim("job", "node-a", [3]))["metadata"]
    if not simulated:
        (host.root / "host" / ".fake-node").unlink()
    async with host.running() as plugin:
        await settled(api, plugin)
        await plugin.transactions.prepare(ClaimRef("default", "job", meta["uid"]))
    (node,) = device_nodes(host, meta["uid"])
    if simulated:
        assert node["hostPath"] == str(host.root / "host" / "dev" / "neuron3")
    else:
        assert node == {"path": "/dev/neuron3"}


# Unhealthy devices in the log


async def test_health_changes_and_findings_are_logged(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    """14.14."""

    def lines(text: str) -> list[Any]:
        return [record for record in caplog.records if record.message == text]

    caplog.set_level("INFO")
    host.hardware.break_link(0, 1)
    async with host.running(unhealthy_device_hold_seconds=0.1) as plugin:
        await settled(api, plugin)
        assert [record.kind for record in lines("hardware finding")] == ["missing-link"]
        host.hardware.add_ecc(5)
        await eventually(lambda: lines("a device is unhealthy"), LONG_S)
        host.hardware.add_ecc(5)
        host.hardware.add_ecc(5, count=-9)
        await eventually(lambda: lines("a device is healthy again"), LONG_S)
    logged = [(record.device, record.reasons) for record in lines("a device is unhealthy")]
    assert logged == [("neuron-device-5", "hbm_ecc")]
    assert [record.device for record in lines("a device is healthy again")] == ["neuron-device-5"]


@with_timing(HURRIED, publish={"retry_s": (3600.0, 3600.0)})
async def test_health_is_sent_while_publishing_backs_off(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        api.faults.add(InjectedFault(resource="resourceslices", status=503, times=None))
        host.hardware.add_ecc(5)
        await eventually(lambda: plugin.publish_state.error, LONG_S)
        host.hardware.add_ecc(7)

        def sick() -> list[str]:
            return [d.name for d in plugin.health.devices if d.status.value == "UNHEALTHY"]

        await eventually(lambda: sick() == ["neuron-device-5", "neuron-device-7"], LONG_S)
        before = plugin.hardware.read_at
        await eventually(lambda: plugin.hardware.read_at > before, LONG_S, "the next reading")
        assert plugin.publish_state.error
