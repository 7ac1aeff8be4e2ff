"""ResourceSlices on an API server: correct, complete, rarely written, and restored when lost."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim, node_object
from neuron_dra.core.claims import ClaimRef
from neuron_dra.core.slices import Pool
from neuron_dra.core.wire import Wire
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound, TooManyRequests
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.kube.reflector import Reflector
from neuron_dra.kube.requests import RESOURCE_SLICES
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.publish.slice_publisher import SlicePublisher
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from tests.support.faulty_files import DISK_ERRORS, FaultyFiles, disk_error
from tests.support.plugin_host import PluginHost, published_again
from tests.support.timings import QUICK, quicker, with_timing
from tests.support.waiting import always, eventually

NAME = "node-a-neuron.aws.com-00"


def devices(count: int, **more: Any) -> list[Wire]:
    return [{"name": f"neuron-device-{i}", "attributes": {"deviceId": {"int": i}}, **more} for i in range(count)]


def writes(api: EmbeddedApi) -> list[tuple[str, str, int]]:
    return [
        (entry.verb, entry.name, entry.status)
        for entry in api.requests(resource="resourceslices")
        if entry.verb in ("create", "update", "patch", "delete", "deletecollection")
    ]


class Publisher:
    """One plugin's publisher, without its loop."""

    def __init__(self, api: EmbeddedApi, client: KubeClient) -> None:
        self.api = api
        self.slices = Reflector(client, RESOURCE_SLICES, field_selector="spec.nodeName=node-a")
        self.publisher = SlicePublisher(client, self.slices)
        self.pool = Pool("node-a", api.get("nodes", "node-a")["metadata"]["uid"])

    async def publish(self, wanted: list[Wire]) -> Any:
        return await self.publisher.publish(self.pool, wanted)


@pytest.fixture
async def client(api: EmbeddedApi) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeConfig(api.url)) as made:
        yield made


@pytest.fixture
async def publisher(api: EmbeddedApi, client: KubeClient) -> Publisher:
    made = Publisher(api, client)
    await made.slices.relist()
    return made


@pytest.mark.contract("S1")
async def test_the_first_publish_makes_one_slice(api: EmbeddedApi, publisher: Publisher) -> None:
    result = await publisher.publish(devices(16))
    assert (result.generation, result.slices, result.devices, result.writes) == (1, 1, 16, 1)
    (made,) = api.objects("resourceslices")
    assert made["metadata"]["name"] == NAME
    assert made["metadata"]["ownerReferences"][0]["uid"] == publisher.pool.node_uid
    assert made["spec"]["pool"] == {"name": "node-a", "generation": 1, "resourceSliceCount": 1}


@pytest.mark.contract("S2")
async def test_publishing_unchanged_slices_writes_nothing(api: EmbeddedApi, publisher: Publisher) -> None:
    await publisher.publish(devices(16))
    for _ in range(3):
        assert (await publisher.publish(devices(16))).writes == 0
    await publisher.slices.relist()
    assert (await publisher.publish(devices(16))).writes == 0
    assert [verb for verb, _, _ in writes(api)] == ["create"]


@pytest.mark.contract("S3")
async def test_a_change_in_one_slice_is_one_update(api: EmbeddedApi, publisher: Publisher) -> None:
    await publisher.publish(devices(16))
    result = await publisher.publish(devices(15))
    assert (result.generation, result.writes) == (1, 1)
    assert len(api.get("resourceslices", NAME)["spec"]["devices"]) == 15


def foreign_slice(name: str, node: str = "node-b", driver: str = "neuron.aws.com") -> dict[str, Any]:
    """A slice with a name of node-a's slices, created by another node's plugin or another driver."""
    pool = {"name": node or "everywhere", "generation": 1, "resourceSliceCount": 1}
    where = {"nodeName": node} if node else {"allNodes": True}
    spec = {"driver": driver, "pool": pool, **where}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(("node", "driver"), [("node-b", "neuron.aws.com"), ("node-b", "dra.net"), ("", "dra.net")])
