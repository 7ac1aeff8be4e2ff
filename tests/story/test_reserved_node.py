"""A node of an UltraServer that is reserved: its tag, the claims that may start there, and the messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from neuron_dra.api.objects import allocated_claim, node_object, opaque
from neuron_dra.core.claims import ClaimRef, PreparedClaim
from neuron_dra.core.ultraserver import NAMESPACE, Allocation, Phase, Tag, object_name, tag_on
from neuron_dra.emulation.embedded_api import NOT_FOUND, Do, EmbeddedApi, InjectedFault
from neuron_dra.emulation.scripted_kubelet import KubeletClaim as KubeletClaim
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.errors import ClaimError
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2_grpc
from neuron_dra.kube.client import KubeClient
from neuron_dra.kube.config import KubeConfig
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING, PluginTiming
from neuron_dra.node.ultraserver import watch as ultraserver
from tests.story.plugin_story import START_S, started
from tests.support import slots
from tests.support.faulty_files import DISK_ERRORS, FaultyFiles, disk_error
from tests.support.plugin_host import PluginHost, published_again
from tests.support.timings import QUICK_RESERVATIONS, quicker, with_timing
from tests.support.waiting import always, eventually

BLOCK, HARDWARE_ID = "cr-0123456789abcdef0", "00000000deadbeef"
NODES = ("node-x", "node-a", "node-y", "node-z")
SLOT = Allocation("ml", "llm", "uid-llm", "alloc-1", Phase.BOUND, NODES, 4, 1, 8, "node-r", "2026-01-02T03:04:05Z")
OTHER = replace(SLOT, workload_name="rl", workload_uid="uid-rl", allocation_id="alloc-2", phase=Phase.PENDING)


@pytest.fixture
def timing() -> PluginTiming:
    return QUICK_RESERVATIONS


@pytest.fixture
async def api(api: EmbeddedApi) -> EmbeddedApi:
    api.register_neuron_kinds()
    namespaces(api)
    label(api, BLOCK)
    return api


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path, timing: PluginTiming) -> AsyncIterator[PluginHost]:
    """The files of `node-a`, number 1 of a Trn2 UltraServer."""
    made = trn2u(short_path, api, timing)
    yield made
    await made.close()


def trn2u(folder: Path, api: EmbeddedApi, timing: PluginTiming) -> PluginHost:
    hardware: dict[str, Any] = {"instance_type": "trn2u.48xlarge", "node_id": 1, "server_id": HARDWARE_ID}
    return PluginHost(folder, api.url, timing=timing, **hardware)


def namespaces(api: EmbeddedApi) -> None:
    for name in (NAMESPACE, "ml", "dev"):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def label(api: EmbeddedApi, block: str | None) -> None:
    api.patch("nodes", "node-a", {"metadata": {"labels": {"topology.k8s.aws/capacity-block-id": block}}})


def reserve(api: EmbeddedApi, *slots: Allocation | dict[str, Any], block: str = BLOCK) -> None:
    """Write exactly these allocations, as the controller does."""
    api.apply(
        {
            "apiVersion": "neuron.aws.com/v1beta1",
            "kind": "NeuronUltraServer",
            "metadata": {"name": object_name(block), "namespace": NAMESPACE},
            "spec": {"instanceType": "trn2u.48xlarge", "topology": []},
            "status": {"allocations": [slot if isinstance(slot, dict) else slot.to_wire() for slot in slots]},
        }
    )


def tag(api: EmbeddedApi) -> Tag | None:
    return tag_on([device for item in api.objects("resourceslices") for device in item["spec"]["devices"]])


def remembered(host: PluginHost) -> Tag | None:
    """Return the tag in the checkpoint, without its object's UID."""
    found = slots.read(host.data).tag
    return found and replace(found, object_uid="")


def published(api: EmbeddedApi) -> bool:
    return any(item["spec"]["devices"] for item in api.objects("resourceslices"))


async def tagged(api: EmbeddedApi, slot: Allocation | None, timeout_s: float = 120.0) -> None:
    wanted = None if slot is None else Tag.of(slot)
    await eventually(lambda: published(api) and tag(api) == wanted, timeout_s, f"tag {wanted}")


