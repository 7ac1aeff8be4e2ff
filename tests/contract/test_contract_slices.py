"""Slices that every API server accepts, and their states during changes; tested with a real server too."""

from __future__ import annotations

import contextlib
import json
import random
import string
from collections.abc import Callable
from typing import Any

import pytest

from neuron_dra.api.objects import node_object
from neuron_dra.core import limits, slices
from neuron_dra.core.devices import Attribute, Device
from neuron_dra.emulation.embedded_api import EmbeddedApi, InjectedFault
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import DEFAULT_TIMING
from tests.contract.api_client import SLICES, Server
from tests.support.plugin_host import PluginHost, published_again
from tests.support.timings import with_timing
from tests.support.waiting import eventually

ROUNDS, DEVICES = 8, 40
LETTERS = string.ascii_letters + string.digits + '_-./ \n\u00e9\u20ac\U0001f600"\\'


def dice(seed: int) -> Callable[[], Device]:
    """Return a strategy of unusual devices: names, keys, values and quantities around the limits and beyond."""
    rng = random.Random(seed)

    def text(longest: int) -> str:
        return "".join(rng.choices(LETTERS, k=rng.randrange(longest)))

    def key() -> str:
        plain = "a" * rng.choice((1, 8, 31, 32, 33))
        domains = ("", "example.com/", f"{'a' * 63}/", f"{'a' * 64}/", "a..b/", "A.example/", "resource.aws.com/")
        return rng.choice((plain, f"k{rng.randrange(10**6)}", rng.choice(domains) + plain, text(12)))

    def attribute() -> Attribute:
        numbers = (0, -(2**63), 2**63 - 1, 2**63, True)
        versions = ("1.2.3", "1.2.3-rc.1+b", "1.02.3", "2.26.10.0", f"{2**64 - 1}.0.0", f"{2**64}.0.0", "v1.2.3")
        return rng.choice(
            (
                Attribute("int", rng.choice(numbers)),
                Attribute("bool", rng.choice((True, False, 1))),
                Attribute("version", rng.choice((*versions, text(8)))),
                Attribute("string", rng.choice((text(10), "x" * 64, "x" * 65, "\u00e9" * 32, "\u00e9" * 33, ""))),
            )
        )

    def device() -> Device:
        names = (f"d-{rng.randrange(10**6)}", "a" * 63 if rng.random() < 0.1 else "b", "a_b", "A", text(6))
        quantities = ("1", "96Gi", "1.5", "5m", "1e3", "96GiB", "-1", "", text(5))
        attributes = {key(): attribute() for _ in range(rng.choice((0, 8, 80)))}
        return Device(rng.choice(names), (0,), attributes, {key(): rng.choice(quantities) for _ in range(3)})

    return device


def made(devices: list[Any], name: str) -> dict[str, Any]:
    (item,) = slices.desired(slices.Pool(name, "uid"), devices, generation=1)
    del item["metadata"]["ownerReferences"]
    return item


@pytest.mark.contract("S15")
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_server_accepts_the_kept_devices(server: Server, seed: int) -> None:
    device = dice(seed)
    kept, problems = limits.check_devices(device() for _ in range(DEVICES))
    assert problems
    assert sum(len(one.attributes) + len(one.capacity) for one in kept) > DEVICES
    answer = await server.post(SLICES, made([one.to_wire() for one in kept], server.namespace), dryRun="All")
    assert answer.status == 201, answer.body


@pytest.mark.contract("S15")
@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("a", Attribute("string", "x" * 65)),
        ("a", Attribute("string", "\u00e9" * 33)),
        ("a", Attribute("version", "2.26.10.0")),
        ("a", Attribute("version", "1.02.3")),
        ("a", Attribute("int", 2**63)),
        ("numa-1", Attribute("int", 1)),
        ("a" * 33, Attribute("int", 1)),
        (f"{'a' * 64}/x", Attribute("int", 1)),
    ],
)
async def test_server_rejects_the_omitted_devices(server: Server, name: str, attribute: Attribute) -> None:
    device = Device("d", (0,), {name: attribute})
    (kept,), problems = limits.check_devices([device])
    assert (dict(kept.attributes), len(problems)) == ({}, 1)
    answer = await server.post(SLICES, made([device.to_wire()], server.namespace), dryRun="All")
    assert answer.status in (400, 422)


@pytest.mark.contract("S19")
async def test_server_rejects_duplicate_device_names(server: Server) -> None:
    twice = [Device("d", (0,)), Device("d", (1,))]
    answer = await server.post(SLICES, made([one.to_wire() for one in twice], server.namespace), dryRun="All")
    assert (answer.status, answer.causes) == (422, {("FieldValueDuplicate", "spec.devices[1]")})
    kept, (problem,) = limits.check_devices(twice)
    answer = await server.post(SLICES, made([one.to_wire() for one in kept], server.namespace), dryRun="All")
    assert (answer.status, problem) == (201, "device name 'd' occurs twice; the second device is left out")


