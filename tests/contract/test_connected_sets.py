"""16.1: a plugin with --connected-sets publishes them where it may, and withdraws them without losing a counter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.api import objects
from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import divided
from neuron_dra.core.claims import ClaimRef
from neuron_dra.emulation.embedded_api import NOT_FOUND, EmbeddedApi
from neuron_dra.errors import DeviceInUse
from neuron_dra.node.publish import connected
from neuron_dra.node.timing import PluginTiming
from tests.contract.sets_node import closing, server_with_a_node, whole_pool
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK, quicker, with_timing
from tests.support.waiting import always, eventually

ON: dict[str, Any] = {"connected_sets": True}
SET = "neuron-set-3-0"


SERVER = {"ask_s": 0.1, "retry_s": 0.1, "closed_s": 0.3}
HURRIED = quicker(QUICK, publish={"leaving": {"withdraw_s": 0.5}, "sets_check_s": (0.1, 0.3), "server": SERVER})


@pytest.fixture
def timing() -> PluginTiming:
    return HURRIED


@pytest.fixture
async def api() -> AsyncIterator[EmbeddedApi]:
    async with server_with_a_node() as server:
        yield server


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path, timing: PluginTiming) -> AsyncIterator[PluginHost]:
    async with closing(PluginHost(short_path, api.url, instance_type="inf2.48xlarge", timing=timing)) as made:
        yield made


def counters(api: EmbeddedApi) -> list[str]:
    return [each["name"] for item in api.objects("resourceslices") for each in item["spec"].get("sharedCounters", [])]


def writes(api: EmbeddedApi) -> int:
    asked = api.requests(resource="resourceslices")
    return len([e for e in asked if e.verb in ("create", "update", "delete") and "dryRun" not in e.query])


def off_events(api: EmbeddedApi) -> list[str]:
    return [e["message"] for e in api.objects("events", "default") if e["reason"] == "NeuronConnectedSetsOff"]


def ref(claim: dict[str, Any]) -> ClaimRef:
    return ClaimRef("default", claim["metadata"]["name"], claim["metadata"]["uid"])


async def all_published(api: EmbeddedApi) -> None:
    await eventually(lambda: len(whole_pool(api)) == 223, what="the sets")


@pytest.mark.contract("S22")
async def test_sets_are_published_in_one_pool_and_then_nothing_is_written(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**ON):
        await all_published(api)
        assert counters(api) == ["devices", "cores-0"]
        sizes = [len(item["spec"].get("devices", [])) for item in api.objects("resourceslices")]
        assert sizes == [64, 64, 64, 31, 0]
        before = writes(api)
        await always(lambda: writes(api) == before, 1.0)
    async with host.running(**ON):
        await always(lambda: writes(api) == before, 1.0)


@pytest.mark.parametrize("dropped", ["spec.devices[*].consumesCounters", "spec.sharedCounters"])
async def test_dropped_counters_give_plain_slices(api: EmbeddedApi, host: PluginHost, dropped: str) -> None:
    api.dropped_fields["resourceslices"] = {dropped}
    async with host.running(**ON):
        await eventually(lambda: len(whole_pool(api)) == 12)
        await eventually(lambda: "DRAPartitionableDevices" in "".join(off_events(api)))
        assert (counters(api), writes(api)) == ([], 1)
        api.dropped_fields["resourceslices"] = set()  # it is upgraded
        await all_published(api)


async def test_the_class_must_exclude_sets_first(api: EmbeddedApi, host: PluginHost) -> None:
    api.delete("deviceclasses", "neuron.aws.com")
    api.create(objects.device_class("neuron.aws.com", "true"))
    async with host.running(**ON):
        await eventually(lambda: "also selects connected sets" in "".join(off_events(api)))
        assert len(whole_pool(api)) == 12
        api.delete("deviceclasses", "neuron.aws.com")
        api.create(objects.DEVICE_CLASSES[0])
        await all_published(api)


@pytest.mark.parametrize("reply", NOT_FOUND)
async def test_a_proxys_404_of_the_class_ends_no_sets(api: EmbeddedApi, host: PluginHost, reply: str) -> None:
    """4.02: the control is the API server's own 404."""
    async with host.running(**ON):
        await all_published(api)
        before = whole_pool(api)
        absent = NOT_FOUND[reply].fault(verb="get", resource="deviceclasses", times=3)
        api.faults.add(absent)
        await eventually(lambda: absent.hits == 3, what="three 404s")
        assert (off_events(api), whole_pool(api)) == ([], before)
        api.delete("deviceclasses", "neuron.aws.com")
        await eventually(lambda: "is missing" in "".join(off_events(api)))


