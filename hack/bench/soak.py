"""Runs the plugin for half an hour with a clock that runs 60 times as fast: `python -m hack.bench.soak --minutes 30`.

Meanwhile claims come and go, with and without configuration, devices fail and recover, and the Node changes. In the
second half of the run memory, Python's heap, threads and descriptors must stay level. The last line has the result.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc

from hack.bench.drivers import CLAIMS, DEVICE_CLASSES, Hurried
from hack.bench.prepare import Kind, allocate, connected, prepare, unprepare
from hack.bench.servers import api_server
from neuron_dra.api import objects
from neuron_dra.emulation import simulated_node
from neuron_dra.emulation.simulated_node import SimulatedNode

CONFIGURATION = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 2}
CLAIMED = range(8)
"""The devices that claims get; the others fail and recover."""
RSS_MIB, HEAP_SHARE, FEW = 1.5, 0.01, 2
"""By how much the last quarter may exceed the one before: memory, share of the heap, threads and descriptors."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the plugin uses at a time."""

    minutes: float
    rss_mib: float
    blocks: int
    threads: int
    open_files: int

    def __str__(self) -> str:
        cells = (f"{self.minutes:.0f}", f"{self.rss_mib:.1f}", f"{self.blocks:,}", self.threads, self.open_files)
        return f"| {' | '.join(map(str, cells))} |"


class Watched(Hurried):
    """The hurried plugin, which reports its heap."""

    name = "soak"

    @property
    def heap(self) -> Path:
        """The file with the number of allocated blocks."""
        return self.root / "heap"

    def command(self) -> list[str]:
        return ["env", f"NEURON_DRA_HEAP={self.heap}", *super().command()]

    def sample(self, began: float) -> Sample:
        """Return what the process uses now."""
        threads = len(list(Path(f"/proc/{self.pid}/task").iterdir()))
        minutes = (time.monotonic() - began) / 60
        return Sample(minutes, self.rss_mib(), int(self.heap.read_text()), threads, self.open_files())


async def soak(root: Path, minutes: float) -> tuple[list[Sample], int, int]:
    """Return the samples, and the numbers of claims and of errors, which are tried again as a kubelet does."""
    hardware = simulated_node.write(root / "host", "trn2.48xlarge")
    async with api_server() as server, aiohttp.ClientSession(server.url) as api:
        for body in objects.DEVICE_CLASSES:
            (await api.post(DEVICE_CLASSES, json=body)).raise_for_status()
        driver = Watched(root, server.url)
        work = Work(api, driver, hardware)
        try:
            await driver.started(api)
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(each) for each in (work.faults(), work.node_changes(), work.calls())]
                samples = await _samples(driver, minutes)
                for task in running:
                    task.cancel()
        finally:
            driver.stop()
    return samples, work.claims, work.errors


async def _samples(driver: Watched, minutes: float) -> list[Sample]:
    """Sample 40 times, at equal distances."""
    began = time.monotonic()
    samples = []
    for number in range(1, 41):
        await asyncio.sleep(max(0.0, began + number * minutes * 60 / 40 - time.monotonic()))
        samples.append(driver.sample(began))
        print(samples[-1], flush=True)
    return samples


class Work:
    """What happens on the node."""

    def __init__(self, api: aiohttp.ClientSession, driver: Watched, hardware: SimulatedNode) -> None:
        self._api = api
        self._driver = driver
        self._hardware = hardware
        self.claims = 0
        self.errors = 0

    async def calls(self) -> None:
        """Prepare and unprepare a claim for each of some devices, again and again."""
        async with connected([self._driver]) as stubs:
            while True:
                await asyncio.gather(*(self._one(stubs[self._driver.name], device) for device in CLAIMED))
                await asyncio.sleep(0.2)

    async def _one(self, stub: object, device: int) -> None:
        self.claims += 1
        name = f"soak-{self.claims}"
        configuration = CONFIGURATION if self.claims % 3 == 0 else None
        claim = await allocate(self._api, self._driver, name, Kind(1, device, configuration))
        for call in (prepare, unprepare):
            while True:
                try:
                    await call(stub, claim)  # type: ignore[arg-type]
                    break
                except (RuntimeError, grpc.RpcError):
                    self.errors += 1
                    await asyncio.sleep(0.1)
        (await self._api.delete(f"{CLAIMS}/{name}")).raise_for_status()

    async def faults(self) -> None:
        """Let devices fail and recover, one after the other."""
        others = [each for each in self._hardware.device_ids() if each not in CLAIMED]
        while True:
            for device in others:
                self._hardware.add_ecc(device)
                await asyncio.sleep(3.0)
                self._hardware.add_ecc(device, count=-1)
                self._hardware.remove_device(device)
                await asyncio.sleep(3.0)
                self._hardware.restore_device(device)

    async def node_changes(self) -> None:
        """Change the Node as its kubelet's heartbeats do."""
        path, number = f"/api/v1/nodes/{self._driver.node}", 0
        headers = {"Content-Type": "application/merge-patch+json"}
        while True:
            number += 1
            body = {"metadata": {"annotations": {"example.com/heartbeat": str(number)}}}
            (await self._api.patch(path, json=body, headers=headers)).raise_for_status()
            await asyncio.sleep(1.0)


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return what has grown from the third quarter of the run to the last one."""
    quarter = len(samples) // 4
    before, after = samples[-2 * quarter : -quarter], samples[-quarter:]
    found = []
    for field, allowed in (("rss_mib", RSS_MIB), ("blocks", HEAP_SHARE), ("threads", FEW), ("open_files", FEW)):
        was, now = (statistics.median(getattr(each, field) for each in part) for part in (before, after))
        limit = was * (1 + allowed) if field == "blocks" else was + allowed
        if now > limit:
            found.append(f"{field} {was:g} to {now:g}")
    return found


def main() -> int:
    """Run, and print the samples and the result; return 1 if something has grown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    minutes = parser.parse_args().minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
    root = Path(tempfile.mkdtemp(prefix="neuron-dra-soak-"))
    print("| minutes | RSS, MiB | blocks | threads | open descriptors |\n|---|---|---|---|---|", flush=True)
    try:
        samples, claims, errors = asyncio.run(soak(root, minutes))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    first, last = samples[len(samples) // 2], samples[-1]
    text = (
        f"{minutes:g} minutes, {minutes * Hurried.speed / 60:g} hours of the plugin's clock, {claims:,} claims, "
        f"{errors} calls repeated; in the second half RSS {first.rss_mib:.1f} to {last.rss_mib:.1f} MiB, blocks "
        f"{first.blocks:,} to {last.blocks:,}, threads {first.threads} to {last.threads}, descriptors "
        f"{first.open_files} to {last.open_files}"
    )
    grown = growth(samples)
    print(f"{text}: {'grown: ' + ', '.join(grown) if grown else 'passed'}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