async def test_taken_slice_name_is_avoided(
    api: EmbeddedApi, client: KubeClient, publisher: Publisher, node: str, driver: str
) -> None:
    """14.10. The message names the owner. A restarted plugin keeps its name."""
    api.create(foreign_slice(NAME, node, driver))
    with pytest.raises(AlreadyExists):
        await publisher.publish(devices(16))
    result = await publisher.publish(devices(16))
    assert (result.slices, result.writes) == (1, 1)
    assert publisher.publisher.taken == {NAME: f"of driver {driver} and {f'node {node}' if node else 'no node'}"}
    ours = [each["metadata"]["name"] for each in api.objects("resourceslices") if each["metadata"]["name"] != NAME]
    assert ours == ["node-a-neuron.aws.com-01"]
    again = Publisher(api, client)
    await again.slices.relist()
    assert (await again.publish(devices(16))).writes == 0
    api.delete("resourceslices", NAME)
    assert (await again.publish(devices(16))).writes == 0


async def test_unseen_own_slice_is_not_a_taken_name(api: EmbeddedApi, client: KubeClient, publisher: Publisher) -> None:
    """14.10. Another plugin of this node may have created it recently."""
    other = Publisher(api, client)
    await other.slices.relist()
    await other.publish(devices(8))
    with pytest.raises(AlreadyExists):
        await publisher.publish(devices(16))
    await publisher.publish(devices(16))
    (made,) = api.objects("resourceslices")
    assert (made["metadata"]["name"], len(made["spec"]["devices"]), publisher.publisher.taken) == (NAME, 16, {})


async def test_taint_probe_avoids_a_taken_name(api: EmbeddedApi, publisher: Publisher) -> None:
    """14.10. Otherwise taints would seem unsupported, and unhealthy devices would be withdrawn."""
    api.create(foreign_slice("node-a-neuron.aws.com-99"))
    await publisher.publisher.learn_taints(publisher.pool)
    assert publisher.publisher.keeps_taints is True


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_failed_probe_says_nothing_about_fields(api: EmbeddedApi, publisher: Publisher, status: int) -> None:
    """31.10: a proxy's 404 counted as a server without taints, and sick devices left the slice."""
    api.faults.add(InjectedFault(verb="create", resource="resourceslices", status=status, times=4))
    found = publisher.publisher
    for learn in (found.learn_taints, found.learn_counters):
        for _ in range(2):
            with pytest.raises(ApiError):
                await learn(publisher.pool)
    assert (found.keeps_taints, found.keeps_counters) == (None, None)
    await found.learn_taints(publisher.pool)
    await found.learn_counters(publisher.pool)
    assert (found.keeps_taints, found.keeps_counters) == (True, True)


@pytest.mark.parametrize("status", [400, 422])
async def test_rejected_probe_counts_as_a_dropped_field(api: EmbeddedApi, publisher: Publisher, status: int) -> None:
    api.faults.add(InjectedFault(verb="create", resource="resourceslices", status=status))
    await publisher.publisher.learn_taints(publisher.pool)
    assert publisher.publisher.keeps_taints is False


async def test_publish_fails_if_all_names_are_taken(api: EmbeddedApi, publisher: Publisher) -> None:
    publisher.publisher.taken = {
        f"node-a-neuron.aws.com-{number:02d}": "of driver x and no node" for number in range(99)
    }
    with pytest.raises(ApiError, match="other programs' slices have 99 of the 99 slice names of node node-a; delete"):
        await publisher.publish(devices(16))
    assert writes(api) == []


@pytest.mark.contract("S5")
@pytest.mark.contract("S25")
async def test_foreign_slices_are_deleted_first(api: EmbeddedApi, publisher: Publisher) -> None:
    for number in range(2):
        api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"node-a-neuron.aws.com-x{number}"},
                "spec": {
                    "driver": "neuron.aws.com",
                    "nodeName": "node-a",
                    "pool": {"name": "node-a", "generation": 4, "resourceSliceCount": 2},
                    "devices": [{"name": f"neuron-device-{number}"}],
                },
            }
        )
    await publisher.slices.relist()
    await publisher.publish(devices(70))
    assert [verb for verb, _, _ in writes(api)] == ["delete", "delete", "create", "create"]
    left = api.objects("resourceslices")
    assert {item["spec"]["pool"]["generation"] for item in left} == {5}
    assert sum(len(item["spec"]["devices"]) for item in left) == 70


