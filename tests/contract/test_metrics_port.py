"""The metrics port on a host's network, where two plugins meet during a rolling update."""

from __future__ import annotations

import asyncio
import urllib.request

from prometheus_client import CollectorRegistry

from neuron_dra.http import HttpServer


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
