"""Connected sets on releases of Kubernetes that go wrong with shared counters, and while they alternate (32.1)."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from neuron_dra.api.objects import allocated_claim
from neuron_dra.core import linked
from neuron_dra.emulation.embedded_api import EmbeddedApi
from neuron_dra.node.plugin import Plugin
from neuron_dra.node.timing import PluginTiming
from tests.contract.sets_node import closing, prepare, server_with_a_node, whole_pool
from tests.support.plugin_host import PluginHost
from tests.support.timings import QUICK, quicker, with_timing
from tests.support.waiting import always, eventually

ON: dict[str, Any] = {"connected_sets": True}
SET = "neuron-set-3-0"
EVERYTHING = 223
HURRIED = quicker(
    QUICK,
    publish={
        "leaving": {"withdraw_s": 0.2},
        "sets_check_s": (0.1, 0.3),
        "server": {"ask_s": 0.1, "retry_s": 0.1, "closed_s": 0.5},
    },
)


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


def published(api: EmbeddedApi) -> set[str]:
    return set(whole_pool(api))


def unheld(api: EmbeddedApi, held: str = "") -> set[str]:
    return {name for name in published(api) if not name.startswith("neuron-device-")} - {held}


def counters(api: EmbeddedApi) -> bool:
    return any(item["spec"].get("sharedCounters") for item in api.objects("resourceslices"))


def off(api: EmbeddedApi) -> str:
    return "".join(e["message"] for e in api.objects("events", "default") if e["reason"] == "NeuronConnectedSetsOff")


@pytest.mark.parametrize(("version", "issue"), [("v1.36.0", "#138882"), ("v1.36.2-eks-1", "#140436")])
async def test_no_sets_beside_an_api_server_that_goes_wrong(
    api: EmbeddedApi, host: PluginHost, version: str, issue: str
) -> None:
    api.answer_versions(version)
    async with host.running(**ON):
        await eventually(lambda: issue in off(api))
        await always(lambda: len(published(api)) == 12 and not counters(api), 0.5)
        api.answer_versions("v1.36.3")
        await eventually(lambda: len(published(api)) == EVERYTHING)


async def test_the_setting_permits_a_release_with_backports(api: EmbeddedApi, host: PluginHost) -> None:
    api.answer_versions("v1.36.1-vendor.7")
    async with host.running(**ON, connected_sets_oldest_release="1.36.1"):
        await eventually(lambda: len(published(api)) == EVERYTHING)


async def test_the_setting_any_asks_for_no_version(api: EmbeddedApi, host: PluginHost) -> None:
    api.answer_versions("v1.36.0")
    async with host.running(**ON, connected_sets_oldest_release="any"):
        await eventually(lambda: len(published(api)) == EVERYTHING)


async def test_an_older_answer_takes_back_the_sets_that_nobody_holds(api: EmbeddedApi, host: PluginHost) -> None:
    held = api.create(allocated_claim("held", "node-a", [SET]))
    async with host.running(**ON) as plugin:
        await eventually(lambda: len(published(api)) == EVERYTHING)
        await prepare(plugin, held)
        api.answer_versions("v1.37.0", "v1.36.1")
        await eventually(lambda: not unheld(api, SET) and SET in published(api))
        assert counters(api)  # the set in use keeps what it consumes
        assert "#138882" in off(api)


@pytest.mark.parametrize("answers", [("v1.37.0", "v1.36.1"), ("v1.37.0", "v1.37.0", "v1.36.1")])
@pytest.mark.parametrize("was_on", [True, False])
async def test_answers_that_alternate_for_ever_end_with_no_unheld_set(
    api: EmbeddedApi, host: PluginHost, answers: tuple[str, ...], was_on: bool
) -> None:
    if not was_on:
        api.answer_versions(*answers)
    async with host.running(**ON):
        await eventually(lambda: len(published(api)) == (EVERYTHING if was_on else 12))
        api.answer_versions(*answers)
        await eventually(lambda: published(api) and not unheld(api))
        await always(lambda: not unheld(api), 1.0)
    async with host.running(**ON):  # a restart asks anew, and is not quicker
        await always(lambda: not unheld(api), 1.0)


@with_timing(HURRIED, publish={"server": {"ask_s": 3600.0}})
async def test_a_restart_beside_a_held_set_over_a_dead_link_keeps_the_others(
    api: EmbeddedApi, host: PluginHost
) -> None:
    held = api.create(allocated_claim("held", "node-a", [SET]))
    async with host.running(**ON) as plugin:
        await eventually(lambda: len(published(api)) == EVERYTHING)
        await prepare(plugin, held)
        host.hardware.break_link(0, 1)
        await eventually(lambda: "neuron-set-2-0" not in published(api) and SET in published(api))
        left = len(published(api))
    async with host.running(**ON):
        await always(lambda: len(published(api)) == left, 2.0)
        assert off(api) == ""


async def test_a_restart_while_sets_are_taken_back_does_not_bring_them_again(
    api: EmbeddedApi, host: PluginHost
) -> None:
    held = api.create(allocated_claim("held", "node-a", [SET]))
    async with host.running(**ON) as plugin:
        await eventually(lambda: len(published(api)) == EVERYTHING)
        await prepare(plugin, held)
        api.answer_versions("v1.36.1")
        await eventually(lambda: not unheld(api, SET) and SET in published(api))
    api.answer_versions("v1.37.0", "v1.36.1")
    async with host.running(**ON):
        await always(lambda: not unheld(api, SET), 1.5)


def pause_s(plugin: Plugin) -> float:
    """Return for how long the plugin has not compared its slices."""
    at = plugin.publish_state.at
    assert at is not None
    return (datetime.datetime.now(datetime.UTC) - at).total_seconds()


@with_timing(HURRIED, publish={"sets_check_s": (3600.0, 3600.0)})
async def test_a_kubelet_that_goes_back_ends_the_questions(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**ON, unhealthy_device_hold_seconds=4) as plugin:
        await eventually(lambda: len(published(api)) == EVERYTHING)
        host.hardware.break_link(0, 1)
        await eventually(lambda: SET not in published(api))
        host.hardware.repair_link(0, 1)  # it counts again in four seconds, when there are no sets
        await eventually(lambda: (0, 1) in linked.up_now(plugin.hardware.node))
        api.patch("nodes", "node-a", {"status": {"nodeInfo": {"kubeletVersion": "v1.35.4"}}})
        await eventually(lambda: len(published(api)) == 12 and not counters(api))
        await eventually(lambda: pause_s(plugin) > 5.0, what="five seconds without a look at the slices")
        api.patch("nodes", "node-a", {"status": {"nodeInfo": {"kubeletVersion": "v1.37.0"}}})
        await eventually(lambda: len(published(api)) == EVERYTHING)


@with_timing(HURRIED, publish={"server": {"ask_s": 0.2, "closed_s": 3600.0}})
async def test_nothing_goes_on_again_for_a_while(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**ON):
        await eventually(lambda: len(published(api)) == EVERYTHING)
        api.answer_versions("v1.36.0")
        await eventually(lambda: len(published(api)) == 12)
        api.answer_versions("v1.37.0")
        await always(lambda: len(published(api)) == 12, 1.5)


async def test_no_answer_changes_nothing(api: EmbeddedApi, host: PluginHost) -> None:
    async with host.running(**ON):
        await eventually(lambda: len(published(api)) == EVERYTHING)
        api.answer_versions("unreadable.x.y")
        await always(lambda: len(published(api)) == EVERYTHING, 1.0)
    async with host.running(**ON):
        await always(lambda: len(published(api)) == EVERYTHING, 1.0)