@with_timing(HURRIED, publish={"sets_check_s": (3600.0, 3600.0)})
async def test_an_old_kubelet_gets_plain_slices_until_it_is_updated(api: EmbeddedApi, host: PluginHost) -> None:
    """The next check may be twelve minutes away; the Node shows the new version at once."""
    api.patch("nodes", "node-a", {"status": {"nodeInfo": {"kubeletVersion": "v1.35.4-eks-1"}}})
    async with host.running(**ON):
        await eventually(lambda: "kubelet is 1.35" in "".join(off_events(api)))
        assert len(whole_pool(api)) == 12
        assert api.requests(resource="deviceclasses") == []  # what costs no request is checked first
        api.patch("nodes", "node-a", {"status": {"nodeInfo": {"kubeletVersion": "v1.36.1"}}})
        await all_published(api)


async def test_disabled_setting_changes_nothing(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.result is not None)
        [item] = api.objects("resourceslices")
        assert "sharedCounters" not in item["spec"]
        assert api.requests(resource="deviceclasses") == []
        assert not (host.data / connected.MARKER).exists()


@pytest.mark.parametrize("settings", [ON, {}], ids=["on", "off"])
async def test_a_kill_while_sets_are_recorded_leaves_no_file(
    api: EmbeddedApi, host: PluginHost, settings: dict[str, Any]
) -> None:
    """(16, acceptance 6) A plugin that was killed while it wrote the file left a temporary one for ever."""
    host.data.mkdir()
    left = host.data / f".{connected.MARKER}.4242.tmp"
    left.touch()
    async with host.running(**settings):
        await eventually(lambda: whole_pool(api))
        assert not left.exists()


async def test_turned_off_allocated_sets_stay_until_they_are_free(api: EmbeddedApi, host: PluginHost) -> None:
    held = api.create(allocated_claim("held", "node-a", [SET]))
    async with host.running(**ON) as plugin:
        await all_published(api)
        assert len((await plugin.transactions.prepare(ref(held))).devices) == 1
    waiting = allocated_claim("waiting", "node-a", ["neuron-cores-3-20"])
    del waiting["status"]["reservedFor"]  # its pod is gone, and its next one is not there yet
    waiting = api.create(waiting)
    kept = {*(f"neuron-device-{i}" for i in range(12)), SET, "neuron-cores-3-20"}
    async with host.running() as plugin:
        await eventually(lambda: set(whole_pool(api)) == kept)
        assert all(device["consumesCounters"] for device in whole_pool(api).values())
        taints = whole_pool(api)[SET]["taints"]
        assert [(taint["key"], taint["effect"]) for taint in taints] == [(divided.TAINT_KEY, "NoSchedule")]
        one = api.create(allocated_claim("one", "node-a", ["neuron-device-1"]))
        with pytest.raises(DeviceInUse):
            await plugin.transactions.prepare(ref(one))
        api.delete("resourceclaims", "waiting", "default")
        await plugin.transactions.unprepare(ref(held))
        api.delete("resourceclaims", "held", "default")
        await eventually(lambda: len(whole_pool(api)) == 12 and not counters(api))
        assert not any("consumesCounters" in device for device in whole_pool(api).values())
        await eventually(lambda: not (host.data / connected.MARKER).exists())


async def test_after_a_wipe_and_with_the_setting_off_allocated_sets_return(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**ON):
        await all_published(api)
    api.create(allocated_claim("waiting", "node-a", [SET]))
    for item in api.objects("resourceslices"):
        api.delete("resourceslices", item["metadata"]["name"])
    async with host.running():
        await eventually(lambda: whole_pool(api))
        assert SET in whole_pool(api)
        assert whole_pool(api)[SET]["consumesCounters"]
        await always(lambda: SET in whole_pool(api), 1.0)


async def test_unhealthy_device_taints_its_sets(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**ON):
        await all_published(api)
        before = writes(api)
        host.hardware.add_ecc(5)
        await eventually(lambda: whole_pool(api) and whole_pool(api)["neuron-set-4-3"].get("taints"))
        tainted = {name for name, device in whole_pool(api).items() if device.get("taints")}
        assert {"neuron-device-5", "neuron-cores-1-10", "neuron-set-2-4"} <= tainted
        assert "neuron-set-2-6" not in tainted
        assert writes(api) <= before + 5

        def reported() -> list[str]:
            events = [e for e in api.objects("events", "default") if e["reason"] == "NeuronDeviceUnhealthy"]
            return [event["message"].split()[0] for event in events]

        assert await eventually(reported) == ["neuron-device-5"]
    async with host.running(**ON):  # a set's mark is not a fault of its other devices
        await always(lambda: {n for n, d in whole_pool(api).items() if d.get("taints")} == tainted, 1.0)