@pytest.mark.contract("S9")
async def test_conflict_reads_the_slice_again(api: EmbeddedApi, publisher: Publisher) -> None:
    await publisher.publish(devices(2))
    api.patch("resourceslices", NAME, {"metadata": {"labels": {"by": "hand"}}})
    with pytest.raises(Conflict):
        await publisher.publish(devices(3))
    assert (await publisher.publish(devices(3))).writes == 1


@pytest.mark.contract("S9")
async def test_existing_slice_is_adopted(api: EmbeddedApi, publisher: Publisher, client: KubeClient) -> None:
    other = Publisher(api, client)
    await other.slices.relist()
    await other.publish(devices(2))
    with pytest.raises(AlreadyExists):
        await publisher.publish(devices(3))
    result = await publisher.publish(devices(3))
    assert (result.generation, result.writes) == (1, 1)
    assert len(api.objects("resourceslices")) == 1


@pytest.mark.contract("S9")
async def test_lost_reply_is_harmless(api: EmbeddedApi, publisher: Publisher) -> None:
    api.faults.add(InjectedFault(Do.DROP_AFTER, verb="create", resource="resourceslices"))
    with pytest.raises(Exception, match="does not answer"):
        await publisher.publish(devices(2))
    with pytest.raises(AlreadyExists):
        await publisher.publish(devices(2))
    assert (await publisher.publish(devices(2))).writes == 0
    assert len(api.objects("resourceslices")) == 1


@pytest.mark.contract("S6")
async def test_deleted_slice_is_recreated(api: EmbeddedApi, publisher: Publisher) -> None:
    await publisher.publish(devices(2))
    api.delete("resourceslices", NAME)
    with pytest.raises(NotFound):
        await publisher.publish(devices(3))
    assert (await publisher.publish(devices(3))).writes == 1


@pytest.mark.contract("S10")
async def test_rejected_slice_error_names_the_field(api: EmbeddedApi, publisher: Publisher) -> None:
    with pytest.raises(Invalid, match=r"spec\.devices\[0\]\.name"):
        await publisher.publish([{"name": "Not_A_Label"}])
    assert (await publisher.publish(devices(1))).writes == 1


@pytest.mark.contract("S11")
async def test_dropped_field_is_reported_once(api: EmbeddedApi, publisher: Publisher) -> None:
    api.dropped_fields["resourceslices"] = {"spec.devices[*].taints"}
    tainted = devices(2, taints=[{"key": "k", "effect": "NoSchedule"}])
    first = await publisher.publish(tainted)
    assert first.dropped == ("devices[0].taints", "devices[1].taints")
    second = await publisher.publish(tainted)
    assert (second.writes, second.dropped) == (0, first.dropped)
    api.dropped_fields.clear()
    plain = await publisher.publish(devices(2))
    assert (plain.writes, plain.dropped) == (0, ()) or plain.dropped == first.dropped
    other = devices(2, taints=[{"key": "k2", "effect": "NoSchedule"}])
    assert (await publisher.publish(other)).dropped == ()


@pytest.mark.contract("S12")
async def test_taint_time_survives_updates(api: EmbeddedApi, publisher: Publisher) -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    await publisher.publish(devices(2, taints=[taint]))
    stored = api.get("resourceslices", NAME)
    for device in stored["spec"]["devices"]:
        device["taints"][0]["timeAdded"] = added = "2026-03-21T11:43:02Z"  # set by the server
    api.replace(stored)
    await publisher.slices.relist()
    assert (await publisher.publish(devices(2, taints=[taint]))).writes == 0
    await publisher.publish([*devices(2, taints=[taint]), {"name": "neuron-device-2"}])
    assert api.get("resourceslices", NAME)["spec"]["devices"][0]["taints"][0]["timeAdded"] == added
    assert (await publisher.publish([*devices(2, taints=[taint]), {"name": "neuron-device-2"}])).writes == 0


