"""The metrics port on a host's network, where two plugins meet during a rolling update."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from neuron_dra.http import ANSWERS, HttpServer
from tests.support.waiting import eventually


def server() -> HttpServer:
    return HttpServer(CollectorRegistry(), lambda: "")


async def fetch(port: int, path: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def test_port_of_an_ended_plugin_is_taken_over() -> None:
    old, new = server(), server()
    await old.run("127.0.0.1:0")
    port = old.port
    waiting = asyncio.create_task(new.run(f"127.0.0.1:{port}", retry_s=0.01))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await old.stop()
    await asyncio.wait_for(waiting, 60)
    assert await fetch(port, "/readyz") == "ok\n"
    await new.stop()


class Growing:
    """Metrics of 16 MiB, more than the kernel buffers, and other ones each time."""

    def __init__(self) -> None:
        self.rendered = 0

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        self.rendered += 1
        gauge = GaugeMetricFamily("big", f"of rendering {self.rendered}", labels=["name"])
        for number in range(4):
            gauge.add_metric([f"{number}" * 2**22], 1.0)
        yield gauge


async def test_clients_that_do_not_read_share_a_few_answers() -> None:
    registry, growing = CollectorRegistry(), Growing()
    registry.register(growing)
    http = HttpServer(registry, lambda: "")
    await http.run("127.0.0.1:0")
    clients = []
    for _ in range(8):
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await reader.readexactly(15)
        clients.append((reader, writer))
    assert growing.rendered == ANSWERS
    for _, writer in clients:
        writer.close()
    await eventually(lambda: not http._sending)
    assert f"of rendering {ANSWERS + 1}" in (await fetch(http.port, "/metrics"))
    await http.stop()
