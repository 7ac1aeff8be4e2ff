"""`neuron-dra inspect`, against a plugin on its socket (17.7)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_dra.api.objects import allocated_claim, neuron_config
from neuron_dra.ask.inspect import command as inspect_command
from neuron_dra.ask.inspect import text as node_text
from neuron_dra.ask.inspect.state import PluginState
from neuron_dra.emulation.embedded_api.server import EmbeddedApi
from neuron_dra.emulation.scripted_kubelet import ScriptedKubelet
from neuron_dra.gen.neuron.dra.v1 import inspector_pb2 as pb
from neuron_dra.node.plugin import Plugin
from tests.support.output_schema import checked
from tests.support.plugin_host import PluginHost
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100
DRIVER = "neuron.aws.com"


@pytest.fixture
async def plugin(host: PluginHost, quick: None) -> AsyncIterator[Plugin]:
    async with host.running("pod-1") as running:
        yield running


@pytest.fixture
async def kubelet(host: PluginHost) -> AsyncIterator[ScriptedKubelet]:
    async with ScriptedKubelet(host.registry) as made:
        yield made


async def inspect(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neuron_dra.cli", "inspect", *words]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT
    )


async def test_devices_claims_and_problems_are_printed(
    plugin: Plugin, kubelet: ScriptedKubelet, host: PluginHost, api: EmbeddedApi
) -> None:
    await kubelet.registered(DRIVER)
    made = api.create(allocated_claim("job", "node-a", [3], namespace="default", config=[neuron_config(1)]))
    await kubelet.prepare([made])
    await eventually(lambda: plugin.publish_state.result)
    socket = str(host.data / "dra-pod-1.sock")
    done = await inspect("--socket", socket)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("node node-a: trn2.48xlarge, kernel driver ")
    assert lines[1].startswith("published 16 devices in 1 slice, generation ")
    rows = [line.split() for line in lines]
    assert ["neuron-device-3", "8", "96", "GiB", "0", "2", "7", "15", "healthy", "default/job"] in rows
    assert ["neuron-device-4", "8", "96", "GiB", "0", "5", "7", "8", "healthy", "-"] in rows
    assert any(row[:3] == ["default/job", "device", "3"] for row in rows)

    host.hardware.add_ecc(5)
    await eventually(lambda: plugin.hardware.health_of("neuron-device-5").status.value == "UNHEALTHY")
    done = await inspect("--socket", socket, "-o", "wide")
    assert done.returncode == 1
    assert any(line.startswith("! neuron-device-5: ") for line in done.stdout.splitlines())
    assert ["node_name", "node-a"] in [line.split()[:2] for line in done.stdout.splitlines()]


async def test_data_has_every_answer(plugin: Plugin, host: PluginHost) -> None:
    await eventually(lambda: plugin.publish_state.result)
    socket = str(host.data / "dra-pod-1.sock")
    done = await inspect("--socket", socket, "-o", "json")
    data = checked(done.stdout)
    assert data["socket"] == socket
    assert len(data["devices"]["devices"]) == 16
    assert {"status", "claims", "reservation", "configuration"} <= data.keys()
    assert done.returncode == 1  # no kubelet has called
    shown = await inspect("--socket", socket, "-o", "yaml")
    assert yaml.safe_load(shown.stdout)["devices"] == data["devices"]


async def test_newest_socket_that_answers_is_read(plugin: Plugin, host: PluginHost, tmp_path: Path) -> None:
    (tmp_path / "dra-pod-1.sock").symlink_to(host.data / "dra-pod-1.sock")
    (tmp_path / "dra-left.sock").touch()
    path, state = await asyncio.to_thread(inspect_command.read, "", folder=str(tmp_path))
    assert (path.name, state.devices.node_name) == ("dra-pod-1.sock", "node-a")


async def test_absent_plugin_is_one_line(tmp_path: Path) -> None:
    done = await inspect("--socket", str(tmp_path / "none.sock"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"no plugin answers ({tmp_path}/none.sock: unavailable)" in done.stderr


def state(**reservation: Any) -> PluginState:
    return PluginState(
        status=pb.GetStatusResponse(registered=False, published=False, publish_error="the API server rejects it"),
        devices=pb.ListDevicesResponse(node_name="a", findings=["neuron3 is missing"]),
        claims=pb.ListPreparedClaimsResponse(),
        reservation=pb.GetReservationResponse(ultraserver="us-1", known=True, **reservation),
        configuration=pb.GetConfigurationResponse(),
    )


def test_problems_come_before_the_devices() -> None:
    assert node_text.lines(state())[:5] == [
        "node a: unknown type, plugin ",
        "UltraServer us-1: not reserved",
        "! not registered with the kubelet: the kubelet has not called yet",
        "! not published: the API server rejects it",
        "! neuron3 is missing",
    ]


def test_reservation_is_shown_with_its_tag() -> None:
    mine = pb.Reservation(workload="ml/job", phase="Bound", rank=2, node_count=4, world_size=8)
    reserved = node_text.lines(state(reservation=mine, tag=pb.Tag(phase="Bound")))
    assert reserved[1:3] == [
        "UltraServer us-1: reserved for workload ml/job, Bound, rank 2 of 8; its devices",
        "  show Bound",
    ]
    assert "do not show it" in " ".join(node_text.lines(state(reservation=mine))[1:3])