@pytest.mark.contract("S13")
async def test_no_device_is_an_empty_slice(api: EmbeddedApi, publisher: Publisher) -> None:
    await publisher.publish([])
    assert "devices" not in api.get("resourceslices", NAME)["spec"]
    assert (await publisher.publish([])).writes == 0


async def test_partial_publish_is_completed(api: EmbeddedApi, publisher: Publisher) -> None:
    await publisher.publish(devices(200))
    api.faults.add(InjectedFault(verb="update", resource="resourceslices", nth=2, status=429, retry_after=1))
    with pytest.raises(TooManyRequests):
        await publisher.publish(devices(200, capacity={"memory": {"value": "96Gi"}}))
    await publisher.publish(devices(200, capacity={"memory": {"value": "96Gi"}}))
    left = api.objects("resourceslices")
    assert len({item["spec"]["pool"]["generation"] for item in left}) == 1
    assert all("capacity" in device for item in left for device in item["spec"]["devices"])


# The whole loop, in a plugin without a kubelet


HURRIED = quicker(DEFAULT_TIMING, publish={"gather_s": 0.02, "retry_s": (0.05, 0.5)})


@pytest.fixture
def timing() -> PluginTiming:
    return HURRIED


async def published(api: EmbeddedApi, count: int = 16) -> dict[str, Any]:
    (found,) = await api.until(
        "resourceslices",
        lambda items: len(items) == 1 and len(items[0]["spec"].get("devices", [])) == count,
    )
    return found


async def settled(api: EmbeddedApi, plugin: Plugin) -> None:
    """Return when the loop is idle."""
    await published(api)
    await eventually(lambda: plugin.publish_state.result is not None)


