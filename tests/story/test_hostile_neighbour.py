"""Ports that are open to the network: whatever a neighbour sends, the plugin's memory is bounded and probes succeed."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Final

import pytest
from grpc_health.v1 import health_pb2

from neuron_dra.emulation.embedded_api import EmbeddedApi
from tests.story.plugin_story import published
from tests.support.neighbour import ATTACKS, attack, grpc_probe, http_probe
from tests.support.plugin_host import PluginHost, PluginProcess
from tests.support.ports import free_port
from tests.support.waiting import eventually

MOST_KIB: Final = 96 * 1024  # of the pod's limit of 256 MiB
SERVING: Final = health_pb2.HealthCheckResponse.SERVING


def peak_kib(process: PluginProcess) -> int:
    """Return the largest resident size that the process ever had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1])


def answers(port: int) -> bool:
    with socket.socket() as made:
        return made.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("kind", ["gRPC health", "metrics"])
@pytest.mark.parametrize("name", ATTACKS)
async def test_hostile_neighbour_costs_bounded_memory(api: EmbeddedApi, host: PluginHost, name: str, kind: str) -> None:
    """31.1: twelve health checks with a service name of 15 MiB, and the plugin was OOMKilled."""
    grpc_port, http_port = free_port(), free_port()
    process = await host.start_process(
        "pod-1", healthcheck_port=grpc_port, metrics_bind_address=f"127.0.0.1:{http_port}"
    )
    await published(api)
    await eventually(lambda: answers(grpc_port) and answers(http_port), what="both ports are open")
    attacked = grpc_port if kind == "gRPC health" else http_port
    for _ in range(2):
        await attack(name, attacked)
        assert await grpc_probe(grpc_port) == SERVING
        assert (await http_probe(http_port)).startswith(b"HTTP/1.1 200 OK")
        assert b"neuron_dra_build_info" in await http_probe(http_port, "/metrics")
    assert process.running
    assert peak_kib(process) <= MOST_KIB
    assert "Traceback" not in process.log


@pytest.mark.parametrize("kind", ["gRPC", "metrics"])
@pytest.mark.parametrize("name", ATTACKS)
async def test_hostile_neighbour_of_the_controller(api: EmbeddedApi, host: PluginHost, name: str, kind: str) -> None:
    """31.1: an operator may open the controller's gRPC port to the network."""
    api.register_neuron_kinds()
    grpc_port, http_port = free_port(), free_port()
    host.program = ("-c", "import sys; from controller.main import main; sys.exit(main())")
    flags = ("--kube-api-server", api.url, "--grpc-address", f"127.0.0.1:{grpc_port}")
    address = f"127.0.0.1:{http_port}"
    process = await host.start_command(
        "run", *flags, "--metrics-bind-address", address, "--health-probe-bind-address", address
    )
    await eventually(lambda: answers(grpc_port) and answers(http_port), what="both ports are open")
    async with asyncio.timeout(60):
        while await grpc_probe(grpc_port) != SERVING:
            await asyncio.sleep(0.05)
    attacked = grpc_port if kind == "gRPC" else http_port
    for _ in range(2):
        await attack(name, attacked)
        assert await grpc_probe(grpc_port) == SERVING
        assert (await http_probe(http_port)).startswith(b"HTTP/1.1 200 OK")
    assert process.running
    assert peak_kib(process) <= MOST_KIB
    assert "Traceback" not in process.log