def new_claim(
    api: EmbeddedApi, name: str, workload: str = "", uid: str = "", *, namespace: str = "ml", **device: Any
) -> ClaimRef:
    """Return an allocated claim for the whole node, of a workload if one is given."""
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": 4}
    if workload:
        parameters |= {"workloadId": workload, "workloadUid": uid}
    made = api.create(
        allocated_claim(
            name,
            "node-a",
            [{"device": "neuron-node-0", **device}],
            namespace=namespace,
            config=[opaque(parameters)] if workload else [],
        )
    )
    return ClaimRef(namespace, name, made["metadata"]["uid"])


def ours(api: EmbeddedApi, name: str = "job") -> ClaimRef:
    return new_claim(api, name, "llm", "uid-llm")


async def refusal(plugin: Plugin, ref: ClaimRef) -> str:
    with pytest.raises(ClaimError) as caught:
        await plugin.transactions.prepare(ref)
    return str(caught.value)


def environment(prepared: PreparedClaim) -> dict[str, str]:
    return dict(text.split("=", 1) for device in prepared.devices for text in device.env)


# The tag.


async def test_tag_follows_the_reservation(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running():
        await tagged(api, None)
        for phase in (Phase.PENDING, Phase.BOUND, Phase.DRAINING):
            reserve(api, replace(SLOT, phase=phase))
            await tagged(api, replace(SLOT, phase=phase))
        reserve(api)
        await tagged(api, None)
        (found,) = api.objects("resourceslices")
        assert found["spec"]["pool"]["generation"] == 1
        attributes = found["spec"]["devices"][0]["attributes"]
        assert not {"workloadId", "allocationId", "workloadUid"} & set(attributes)
        assert attributes["ultraserverId"] == {"string": BLOCK}


async def test_reservation_loads_the_config_parser_before_a_claim(api: EmbeddedApi, host: PluginHost) -> None:
    """31: each claim of a workload has configuration, and the first one waited for the import; a free node saves it."""
    async with ScriptedKubelet(host.registry) as kubelet:
        process = await started(host, kubelet, "pod-1")
        await tagged(api, None)
        maps = Path(f"/proc/{process.pid}/maps")
        before = maps.read_text() if maps.exists() else ""
        reserve(api, SLOT)
        await tagged(api, SLOT)
        if maps.exists():
            await eventually(lambda: "pydantic_core" in maps.read_text(), START_S, "the parser is loaded")
    assert "pydantic_core" not in before


async def test_every_device_of_a_node_carries_the_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running(ultraserver_devices="devices"):
        await tagged(api, SLOT)
        (found,) = api.objects("resourceslices")
        assert len(found["spec"]["devices"]) == 16
        assert {device["attributes"]["allocationId"]["string"] for device in found["spec"]["devices"]} == {"alloc-1"}


async def test_reservation_of_other_nodes_is_ignored(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, replace(SLOT, nodes=("node-x", "node-y"), node_count=2))
    async with host.running() as plugin:
        await eventually(lambda: plugin.ultraserver.reading)
        await tagged(api, None)


async def test_new_reservation_of_a_workload_has_a_new_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
        again = replace(SLOT, allocation_id="alloc-9", phase=Phase.PENDING)
        reserve(api, again)
        await tagged(api, again)


async def test_new_tag_waits_for_claims_of_the_old(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        ref = ours(api)
        await plugin.transactions.prepare(ref)
        reserve(api, OTHER)
        await tagged(api, replace(SLOT, phase=Phase.DRAINING))
        await plugin.transactions.unprepare(ref)
        await always(lambda: tag(api) == Tag.of(replace(SLOT, phase=Phase.DRAINING)), 0.4, "the wait for the claim")
        api.delete("resourceclaims", "job", "ml")
        await tagged(api, OTHER)


@pytest.mark.parametrize(
    "foreign",
    [
        {"namespace": "dev"},
        {"namespace": "dev", "workload": "llm", "uid": "uid-llm"},
        {},
        {"workload": "another", "uid": "uid-another"},
    ],
    ids=["other namespace", "copied template", "no workload", "other workload"],
)
async def test_rejected_claims_delay_no_tag(api: EmbeddedApi, host: PluginHost, foreign: dict[str, str]) -> None:
    """13.12, seed 550 of the virtual fleet: their owner recreates such pods as fast as they are evicted."""
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        ref = new_claim(api, "intruder", **foreign)
        assert "is reserved for" in await refusal(plugin, ref)
        reserve(api, OTHER)
        await tagged(api, OTHER)
        assert "is reserved for" in await refusal(plugin, ref)


async def test_undecodable_claim_delays_a_tag(api: EmbeddedApi, host: PluginHost) -> None:
    """A claim that this release cannot read may be the workload's."""
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
        strange = {"apiVersion": "neuron.aws.com/v9", "kind": "UltraServerConfig"}
        device = [{"device": "neuron-node-0"}]
        api.create(allocated_claim("job", "node-a", device, namespace="ml", config=[opaque(strange)]))
        reserve(api, OTHER)
        await tagged(api, replace(SLOT, phase=Phase.DRAINING))
        await always(lambda: tag(api) == Tag.of(replace(SLOT, phase=Phase.DRAINING)), 0.4, "the wait for the claim")


@with_timing(QUICK_RESERVATIONS, ultraserver={"recheck_s": 3600.0})
async def test_waiting_tag_lists_claims_once(api: EmbeddedApi, host: PluginHost) -> None:
    """14.3: a hundred cluster-wide LISTs a minute."""
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        ours(api)
        reserve(api, OTHER)
        await tagged(api, replace(SLOT, phase=Phase.DRAINING))
        before = len(api.requests("list", "resourceclaims"))
        for _ in range(5):
            await published_again(plugin)
        assert len(api.requests("list", "resourceclaims")) == before


async def test_an_administrators_claim_delays_no_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        await plugin.transactions.prepare(new_claim(api, "monitor", adminAccess=True))
        reserve(api, OTHER)
        await tagged(api, OTHER)


async def test_a_tag_edited_by_hand_is_put_right(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
        (found,) = api.objects("resourceslices")
        found["spec"]["devices"][0]["attributes"]["workloadUid"] = {"string": "forged"}
        api.patch("resourceslices", found["metadata"]["name"], {"spec": {"devices": found["spec"]["devices"]}})
        await tagged(api, SLOT)


async def test_unreadable_entry_ends_no_reservation(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        reserve(api, {**SLOT.to_wire(), "phase": "bound"})
        await eventually(lambda: plugin.ultraserver.reading and plugin.ultraserver.reading.problems)
        await always(lambda: tag(api) == Tag.of(SLOT), 0.4, "the tag")
        assert "belongs to no workload" in await refusal(plugin, new_claim(api, "plain"))


# Restarts, deleted slices, and outages of the API server


async def test_first_publish_after_restart_has_the_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    for item in api.objects("resourceslices"):
        api.delete("resourceslices", item["metadata"]["name"])
    api.faults.add(InjectedFault(Do.HANG, resource="neuronultraservers", times=None))
    async with host.running():
        await eventually(lambda: published(api))
        assert tag(api) == Tag.of(SLOT)
    assert remembered(host) == Tag.of(SLOT)


async def test_deleted_slices_return_with_the_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
        api.delete("resourceslices", api.objects("resourceslices")[0]["metadata"]["name"])
        await eventually(lambda: published(api))
        assert tag(api) == Tag.of(SLOT)


async def test_lost_state_is_read_before_publishing(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    slow = InjectedFault(Do.DELAY, verb="list", resource="neuronultraservers", delay_s=0.6)
    api.faults.add(slow)
    async with host.running():
        await eventually(lambda: published(api))
        assert tag(api) == Tag.of(SLOT)
    assert slow.hits == 1


async def test_lost_disk_restores_the_tag_from_the_slice(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    for file in host.data.glob("*.json*"):
        file.unlink()
    hang = InjectedFault(Do.HANG, resource="neuronultraservers", times=None)
    api.faults.add(hang)
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.result)
        assert tag(api) == Tag.of(SLOT)
        assert "belongs to no workload" in await refusal(plugin, new_claim(api, "plain"))


async def test_ended_reservation_is_removed_at_start(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    reserve(api)
    async with host.running():
        await tagged(api, None)
    assert remembered(host) is None


async def test_a_reboot_keeps_the_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    host.hardware.set_boot_id("11111111-2222-3333-4444-555555555555")
    api.faults.add(InjectedFault(Do.HANG, resource="neuronultraservers", times=None))
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.result)
        assert tag(api) == Tag.of(SLOT)


async def test_tags_stay_during_an_api_outage(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        await api.refuse_connections()
        await eventually(lambda: "watch failed" in caplog.text, what="the outage is noticed")
        await published_again(plugin)
        await api.resume()
        await eventually(lambda: api.watches.count("neuronultraservers") == 1)
        assert tag(api) == Tag.of(SLOT)


async def test_reserving_a_node_does_not_wait_for_disk(api: EmbeddedApi, host: PluginHost) -> None:
    files = FaultyFiles()
    reserve(api, SLOT)
    async with host.running(files=files):
        await tagged(api, SLOT)
        files.fail(1, disk_error(DISK_ERRORS[0]), times=None)
        reserve(api, replace(SLOT, phase=Phase.DRAINING))
        await tagged(api, replace(SLOT, phase=Phase.DRAINING))
        files.heal()
        await eventually(lambda: remembered(host) == Tag.of(replace(SLOT, phase=Phase.DRAINING)))


@with_timing(QUICK_RESERVATIONS, prepare={"repair_s": 0.1})
async def test_damaged_checkpoint_keeps_the_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        prepared = await plugin.transactions.prepare(ours(api))
        reserve(api, OTHER)
        await tagged(api, replace(SLOT, phase=Phase.DRAINING))
        slots.remove_all(host.data)
        await eventually(lambda: host.checkpointed)
        assert host.checkpointed == {prepared.ref.uid}
        await always(lambda: tag(api) == Tag.of(replace(SLOT, phase=Phase.DRAINING)), 0.4, "the old tag")
        assert remembered(host) == Tag.of(replace(SLOT, phase=Phase.DRAINING))


async def test_newer_plugin_continues_with_the_tag(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, replace(SLOT, phase=Phase.PENDING))
    async with ScriptedKubelet(host.registry), host.running("old") as old:
        await tagged(api, replace(SLOT, phase=Phase.PENDING))
        async with host.running("new") as new:
            await eventually(lambda: new.publisher_lock.holding and not old.publisher_lock.holding)
            reserve(api, SLOT)
            await tagged(api, SLOT)
        await eventually(lambda: old.publisher_lock.holding, what="the old one's turn")
        reserve(api)
        await tagged(api, None)


# The watched object


async def test_late_label_changes_the_watched_object(api: EmbeddedApi, host: PluginHost) -> None:
    label(api, None)
    reserve(api, OTHER, block=HARDWARE_ID)
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, OTHER)
        label(api, BLOCK)
        await tagged(api, SLOT)
        assert plugin.ultraserver.name == object_name(BLOCK)


async def test_temporarily_missing_label_changes_nothing(api: EmbeddedApi, host: PluginHost) -> None:
    """For example when a Node is deleted and registered again."""
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        label(api, None)
        await always(lambda: tag(api) == Tag.of(SLOT), 0.6, "the tag")
        assert plugin.ultraserver.name == object_name(BLOCK)


async def test_node_watches_only_its_own_object(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await eventually(lambda: plugin.ultraserver.reading)
        reserve(api, SLOT, block="cr-other")
        await always(lambda: tag(api) is None, 0.4, "no tag")
        assert plugin.ultraserver.name == f"us-{BLOCK}"


async def test_late_reply_about_old_object_is_ignored(api: EmbeddedApi) -> None:
    reserve(api, SLOT)
    async with KubeClient(KubeConfig(api.url)) as client:
        watch = ultraserver.UltraServerWatch(client, lambda: None)
        watch.follow(BLOCK, whole_node=True)
        running = asyncio.create_task(watch.run())
        await eventually(lambda: watch.reading)
        slow = api.faults.add(InjectedFault(Do.DELAY, verb="list", resource="neuronultraservers", delay_s=0.4))
        late = asyncio.create_task(watch.refresh())
        await eventually(lambda: slow.hits)
        silent = api.faults.add(InjectedFault(Do.HANG, verb="list", resource="neuronultraservers", times=None))
        watch.follow("cr-other", whole_node=True)
        await eventually(lambda: silent.hits)
        await late
        assert watch.pending
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_node_outside_ultraservers_watches_nothing(api: EmbeddedApi, short_path: Path) -> None:
    host = PluginHost(short_path, api.url, instance_type="trn2.48xlarge", timing=QUICK_RESERVATIONS)
    reserve(api, SLOT)
    async with host.running() as plugin:
        await eventually(lambda: plugin.publish_state.result)
        assert tag(api) is None
        assert not api.requests(resource="neuronultraservers")
        claim = allocated_claim("plain", "node-a", [3])
        meta = api.create(claim)["metadata"]
        await plugin.transactions.prepare(ClaimRef("default", "plain", meta["uid"]))


async def test_missing_crd_is_found_later(
    short_path: Path,
) -> None:
    async with EmbeddedApi(controllers=False) as api:
        namespaces(api)
        api.create(node_object("node-a", labels={"topology.k8s.aws/capacity-block-id": BLOCK}))
        host = trn2u(short_path, api, QUICK_RESERVATIONS)
        async with ScriptedKubelet(host.registry), host.running() as plugin:
            await eventually(lambda: not plugin.why_not_ready(), what="readiness without a CRD")
            await plugin.transactions.prepare(new_claim(api, "plain"))
            api.register_neuron_kinds()
            reserve(api, SLOT)
            await tagged(api, SLOT)


async def test_operator_labels_trigger_a_lookup(short_path: Path) -> None:
    async with EmbeddedApi(controllers=False) as api:
        namespaces(api)
        api.create(node_object("node-a", labels={"topology.k8s.aws/capacity-block-id": BLOCK}))
        host = trn2u(short_path, api, QUICK_RESERVATIONS)
        host.timing = quicker(QUICK_RESERVATIONS, ultraserver={"probe_s": (3600.0, 3600.0)})
        async with host.running() as plugin:
            await eventually(lambda: not plugin.ultraserver.pending, what="the CRD is looked for")
            api.register_neuron_kinds()
            reserve(api, SLOT)
            api.patch("nodes", "node-a", {"metadata": {"labels": {"neuron.amazonaws.com/ultraserver-id": "us-1"}}})
            await tagged(api, SLOT)


@with_timing(QUICK_RESERVATIONS, ultraserver={"missing_s": 0.4})
async def test_removed_crd_frees_the_node(api: EmbeddedApi, host: PluginHost) -> None:
    """13.3: after ten minutes, and not before the reservation's last claim is gone."""
    assert DEFAULT_TIMING.ultraserver.missing_s == 600
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    api.unregister("neuronultraservers")
    before = len(api.requests(resource="resourceslices", verb="update"))
    async with host.running() as plugin:
        await eventually(lambda: not plugin.ultraserver.pending, what="the CRD is missing")
        api.register_neuron_kinds()
        reserve(api, SLOT)
        await eventually(lambda: plugin.ultraserver.reading is not None and not plugin.ultraserver.reading.missing)
        await tagged(api, SLOT)
    # One absence does not count. The CRD was recreated, and the tag stayed.
    assert len(api.requests(resource="resourceslices", verb="update")) == before
    job = ours(api)
    api.unregister("neuronultraservers")
    async with host.running():
        await always(lambda: tag(api) == Tag.of(SLOT), 1.0, "the tag")
        api.delete("resourceclaims", job.name, "ml")
        await tagged(api, None)


@pytest.mark.parametrize("reply", NOT_FOUND)
@pytest.mark.parametrize("lists", ["list the kind", "cannot be read"])
@with_timing(QUICK_RESERVATIONS, ultraserver={"missing_s": 0.1, "expected_probe_s": 0.05, "probe_s": (0.05, 0.05)})
async def test_404s_alone_free_no_node(api: EmbeddedApi, host: PluginHost, reply: str, lists: str) -> None:
    """4.02: the control is `test_removed_crd_frees_the_node`."""
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    absent = NOT_FOUND[reply].fault(resource="neuronultraservers", times=None)
    api.faults.add(absent)
    if lists == "cannot be read":
        api.faults.add(NOT_FOUND[reply].fault(resource="/apis/neuron.aws.com/v1beta1", times=None))
    async with host.running() as plugin:
        await eventually(lambda: absent.hits >= 8, what="many 404s")
        assert plugin.ultraserver.reading is None
        assert tag(api) == Tag.of(SLOT)
        assert "belongs to no workload" in await refusal(plugin, new_claim(api, "plain"))


# Forced deletion of the object while pods run


async def test_reservation_survives_forced_deletion(api: EmbeddedApi, host: PluginHost) -> None:
    """13.3."""
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        await plugin.transactions.prepare(ours(api))
        api.delete("neuronultraservers", object_name(BLOCK), NAMESPACE)
        await eventually(lambda: plugin.ultraserver.reading and plugin.ultraserver.reading.missing)
        assert "belongs to no workload" in await refusal(plugin, new_claim(api, "plain"))
        assert "the rank is unknown" in await refusal(plugin, ours(api, "second"))
        reserve(api)
        await eventually(lambda: plugin.ultraserver.reading and not plugin.ultraserver.reading.missing)
        assert "belongs to no workload" in await refusal(plugin, new_claim(api, "plain-2"))
        assert tag(api) == Tag.of(SLOT)
        reserve(api, SLOT)
        (again,) = api.objects("neuronultraservers")
        await eventually(lambda: plugin.gate.tag and plugin.gate.tag.object_uid == again["metadata"]["uid"])
        assert plugin.gate.reservation
        assert plugin.gate.reservation.place
        reserve(api)
        await tagged(api, None)


@pytest.mark.parametrize(
    "holder", ["of another", "of the workload", "of the workload, deallocated", "of another, replaced at once"]
)
async def test_only_the_workloads_claims_prolong_a_tag_that_ends(
    api: EmbeddedApi, host: PluginHost, holder: str
) -> None:
    """13.3, seed 1085 of the virtual fleet: a claim that was prepared before the tag may stay for weeks."""
    closing = replace(SLOT, phase=Phase.DRAINING)
    async with host.running() as plugin:
        if holder.startswith("of the workload"):
            reserve(api, SLOT)
            await tagged(api, SLOT)
            await plugin.transactions.prepare(ours(api))
            if "deallocated" in holder:
                api.patch("resourceclaims", "job", {"status": {"allocation": None, "reservedFor": None}}, "ml")
        else:
            await tagged(api, None)
            await plugin.transactions.prepare(new_claim(api, "plain"))
        reserve(api, closing)
        await tagged(api, closing)
        api.delete("neuronultraservers", object_name(BLOCK), NAMESPACE)
        if holder == "of another":
            reserve(api)
            await tagged(api, None)
        else:
            reserve(api, *([OTHER] if "replaced" in holder else []))
            await always(lambda: tag(api) == Tag.of(closing), 0.5, "the wait for the claim")


async def test_reservation_survives_object_and_plugin(api: EmbeddedApi, host: PluginHost) -> None:
    """13.3."""
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    api.delete("neuronultraservers", object_name(BLOCK), NAMESPACE)
    reserve(api)
    async with host.running() as plugin:
        await eventually(lambda: plugin.ultraserver.reading and plugin.publish_state.result)
        assert "belongs to no workload" in await refusal(plugin, new_claim(api, "plain"))
        assert tag(api) == Tag.of(SLOT)


async def test_claims_start_on_nodes_of_the_aws_operator(api: EmbeddedApi, host: PluginHost) -> None:
    """13.3: an entry without ids, and a claim without a UID."""
    reserve(api, {k: v for k, v in SLOT.to_wire().items() if k not in ("workloadUid", "allocationId", "nodeUids")})
    async with host.running() as plugin:
        await eventually(lambda: plugin.ultraserver.reading)
        job = api.create(
            allocated_claim(
                "job",
                "node-a",
                [{"device": "neuron-node-0"}],
                namespace="ml",
                config=[
                    opaque(
                        {
                            "apiVersion": "neuron.aws.com/v1",
                            "kind": "UltraServerConfig",
                            "ultraserverMode": 4,
                            "workloadId": "llm",
                        }
                    )
                ],
            )
        )
        prepared = await plugin.transactions.prepare(ClaimRef("ml", "job", job["metadata"]["uid"]))
        assert environment(prepared)["NEURON_GLOBAL_TOPOID"] == "5"
        assert "belongs to no workload" in await refusal(plugin, new_claim(api, "plain"))


async def test_forbidden_reads_keep_the_state(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running():
        await tagged(api, SLOT)
    forbidden = InjectedFault(resource="neuronultraservers", status=403, times=None)
    api.faults.add(forbidden)
    async with host.running():
        await eventually(lambda: forbidden.hits >= 4)
        assert tag(api) == Tag.of(SLOT)


# Who may start.


async def test_workloads_claim_gets_the_node_and_rank(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with ScriptedKubelet(host.registry) as kubelet, host.running() as plugin:
        await tagged(api, SLOT)
        await kubelet.registered("neuron.aws.com")
        ref = ours(api)
        answer = await kubelet.prepare([KubeletClaim(ref.namespace, ref.name, ref.uid)])
        assert answer[ref.uid].error == ""
        env = environment(plugin.prepared.claims[ref.uid])
        assert {name: env[name] for name in env if name.startswith(("NEURON_GLOBAL", "NEURON_DRA"))} == {
            "NEURON_GLOBAL_TOPOID": "5",
            "NEURON_DRA_WORLD_SIZE": "8",
            "NEURON_DRA_RANK0_NODE": "node-r",
            "NEURON_DRA_NOTICE_FILE": "/neuron-dra/notice.json",
        }
        assert env["NEURON_RT_ULTRASERVER_MODE"] == "1"
        labels = {
            "device": "neuron0",
            "neuron_device": "0",
            "namespace": "ml",
            "pod": "job",
            "claim": "job",
            "workload": "llm",
        }
        await eventually(lambda: plugin.metrics.registry.get_sample_value("neuron_dra_device_info", labels) == 1)


async def test_inspector_shows_the_reservation(api: EmbeddedApi, host: PluginHost) -> None:
    async def ask() -> pb.GetReservationResponse:
        async with grpc.aio.insecure_channel(f"unix:{host.data / 'dra-pod-1.sock'}") as channel:
            return await inspector_pb2_grpc.NodeInspectorStub(channel).GetReservation(
                pb.GetReservationRequest(), timeout=60
            )

    async with host.running("pod-1"):
        await tagged(api, None)
        assert await ask() == pb.GetReservationResponse(ultraserver=object_name(BLOCK), known=True)
        reserve(api, SLOT)
        await tagged(api, SLOT)
        assert await ask() == pb.GetReservationResponse(
            ultraserver=object_name(BLOCK),
            known=True,
            reservation=pb.Reservation(
                workload="ml/llm",
                workload_uid="uid-llm",
                phase="Bound",
                rank=5,
                node_count=4,
                world_size=8,
                rank0_node="node-r",
            ),
            tag=pb.Tag(workload="ml/llm", workload_uid="uid-llm", allocation_id="alloc-1", phase="Bound"),
        )


async def test_other_claims_are_rejected_with_the_reason(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with ScriptedKubelet(host.registry) as kubelet, host.running():
        await tagged(api, SLOT)
        await kubelet.registered("neuron.aws.com")
        claims = {
            "belongs to no workload": new_claim(api, "plain"),
            "a copy of its ResourceClaimTemplate in namespace dev is not valid": new_claim(
                api, "copied", "llm", "uid-llm", namespace="dev"
            ),
            "this claim names the UID uid-old": new_claim(api, "old", "llm", "uid-old"),
            "names workload ml/rl": new_claim(api, "other", "rl", "uid-rl"),
        }
        answer = await kubelet.prepare([KubeletClaim(ref.namespace, ref.name, ref.uid) for ref in claims.values()])
        for why, ref in claims.items():
            assert why in answer[ref.uid].error
            is_own = ref.namespace == "ml"
            holder = (
                "NeuronUltraServerWorkload ml/llm" if is_own else "a NeuronUltraServerWorkload of another namespace"
            )
            assert f"node node-a is reserved for {holder}" in answer[ref.uid].error
        assert host.checkpointed == set()


async def test_admin_claim_starts_on_a_reserved_node(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        prepared = await plugin.transactions.prepare(new_claim(api, "monitor", adminAccess=True))
        assert prepared.devices[0].admin_access


async def test_workload_claim_is_rejected_on_a_free_node(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        assert "this node is not reserved for it" in await refusal(plugin, ours(api))


@with_timing(QUICK_RESERVATIONS, ultraserver={"rejection_wait_s": 3600.0})
async def test_early_claim_waits_for_its_reservation(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running() as plugin:
        await eventually(lambda: plugin.ultraserver.reading)
        waiting = asyncio.create_task(plugin.transactions.prepare(ours(api)))
        reserve(api, replace(SLOT, phase=Phase.PENDING))
        await tagged(api, replace(SLOT, phase=Phase.PENDING))
        assert not waiting.done()
        reserve(api, SLOT)
        assert environment(await waiting)["NEURON_GLOBAL_TOPOID"] == "5"


async def test_object_is_read_again_before_a_rejection(api: EmbeddedApi, host: PluginHost) -> None:
    """Even if the watch sends nothing."""
    reserve(api, replace(SLOT, phase=Phase.PENDING))
    api.faults.add(InjectedFault(Do.HANG, verb="watch", resource="neuronultraservers", times=None))
    async with host.running() as plugin:
        await tagged(api, replace(SLOT, phase=Phase.PENDING))
        reserve(api, SLOT)
        assert (await plugin.transactions.prepare(ours(api))).workload == "llm"


async def test_rejection_precedes_the_kubelets_deadline(api: EmbeddedApi, host: PluginHost) -> None:
    assert DEFAULT_TIMING.ultraserver.rejection_wait_s < 45
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        api.faults.add(InjectedFault(Do.HANG, verb="list", resource="neuronultraservers", times=None))
        await refusal(plugin, new_claim(api, "plain"))


@with_timing(QUICK_RESERVATIONS, ultraserver={"rejection_wait_s": 3600.0})
async def test_waiting_claim_does_not_delay_others(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        waiting = asyncio.create_task(plugin.transactions.prepare(new_claim(api, "plain")))
        await plugin.transactions.prepare(ours(api))
        assert not waiting.done()
        reserve(api)
        with pytest.raises(ClaimError, match="is in use"):
            await waiting


async def test_prepared_claim_survives_its_reservation(api: EmbeddedApi, host: PluginHost) -> None:
    reserve(api, SLOT)
    async with host.running() as plugin:
        await tagged(api, SLOT)
        ref = ours(api)
        prepared = await plugin.transactions.prepare(ref)
        for slots in ((replace(SLOT, phase=Phase.DRAINING),), ()):
            reserve(api, *slots)
            await tagged(api, slots[0] if slots else None)
            assert await plugin.transactions.prepare(ref) == prepared


# Faults and replaced nodes


async def test_allocation_of_a_replaced_node_is_ignored(api: EmbeddedApi, host: PluginHost) -> None:
    uid = api.get("nodes", "node-a")["metadata"]["uid"]
    predecessor = replace(SLOT, node_uids=("uid-x", "uid-of-before", "uid-y", "uid-z"))
    reserve(api, predecessor)
    async with host.running() as plugin:
        await eventually(lambda: published(api), what="devices")
        await always(lambda: tag(api) is None, 0.5)
        with pytest.raises(ClaimError, match="this node is not reserved for it"):
            await plugin.transactions.prepare(ours(api))
        reserve(api, replace(SLOT, allocation_id="alloc-3", node_uids=("uid-x", uid, "uid-y", "uid-z")))
        await tagged(api, replace(SLOT, allocation_id="alloc-3"))


async def test_reregistered_node_drops_the_reservation(api: EmbeddedApi, host: PluginHost) -> None:
    node = api.get("nodes", "node-a")
    slot = replace(SLOT, node_uids=("uid-x", node["metadata"]["uid"], "uid-y", "uid-z"))
    reserve(api, slot)
    async with host.running():
        await tagged(api, slot)
        api.delete("nodes", "node-a")
        api.create(node_object("node-a", labels=node["metadata"]["labels"]))
        await tagged(api, None)


@with_timing(QUICK_RESERVATIONS, hardware={"period_s": 0.05})
async def test_reserved_unhealthy_node_stays_published(api: EmbeddedApi, host: PluginHost) -> None:
    api.dropped_fields["resourceslices"] = {"spec.devices[*].taints"}
    reserve(api, SLOT)

    def sick() -> list[str]:
        found = [device for item in api.objects("resourceslices") for device in item["spec"].get("devices", [])]
        return [device["attributes"].get("unhealthy", {}).get("string", "") for device in found]

    async with host.running():
        await tagged(api, SLOT)
        host.hardware.add_ecc(5)
        await eventually(lambda: sick() == ["hbm_ecc"], what="the node publishes its fault")
        await always(lambda: sick() == ["hbm_ecc"], 0.5)
        reserve(api)
        await eventually(lambda: sick() == [], what="the node is withdrawn")
