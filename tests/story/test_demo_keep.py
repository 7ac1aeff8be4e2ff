"""`neuron-dra demo --keep`: a cluster that stays up, on which the commands that it prints work (17.9)."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from neuron_dra.demo import cluster, main
from neuron_dra.demo.view import WIDTH, DemoScreen
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 100


@pytest.fixture
def folder() -> Iterator[Path]:
    made = cluster.temporary_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def run(exports: str, line: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", f"{exports}\n{line}"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=ROOT,
        check=False,
    )


async def shown(lines: list[str]) -> str:
    """Return the name of the node that the page at the printed address shows."""
    address = next(line.split()[-1] for line in lines if line.startswith("or open "))
    url, _, token = address.partition("#token=")
    headers = {"Sec-Fetch-Site": "same-origin", "Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as client, client.get(f"{url}api/stream", headers=headers) as answer:
        async for line in answer.content:
            names = list(json.loads(line)["set"].get("nodes", {}))
            if names:
                return str(names[0])
    return ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_commands_work_until_a_signal(number: signal.Signals, folder: Path) -> None:
    out = io.StringIO()
    view = DemoScreen(Console(file=out, width=WIDTH, highlight=False))
    async with cluster.Cluster((cluster.NodeSpec("a", "trn2.48xlarge"),), folder) as made:
        await made.ready(TIMEOUT_S)
        stays = asyncio.create_task(main.stay(made, folder, view))
        await eventually(lambda: "or open" in out.getvalue())
        lines = [line.strip() for line in out.getvalue().splitlines()]
        exports = next(line for line in lines if line.startswith("export KUBECONFIG="))
        commands = [line for line in lines if line.startswith("neuron-dra ")]
        assert [line.split()[1] for line in commands] == ["status", "topology", "why", "inspect", "fake-node"]
        assert await shown(lines) == "a"
        if number is signal.SIGINT:
            done = {line.split()[1]: await run(exports, line) for line in commands}
            assert {name: (each.returncode, "Traceback" in each.stderr) for name, each in done.items()} == {
                "status": (0, False),
                "topology": (0, False),
                "why": (1, False),
                "inspect": (0, False),
                "fake-node": (0, False),
            }
            assert done["why"].stdout.startswith("pod default/seventeen waits for a node: request neurons wants 17")
            assert {each.stderr for each in done.values()} == {""}
            assert done["inspect"].stdout.startswith("node a: trn2.48xlarge")
        assert not stays.done()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(TIMEOUT_S):
            await stays


def test_exports_name_kubeconfig_and_programs() -> None:
    here = Path(sys.executable).parent
    assert main.exports(Path("/tmp/a b/kubeconfig")) == f"export KUBECONFIG='/tmp/a b/kubeconfig' PATH={here}:$PATH"