@pytest.mark.contract("S1")
@pytest.mark.contract("S2")
async def test_plugin_publishes_with_one_write(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        for _ in range(3):
            await published_again(plugin)
        api.patch("nodes", "node-a", {"metadata": {"annotations": {"x": "y"}}})
        await eventually(lambda: (plugin.node.object or {})["metadata"].get("annotations") == {"x": "y"})
        await published_again(plugin)
        assert [verb for verb, _, _ in writes(api)] == ["create"]
        assert "the kubelet" in plugin.why_not_ready()
    assert len(api.objects("resourceslices")) == 1, "a stopped plugin keeps its slices"


async def test_taken_name_is_avoided_and_reported(api: EmbeddedApi, host: PluginHost) -> None:
    """14.10."""
    api.create(foreign_slice(NAME))

    def published() -> list[str]:
        found = [each for each in api.objects("resourceslices") if each["spec"].get("nodeName") == "node-a"]
        return [str(each["metadata"]["name"]) for each in found]

    def messages() -> list[str]:
        return [str(each["message"]) for each in api.objects("events") if each["reason"] == "NeuronSliceNameTaken"]

    async with host.running():
        assert await eventually(published) == ["node-a-neuron.aws.com-01"]
        (text,) = await eventually(messages)
    assert text.startswith(
        f"ResourceSlice {NAME} is of driver neuron.aws.com and node node-b, but its name is reserved for this node's"
    )


@pytest.mark.contract("S6")
@pytest.mark.contract("S7")
async def test_deleted_slices_are_recreated(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        for _ in range(3):
            before = api.get("resourceslices", NAME)["metadata"]["uid"]
            api.delete("resourceslices", NAME)
            await api.until("resourceslices", functools.partial(is_another, before))


@pytest.mark.contract("S6")
@with_timing(HURRIED, publish={"compare_s": 0.5})
async def test_next_compare_restores_a_deleted_slice(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        await eventually(lambda: api.watches.count("resourceslices") == 1)
        hang = api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="resourceslices", times=None))
        api.watches.close("resourceslices")
        await eventually(lambda: hang.hits > 0)
        api.delete("resourceslices", NAME)

        def woken() -> object:
            """The loop is woken more often than it compares, as by a busy Node."""
            plugin.dirty.notify()
            return api.find("resourceslices", NAME)

        await eventually(woken, what="the slice")


@pytest.mark.contract("S8")
async def test_an_edit_by_hand_is_reverted_once(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        edited = copy.deepcopy(api.get("resourceslices", NAME))
        edited["spec"]["devices"] = edited["spec"]["devices"][:3]
        api.replace(edited)
        await published(api)
        for _ in range(2):
            await published_again(plugin)
        assert [verb for verb, _, _ in writes(api)] == ["create", "update"]


@pytest.mark.contract("S9")
@pytest.mark.parametrize(
    "fault",
    [
        InjectedFault(verb="create", status=500, times=2),
        InjectedFault(verb="create", status=409, times=3),
        InjectedFault(verb="create", status=404, times=2),
        InjectedFault(Do.DROP, verb="create", times=2),
        InjectedFault(Do.DROP_AFTER, verb="create", times=1),
        InjectedFault(verb="list", status=410, times=2),
        InjectedFault(verb="list", status=200, body=b"<html>", times=2),
    ],
)
async def test_publishing_recovers_from_any_first_reply(
    api: EmbeddedApi, host: PluginHost, fault: InjectedFault
) -> None:
    fault.resource = "resourceslices"
    api.faults.add(fault)
    async with host.running() as plugin:
        await settled(api, plugin)
        await eventually(lambda: not plugin.publish_state.error)
        assert fault.hits == fault.times


@pytest.mark.contract("S9")
async def test_retry_after_delays_the_next_write(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    api.faults.add(InjectedFault(verb="create", resource="resourceslices", status=429, retry_after=50))
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.error)
        (wait_s,) = retries_in_s(caplog)
        assert 50 <= wait_s <= 75
        plugin.dirty.notify()
        await always(lambda: len(writes(api)) == 1, 0.3, "waiting")


@pytest.mark.contract("S9")
async def test_next_write_follows_retry_after(api: EmbeddedApi, host: PluginHost) -> None:
    api.faults.add(InjectedFault(verb="create", resource="resourceslices", status=429, retry_after=1))
    async with host.running() as plugin:
        await settled(api, plugin)
        assert [verb for verb, _, _ in writes(api)] == ["create", "create"]


@pytest.mark.contract("S9")
@with_timing(HURRIED, hardware={"period_s": 3600.0})
async def test_silent_server_keeps_published_slices(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        await api.refuse_connections()
        host.hardware.add_ecc(3)
        await eventually(lambda: "watch failed" in caplog.text, what="the outage is noticed")
        await published_again(plugin)
        await api.resume()
        await eventually(lambda: api.watches.count("resourceslices") == 1)
        assert [verb for verb, _, _ in writes(api)] == ["create"]


def is_another(uid: str, found: list[dict[str, Any]]) -> bool:
    return found != [] and found[0]["metadata"]["uid"] != uid


def retries_in_s(caplog: pytest.LogCaptureFixture) -> list[float]:
    """Return the waits after failed publishes, as logged."""
    return [record.__dict__["retry_in_s"] for record in caplog.records if record.message == "publishing failed"]


@pytest.mark.contract("S10")
@with_timing(HURRIED, publish={"retry_s": (0.4, 1.6)})
async def test_rejected_slice_is_reported_and_backs_off(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    fault = InjectedFault(
        verb="create", resource="resourceslices", status=422, message="spec.devices[0]: no", times=None
    )
    api.faults.add(fault)
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.error)
        assert "spec.devices[0]: no" in plugin.why_not_ready()
        assert plugin.metrics.registry.get_sample_value("neuron_dra_published") == 0
        assert plugin.metrics.registry.get_sample_value("neuron_dra_publish_errors_total", {"reason": "Invalid"})
        await eventually(lambda: len(retries_in_s(caplog)) >= 3, what="three failures")
        waits = retries_in_s(caplog)
        assert fault.hits <= len(waits) + 1
        steps = zip((0.4, 0.8, 1.6), waits, strict=False)
        assert [wait_s for step, wait_s in steps if not step / 2 <= wait_s <= step] == []
        api.faults.clear()
        await settled(api, plugin)
        await eventually(lambda: plugin.metrics.registry.get_sample_value("neuron_dra_published") == 1)


@pytest.mark.contract("S24")
async def test_recreated_node_owns_its_slices(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        api.delete("nodes", "node-a")
        uid = api.create(node_object("node-a"))["metadata"]["uid"]
        await api.until("resourceslices", lambda found: found[0]["metadata"]["ownerReferences"][0]["uid"] == uid)
        await published(api)


async def test_late_labels_are_published(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await settled(api, plugin)
        api.patch("nodes", "node-a", {"metadata": {"labels": {"topology.k8s.aws/network-node-layer-1": "nn-1"}}})
        (found,) = await api.until(
            "resourceslices",
            lambda items: items and "networkNodeLayer1" in items[0]["spec"]["devices"][0]["attributes"],
        )
        assert found["spec"]["pool"]["generation"] == 1


async def test_missing_node_object_is_reported(api: EmbeddedApi, host: PluginHost) -> None:
    api.delete("nodes", "node-a")
    async with host.running() as plugin:
        await eventually(lambda: "Node node-a does not exist" in plugin.why_not_ready())
        assert writes(api) == []
        api.create(node_object("node-a"))
        await settled(api, plugin)
        await eventually(lambda: "does not exist" not in plugin.why_not_ready())


@pytest.mark.contract("S20")
@with_timing(QUICK)
async def test_removed_device_in_use_stays_published(api: EmbeddedApi, host: PluginHost) -> None:
    meta = api.create(allocated_claim("job", "node-a", [3]))["metadata"]
    async with host.running() as plugin:
        await settled(api, plugin)
        await plugin.transactions.prepare(ClaimRef("default", "job", meta["uid"]))
        host.hardware.remove_device(3)
        host.hardware.remove_device(4)
        found = await published(api, 15)
        assert "neuron-device-3" in {device["name"] for device in found["spec"]["devices"]}
        sick = {state.name: state for state in plugin.health.devices}["neuron-device-3"]
        first, *_ = sick.message.split("; ")  # its missing file may have been noticed as well
        assert (sick.status.value, first) == ("UNHEALTHY", "the device is gone from the node")
        await plugin.transactions.unprepare(ClaimRef("default", "job", meta["uid"]))
        await always(lambda: len(api.get("resourceslices", NAME)["spec"]["devices"]) == 15, 0.5)  # still allocated
        api.delete("resourceclaims", "job", "default")
        await published(api, 14)


async def test_health_list_follows_own_slice_writes(api: EmbeddedApi, host: PluginHost) -> None:
    """Even if the watch has no event for our own write."""
    api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="resourceslices", times=None))
    async with host.running() as plugin:
        await settled(api, plugin)
        assert len(plugin.health.devices) == 16


@pytest.mark.parametrize("refused", ["claims", "checkpoint"])
async def test_failed_inventory_is_retried(api: EmbeddedApi, host: PluginHost, refused: str) -> None:
    host.cdi.mkdir()
    (host.cdi / "k8s.neuron.aws.com-claim_uid-old.yaml").write_text("")  # of another driver
    fault = InjectedFault(verb="list", resource="resourceclaims", status=200, body=b'{"items": 7}', times=2)
    if refused == "claims":
        api.faults.add(fault)
        async with host.running() as plugin:
            await settled(api, plugin)
            assert fault.hits == 2
        return
    files = FaultyFiles()
    async with host.running(files=files) as plugin:
        files.fail(1, disk_error(DISK_ERRORS[0]), times=1)
        await settled(api, plugin)


@pytest.mark.parametrize("ticks", range(6))
async def test_loop_cancellation_is_not_lost(api: EmbeddedApi, host: PluginHost, ticks: int) -> None:
    """`asyncio.wait_for` of Python 3.11 loses a cancellation that arrives when its future completes."""
    async with host.running() as plugin:
        await settled(api, plugin)
        before = plugin.publish_state.at
        loop = asyncio.create_task(plugin.publishing.run())
        await eventually(lambda: plugin.publish_state.at != before, what="its first publish")
        plugin.dirty.notify()
        for _ in range(ticks):
            await asyncio.sleep(0)
        loop.cancel()
        done, _ = await asyncio.wait([loop], timeout=60)
        assert done
