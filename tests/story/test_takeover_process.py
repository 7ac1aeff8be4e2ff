"""The plugin as a process replaces AWS's driver: its slices, its CDI files, and its claims.

Known facts of its slices: generated names, one per node, `neuron-device-N` in any order. Unpublished facts, such as its
device for a whole UltraServer node and the format of its checkpoint, may be anything here.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.embedded_api import Do, EmbeddedApi, InjectedFault
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.story.plugin_story import (
    DRIVER,
    NAME,
    START_S,
    prepared,
    published,
    refused,
    slice_writes,
    started,
    unprepared,
)
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually

THEIR_CHECKPOINT = '{"checksum":1713104513,"v1":{"preparedClaims":{}}}'
SIXTEEN = [f"neuron-device-{i}" for i in range(16)]


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


def publish_theirs(api: EmbeddedApi, devices: Iterable[str], generation: int = 3) -> None:
    """Publish these devices as the older driver does, under a generated name."""
    item = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "node-a-neuron.aws.com-x7k2p"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": name} for name in devices],
        },
    }
    api.create(item)


def their_cdi_file(host: PluginHost, claim: dict[str, Any], suffix: str = "yaml") -> Path:
    """Write the CDI file of a claim as another driver does: only the file's name identifies the claim.

    CDI's own library writes YAML, of which JSON is a subset.
    """
    uid = claim["metadata"]["uid"]
    path = host.cdi / f"k8s.neuron.aws.com-claim_{uid}.{suffix}"
    host.cdi.mkdir(exist_ok=True)
    edits = {"deviceNodes": [{"path": "/dev/neuron5"}]}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "k8s.neuron.aws.com/claim",
        "devices": [{"name": uid, "containerEdits": edits}],
    }
    path.write_text(json.dumps(spec))
    return path


def names_of(item: dict[str, Any]) -> list[str]:
    return [device["name"] for device in item["spec"]["devices"]]


async def ours(api: EmbeddedApi) -> dict[str, Any]:
    """Wait until the node's only slice has our name, and return it."""
    (made,) = await api.until(
        "resourceslices", lambda found: len(found) == 1 and found[0]["metadata"]["name"] == NAME, timeout_s=START_S
    )
    return made


