"""Restart, update and reboot while claims hold connected sets, cores and devices (16, acceptance 6)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.api.objects import DEVICE_CLASSES, allocated_claim
from neuron_dra.core.wire import Obj
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from tests.story.plugin_story import DRIVER, START_S, prepared, refused, started, unprepared
from tests.support.plugin_host import PluginHost
from tests.support.published_slices import is_complete
from tests.support.waiting import eventually

ON: dict[str, Any] = {"connected_sets": True}
HELD = ("neuron-set-3-10", "neuron-cores-9-4", "neuron-device-8")  # devices 10, 11, 0; 2 to 6; 8
OVERLAPPING = ("neuron-device-0", "neuron-cores-1-12", "neuron-set-2-7")
PUBLISHED = 223


@pytest.fixture
async def host(api: EmbeddedApi, short_path: Path) -> AsyncIterator[PluginHost]:
    """The files of `node-a`, an inf2.48xlarge."""
    for each in DEVICE_CLASSES:
        api.create(each)
    made = PluginHost(short_path, api.url, instance_type="inf2.48xlarge")
    yield made
    await made.close()


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


@pytest.fixture
def claims(api: EmbeddedApi) -> list[Obj]:
    return [api.create(allocated_claim(f"job-{i}", "node-a", [name])) for i, name in enumerate(HELD)]


async def published(api: EmbeddedApi) -> dict[str, Obj]:
    """Wait until the node has all its devices in slices of one generation, and return them by name."""

    def devices() -> dict[str, Obj]:
        if not is_complete(api):
            return {}
        items = api.objects("resourceslices")
        return {device["name"]: device for item in items for device in item["spec"].get("devices", ())}

    await eventually(lambda: len(devices()) == PUBLISHED, START_S, "the sets")
    return devices()


def writes(api: EmbeddedApi) -> list[str]:
    """Return the verbs of all writes of slices so far; each process tries one without a change (dryRun)."""
    asked = api.requests(resource="resourceslices")
    return [e.verb for e in asked if e.verb in ("create", "update", "delete") and "dryRun" not in e.query]


async def all_is_held(kubelet: ScriptedKubelet, api: EmbeddedApi, name: str) -> None:
    """No device of the claims is given out again, in whatever form it is published."""
    for number, device in enumerate(OVERLAPPING):
        claim = api.create(allocated_claim(f"{name}-{number}", "node-a", [device]))
        assert "is held by claim default/job-" in await refused(kubelet, claim)


@pytest.mark.contract("P2")
@pytest.mark.contract("P13")
@pytest.mark.contract("P18")
@pytest.mark.contract("S2")
async def test_results_with_sets_are_equal_after_a_kill(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, claims: list[Obj]
) -> None:
    process = await started(host, kubelet, "pod-1", **ON)
    before = await published(api)
    answers = [await prepared(kubelet, claim) for claim in claims]
    files = [host.spec(claim["metadata"]["uid"]) for claim in claims]
    written = writes(api)
    await process.kill()
    await kubelet.restart()
    await started(host, kubelet, "pod-1", **ON)
    assert [await prepared(kubelet, claim) for claim in claims] == answers
    assert [host.spec(claim["metadata"]["uid"]) for claim in claims] == files
    await all_is_held(kubelet, api, "again")
    assert await published(api) == before
    assert writes(api) == written


@pytest.mark.contract("R13")
@pytest.mark.contract("S23")
async def test_rolling_update_shares_claims_on_sets(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, claims: list[Obj]
) -> None:
    old = await started(host, kubelet, "pod-old", **ON)
    before = await published(api)
    for claim in claims[:2]:
        await prepared(kubelet, claim)
    written = writes(api)
    new = await started(host, kubelet, "pod-new", **ON)
    await eventually(lambda: "this plugin publishes" in new.log, START_S, "the hand-over")
    await prepared(kubelet, claims[2])
    assert await old.stop() == 0
    await kubelet.gone(DRIVER, endpoint=str(host.settings("pod-old").dra_socket))
    await all_is_held(kubelet, api, "new")
    assert await published(api) == before
    assert writes(api) == written
    for claim in claims:
        await unprepared(kubelet, claim)
    assert (host.specified, host.checkpointed) == (set(), set())


@pytest.mark.contract("P19")
async def test_reboot_prepares_claims_on_sets_again(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, claims: list[Obj]
) -> None:
    process = await started(host, kubelet, "pod-1", **ON)
    before = await published(api)
    answers = [await prepared(kubelet, claim) for claim in claims]
    await process.kill()
    host.hardware.set_boot_id()
    for name in os.listdir(host.cdi):
        (host.cdi / name).unlink()
    await kubelet.restart()
    await started(host, kubelet, "pod-1", **ON)
    assert host.checkpointed == set()
    assert [await prepared(kubelet, claim) for claim in claims] == answers
    assert host.specified == host.checkpointed == {claim["metadata"]["uid"] for claim in claims}
    await all_is_held(kubelet, api, "again")
    assert await published(api) == before


@pytest.mark.contract("N1")
@pytest.mark.contract("N3")
async def test_sets_are_free_after_unprepare(
    host: PluginHost, kubelet: ScriptedKubelet, api: EmbeddedApi, claims: list[Obj]
) -> None:
    await started(host, kubelet, "pod-1", **ON)
    await published(api)  # the inventory has adopted what another driver may have prepared
    for claim in claims:
        await prepared(kubelet, claim)
        await unprepared(kubelet, claim)
        await unprepared(kubelet, claim)
        api.delete("resourceclaims", claim["metadata"]["name"], "default")
    for number, device in enumerate(OVERLAPPING):
        await prepared(kubelet, api.create(allocated_claim(f"next-{number}", "node-a", [device])))
    assert len(host.checkpointed) == len(OVERLAPPING)