@pytest.mark.contract("S28")
async def test_server_accepts_the_largest_slice(server: Server) -> None:
    """Every device, attribute and value has its maximal length, in characters with the longest JSON form."""
    largest = [
        Device(
            f"{number:02d}-{'a' * 60}",
            (number,),
            {f"{'d' * 63}/{'a' * 30}{index:02d}": Attribute("string", "\u00e9" * 32) for index in range(40)},
        )
        for number in range(slices.DEVICES_PER_SLICE)
    ]
    kept, _ = limits.check_devices(largest)
    room = limits.WORKLOAD_TAGS + limits.HEALTH_MARKS
    taints = [{"key": "neuron.aws.com/unhealthy", "value": f"{'v' * 62}{i}", "effect": "NoSchedule"} for i in range(4)]
    devices = [{**one.to_wire(), "taints": taints} for one in kept]
    for device in devices:
        device["attributes"] |= {f"tag{index}": {"string": "\u00e9" * 32} for index in range(room)}
        assert len(device["attributes"]) == limits.ATTRIBUTES_AND_CAPACITIES
    item = made(devices, server.namespace)
    assert 500_000 < len(json.dumps(item, separators=(",", ":"))) < 1_000_000
    answer = await server.post(SLICES, item, dryRun="All")
    assert answer.status == 201, answer.body


@pytest.mark.contract("S31")
@with_timing(DEFAULT_TIMING, hardware={"period_s": 0.1})
async def test_no_write_leaves_the_pool_incomplete(api: EmbeddedApi, host: PluginHost) -> None:
    label = "topology.k8s.aws/network-node-layer-1"

    def layer(device: dict[str, Any]) -> Any:
        return device["attributes"].get("networkNodeLayer1", {}).get("string")

    def shown(count: int, sick: int, where: str | None) -> bool:
        found = [device for item in api.objects("resourceslices") for device in item["spec"].get("devices", [])]
        marked = [device for device in found if "unhealthy" in device["attributes"]]
        return (len(found), len(marked), {layer(device) for device in found}) == (count, sick, {where})

    async with host.running():
        await eventually(lambda: shown(16, 0, None))
        api.patch("nodes", "node-a", {"metadata": {"labels": {label: "nn-1"}}})
        await eventually(lambda: shown(16, 0, "nn-1"))
        host.hardware.add_ecc(3)
        await eventually(lambda: shown(16, 1, "nn-1"))
        host.hardware.remove_device(5)
        await eventually(lambda: shown(15, 1, "nn-1"))
    verbs = {entry.verb for entry in api.requests(resource="resourceslices") if entry.verb in WRITES}
    assert verbs == {"create", "update"}
    (left,) = api.objects("resourceslices")
    assert left["spec"]["pool"] == {"name": "node-a", "generation": 1, "resourceSliceCount": 1}


WRITES = ("create", "update", "patch", "delete", "deletecollection")
NODES = 10


@pytest.mark.contract("O6")
async def test_retry_after_spreads_the_fleet(
    api: EmbeddedApi, host: PluginHost, caplog: pytest.LogCaptureFixture
) -> None:
    """The server rejects each node's first write, and some nodes' second: three writes are enough for all."""
    hosts = []
    for name in (f"fleet-{number}" for number in range(NODES)):
        (host.root / name).mkdir()
        hosts.append(PluginHost(host.root / name, api.url, node_name=name, instance_type="trn1.2xlarge"))
    refused = NODES + NODES // 2
    api.faults.add(InjectedFault(verb="create", resource="resourceslices", status=429, retry_after=1, times=refused))
    async with contextlib.AsyncExitStack() as stack:
        plugins = [await stack.enter_async_context(one.running()) for one in hosts]
        for one in hosts:
            api.create(node_object(one.node_name))  # now all publish
        await eventually(lambda: len(api.objects("resourceslices")) == NODES)

    def count(plugin: Plugin, metric: str, **labels: str) -> float:
        return plugin.metrics.registry.get_sample_value(f"neuron_dra_{metric}_total", labels) or 0.0

    failed = [count(plugin, "publish_errors", reason="TooManyRequests") for plugin in plugins]
    assert sum(failed) == refused
    assert max(failed) <= 2
    assert [count(plugin, "slice_writes") for plugin in plugins] == [1] * NODES
    waits = [record.__dict__["retry_in_s"] for record in caplog.records if record.message == "publishing failed"]
    assert len(waits) == refused
    assert (min(waits) >= 1, max(waits) <= 1.5, len(set(waits)) > 2) == (True, True, True)


ADDED = {
    "metadata.labels.team": "a",
    "spec.novelty": {"depth": 1},
    "spec.devices[*].novelty": {"depth": 1},
    "spec.devices[*].taints[*].novelty": "x",
}


def slice_writes(api: EmbeddedApi) -> int:
    """Return the number of writes of ResourceSlices, without those that only ask what the server would store."""
    requests = api.requests(resource="resourceslices")
    return sum(request.verb in WRITES and "dryRun" not in request.query for request in requests)


async def test_fields_that_the_server_adds_cause_no_writes(api: EmbeddedApi, host: PluginHost) -> None:
    """(4.04) Neither those of a newer release nor those of an admission policy; also after a restart."""
    api.added_fields["resourceslices"] = ADDED
    host.hardware.add_ecc(3)
    writes = []
    for _ in range(2):
        async with host.running() as plugin:
            for _ in range(3):
                await published_again(plugin)
        writes.append(slice_writes(api))
    devices = api.objects("resourceslices")[0]["spec"]["devices"]
    [device] = [device for device in devices if device.get("taints")]
    assert (device["novelty"], device["taints"][0]["novelty"]) == ({"depth": 1}, "x")
    assert writes == [1, 1]
    host.hardware.add_ecc(4)  # the control: what has changed is written
    async with host.running() as plugin:
        await published_again(plugin)
    assert slice_writes(api) == 2