@pytest.mark.contract("S25")
async def test_driver_replaces_another_driver(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    publish_theirs(api, reversed(SIXTEEN))
    running = api.create(allocated_claim("running", "node-a", [5]))
    rival = api.create(allocated_claim("rival", "node-a", [5]))
    api.patch("resourceclaims", "rival", {"status": {"reservedFor": None}}, "default")
    theirs = their_cdi_file(host, running)
    process = await started(host, kubelet, "pod-1")
    made = await ours(api)
    assert made["spec"]["pool"] == {"name": "node-a", "generation": 4, "resourceSliceCount": 1}
    assert names_of(made) == SIXTEEN
    assert slice_writes(api) == ["delete", "create"]
    assert "neuron5 is held by claim default/running" in await refused(kubelet, rival)
    assert theirs.exists()
    await process.stop()
    await started(host, kubelet, "pod-1")
    assert theirs.exists()
    await unprepared(kubelet, running)
    assert not theirs.exists()
    await prepared(kubelet, rival)


@pytest.mark.contract("P20")
async def test_foreign_checkpoint_is_kept_and_claims_adopted(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    """Drivers based on Kubernetes' example use the name `checkpoint.json` too."""
    publish_theirs(api, SIXTEEN)
    running = api.create(allocated_claim("running", "node-a", [5]))
    rival = api.create(allocated_claim("rival", "node-a", [5]))
    api.patch("resourceclaims", "rival", {"status": {"reservedFor": None}}, "default")
    theirs = their_cdi_file(host, running, "json")
    host.data.mkdir()
    (host.data / "checkpoint.json").write_text(THEIR_CHECKPOINT)
    process = await started(host, kubelet, "pod-1")
    await eventually(lambda: "rebuilt the checkpoint" in process.log, START_S)
    assert (host.data / "checkpoint.json.damaged").read_text() == THEIR_CHECKPOINT
    assert re.search("prepared by another driver, .* claim=default/running", process.log)
    assert "neuron5 is held by claim default/running" in await refused(kubelet, rival)
    assert theirs.exists()
    await unprepared(kubelet, running)
    assert not theirs.exists()
    await prepared(kubelet, rival)


@pytest.mark.contract("C5")
@pytest.mark.parametrize("trace", ["slice", "json", "yaml"])
async def test_claims_of_an_interim_driver_are_adopted(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, trace: str
) -> None:
    """The kubelet deletes the slices of an absent driver; its CDI files remain."""
    process = await started(host, kubelet, "pod-1")
    await published(api)
    await process.stop()
    running = api.create(allocated_claim("running", "node-a", [5]))
    rival = api.create(allocated_claim("rival", "node-a", [5]))
    api.patch("resourceclaims", "rival", {"status": {"reservedFor": None}}, "default")
    api.delete("resourceslices", NAME)
    if trace == "slice":
        publish_theirs(api, SIXTEEN)
    else:
        their_cdi_file(host, running, trace)
    left = set(host.cdi.iterdir())
    await started(host, kubelet, "pod-2")
    await ours(api)
    assert "neuron5 is held by claim default/running" in await refused(kubelet, rival)
    assert set(host.cdi.iterdir()) == left, "a container that restarts needs its file"
    await unprepared(kubelet, running)
    assert list(host.cdi.iterdir()) == []
    await prepared(kubelet, rival)


async def test_own_claims_need_no_inventory(host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi) -> None:
    """A list of all claims of a cluster is expensive, so a restarting fleet must not need it."""
    claim = api.create(allocated_claim("job", "node-a", [0]))
    process = await started(host, kubelet, "pod-1")
    await published(api)
    await prepared(kubelet, claim)
    await process.stop()
    seen = len(api.requests(resource="resourceclaims"))
    await started(host, kubelet, "pod-2")
    api.delete("resourceslices", NAME)
    await published(api)
    assert [entry for entry in api.requests(resource="resourceclaims")[seen:] if entry.verb == "list"] == []


async def test_renamed_device_is_published_when_free(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    """Documents of AWS's beta show `neurondeviceN`."""
    publish_theirs(api, [f"neurondevice{i}" for i in range(16)])
    running = api.create(allocated_claim("running", "node-a", ["neurondevice5"]))
    rival = api.create(allocated_claim("rival", "node-a", [5]))
    api.patch("resourceclaims", "rival", {"status": {"reservedFor": None}}, "default")
    await started(host, kubelet, "pod-1")
    assert set(names_of(await ours(api))) == set(SIXTEEN) - {"neuron-device-5"} | {"neurondevice5"}
    assert "neuron5 is held by claim default/running" in await refused(kubelet, rival)
    await unprepared(kubelet, running)
    api.delete("resourceclaims", "running", "default")
    await api.until("resourceslices", lambda found: names_of(found[0]) == SIXTEEN, timeout_s=START_S)
    await prepared(kubelet, rival)


@pytest.mark.parametrize("books", ["of a form of its own", "elsewhere"])
async def test_unknown_device_name_holds_all_devices(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, books: str
) -> None:
    simulated_node.write(host.root / "host", "trn2u.48xlarge", node_id=2)
    if books == "of a form of its own":
        host.data.mkdir()
        (host.data / "checkpoint.json").write_text(THEIR_CHECKPOINT)
        api.faults.add(InjectedFault(Do.DELAY, verb="list", resource="resourceclaims", delay_s=1.0))
    publish_theirs(api, ["neuron-node"])
    running = api.create(allocated_claim("running", "node-a", ["neuron-node"]))
    rival = api.create(allocated_claim("rival", "node-a", ["neuron-node-0"]))
    api.patch("resourceclaims", "rival", {"status": {"reservedFor": None}}, "default")
    await started(host, kubelet, "pod-1")
    assert names_of(await ours(api)) == ["neuron-node"]
    assert "neuron0 is held by claim default/running" in await refused(kubelet, rival)
    await unprepared(kubelet, running)
    api.delete("resourceclaims", "running", "default")
    await api.until("resourceslices", lambda found: names_of(found[0]) == ["neuron-node-0"], timeout_s=START_S)
    await prepared(kubelet, rival)


async def test_claim_deleted_without_driver_is_released(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi
) -> None:
    publish_theirs(api, SIXTEEN)
    ended = api.create(allocated_claim("ended", "node-a", [5]))
    theirs = their_cdi_file(host, ended)
    away = api.faults.add(InjectedFault(Do.RESPOND, verb="list", resource="resourceclaims", status=503, times=None))
    await started(host, kubelet, "pod-1")
    await eventually(lambda: away.hits, START_S)
    await unprepared(kubelet, ended)  # the kubelet does not wait for the inventory
    assert not theirs.exists()
    api.delete("resourceclaims", "ended", "default")
    api.faults.clear()
    await ours(api)
    await prepared(kubelet, api.create(allocated_claim("heir", "node-a", [5])))
